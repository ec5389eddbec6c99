"""Matrices that are loaded and evicted, so that a model may be larger than the memory."""
