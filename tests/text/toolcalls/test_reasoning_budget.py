"""Reasoning ends at its budget, and nothing else about a text changes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from oxillama import ConfigError, Grammar, GrammarState, InferenceEngine
from oxillama.engine.completion import Completion
from oxillama.engine.features.reasoning_budget import ReasoningBudget, is_whole
from oxillama.text.grammar import Vocabulary
from tests.support.tiny_file import CHATML, write_tiny_model

ASK = [{"role": "user", "content": "hello"}]
OPENED = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif") + "{# </think> #}"
"""A template that opens reasoning."""
PIECES = [b"<think>", b"</th", b"ink>", b"a", b"\xf0", b"\x9f", b"\x98", b"\x80", b" ", b"<thi", b"nk>"]
CLOSING = (1, 2)
ALL = (1 << 32) - 1


def budget_of(n: int, *, opened: bool = True, anywhere: bool = False) -> ReasoningBudget:
    return ReasoningBudget(n, ("<think>", "</think>"), anywhere, opened, CLOSING, PIECES)


def allowed(constraint: ReasoningBudget, *tokens: int) -> list[int] | None:
    """What may follow these tokens; None for every token."""
    for token in tokens:
        constraint.advance(token)
    (mask,) = constraint.mask().tolist()
    return None if mask == ALL else [t for t in range(32) if mask >> t & 1]


@pytest.mark.parametrize(
    ("constraint", "tokens", "next"),
    [
        (budget_of(2), (3,), None),
        (budget_of(2), (3, 3), [1]),
        (budget_of(2), (3, 3, 1), [2]),
        (budget_of(2), (3, 3, 1, 2), None),
        (budget_of(2), (3, 1, 2), None),  # the model ended it
        (budget_of(2), (1, 2, 3, 3, 3), None),
        (budget_of(0), (), [1]),
        (budget_of(1), (4,), None),  # within a character
        (budget_of(1), (4, 5, 6, 7), [1]),
        (budget_of(1), (1,), [1]),  # "</th" of the model's own, which it might not go on with
        (budget_of(1, opened=False), (0, 3), [1]),
        (budget_of(1, opened=False), (8, 9, 10, 3), [1]),
        (budget_of(1, opened=False), (3, 0, 3, 3), None),  # an answer that quotes
        (budget_of(1, opened=False, anywhere=True), (3, 0, 3), [1]),
        (budget_of(2, anywhere=True), (3, 1, 2, 3, 9, 10), [1]),  # the tokens of both count
    ],
)
def test_what_may_follow(
    constraint: ReasoningBudget, tokens: tuple[int, ...], next: list[int] | None
) -> None:
    assert allowed(constraint, *tokens) == next


def test_rollback_and_fork() -> None:
    rng, wanted = random.Random(1), budget_of(3, anywhere=True)
    said: list[int] = []
    for _ in range(300):
        if said and rng.random() < 0.3:
            n = rng.randrange(1, len(said) + 1)
            wanted.rollback(n)
            del said[len(said) - n :]
        copy = wanted.fork()
        token = rng.randrange(len(PIECES))
        allowed(copy, *[rng.randrange(len(PIECES)) for _ in range(3)])
        wanted.advance(token)
        said.append(token)
        assert allowed(wanted) == allowed(budget_of(3, anywhere=True), *said)


def test_a_grammar_is_followed_too() -> None:
    vocabulary = Vocabulary(PIECES, end_ids=[])
    state = GrammarState(Grammar.parse('root ::= "aaa</think>" "a"*'), vocabulary)
    constraint = ReasoningBudget(1, ("<think>", "</think>"), False, True, CLOSING, PIECES, state)
    for token in (3, 3, 3):  # the end is not allowed yet
        assert allowed(constraint) == [3]
        constraint.advance(token)
    assert allowed(constraint) == [1]
    assert allowed(constraint, 1, 2) == [3]
    constraint.rollback(5)
    assert allowed(constraint) == [3]
    assert constraint.grammar is state.grammar


@pytest.mark.parametrize("text", ["é", "€", "\U0001f600"])
def test_whole_characters(text: str) -> None:
    data = text.encode()
    assert all(map(is_whole, (b"", b"a", data, b"a" + data, data + b"a", data[1:])))
    assert not any(is_whole(b"a" + data[:n]) for n in range(1, len(data)))


# --- in an engine ---------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> InferenceEngine:
    """A model that reasons on and on."""
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    return InferenceEngine(write_tiny_model(path, chat_template=OPENED, ends=False))


def answer(engine: InferenceEngine, **options: Any) -> Completion:
    """The answer to `ASK` with a fixed seed."""
    return engine.stream_chat(ASK, **{"seed": 3, "max_tokens": 60, "temperature": 2.0, **options}).result()


def test_the_end_is_forced_and_the_answer_follows(engine: InferenceEngine) -> None:
    free, bounded = answer(engine), answer(engine, reasoning_budget=9)
    assert free.text == "" and len(free.tokens) == 60
    closing = engine.tokenizer.encode("</think>", add_special=False)
    n = next(i for i in range(60) if bounded.tokens[i : i + len(closing)] == closing)
    assert 9 <= n <= 12  # including the rest of a character
    assert bounded.tokens[:n] == free.tokens[:n]
    assert bounded.reasoning.strip() == engine.tokenizer.decode(free.tokens[:n]).strip()
    assert bounded.text
    assert answer(engine, reasoning_budget=59).tokens[:59] == free.tokens[:59]


def test_a_budget_that_is_not_reached_changes_nothing(engine: InferenceEngine) -> None:
    assert answer(engine, reasoning_budget=1000).tokens == answer(engine).tokens
    assert answer(engine, reasoning_budget=1000, temperature=0).tokens == answer(engine, temperature=0).tokens


def test_no_reasoning_at_all(engine: InferenceEngine) -> None:
    none = answer(engine, reasoning_budget=0)
    assert none.reasoning == "" and none.text
    assert engine.chat(ASK, seed=3, max_tokens=60, temperature=2.0, reasoning_budget=0) == none.text


@pytest.mark.parametrize("options", [{"speculate": "lookup"}, {"logprobs": True}, {"temperature": 0}])
def test_the_same_text_in_a_batch_with_drafts_and_in_a_snapshot(
    engine: InferenceEngine, options: dict[str, Any]
) -> None:
    alone = answer(engine, reasoning_budget=9, **{**options, "speculate": "off"})
    asked: dict[str, Any] = {
        "seed": 3,
        "max_tokens": 60,
        "temperature": 2.0,
        "reasoning_budget": 9,
        **options,
    }
    together = [engine.stream_chat(ASK, window=1, **asked) for _ in range(3)]
    for _ in range(7):
        next(together[0].events())
    data = together[0].snapshot()
    assert [each.result().tokens for each in together] == [alone.tokens] * 3
    resumed = engine.restore(data).result()
    assert isinstance(resumed, Completion)
    assert (resumed.tokens, resumed.text, resumed.reasoning) == (alone.tokens, alone.text, alone.reasoning)


def test_what_cannot_be_bounded(engine: InferenceEngine, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reasoning_budget: cannot be combined with receipt"):
        engine.chat(ASK, reasoning_budget=1, receipt=True)
    with pytest.raises(ConfigError, match=r"reasoning_budget: expected .*got -1"):
        engine.chat(ASK, reasoning_budget=-1)
    plain = InferenceEngine(write_tiny_model(tmp_path / "plain.gguf", chat_template=None, ends=False))
    with pytest.raises(ConfigError, match="message_format: expected one, for the file has no chat template"):
        plain.generate("hello", reasoning_budget=1)
    chatml = InferenceEngine(write_tiny_model(tmp_path / "chatml.gguf", ends=False))
    assert answer(chatml, reasoning_budget=1).tokens == answer(chatml).tokens
    ruled: dict[str, Any] = {"regex": "[a-z</>]{20}", "seed": 1, "temperature": 2.0}
    assert engine.generate("<think>", reasoning_budget=1, **ruled) == engine.generate("<think>", **ruled)


def test_a_vocabulary_that_cannot_end_the_reasoning(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = engine.tokenizer.n_vocab
    monkeypatch.setattr(engine.model.tokenizer, "vocab_bytes", lambda: [b"x"] * n)
    with pytest.raises(ConfigError, match="reasoning_budget: expected a vocabulary that spells </think>"):
        engine.chat(ASK, reasoning_budget=1, max_tokens=4)
