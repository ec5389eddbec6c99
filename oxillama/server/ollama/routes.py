"""Ollama's paths."""

from oxillama.server.interface import Interface
from oxillama.server.ollama import about, pulling, texts, vectors
from oxillama.server.ollama.answering import error_body

OLLAMA = Interface(
    (
        ("HEAD", "/", about.alive),
        ("POST", "/api/chat", texts.chat),
        ("POST", "/api/generate", texts.generate),
        ("POST", "/api/embed", vectors.embed),
        ("POST", "/api/embeddings", vectors.embeddings),
        ("GET", "/api/tags", about.tags),
        ("POST", "/api/show", about.show),
        ("GET", "/api/ps", about.ps),
        ("GET", "/api/version", about.version),
        ("POST", "/api/pull", pulling.pull),
        ("POST", "/api/push", about.refused),
        ("POST", "/api/create", about.refused),
        ("POST", "/api/copy", about.refused),
        ("DELETE", "/api/delete", about.refused),
    ),
    prefixes=("/api",),
    error_body=error_body,
)
