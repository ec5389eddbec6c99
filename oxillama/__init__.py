"""Runs GGUF language models on CPUs: the same bits every time, at the speed of the memory."""

__version__ = "0.1.0.dev0"
