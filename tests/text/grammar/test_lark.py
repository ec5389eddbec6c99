"""Lark-style grammars: which texts they allow, and what is refused, with its place."""

from __future__ import annotations

import json

import pytest

from oxillama import EngineConfig, SamplerConfig, demo
from oxillama.engine.features.constraints import Constraints
from oxillama.errors import GrammarError
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.grammar import Grammar, parse_lark
from oxillama.text.grammar.lark import is_lark
from oxillama.text.grammar.rules import Tokens


def grammar_of(text: str) -> Grammar:
    return Grammar.from_rules(parse_lark(text))


GRAMMARS: dict[str, tuple[str, list[str], list[str]]] = {
    "header": ('%llguidance {}\nstart: "a"', ["a"], ["", "aa"]),
    "rules": ('start: x y\nx: "a"\n?y: "b"\n | "c"', ["ab", "ac"], ["a", "abc"]),
    "comments": ('// one\nstart: "a" // two\n# three\n', ["a"], ["a "]),
    "alternatives": ('start: "a" |\n "b" "c"\n   | "d" -> named', ["a", "bc", "d"], ["b", "ac"]),
    "empty alternative": ('start: "a" ("b" |)', ["a", "ab"], ["b"]),
    "groups": ('start: (\n "a"\n | "b"\n)+ ["c"]', ["a", "abc"], ["c", "cc"]),
    "recursion": ('start: "(" start ")" | "x"', ["x", "((x))"], ["(x"]),
    "left recursion": ('start: start "+" N | N\nN: /[0-9]/', ["1", "1+2+3"], ["+1", "12"]),
    "counts": ('start: "a"{2} "b"{1,2} "c"{,1} "d"{1,}', ["aabd", "aabbcdd"], ["abd", "aabbbd", "aab"]),
    "counts with a tilde": ('start: "a"~2 "b"~1..2', ["aab", "aabb"], ["ab", "aabbb"]),
    "stacked": ('start: ("a"?)+', ["", "aaa"], ["b"]),
    "escapes": ('start: "a\\n\\u00e9\\""', ['a\né"'], ["a"]),
    "case": ('start: "Straße"i "ok"', ["straßeok", "STRAßEok"], ["straßeOK"]),
    "range": ('start: "a".."c"', ["a", "c"], ["d", "ac"]),
    "regex": ("start: /[a-z]+\\/\\d/", ["ab/1"], ["ab1"]),
    "dot": ("start: /./", ["a", "\r"], ["\n"]),
    "dot in a class": ("start: /[.]\\./", [".."], ["a."]),
    "dot and lines": ("start: /./s", ["a", "\n"], [""]),
    "regex and case": ("start: /a[b-c]./i", ["aBx", "AcX"], ["dBx"]),
    "and": ("start: A\nA: /[a-z]+/ & /.{3}/ & ~/abc/", ["abd"], ["abc", "ab", "AAA"]),
    "and of terminals": ('W: /[a-z]+/\nstart: A\nA: W & ~("if" | "of")', ["i", "iff"], ["if", "of"]),
    "terminals": ("start: A\nA: B{2}\nB: /[0-9]/", ["12"], ["1"]),
    "ignore": ('start: "a" B\nB: "b" "c"\n%ignore /[ ]+/\n%ignore "_"',
        ["abc", "a  _bc ", "a bc"], [" abc", "ab c"]),
    "ignore at the beginning": (
        '%llguidance {"allow_initial_skip": true}\nstart: "a"\n%ignore " "',
        ["a", " a"],
        ["b"],
    ),
    "schema": ('start: "x=" %json {\n "type": "object", "properties": {"a": {"const": 1}},\n'
        ' "required": ["a"], "additionalProperties": false }', ['x={"a":1}', 'x={"a": 1}'], ["x={}", "x="]),
    "two schemas": ('start: %json {"const": 1} "," %json {"const": 2}', ["1,2"], ["1,1"]),
    "substrings": ('start: %regex {"substring_chars": "abc"}', ["", "b", "bc", "abc"], ["ac", "abcd"]),
    "substrings of chunks": ('start: %regex {"substring_chunks": ["a b", " c"]}',
        ["a b", "a b c", " c"], ["b c"]),
    "substrings of words": ('start: %regex {"substring_words": "it\'s a_1,  ok"}',
        ["it'", "'s a_1", "a_1,  ok", ",", ""], ["it's a", "1,", ", ", "it s"]),
    "substrings in a terminal": (
        'start: A\nA: "<" %regex {"substring_chars": "abc"} ">"', ["<bc>", "<>"], ["<ac>"]),
    "dots of groups": ("start: /(?s:.).(?-s:.)/s", ["\n\na", "aaa"], ["\n\n\n", "aa"]),
    "dots of nested groups": ("start: /(?s:(.)[.])./", ["\n.a"], ["\n.\n", "\naa"]),
    "dots of the whole": ("start: /(?s)./", ["\n"], [""]),
    "not, between": ('start: A\nA: "<" ~/a*/ ">" | ~"x" "!"', ["<b>", "y!", "xx!"], ["<a>", "<>", "x!"]),
    "not, repeated": ('start: A\nA: ~/(?s:.*)b(?s:.*)/+ "b"', ["b", "ab", "aab"], ["abb", "a"]),
    "names with hyphens": ('start: an-a |a-b->x\nan-a: "1"\na-b: "2"', ["1", "2"], ["12"]),
    "schema without blanks": (
        'start: %json {"items": {"const": 1}, "type": "array", "x-guidance": {"whitespace_flexible": false}}',
        ["[1,1]"], ["[1, 1]"]),
    "schema with spaces": (
        'start: %json {"required": ["a"], "properties": {"a": {"items": {"const": 1}, "type": "array"}},'
        '"x-guidance": {"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",'
        '"coerce_one_of": true}}',
        ['{"a": [1, 1], "b": {"c": []}}'], ['{"a":[1, 1]}', '{"a": [1,1]}', '{"a": [1], "b": {"c":[]}}']),
    "schema with lines": (
        'start: %json {"items": {"const": 1}, "type": "array", "x-guidance": {"whitespace_flexible": true}}',
        ["[\n  1,\n  1\n]", "[1,1]"], ["[1,,1]"]),
    "lenient schema": ('start: %json {"format": "regex", "type": "string", "x-guidance": {"lenient": true}}',
        ['"("'], ["1"]),
    "imports": ("%import common.INT\n%import common.WS -> BLANK\n%import common (CNAME, WORD)\n"
        'start: CNAME BLANK INT WORD', ["a_1 12x"], ["1 12x", "a_1 x"]),
    "lazy": ('start: a "b"\na[lazy]: /[ab]+b/', ["abb", "aabb", "bbb"], ["ab", "abab", "aabbb"]),
    "suffix": ('start: a "c"\na[suffix="b"]: /[abc]*/', ["bc", "acbc"], ["b", "bbc", "abcbc"]),
    "suffix by name": ('start: a "c"\na[suffix = B]: /[abc]*/\nB: "b" /a?/', ["bc", "abc"], ["bac", "c"]),
    "lazy, again and again": ("start: line+\nline[lazy]: /[ab]*c/", ["c", "acbc"], ["", "a", "ca"]),
    "lazy, and what may stand there": ('start: a "a" | T\na[lazy]: /[abc]*c/\nT: /[abc]*/',
        ["", "ab", "bca"], ["c", "cb", "caa"]),
    "lazy, where nothing else may stand": ('start: "a" z | "b" T\nz[lazy]: /[abc]*c/\nT: /[abc]+/',
        ["ac", "abc", "bcc"], ["acc", "ab"]),
    "lazy behind equal beginnings": ('start: "a" z | /[a]/ T\nz[lazy]: /[abc]*c/\nT: /[abc]+/',
        ["ac", "aab"], ["acc", "acb"]),
    "of two lazy ones the shorter": ('start: a "1" | b "2"\na[lazy]: /[abc]*b/\nb[lazy]: /[abc]*bc/',
        ["b1", "acb1"], ["bc2", "acbc2", "bc1"]),
    "of two lazy ones each": ('start: a "1" | b "2"\na[lazy]: /[abc]*bb/\nb[lazy]: /[abc]*ab/',
        ["bb1", "ab2", "bab2"], ["abb1", "ab1"]),
    "lazy, in a row": ("start: a T\na[lazy]: /[abc]*c/\nT: /[ab]*/", ["c", "acab"], ["ab", "cc"]),
    "lazy, empty": ('start: a "b"\na[lazy]: /a*/', ["b"], ["ab"]),
    "calls in text": (
        'start: (x | y)* TEXT\nTEXT: /(?s:.)*/\nx_head[lazy]: TEXT "<f"\n'
        'x: x_head "=x>" %json {"type": "null"} "</f>"\n'
        'y_head[lazy]: TEXT "<f"\ny: y_head "=y>" /[0-9]+/ "</f>"',
        ["", "a<", "a<f=x>null</f>", "<f=y>12</f> b <f=x>null</f>\n"], ["<f", "a<f=z>", "<f=y>x</f>"]),
    "and of automata": ('start: A\nB: ~/a/\nC: ~/aa/\nA: B & /a*/ & C', ["", "aaa"], ["a", "aa", "b"]),
    "names that differ in a bar": ('start: a_b ab\na_b: "1"\nab: "2"', ["12"], ["11"]),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars(name: str) -> None:
    text, good, bad = GRAMMARS[name]
    found = grammar_of(text)
    assert [each for each in good if not found.matches(each)] == []
    assert [each for each in bad if found.matches(each)] == []


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ('start: "a" x', 1, 12, "x is not defined"),
        ('start: "a"\nstart: "b"', 2, 1, "start is defined twice"),
        ('start "a"', 1, 7, "expected : after start"),
        ('start: "a', 1, 8, "expected a string in quotes"),
        ('start: "\\ud800"', 1, 8, "expected a string with JSON's escapes"),
        ("start: /a", 1, 8, "expected a regular expression that ends in its line"),
        ("start: /(/", 1, 8, "regex"),
        ("start: /a/m", 1, 8, "expected the flags i and s, got m"),
        ("start: /[^a]/i", 1, 8, "expected classes of at most"),
        ('start: ("a"', 1, 12, "expected ) to close the group of line 1, column 8"),
        ('start: "a"\n  }', 2, 3, "expected a rule, a terminal or a directive"),
        ('start: "a"{3,2}', 1, 11, "expected the second bound at or above the first"),
        ('start: "a"{}', 1, 11, "expected a repetition"),
        ('start: "b".."a"', 1, 8, "expected a range of characters"),
        ('start[capture]: "a"', 1, 7, "expected lazy or suffix="),
        ('start[lazy, capture]: "a"', 1, 11, "expected ] to close the attribute, got ','"),
        ('start[suffix=]: "a"', 1, 14, "expected a terminal after suffix=, got ']'"),
        ('start: A\nA[lazy]: "a"', 2, 2, "expected : after A, got '['"),
        ('start: a\na[lazy]: b\nb: "x"', 2, 10, "expected a terminal within a terminal, got the rule b"),
        ('start: a\n\na[lazy]: "b"\n%ignore " "', 3, 1, "expected no %ignore together with lazy rules"),
        ('start: a | %json {}\na[lazy]: "b"', 2, 1, "expected only terminals where the lazy rule a may"),
        ('start.2: "a"', 1, 6, "priorities are not supported"),
        ("start: @other", 1, 8, "expected the name of another grammar (no grammar has one), got @other"),
        ("start: @1", 1, 8, "expected a grammar as @name"),
        ('start: a "b"\na[stop="b"]: /.*/', 2, 3, "stop= would remove generated text"),
        ("start: A\nA: B & /a/\nB: ~/b/", 2, 4, "expected a terminal that is defined above, got B"),
        ("start: ~/a/", 1, 8, "~ can only combine the parts of a terminal"),
        ("start: /a/ & /b/", 1, 12, "& can only combine the parts of a terminal"),
        ('start: A\nA: b\nb: "x"', 2, 4, "expected a terminal within a terminal, got the rule b"),
        ("start: A\nA: %json {}", 2, 4, "%json is not allowed in a terminal"),
        ("start: A\nA: <[1]>", 2, 4, "expected text within a terminal, got a token"),
        ('start: A\nA: "x" B\nB: A', 2, 1, "the terminal A contains itself"),
        ('start: %json {"type": 5}', 1, 8, "type"),
        ('start: %json {"x-guidance": 1}', 1, 8, "x-guidance: expected an object, got 1"),
        ('start: %json {"x-guidance": {"fast": 1}}', 1, 8, "x-guidance: expected only keys that are"),
        ('start: %json {"x-guidance": {"lenient": 1}}', 1, 8, "x-guidance.lenient: expected true or false"),
        ('start: %json {"x-guidance": {"key_separator": ""}}', 1, 8, "x-guidance: expected the separators"),
        ('start: A\nA: %regex {"substring_chars": "a"} & /a/', 2, 4, "expected parts without %regex"),
        ("start: /a(?s)./", 1, 8, "regex: expected (?s) at the beginning, or as (?s:...)"),
        ("start: %json [1]", 1, 14, "expected a JSON object"),
        ('start: %regex {"substring_words": 1}', 1, 8, "expected substring_chars, substring_words or"),
        ('start: %regex {}', 1, 8, "expected substring_chars, substring_words or substring_chunks"),
        ("start: <a>", 1, 8, "can only be looked up in a tokenizer"),
        ("start: <[a]>", 1, 8, "expected token ids"),
        ("start: <[^*]>", 1, 8, "expected token ids"),
        ('%declare A\nstart: "a"', 1, 1, "expected %ignore, %import or %llguidance"),
        ("%import common.WHAT\nstart: WHAT", 1, 9, "expected one of DIGIT"),
        ('%llguidance {"no_forcing": true}\nstart: "a"', 1, 1, "expected no option but allow_initial_skip"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_with_its_place(
    text: str, line: int, column: int, message: str
) -> None:
    with pytest.raises(GrammarError) as error:
        parse_lark(text)
    assert message in str(error.value)
    assert (error.value.line, error.value.column) == (line, column)


def several(*grammars: dict[str, object]) -> str:
    return json.dumps({"grammars": grammars})


LIST = {"lark_grammar": 'start: "[" @item ("," @item)* "]"', "name": "my-list"}
ITEM = {"lark_grammar": 'start: @my-list -> it | @number\n%ignore "_"', "name": "item"}
ONES = {"type": "array", "items": {"const": 1}, "x-guidance": {"whitespace_flexible": False}}
NUMBER = {"json_schema": ONES}


def test_grammars_that_name_each_other() -> None:
    text = several(LIST, ITEM, {**NUMBER, "name": "number"})
    found = grammar_of("\n" + text)
    assert is_lark(text)
    for one in ("[[1]]", "[[[1,1]],[1]]", "[[1]_,[[]]]"):
        assert found.matches(one)
    for one in ("[]", "[1]", "[[1, 1]]", "[[1]", "[[1] ]"):
        assert not found.matches(one)
    assert grammar_of(several({**NUMBER, "name": "number"}, LIST, ITEM)).matches("[1,1]")
    ordered = {"properties": {"a": {"const": 1}, "b": {}}, "required": ["a", "b"], "type": "object"}
    for any_order in (False, True):
        rules = parse_lark(several({"json_schema": ordered}), any_order=any_order)
        assert Grammar.from_rules(rules).matches('{"b": 1, "a": 1}') == any_order


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "grammar: is not JSON"),
        ('{"grammars": []}', "grammar.grammars: expected a list that is not empty"),
        ('{"grammars": [1]}', r"grammars\[0\]: expected an object"),
        ('{"grammars": [{"json_schema": {}}], "max": 3}', "grammar: expected only keys .* got 'max'"),
        (several({"name": "a"}), r"grammars\[0\]: expected json_schema"),
        (several({"json_schema": {}, "lark_grammar": "start: /a/"}), r"grammars\[0\]: .* got 'json_schema'"),
        (several({"lark_grammar": 3}), r"grammars\[0\].lark_grammar: expected text"),
        (several(ITEM, ITEM), r"grammars\[1\].name: expected a name that no other grammar has, got 'item'"),
        (several(LIST), r"grammars\[0\].lark_grammar: line 1, column 12: expected the name .* got @item"),
        (several({"json_schema": {"items": {"type": 5}}}), r"grammars\[0\].json_schema: #/items/type: "),
        (several(NUMBER, {"lark_grammar": "start: A\nA: @a"}), r"grammars\[1\].* expected text within a t"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_several_grammars_has_its_path(text: str, message: str) -> None:
    with pytest.raises(GrammarError, match="^" + message):
        parse_lark(text)


def test_ids_that_are_left_out_and_any_id() -> None:
    assert "!<[2]>" in grammar_of("start: <[^2]>").to_gbnf()
    assert grammar_of("start: <[^1-3,5]> <[7]>").program.token_sets == (
        Tokens((1, 2, 3, 5), negated=True),
        Tokens((7,)),
    )
    assert grammar_of("start: <[*]>").program.token_sets == (Tokens((), negated=True),)


def test_a_grammar_needs_a_start() -> None:
    with pytest.raises(GrammarError, match="expected a rule start, got a"):
        parse_lark('a: "x"')
    with pytest.raises(GrammarError, match="no text matches the rule start"):
        grammar_of('start: "a" start')


def test_groups_that_are_nested_too_deeply_are_refused() -> None:
    with pytest.raises(GrammarError, match="expected at most 60 groups"):
        parse_lark("start: " + "(" * 100 + '"a"' + ")" * 100)


def test_the_header_tells_it_from_gbnf_and_tokens_are_looked_up() -> None:
    assert is_lark("\n%llguidance {}\nstart: x") and not is_lark('root ::= "%llguidance"')
    tokenizer = TokenizerBridge.from_gguf(demo.STORY)
    eos = tokenizer.eos_id or 0
    text = f'%llguidance {{}}\nstart: "a" ({tokenizer.token_text(eos)} | <[5-7]>)'
    state = Constraints(tokenizer).new(SamplerConfig(grammar=text))
    assert state is not None and not state.allows_token(eos) and not state.allows_token(6)
    named = Constraints(tokenizer).new(
        SamplerConfig(grammar=several(LIST, ITEM, {**NUMBER, "name": "number"}))
    )
    assert named is not None and named.grammar.matches("[[1]]")
    state.advance(tokenizer.encode("a", add_special=False)[-1])
    assert state.allows_token(eos) and state.allows_token(6) and not state.allows_token(8)
    assert EngineConfig(sampler=SamplerConfig(grammar=text)).sampler.grammar == text
