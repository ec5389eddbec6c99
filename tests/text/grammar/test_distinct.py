"""Members that are told apart: masks against all texts written out, and JSON values by what they mean."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import permutations, product

import jsonschema
import pytest

from oxillama._kernels.grammar.json_values import fingerprint
from oxillama.errors import GrammarError
from oxillama.text.grammar import Grammar, GrammarState, JsonSchemaCompiler, Vocabulary
from oxillama.text.grammar.rules import Alt, Distinct, Member, Node, Ref, Repeat, Rules, Seq, Text
from tests.support.automata import allowed
from tests.support.interpreter import COUNTS_CALLS

COMMA = Seq((Text(","), Repeat(Text(" "), 0, 1)))
VALUES = [
    '"a"', '"ab"', '"b"', '""', '"a\\""', "1", "12", "121", "true", "null", "[1]", '[1, "a"]', '{"a":1}',
]  # fmt: skip
PIECES = [
    b"[1,1", b'["a","a"', b"[[1,1]", b"[[1],[1]", b"[1,12]", b"[[12,1],[1", b"[1,2,1", b"],[1,1", b"],[1,2",
    b"[", b"]", b",", b" ", b", ", b'"', b'",', b'", "', b'","', b'"a"', b'"a",', b'a"', b'a",', b'"]',
    b'"ab', b'"b"]', b'""', b'"",', b'b",', b"1", b"12", b"2", b"1,", b",1", b"1,12", b"1,1", b"1]", b"2,1,",
    b", 1", b"true", b"t", b"rue", b"true,", b", true", b",null", b" null", b"nul", b"l", b" ", b"[1", b"[[1",
    b"[1]", b"[1],", b"]]", b"]", b'{"', b'":1}', b'"}', b"}", b'a":', b"{", b":", b'\\"', b'a\\""', b"\\",
    b"1]]", b"[[", b',"a', b', "ab', b'","ab"]', b"e", b"tr", b"n", b'"a"]', b'"a","', b",12", b" 12]", b'["',
    b"1,1]", b"1, 1",
]  # fmt: skip
CHARACTERS = [char.encode() for char in sorted(set("".join(VALUES)))]
TOKENS = [*dict.fromkeys([*PIECES, *CHARACTERS]), b"<end>"]
END = len(TOKENS) - 1
VOCABULARY = Vocabulary(TOKENS, {END}, {END})


def bracketed(node: Node, brackets: str = "[]") -> Node:
    return Seq((Text(brackets[0]), node, Text(brackets[1])))


def spelled(value: str) -> Node:
    """The text of a value, with a space or none behind each comma."""
    parts = value.split(", ")
    return Seq(tuple(node for part in parts for node in (COMMA, Text(part)))[1:])


def commas(parts: Sequence[str]) -> list[str]:
    """The parts with each comma followed by a space or by none."""
    found = [parts[0]]
    for part in parts[1:]:
        found = [text + comma + part for text in found for comma in (",", ", ")]
    return found


def texts(values: Sequence[str], least: int, most: int) -> set[str]:
    """All spellings of the lists of ``least`` to ``most`` of the values."""
    return {
        f"[{text}]"
        for n in range(least, most + 1)
        for chosen in permutations(values, n)
        for spelling in product(*(commas(value.split(", ")) for value in chosen))
        for text in commas(spelling)
    }


def distinct(node: Node, least: int, most: int) -> Node:
    """A list of values that differ."""
    return bracketed(Distinct(((Member(node, "text"),),), (True,), COMMA, least, most))


def expected_tokens(language: set[str], so_far: str) -> set[int]:
    after = {text[len(so_far) :] for text in language if text.startswith(so_far)}
    return {
        i
        for i, token in enumerate(TOKENS)
        if ("" in after if i == END else any(rest.startswith(token.decode()) for rest in after))
    }


def follow(grammar: Grammar, language: set[str], rng: random.Random) -> None:
    """Take allowed tokens at random, and compare every mask on the way."""
    state, so_far = GrammarState(grammar, VOCABULARY), ""
    while True:
        expected = expected_tokens(language, so_far)
        assert set(allowed(state.mask())) == expected, so_far
        assert {i for i in range(len(TOKENS)) if state.allows_token(i)} == expected, so_far
        going_on = sorted(expected - {END})
        if not going_on:
            assert so_far in language
            return
        token = rng.choice(going_on)
        state.advance(token)
        so_far += TOKENS[token].decode()
        assert state.is_complete == (so_far in language)


@pytest.mark.parametrize("seed", range(12))
def test_masks_hold_what_can_still_become_distinct_items(seed: int) -> None:
    rng = random.Random(seed)
    values = rng.sample(VALUES, rng.randint(2, 5))
    most = rng.randint(1, min(4, len(values)))
    least = rng.randint(1, most)
    root = distinct(Alt(tuple(map(spelled, values))), least, most)
    grammar = Grammar.from_rules(Rules("root", {"root": root}))
    language = texts(values, least, most)
    for _ in range(4):
        follow(grammar, language, rng)


@pytest.mark.parametrize("seed", range(8))
def test_masks_hold_the_members_that_are_left(seed: int) -> None:
    rng = random.Random(seed)
    names = rng.sample(['"a":1', '"ab":1', '"b":1', '"a\\"":1', '"":1'], rng.randint(2, 5))
    required = rng.randint(0, len(names))
    least = rng.randint(max(1, required), len(names))
    members = tuple(Member(Text(name), "mark", mark=i) for i, name in enumerate(names))
    node = Distinct((members,), (True,), COMMA, least, len(names), required)
    grammar = Grammar.from_rules(Rules("root", {"root": bracketed(node)}))
    language = {
        text
        for text in texts(names, least, len(names))
        if all(f"[{name}" in text or f",{name}" in text or f", {name}" in text for name in names[:required])
    }
    for _ in range(4):
        follow(grammar, language, rng)


@pytest.mark.parametrize("n_kinds", [1, 2, 3])
@pytest.mark.parametrize("seed", range(16))
def test_masks_hold_what_leaves_room_for_the_kinds_that_must_come(seed: int, n_kinds: int) -> None:
    rng = random.Random(seed)
    values = rng.sample(VALUES[:10], 5)
    most = rng.randint(1, 4)
    least = rng.randint(0, most)
    schema: dict[str, object] = {
        "type": "array",
        "uniqueItems": True,
        "items": {"enum": [json.loads(value) for value in values]},
    }
    schema |= {"maxItems": most} if rng.random() < 0.7 else {}
    schema |= {"minItems": least} if rng.random() < 0.7 else {}
    left, kinds, bounds = list(values), [], []
    for _ in range(n_kinds):
        wanted = set(rng.sample(left, rng.randint(1, 4 // n_kinds)))
        left = [value for value in left if value not in wanted]
        most_of_kind = rng.randint(1, 5)
        least_of_kind = rng.randint(0, min(most_of_kind, len(wanted), most))
        kind = {"contains": {"enum": [json.loads(value) for value in wanted]}, "minContains": least_of_kind}
        kind |= {"maxContains": most_of_kind} if rng.random() < 0.7 else {}
        kinds.append(kind)
        bounds.append((wanted, least_of_kind, most_of_kind if "maxContains" in kind else 5))
    schema |= kinds[0] if n_kinds == 1 else {"allOf": kinds}
    counts = range(least if "minItems" in schema else 0, (most if "maxItems" in schema else 5) + 1)
    language = {
        "[" + ",".join(chosen) + "]"
        for n in counts
        for chosen in permutations(values, n)
        if all(low <= len(wanted.intersection(chosen)) <= high for wanted, low, high in bounds)
    }
    if not language:
        with pytest.raises(GrammarError, match="no value meets"):
            Grammar.from_json_schema(schema)
        return
    grammar = Grammar.from_json_schema(schema, compiler=JsonSchemaCompiler(whitespace="compact"))
    for _ in range(4):
        follow(grammar, language, rng)


NUMBERS = Alt((Text("1"), Text("12"), Text("2")))


def test_arrays_that_begin_within_a_token() -> None:
    more = Repeat(Seq((COMMA, Ref("inner"))), 0, 1)
    rules = {"root": bracketed(Seq((Ref("inner"), more))), "inner": distinct(NUMBERS, 1, 3)}
    grammar = Grammar.from_rules(Rules("root", rules))
    lists = texts(("1", "12", "2"), 1, 3)
    language = {f"[{text}]" for n in (1, 2) for some in product(lists, repeat=n) for text in commas(some)}
    rng = random.Random(3)
    for _ in range(4):
        follow(grammar, language, rng)


def test_arrays_of_arrays_whose_items_differ() -> None:
    rules = {"root": distinct(Ref("inner"), 1, 2), "inner": distinct(NUMBERS, 1, 2)}
    grammar = Grammar.from_rules(Rules("root", rules))
    lists = [f"[{', '.join(chosen)}]" for n in (1, 2) for chosen in permutations(("1", "12", "2"), n)]
    language = texts(lists, 1, 2)
    rng = random.Random(1)
    for _ in range(12):
        follow(grammar, language, rng)


def unique(items: object) -> dict[str, object]:
    return {"type": "array", "uniqueItems": True, "items": items}


OPEN: dict[str, object] = {"type": "object"}
WITHIN: dict[str, object] = {
    "arrays": unique(unique(OPEN)),
    "arrays of any length": unique({"type": "array", "items": unique(OPEN)}),
    "objects": unique({"type": "object", "additionalProperties": unique(OPEN)}),
    "mixed": unique(unique({"type": ["integer", "object"]})),
    "thrice": unique(unique(unique(OPEN))),
    "recursive": unique({"$ref": "#"}),
    "recursive, with objects": unique({"anyOf": [{"$ref": "#"}, {"type": ["object", "null"]}]}),
}
SMALL = ["[", "]", "{", "}", '"', "a", "b", ":", ",", "1", ".0", "]]", "],[", '{"', '":', "},{", "{}", "}]"]
SMALL += ['"a":1', '{"a":1,"b":1}', '{"b":1,"a":1.0}', "[[{", "[{}]", "[{},", ']},{"', "null"]
FEW = Vocabulary([*(text.encode() for text in SMALL), b"<end>"], {len(SMALL)}, {len(SMALL)})


@pytest.mark.parametrize("schema", WITHIN.values(), ids=WITHIN)
def test_items_whose_own_items_differ(schema: dict[str, object]) -> None:
    """Texts may end where they are valid, and every mask is what its tokens' bytes say."""
    grammar = Grammar.from_json_schema(schema, compiler=JsonSchemaCompiler(whitespace="compact"))
    valid = jsonschema.Draft202012Validator(schema).is_valid
    rng, found = random.Random(7), {True: 0, False: 0}
    for _ in range(80):
        state, so_far = GrammarState(grammar, FEW), ""
        for _ in range(14):
            going_on = [i for i in allowed(state.mask()) if i < len(SMALL)]
            assert going_on == [i for i in range(len(SMALL)) if state.allows_token(i)]
            for text in (so_far + token for token in SMALL if token not in (".0", ",")):
                try:
                    expected = valid(json.loads(text))
                except ValueError:
                    continue
                found[expected] += 1
                assert grammar.matches(text) == expected, text
            if not going_on or state.is_complete:
                break
            token = rng.choice(going_on)
            state.advance(token)
            so_far += SMALL[token]
    assert min(found.values()) > 10


@pytest.mark.parametrize("table_bytes", [50_000, 48_000_000], ids=["moved", "kept"])
def test_values_that_are_nested_deep(table_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that are begun anew find what is open from the beginning."""
    monkeypatch.setattr("oxillama.text.grammar.constraint.TABLE_BYTES", table_bytes)
    state = GrammarState(Grammar.from_json_schema(WITHIN["arrays of any length"]), FEW)
    deep = [*(700 * ['{"', "a", '":']), "1", *(700 * ["}"])]
    for text in ("[", "[", "[", *deep, "]]", ",", "[", "[", *deep):
        state.advance(SMALL.index(text))
    assert {SMALL[i] for i in allowed(state.mask())} == {"]", ",", "],["}  # the same item does not end here


def test_numbers_of_any_exponent_are_compared() -> None:
    grammar = Grammar.from_json_schema(unique({"type": "array"}))
    nines, eights = "9" * 5000, "9" * 4999 + "8"
    assert grammar.matches(f"[[1e{nines}], [10e{nines}], [1e-{nines}]]")
    assert not grammar.matches(f"[[1e{nines}], [10e{eights}]]")
    assert not grammar.matches(f"[[1e-{nines}], [0.1e-{eights}]]")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('["a b"]', '["ab"]'), ("[1]", '["1"]'), ("[true]", '["True"]'), ("[1, 2]", "[12]"),
        ('["\\ud800"]', '["\\ud801"]'), ('{"a": 1}', '{"a": [1]}'), ("[1e10]", "[1e9]"), ("[null]", "[]"),
    ],
)  # fmt: skip
def test_values_that_differ_have_other_fingerprints(one: str, other: str) -> None:
    assert fingerprint(one.encode()) != fingerprint(other.encode())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1.0, "b": [2e1]}', '{"b":[20], "a":10e-1}'),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
        ("[-0]", "[0.0e5]"),
        ('["\\u0041\\n"]', '["A\\u000a"]'),
    ],
)
def test_values_that_are_equal_have_one_fingerprint(one: str, other: str) -> None:
    assert fingerprint(one.encode()) == fingerprint(other.encode())


def test_a_value_that_is_nested_too_deeply_is_an_error() -> None:
    grammar = Grammar.from_json_schema(unique({"type": "array"}))
    depth = 5000 if COUNTS_CALLS else 300_000
    with pytest.raises(GrammarError, match="nested too deeply"):
        grammar.matches(f"[{'[' * depth}{']' * depth}]")
