"""Kernels of grammars: the vocabulary as a trie, parser states, and bitmasks of the allowed tokens."""
