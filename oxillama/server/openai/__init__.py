"""OpenAI's interface: completions, chats, embeddings, and the ranking that others added to it."""
