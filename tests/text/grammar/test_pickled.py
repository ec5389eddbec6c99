"""Grammars that were pickled: they read only what they need, and allow the same tokens."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.grammar_models import models, tags, unions
from oxillama import demo
from oxillama.errors import GrammarError
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.grammar import Grammar, GrammarState, parse_lark, structural_tag_rules
from oxillama.text.grammar.packed import ReadRules
from oxillama.text.grammar.program import MANY_STATES
from oxillama.text.grammar.vocabulary import Vocabulary
from tests.support.automata import allowed
from tests.text.grammar.test_grammar_masks import CASES
from tests.text.grammar.test_json_schema_suite import CORE, cases
from tests.text.grammar.test_lark import GRAMMARS

Make = Callable[[], Grammar]
MANY = {f"p{i}": {"enum": [f"v{j}{i}" for j in range(8)]} for i in range(1600)}
WORDS = {f"p{i}": {"type": "string", "pattern": f"^[a-z]{{{i},40}}x$", "maxLength": 60} for i in range(9)}

MAKERS: dict[str, Make] = {
    **{name: lambda text=text: Grammar.parse(text) for name, text in CASES.items()},
    **{
        f"lark {name}": lambda row=row: Grammar.from_rules(parse_lark(row[0]))
        for name, row in GRAMMARS.items()
    },
    **{name: lambda made=made: Grammar.from_json_schema(made) for name, made, _ in [*models(), *unions()]},
    **{name: lambda tag=tag: Grammar.from_rules(structural_tag_rules(tag)) for name, tag, _ in tags()},
    "many": lambda: Grammar.from_json_schema({"type": "object", "properties": MANY}),
    "words": lambda: Grammar.from_json_schema({"type": "object", "properties": WORDS, "minProperties": 2}),
    "itself": lambda: Grammar.from_json_schema(
        {"type": "array", "items": {"$ref": "#"}, "uniqueItems": True}
    ),
    "json": Grammar.json,
    "regex": lambda: Grammar.from_regex("(?=.*[a-z])(?=.*[0-9]).{4,9}"),
}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.from_tokenizer(TokenizerBridge.from_gguf(demo.STORY))


def walk(states: list[GrammarState], seed: int, n: int) -> int:
    """Follows the same random tokens; the masks must be equal. Returns how many were compared."""
    rng = np.random.default_rng(seed)
    for step in range(n):
        results: list[Any] = []
        for state in states:
            try:
                results.append((state.mask().tobytes(), state.is_complete))
            except GrammarError as error:
                results.append(str(error))
        assert all(result == results[0] for result in results), step
        if isinstance(results[0], str):
            return step
        tokens = allowed(states[0].mask())
        if not tokens:
            return step
        token = int(rng.choice(tokens))
        for state in states:
            state.advance(token)
        if states[0].has_ended:
            return step
    return n


def same(one: Grammar, vocabulary: Vocabulary, n: int = 40, seeds: int = 3) -> Grammar:
    """The grammar pickled and read again, which has the same rules and masks."""
    data = pickle.dumps(one, pickle.HIGHEST_PROTOCOL)
    for seed in range(seeds):
        try:
            walk([GrammarState(one, vocabulary), GrammarState(pickle.loads(data), vocabulary)], seed, n)
        except GrammarError:  # it names tokens that the vocabulary does not have
            with pytest.raises(GrammarError):
                GrammarState(pickle.loads(data), vocabulary)
    other: Grammar = pickle.loads(data)
    assert other.digest == one.digest and other.rules == one.rules
    assert pickle.loads(pickle.dumps(other)).digest == one.digest
    return other


@pytest.mark.parametrize("name", MAKERS)
def test_masks_are_the_same(name: str, vocabulary: Vocabulary) -> None:
    try:
        one = MAKERS[name]()
    except GrammarError:  # a case that names tokens, or matches nothing
        return
    same(one, vocabulary, seeds=1 if name == "many" else 3)


@pytest.mark.slow
@pytest.mark.skipif(not CORE.is_dir(), reason="the suite is not beside the repository")
def test_masks_of_the_suite_are_the_same(vocabulary: Vocabulary) -> None:
    n = 0
    for _, group in cases(sorted(CORE.glob("*.json"))):
        try:
            one = Grammar.from_json_schema(group["schema"])
        except GrammarError:
            continue
        same(one, vocabulary, n=12, seeds=1)
        n += 1
    assert n > 200


def test_only_the_rules_that_are_needed_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    one = MAKERS["many"]()
    seen: list[str] = []
    read = ReadRules.__getitem__
    monkeypatch.setattr(ReadRules, "__getitem__", lambda self, name: seen.append(name) or read(self, name))
    other: Grammar = pickle.loads(pickle.dumps(one))
    assert sum(one._pieces._sizes.values()) > MANY_STATES and len(one._pieces.built) >= 1600
    assert isinstance(other.rules.rules, ReadRules)
    assert len(seen) < len(other.rules.rules) / 3 and not other._pieces.built


def test_an_automaton_is_pickled_once() -> None:
    items = {f"p{i}": {"type": "string", "pattern": "^(?=.*a)(?=.*b)(?=.*c).*$"} for i in range(40)}
    sizes = [
        len(pickle.dumps(Grammar.from_json_schema({"type": "object", "properties": dict(some)})))
        for some in ([*items.items()][:2], items.items())
    ]
    assert sizes[1] < 5 * sizes[0]


def test_a_deferred_rule_that_is_too_large_is_the_same_error(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a|b|cd){0,4000}x$"}}}
    one = Grammar.from_json_schema(schema)
    same(one, vocabulary, n=60)


def test_threads_may_read_the_rules_together(vocabulary: Vocabulary) -> None:
    one = MAKERS["words"]()
    other: Grammar = pickle.loads(pickle.dumps(one))
    done: list[int] = []

    def run() -> None:
        done.append(walk([GrammarState(other, vocabulary), GrammarState(one, vocabulary)], 3, 40))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 6 and len(set(done)) == 1
