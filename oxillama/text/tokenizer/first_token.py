"""The token before a text that is run in pieces."""

from __future__ import annotations

from oxillama.text.tokenizer.tokenizer import Tokenizer


def first_token(tokenizer: Tokenizer) -> int | None:
    """The BOS token; None if the vocabulary puts no BOS before a text."""
    with_it, without = tokenizer.encode("a"), tokenizer.encode("a", add_special=False)
    return with_it[0] if len(with_it) > len(without) and with_it[0] != without[0] else None
