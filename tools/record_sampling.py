"""Records which candidates llama.cpp's samplers keep of random logits, for test_sampler_vectors.py.

Needs the package llama-cpp-python (0.3.36 was used), and oxillama built in place:

    python tools/record_sampling.py

writes tests/data/sampling_llama.json, a list of cases:

options : fields of `SamplerConfig`.
seed    : of the logits (`normal` of tests/support/kernels.py, deviation 2): 60 logits, or, in a case with a
    history, one for each token of the demo model.
history : the tokens before, in cases of penalties and DRY.
kept    : [id, probability] of each candidate that is left, by id; in a case with a history, [id, logit] of
each
    candidate whose logit has changed.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import llama_cpp as api

from oxillama.apps.demo import STORY
from oxillama.text.chat.bridge import TokenizerBridge
from tests.support.kernels import normal

N = 60
BREAKERS = ["\n", ":", '"', "the sea", "red"]
PLAIN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}


def apply(samplers: list[Any], logits: np.ndarray) -> list[tuple[int, float, float]]:
    """(id, logit, probability) of each candidate that is left after the samplers."""
    data = (api.llama_token_data * len(logits))(*[(i, float(x), 0.0) for i, x in enumerate(logits)])
    array = api.llama_token_data_array(data, len(logits), -1, False)
    for sampler in samplers:
        api.llama_sampler_apply(sampler, ctypes.byref(array))
        api.llama_sampler_free(sampler)
    left = [array.data[i] for i in range(array.size)]
    return sorted((t.id, t.logit, t.p) for t in left if t.logit > -np.inf)


def cuts() -> list[tuple[dict[str, Any], list[Any]]]:
    """Options, and llama.cpp's samplers for them. The last sampler draws, which sets the probabilities."""
    dist = api.llama_sampler_init_dist
    cases: list[tuple[dict[str, Any], list[Any]]] = []
    for p in (0.2, 0.5, 0.9):
        cases.append(({"top_p": p}, [api.llama_sampler_init_top_p(p, 0), dist(0)]))
        cases.append(({"typical_p": p}, [api.llama_sampler_init_typical(p, 0), dist(0)]))
    for p in (0.03, 0.3):
        cases.append(({"min_p": p}, [api.llama_sampler_init_min_p(p, 0), dist(0)]))
        options = {"xtc_probability": 1.0, "xtc_threshold": p}
        cases.append((options, [api.llama_sampler_init_xtc(1.0, p, 0, 0), dist(0)]))
    for n in (0.5, 1.5):
        cases.append(({"top_n_sigma": n}, [api.llama_sampler_init_top_n_sigma(n), dist(0)]))
    for t, delta, exponent in ((0.7, 0.0, 1.0), (1.0, 0.5, 1.0), (0.5, 0.8, 2.0)):
        options = {"temperature": t, "dynatemp_range": delta, "dynatemp_exponent": exponent}
        cases.append((options, [api.llama_sampler_init_temp_ext(t, delta, exponent), dist(0)]))
    for tau in (0.5, 1.5, 3.0):
        options = {"mirostat": 1, "mirostat_tau": tau}
        cases.append((options, [api.llama_sampler_init_mirostat(N, 0, tau, 0.1, 100)]))
        options = {"mirostat": 2, "mirostat_tau": tau}
        cases.append((options, [api.llama_sampler_init_mirostat_v2(0, tau, 0.1)]))
    options = {"top_k": 30, "top_p": 0.9, "min_p": 0.02, "temperature": 0.6}
    init = [api.llama_sampler_init_top_k(30), api.llama_sampler_init_top_p(0.9, 0)]
    init += [api.llama_sampler_init_min_p(0.02, 0), api.llama_sampler_init_temp(0.6), dist(0)]
    return [*cases, (options, init)]


def with_history(vocab: Any, seed: int, tokenizer: TokenizerBridge) -> tuple[dict[str, Any], list[int], Any]:
    """Options of penalties or DRY, a history, and the sampler that has accepted it."""
    rng = np.random.default_rng(seed)
    text = 'She said: "the red hen" and ran to the sea.\nThe hen ran to the red sea: "the sea"!'
    pieces = tokenizer.encode(text, add_special=False)
    few = rng.choice(pieces, rng.integers(1, 6)).tolist()
    history = rng.choice(few if seed % 2 else pieces, rng.integers(1, 60)).tolist()
    while rng.random() < 0.7:  # repeats a part of the history
        start, n = rng.integers(0, len(history)), rng.integers(1, 12)
        history += history[start : start + n]
    if seed % 4 == 0:
        options = {
            "repetition_penalty": float(rng.choice([1.0, 1.5])),
            "frequency_penalty": float(rng.choice([0.0, 0.5, -0.25])),
            "presence_penalty": float(rng.choice([0.0, 0.75])),
            "repetition_window": int(rng.choice([1, 8, 64])),
        }
        numbers = [options[n] for n in ("repetition_penalty", "frequency_penalty", "presence_penalty")]
        sampler = api.llama_sampler_init_penalties(tokenizer.n_vocab, options["repetition_window"], *numbers)
    else:
        breakers = BREAKERS[: rng.integers(0, len(BREAKERS) + 1)]
        options = {
            "dry_multiplier": float(rng.choice([0.5, 1.0])),
            "dry_base": float(rng.choice([1.0, 1.25, 1.75])),
            "dry_allowed_length": int(rng.integers(1, 5)),
            "dry_range": int(rng.choice([5, 20, 500])),
            "dry_sequence_breakers": breakers,
        }
        texts = (ctypes.c_char_p * max(1, len(breakers)))(*[b.encode() for b in breakers])
        numbers = [options[n] for n in ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_range")]
        sampler = api.llama_sampler_init_dry(vocab, *numbers, texts, len(breakers))
    for token in history:
        api.llama_sampler_accept(sampler, token)
    return options, history, sampler


def main() -> None:
    cases: list[dict[str, Any]] = []
    for seed in range(6):
        for options, samplers in cuts():
            left = apply(samplers, normal(N, seed=seed, std=2))
            kept = [[i, round(p, 6)] for i, _, p in left]
            cases.append({"options": {**PLAIN, **options}, "seed": seed, "kept": kept})
    api.llama_backend_init()
    params = api.llama_model_default_params()
    params.vocab_only = True
    vocab = api.llama_model_get_vocab(api.llama_model_load_from_file(str(STORY).encode(), params))
    tokenizer = TokenizerBridge.from_gguf(STORY)
    for seed in range(300):
        options, history, sampler = with_history(vocab, seed, tokenizer)
        logits = normal(tokenizer.n_vocab, seed=seed, std=2)
        left = apply([sampler], logits)
        kept = [[i, round(x, 5)] for i, x, _ in left if x != logits[i]]
        cases.append({"options": {**PLAIN, **options}, "seed": seed, "history": history, "kept": kept})
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (ROOT / "tests" / "data" / "sampling_llama.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
