"""GBNF: what is read, what is refused and where, and what is printed."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from oxillama.errors import GrammarError
from oxillama.text.grammar import Grammar, JsonSchemaCompiler, parse_gbnf, print_gbnf, structural_tag_rules
from oxillama.text.grammar.rules import Alt, Chars, Dfa, Ref, Repeat, Rules, Seq, Text, Tokens
from tests.support import vocabularies
from tests.support.paths import DATA
from tests.text.tokenizer.test_tokenizer import make

VECTORS = json.loads((DATA / "grammar_vectors.json").read_text())


def root_of(text: str) -> object:
    return parse_gbnf(f"root ::= {text}").rules["root"]


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ('"ab\\n\\x41\\u00e9\\U0001F642\\\\\\"\\[\\]"', Text('ab\nAé🙂\\"[]')),
        ('""', Text("")),
        ("[a-cx]", Chars(((97, 99), (120, 120)))),
        ("[b-da-b]", Chars(((97, 100),))),
        ("[a-]", Chars(((45, 45), (97, 97)))),
        ("[\\]\\-]", Chars(((45, 45), (93, 93)))),
        ("[^a]", Chars(((0, 96), (98, 0x10FFFF)))),
        ("[ぁ-ゟ]", Chars(((0x3041, 0x309F),))),
        ("[\\x00-\\U0010FFFF]", Chars(((0, 0x10FFFF),))),
        ("[]", Chars(())),
        (".", Chars(((0, 0x10FFFF),))),
        ("<[12]>", Tokens((12,))),
        ("!<[12]>", Tokens((12,), True)),
        ('"a"*', Repeat(Text("a"), 0, None)),
        ('"ab"+', Repeat(Text("ab"), 1, None)),
        ('"a"?', Repeat(Text("a"), 0, 1)),
        ('"a"{3}', Repeat(Text("a"), 3, 3)),
        ('"a" { 3 , }', Repeat(Text("a"), 3, None)),
        ('"a"{0,100000}', Repeat(Text("a"), 0, 100000)),
        ('"a"?*', Repeat(Repeat(Text("a"), 0, 1), 0, None)),
        ('"a" "b" | "c"', Alt((Seq((Text("a"), Text("b"))), Text("c")))),
        ('("a"\n # more\n "b")', Seq((Text("a"), Text("b")))),
        ('"a" |\n "b"', Alt((Text("a"), Text("b")))),
        ('"a" | ', Alt((Text("a"), Seq(())))),
        ("", Seq(())),
    ],
)
def test_an_item_is_read(text: str, node: object) -> None:
    assert root_of(text) == node


def test_a_grammar_is_read() -> None:
    text = '# first\nroot ::=\n  some-Thing2 # refers\r\n\r\nsome-Thing2 ::= "a"\r\n'
    assert parse_gbnf(text).rules == {"root": Ref("some-Thing2"), "some-Thing2": Text("a")}
    assert parse_gbnf('a ::= b\nb ::= "x"', root="b").root == "b"


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ('root ::= "a', 1, 10, "the literal is not closed"),
        ("root ::= [a", 1, 10, "the class is not closed"),
        ('root ::= ("a"', 1, 14, r"expected \) to close the group of line 1, column 10, got the end"),
        ('root ::= "a")', 1, 13, "expected an item or the end of the line, got '\\)'"),
        ('root ::= "a"\nroot ::= "b"', 2, 1, "rule root is defined twice"),
        ('root ::= "a"\n\n  x "b"', 3, 5, "expected ::= after the rule name x"),
        ('root ::= "a" x', 1, 14, "rule x is not defined"),
        ('root ::= "\\q"', 1, 11, r"expected an escape as .* in the literal"),
        ('root ::= "\\u12"', 1, 11, "expected an escape as .* in the literal"),
        ('root ::= "\\U00110000"', 1, 11, "expected a code point up to 10FFFF"),
        ('root ::= "\\uD800"', 1, 11, "expected a character, got the surrogate D800"),
        ("root ::= [z-a]", 1, 11, "expected a range in ascending order, got z-a"),
        ("root ::= * ", 1, 10, r"expected an item before \*"),
        ('root ::= "a"{,3}', 1, 14, "expected a number"),
        ('root ::= "a"{3,2}', 1, 13, r"got \{3,2\}"),
        ('root ::= "a"{9999999999}', 1, 14, "expected at most 1000000000 repetitions"),
        ('root ::= "a"{3', 1, 15, "expected } to close the repetition, got the end"),
        ("root ::= <[x]>", 1, 10, r"expected a token as <text> or <\[123\]>"),
        ("root ::= <a", 1, 10, r"expected a token as <text> or <\[123\]>"),
        ("root ::= <think>", 1, 10, "none was given"),
        ("root ::= " + "(" * 200, 1, 70, "groups inside each other"),
        ("::=", 1, 1, "expected a rule name"),
    ],
)
def test_a_fault_is_placed(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        parse_gbnf(text)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_a_grammar_without_its_root_is_refused() -> None:
    with pytest.raises(GrammarError, match="expected a rule root, got a"):
        parse_gbnf('a ::= "b"')


def test_tokens_are_looked_up_by_their_text() -> None:
    tokenizer = make("byte_pair", pre="qwen2")
    control = next(id for id in range(tokenizer.n_vocab) if tokenizer.is_control(id))
    spelled = tokenizer.token_text(control)
    grammar = Grammar.parse(f'root ::= "a" {spelled} !{spelled}', tokenizer=tokenizer)
    assert grammar.program.token_sets == (Tokens((control,)), Tokens((control,), True))
    with pytest.raises(GrammarError, match="expected the text of one token"):
        Grammar.parse("root ::= <no such token>", tokenizer=tokenizer)
    assert vocabularies.CONTROL


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_texts_that_llama_cpp_accepts_and_refuses(case: dict) -> None:
    grammar = Grammar.parse(case["grammar"])
    printed = Grammar.parse(grammar.to_gbnf())
    for text in case["accepted"]:
        assert grammar.matches(text) and printed.matches(text), text
    for text in case["refused"]:
        assert not grammar.matches(text) and not printed.matches(text), text


def test_what_is_printed_is_read_as_the_same() -> None:
    rules = Rules(
        "the root",
        {
            "the root": Seq((Ref("the:root"), Repeat(Repeat(Text("a^]\\"), 0, 1), 2, 5), Alt(()))),
            "the:root": Alt((Chars(((0, 96), (98, 0x10FFFF))), Seq(()), Chars(((94, 94),)), Tokens((1, 2)))),
        },
    )
    text = print_gbnf(rules)
    assert print_gbnf(parse_gbnf(text)) == text
    assert parse_gbnf(text).root == "root"


def test_a_dfa_is_printed_as_rules() -> None:
    dfa = Dfa((((97, 97, 1),), ((98, 99, 0), (100, 100, 1))), frozenset({1}))
    grammar = Grammar.from_rules(Rules("root", {"root": Seq((dfa, Text("!")))}))
    printed = Grammar.parse(grammar.to_gbnf())
    for text in ("a!", "addba!", "acad!"):
        assert grammar.matches(text) and printed.matches(text)
    for text in ("!", "ab!", "a"):
        assert not grammar.matches(text) and not printed.matches(text)


@settings(max_examples=300)
@given(st.text(alphabet='ro:=("ab[]^-\\xu0{},*+?|.<!>#\n 1', max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        rules = parse_gbnf("root ::= " + text)
    except GrammarError as error:
        assert error.line is not None
    else:
        assert parse_gbnf(print_gbnf(rules)).rules.keys() >= {"root"}


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"maxProperties": 3},
        {"maxProperties": 2, "required": []},
        {"minProperties": 2, "additionalProperties": False},
    ],
)
def test_properties_in_any_order_are_printed_set_by_set(words: dict[str, Any]) -> None:
    schema = {"properties": {name: {"const": 1} for name in "abcd"}, "required": ["b", "d"], **words}
    compiler = JsonSchemaCompiler(any_order=True)
    grammar = Grammar.from_json_schema({"type": "object", **schema}, compiler=compiler)
    if words.get("maxProperties"):  # names that are not known are told apart by their texts
        with pytest.raises(GrammarError, match=r"^#: GBNF: has no words for members"):
            grammar.to_gbnf()
        schema["additionalProperties"] = False
        grammar = Grammar.from_json_schema({"type": "object", **schema}, compiler=compiler)
    printed = Grammar.parse(grammar.to_gbnf())
    verdicts = set()
    for n in range(5):
        for names in itertools.product("abcdx", repeat=n):
            text = "{" + ", ".join(f'"{name}": 1' for name in names) + "}"
            assert printed.matches(text) == grammar.matches(text), text
            verdicts.add((n, grammar.matches(text)))
    assert {(2, True), (2, False), (4, False)} <= verdicts


def test_too_many_sets_of_properties_are_an_error_that_names_the_option() -> None:
    schema = {"type": "object", "properties": {f"p{i}": True for i in range(11)}}
    grammar = Grammar.from_json_schema(schema, compiler=JsonSchemaCompiler(any_order=True))
    with pytest.raises(GrammarError, match="any_order=False keeps"):
        grammar.to_gbnf()
    assert Grammar.from_json_schema(schema).to_gbnf()


def test_what_gbnf_has_no_words_for_is_an_error_with_its_path() -> None:
    counted = {"items": {"type": "string", "format": "email"}}
    with pytest.raises(GrammarError, match=r"^#/items: .*expected an automaton of at most \d+ states"):
        Grammar.from_json_schema(counted).to_gbnf()
    different = {"properties": {"a": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(GrammarError, match=r"^#/properties/a: GBNF: has no words for members"):
        Grammar.from_json_schema(different).to_gbnf()
    content = {"type": "json_schema", "json_schema": different}
    tag = structural_tag_rules({"format": {"type": "tag", "begin": "<", "content": content, "end": ">"}})
    with pytest.raises(GrammarError, match=r"^format\.content\.json_schema: #/properties/a: GBNF: has no"):
        print_gbnf(tag)
    for ids in ((1, 2), ()):
        with pytest.raises(GrammarError, match=f"^GBNF: has no words for any token but {len(ids)} others$"):
            print_gbnf(Rules("root", {"root": Tokens(ids, negated=True)}))
