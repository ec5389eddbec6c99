"""Wrong inputs are errors that say so, before anything is run; NumPy's numbers are as good as Python's."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import (
    ConfigError,
    EngineConfig,
    GenerationOptions,
    PromptError,
    SamplerConfig,
    SamplingError,
    demo,
)
from oxillama.base.config import engine as engine_options, generate_fields
from oxillama.base.config.generation import FIELD_NAMES, OPTION_NAMES
from oxillama.compat.engine import InferenceEngine

GREEDY = SamplerConfig.greedy()
PROMPT = "Once upon a time"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (b"Once", "expected text or token ids, got bytes"),
        (bytearray(b"Once"), "got bytearray"),
        ([1.7], "got 1.7"),
        (["5"], "got '5'"),
        ([True], "got True"),
        ({5, 6}, "got set"),
        ({5: 6}, "got dict"),
        (None, "got NoneType"),
        (5, "got int"),
        (np.array([1.5]), "got 1.5"),
        (np.array([[1, 2]]), "expected token ids below"),
        (np.array(3), "got ndarray"),
        ((t for t in [5]), "got generator"),
        ("", "empty"),
        ([], "no tokens"),
        ([5, 1024], "expected token ids below 1024, got 1024"),
        ([10**6], "got 1000000"),
        ([-1], "expected token ids below 1024, got -1"),
        ("a " * 600, "expected at most 51[12] tokens for the context, got 602"),
    ],
)
def test_what_is_no_prompt(engine: InferenceEngine, prompt: Any, message: str) -> None:
    calls: list[Callable[[Any], object]] = [engine.generate, engine.stream, engine.embed]
    for call in (*calls, engine.logits, engine.prefill, engine.hidden_states):
        with pytest.raises(PromptError, match=message):
            call(prompt)
    assert engine.kv_cache_seq_len == 0


def test_arrays_and_numpy_numbers_are_taken(engine: InferenceEngine) -> None:
    tokens = engine.tokenize(PROMPT)
    expected = engine.generate(PROMPT, sampler=GREEDY, max_tokens=6)
    for same in (tuple(tokens), np.array(tokens), np.array(tokens, np.uint16), list(np.array(tokens))):
        assert engine.generate(same, sampler=GREEDY, max_tokens=np.int64(6)) == expected
    sampler = SamplerConfig(
        temperature=np.float32(0.5),
        top_k=np.int32(7),
        seed=np.uint64(3),
        banned_tokens=np.array([5, 6]),
        logit_bias={np.int64(9): np.float64(-1)},
    )
    assert sampler == SamplerConfig(
        temperature=0.5, top_k=7, seed=3, banned_tokens=(5, 6), logit_bias={9: -1}
    )
    assert type(sampler.top_k) is int
    assert EngineConfig(context_size=np.int64(64)).context_size == 64
    assert SamplerConfig(banned_tokens={6}).banned_tokens == (6,)


def test_a_batch_is_a_list(engine: InferenceEngine) -> None:
    for wrong in ("abc", b"abc", {"a": 1}, 5, None):
        for call in (engine.generate_batch, engine.stream_batch, engine.embed_batch):
            with pytest.raises(ConfigError, match="expected a list of"):
                call(wrong)  # type: ignore[arg-type]
    assert engine.generate_batch((p for p in [PROMPT]), sampler=GREEDY, max_tokens=2)


def test_tokens_outside_the_vocabulary_are_told_at_once(engine: InferenceEngine) -> None:
    steps = engine.metrics.steps
    n = engine.tokenizer.n_vocab
    for options in ({"logit_bias": {n: 1.0}}, {"banned_tokens": (n,)}, {"allowed_tokens": (n,)}):
        with pytest.raises(ConfigError, match=f"expected token ids below {n}, got {n}"):
            engine.stream(PROMPT, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"top_logprobs: expected at most {engine.model.spec.n_vocab}"):
        engine.stream(PROMPT, top_logprobs=engine.model.spec.n_vocab + 1)
    assert engine.metrics.steps == steps


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration, GeneratorExit, SystemExit, ValueError])
def test_what_a_stage_raises_is_raised(engine: InferenceEngine, error: type[BaseException]) -> None:
    def stage(ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> None:
        raise error("of the stage")

    sampler = SamplerConfig(order=("top_k", stage, "temperature"))
    silent = error in (StopIteration, StopAsyncIteration, GeneratorExit)
    with pytest.raises(SamplingError if silent else error, match="of the stage"):
        engine.generate(PROMPT, sampler=sampler)
    with pytest.raises(SamplingError if silent else error):
        list(engine.stream(PROMPT, sampler=sampler))
    assert engine.generate(PROMPT, sampler=GREEDY, max_tokens=2)


def test_requests_share_the_stages_of_equal_options_alone(engine: InferenceEngine) -> None:
    def chain_of(config: SamplerConfig) -> object:
        return engine.model.sampler(config).chain

    plain = chain_of(SamplerConfig(top_k=3))
    assert chain_of(SamplerConfig(top_k=3)) is plain
    assert chain_of(SamplerConfig(top_k=4)) is not plain
    biased = SamplerConfig(top_k=4, logit_bias={5: 1.0})
    before = chain_of(biased)
    assert isinstance(biased.logit_bias, dict)
    biased.logit_bias[6] = 1.0  # the caller's own dict may change between two requests
    assert chain_of(biased) is not before
    own = SamplerConfig(order=("top_k", "temperature", lambda ids, logits, history: None))
    assert chain_of(own) is not chain_of(own)  # a stage of the user's own may have a state


def test_options_of_both_kinds_and_their_mistakes(engine: InferenceEngine) -> None:
    expected = engine.generate(PROMPT, sampler=SamplerConfig(seed=7, top_k=5), max_tokens=8)
    assert engine.generate(PROMPT, seed=7, top_k=5, max_tokens=8) == expected
    assert engine.generate(PROMPT, sampler=SamplerConfig(seed=7), top_k=5, max_tokens=8) == expected
    options = GenerationOptions(sampler=SamplerConfig(seed=1, top_k=5), max_tokens=3)
    assert engine.generate(PROMPT, options, seed=7, max_tokens=8) == expected
    assert engine.generate(PROMPT, stop=None, max_tokens=2, temperature=0)
    for wrong, message in (
        ({"temprature": 1}, "temprature: is no option; did you mean temperature?"),
        ({"sampler": {"top_k": 3}}, "sampler: expected a SamplerConfig, got dict"),
        ({"sampler": 3}, "sampler: expected a SamplerConfig, got int"),
        ({"options": {"max_tokens": 3}}, "options: expected a GenerationOptions, got dict"),
        ({"stop": [""]}, "stop: expected strings that are not empty"),
        ({"stop": 5}, "stop: expected strings"),
        ({"salt": 5}, "salt: expected a str, got int"),
        ({"window": 0}, "window: expected an integer >= 1, got 0"),
        ({"keep_logits": 1}, "keep_logits: expected True or False, got 1"),
        ({"top_k": 2**31}, "top_k: expected an integer >= 0 and <= 2147483647, got 2147483648"),
    ):
        with pytest.raises(ConfigError) as caught:
            engine.generate(PROMPT, **wrong)  # type: ignore[arg-type]
        assert str(caught.value).startswith(message)


def test_the_context_is_used_up_where_there_is_no_limit() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, context_size=40)
    generation = engine.stream(PROMPT, sampler=GREEDY, ignore_eos=True, max_tokens=None)
    assert len(generation.result().tokens) == 40 - len(generation.prompt_tokens)
    assert generation.finish_reason == "length"


def test_a_prompt_leaves_room_for_a_token() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, context_size=20)
    generation = engine.stream([5] * 19, sampler=GREEDY, ignore_eos=True).result()
    assert (len(generation.tokens), generation.finish_reason) == (1, "length")
    for n in (20, 21):
        with pytest.raises(PromptError, match=f"expected at most 19 tokens for the context, got {n}"):
            engine.stream([5] * n)
    assert len(engine.hidden_states([5] * 20)) == 20


def test_token_ids_end_with_the_vocabulary(engine: InferenceEngine) -> None:
    assert engine.model.spec.n_vocab == 1024
    assert len(engine.logits([1023])) == 1


def test_only_false_from_a_callback_cancels(engine: InferenceEngine) -> None:
    for value in (None, 0, "", True):
        seen: list[str] = []

        def callback(piece: str, value: object = value, seen: list[str] = seen) -> object:
            seen.append(piece)
            return value

        generation = engine.stream(PROMPT, sampler=GREEDY, max_tokens=6, callback=callback)
        assert generation.result().finish_reason == "length"
        assert "".join(seen) == generation.text


def test_an_engine_is_made_of_a_path() -> None:
    assert InferenceEngine(demo.STORY).generate(PROMPT, sampler=GREEDY, max_tokens=2)
    assert InferenceEngine(str(demo.STORY)).is_loaded
    for wrong in (5, {"model_path": "x"}, b"x"):
        with pytest.raises(ConfigError, match="config: expected a EngineConfig, got"):
            InferenceEngine(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="model_path: expected a path, got 5"):
        EngineConfig(model_path=5)  # type: ignore[arg-type]


def test_the_fields_for_type_checkers_are_those_of_the_classes(tmp_path: Path) -> None:
    for name in ("sampler.py", "generation.py", "engine.py"):
        shutil.copy(Path(engine_options.__file__).with_name(name), tmp_path)
    generate_fields.write(tmp_path)
    made = {node.name: node for node in ast.parse((tmp_path / "fields.pyi").read_text()).body[-3:]}
    names = {key: {each.target.id for each in node.body} for key, node in made.items()}
    assert names["GenerationFields"] == set(FIELD_NAMES)
    assert names["SamplerFields"] | set(FIELD_NAMES) == set(OPTION_NAMES)
    initial = {"model_path", *EngineConfig.__dataclass_fields__}
    assert names["EngineFields"] | {"model_path"} == initial


def test_each_thread_has_its_own_last_generation(engine: InferenceEngine) -> None:
    import threading

    engine.generate(PROMPT, sampler=GREEDY, max_tokens=2)
    assert engine.finish_reason == "length"
    others: list[str | None] = []
    thread = threading.Thread(target=lambda: others.append(engine.finish_reason))
    thread.start()
    thread.join()
    assert others == [None]
