"""Work: what proposes the next tokens of requests, for the model to verify in one pass."""
