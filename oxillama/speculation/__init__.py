"""Speculative decoding: drafters propose the next tokens of requests, the model verifies them in one pass."""
