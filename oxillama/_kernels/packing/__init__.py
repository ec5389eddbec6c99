"""Blocks of GGUF files: to floats, and to the packed panels that matrices are multiplied from."""
