"""The token that stands before a text that is cut into pieces of tokens."""

from __future__ import annotations

from oxillama.tokenizer.bridge import TokenizerBridge


def first_token(tokenizer: TokenizerBridge) -> int | None:
    """The BOS, where the vocabulary puts one before a text."""
    with_it, without = tokenizer.encode("a"), tokenizer.encode("a", add_special=False)
    return with_it[0] if len(with_it) > len(without) and with_it[0] != without[0] else None
