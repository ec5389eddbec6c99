"""Kernels of grammars: the vocabulary as a trie, parser configurations, and masks of the allowed tokens."""
