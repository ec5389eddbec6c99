"""Structural tags: which texts each format allows, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oxillama.errors import GrammarError
from oxillama.text.grammar import Grammar, structural_tag_rules

SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}
CALL = {"begin": "<f=go>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</f>"}
STOP = {"begin": "<f=stop>", "content": {"type": "const_string", "value": "now"}, "end": ["</f>", "!"]}
GO = '<f=go>{"at":1}</f>'
TRIGGERED = {"type": "triggered_tags", "triggers": ["<f="], "tags": [CALL, STOP]}
SEPARATED = {"type": "tags_with_separator", "tags": [CALL, STOP], "separator": ";"}
STAR = {"type": "const_string", "value": "ab"}


def grammar_of(form: Any, **others: Any) -> Grammar:
    return Grammar.from_rules(structural_tag_rules({"type": "structural_tag", "format": form, **others}))


FORMS: dict[str, tuple[Any, list[str], list[str]]] = {
    "sequence": ({"type": "sequence", "elements": [STAR, STAR]}, ["abab"], ["ab", "ababab"]),
    "or": (
        {"type": "or", "elements": [STAR, {"type": "const_string", "value": "c"}]}, ["ab", "c"], ["abc", ""],
    ),
    "optional": ({"type": "optional", "content": STAR}, ["", "ab"], ["abab"]),
    "plus": ({"type": "plus", "content": STAR}, ["ab", "abab"], [""]),
    "star": ({"type": "star", "content": STAR}, ["", "abab"], ["a"]),
    "repeat": ({"type": "repeat", "min": 1, "max": 2, "content": STAR}, ["ab", "abab"], ["", "ababab"]),
    "repeat without end": (
        {"type": "repeat", "min": 2, "max": -1, "content": STAR}, ["abab", "ab" * 9], ["ab"],
    ),
    "regex": ({"type": "regex", "pattern": "[0-9]{2}"}, ["12"], ["1", "123"]),
    "grammar": ({"type": "grammar", "grammar": 'root ::= x x\nx ::= "a" | "b"'}, ["ab"], ["a", "abc"]),
    "any text": ({"type": "any_text"}, ["", "é\n<"], []),
    "text without": ({"type": "any_text", "excludes": ["end", "x"]}, ["en"], ["the end", "x"]),
    "short text": ({"type": "any_text", "max_chars": 2}, ["", "éé"], ["abc"]),
    "text in a tag": (
        {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"},
        ["<t></t>", "<t>a<b</t>"], ["<t>a</t>b</t>", "<t>a"],
    ),
    "text at the end of a sequence in a tag": (
        {
            "type": "tag", "begin": "",
            "content": {"type": "sequence", "elements": [STAR, {"type": "any_text"}]}, "end": ".",
        },
        ["ab.", "abc."], ["abc", "ab.c."],
    ),
    "compact": (
        {"type": "json_schema", "json_schema": SCHEMA, "max_whitespace_cnt": 0}, ['{"at":1}'], ['{"at": 1}'],
    ),
    "separated": (SEPARATED, ["", GO, f"{GO};<f=stop>now!;{GO}"], [f"{GO};", GO + GO, f" {GO}"]),
    "some separated": ({**SEPARATED, "at_least_one": True}, [GO, f"{GO};{GO}"], [""]),
    "one of separated": ({**SEPARATED, "stop_after_first": True}, ["", GO], [f"{GO};{GO}"]),
    "triggered": (
        TRIGGERED, ["", "hey", GO, f"hey{GO}", f"{GO}hey", f"a{GO}b<f=stop>now!c", "<f"],
        ["<f=", "<f=go>", GO[:-1]],
    ),
    "one triggered": (
        {**TRIGGERED, "stop_after_first": True}, ["", "hey", f"hey{GO}"], [f"{GO}hey", GO + GO],
    ),
    "some triggered": (
        {**TRIGGERED, "at_least_one": True}, [GO, f"{GO}hey", GO + GO], ["", "hey", f"hey{GO}"],
    ),
    "just one triggered": (
        {**TRIGGERED, "at_least_one": True, "stop_after_first": True},
        [GO, "<f=stop>now!"], ["", f"{GO}hey", f"hey{GO}"],
    ),
    "triggered, in texts without": (
        {**TRIGGERED, "excludes": ["no"]}, ["yes", f"yes{GO}", "<f=stop>now!"], ["no", f"{GO}no"],
    ),
    "dispatch": (
        {"type": "dispatch", "rules": [["#", {"type": "regex", "pattern": "[0-9]"}]], "excludes": ["x"]},
        ["", "a#1b#2", "a"], ["#", "#a", "x", "#1x"],
    ),
    "dispatch once": (
        {"type": "dispatch", "rules": [["#", {"type": "regex", "pattern": "[0-9]"}]], "loop": False},
        ["", "a#1", "a"], ["#1b", "#1#2"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_formats(name: str) -> None:
    form, good, bad = FORMS[name]
    found = grammar_of(form)
    assert [text for text in good if not found.matches(text)] == []
    assert [text for text in bad if found.matches(text)] == []


def test_properties_come_in_the_order_of_the_schema_unless_any_order_is_allowed() -> None:
    both = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "null"}}}
    form = {"type": "json_schema", "json_schema": both}
    turned = '{"a":null,"b":null}'
    assert not grammar_of(form).matches(turned)
    assert grammar_of({**form, "any_order": True}).matches(turned)


def test_the_older_shape_is_read_too() -> None:
    structures = [{"begin": "<f=go>", "schema": schema, "end": "</f>"} for schema in (SCHEMA,)]
    old = Grammar.from_rules(structural_tag_rules({"structures": structures, "triggers": ["<f="]}))
    new = grammar_of({**TRIGGERED, "tags": [CALL]})
    for text in ("", f"hey{GO}", "<f=", f"{GO}<f=stop>now!"):
        assert old.matches(text) == new.matches(text) == (text in ("", f"hey{GO}"))
    structures[0]["schema"] = json.dumps(SCHEMA)  # type: ignore[assignment]
    text = json.dumps({"type": "structural_tag", "structures": structures, "triggers": ["<f="]})
    assert Grammar.from_rules(structural_tag_rules(text)).digest == old.digest


def test_tokens_are_looked_up_and_triggers() -> None:
    ids = {"<a>": [7], "<b>": [8], "<c>": [8, 9]}.__getitem__

    def texts(form: Any) -> str:
        return Grammar.from_rules(structural_tag_rules({"format": form}, ids)).to_gbnf()

    assert "<[7]>" in texts({"type": "token", "token": "<a>"})
    assert "<[3]>" in texts({"type": "token", "token": 3})
    assert "!<[8]>" in texts({"type": "any_tokens", "exclude_tokens": ["<b>"]})
    assert "!<[8]>" in texts({"type": "exclude_token", "exclude_tokens": ["<b>"]})
    tag = {
        "begin": {"type": "token", "token": "<a>"},
        "content": STAR,
        "end": {"type": "token", "token": "<b>"},
    }
    written = texts({"type": "token_triggered_tags", "trigger_tokens": ["<a>"], "tags": [tag]})
    assert "!<[7]>" in written and "<[8]>" in written
    assert "!<[7]>" in texts({"type": "token_dispatch", "rules": [["<a>", STAR]]})
    with pytest.raises(GrammarError, match=r"format.token: expected the text of one token, but <c> is 2"):
        texts({"type": "token", "token": "<c>"})


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("{", "structural_tag: is not JSON"),
        ("[]", "structural_tag: expected an object, got []"),
        ({}, "structural_tag: expected structures"),
        ({"type": "tags", "format": STAR}, 'structural_tag.type: expected "structural_tag"'),
        (
            {"format": STAR, "triggers": []},
            "structural_tag: expected only keys that are honoured, got 'triggers'",
        ),
        ({"format": {"type": "text"}}, "format.type: expected one of const_string"),
        ({"format": {"type": "const_string"}}, "format: expected value"),
        ({"format": {"type": "const_string", "value": 5}}, "format.value: expected text"),
        ({"format": {**STAR, "more": 1}}, "format: expected only keys that are honoured, got 'more'"),
        ({"format": {"type": "json_schema", "json_schema": {"type": "x"}}}, "format.json_schema: "),
        (
            {"format": {"type": "json_schema", "json_schema": {}, "style": "glm_xml"}},
            'format.style: expected "json"',
        ),
        (
            {"format": {"type": "json_schema", "json_schema": {}, "excludes": ["a"]}},
            "format.excludes: expected no",
        ),
        ({"format": {"type": "regex", "pattern": "("}}, "format.pattern: "),
        ({"format": {"type": "grammar", "grammar": "root"}}, "format.grammar: "),
        ({"format": {"type": "any_text", "max_tokens": 3}}, "format.max_tokens: expected max_chars"),
        (
            {"format": {"type": "any_text", "max_chars": 3, "excludes": ["a"]}},
            "format.max_chars: expected no value",
        ),
        ({"format": {"type": "token", "token": "<a>"}}, "can only be looked up in a tokenizer"),
        (
            {"format": {"type": "sequence", "elements": []}},
            "format.elements: expected a list that is not empty",
        ),
        (
            {"format": {"type": "repeat", "min": 3, "max": 2, "content": STAR}},
            "format.max: expected -1, or 3 to",
        ),
        (
            {"format": {**TRIGGERED, "triggers": ["<g"]}},
            "tags[0].begin: expected a text that begins with one",
        ),
        (
            {"format": {**TRIGGERED, "triggers": ["<", "<f"]}},
            "tags[0].begin: expected a text that begins with one",
        ),
        ({"format": {**TRIGGERED, "triggers": [""]}}, "format.triggers: expected texts that are not empty"),
        ({"format": {**TRIGGERED, "at_least_one": 1}}, "format.at_least_one: expected true or false"),
        ({"format": {"type": "dispatch", "rules": [["a"]]}}, "format.rules: expected pairs"),
        (
            {"format": {"type": "tag", "begin": "a", "content": STAR, "end": []}},
            "format.end: expected at least one",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_path(tag: Any, message: str) -> None:
    with pytest.raises(GrammarError) as error:
        structural_tag_rules(tag)
    assert message in str(error.value)


def test_formats_that_are_nested_too_deeply_are_refused() -> None:
    form: Any = STAR
    for _ in range(100):
        form = {"type": "star", "content": form}
    with pytest.raises(GrammarError, match="expected at most 60 formats inside each other"):
        grammar_of(form)
