"""Work. Writes quantized files; collects and reads importance matrices."""
