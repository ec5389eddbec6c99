"""Grammars in GBNF, regular expressions, JSON Schemas: compiled, then followed over a real vocabulary.

A random walk takes tokens that the masks allow; its text must be one that the grammar matches.
"""

from __future__ import annotations

import functools
import json
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from oxillama import demo
from oxillama.errors import GrammarError
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.grammar import Grammar, GrammarState, Vocabulary
from tests.fuzz.harness import Target
from tests.fuzz.mutate import INTEGERS, SkipInput, built, mutated, mutated_text, words

STEPS = 24


@functools.cache
def tokenizer() -> TokenizerBridge:
    return TokenizerBridge.from_gguf(demo.STORY)


@functools.cache
def vocabulary() -> Vocabulary:
    return Vocabulary.from_tokenizer(tokenizer())


def allowed(state: GrammarState) -> np.ndarray:
    """Ids of the tokens that a state's mask allows."""
    bits = np.unpackbits(state.mask().view(np.uint8), bitorder="little")
    assert not bits[vocabulary().n_vocab :].any(), "the mask allows ids outside the vocabulary"
    return np.flatnonzero(bits)


def walk(grammar: Grammar, seed: int) -> str | None:
    """Follows a grammar for some tokens; the text, if it came to an end."""
    rng, state = Random(seed), GrammarState(grammar, vocabulary())
    ends = vocabulary().end_ids
    for step in range(STEPS):
        ids = allowed(state)
        assert ids.size, f"nothing is allowed after {state.tokens}"
        can_end = [id for id in ids.tolist() if id in ends]
        assert bool(can_end) == state.is_complete, f"ends are {'' if can_end else 'not '}allowed, wrongly"
        others = [id for id in ids.tolist() if id not in ends]
        if can_end and (not others or rng.random() < 0.3 or step == STEPS - 1):
            state.advance(can_end[0])
            assert state.has_ended
            break
        token = rng.choice(others)
        assert state.allows_token(token), f"the mask allows {token}, the state does not"
        other = rng.randrange(vocabulary().n_vocab)
        assert state.allows_token(other) == (other in ids), f"mask and state differ on {other}"
        if rng.random() < 0.1:
            copy = state.fork()
            copy.advance(token)
            copy.rollback(1)
            assert (allowed(copy) == ids).all()
        state.advance(token)
    text = b"".join(tokenizer().token_bytes(id) for id in state.tokens if id not in ends)
    if not state.is_complete:
        return None
    if not grammar.program.token_sets:
        assert grammar.matches(text), f"does not match what it allowed: {text!r}"
    return text.decode("utf-8", "replace")


class GrammarTarget(Target):
    per_run = 120

    @abstractmethod
    def compiled(self, value: Any) -> Grammar:
        """The grammar of an input."""

    def run(self, value: Any) -> None:
        grammar = self.compiled(built(value["grammar"]))
        for seed in range(2):
            text = walk(grammar, seed)
            if text is not None:
                self.check(text)
        if not grammar.program.token_sets:
            grammar.matches("the fox")
        grammar.to_gbnf()

    def check(self, text: str) -> None:
        """Checks a text of the grammar by other means."""


GBNF = [
    'root ::= "yes" | "no"',
    'root ::= item+\nitem ::= "- " [^\\n]+ "\\n"',
    'root ::= "[" ws (val ("," ws val)*)? "]"\nval ::= "x" | root\nws ::= [ \\t]*',
    'root ::= [a-zA-Z0-9_]{2,5} ("." [\\x00-\\x7F])*  # a comment\n',
    'root ::= (expr "=" term "\\n")+\nexpr ::= term ([-+*/] term)*\nterm ::= "(" expr ")" | [0-9]+ | [a-z]\n',
    'root ::= <|im_end|> | <[5]> "a" | !<[7]>',
    'root ::= "\\u00e9" | [\\U0001F600-\\U0001F64F] | .',
    'root ::= a{3} | b{1,} | ""\na ::= b b?\nb ::= "q" a | "r"',
]
GBNF_WORDS = words(
    r"""
    root ::= a b item "x" "" [a-z] [^x] {2} {1,} {,3} {0,70000} | * + ? ( ) . <[5]> <[99999]> !<[5]>
    <|im_end|> # \x41 \n \U00110000 \uD800 {1000} [\x80-\xFF] [] [^] [z-a] \
    """
)
GBNF_WORDS += ["\n", "root root", "\na ::= ", "\nb ::= root"]
REGEXES = [
    "[a-c]{3}-\\d\\d", "^(?:yes|no)?$", "\\p{L}+ \\w*\\s?[^x-z]", "(a|b)*c{2,5}d+?",
    "\\u00e9|\\x41|\\cJ|[\\b]", "(?<year>\\d{4})-(0[1-9]|1[0-2])", "(?=a)ab|(?!x).y",
    "[\\p{Lu}--[A-C]]|[a&&b]", "^a|b$|\\bword\\B",
]  # fmt: skip
REGEX_WORDS = words(
    r"""
    \d \w \S \b \B (?: (?= (?! (?<= (?<! (?<n> \k<n> \1 ) ( [ ] [^ - {2} {0,1000} {3,2} {99999999999} * + ? |
    ^ $ . \p{L} \p{Script=Greek} \P{Nope} \u{1F600} \u{110000} \uD83D\uDE00 \ud800 \x4 \c \0 (?i) \
    """
)


@dataclass
class TextTarget(GrammarTarget):
    """Grammars that are written as texts.

    Attributes:
        texts: valid ones.
        words: that mean something.
        openings: of which thousands are a grammar, too.
        compile: makes a grammar of a text.
    """

    name: str
    texts: list[str]
    words: list[str]
    openings: list[str]
    compile: Callable[[Any], Grammar]

    def seeds(self) -> list[Any]:
        return [{"grammar": text} for text in self.texts]

    def mutate(self, value: Any, rng: Random) -> Any:
        text = value["grammar"]
        if not isinstance(text, str) or rng.random() < 0.05:
            return {"grammar": {"@repeat": [rng.choice(self.openings), 5000]}}
        if rng.random() < 0.1:
            text += "\n" + rng.choice(self.texts)
        return {"grammar": mutated_text(text, rng, self.words)}

    def compiled(self, value: Any) -> Grammar:
        return self.compile(value)


GBNF_OPENINGS = ["(", '"a" ', "a ::= b\n", "[", "(a", "!", '"a"?']
REGEX_OPENINGS = ["(", "a?", "[a-", "(a|", "(a{9}", "(?=a", "\\", "a{2}", "a|"]
TEXTS = (
    TextTarget(
        "gbnf", GBNF, GBNF_WORDS, GBNF_OPENINGS, lambda value: Grammar.parse(value, tokenizer=tokenizer())
    ),
    TextTarget("regex", REGEXES, REGEX_WORDS, REGEX_OPENINGS, Grammar.from_regex),
)


SCHEMAS: list[Any] = [
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name"],
        "additionalProperties": False,
    },
    {
        "type": "array",
        "items": {"enum": [1, "a", None, [], {}]},
        "minItems": 1,
        "maxItems": 3,
        "uniqueItems": False,
    },
    {"$defs": {"t": {"properties": {"left": {"$ref": "#/$defs/t"}}}}, "$ref": "#/$defs/t"},
    {"anyOf": [{"type": "number", "multipleOf": 0.5}, {"const": "x"}], "not": {"const": 2}},
    {"oneOf": [{"type": "string", "pattern": "^a+$"}, {"type": "string", "format": "date"}]},
    {"allOf": [{"minimum": 3}, {"exclusiveMaximum": 9.5}], "type": "integer"},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"maxProperties": 0}, "type": "object"},
    {"prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": False, "contains": {"const": True}},
    {"patternProperties": {"^x": {"type": "null"}}, "propertyNames": {"maxLength": 3}, "minProperties": 1},
    {"$id": "http://a.example/b", "$anchor": "x", "$ref": "#x", "$dynamicRef": "#n", "$dynamicAnchor": "n"},
    {
        "dependentSchemas": {"a": {"required": ["b"]}},
        "dependentRequired": {"b": ["c"]},
        "unevaluatedProperties": False,
    },
    {
        "definitions": {"a": {"type": "string"}},
        "items": [{"$ref": "#/definitions/a"}],
        "additionalItems": False,
    },
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": ["string", "null"], "format": "email"},
    True,
]
SCHEMA_KEYS = words(
    "$schema $id id $ref $anchor $defs definitions $dynamicRef $dynamicAnchor $recursiveRef $recursiveAnchor "
    "$vocabulary $comment type enum const multipleOf minimum maximum exclusiveMinimum exclusiveMaximum "
    "minLength maxLength pattern format items prefixItems additionalItems contains minContains maxContains "
    "minItems maxItems uniqueItems properties patternProperties additionalProperties propertyNames "
    "minProperties maxProperties required dependencies dependentRequired dependentSchemas allOf anyOf oneOf "
    "not if then else unevaluatedItems unevaluatedProperties contentEncoding contentMediaType contentSchema "
    "title description default examples deprecated readOnly"
)
SCHEMA_VALUES: list[Any] = [
    "#", "#/$defs/t", "#x", "#/items/0", "#/properties/a", "z", "http://[", "http://a.example/b#x",
    "urn:uuid:x", "//", "%", "#/%zz", "#/~2", "string", "number", "integer", "object", "array", "null",
    "boolean", "date", "date-time", "email", "ipv4", "ipv6", "uuid", "uri", "regex", "time", "duration",
    "hostname", "json-pointer", "(", "^a", "a{9}", "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#", "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema", ["a", "b"], ["a", "a"], {"a": {}}, {"$ref": "#"},
    {"type": "string"}, {"type": "integer"}, {"not": {}}, [True, False], {"@nest": ["items", 300, {}]},
    {"@nest": ["not", 300, {}]}, {"@nest": ["items", 5000, {}]}, {"@nest": ["a", 50, 1]},
    {"@nest": ["properties", 40, {}]}, [{"type": "string"}, {"minLength": 2}], 5, 3.5, 1e300, -0.0, 1e-300,
]  # fmt: skip


class SchemaTarget(GrammarTarget):
    name = "schema"

    def seeds(self) -> list[Any]:
        return [{"grammar": schema} for schema in SCHEMAS]

    def mutate(self, value: Any, rng: Random) -> Any:
        new = mutated(
            value, rng, keys=SCHEMA_KEYS, values=[*SCHEMA_VALUES, *INTEGERS], donors=self.seeds(), times=5
        )  # fmt: skip
        if not isinstance(new, dict) or "grammar" not in new:
            return value
        if rng.random() < 0.05 and not isinstance(new["grammar"], str):
            try:
                return {"grammar": mutated_text(json.dumps(new["grammar"]), rng)}
            except (ValueError, RecursionError):
                return new
        return new

    def compiled(self, value: Any) -> Grammar:
        if not isinstance(value, (dict, bool, str)):
            raise SkipInput
        try:
            return Grammar.from_json_schema(value)
        except GrammarError:
            return Grammar.from_json_schema(value, strict=False)

    def check(self, text: str) -> None:
        json.loads(text)
