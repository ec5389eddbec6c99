"""Rotations as a loaded file has them, against the papers' formulas written out a pair at a time.

Nothing here knows the library's `Rope`: metadata go in, radians and the size of cosines come out.

YaRN: Peng et al., arXiv 2309.00071 (section 3.2 and equation 22; the ramp over pairs is that of their code).
LongRoPE: Ding et al., arXiv 2402.13753. Linear: Chen et al., arXiv 2306.15595. Llama 3: its published code.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from oxillama._kernels import best
from oxillama.errors import LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, read_spec
from oxillama.models.weights.loader import Weights
from tests.support.zoo import Model

DIM, BASE, FIRST = 64, 10000.0, 2048
PAIRS = range(DIM // 2)
PLAIN = [BASE ** (-2 * i / DIM) for i in PAIRS]


def loaded(
    scaling: dict[str, Any],
    *,
    context: int | None = None,
    tensors: dict[str, np.ndarray] | None = None,
    **facts: Any,
) -> Decoder:
    """A model of one small layer with heads of DIM, which uses all its tensors; ``scaling`` are keys under
    `rope.`, ``facts`` what else differs.
    """
    keys = {f"rope.{key}": value for key, value in ({"freq_base": BASE} | scaling).items()}
    small: dict[str, Any] = {
        "architecture": "qwen2", "n_layers": 1, "n_embd": 8, "n_heads": 1, "n_kv_heads": 1, "n_ff": 4,
        "n_experts": 2, "context": 8 * FIRST, "key_dim": DIM, "value_dim": DIM, "n_rot": DIM,
        "beside": "n:output_norm", "keys": keys,
    }  # fmt: skip
    model = Model(**(small | facts))
    weights = Weights(ModelFile.open(model.file(**(tensors or {}))), best(), 1)
    found = Decoder(read_spec(weights.file), weights, context)
    assert not weights.unused()
    return found


def check(model: Decoder, turns: list[float], magnitude: float = 1.0, which: int = 0) -> None:
    """Radians per position to the last bits, and what they come to after many tokens."""
    assert np.allclose(model.frequencies[which], turns, rtol=1e-13, atol=0)
    assert model.spec.ropes[which].magnitude == pytest.approx(magnitude, rel=1e-12)
    positions = [0, 1, 2047, 100_003]
    found = model._table(which, np.array(positions, np.int32))
    angles = [[p * turn for turn in turns] for p in positions]
    wanted = [[[magnitude * f(a) for a in row] for f in (math.cos, math.sin)] for row in angles]
    assert np.abs(found - np.array(wanted)).max() < 1e-6


def f32(x: float) -> float:
    return float(np.float32(x))


# --- YaRN -------------------------------------------------------------------------------------------


def yarn(s: float, first: int, base: float = BASE, dim: int = DIM, fast: float = 32, slow: float = 1) -> Any:
    """Radians per position: pairs of many turns in the first context keep theirs, slow ones take 1/s."""

    def pair_of(turns: float) -> float:  # where first * theta_i / 2 pi, the paper's r, is so many turns
        return dim * math.log(first / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(pair_of(fast)), 0), min(math.ceil(pair_of(slow)), dim - 1)
    found = []
    for i in range(dim // 2):
        theta = base ** (-2 * i / dim)
        gamma = 1 - min(max((i - low) / (high - low), 0), 1)
        found.append((1 - gamma) * theta / s + gamma * theta)
    return found


YARN = {"scaling.type": "yarn", "scaling.factor": 8.0, "scaling.original_context_length": FIRST}
GAIN = 0.1 * math.log(8) + 1  # equation 22


def test_yarn() -> None:
    check(loaded(YARN), yarn(8, FIRST), GAIN)


def test_yarn_does_what_the_paper_says_of_it() -> None:
    """r > 32 turns in the first context: left alone; r < 1: interpolated; between: in order between."""
    model = loaded(YARN)
    for i, (found, theta) in enumerate(zip(model.frequencies[0], PLAIN, strict=True)):
        r = FIRST * theta / (2 * math.pi)
        if r > 32:
            assert found == theta, i
        elif r < 1:
            assert found == pytest.approx(theta / 8), i
        else:
            assert theta / 8 < found < theta, i


@pytest.mark.parametrize(
    ("more", "betas", "magnitude"),
    [
        ({"scaling.yarn_beta_fast": 16.0, "scaling.yarn_beta_slow": 2.0}, (16, 2), GAIN),
        ({"scaling.attn_factor": 1.25}, (32, 1), 1.25 * GAIN),
        ({"scaling.attn_factor": f32(1 / GAIN)}, (32, 1), f32(1 / GAIN) * GAIN),
        # the log multiplier is the mscale_all_dim of DeepSeek's code; what is left is the quotient
        ({"scaling.yarn_log_multiplier": 0.5}, (32, 1), GAIN / (0.1 * 0.5 * math.log(8) + 1)),
        ({"scaling.yarn_log_multiplier": 1.0}, (32, 1), 1.0),
    ],
)
def test_numbers_of_yarn(more: dict[str, Any], betas: tuple[int, int], magnitude: float) -> None:
    check(
        loaded(YARN | more, architecture="mistral3"), yarn(8, FIRST, fast=betas[0], slow=betas[1]), magnitude
    )


def test_yarn_without_its_first_context_takes_the_context() -> None:
    keys = {key: value for key, value in YARN.items() if "original" not in key}
    check(loaded(keys), yarn(8, 8 * FIRST), GAIN)


def test_yarn_with_another_base() -> None:
    """As in Qwen's files, and as gpt-oss has it: a base of 150000, a context of 4096, 32 times that."""
    check(loaded(YARN | {"freq_base": 1e6}), yarn(8, FIRST, base=1e6), GAIN)
    oss = {"freq_base": 150000.0, "scaling.type": "yarn", "scaling.factor": 32.0}
    model = loaded({**oss, "scaling.original_context_length": 4096}, architecture="gpt-oss", beside=OWN)
    check(model, yarn(32, 4096, base=150000.0), 0.1 * math.log(32) + 1)
    assert model.spec.ropes[0].magnitude == pytest.approx(1.3465735902799727)


OWN = "n:output_norm output"


@pytest.mark.parametrize(("k", "magnitude"), [(None, GAIN), (0.1, 1.0), (0.0707, 1.0)])
def test_yarn_of_deepseek(k: float | None, magnitude: float) -> None:
    """Its gain goes into the scores: (1 + k ln s)^2, k a tenth of mscale_all_dim; none into the angles, if
    the file says k.
    """
    stated = {} if k is None else {"scaling.yarn_log_multiplier": k}
    model = loaded(YARN | stated, architecture="deepseek2", key_dim=24, value_dim=8, n_rot=16, beside=None)
    check(model, yarn(8, FIRST, dim=16), magnitude)
    gain = 1 + f32(k or 0.1) * math.log(8)
    assert model.spec.score_scale == pytest.approx(24**-0.5 * gain**2, rel=1e-7)


# --- LongRoPE ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["phi3", "llama", "phimoe"])
@pytest.mark.parametrize("context, which", [(FIRST, "short"), (FIRST + 1, "long"), (None, "long")])
def test_longrope(architecture: str, context: int | None, which: str) -> None:
    """Every pair has a factor; beyond the first context others, and cosines grow by sqrt(1 + ln s / ln L)."""
    gain = math.sqrt(1 + math.log(8) / math.log(FIRST))
    rng = np.random.default_rng(3)
    factors = {kind: (1 + 40 * rng.random(DIM // 2)).astype(np.float32) for kind in ("short", "long")}
    scaling = {"scaling.original_context_length": FIRST, "scaling.attn_factor": f32(gain)}
    if architecture == "llama":
        scaling["scaling.type"] = "longrope"
    beside = {"phimoe": "n:output_norm+b output+b factors"}.get(architecture, "n:output_norm output factors")
    tensors = {f"rope_factors_{kind}.weight": values for kind, values in factors.items()}
    model = loaded(scaling, architecture=architecture, beside=beside, context=context, tensors=tensors)
    check(model, [theta / float(f) for theta, f in zip(PLAIN, factors[which], strict=True)], f32(gain))


# --- the others -------------------------------------------------------------------------------------


def test_llama_3() -> None:
    """Wavelengths beyond the first context over 1 are divided by 8, those below it over 4 stay."""
    factors, turns = [], []
    for theta in PLAIN:
        wavelength = 2 * math.pi / theta
        smooth = (FIRST / wavelength - 1.0) / (4.0 - 1.0)
        if wavelength < FIRST / 4.0:
            turns.append(theta)
        elif wavelength > FIRST / 1.0:
            turns.append(theta / 8)
        else:
            turns.append((1 - smooth) * theta / 8 + smooth * theta)
        factors.append(f32(theta / turns[-1]))
    assert len({round(factor, 3) for factor in factors}) > 3
    model = loaded(
        {},
        architecture="llama",
        beside="n:output_norm output rope_freqs",
        tensors={"rope_freqs.weight": np.array(factors, np.float32)},
    )
    check(model, [theta / factor for theta, factor in zip(PLAIN, factors, strict=True)])
    assert np.allclose(model.frequencies[0], turns, rtol=1e-7)


@pytest.mark.parametrize(
    ("scaling", "slower", "magnitude"),
    [
        ({}, 1, 1),
        ({"scaling.type": "none", "scaling.factor": 4.0}, 1, 1),
        ({"scaling.type": "linear", "scaling.factor": 4.0}, 4, 1),
        ({"scaling.factor": 4.0}, 4, 1),
        ({"scale_linear": 2.5}, 2.5, 1),  # the older name
        ({"scaling.type": "linear"}, 1, 1),
        ({"scaling.factor": 0.0}, 1, 1),
        ({"scaling.type": "linear", "scaling.factor": 4.0, "scaling.attn_factor": 1.5}, 4, 1.5),
    ],
)
def test_linear(scaling: dict[str, Any], slower: float, magnitude: float) -> None:
    check(loaded(scaling), [theta / slower for theta in PLAIN], magnitude)


@pytest.mark.parametrize("context", [FIRST // 2, FIRST, FIRST + 1, 3 * FIRST, None])
def test_dynamic(context: int | None) -> None:
    """NTK-aware with the context it runs in: b' = b (s c / L - (s - 1))^(d / (d - 2)) once c > L."""
    scaling = {"scaling.type": "dynamic", "scaling.factor": 2.0, "scaling.original_context_length": FIRST}
    c = context or 8 * FIRST
    base = BASE * (2.0 * c / FIRST - 1.0) ** (DIM / (DIM - 2)) if c > FIRST else BASE
    check(loaded(scaling, context=context), [base ** (-2 * i / DIM) for i in PAIRS])


@pytest.mark.parametrize("scaling", [{"scaling.alpha": 4.0}, {"scaling.type": "ntk", "scaling.factor": 4.0}])
def test_ntk_aware(scaling: dict[str, Any]) -> None:
    base = BASE * 4.0 ** (DIM / (DIM - 2))
    check(loaded(scaling), [base ** (-2 * i / DIM) for i in PAIRS])


@pytest.mark.parametrize("architecture, local", [("gemma3", 10000.0), ("olmo2", 1e6)])
def test_windowed_layers_turn_unscaled(architecture: str, local: float) -> None:
    model = loaded(
        {"freq_base": 1e6, "scaling.type": "linear", "scaling.factor": 8.0},
        architecture=architecture,
        beside=OWN,
    )
    check(model, [1e6 ** (-2 * i / DIM) / 8 for i in PAIRS])
    check(model, [local ** (-2 * i / DIM) for i in PAIRS], which=1)


@pytest.mark.parametrize("kind", ["llama3", "su", "default", "mrope", "proportional", "", "YARN", "yarn "])
def test_other_kinds_are_refused_by_name(kind: str) -> None:
    """GGUF has none, linear, yarn and longrope; nothing else is taken for one of them."""
    with pytest.raises(LoadError, match=rf"qwen2\.rope\.scaling\.type: expected one of .*, got '{kind}'"):
        loaded({"scaling.type": kind})
