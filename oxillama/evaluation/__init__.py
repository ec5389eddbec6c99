"""Work: scores, perplexity and comparisons of models; tasks of evaluation harnesses."""
