"""OpenAI's interface of responses: items in and out, kept for what follows them."""
