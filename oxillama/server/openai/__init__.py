"""OpenAI's interface: completions, chats, vectors."""

from __future__ import annotations

from oxillama.server.openai import chat, completions, vectors

ROUTES = (
    ("POST", "/v1/completions", completions.completions),
    ("POST", "/v1/chat/completions", chat.chat_completions),
    ("POST", "/chat/completions", chat.chat_completions),
    ("POST", "/v1/embeddings", vectors.embeddings),
    ("POST", "/v1/rerank", vectors.rerank),
    ("POST", "/rerank", vectors.rerank),
)
"""Method, path and endpoint; the second name of a path is llama-server's."""
