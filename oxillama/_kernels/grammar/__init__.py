"""Kernels of grammars: the vocabulary as a trie, parser states, and masks of the allowed tokens."""
