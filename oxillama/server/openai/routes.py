"""OpenAI's paths; the second name of a path is llama-server's."""

from oxillama.server.interface import Interface
from oxillama.server.openai import chat, completions, vectors

OPENAI = Interface(
    (
        ("POST", "/v1/completions", completions.completions),
        ("POST", "/v1/chat/completions", chat.chat_completions),
        ("POST", "/chat/completions", chat.chat_completions),
        ("POST", "/v1/chat/completions/input_tokens", chat.input_tokens),
        ("POST", "/chat/completions/input_tokens", chat.input_tokens),
        ("POST", "/v1/embeddings", vectors.embeddings),
        ("POST", "/v1/rerank", vectors.rerank),
        ("POST", "/rerank", vectors.rerank),
    )
)
