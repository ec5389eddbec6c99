"""Prompts for text between a prefix and a suffix, by the tokens that code models have for it."""

from __future__ import annotations

from oxillama.engine.engine import InferenceEngine
from oxillama.server.errors import ApiError

NAMES = ("fim_pre", "fim_suf", "fim_mid")


def infill_tokens(engine: InferenceEngine, prefix: str | list[int], suffix: str, name: str) -> list[int]:
    """Token ids after which the model writes what stands between two texts: prefix, suffix, middle.

    Raises ApiError naming the field ``name`` if the model's file has no tokens for that.
    """
    tokenizer = engine.tokenizer
    marks = [tokenizer.special_ids.get(mark) for mark in NAMES]
    before, behind, between = marks
    if before is None or behind is None or between is None:
        missing = ", ".join(mark for mark, id in zip(NAMES, marks) if id is None)
        raise ApiError(
            400, f"{name}: expected a model with tokens for infill, this one has no {missing}", param=name
        )
    opening = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    first = tokenizer.encode(prefix, add_special=False) if isinstance(prefix, str) else prefix
    last = tokenizer.encode(suffix, add_special=False)
    return [*opening, before, *first, behind, *last, between]
