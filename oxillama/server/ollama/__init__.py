"""Ollama's interface: chats, texts, vectors, and what is known of the models, as lines of JSON."""
