"""Prompts for text between a prefix and a suffix, with the special tokens of code models."""

from __future__ import annotations

from collections.abc import Sequence

from oxillama.apps.server.errors import fault
from oxillama.apps.server.prompt_fields import Prompt
from oxillama.apps.server.prompts import bounded
from oxillama.apps.server.running import encoded
from oxillama.engine.engine import InferenceEngine

NAMES = ("fim_pre", "fim_suf", "fim_mid")


PROJECT, HERE, SNIPPET = "myproject\n", "filename\n", "\n\n--- snippet ---\n\n"
"""What stands for the names of the project and of the file, and before each other file where the model has no
token for that: as llama-server has them, so that its clients' prompts are the same here."""


def infill_tokens(
    engine: InferenceEngine,
    prefix: Prompt,
    suffix: str,
    name: str,
    others: Sequence[tuple[str, str]] = (),
) -> list[int]:
    """Token ids of a prompt for the text between two texts: prefix, suffix, middle.

    Args:
        name: of the field that an error names.
        others: names and texts of parts of other files, which come first (Hui et al., Qwen2.5-Coder, 2024).

    Raises ApiError if the model's file has no tokens for that.
    """
    tokenizer = bounded(engine, name)
    marks = [tokenizer.special_ids.get(mark) for mark in NAMES]
    before, behind, between = marks
    if before is None or behind is None or between is None:
        missing = ", ".join(mark for mark, id in zip(NAMES, marks) if id is None)
        raise fault(name, f"expected a model with tokens for infill, this one has no {missing}")
    opening = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    first = encoded(engine, prefix, add_special=False)
    last = tokenizer.encode(suffix, add_special=False)
    return [*opening, *context(engine, others), before, *first, behind, *last, between]


def context(engine: InferenceEngine, others: Sequence[tuple[str, str]]) -> list[int]:
    """The token ids of parts of other files."""
    special = engine.tokenizer.special_ids
    project, file = special.get("fim_rep"), special.get("fim_sep")

    def plain(text: str) -> list[int]:
        return list(bounded(engine).encode(text, add_special=False, parse_special=False))

    found = [] if project is None else [project, *plain(PROJECT)]
    for name, text in others:
        found += plain(SNIPPET) if file is None else [file, *plain(f"{name}\n")]
        found += plain(text)
    return found if file is None else [*found, file, *plain(HERE)]
