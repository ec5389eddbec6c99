"""Decodes the blocks of GGUF files to floats, and packs them into the panels that matrix products read."""
