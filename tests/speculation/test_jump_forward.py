"""Tokens that a grammar leaves no choice about: which they are, and that they are tokens like all others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from oxillama import ConfigError, EngineConfig, GrammarError, SamplerConfig, demo
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.features.constraints import Constraints
from oxillama.speculation.jump_forward import MOST_TOKENS, JumpForward
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.grammar import GrammarState

NAMES = [f"property_{i}" for i in range(6)]
SCHEMA = {
    "type": "object",
    "properties": {name: {"enum": ["yes", "no", 7]} for name in NAMES},
    "required": NAMES,
    "additionalProperties": False,
}


JUMPS = {"jump_forward": True}


@pytest.fixture(scope="module")
def engine() -> Iterator[InferenceEngine]:
    with InferenceEngine(EngineConfig(model_path=demo.STORY, num_threads=1)) as engine:
        yield engine


@pytest.fixture(scope="module")
def tokenizer() -> TokenizerBridge:
    return TokenizerBridge.from_gguf(demo.STORY)


def state_of(tokenizer: TokenizerBridge, **fields: Any) -> GrammarState:
    state = Constraints(tokenizer).new(SamplerConfig(**fields))
    assert state is not None
    return state


def text_of(tokenizer: TokenizerBridge, tokens: list[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, tokens)).decode()


def passes(engine: InferenceEngine, **fields: Any) -> tuple[Any, int]:
    """A text, and the passes that it took."""
    begun: list[int] = []
    real = engine.model.runner.launch
    engine.model.runner.launch = lambda *given: begun.append(1) or real(*given)  # type: ignore[method-assign,func-returns-value]
    try:
        found = engine.stream("My friend", seed=3, max_tokens=300, **JUMPS | fields).result()
    finally:
        engine.model.runner.launch = real  # type: ignore[method-assign]
    return found, len(begun)


def test_what_must_follow_is_tokenized_as_the_encoder_does_it(tokenizer: TokenizerBridge) -> None:
    jump = JumpForward(tokenizer)
    state = state_of(tokenizer, grammar='root ::= "Once upon a time" [0-9]')
    tokens = jump.tokens(state)
    assert text_of(tokenizer, tokens) == "Once upon a time"
    assert tokens == tokenizer.encode("\nOnce upon a time", add_special=False)[-len(tokens) :]
    assert state.tokens == []  # it is left as it is


def test_the_end_is_left_to_the_sampler_where_a_longer_token_may_take_it(tokenizer: TokenizerBridge) -> None:
    jump = JumpForward(tokenizer)
    free = jump.tokens(state_of(tokenizer, grammar='root ::= "the frien" ("d" | "ze")'))
    assert text_of(tokenizer, free) == "the"  # " friend" is a token
    assert jump.tokens(state_of(tokenizer, regex="a|b")) == []
    assert jump.tokens(state_of(tokenizer, grammar="root ::= [a-z]+")) == []


def test_characters_are_not_cut_and_the_only_end_is_appended(tokenizer: TokenizerBridge) -> None:
    jump = JumpForward(tokenizer)
    state = state_of(tokenizer, grammar='root ::= "a" ("🟥" | "🟩")')  # all but one byte of it must follow
    assert text_of(tokenizer, jump.tokens(state)) == "a"
    ended = jump.tokens(state_of(tokenizer, grammar='root ::= "Tom."'))
    assert ended[-1] in tokenizer.eog_ids and text_of(tokenizer, ended[:-1]) == "Tom."


def test_no_more_tokens_than_a_step_runs(tokenizer: TokenizerBridge) -> None:
    state = state_of(tokenizer, choices=("0123456789" * 10,))
    assert len(JumpForward(tokenizer).tokens(state)) == MOST_TOKENS


def test_what_must_follow_takes_no_passes_and_the_text_fits(engine: InferenceEngine) -> None:
    jumped, few = passes(engine, json_schema=SCHEMA)
    sampled, many = passes(engine, json_schema=SCHEMA, jump_forward=False)
    assert many == len(sampled.tokens) and few < len(jumped.tokens) / 2
    assert sorted(json.loads(jumped.text)) == sorted(json.loads(sampled.text)) == NAMES
    assert jumped.finish_reason == sampled.finish_reason == "stop"
    assert jumped.usage.generated_tokens == len(jumped.tokens)


def test_drafts_batches_and_threads_change_nothing(engine: InferenceEngine) -> None:
    fields: dict[str, Any] = {"json_schema": SCHEMA, "seed": 3, "max_tokens": 300, **JUMPS}
    alone = engine.stream("My friend", **fields).result()
    assert engine.stream("My friend", speculate="lookup", **fields).result().tokens == alone.tokens
    many = [g.result().tokens for g in engine.stream_batch(["My friend", "A", "My friend"], **fields)]
    assert many[0] == many[2] == alone.tokens
    with InferenceEngine(EngineConfig(model_path=demo.STORY, num_threads=2, page_size=32)) as other:
        assert other.stream("My friend", **fields).result().tokens == alone.tokens


def test_stop_strings_limits_and_callbacks_see_its_tokens(engine: InferenceEngine) -> None:
    fields: dict[str, Any] = {"seed": 3, "json_schema": SCHEMA, **JUMPS}
    whole = engine.stream("My friend", max_tokens=300, **fields).result()
    stopped = engine.stream("My friend", max_tokens=300, stop="property_2", **fields).result()
    assert stopped.text == whole.text[: whole.text.index("property_2")] and stopped.finish_reason == "stop"
    for most in (1, 5, 9):
        cut = engine.stream("My friend", max_tokens=most, **fields).result()
        assert cut.tokens == whole.tokens[:most] and cut.finish_reason == "length"
    seen: list[str] = []
    engine.generate("My friend", max_tokens=300, callback=seen.append, **fields)
    assert "".join(map(str, seen)) == whole.text


def test_sessions_go_on_behind_its_tokens(engine: InferenceEngine) -> None:
    with engine.session() as session:
        session.prefill("My friend")
        text = session.generate(seed=3, json_schema=SCHEMA, jump_forward=True, max_tokens=9)
        n = len(session.tokens)
        logits = session.prefill(" and")
        assert text and (logits == engine.logits(session.tokens)[-1]).all() and len(session.tokens) > n


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logprobs", True),
        ("top_logprobs", 1),
        ("keep_logits", True),
        ("receipt", True),
        ("mirostat", 2),
        ("banned_tokens", [5]),
        ("allowed_tokens", range(3, 512)),
        ("logit_bias", {5: 1.0}),
        ("min_tokens", 2),
        ("ignore_eos", True),
    ],
)
def test_what_it_cannot_be_combined_with(engine: InferenceEngine, name: str, value: Any) -> None:
    fields: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"jump_forward: cannot be combined with {name}"):
        engine.generate("My friend", json_schema=SCHEMA, jump_forward=True, **fields)
    assert engine.generate("My friend", json_schema=SCHEMA, max_tokens=4, **fields)
    assert engine.generate("My friend", jump_forward=True, max_tokens=4, **fields), "there is no grammar"


def test_stages_in_python_see_each_token(engine: InferenceEngine) -> None:
    order = ("temperature", lambda ids, logits, history: None)
    cuts: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "order": order}
    with pytest.raises(ConfigError, match="a stage in Python"):
        engine.generate("My friend", json_schema=SCHEMA, jump_forward=True, **cuts)


def test_a_grammar_that_is_too_hard_to_look_ahead_is_sampled(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = GrammarError("grammar: expected less work")
    monkeypatch.setattr(JumpForward, "tokens", Mock(side_effect=error))
    found, n = passes(engine, json_schema=SCHEMA)
    assert n == len(found.tokens) and json.loads(found.text)
