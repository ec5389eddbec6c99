"""Stages as objects do what the built-in stages do with the same numbers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, SamplerConfig, SamplingError, TokenizerBridge, demo
from oxillama.compat.engine import InferenceEngine
from oxillama.compat.stages import DryStage, EtaStage, LogitBias, TopAStage, TypicalPStage, XtcStage
from oxillama.engine.sampling.sampler import Sampler

OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
HISTORY = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 1, 2, 3]
BIASES = {3: 2.5, 7: -np.inf, 4: -1.0, 299: 3.4e38}

STAGES: list[tuple[Callable[..., Any], str, dict[str, Any]]] = [
    (DryStage(2.0, sequence_breakers=()), "dry", {"dry_multiplier": 2.0, "dry_sequence_breakers": ()}),
    (
        DryStage(0.5, 1.1, 1, 9, ((5,), (9, 9))),
        "dry",
        {
            "dry_multiplier": 0.5,
            "dry_base": 1.1,
            "dry_allowed_length": 1,
            "dry_range": 9,
            "dry_sequence_breakers": ((5,), (9, 9)),
        },
    ),
    (XtcStage(1.0), "xtc", {"xtc_probability": 1.0}),
    (XtcStage(1.0, 0.01, seed=9), "xtc", {"xtc_probability": 1.0, "xtc_threshold": 0.01}),
    (TypicalPStage(0.5), "typical_p", {"typical_p": 0.5}),
    (TypicalPStage(0.95), "typical_p", {"typical_p": 0.95}),
    (TopAStage(0.2), "top_a", {"top_a": 0.2}),
    (EtaStage(0.02), "eta_cutoff", {"eta_cutoff": 0.02}),
    (EtaStage(0.1), "eta_cutoff", {"eta_cutoff": 0.1}),
    (LogitBias(BIASES), "bias", {"logit_bias": BIASES}),
]
IDS = [repr(stage) for stage, _, _ in STAGES]


def logits_of(seed: int, vocab: int = 300) -> np.ndarray:
    rng = np.random.default_rng(seed)
    found: np.ndarray = (rng.standard_normal(vocab) * 3).astype(np.float32)
    return found


def probabilities(sampler: Sampler, logits: np.ndarray) -> np.ndarray:
    """float64 (vocab,) of the next token."""
    ids, p = sampler.distribution(logits, HISTORY)
    found = np.zeros(len(logits))
    found[ids] = p
    return found


@pytest.mark.parametrize("before", [(), ("top_k",), ("temperature", "min_p")], ids=str)
@pytest.mark.parametrize(("stage", "name", "options"), STAGES, ids=IDS)
def test_the_distribution_is_that_of_the_stage(
    stage: Callable[..., Any], name: str, options: dict[str, Any], before: tuple[str, ...]
) -> None:
    others = {**OFF, "top_k": 50 if "top_k" in before else 0}
    others |= {"temperature": 1.3, "min_p": 0.001} if "min_p" in before else {}
    places = ((name,) if name != "bias" else (), (stage,))
    if name == "bias":  # the option comes first
        orders = [(*place, *before) for place in places]
    else:
        orders = [(*before, *place) for place in places]
    ours = Sampler(SamplerConfig(order=orders[0], **others, **options), seed=1)
    theirs = Sampler(SamplerConfig(order=orders[1], **others), seed=1)
    plain = Sampler(SamplerConfig(order=before, **others), seed=1)
    differs = False
    for seed in range(8):
        logits = logits_of(seed, 300 if seed % 2 else 5000)
        expected, found, unchanged = (probabilities(sampler, logits) for sampler in (ours, theirs, plain))
        assert (found > 0).tolist() == (expected > 0).tolist()
        np.testing.assert_allclose(found, expected, rtol=1e-12)  # the sum of all in another order
        differs |= not np.array_equal(expected, unchanged)
    assert differs, "the stage changes nothing in this test"


@pytest.mark.parametrize(("stage", "name", "options"), [case for case in STAGES if case[1] != "xtc"], ids=str)
def test_the_tokens_are_those_of_the_stage(
    stage: Callable[..., Any], name: str, options: dict[str, Any]
) -> None:
    """XTC is left out: the sampler draws a number for the option, and the stage has numbers of its own."""
    order = ("top_k", "temperature")
    ours = (name, *order) if name != "bias" else order
    fields = {**OFF, "top_k": 40, "temperature": 0.9, "seed": 5}
    samplers = [
        Sampler(SamplerConfig(order=ours, **fields, **options)),
        Sampler(SamplerConfig(order=(stage, *order), **fields)),
    ]
    tokens = []
    for sampler in samplers:
        sampler.feed(HISTORY)
        tokens.append([sampler.sample(logits_of(step)) for step in range(60)])
    assert tokens[0] == tokens[1]


def test_an_engine_takes_them() -> None:
    order = ("top_k", "top_p", "min_p", "temperature")
    options = {"max_tokens": 30, "seed": 3}
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1) as engine:
        tokenizer = engine.tokenizer
        for stage, name, fields in (
            (TypicalPStage(0.6), "typical_p", {"typical_p": 0.6}),
            (DryStage(1.5, tokenizer=tokenizer), "dry", {"dry_multiplier": 1.5}),
        ):
            ours = engine.generate("Once", order=(name, *order), **fields, **options)
            assert engine.generate("Once", order=(stage, *order), **options) == ours


def test_the_chance_of_xtc_depends_on_seed_and_position_alone() -> None:
    stage = XtcStage(0.3, seed=4)
    logits, ids = logits_of(0), np.arange(300, dtype=np.int32)
    n_dropped = 0
    for position in range(2000):
        below = stage.chance(position) < 0.3
        n_dropped += below
        if position < 40:
            changed = stage(ids, logits, np.zeros(position, np.int32))
            assert np.isneginf(changed).any() == below
            np.testing.assert_array_equal(changed, stage(ids, logits, np.zeros(position, np.int32)))
    assert 520 < n_dropped < 680  # 600 expected, standard deviation 20.5
    assert XtcStage(0.3, seed=5).chance(0) != stage.chance(0)


@pytest.mark.parametrize(("stage", "name", "options"), STAGES, ids=IDS)
def test_stages_are_values(stage: Callable[..., Any], name: str, options: dict[str, Any]) -> None:
    copy = pickle.loads(pickle.dumps(stage))
    assert copy == stage
    ids, logits, history = np.arange(300, dtype=np.int32), logits_of(1), np.array(HISTORY, np.int32)
    before = logits.copy()
    np.testing.assert_array_equal(copy(ids, logits, history), stage(ids, logits, history))
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DryStage(-1.0, sequence_breakers=()), "^dry_multiplier: expected"),
        (lambda: DryStage(1.0), "^dry_sequence_breakers: .* expected a tokenizer"),
        (lambda: XtcStage(1.5), "^xtc_probability: expected"),
        (lambda: XtcStage(0.5, seed=-1), "^seed: expected"),
        (lambda: TypicalPStage(0.0), "^typical_p: expected"),
        (lambda: TopAStage(2.0), "^top_a: expected"),
        (lambda: EtaStage(1.0), "^eta_cutoff: expected"),
        (lambda: LogitBias({-1: 1.0}), "^logit_bias: expected token ids"),
        (lambda: LogitBias({1: np.inf}), r"^logit_bias\[1\]: expected"),
    ],
)
def test_wrong_numbers_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_wrong_logits_are_refused() -> None:
    stage, ids, history = TopAStage(0.5), np.arange(3, dtype=np.int32), np.empty(0, np.int32)
    with pytest.raises(SamplingError, match="NaN"):
        stage(ids, np.array([1, np.nan, 2], np.float32), history)
    with pytest.raises(SamplingError, match="masked"):
        stage(ids, np.full(3, -np.inf, np.float32), history)


def test_breakers_that_are_texts_are_those_of_the_tokenizer() -> None:
    tokenizer = TokenizerBridge.from_gguf(demo.STORY)
    history = tokenizer.encode("a b c. a b c. a b")
    logits = logits_of(0, tokenizer.n_vocab)
    fields = {"dry_multiplier": 3.0, "dry_sequence_breakers": (".",), "dry_allowed_length": 1}
    ours = Sampler(SamplerConfig(order=("dry",), **OFF, **fields), tokenizer=tokenizer)
    stage = DryStage(3.0, allowed_length=1, sequence_breakers=(".",), tokenizer=tokenizer)
    theirs = Sampler(SamplerConfig(order=(stage,), **OFF))
    (ids, expected), (found_ids, found) = (s.distribution(logits, history) for s in (ours, theirs))
    assert found_ids.tolist() == ids.tolist()
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(
        expected, Sampler(SamplerConfig(order=("temperature",), **OFF)).distribution(logits)[1]
    )
