"""The reference's name for a tokenizer's bytes."""

from __future__ import annotations

from oxillama.text.chat.bridge import TokenizerBridge


def vocab_bytes_cached(tokenizer: TokenizerBridge) -> list[bytes]:
    """The bytes of every token by id, computed once for each tokenizer; treat the list as read-only."""
    return tokenizer.vocab_bytes()
