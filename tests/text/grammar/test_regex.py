"""Regular expressions: against Python's `re` on all short texts, and what is refused."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from hypothesis import given, settings, strategies as st

from oxillama.errors import GrammarError
from oxillama.text.grammar import Grammar
from oxillama.text.grammar.codepoints import category, complement, contains, difference, union
from oxillama.text.grammar.dfa import all_but, automaton, language, meet, only
from oxillama.text.grammar.regex import parse_regex
from oxillama.text.grammar.rules import NEVER, Dfa, Rules
from tests.support.automata import accepts

TEXTS = ["".join(chars) for n in range(5) for chars in itertools.product("abc", repeat=n)]


def check(pattern: str, texts: list[str], python: str = "") -> Dfa:
    """What a pattern matches, as an expression and as an automaton, is what Python's `re` finds.

    Returns the automaton. ``python``: the pattern as Python writes it, if otherwise.
    """
    theirs = re.compile((python or pattern).replace("$", r"\Z"))
    search, whole = parse_regex(pattern, search=True), parse_regex(pattern, search=False)
    found = automaton(search)
    for text in texts:
        wanted = bool(theirs.search(text))
        assert language(search).accepts(text) == accepts(found, text) == wanted, (pattern, text)
        assert language(whole).accepts(text) == bool(theirs.fullmatch(text)), (pattern, text)
    return found


PATTERNS = [
    "", "a", "^a", "b$", "^$", "a|^b", "(^a|b)c$", "(?:a|b)*c", "^(?<name>ab?){2}$", "^a{2,3}b*$",
    "(ab|a){2,}", "^(a|b?c){1,3}$", "^(a?){3}$", "^(a*b?){2,}$", "^(a{2}){2,3}$", "^(ab?){0,2}c$", "^a{0}b$",
    "^a+?b??$", "[^a]", "^[a-b]+$", "^[^b-c]*$", r"^[\w]+$", "(a|)b|c(^|a)$", "^(a|b$)c?", "^(^a)?b",
    "(^a)?b(c$)?", "a^b", "a$b", "(a|b|)*$", "x{2", r"\x61\u0062", r"^\u{61}+$",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_what_python_finds(pattern: str) -> None:
    python = pattern.replace("?<", "?P<").replace(r"\u{61}", "a").replace("x{2", r"x\{2")
    found = check(pattern, TEXTS, python)
    absent = meet([], [found], least=1, most=3)
    for text in TEXTS:
        assert accepts(absent, text) == (not accepts(found, text) and 1 <= len(text) <= 3), text


@settings(deadline=None)
@given(
    st.recursive(
        st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "^", "$"]),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
            inner.map(lambda p: f"(?:{p})?" if "^" in p or "$" in p else f"(?:{p}){{0,2}}"),
            inner.map(lambda p: p if "^" in p or "$" in p else f"(?:{p})+"),
        ),
        max_leaves=6,
    )
)
def test_any_pattern_matches_what_python_finds(pattern: str) -> None:
    check(pattern, TEXTS)


def test_two_languages_meet() -> None:
    a, b = (automaton(parse_regex(p, search=True)) for p in ("a", "b$"))
    both, one, none = meet([a, b]), meet([a], [b]), meet([], [a, b])
    for text in TEXTS:
        has_a, ends_b = "a" in text, text.endswith("b")
        assert accepts(both, text) == (has_a and ends_b)
        assert accepts(one, text) == (has_a and not ends_b)
        assert accepts(none, text) == (not has_a and not ends_b)
    assert meet([a], [a]) == NEVER


def test_any_number_of_classes_of_characters_are_told_apart() -> None:
    letters = [chr(0x100 + i) for i in range(200)]
    automata = [automaton(parse_regex(letter, search=False)) for letter in letters]
    whole = automaton(parse_regex("|".join(letters), search=False))
    for i in (0, 63, 64, 199):
        dfa = meet([whole], automata[:i] + automata[i + 1 :])
        assert [letter for letter in letters if accepts(dfa, letter)] == [letters[i]]


@settings(deadline=None)
@given(st.sets(st.sampled_from(TEXTS)))
def test_finite_sets_and_their_complements(texts: set[str]) -> None:
    for text in TEXTS:
        assert accepts(only(sorted(texts)), text) == (text in texts) != accepts(all_but(sorted(texts)), text)


def test_tables_that_are_too_large_to_merge_are_exact() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    counted = meet([automaton(parse_regex(f"({letters})*", search=False))], least=44_980, most=45_010)
    assert counted.n_states * 27 > 1_000_000  # edges, with the class of all other characters
    edges, accepting, state, found = counted.edges, counted.accepting, 0, []
    for n in range(45_007):
        found += [n] if state in accepting else []
        ((first, last, state),) = edges[state] or ((0, 0, -1),)
        assert (first, last) in ((ord(letters[n % 26]),) * 2, (0, 0))
    assert found == [44_980, 45_006] and state == -1


def test_tables_that_take_too_long_to_merge_are_exact() -> None:
    """All states accept, so each round of merging tells only a few more of them apart."""
    counted = meet([automaton(parse_regex("a*", search=False))], most=12_000)
    assert counted.n_states == 12_001 and counted.accepting == set(range(12_001))
    assert counted.edges == (*(((97, 97, n + 1),) for n in range(12_000)), ())


RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)).map(lambda p: (p[0], p[0] + p[1])))


@settings(deadline=None)
@given(RANGES, RANGES)
def test_sets_of_code_points(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    def points(ranges: object) -> set[int]:
        return {p for first, last in ranges for p in range(first, last + 1) if p < 60}  # type: ignore

    left, right = union(a), union(b)
    assert points(left) == points(a)
    assert all(first > last + 1 for (_, last), (first, _) in itertools.pairwise(left))
    assert points(difference(left, right)) == points(a) - points(b)
    assert points(complement(left)) == set(range(60)) - points(a)


def test_classes_and_categories() -> None:
    import unicodedata

    for name, short in (("Lu", "Lu"), ("Letter", "L"), ("digit", "Nd"), ("P", "P"), ("Cn", "Cn")):
        ranges = category(name)
        assert ranges is not None
        for point in [*range(0, 0x3000), 0x1F600, 0x3FFFE, 0x50000, 0xE0001, 0xE0FFF, 0xF0000, 0x10FFFE]:
            inside = any(first <= point <= last for first, last in ranges)
            assert inside == unicodedata.category(chr(point)).startswith(short), (name, hex(point))
    cased = category("Cased_Letter")
    assert cased is not None and cased == union(*(category(name) or () for name in ("Lu", "Ll", "Lt")))
    assert contains(cased, 0x1C5), "title case"
    assert category("Greek") is None
    grammar = Grammar.from_regex(r"\p{Lu}\P{L}[\p{Nd}_][^\p{L}]")
    assert grammar.matches("Ä-٣!") and not grammar.matches("ä-٣!") and not grammar.matches("Äx3!")


def test_escapes() -> None:
    for pattern, text in ((r"\cJ\0\b"[:-2], "\n\0"), (r"\t\n\v\f\r", "\t\n\v\f\r"), (r"\/\.\-\_", "/.-_")):
        assert Grammar.from_regex(pattern).matches(text)
    assert Grammar.from_regex(r"\ca\cA\cz\cZ").matches("\x01\x01\x1a\x1a")
    assert Grammar.from_regex(r"[\b\-\]]+").matches("\b-]")
    for pattern in ("[ab-]", "[-ab]", "[a-b-]", "[+--ab]"):
        found = Grammar.from_regex(pattern)
        assert [char for char in "+-.]abc" if found.matches(char)] == [
            *("+" if "+" in pattern else ""),
            *"-ab",
        ]
    assert Grammar.from_regex(r"\ud83d\ude00|\u{1f601}").matches("😀")
    assert Grammar.from_regex(r"[\w-.]+").matches("a-.") and Grammar.from_regex("a{,2}]").matches("a{,2}]")
    spaces = Grammar.from_regex(r"\s")
    assert spaces.matches("\ufeff") and spaces.matches("\u2028") and not spaces.matches("\x1c")
    assert not Grammar.from_regex(".").matches("\u2029")
    assert not Grammar.from_regex(r"\d").matches("٣")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(a", "position 0: '(' is never closed"),
        ("a)", "position 1: expected the end"),
        ("x(?<=a(?=b))", "position 1: a lookbehind that looks around itself"),
        (r"x(?<!\ba)", "position 1: a lookbehind that looks around itself"),
        ("x(?=(?<=x)b)", "position 4: a lookbehind inside of a lookahead"),
        ("x(?=(a|b)*a(a|b){20}c)[^d]*", "position 1: expected at most"),
        (r"(a)\1", "position 3: a backreference"),
        (r"(?<n>a)\k<n>", "a backreference"),
        ("(?i)a", "expected '(?:'"),
        ("*a", "nothing to repeat"),
        ("a{2}{3}", "follows a quantifier"),
        ("a{3,2}", "out of order"),
        ("[b-a]", "out of order"),
        ("[a", "never closed"),
        ("\\", "backslash"),
        (r"\q", "not known"),
        (r"\u12", "4 hexadecimal"),
        (r"\u{110000}", "not a code point"),
        (r"\p{Greek}", "'Greek' is not a general category"),
        ("a{9999999999}", "counts to at most"),
        ("(" * 200 + ")" * 200, "more than 100 groups"),
        ("a" * 30_000, "at most 20000 characters"),
    ],
)
def test_what_is_not_regular_or_malformed_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(message)):
        Grammar.from_regex(pattern)


def test_what_looks_around_is_refused_where_neighbours_are_not_known() -> None:
    for pattern in ("a(?=b)", r"a\b", "(?<=b)a", "(a$|b)*"):
        with pytest.raises(GrammarError, match="the text around this one is not known"):
            parse_regex(pattern, search=False, alone=False)


LOOKING = [
    r"^(?=.*[A-Z])(?=.*\d).{3,}$", "^(?!A1$)", r"\bA\b", r"\BA\B.", "(?<=A)1", "(?<!A)1", "(?<=^A|1)-",
    "^(?!.*--)[-A]+$", "(^A|1)+", "(?:A$|1)*", "A(?=1)1?A?", "A(?!1).", r"^(?!.*\bA1\b).*$", "^(?=(?!A)1)",
    "^(?!(?=A)(?!A1))", "(?=A$)", "^(?!-)[A1-]{1,4}(?<!-)$", "(A|(?=1))*-", "^((?!A1)[A1 -])*$", r"(?=\b)A",
    r"^(?:(?=A)|1){2}A$", r"(?<=A{2})\b(?!-)",
]  # fmt: skip


@pytest.mark.parametrize("pattern", LOOKING)
def test_patterns_that_look_around_match_what_python_matches(pattern: str) -> None:
    texts = ["".join(chars) for n in range(6) for chars in itertools.product("A1 -", repeat=n)]
    found = check(pattern, texts)
    grammar = Grammar.from_rules(Rules("root", {"root": parse_regex(pattern, search=True)}))
    assert [text for text in texts[:90] if grammar.matches(text) != accepts(found, text)] == []


def looking_pattern(rng: random.Random, depth: int = 3) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.3:
        return rng.choice(["A", "1", "-", r"\w", "[^A]", "^", "$", r"\b", r"\B"])
    below = [looking_pattern(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    if kind < 0.55:
        return "".join(below)
    if kind < 0.7:
        return f"(?:{'|'.join(below)})"
    if kind < 0.85:
        return f"({rng.choice(['?=', '?!'])}{below[0]})"
    return f"(?:{below[0]}){rng.choice(['', '?', '{1,2}'])}"


@pytest.mark.parametrize("seed", range(60))
def test_random_patterns_that_look_around(seed: int) -> None:
    rng = random.Random(seed)
    texts = ["".join(chars) for n in range(1, 5) for chars in itertools.product("A1-", repeat=n)]
    for _ in range(10):
        check(looking_pattern(rng), texts)


def test_limits_of_automata() -> None:
    node = parse_regex("(a|b)*a(a|b){20}", search=True)
    with pytest.raises(GrammarError, match="at most 50000 states"):
        automaton(node)
    with pytest.raises(GrammarError, match="10000 characters"):
        language(parse_regex("(a{200}){200}", search=True))


def test_from_regex_matches_the_whole_text() -> None:
    grammar = Grammar.from_regex("[a-z]+|[0-9]{1,100000}")
    assert grammar.matches("abc") and grammar.matches("7" * 5000)
    assert not grammar.matches("abc1") and not grammar.matches("") and not grammar.matches("7" * 100_001)


@pytest.mark.parametrize("pattern", ["a(?!a)(?=a)", r"[^\s\S]", "a(?=b)"])
def test_a_pattern_without_a_text_is_an_error_that_names_it(pattern: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(f"regex {pattern!r}: no text matches it")):
        Grammar.from_regex(pattern)
