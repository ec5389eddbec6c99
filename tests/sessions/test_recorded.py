"""A receipt that an AVX-512 CPU made is verified here, with every instruction set that there is.

`tools/test_arm.sh` runs this on Arm. After a change of the library's bits on purpose, `record` makes it anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oxillama import InferenceEngine, Receipt, _kernels, demo

RECORDED = Path(__file__).parents[1] / "data" / "receipt.json"
OPTIONS: dict[str, Any] = {
    "seed": 11,
    "temperature": 1.1,
    "mirostat": 2,
    "regex": "[A-Z][a-z ,.]{60,}",
    "adapters": [(demo.PIRATE, 0.75)],
    "max_tokens": 48,
}


def record() -> None:
    """Makes the receipt."""
    with InferenceEngine.from_gguf(demo.STORY, kv_type="q8_0") as engine:
        receipt = engine.stream(demo.PROMPTS[0], receipt=True, **OPTIONS).result().receipt
    assert receipt is not None
    receipt.save(RECORDED)


@pytest.mark.parametrize("target", [name for name, reason in _kernels.targets().items() if reason is None])
def test_a_receipt_of_another_machine(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXILLAMA_TARGET", target)
    receipt = Receipt.load(RECORDED)
    with InferenceEngine.from_gguf(demo.STORY, **receipt.engine_options) as engine:
        assert engine.model.kernels.target == target
        found = engine.verify(receipt, adapters=demo.PIRATE)
        assert found.verified, found.message
        assert found.n_tokens == 48
        made = engine.stream(demo.PROMPTS[0], receipt=True, **OPTIONS).result().receipt
        assert made is not None and made.points == receipt.points and made.chain == receipt.chain
