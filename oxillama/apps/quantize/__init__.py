"""Writes quantized model files; computes, reads and writes importance matrices."""
