"""Schemas inside other grammars: their rules are written when a text comes to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from oxillama.errors import GrammarError
from oxillama.text.grammar import Grammar, GrammarState, Vocabulary, parse_lark, structural_tag_rules
from oxillama.text.grammar.gbnf import parse_gbnf
from oxillama.text.grammar.gbnf_printer import print_gbnf
from oxillama.text.grammar.json_schema import JsonSchemaCompiler
from oxillama.text.grammar.plain import plain_rules, rules_of
from oxillama.text.grammar.rulebook import RuleBook
from oxillama.text.grammar.rules import Ref, Rules, Seq, Text
from oxillama.text.toolcalls.formats import GRAMMARS
from oxillama.text.toolcalls.message_rules import message_rules
from oxillama.text.toolcalls.parameters import Tool
from tests.text.grammar import test_on_demand

TEXTS = [*test_on_demand.TEXTS[:-1], b"\n", b"</t>", b"</s>"]
VOCABULARY = Vocabulary(TEXTS, [len(TEXTS) - 1])

PLACE = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "array", "items": {"minimum": 1}}},
    "required": ["city"],
    "additionalProperties": False,
}
TREE = {
    "type": "object",
    "properties": {"part": {"type": "string", "maxLength": 3}, "left": {"$ref": "#"}, "any": True},
    "required": ["part"],
}


def tag(begin: str, schema: object, **fields: Any) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": schema, **fields}
    return {"type": "tag", "begin": begin, "content": content, "end": "</t>"}


def tagged() -> Rules:
    """Two layouts of JSON: each has common rules of its own."""
    tags = [tag("<a>", PLACE), tag("<b>", TREE, max_whitespace_cnt=0), tag("<c>", True)]
    form = {"type": "triggered_tags", "triggers": ["<a>", "<b>", "<c>"], "tags": tags}
    return structural_tag_rules({"format": form})


def lark() -> Rules:
    return parse_lark("""
        start: one_1 | "tree" %json {"type": "object", "properties": {"one": {"type": "null"}}}
        one_1: "place" %json {"type": "array", "items": {"minimum": 1, "maximum": 12}}
        %ignore " "
    """)


def message() -> Rules:
    tools = [Tool("weather", PLACE), Tool("tree", TREE)]
    return message_rules(GRAMMARS["qwen"], tools, "required")


VALUES: list[Any] = [
    {"name": "abcd"},
    {"name": "abcde"},
    {"size": 1},
    {"size": 1, "name": "é"},
    {"name": "", "size": 100},
    {"name": "", "size": None},
    {"name": "", "tags": []},
    {"name": "", "tags": ["a", "b", "a"]},
    {"name": "", "tags": ["c"]},
    {"name": "", "shape": "xx"},
    {"name": "", "shape": "xy"},
    {"name": "", "shape": {"name": [1]}},
    {"name": "", "shape": {}},
    {"name": "", "left": {"name": "", "right": {"name": "z", "left": {"size": 3}}}},
    {"name": "", "left": {"name": "", "right": {"name": "z", "left": {"name": "q"}}}},
    {"name": "", "more": 1},
]
"""Values of `test_on_demand.TREE`, and values that it refuses."""


def at_once(rules: Rules) -> Rules:
    """The same rules, none of them deferred."""
    return replace(rules, deferred=frozenset())


GOOD: dict[str, tuple[Callable[[], Rules], list[str]]] = {
    "structural tags": (
        tagged,
        [
            'so <a>{"city": "Rome", "days": [1, 2]}</t> or',
            '<b>{"part":"abc","left":{"part":"","any":[{"a":null}]}}</t>',
            '<c>{"x": [1.5, "y"]}</t><a>{"city": "Oslo"}</t><b>{"part":""}</t>',
        ],
    ),
    "lark": (lark, ["place [3, 12] ", 'tree{"one": null, "two": [true]}']),
    "tool calls": (
        message,
        ['<tool_call>\n{"name": "tree", "arguments": {"part": "x", "left": {"part": ""}}}\n</tool_call>'],
    ),
    "schema": (
        partial(JsonSchemaCompiler().compile, test_on_demand.TREE),
        ['{"name": "a"}', '{"name": "a", "left": {"name": "b", "tags": ["a"], "right": {"name": ""}}}'],
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_only_what_a_text_comes_to_is_built(name: str) -> None:
    make, texts = GOOD[name]
    grammar = Grammar.from_rules(make())
    pieces = grammar.program.pieces
    assert pieces is not None
    assert pieces.built == []
    before = 0
    for text in texts:
        assert grammar.matches(text), text
        assert len(pieces.built) > before
        before = len(pieces.built)
    assert grammar.matches(texts[0])
    assert len(pieces.built) == before


@pytest.mark.parametrize("name", GOOD)
def test_the_language_is_that_of_all_rules_at_once(name: str) -> None:
    """Mask by mask, along each text and along what may follow each of its beginnings but does not.

    Texts of another grammar are refused alike.
    """
    make, texts = GOOD[name]
    lazy, full = Grammar.from_rules(make()), Grammar.from_rules(at_once(make()))
    assert full.program.pieces is None
    assert lazy.digest == full.digest == Grammar.from_rules(rules_of(plain_rules(make()))).digest
    assert print_gbnf(make()) == full.to_gbnf()
    for text in (*texts, *(json.dumps(value, ensure_ascii=False) for value in VALUES)):
        one, other = GrammarState(lazy, VOCABULARY), GrammarState(full, VOCABULARY)
        for char in text:
            assert (one.mask() == other.mask()).all(), text
            for byte in b'"{[ }]1xR<':
                token = TEXTS.index(bytes([byte]))
                assert one.allows_token(token) == other.allows_token(token)
            token = TEXTS.index(char.encode())
            if not one.allows_token(token):
                break
            one.advance(token)
            other.advance(token)
        assert one.is_complete == other.is_complete == lazy.matches(text) == full.matches(text)
        assert one.is_complete or text not in texts


@pytest.mark.parametrize("name", GOOD)
def test_one_wrong_character_is_refused(name: str) -> None:
    make, texts = GOOD[name]
    grammar, full = Grammar.from_rules(make()), Grammar.from_rules(at_once(make()))
    for text in texts:
        for i in range(len(text)):
            broken = text[:i] + "\x7f" + text[i + 1 :]
            assert grammar.matches(broken) == full.matches(broken), broken


def test_two_grammars_of_the_same_rules_are_built_apart() -> None:
    rules = tagged()
    one, other = Grammar.from_rules(rules), Grammar.from_rules(rules)
    assert one.matches('<b>{"part":"a"}</t>')
    assert other.program.pieces is not None
    assert other.program.pieces.built == []
    for text in GOOD["structural tags"][1]:
        assert other.matches(text)
        assert one.matches(text)


def test_names_of_a_schema_are_never_those_of_the_grammar_around_it() -> None:
    """Names in schemas become names of rules, whatever names the grammar around them has."""
    for n in range(8):
        for word in ("part", "rule", "root", "value", f"rule-{n}"):
            schema: Any = {"type": "null"}
            for _ in range(3):
                schema = {"type": "object", "properties": {word: schema}, "required": [word]}
            one = {"type": "json_schema", "json_schema": schema}
            before = [{"type": "const_string", "value": "x"}] * n
            rules = structural_tag_rules({"format": {"type": "sequence", "elements": [*before, one, one]}})
            text = f'{{"{word}": ' * 3 + "null" + "}" * 3
            assert Grammar.from_rules(rules).matches("x" * n + text * 2)
            assert Grammar.from_rules(at_once(rules)).matches("x" * n + text * 2)


def test_names_of_lark_are_never_those_of_a_schema() -> None:
    text = (
        'start: %json {"required": ["start_1"], "properties": {"start_1": {"type": "null"}}} start_1 | skip\n'
    )
    rules = parse_lark(text + 'start_1: "!"\nskip: "?"')
    for grammar in (Grammar.from_rules(rules), Grammar.from_rules(at_once(rules))):
        assert grammar.matches('{"start_1": null}!')
        assert grammar.matches("?")
        assert not grammar.matches('{"start_1": "!"}!')


def test_what_cannot_be_enforced_is_an_error_at_once() -> None:
    bad = {"properties": {"a": {"items": {"format": "regex"}}}}
    path = "#/properties/a/items/format: cannot be enforced"
    with pytest.raises(GrammarError, match=path):
        structural_tag_rules({"format": tag("<a>", bad)})
    with pytest.raises(GrammarError, match=path):
        parse_lark('start: %json {"properties": {"a": {"items": {"format": "regex"}}}}')
    with pytest.raises(GrammarError, match=f"tool t: {path}"):
        message_rules(GRAMMARS["qwen"], [Tool("t", {"type": "object", **bad})], "required")


def test_a_book_of_one_part_twice() -> None:
    book = RuleBook()
    first = book.include(lark())
    rules = book.rules(Seq((first, Text(";"), book.include(lark()), first)))
    grammar = Grammar.from_rules(rules)
    assert grammar.matches('place[1];tree{"one":null}place[2]')
    assert not grammar.matches('place[1];tree{"one":1}place[2]')


def test_a_book_of_two_grammars_with_the_same_names() -> None:
    book = RuleBook()
    one, other = (book.include(parse_gbnf(f'root ::= a\na ::= "{text}" a?')) for text in "xy")
    grammar = Grammar.from_rules(book.rules(Seq((one, other))))
    assert grammar.matches("xxyy") and not grammar.matches("yyxx") and not grammar.matches("xy" * 2)


def test_a_reference_to_nothing_is_an_error() -> None:
    with pytest.raises(GrammarError, match="refers to 'b', which is not defined"):
        Grammar.from_rules(Rules("a", {"a": Ref("b")}))


def test_pieces_that_refer_to_nothing_are_shared_by_grammars() -> None:
    mail = {"type": "string", "format": "email"}
    one = Grammar.from_json_schema({"type": "object", "properties": {"a": mail}, "required": ["a"]})
    other = Grammar.from_json_schema({"type": "array", "items": mail})
    assert one.matches('{"a": "a@b.org"}') and not one.matches('{"a": "a"}')
    assert other.matches('["a@b.org"]') and not other.matches('["a"]')
    pieces = [
        {id(piece) for _, piece in grammar.program.pieces.built}
        for grammar in (one, other)
        if grammar.program.pieces
    ]
    assert len(pieces[0] & pieces[1]) == 1


@pytest.mark.parametrize("least", [-1, 2**64])
def test_numbers_that_no_node_has(least: int) -> None:
    text = json.dumps(plain_rules(Grammar.parse('root ::= "a"{7,9}').rules))
    assert "7" in text and rules_of(json.loads(text))
    with pytest.raises(GrammarError, match=f"grammar: expected what plain_rules gave, .*{least}"):
        rules_of(json.loads(text.replace("7", str(least))))
