"""Random schemas written on demand: the same verdicts, masks and errors as with all rules at once."""

from __future__ import annotations

import json
import random

from hypothesis import given, settings, strategies as st

from oxillama.errors import GrammarError
from oxillama.text.grammar import Grammar, GrammarState, JsonSchemaCompiler, Vocabulary, structural_tag_rules
from oxillama.text.grammar.rules import Rules
from tests.support.schema_samples import Sampler
from tests.text.grammar.test_json_schema_random import RECURSIVE, SCHEMAS, VALUES

TEXTS = [bytes([byte]) for byte in range(256)] + [b'": ', b'"}', b'{"', b"</s>"]
VOCABULARY = Vocabulary(TEXTS, [len(TEXTS) - 1])
MOST_MASKS = 40


def at_once(schema: dict[str, object]) -> tuple[Rules | None, Grammar | None]:
    """The rules and the grammar; none where that is an error."""
    try:
        rules = JsonSchemaCompiler(any_order=True).compile(schema)
    except GrammarError:
        return None, None
    return rules, Grammar.from_rules(Rules(rules.root, rules.rules))


@settings(max_examples=150, deadline=None)
@given(SCHEMAS, st.lists(VALUES, min_size=3, max_size=8), st.integers(0, 2**32))
def test_a_schema_on_demand_is_the_schema(schema: dict[str, object], values: list[object], seed: int) -> None:
    schema = {
        "$defs": {"r": RECURSIVE},
        "type": "object",
        "properties": {"a": schema, "b": {"$ref": "#/$defs/r"}},
    }
    rules, whole = at_once(schema)
    try:
        lazy = Grammar.from_json_schema(schema, compiler=JsonSchemaCompiler(any_order=True))
    except GrammarError:
        assert whole is None
        return
    assert whole is not None and rules is not None
    plain = Grammar.from_json_schema(schema, compiler=JsonSchemaCompiler(any_order=True, plain_integers=True))
    content = {"type": "json_schema", "json_schema": schema, "any_order": True}
    tag = {"format": {"type": "tag", "begin": "<", "content": content, "end": ">"}}
    tagged = Grammar.from_rules(structural_tag_rules(tag))
    texts = [json.dumps({"a": value}) for value in values]
    sampler = Sampler(rules, random.Random(seed))
    texts += [text for text in (sampler.draw() for _ in range(3)) if text is not None]
    for text in texts:
        verdict = whole.matches(text)
        assert lazy.matches(text) == verdict, text
        assert tagged.matches(f"<{text}>") == plain.matches(text) <= verdict, text
        assert not tagged.matches(f"<{text}")
        one, other = GrammarState(lazy, VOCABULARY), GrammarState(whole, VOCABULARY)
        for byte in text.encode()[:MOST_MASKS]:
            assert (one.mask() == other.mask()).all(), text
            if not one.allows_token(byte):
                break
            one.advance(byte)
            other.advance(byte)
