"""llama.cpp's numbers: those of its tests/test-sampling.cpp, and what tools/record_sampling.py recorded."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from oxillama._kernels import best
from oxillama.apps.demo import STORY
from oxillama.base.config.sampler import SamplerConfig
from oxillama.engine.sampling.sampler import Sampler
from oxillama.text.chat.bridge import TokenizerBridge
from tests.support.kernels import normal
from tests.support.paths import DATA

PLAIN: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
RISING = (0.1, 0.2, 0.3, 0.4)
FALLING = (0.4, 0.3, 0.2, 0.1)
FLAT4, FLAT5 = (0.25,) * 4, (0.2,) * 5
DRY = {"dry_multiplier": 1.0, "dry_base": 1.1, "dry_allowed_length": 2, "dry_sequence_breakers": ()}
NO_REPEAT = {"repetition_penalty": 1.0, "frequency_penalty": 5.0, "presence_penalty": 5.0}

# probabilities, options, history, expected probabilities
VECTORS: list[tuple[tuple[float, ...], dict[str, Any], list[int], tuple[float, ...]]] = [
    (RISING, {"temperature": 1.0}, [], RISING),
    (RISING, {"temperature": 0.0}, [], (0, 0, 0, 1)),
    (RISING, {"temperature": 1.0, "dynatemp_range": 0.0}, [], RISING),
    (RISING, {"top_k": 1}, [], (0, 0, 0, 1)),
    (RISING, {"top_k": 3}, [], (0, 0.22222, 0.33333, 0.44444)),
    (RISING, {"top_k": 4}, [], RISING),
    (RISING, {"top_k": 0}, [], RISING),
    (RISING, {"top_p": 1e-9}, [], (0, 0, 0, 1)),
    (RISING, {"top_p": 0.7}, [], (0, 0, 0.428571, 0.571429)),
    (RISING, {"top_p": 0.8}, [], (0, 0.22222, 0.33333, 0.44444)),
    (RISING, {"top_p": 1.0}, [], RISING),
    (RISING, {"min_p": 0.24}, [], RISING),
    (RISING, {"min_p": 0.26}, [], (0, 0.2 / 0.9, 0.3 / 0.9, 0.4 / 0.9)),
    (RISING, {"min_p": 0.49}, [], (0, 0.2 / 0.9, 0.3 / 0.9, 0.4 / 0.9)),
    (RISING, {"min_p": 0.51}, [], (0, 0, 0.3 / 0.7, 0.4 / 0.7)),
    (RISING, {"min_p": 0.74}, [], (0, 0, 0.3 / 0.7, 0.4 / 0.7)),
    (RISING, {"min_p": 0.76}, [], (0, 0, 0, 1)),
    (RISING, {"min_p": 1.0}, [], (0, 0, 0, 1)),
    (FALLING, {"xtc_probability": 1.0, "xtc_threshold": 0.09}, [], (0, 0, 0, 1)),
    (FALLING, {"xtc_probability": 1.0, "xtc_threshold": 0.19}, [], (0, 0, 0.2 / 0.3, 0.1 / 0.3)),
    (FALLING, {"xtc_probability": 1.0, "xtc_threshold": 0.29}, [], (0, 0.3 / 0.6, 0.2 / 0.6, 0.1 / 0.6)),
    (FALLING, {"xtc_probability": 1.0, "xtc_threshold": 0.39}, [], FALLING),
    ((0.97, 0.01, 0.01, 0.01), {"typical_p": 0.5}, [], (1, 0, 0, 0)),
    ((0.4, 0.2, 0.2, 0.2), {"typical_p": 0.5}, [], (0, 1 / 3, 1 / 3, 1 / 3)),
    (FLAT5, {"repetition_penalty": 50.0}, [0], (0, 0.25, 0.25, 0.25, 0.25)),
    (FLAT5, {"repetition_penalty": 50.0}, [0, 1, 2], (0, 0, 0, 0.5, 0.5)),
    (FLAT5, {"repetition_penalty": 50.0}, [0, 1, 2, 0, 0], (0, 0, 0, 0.5, 0.5)),
    (FLAT5, NO_REPEAT, [0], (0.000011, 0.249997, 0.249997, 0.249997, 0.249997)),
    (FLAT5, NO_REPEAT, [0, 1, 2], (0.000023, 0.000023, 0.000023, 0.499966, 0.499966)),
    (FLAT5, NO_REPEAT, [0, 1, 2, 0, 0], (0, 0.000023, 0.000023, 0.499977, 0.499977)),
    (FLAT4, DRY, [0, 1], FLAT4),
    (FLAT4, DRY, [0, 1, 2, 0, 1], (0.296923, 0.296923, 0.109232, 0.296923)),
    (FLAT5, DRY | {"dry_sequence_breakers": ((3,),)}, [0, 1, 3, 4, 0, 1], FLAT5),
    (
        FLAT5,
        DRY | {"dry_multiplier": 2.0},
        [0, 1, 2, 0, 1],
        (0.241818, 0.241818, 0.032727, 0.241818, 0.241818),
    ),
    (FLAT5, DRY | {"dry_allowed_length": 4}, [0, 1, 2, 3, 4, 0, 1], FLAT5),
    (RISING, {"top_n_sigma": 1.0}, [], (0, 0, 0.428571, 0.571429)),
    (RISING, {"top_n_sigma": 0.0}, [], RISING),
    (RISING, {"top_n_sigma": 3.0}, [], RISING),
]


@pytest.mark.parametrize(("given", "options", "history", "expected"), VECTORS)
def test_vectors_of_test_sampling(
    given: tuple[float, ...], options: dict[str, Any], history: list[int], expected: tuple[float, ...]
) -> None:
    logits = np.log(np.float32(given))
    found = np.zeros(len(given))
    ids, p = Sampler(SamplerConfig(**PLAIN | options), best()).distribution(logits, history)
    found[ids] = p
    assert np.allclose(found, expected, atol=1e-5)


def queue(vocab: int, stages: str, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """Its test_sampler_queue: token i has probability i / sum, and stages act one after another."""
    names = {"k": ("top_k", top_k), "p": ("top_p", top_p), "m": ("min_p", min_p)}
    with np.errstate(divide="ignore"):
        logits = np.log(np.arange(vocab, dtype=np.float32))
    config = SamplerConfig(**PLAIN | dict(names[s] for s in stages), order=tuple(names[s][0] for s in stages))
    return np.sort(Sampler(config, best()).distribution(logits)[0])


@pytest.mark.parametrize("stages", ["k", "p", "m", "kp", "km", "pk", "pm", "mk", "mp", "kpm", "pmk", "mkp"])
@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(100, 0.8, 0.1), (5000, 0.3, 0.55), (1, 0.0003, 0.9)])
def test_queues_of_stages_keep_the_upper_end(stages: str, top_k: int, top_p: float, min_p: float) -> None:
    low, vocab = 1, 10_000  # token 0 has no probability
    for stage in stages:
        if stage == "k":
            low = max(low, vocab - top_k)
        elif stage == "m":
            low = max(low, int(np.ceil(min_p * (vocab - 1))))
        else:
            sums = np.cumsum(np.arange(vocab - 1, low - 1, -1))
            low = vocab - 1 - int(np.searchsorted(sums, top_p * sums[-1]))
    kept = queue(vocab, stages, top_k, top_p, min_p)
    assert kept.tolist() == list(range(low, vocab))


RECORDED = json.loads((DATA / "sampling_llama.json").read_text())


def test_cuts_leave_what_llama_cpp_leaves() -> None:
    cases = [case for case in RECORDED if "history" not in case]
    assert len(cases) > 100
    for case in cases:
        ids, p = Sampler(SamplerConfig(**case["options"]), best()).distribution(
            normal(60, seed=case["seed"], std=2)
        )
        found = sorted(zip(ids.tolist(), p.tolist(), strict=True))
        assert [i for i, _ in found] == [i for i, _ in case["kept"]], case
        assert np.allclose([q for _, q in found], [q for _, q in case["kept"]], atol=3e-6), case


def test_penalties_and_dry_change_the_logits_that_llama_cpp_changes() -> None:
    """Breakers are texts here, so that their tokens are llama.cpp's, too."""
    tokenizer = TokenizerBridge.from_gguf(STORY)
    cases = [case for case in RECORDED if "history" in case]
    assert sum(len(case["kept"]) > 0 for case in cases) > 150
    for case in cases:
        seen: list[tuple[np.ndarray, np.ndarray]] = []

        def look(ids: np.ndarray, logits: np.ndarray, history: np.ndarray, seen: Any = seen) -> None:
            seen.append((ids, logits.copy()))

        options = case["options"] | {"order": ("penalties", "dry", look, "temperature")}
        sampler = Sampler(SamplerConfig(**options), best(), tokenizer=tokenizer)
        logits = normal(tokenizer.n_vocab, seed=case["seed"], std=2)
        sampler.distribution(logits, case["history"])
        ids, after = seen[0]
        changed = after != logits[ids]
        assert ids[changed].tolist() == [i for i, _ in case["kept"]], case
        assert np.allclose(after[changed], [x for _, x in case["kept"]], rtol=1e-5, atol=2e-5), case
