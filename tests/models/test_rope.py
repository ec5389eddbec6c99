"""Rotary frequencies against exact rational arithmetic, and every scaling against its formula."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from oxillama.gguf.model_file import ModelFile
from oxillama.models import read_spec
from oxillama.models.rope import Rope, rope_powers
from tests.support.zoo import YARN, Model

KINDS: dict[str, Rope] = {
    "plain": Rope(64, True, 10000.0),
    "linear": Rope(64, True, 10000.0, "linear", 4.0),
    "longrope": Rope(64, True, 10000.0, "longrope", 2.0),
    "yarn": Rope(64, True, 10000.0, "yarn", 4.0, 4096, mix=1.0),
    "yarn, other betas": Rope(128, False, 1e6, "yarn", 32.0, 4096, mix=1.0, beta_fast=20.0, beta_slow=2.0),
    "half of yarn": Rope(64, True, 10000.0, "yarn", 4.0, 4096, mix=0.5),
    "yarn over a short context": Rope(16, True, 10000.0, "yarn", 4.0, 16, mix=1.0),
    "yarn, all pairs turn often": Rope(16, True, 8.0, "yarn", 4.0, 460, mix=1.0),
    "ntk": Rope(64, True, 10000.0, "ntk", 4.0),
    "dynamic": Rope(64, True, 10000.0, "dynamic", 2.0, 4096),
    "sections": Rope(64, True, 1e6, sections=(8, 12, 8, 4)),
    "one pair": Rope(2, True, 10000.0, "ntk", 4.0),
}


@pytest.mark.parametrize("base", [1.5, 100.0, 10000.0, 500000.0, 1e7])
@pytest.mark.parametrize("n_rot", [2, 16, 80, 128])
def test_powers_are_rounded_to_the_nearest_double(n_rot: int, base: float) -> None:
    """f is nearest to base^(-2i/n) if base^(-2i) lies between the n-th powers of f -+ half an ulp."""
    found = rope_powers(n_rot, base)
    assert found.dtype == np.float64
    assert found.shape == (n_rot // 2,)
    assert found[0] == 1
    for i in range(1, n_rot // 2):
        f, half = Fraction(float(found[i])), Fraction(float(np.spacing(found[i]))) / 2
        assert (f - half) ** n_rot <= Fraction(base) ** (-2 * i) <= (f + half) ** n_rot


def exact_frequencies(rope: Rope, context: int, factors: np.ndarray | None) -> np.ndarray:
    """Radians per position, by the papers' formulas in extended precision."""
    wide = np.longdouble
    n, base, s, first = rope.n_rot, wide(rope.base), wide(rope.factor), rope.original_context
    if rope.kind == "dynamic":
        s = s * context / first - (s - 1) if context > first else wide(1)
    if rope.kind in ("ntk", "dynamic") and n > 2:
        base = base * s ** (wide(n) / (n - 2))
    pairs = np.arange(n // 2)
    turning = base ** (-2 * pairs.astype(wide) / n) / (1 if factors is None else factors.astype(wide))
    if sum(rope.sections):
        turning = np.where(pairs % sum(rope.sections) < sum(rope.sections[:3]), turning, 0)
    if rope.kind in ("linear", "longrope"):
        return turning / s
    if rope.kind != "yarn":
        return turning
    low, high = (  # base^(-2i/n) * first = 2 pi times, solved for i
        n * np.log(first / (2 * wide(np.pi) * wide(times))) / (2 * np.log(base))
        for times in (rope.beta_fast, rope.beta_slow)
    )
    low, high = max(0.0, np.floor(low)), min(n - 1.0, np.ceil(high))
    kept = (1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1)) * wide(rope.mix)
    return turning * kept + turning / s * (1 - kept)


@pytest.mark.parametrize("with_factors", [False, True])
@pytest.mark.parametrize("context", [2048, 4096, 10000])
@pytest.mark.parametrize("name", KINDS)
def test_frequencies_follow_the_formulas(name: str, context: int, with_factors: bool) -> None:
    rope = KINDS[name]
    factors = np.linspace(0.5, 8, rope.n_rot // 2).astype(np.float32) if with_factors else None
    found = rope.frequencies(context, factors)
    assert np.allclose(found, exact_frequencies(rope, context, factors).astype(float), rtol=1e-14, atol=0)


def test_yarn_leaves_fast_pairs_alone_and_slows_down_slow_ones() -> None:
    """DeepSeek-V2's numbers: of 32 pairs those below 10 stay, those from 23 on turn 40 times slower."""
    rope = Rope(64, False, 10000.0, "yarn", 40.0, 4096, mix=1.0)
    ratio = rope.frequencies() / rope_powers(64, 10000.0)
    assert np.allclose(ratio[:11], 1)
    assert np.allclose(ratio[23:], 1 / 40)
    assert (np.diff(ratio[10:24]) < 0).all()
    assert ratio[16] == pytest.approx(1 - (1 - 1 / 40) * 6 / 13)


def spec_rope(model: Model) -> Rope:
    return read_spec(ModelFile.open(model.file())).ropes[0]


def test_what_metadata_say() -> None:
    rope = spec_rope(Model("llama", keys=dict(YARN)))
    assert (rope.kind, rope.factor, rope.original_context, rope.mix) == ("yarn", 4.0, 32, 1.0)
    assert (rope.n_rot, rope.neox, rope.base) == (8, False, 100.0)
    assert rope.magnitude == pytest.approx(1 + 0.1 * np.log(4))
    keys = YARN | {
        "rope.scaling.attn_factor": ("f32", 1.5),
        "rope.scaling.yarn_beta_fast": ("f32", 16.0),
        "rope.scaling.yarn_beta_slow": ("f32", 2.0),
        "rope.scaling.yarn_log_multiplier": ("f32", 0.5),
    }
    assert spec_rope(Model("qwen3", keys=keys)).neox
    rope = spec_rope(Model("mistral3", keys=keys))
    assert (rope.beta_fast, rope.beta_slow) == (16.0, 2.0)
    assert rope.magnitude == pytest.approx(1.5 * (1 + 0.1 * np.log(4)) / (1 + 0.05 * np.log(4)))
    rope = spec_rope(Model("llama", keys={"rope.scaling.alpha": ("f32", 8.0)}))
    assert (rope.kind, rope.factor) == ("ntk", 8.0)
    none = {"rope.scaling.type": ("str", "none"), "rope.scaling.factor": ("f32", 8.0)}
    assert spec_rope(Model("llama", keys=none)).factor == 1.0  # type: ignore[arg-type]
