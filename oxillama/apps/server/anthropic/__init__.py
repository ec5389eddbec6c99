"""Anthropic's interface: messages, streamed or whole, and the number of their tokens."""
