"""Automata that read numbers, against exact arithmetic."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from oxillama._kernels.grammar.numbers import EQUAL, GREATER, LESS, compared, multiples
from oxillama.errors import GrammarError
from oxillama.text.grammar import Grammar
from oxillama.text.grammar.rules import Dfa
from oxillama.text.grammar.schema.numbers import Numbers
from tests.support.automata import accepts


def near(rng: random.Random, bound: str) -> str:
    """Digits like those of a bound."""
    digits = list(bound.strip("0.") or "7")
    for _ in range(rng.choice((0, 0, 1, 2))):
        digits[rng.randrange(len(digits))] = rng.choice("0123456789.")
    text = "".join(digits) + rng.choice(("", "", "0", "00", "1", "9", ".0", ".001"))
    whole, _, part = text.partition(".")
    part = part.replace(".", "")
    return (whole.lstrip("0") or "0") + ("." + part if part else "")


@pytest.mark.parametrize("bound", ["0", "7", "12.5", "0.0305", "1000", "99.99", "1200000", "0.00000001"])
def test_magnitudes_are_compared(bound: str) -> None:
    rng = random.Random(bound)
    for positive, negative in ((LESS, GREATER), (EQUAL, LESS | EQUAL), (GREATER, 0), (LESS | GREATER, EQUAL)):
        dfa = compared(bound, positive, negative, True)
        for _ in range(400):
            text = near(rng, bound)
            if text[0] != "0" and text[1:2] in ("", "."):
                power = rng.choice(("", "0", "00", "1", "3", "03", "4", "6", "8", "10", "12"))
                text += rng.choice(("e", "E")) + rng.choice(("", "+", "-")) + power if power else ""
            value, least = Fraction(text), Fraction(bound)
            order = GREATER if value > least else LESS if value < least else EQUAL
            assert accepts(dfa, text) == bool(order & positive), text
            assert accepts(dfa, "-" + text) == bool(order & negative), text


@pytest.mark.parametrize(
    ("modulus", "places"), [(1, 0), (7, 0), (12, 0), (25, 1), (1, 2), (35, 3), (4096, 0)]
)
def test_multiples(modulus: int, places: int) -> None:
    dfa = multiples(modulus, places)
    rng = random.Random(modulus)
    for _ in range(2000):
        value = Fraction(modulus * rng.randrange(5000), 10**places)
        value += rng.choice((0, 0, Fraction(rng.randrange(9), 10 ** rng.randrange(places + 2))))
        whole, part = divmod(value.numerator * 10 ** (places + 1) // value.denominator, 10 ** (places + 1))
        text = rng.choice(("", "-")) + str(whole)
        text += rng.choice((f".{part:0{places + 1}}", f".{part:0{places + 1}}00" if part else ""))
        divides = (Fraction(text) * 10**places / modulus).denominator == 1
        assert accepts(dfa, text) == divides, text
    assert not accepts(dfa, "") and not accepts(dfa, "-")


def test_moduli_beside_others_and_a_bound() -> None:
    rng = random.Random(9)
    for _ in range(30):
        step = Fraction(rng.choice((1, 2, 6, 44, 77, 4004)), rng.choice((1, 1, 2, 10)))
        others = frozenset(step * rng.choice((2, 3, Fraction(7, 2), 5)) for _ in range(rng.choice((1, 2))))
        low = Fraction(rng.randrange(-100_000, 100_000))
        excluded = frozenset(step * rng.randrange(200) for _ in range(3))
        settled = Numbers(low=low, step=step, not_steps=others, excluded=excluded).settled()
        node = settled and settled.node()
        for n in (*range(200), *(int(low / step) + i for i in range(-9, 99))):
            value = step * n
            text = str(value) if value.denominator == 1 else str(float(value))
            inside = (
                value >= low
                and value not in excluded
                and all((value / other).denominator != 1 for other in others)
            )
            assert (isinstance(node, Dfa) and accepts(node, text)) == inside, (settled, text)


def test_remainders_of_several_moduli_together() -> None:
    negative = {"exclusiveMaximum": -100_000, "not": {"multipleOf": 429}}
    grammar = Grammar.from_json_schema({"allOf": [{"multipleOf": 77}, {"multipleOf": 52}], **negative})
    found = [n for n in range(-110_000, -99_000) if grammar.matches(str(n))]
    assert found == [n for n in range(-110_000, -100_000) if n % 4004 == 0 and n % 3]


def test_numbers_of_too_many_remainders_are_refused() -> None:
    with pytest.raises(GrammarError, match="multipleOf: expected at most 40000 remainders, got 40001"):
        Numbers(step=Fraction(40001)).node()
    with pytest.raises(GrammarError, match="number: expected an automaton of at most 50000 states"):
        Numbers(step=Fraction(997), not_steps=frozenset({Fraction(991)})).node()
