"""Runs GGUF language models on CPUs: the same bits every time, at the speed of the memory."""

from oxillama._version import __version__

__all__ = ["__version__"]

