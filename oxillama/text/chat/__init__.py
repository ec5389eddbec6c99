"""From the messages of a chat to the token ids of its prompt: read `prompt`, `messages`, `fitting`."""
