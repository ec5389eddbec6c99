"""Snapshots: what goes on from one emits the bytes of what was never interrupted."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings, strategies as st

from oxillama import (
    AsyncEngine,
    Completion,
    ConfigError,
    EngineClosed,
    EngineConfig,
    Generation,
    KvCacheFullError,
    ModelFileError,
    SamplerConfig,
    SchedulerConfig,
    demo,
)
from oxillama.base.config.sampler import ORDER
from oxillama.base.formats import KV_TYPES
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.loading import LoadedModel
from oxillama.engine.queues import Fairness
from oxillama.errors import ModelFingerprintMismatch, SnapshotIncompatible
from oxillama.sessions.options import plain_options, stage_names
from oxillama.sessions.sequences import tokenizer_digest
from oxillama.sessions.snapshot import EngineSnapshot
from tests.support.adapters import activated_adapter
from tests.support.kernels import PRESENT, same_bits
from tests.support.serving import AsManyAsMayBe, use_drafter, zoo_engine
from tests.support.spread import pairs
from tests.support.tiny_file import write_tiny_model
from tests.support.waiting import stopped

PROMPTS = ("Once upon a time", "Mia and the Golden Drum\n\n", "The colours: 🟥🟩", "a a a b a a a b a a a")


def halved(ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> np.ndarray:
    """A stage in Python."""
    return logits / 2 + 0.001 * len(history)


SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "defaults": {},
    "hot": {"temperature": 3.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "cuts": {"typical_p": 0.9, "top_a": 0.1, "top_n_sigma": 2.0, "eta_cutoff": 1e-3, "epsilon_cutoff": 1e-3},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": -0.2},
    "long memory": {"repetition_penalty": 1.2, "repetition_window": -1, "dry_multiplier": 0.9},
    "dry": {"dry_multiplier": 0.7, "dry_base": 1.4, "dry_allowed_length": 1, "dry_range": 30,
            "dry_sequence_breakers": (".", (13,))},
    "allowed": {"allowed_tokens": tuple(range(3, 700)), "temperature": 1.5},
    "xtc": {"xtc_probability": 0.7, "xtc_threshold": 0.05},
    "dynamic": {"dynatemp_range": 0.7, "dynatemp_exponent": 1.5},
    "mirostat": {"mirostat": 1, "mirostat_tau": 3.0, "temperature": 1.1},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.3},
    "biases": {"logit_bias": {5: 2.5, 7: -float("inf")}, "banned_tokens": (11, 12), "min_tokens": 20},
    "order": {"order": ("temperature", *(name for name in ORDER[::-1] if name != "temperature"))},
    "stage": {"order": (halved, *SamplerConfig().order)},
    "GBNF": {"grammar": 'root ::= (word " ")+ "."\nword ::= [a-z]{2,9} | "éß" | "🟥"'},
    "schema": {"json_schema": {"type": "object", "required": ["name", "tags"], "properties": {"name": {"type":
        "string"}, "age": {"type": "integer"}, "tags": {"type": "array", "items": {"enum": ["yes", "no"]}}}},
        "any_order": True},
    "regex": {"regex": "([0-9]{3}-){4,}[a-f]+"},
    "emoji": {"regex": "([🟥🟩]é)+", "ignore_eos": True},
    "choices": {"choices": ("it was a long and winding road to the sea", "it was a short one")},
    "structural tag": {"structural_tag": {"format": {"type": "triggered_tags", "triggers": ["<"], "tags": [
        {"begin": "<a>", "content": {"type": "regex", "pattern": "(was|is){9}"}, "end": "</a>"}],
        "at_least_one": True}}},
}  # fmt: skip
STAGES = dict.fromkeys(stage_names(SamplerConfig(**SAMPLERS["stage"]).order).values(), halved)


@functools.cache
def engine_of(page_size: int, chunk: int, threads: int, kv_type: str, speculate: Any) -> InferenceEngine:
    return InferenceEngine(
        EngineConfig(
            model_path=demo.STORY,
            page_size=page_size,
            prefill_chunk_size=chunk,
            num_threads=threads,
            kv_type=kv_type,
            speculate=speculate,
        )
    )


def test_every_option_is_among_them() -> None:
    tried = {name for options in SAMPLERS.values() for name in options}
    assert tried | {"seed"} == {field.name for field in fields(SamplerConfig)}


def read(generation: Generation, n: int) -> None:
    """Reads so many pieces."""
    for _ in range(n):
        if next(generation, None) is None:
            break


def same(found: Completion, expected: Completion) -> None:
    assert found.text == expected.text
    assert found.tokens == expected.tokens
    assert found.logprobs == expected.logprobs
    assert (found.finish_reason, found.seed) == (expected.finish_reason, expected.seed)
    assert found.usage.prompt_tokens == expected.usage.prompt_tokens
    assert found.receipt == expected.receipt


def check_goes_on(
    here: InferenceEngine,
    there: InferenceEngine,
    prompt: Any,
    pieces: list[int],
    compress: bool,
    **options: Any,
) -> int:
    """Takes a generation from engine to engine each time so many pieces were read; the times it was taken."""
    expected = here.stream(prompt, window=None, **options)
    done = expected.result()
    going, taken = here.stream(prompt, window=2, **options), 0
    for n in pieces:
        read(going, n)
        text, tokens = going.text, list(going.tokens)
        try:
            data = going.snapshot(compress=compress)
        except ConfigError as error:
            assert "generation: expected one that goes on, got one with" in str(error)
            break
        here, there = there, here
        before, going = going, here.resume_generation(data, stages=STAGES)
        taken += 1
        assert (going.text, going.tokens) == (text, tokens)
        same(before.result(), done)  # a snapshot changes nothing
    same(going.result(), done)
    if options.get("keep_logits"):
        assert going.logits is not None and expected.logits is not None
        assert same_bits(np.array(going.logits), np.array(expected.logits))
    for engine in (here, there):
        engine.model.check_integrity()
    return taken


EXAMPLES = int(os.environ.get("OXILLAMA_EXAMPLES", "60"))


OPTIONS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 99),
        "max_tokens": st.sampled_from([3, 20, 45]),
        "adapters": st.sampled_from([None, demo.PIRATE, [(demo.PIRATE, 0.4), (demo.PIRATE, -0.1)]]),
        "stop": st.sampled_from([(), (" the", ". She had a"), ("zzz",)]),
    }
)
KEPT = st.sampled_from(
    [{}, {"logprobs": True}, {"top_logprobs": 3}, {"keep_logits": True}, {"receipt": True}]
)
DRAFTERS = st.sampled_from([None, "lookup", "self", demo.DRAFT])
ENGINES = st.tuples(
    st.sampled_from([(16, 16), (1, 16), (4, 64), (64, 16)]),  # pages
    st.sampled_from([(512, 3), (2, 512)]),  # chunks
    st.sampled_from([(1, 2), (2, 1)]),  # threads
    st.sampled_from(sorted(KV_TYPES)).map(lambda kv_type: (kv_type, kv_type)),
    st.tuples(DRAFTERS, DRAFTERS),
)


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    name=st.sampled_from(sorted(SAMPLERS)),
    prompt=st.sampled_from(PROMPTS),
    pieces=st.lists(st.integers(0, 12), min_size=1, max_size=3),
    engines=ENGINES,
    options=OPTIONS,
    kept=KEPT,
    compress=st.booleans(),
)
def test_the_rest_of_a_text_is_the_same(
    name: str, prompt: str, pieces: list[int], engines: Any, options: Any, kept: Any, compress: bool
) -> None:
    here, there = (engine_of(*settings) for settings in zip(*engines))
    check_goes_on(here, there, prompt, pieces, compress, **{**SAMPLERS[name], **kept, **options})


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_every_sampler_in_the_middle(name: str) -> None:
    """Snapshots within a rule of the grammar, within a character, after a change of mu."""
    here, there = engine_of(16, 512, 1, "f16", None), engine_of(4, 3, 2, "f16", None)
    options = {**SAMPLERS[name], "seed": 11, "max_tokens": 40, "top_logprobs": 2}
    assert check_goes_on(here, there, PROMPTS[2], [4, 3], False, **options) >= 1


class Pausing:
    """A stage that changes nothing and has its request pause after so many tokens."""

    def __init__(self, n_tokens: int) -> None:
        self.left = n_tokens
        self.generation: Generation | None = None

    def __call__(self, ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> None:
        self.left -= 1
        if self.left == 0:
            assert self.generation is not None
            self.generation._text_request.window = 0


def paused(engine: InferenceEngine, n_tokens: int, prompt: str, **options: Any) -> Generation:
    """A generation that pauses after so many tokens, whether they are whole characters or not."""
    pausing = Pausing(n_tokens)
    order = (pausing, *SamplerConfig().order)
    with stopped(engine):
        pausing.generation = generation = engine.stream(prompt, order=order, **options)
    while engine.model.call(lambda: generation._text_request.n_generated) < n_tokens:
        assert generation.is_running
    return generation


def test_half_a_character_and_half_a_stop_string(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", ends=False)
    here, there = (InferenceEngine.from_gguf(path, page_size=size) for size in (16, 2))
    options: dict[str, Any] = {"temperature": 2.0, "max_tokens": 30, "stop": ("eee", "é€", "s€s")}
    options |= {"regex": "(e|é|€|🟥|s){12,}"}
    found = []
    for seed in range(12):
        expected = here.stream("x", seed=seed, **options).result()
        n = min(1 + seed, len(expected.tokens) - 1)
        going = paused(here, n, "x", seed=seed, **options)
        taken = EngineSnapshot.deserialize(going.snapshot())
        assert taken.request is not None and len(taken.tokens) == len(going.prompt_tokens) + n
        found.append((bool(taken.request.undecoded), bool(taken.request.held)))
        stages = {f"{__name__}.Pausing": lambda ids, logits, history: None}
        same(there.resume_generation(taken, stages=stages).result(), expected)
    assert {(True, False), (False, True)} <= set(found)


FAMILIES = ("llama-arrays", "gemma3", "deepseek2", "glm-dsa", "minicpm3", "gpt-oss", "bloom", "mamba",
            "mamba2", "jamba", "granitehybrid", "lfm2", "rwkv6", "rwkv7", "qwen35",
            "kimi-linear")  # fmt: skip


@pytest.mark.parametrize(("name", "kv_type"), pairs(FAMILIES, sorted(KV_TYPES)))
def test_every_kind_of_state(name: str, kv_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    new = functools.partial(zoo_engine, monkeypatch, name, kv_type=kv_type)
    here = new(page_size=16, prefill_chunk_size=512, speculate="lookup")
    there = new(page_size=4, prefill_chunk_size=3)
    prompt = [5, 9, 7, 7, 2, 8, 1, 4, 6, 9, 9, 5, 9, 7, 7, 2, 8]
    for seed in (1, 2):
        options = {"seed": seed, "temperature": 0.6, "max_tokens": 24, "ignore_eos": True}
        assert check_goes_on(here, there, prompt, [5, 3], seed == 2, **options) == 2
    whole = here.logits(prompt)
    with here.session() as session:
        session.prefill(prompt[:9])
        data = session.snapshot()
        assert session.snapshot() == data
        session.forward(prompt[9])
    with there.restore_session(data) as session:
        assert session.tokens == prompt[:9]
        assert same_bits(session.logits(prompt[9:]), whole[9:])
        session.rewind(12)
        assert same_bits(session.logits(prompt[12:]), whole[12:])
    there.check_integrity()


def test_a_prompt_in_the_middle_and_a_request_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", ends=False)
    limits = SchedulerConfig(max_sequences=1)
    engine = InferenceEngine.from_gguf(path, prefill_chunk_size=2, scheduler=limits, prefix_cache_bytes=0)
    prompt = list(range(97, 117))
    options: dict[str, Any] = {"seed": 3, "max_tokens": 9, "logprobs": True}
    expected = engine.stream(prompt, **options).result()
    taken, all_prompts = [], Fairness.prompts
    with monkeypatch.context() as patched:
        steps = iter(range(3))
        patched.setattr(
            Fairness, "prompts", lambda *args: [] if next(steps, None) is None else all_prompts(*args)
        )
        first, waits = engine.stream(prompt, **options), engine.stream(prompt, **options)
        while first.prefill_progress < 4:
            engine.model.call(lambda: None)
        taken = [EngineSnapshot.deserialize(going.snapshot()) for going in (first, waits)]
    assert [(snapshot.n_cached, len(snapshot.tokens)) for snapshot in taken] in (
        [(4, 20), (0, 20)],
        [(6, 20), (0, 20)],
    )
    for snapshot in taken:
        same(engine.resume_generation(snapshot).result(), expected)
    for going in (first, waits):
        same(going.result(), expected)
    engine.model.check_integrity()


@pytest.mark.parametrize("pages", [None, 14])
def test_requests_of_a_batch(pages: int | None) -> None:
    """Also of one whose pages were taken away by others."""
    here, there = (InferenceEngine.from_gguf(demo.STORY, page_size=16, num_threads=1) for _ in range(2))
    if pages is not None:
        limit = pages * here.model.pool.page_stride
        here = InferenceEngine.from_gguf(demo.STORY, kv_memory_limit=limit, prefix_cache_bytes=0)
    options = [
        {"seed": seed, "max_tokens": 100, "adapters": adapters, **SAMPLERS[name]}
        for seed, (name, adapters) in enumerate(
            zip(("defaults", "mirostat", "penalties", "hot"), (demo.PIRATE, [], (demo.PIRATE, 0.4), []))
        )
    ]
    expected = [there.stream(PROMPTS[0], **each).result() for each in options]
    going = [here.stream(PROMPTS[0], window=8, **each) for each in options]
    for generation in going:
        read(generation, 12)
    while pages is not None and not here.model.scheduler.queues.preemptions:
        for generation in going:
            next(generation)
    beside = [there.stream(PROMPTS[1], seed=seed, max_tokens=60) for seed in range(3)]
    resumed = [there.resume_generation(generation.snapshot()) for generation in going]
    for generation in (*going, *beside):
        generation.close()
    for generation, done in zip(resumed, expected):
        same(generation.result(), done)
    for engine in (here, there):
        engine.model.check_integrity()


def test_no_page_of_a_snapshot_is_shared_with_others() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY)
    going = engine.stream(PROMPTS[1] * 5, seed=1, max_tokens=20, window=1)
    next(going)
    data = bytearray(going.snapshot())
    going.close()
    other = InferenceEngine.from_gguf(demo.STORY)
    other.resume_generation(bytes(data)).result()
    after = other.stream(PROMPTS[1] * 5, seed=1, max_tokens=20).result()
    assert after.usage.cached_tokens == 0


def test_adapters_go_with_a_snapshot(tmp_path: Path) -> None:
    engine = InferenceEngine.from_gguf(demo.STORY)
    engine.push_lora(demo.PIRATE, 0.25)
    options = {"seed": 4, "max_tokens": 25, "window": 1}
    expected = engine.stream(PROMPTS[0], adapters=[(demo.PIRATE, 0.7)], **options).result()
    default = engine.stream(PROMPTS[0], **options).result()
    plain = engine.stream(PROMPTS[0], adapters=[], **options).result()
    assert len({expected.text, default.text, plain.text}) == 3
    for adapters, wanted in (([(demo.PIRATE, 0.7)], expected), (None, default), ([], plain)):
        going = engine.stream(PROMPTS[0], adapters=adapters, **options)
        next(going)
        data = going.snapshot()
        resumed = InferenceEngine.resume(data)
        assert resumed.lora_stack.scales == [0.25]
        same(resumed.resume_generation(data).result(), wanted)
        same(resumed.stream(PROMPTS[0], **options).result(), default)
    with engine.session(adapters=(demo.PIRATE, 0.7)) as session:
        logits = session.prefill("Once upon a time")
        data = session.snapshot()
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(demo.PIRATE.read_bytes())
    fresh = InferenceEngine.from_gguf(demo.STORY)
    with fresh.restore_session(data, loras=[moved]) as again:
        again.rewind(len(again) - 1)
        assert same_bits(again.forward(engine.tokenize("Once upon a time")[-1]), logits)
    lost = EngineSnapshot.deserialize(data)
    gone = replace(lost, adapters=(replace(lost.adapters[0], path=""),))
    with pytest.raises(SnapshotIncompatible, match=r"adapters: expected .* got none"):
        InferenceEngine.from_gguf(demo.STORY).restore_session(gone)
    wrong = replace(lost, adapters=(replace(lost.adapters[0], fingerprint="00" * 32),))
    with pytest.raises(
        SnapshotIncompatible, match=r"adapters: expected .* with the fingerprint 0000000000000000"
    ):
        fresh.restore_session(wrong)
    fresh.check_integrity()


def test_an_activated_adapter_applies_from_the_same_token(tmp_path: Path) -> None:
    model = InferenceEngine.from_gguf(demo.STORY)
    tokens = model.tokenize("Once upon a time there was a fox")
    path = activated_adapter(tmp_path / "activated.gguf", tokens[4:6])
    options: dict[str, Any] = {"seed": 2, "max_tokens": 20, "adapters": path, "window": 1}
    expected = model.stream(tokens, **options).result()
    assert expected.text != model.generate(tokens, seed=2, max_tokens=20)
    going = model.stream(tokens, **options)
    read(going, 3)
    taken = EngineSnapshot.deserialize(going.snapshot())
    assert [adapter.start for adapter in taken.adapters] == [4]
    whole = replace(taken, n_cached=0, kv=taken.kv[:0])  # all is run again, with and without the adapter
    for snapshot in (taken, whole):
        same(InferenceEngine.from_gguf(demo.STORY).resume_generation(snapshot).result(), expected)


def test_drafts_go_on(tmp_path: Path) -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    use_drafter(engine.model, AsManyAsMayBe())
    options: dict[str, Any] = {"seed": 2, "max_tokens": 60, "window": 1, "speculate": demo.DRAFT}
    expected = engine.stream(PROMPTS[0], **options).result()
    going = engine.stream(PROMPTS[0], **options)
    read(going, 20)
    data = going.snapshot()
    before = going.speculation
    fresh = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    use_drafter(fresh.model, AsManyAsMayBe())
    found = fresh.resume_generation(data)
    assert before is not None and found.speculation is not None
    same(found.result(), expected)
    assert found.speculation.passes >= 1
    same(fresh.resume_generation(data, speculate="off").result(), expected)
    going = engine.stream(PROMPTS[0], draft_acceptance="rejection", **options)
    read(going, 5)
    taken = EngineSnapshot.deserialize(going.snapshot())
    resumed = fresh.resume_generation(taken, window=1)
    again = EngineSnapshot.deserialize(resumed.snapshot()).parts
    assert taken.parts["speculation"].random is not None and again["speculation"].random is not None
    assert len(resumed.result().tokens) <= 60


def test_paths_hold_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, source in (("story.gguf", demo.STORY), ("draft.gguf", demo.DRAFT)):
        (tmp_path / name).write_bytes(source.read_bytes())
    monkeypatch.chdir(tmp_path)
    engine = InferenceEngine.from_gguf("story.gguf", speculate="draft.gguf")
    going = engine.stream(PROMPTS[0], seed=1, max_tokens=30, window=1, adapters=os.path.relpath(demo.PIRATE))
    next(going)
    data = going.snapshot()
    monkeypatch.chdir("/")
    same(InferenceEngine.resume(data).resume_generation(data).result(), going.result())
    taken = EngineSnapshot.deserialize(data)
    assert taken.engine["speculate"] == str(tmp_path / "draft.gguf")
    assert taken.model.path == str(tmp_path / "story.gguf")


def test_a_tokenizer_is_known_by_its_file(tmp_path: Path) -> None:
    def digest(path: Path | None) -> str:
        model = LoadedModel.__new__(LoadedModel)
        model.config = EngineConfig(tokenizer_path=path)
        return tokenizer_digest(model)

    (tmp_path / "a").write_bytes(b"{}")
    assert digest(tmp_path / "a") == blake3(b"{}").hexdigest()
    assert digest(None) == ""
    with pytest.raises(ModelFileError, match="cannot be read"):
        digest(tmp_path / "b")


def test_the_limit_of_tokens_goes_with_a_snapshot() -> None:
    small = InferenceEngine.from_gguf(demo.STORY, context_size=32)
    options: dict[str, Any] = {"seed": 1, "max_tokens": None, "ignore_eos": True}
    expected = small.stream(PROMPTS[0], **options).result()
    going = small.stream(PROMPTS[0], window=1, **options)
    read(going, 3)
    same(engine_of(16, 512, 1, "f16", None).resume_generation(going.snapshot()).result(), expected)
    assert len(expected.tokens) + len(going.prompt_tokens) == 32


def test_an_engine_goes_on_with_its_options_and_its_own_session(tmp_path: Path) -> None:
    engine = InferenceEngine.from_gguf(
        demo.STORY, context_size=128, num_threads=2, prefill_chunk_size=7, kv_type="q8_0", page_size=4,
        seed=9, sampler=SamplerConfig(top_k=5), scheduler=SchedulerConfig(max_sequences=3),
    )  # fmt: skip
    tokens = engine.tokenize(PROMPTS[0])
    assert InferenceEngine.resume(engine.snapshot()).kv_cache_seq_len == 0
    engine.prefill(tokens[:-1])
    expected = engine.logits(tokens)[-1]
    engine.snapshot_to_file(tmp_path / "a.snapshot", notes={"who": ["é", 1, None]})
    assert EngineSnapshot.deserialize((tmp_path / "a.snapshot").read_bytes()).notes == {"who": ["é", 1, None]}
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(demo.STORY.read_bytes())
    again = InferenceEngine.resume_from_file(tmp_path / "a.snapshot", moved, num_threads=1)
    assert plain_options(replace(again.config, num_threads=2, model_path=demo.STORY)) == plain_options(
        engine.config
    )
    assert again.kv_cache_seq_len == len(tokens) - 1
    assert same_bits(again.forward_one(tokens[-1]), expected)
    with pytest.raises(ConfigError, match="kv_type: expected q8_0, as the snapshot has, got f16"):
        InferenceEngine.resume(tmp_path / "a.snapshot", kv_type="f16")
    with pytest.raises(SnapshotIncompatible, match="context_size: expected at least 5"):
        InferenceEngine.resume(tmp_path / "a.snapshot", context_size=4)


def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    engine = InferenceEngine.from_gguf(demo.STORY)
    with engine.session() as session:
        session.prefill(PROMPTS[0])
        data = session.snapshot()
    changed = bytearray(demo.STORY.read_bytes())
    changed[-70000] ^= 1  # a bit in the middle of a tensor
    (tmp_path / "changed.gguf").write_bytes(changed)
    ours = engine.model.fingerprint.display()
    for path, options, detail in (
        (demo.DRAFT, {}, "other content"),
        (tmp_path / "changed.gguf", {}, "other content"),
        (demo.STORY, {"compute": "f32"}, "compute expected 'int8', got 'f32'"),
    ):
        other = InferenceEngine.from_gguf(path, **options)  # type: ignore[arg-type]
        other.prefill([5, 6, 7])
        running = other.stream([5, 6, 7], max_tokens=30, seed=1, window=1)
        with pytest.raises(ModelFingerprintMismatch) as caught:
            other.restore_session(data)
        assert (caught.value.expected, caught.value.found) == (ours, other.model.fingerprint.display())
        assert caught.value.detail == detail and ours in str(caught.value)
        assert other.kv_cache_seq_len == 3
        assert len(running.result().tokens) > 0
        other.check_integrity()
    with pytest.raises(ModelFingerprintMismatch):
        InferenceEngine.resume(data, tmp_path / "changed.gguf")
    for options, message in (
        ({"kv_type": "bf16"}, "kv_type: expected f16, got bf16"),
        ({"context_size": 3}, "context"),
    ):
        with pytest.raises(SnapshotIncompatible, match=message):
            InferenceEngine.from_gguf(demo.STORY, **options).restore_session(data)  # type: ignore[arg-type]
    small = InferenceEngine.from_gguf(demo.STORY, page_size=1)
    small = InferenceEngine.from_gguf(
        demo.STORY, page_size=1, kv_memory_limit=2 * small.model.pool.page_stride
    )
    with pytest.raises(KvCacheFullError):
        small.restore_session(data)
    small.check_integrity()
    assert not small.model.loop.held
    with pytest.raises(ModelFileError, match=r"none\.snapshot: cannot be read"):
        engine.restore_session(tmp_path / "none.snapshot")
    with pytest.raises(ConfigError, match="snapshot: expected bytes, or the path of a file, got 3"):
        engine.restore_session(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "before", "now"),
    [
        ({"kv_type": "bf16"}, 1, "3"),
        ({"kv_type": "bf16", "compute": "bf16"}, 2, "3"),
        ({"compute": "bf16"}, 1, "2"),
        ({}, 1, None),
        ({"kv_type": "bf16:f16"}, 1, None),
    ],
    ids=str,
)
def test_keys_and_values_of_another_contract_are_refused(
    options: dict[str, Any], before: int, now: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the model's bits are those of that version still, it goes on."""

    def engine() -> InferenceEngine:
        return InferenceEngine.from_gguf(demo.DRAFT, **options)

    with monkeypatch.context() as earlier, engine() as old, old.session() as session:
        earlier.setattr("oxillama.gguf.fingerprint.bits_since", lambda *facts: before)
        session.prefill(PROMPTS[0])
        data, keys = session.snapshot(), session.kv_snapshot()
    with engine() as model:
        if now is None:
            model.restore_session(data)
            model.kv_restore(keys)
            return
        with pytest.raises(ModelFingerprintMismatch) as caught:
            model.restore_session(data)
        assert caught.value.detail == f"contract expected {before}, got {now}"
        with pytest.raises(ConfigError, match="snapshot: expected one of model"):
            model.kv_restore(keys)
    with pytest.raises(ModelFingerprintMismatch):
        InferenceEngine.resume(data)


def test_kinds_are_told_apart_and_bits_are_kept() -> None:
    engine = engine_of(16, 512, 1, "f16", None)
    going = engine.stream(PROMPTS[0], seed=1, max_tokens=20, window=1, **SAMPLERS["stage"])
    next(going)
    data = going.snapshot()
    with pytest.raises(SnapshotIncompatible, match="expected one of a session, got one of a generation"):
        engine.restore_session(data)
    with (
        engine.session() as session,
        pytest.raises(SnapshotIncompatible, match="expected one of a generation"),
    ):
        engine.resume_generation(session.snapshot())
    with pytest.raises(
        SnapshotIncompatible, match=r"stages: expected the stage tests.*\.halved, which is written in Python"
    ):
        engine.resume_generation(data)
    with pytest.raises(ConfigError, match="seed: cannot be changed, the rest of the text depends on it"):
        engine.resume_generation(data, stages=STAGES, seed=3)
    going.close()
    with pytest.raises(ConfigError, match="generation: expected one that goes on, got one with 'cancelled'"):
        going.snapshot()


def test_timeouts_go_on_with_what_is_left() -> None:
    engine = engine_of(16, 512, 1, "f16", None)
    going = engine.stream(PROMPTS[0], seed=1, max_tokens=20, window=1, timeout=1e5)
    next(going)
    taken = EngineSnapshot.deserialize(going.snapshot())
    assert taken.request is not None and taken.request.seconds_left is not None
    assert 0 < taken.request.seconds_left < 1e5
    late = replace(taken, request=replace(taken.request, seconds_left=-3.0))
    assert engine.resume_generation(late).result().finish_reason == "timeout"
    assert engine.resume_generation(late, timeout=1e5).result().finish_reason == "length"
    going.close()


def test_a_callback_and_other_readers_go_on() -> None:
    engine = engine_of(16, 512, 1, "f16", None)
    expected = engine.stream(PROMPTS[0], seed=1, max_tokens=20).result()
    going = engine.stream(PROMPTS[0], seed=1, max_tokens=20, window=3)
    read(going, 2)
    data = going.snapshot()
    seen: list[str] = []
    found = engine.resume_generation(data, callback=seen.append, priority=3, window=None)
    assert going.text + "".join(found) == expected.text
    assert going.text + "".join(seen) == expected.text

    async def whole() -> str:
        return (await engine.resume_generation(data)).text

    assert asyncio.run(whole()) == expected.text
    dropped = engine.resume_generation(data, window=1)
    del dropped, going
    gc.collect()
    engine.model.check_integrity()


OTHER_PROCESS = """
import sys
from oxillama.compat.engine import InferenceEngine
engine = InferenceEngine.resume_from_file(sys.argv[1], num_threads=1, page_size=8, prefill_chunk_size=5)
assert engine.model.kernels.target == sys.argv[2]
done = engine.resume_generation(sys.argv[1]).result()
sys.stdout.buffer.write(repr((done.text, done.tokens, done.logprobs)).encode())
"""


def test_another_process_goes_on(tmp_path: Path) -> None:
    engine = engine_of(16, 512, 2, "q8_0", None)
    for name, target in (("schema", PRESENT[0]), ("mirostat", "portable")):
        options = {**SAMPLERS[name], "seed": 5, "max_tokens": 40, "top_logprobs": 1, "adapters": demo.PIRATE}
        expected = engine.stream(PROMPTS[0], **options).result()
        going = engine.stream(PROMPTS[0], window=1, **options)
        read(going, 6)
        going.snapshot_to_file(tmp_path / "a", compress=True)
        done = subprocess.run(
            [sys.executable, "-c", OTHER_PROCESS, str(tmp_path / "a"), target],
            capture_output=True, check=True, env={**os.environ, "OXILLAMA_TARGET": target}, timeout=120,
        )  # fmt: skip
        assert done.stdout.decode() == repr((expected.text, expected.tokens, expected.logprobs))


@pytest.mark.parametrize("seed", [None, 5])
def test_a_receipt_goes_on(seed: int | None, tmp_path: Path) -> None:
    """The receipt covers the whole text, whichever engine made which part."""
    options: dict[str, Any] = {"receipt": True, "temperature": 1.1, "max_tokens": 30, "adapters": demo.PIRATE}
    with (
        InferenceEngine.from_gguf(demo.STORY, page_size=4) as here,
        InferenceEngine.from_gguf(demo.STORY, num_threads=1, context_size=100) as there,
    ):
        going = here.stream(PROMPTS[0], seed=seed, window=2, **options)
        read(going, 4)
        data = going.snapshot()
        expected = going.result().receipt
        assert expected is not None
        resumed = there.resume_generation(data, window=1)
        read(resumed, 3)
        found = here.resume_generation(resumed.snapshot()).result()
        assert found.receipt is not None
        assert found.receipt == replace(expected, context_size=100)
        for engine in (here, there):
            assert engine.verify(found.receipt, adapters=demo.PIRATE)
        assert here.resume_generation(data).result().receipt == expected
        assert found.receipt.seed == going.seed and len(found.receipt.tokens) == 30
        taken = EngineSnapshot.deserialize(data)
        assert taken.request is not None and taken.request.links is not None
        links = taken.request.links.copy()
        assert links.shape == (len(taken.tokens) - taken.request.n_prompt, 32)
        links[0] = 0
        wrong = replace(taken.request, links=links)
        lying = here.resume_generation(replace(taken, request=wrong)).result().receipt
        assert lying is not None
        check = here.verify(lying, adapters=demo.PIRATE)
        assert (check.cause, check.at) == ("logits", 0)
        for changed, message in (
            (replace(taken, request=replace(wrong, links=None)), "receipt that its options ask for"),
            (
                replace(taken, request=replace(wrong, links=links[1:])),
                f"links: expected those of {len(links)}",
            ),
            (replace(taken, request=replace(wrong, links=links[:, 1:])), "links: expected those of"),
            (replace(taken, parts={}), "receipt: expected its state"),
        ):
            with pytest.raises(SnapshotIncompatible, match=message):
                here.resume_generation(changed)


def test_the_model_that_drafts_for_itself_is_no_path() -> None:
    with InferenceEngine.from_gguf(demo.STORY, speculate="self", num_threads=1) as engine:
        going = engine.stream(PROMPTS[0], seed=1, max_tokens=20, window=1)
        next(going)
        data = going.snapshot()
        with InferenceEngine.resume(data) as again:
            assert again.config.speculate == "self"
            same(again.resume_generation(data).result(), going.result())


def test_asyncio_takes_snapshots_and_goes_on() -> None:
    engine = engine_of(16, 512, 1, "f16", None)
    expected = engine.stream(PROMPTS[0], seed=1, max_tokens=20).result()

    async def main() -> None:
        many = AsyncEngine(engine)
        going = many.stream(PROMPTS[0], seed=1, max_tokens=20, window=1)
        begun = await anext(going)
        data = await many.snapshot(going, notes={"n": 1})
        assert EngineSnapshot.deserialize(data).notes == {"n": 1}
        resumed = await many.restore(data)
        assert isinstance(resumed, Generation)
        assert resumed.text == begun
        same(await resumed, expected)
        same(await going, expected)
        assert EngineSnapshot.deserialize(await many.snapshot(engine)).kind == "engine"  # type: ignore[arg-type]
        with engine.session() as session:
            session.prefill(PROMPTS[0])
            assert await many.snapshot(session, compress=True) == session.snapshot(compress=True)
        with pytest.raises(ConfigError, match="of: expected a generation or a session, got b''"):
            await many.snapshot(b"")  # type: ignore[arg-type]
        await many.aclose()
        with pytest.raises(EngineClosed):
            await many.snapshot(going)

    asyncio.run(main())


def test_a_generation_that_cannot_be_begun_is_an_error_and_keeps_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = InferenceEngine.from_gguf(write_tiny_model(tmp_path / "tiny.gguf", ends=False))
    going = engine.stream([97, 98, 99], max_tokens=9, window=1)
    next(going.events())
    data = going.snapshot()
    going.result()
    with monkeypatch.context() as patched:
        patched.setattr(engine.model.loop, "add", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            engine.restore(data)
    engine.model.check_integrity()
    assert len(engine.restore(data).result().tokens) == 9  # type: ignore[union-attr]
