"""Since which version of the contract a model has had its bits."""

from __future__ import annotations

import pytest

from oxillama import reference
from oxillama.base import contract


@pytest.mark.parametrize(
    ("formats", "compute", "kv_type", "since"),
    [
        (["Q8_0", "F16"], "int8", "f16", 1),
        (["Q8_0", "BF16"], "int8", "f16", 2),
        (["BF16"], "f32", "f16", 1),
        (["Q8_0"], "f32", "q8_0", 1),
        (["Q8_0"], "bf16", "f16", 2),
        (["F32", "F16"], "bf16", "f16", 1),
        (["BF16"], "w8a8", "f16", 2),
        (["BF16"], "w8a8-128", "f16", 2),
        (["Q8_0"], "int8", "bf16", 3),
        (["BF16"], "int8", "bf16", 3),
        (["Q8_0"], "int8", "bf16:q8_0", 1),
        (["Q8_0"], "int8", "f16:bf16", 1),
    ],
)
def test_bits_since(formats: list[str], compute: str, kv_type: str, since: int) -> None:
    assert contract.bits_since(formats, compute, kv_type) == since
    assert since <= contract.CONTRACT == reference.CONTRACT
