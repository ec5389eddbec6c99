"""Ollama's interface: chats, texts, vectors, and facts of the models, as lines of JSON."""
