"""Log-probabilities of generated tokens: they are those of the two distributions, and change no text."""

from __future__ import annotations

import math

import numpy as np
import pytest

from oxillama import AsyncEngine, SampledToken, SamplerConfig
from oxillama.compat.engine import InferenceEngine
from tests.support.tiny_models import log_softmax
from tests.support.waiting import in_asyncio

PROMPTS = ["Once upon a time", "The old toad"]
SAMPLER = SamplerConfig(seed=5, top_k=8, temperature=1.3)


def test_both_distributions(engine: InferenceEngine) -> None:
    plain, rows = engine.generate_with_logits(PROMPTS[0], sampler=SAMPLER, max_tokens=12)
    done = engine.stream(PROMPTS[0], sampler=SAMPLER, max_tokens=12, top_logprobs=4).result()
    assert done.text == plain
    assert done.logprobs is not None
    assert [sampled.token for sampled in done.logprobs] == done.tokens
    for sampled, raw in zip(done.logprobs, log_softmax(rows), strict=True):
        assert sampled.raw.logprob == pytest.approx(raw[sampled.token], abs=1e-5)
        assert [token for token, _ in sampled.raw.top] == np.argsort(-raw, kind="stable")[:4].tolist()
        assert sampled.raw.top[3][1] == pytest.approx(raw[sampled.raw.top[3][0]], abs=1e-5)
        processed = sampled.processed
        assert sum(math.exp(p) for _, p in processed.top) <= 1 + 1e-9
        best = sampled.raw.top[0][0]
        if len(processed.top) > 1:  # temperature brings two candidates nearer by its factor
            (a, p), (b, q) = processed.top[:2]
            assert a == best and (p - q) * 1.3 == pytest.approx(raw[a] - raw[b], abs=1e-4)


def test_without_top(engine: InferenceEngine) -> None:
    engine.generate(PROMPTS[0], sampler=SAMPLER, max_tokens=3, logprobs=True)
    assert engine.logprobs is not None and len(engine.logprobs) == 3
    assert all(sampled.raw.top == sampled.processed.top == () for sampled in engine.logprobs)
    engine.generate(PROMPTS[0], sampler=SAMPLER, max_tokens=3)
    assert engine.logprobs is None


def test_a_grammar_leaves_one_candidate(engine: InferenceEngine) -> None:
    engine.generate("Is it?", sampler=SamplerConfig(choices=("yes",)), top_logprobs=3)
    assert engine.logprobs is not None
    last = engine.logprobs[-1]
    assert last.processed.top == ((last.token, 0.0),)
    assert last.raw.logprob < 0 and len(last.raw.top) == 3


def test_batch_stream_and_asyncio_agree(engine: InferenceEngine) -> None:
    results = [
        g.result() for g in engine.stream_batch(PROMPTS, sampler=SAMPLER, max_tokens=8, top_logprobs=2)
    ]
    batch = [(result.text, result.logprobs) for result in results]
    alone: list[tuple[str, list[SampledToken] | None]] = []
    for prompt in PROMPTS:
        stream = engine.stream(prompt, sampler=SAMPLER, max_tokens=8, top_logprobs=2)
        alone.append(("".join(stream), stream.logprobs))
    assert alone == batch

    async def main(many: AsyncEngine) -> list[SampledToken] | None:
        return (await many.stream(PROMPTS[1], sampler=SAMPLER, max_tokens=8, top_logprobs=2)).logprobs

    assert in_asyncio(engine, main) == batch[1][1]
