"""Scores, perplexity and comparisons of models; integration with evaluation harnesses."""
