"""Logits agree with llama.cpp's, recorded by tools/record_parity.py and with more where they are at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oxillama.models import FAMILIES
from tests.floor import PRESENT, same_bits
from tests.test_decoder import divergence
from tests.tinymodels import Running

HERE = Path(__file__).parent
SHARED = HERE.parents[1] / "shared" / "parity"


def check(folder: Path, name: str) -> None:
    """Mean KL(llama.cpp || ours) below 1e-4 and the same top token everywhere, run whole and in chunks."""
    with np.load(folder / f"{name}.npz") as reference:
        tokens, n_prompt = reference["tokens"].tolist(), int(reference["n_prompt"])
        wanted = reference["logits"]
    data = (folder / f"{name}.gguf").read_bytes()
    running = Running(data)
    whole = running.logits(tokens)
    assert whole.shape == wanted.shape
    assert divergence(wanted, whole) < 1e-4
    assert np.array_equal(whole.argmax(axis=1), wanted.argmax(axis=1))
    for target in PRESENT:
        again = Running(data, target)
        assert same_bits(again.logits(tokens, n_prompt), whole)


@pytest.mark.parametrize("name", ["parity_llama", "parity_llama4", "parity_qwen2"])
def test_recorded_logits(name: str) -> None:
    check(HERE / "data", name)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_shared_logits(family: str) -> None:
    if not (SHARED / f"{family}.npz").exists():
        pytest.skip(f"no {family} among shared parity files")
    check(SHARED, family)


def test_the_measure_sees_a_difference() -> None:
    """Half a percent of noise in the logits is too much."""
    with np.load(HERE / "data" / "parity_llama.npz") as reference:
        wanted = reference["logits"]
    assert divergence(wanted, wanted) == 0
    noise = np.random.default_rng(0).standard_normal(wanted.shape) * 0.03
    assert divergence(wanted, wanted + noise) > 1e-4
