"""From logits to a token: stages, chains, random numbers, log-probabilities."""
