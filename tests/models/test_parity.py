"""Logits agree with llama.cpp's: recorded by tools/record_parity.py, and more where they are at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oxillama.compat.engine import InferenceEngine
from oxillama.engine.features.embeddings import PoolingMode, pool_hidden_states
from oxillama.gguf.model_file import ModelFile
from oxillama.models import FAMILIES
from tests.support.kernels import PRESENT, same_bits
from tests.support.paths import DATA, SHARED
from tests.support.spread import few
from tests.support.tiny_models import Running, divergence
from tests.support.zoo import ENCODERS, MODELS, VARIANTS

RECORDED = DATA / "parity.npz"
SHARED_FILES = [
    path
    for folder in ("parity", "parity-2026", "parity-2026c", "parity-2026d")
    for path in (SHARED / folder).glob("*.npz")
]
EVERY = MODELS | VARIANTS


def check(
    data: bytes, tokens: list[int], n_prompt: int, wanted: np.ndarray, top: np.ndarray | None = None
) -> None:
    """Mean KL(llama.cpp || ours) below 1e-4 and the same top token everywhere, run whole and in chunks."""
    whole = Running(data).logits(tokens)
    assert whole.shape == wanted.shape
    assert divergence(wanted, whole) < 1e-4
    assert np.array_equal(whole.argmax(axis=1), wanted.argmax(axis=1) if top is None else top)
    for i, target in enumerate(PRESENT):
        again = Running(data, target, page_size=16 << i)
        assert same_bits(again.logits(tokens, n_prompt), whole)


def check_encoder(data: bytes, tokens: list[int], wanted: np.ndarray) -> np.ndarray:
    """Every token's state points where llama.cpp's does; returns the states."""
    whole = Running(data).hidden_states([tokens], 512)[0]
    assert whole.shape == wanted.shape
    lengths = np.linalg.norm(whole, axis=1) * np.linalg.norm(wanted, axis=1)
    assert ((whole * wanted).sum(axis=1) / lengths > 1 - 1e-5).all()
    for target in PRESENT:
        assert same_bits(Running(data, target).hidden_states([tokens], 512)[0], whole)
    return whole


@pytest.mark.parametrize("name", few(name for name, model in EVERY.items() if model.compared))
def test_recorded_numbers(name: str) -> None:
    model = EVERY[name]
    with np.load(RECORDED) as recorded:
        if name not in recorded:
            pytest.fail(f"{name}: no numbers of llama.cpp; run: python tools/record_parity.py")
        tokens, wanted = recorded[f"{name}.tokens"].tolist(), recorded[name].astype(np.float32)
        top = recorded[f"{name}.top"]
    if model.architecture in ENCODERS:
        check_encoder(model.file(), tokens, wanted)
    else:
        check(model.file(), tokens, 24, wanted, top)


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in sorted(SHARED_FILES)])
def test_shared_numbers(path: Path) -> None:
    data = path.with_suffix(".gguf").read_bytes()
    with ModelFile.open(data) as file:
        if file.get("general.architecture", str) not in FAMILIES:
            pytest.skip(f"no family for {path.stem} yet")
    with np.load(path) as reference:
        tokens = reference["tokens"].tolist()
        if str(reference["kind"]) == "causal":
            check(data, tokens, int(reference["n_prompt"]), reference["logits"])
            return
        wanted, pooled, text = reference["embeddings"], reference["pooled"], str(reference["text"])
        mode = {1: PoolingMode.MEAN, 2: PoolingMode.CLS}[int(reference["pooling"])]
    states = check_encoder(data, tokens, wanted)
    engine = InferenceEngine()
    engine.load_model_from_bytes(data)
    for vector in (pool_hidden_states(states, mode), engine.embed(text)):
        cosine = vector @ pooled / np.linalg.norm(vector) / np.linalg.norm(pooled)
        assert cosine > 1 - 1e-5


def test_the_measure_sees_a_difference() -> None:
    """Half a percent of noise in the logits is too much."""
    with np.load(RECORDED) as recorded:
        wanted = recorded["llama"].astype(np.float32)
    assert divergence(wanted, wanted) == 0
    noise = np.random.default_rng(0).standard_normal(wanted.shape) * 0.03
    assert divergence(wanted, wanted + noise) > 1e-4
