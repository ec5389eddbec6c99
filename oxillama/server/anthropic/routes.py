"""Anthropic's paths."""

from oxillama.server.anthropic.errors import error_body
from oxillama.server.anthropic.messages import count_tokens, messages
from oxillama.server.interface import Interface

ANTHROPIC = Interface(
    (
        ("POST", "/v1/messages", messages),
        ("POST", "/v1/messages/count_tokens", count_tokens),
    ),
    ("/v1/messages",),
    error_body,
)
