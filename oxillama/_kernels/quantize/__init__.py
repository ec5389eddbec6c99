"""Floats to the blocks of GGUF files."""
