"""Work: writes quantized files; collects and reads importance matrices."""
