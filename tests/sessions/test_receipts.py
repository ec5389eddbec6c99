"""Receipts of generations: the same however the text was made, and true for every kind of option."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from oxillama import (
    AsyncEngine,
    ConfigError,
    EngineClosed,
    Generation,
    GenerationOptions,
    Grammar,
    KvCacheFullError,
    LoadedLora,
    Receipt,
    ReceiptError,
    SamplerConfig,
    Session,
    demo,
)
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.runner import Runner
from oxillama.gguf.model_file import ModelFile
from oxillama.models import read_spec
from oxillama.sessions import verification
from tests.support.kernels import PRESENT
from tests.support.serving import AsManyAsMayBe, use_drafter, zoo_engine
from tests.support.zoo import VARIANTS

PROMPT = demo.PROMPTS[0]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}


@pytest.fixture(scope="module")
def engine() -> InferenceEngine:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    use_drafter(engine.model, AsManyAsMayBe())
    return engine


def receipt_of(engine: InferenceEngine, prompt: Any = PROMPT, **options: Any) -> Receipt:
    receipt = engine.stream(prompt, receipt=True, **{"max_tokens": 24, "seed": 7, **options}).result().receipt
    assert receipt is not None
    return receipt


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "hot": {"temperature": 2.0, "top_k": 0},
    "penalties": {"repetition_penalty": 1.4, "presence_penalty": 0.3, "dry_multiplier": 0.8},
    "mirostat": {"mirostat": 2, "temperature": 1.0},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    "grammar": {"grammar": "root ::= [a-z ]+ [.!] root?"},
    "compiled grammar": {"grammar": Grammar.parse('root ::= ("yes" | "no") " " root?')},
    "schema": {"json_schema": SCHEMA, "temperature": 0, "max_tokens": 100},
    "schema of a type": {"json_schema": list[int]},
    "regex": {"regex": "[a-z]{20}"},
    "choices": {"choices": ("a fox", "a goat")},
    "min_tokens": {"min_tokens": 20},
    "biases": {"logit_bias": {15: 4.0, 20: -np.inf}, "banned_tokens": (260,)},
    "order": {"order": ("temperature", "top_k"), "top_p": 1.0, "min_p": 0.0},
    "stop": {"stop": ["her", "the "], "temperature": 0, "max_tokens": 100},
    "to the end": {"max_tokens": None},
    "nothing": {"max_tokens": 0},
    "one token": {"max_tokens": 1},
    "log-probabilities": {"top_logprobs": 2, "keep_logits": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_option_is_in_it(engine: InferenceEngine, options: dict[str, Any]) -> None:
    completion = engine.stream(PROMPT, receipt=True, **{"max_tokens": 24, "seed": 7, **options}).result()
    receipt = completion.receipt
    assert receipt is not None
    assert receipt.tokens == completion.tokens
    assert receipt.finish_reason == completion.finish_reason
    found = engine.verify(receipt.to_json())
    assert (found.verified, found.text, found.at) == (True, completion.text, None), found
    assert receipt_of(engine, **options, speculate=demo.DRAFT) == receipt


def test_the_seed_that_was_drawn_is_in_it(engine: InferenceEngine) -> None:
    completion = engine.stream(PROMPT, receipt=True, seed=None, temperature=1.5, max_tokens=9).result()
    assert completion.receipt is not None
    assert completion.receipt.seed == completion.seed
    assert engine.verify(completion.receipt)


def test_it_is_the_same_however_the_text_was_made(engine: InferenceEngine) -> None:
    expected = receipt_of(engine)
    assert receipt_of(engine) == expected, "from the prefix cache"
    assert receipt_of(engine, speculate="lookup") == expected
    assert receipt_of(engine, speculate=demo.DRAFT) == expected
    streams = [engine.stream(p, receipt=True, max_tokens=24, seed=7) for p in demo.PROMPTS]
    batch = [stream.result().receipt for stream in streams]
    assert batch[0] == expected
    assert all(engine.verify(receipt) for receipt in batch if receipt is not None)
    with engine.session() as session:
        session.prefill(PROMPT)
        generation = session.stream(receipt=True, max_tokens=24, seed=7)
        assert "".join(generation)
        assert generation.receipt == expected

    async def whole() -> Receipt | None:
        return (await AsyncEngine(engine).stream(PROMPT, receipt=True, max_tokens=24, seed=7)).receipt

    assert asyncio.run(whole()) == expected


def test_it_is_the_same_after_preemption() -> None:
    with InferenceEngine.from_gguf(demo.STORY, prefix_cache_bytes=0, num_threads=1) as free:
        expected = [receipt_of(free, p, max_tokens=60) for p in demo.PROMPTS[:4]]
        page = free.model.pool.page_stride
    with InferenceEngine.from_gguf(demo.STORY, kv_memory_limit=10 * page, num_threads=1) as small:
        streams = [small.stream(p, receipt=True, max_tokens=60, seed=7) for p in demo.PROMPTS[:4]]
        found = [stream.result().receipt for stream in streams]
        assert small.metrics.snapshot().preemptions > 0
        assert [receipt.tokens for receipt in found if receipt] == [receipt.tokens for receipt in expected]
        assert found == expected
        assert all(small.verify(receipt) for receipt in expected)


@pytest.mark.parametrize("target", PRESENT)
def test_any_engine_gives_and_verifies_the_same(
    engine: InferenceEngine, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {
        "temperature": 1.2,
        "grammar": "root ::= [A-Za-z ,.]+",
        "adapters": demo.PIRATE,
    }
    expected = receipt_of(engine, **options)
    wrong = expected.to_json().replace('"seed": 7', '"seed": 8')
    monkeypatch.setenv("OXILLAMA_TARGET", target)
    for config in ({"num_threads": 1, "prefill_chunk_size": 5, "page_size": 4}, {"num_threads": 2}):
        with InferenceEngine.from_gguf(demo.STORY, **config) as other:  # type: ignore[arg-type]
            assert other.model.kernels.target == target
            assert receipt_of(other, **options) == expected
            assert other.verify(expected, adapters=demo.PIRATE)
            found = other.verify(wrong, adapters=demo.PIRATE)
            assert found == engine.verify(wrong, adapters=demo.PIRATE)
            assert found.cause == "token"


def test_logits_are_computed_a_part_at_a_time(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, receipt = [], receipt_of(engine)
    logits = Runner.forward

    def counted(self: Any, *args: Any) -> np.ndarray:
        rows = logits(self, *args)
        sizes.append(len(rows))
        return rows

    monkeypatch.setattr(Runner, "forward", counted)
    assert engine.verify(receipt)
    assert sizes == [1, 24]
    monkeypatch.setattr("oxillama.sessions.verification.LOGIT_BYTES", 4 * 10 * engine.model.spec.n_vocab)
    sizes.clear()
    assert engine.verify(receipt)
    assert sizes == [1, 10, 10, 4]
    engine.model.check_integrity()
    assert engine.model.loop.held == {}


@pytest.mark.parametrize(
    "name", ["mamba", "mamba2", "jamba", "rwkv7", "gemma3", "deepseek2", "glm-dsa", "qwen3moe"]
)
def test_every_kind_of_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = zoo_engine(monkeypatch, name)
    prompt = [5, 9, 3, 7, 7, 2, 8, 1, 4, 6, 9, 9]
    receipt = receipt_of(engine, prompt, temperature=1.5)
    assert engine.verify(receipt)
    tokens = receipt.tokens.copy()
    tokens[3] ^= 1
    found = engine.verify(receipt.to_json().replace(str(receipt.tokens), str(tokens)))
    assert (found.cause, found.at) == ("token", 3)
    engine.model.check_integrity()


def test_the_context_counts_where_it_decides_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    variant = next(
        name for name, made in VARIANTS.items() if read_spec(ModelFile.open(made.file())).depends_on_context
    )
    engines = [zoo_engine(monkeypatch, variant, context_size=size) for size in (80, 70)]
    receipt = receipt_of(engines[0], [5, 9, 3])
    assert engines[0].verify(receipt)
    with pytest.raises(ConfigError, match="context_size: expected 80 as in the receipt, got 70"):
        engines[1].verify(receipt)


def test_requests_go_on_beside_it(engine: InferenceEngine) -> None:
    expected, receipt = engine.generate(PROMPT, max_tokens=60, seed=1), receipt_of(engine)
    stream = engine.stream(PROMPT, max_tokens=60, seed=1)
    beginning = next(stream)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: engine.verify(receipt).verified, range(8)))
    assert beginning + "".join(stream) == expected
    engine.model.check_integrity()


@pytest.mark.parametrize("kv_type", ["f32", "bf16", "q8_0"])
@pytest.mark.parametrize("compute", ["f32", "bf16", "w8a8", "w8a8-128"])
def test_what_decides_bits_is_in_it(engine: InferenceEngine, kv_type: str, compute: str) -> None:
    config: Any = {"kv_type": kv_type, "compute": compute}
    with InferenceEngine.from_gguf(demo.STORY, **config) as other:
        receipt = receipt_of(other)
        assert other.verify(receipt)
    assert receipt.engine_options == {**config, "quantize": None, "context_size": 512}
    with pytest.raises(ConfigError, match=f"compute: expected {compute} as in the receipt, got int8"):
        engine.verify(receipt)


def test_quantize_is_in_it() -> None:
    with InferenceEngine.from_gguf(demo.STORY, quantize="q4_k", kv_type="f32") as other:
        receipt = receipt_of(other)
        assert receipt.quantize == "Q4_K"
        assert other.verify(receipt)


def test_a_text_that_is_cut_has_one(engine: InferenceEngine) -> None:
    def stop_after(n: int) -> Callable[[str], bool]:
        pieces: list[str] = []
        return lambda piece: pieces.append(piece) or len(pieces) < n  # type: ignore[func-returns-value]

    generation = engine.stream(PROMPT, receipt=True, callback=stop_after(5), max_tokens=50)
    assert generation.receipt is None
    "".join(generation)
    receipt = generation.receipt
    assert receipt is not None
    assert receipt.finish_reason == "cancelled"
    assert receipt.tokens == generation.tokens != []
    found = engine.verify(receipt)
    assert found
    assert found.text.startswith(generation.text)
    assert generation.text


def test_there_is_none_where_none_was_asked_for(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oxillama.sessions.chain.LogitsChain.add", Mock(side_effect=AssertionError("hashed")))
    done = engine.stream(PROMPT, max_tokens=3).result()
    assert done.receipt is None


def test_an_error_has_none(engine: InferenceEngine) -> None:
    def stage(ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> None:
        if len(history) > 20:
            raise KvCacheFullError("stage: the end")

    sampler = SamplerConfig(order=(stage,), top_k=0, top_p=1.0, min_p=0.0, temperature=1.0)
    generation: Generation = engine.stream(PROMPT, receipt=True, sampler=sampler)
    with pytest.raises(KvCacheFullError, match="the end"):
        generation.result()
    assert generation.receipt is None


def halved(ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> np.ndarray:
    return logits / 2


def test_a_stage_in_python_is_named_and_asked_for(engine: InferenceEngine) -> None:
    receipt = receipt_of(engine, order=("top_k", halved, "temperature"), top_p=1.0, min_p=0.0)
    name = f"{__name__}.halved"
    with pytest.raises(ConfigError, match=f"stages: expected the stage {name}"):
        engine.verify(receipt)
    assert engine.verify(receipt, stages={name: halved})
    assert engine.verify(receipt, stages={name: lambda ids, logits, history: logits * 2}).cause == "token"


def test_what_it_cannot_prove_is_refused(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="receipt: cannot be combined with draft_acceptance rejection"):
        GenerationOptions(receipt=True, draft_acceptance="rejection")
    with pytest.raises(ConfigError, match="receipt: expected True or False"):
        GenerationOptions(receipt=1)  # type: ignore[arg-type]
    with pytest.raises(ReceiptError, match="stop: expected at most 256"):
        engine.stream(PROMPT, receipt=True, stop=["x"] * 257)
    receipt, config = receipt_of(engine), replace(engine.config, tokenizer_path="tokenizer.json")
    monkeypatch.setattr(engine.model, "config", config)
    with pytest.raises(ConfigError, match="receipt: cannot be combined with tokenizer_path"):
        engine.stream(PROMPT, receipt=True)
    with pytest.raises(ConfigError, match="tokenizer_path: expected none"):
        engine.verify(receipt)


def test_adapters_are_named_by_their_content(engine: InferenceEngine) -> None:
    receipt = receipt_of(engine, adapters=[(demo.PIRATE, 1), (demo.PIRATE, 0.0), (demo.PIRATE, -0.25)])
    pirate = LoadedLora.load(demo.PIRATE)
    assert [(use.scale, use.start) for use in receipt.adapters] == [(1.0, 0), (-0.25, 0)]
    assert {use.fingerprint for use in receipt.adapters} == {pirate.fingerprint.hex()}
    assert engine.verify(receipt, adapters=demo.PIRATE)
    everywhere = receipt_of(engine, adapters=LoadedLora.load(demo.PIRATE, everywhere=True))
    assert {use.fingerprint for use in everywhere.adapters} != {pirate.fingerprint.hex()}
    assert engine.verify(everywhere, adapters=demo.PIRATE), "loaded as the receipt says"
    assert engine.verify(everywhere, adapters=pirate)
    assert not engine.verify(receipt, adapters=pirate.as_everywhere())
    with pytest.raises(ConfigError, match="adapters: expected "):
        engine.verify(receipt, adapters=[3])
    engine.adapters.stack.push(pirate)
    try:
        assert engine.verify(receipt), "among those of the engine"
        assert engine.verify(receipt_of(engine, adapters=[])), "those of the engine are not added"
    finally:
        engine.adapters.stack.clear()


def test_asyncio_verifies(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    receipt = receipt_of(engine)

    async def main() -> None:
        many = AsyncEngine(engine)
        found, text = await asyncio.gather(many.verify(receipt), many.generate(PROMPT, max_tokens=5))
        assert found.verified and text
        wrong = await many.verify(receipt.to_json().replace('"seed": 7', '"seed": 8'))
        assert wrong.cause == "token"
        with pytest.raises(ReceiptError):
            await many.verify("{}")
        monkeypatch.setattr(verification, "LOGIT_BYTES", 1)  # a pass for each token
        passes, forward = [], Session.logits
        reached, go_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def logits(session: Session, tokens: list[int]) -> np.ndarray:
            passes.append(len(tokens))
            loop.call_soon_threadsafe(reached.set)
            assert go_on.wait(60)
            return forward(session, tokens)

        monkeypatch.setattr(Session, "logits", logits)
        task = asyncio.ensure_future(many.verify(receipt))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await many.aclose()
        assert passes == [1], "it ended after its pass"
        with pytest.raises(EngineClosed):
            await many.verify(receipt)

    asyncio.run(main())
    engine.model.check_integrity()
