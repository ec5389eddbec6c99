"""The version of the contract (docs/specification.md), and since which one a model has its bits."""

from __future__ import annotations

from collections.abc import Iterable

from oxillama.base.formats import FLOATS, KV_PAIRS

CONTRACT = 3
"""Version of the contract: another one gives other bits."""


def bits_since(formats: Iterable[str], compute: str, kv_type: str) -> int:
    """The version that last changed the bits of a model.

    Version 2 changed products with matrices of BF16, version 3 attention over keys and values of bf16.

    Args:
        formats: names of the formats of the file's matrices.
        compute, kv_type: as in `EngineConfig`.
    """
    if KV_PAIRS[kv_type] == ("bf16", "bf16"):
        return 3
    paired = {
        "BF16" if compute == "bf16" and name not in FLOATS else name for name in formats if compute != "f32"
    }
    return 2 if "BF16" in paired else 1
