"""Sets of numbers: an interval, multiples, non-multiples, values that it is one of or is not.

Numbers are exact (`Fraction`). A constrained number is written in full or, where it need not be a multiple
of anything, as one digit before the point and an exponent: of these texts an automaton can tell the value.
An integer may carry the ".0" that Python writes after a float. A number without bounds is any JSON number.

Readers of JSON make doubles of numbers. Rounding keeps order, so a number within a bound is read as one
within it, but a number beside a bound that is not in, or beside an excluded value, could be read as just
that. Such numbers are as far away as the next double.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from oxillama._kernels.grammar.numbers import EQUAL, GREATER, LESS, compared, multiples
from oxillama.errors import GrammarError
from oxillama.grammar.dfa import automaton, meet, only
from oxillama.grammar.regex import parse_regex
from oxillama.grammar.rules import Alt, Dfa, Node, Repeat, Seq, Text
from oxillama.grammar.schema.json_text import decimal_text

MAX_REMAINDERS = 40_000  # of one multipleOf, at each place behind the point
# Numbers of at least 1e-300, with few zeros behind the point: what is smaller may be read as 0.
NOT_ZERO = r"-?(?:0\.0{0,24}[1-9]\d*|[1-9][\d.]*(?:[eE](?:\+?\d+|-0*(?:\d\d?|[12]\d\d|300)))?)"


@lru_cache(maxsize=32)
def _fixed(pattern: str) -> Dfa:
    return automaton(parse_regex(pattern, search=False))


class Numbers(NamedTuple):
    """The numbers that meet all of these.

    Attributes
    ----------
    low, high : the bounds; None for none. ``low_open``, ``high_open``: the bound itself is not in.
    step : the number is a multiple of this; None for any. 1: an integer.
    not_steps : it is a multiple of none of these.
    values : the numbers it may be; None for any.
    excluded : the numbers it must not be.
    plain : with a step of integers, they are written without ".0".
    """

    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    high_open: bool = False
    step: Fraction | None = None
    not_steps: frozenset[Fraction] = frozenset()
    values: frozenset[Fraction] | None = None
    excluded: frozenset[Fraction] = frozenset()
    plain: bool = False

    def meet(self, other: Numbers) -> Numbers | None:
        """Both; None where no number meets both (as far as is easily seen)."""
        low, low_open = self.low, self.low_open
        if other.low is not None and (low is None or (other.low, other.low_open) > (low, low_open)):
            low, low_open = other.low, other.low_open
        high, high_open = self.high, self.high_open
        if other.high is not None and (
            high is None or (other.high, not other.high_open) < (high, not high_open)
        ):
            high, high_open = other.high, other.high_open
        step = self.step if other.step is None else other.step
        if self.step is not None and other.step is not None:
            step = _lcm(self.step, other.step)
        values = self.values if other.values is None else other.values
        if self.values is not None and other.values is not None:
            values = self.values & other.values
        not_steps, excluded = self.not_steps | other.not_steps, self.excluded | other.excluded
        plain = self.plain or other.plain
        both = Numbers(low, high, low_open, high_open, step, not_steps, values, excluded, plain)
        return both.settled()

    def settled(self) -> Numbers | None:
        """Without conditions that the others imply; None if it is seen to be empty."""
        if self.values is not None:
            kept = frozenset(filter(self.contains, self.values))
            return Numbers(values=kept, plain=self.plain) if kept else None
        low, high, step = self.low, self.high, self.step
        if step is not None:
            if any((step / other).denominator == 1 for other in self.not_steps):
                return None
            if low is not None:
                low = math.ceil(low / step) * step + (step if self.low_open and low % step == 0 else 0)
            if high is not None:
                high = math.floor(high / step) * step - (step if self.high_open and high % step == 0 else 0)
        opened = step is None and (self.low_open or self.high_open)
        if low is not None and high is not None and (low > high or (low == high and opened)):
            return None
        if step is None:
            return self
        return self._replace(low=low, high=high, low_open=False, high_open=False)

    def contains(self, value: Fraction) -> bool:
        """Whether a number meets all conditions."""
        return (
            (self.low is None or value > self.low or (value == self.low and not self.low_open))
            and (self.high is None or value < self.high or (value == self.high and not self.high_open))
            and (self.step is None or (value / self.step).denominator == 1)
            and not any((value / step).denominator == 1 for step in self.not_steps)
            and (self.values is None or value in self.values)
            and value not in self.excluded
        )

    def negated(self) -> Iterator[Numbers]:
        """The numbers that miss at least one condition."""
        if self.low is not None:
            yield Numbers(high=self.low, high_open=not self.low_open)
        if self.high is not None:
            yield Numbers(low=self.high, low_open=not self.high_open)
        if self.step is not None:
            yield Numbers(not_steps=frozenset({self.step}))
        for step in self.not_steps:
            yield Numbers(step=step)
        if self.values is not None:
            yield Numbers(excluded=self.values)
        if self.excluded:
            yield Numbers(values=self.excluded)

    def finite(self, limit: int) -> list[Fraction] | None:
        """All the numbers, if they are at most ``limit``; else None."""
        if self.values is not None:
            return sorted(self.values) if len(self.values) <= limit else None
        if self.low is None or self.high is None:
            return None
        if self.step is None:
            return [self.low] if self.low == self.high and self.contains(self.low) else None
        count = (self.high - self.low) // self.step + 1
        if count > limit + len(self.excluded):
            return None
        found = [v for v in (self.low + i * self.step for i in range(count)) if self.contains(v)]
        return found if len(found) <= limit else None

    def node(self) -> Node:
        """The JSON texts of these numbers."""
        if self.values is not None:
            return Alt(tuple([_value_node(value, self.plain) for value in sorted(self.values)]))
        if self == Numbers():
            return _fixed(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
        if self == Numbers(step=Fraction(1), plain=self.plain):
            return _fixed(r"-?(?:0|[1-9]\d*)" + ("" if self.plain else r"(?:\.0)?"))
        return _automaton(self)


@lru_cache(maxsize=64)
def _automaton(numbers: Numbers) -> Dfa:
    """The automata of each condition, met.

    Where a number may be negative there is "-0" too, where it may not there is none. Where it must not be 0
    it is no number that would be read as 0.
    """
    n, integral = numbers, numbers.step is not None
    (low, low_open), (high, high_open) = (n.low, n.low_open), (n.high, n.high_open)
    if low and low_open and not integral:
        low, low_open = _beside(low, math.inf)
    if high and high_open and not integral:
        high, high_open = _beside(high, -math.inf)
    exponents = not (integral or n.not_steps)
    wanted = [_written(n, "" if low is not None and low >= 0 else "-?", exponents)]
    unwanted = [_multiples(step) for step in sorted(n.not_steps)]
    if low is not None:
        wanted.append(_ordered(low, GREATER if low_open else GREATER | EQUAL, exponents))
    if high is not None:
        wanted.append(_ordered(high, LESS if high_open else LESS | EQUAL, exponents))
    if n.step is None:
        unwanted += [_read_as(value, exponents) for value in n.excluded]
    else:
        wanted.append(_multiples(n.step))
        unwanted.append(only(text for value in n.excluded for text in _in_full(value, n.step)))
    if 0 in n.excluded or (low == 0 and low_open) or (high == 0 and high_open):
        wanted.append(_fixed(NOT_ZERO))
    try:
        return meet(wanted, unwanted)
    except GrammarError as error:
        raise GrammarError(f"number: {error}") from None


def _written(numbers: Numbers, sign: str, exponents: bool) -> Dfa:
    """How the numbers are written, whatever they are."""
    if exponents:
        return _fixed(sign + r"(?:0(?:\.\d+)?|[1-9](?:\.\d+)?(?:[eE][+-]?\d+)?|[1-9]\d+(?:\.\d+)?)")
    if numbers.step is None:
        fraction = r"(?:\.\d+)?"
    else:
        places = _places(numbers.step)
        fraction = rf"(?:\.\d{{1,{places}}})?" if places else "" if numbers.plain else r"(?:\.0)?"
    return _fixed(rf"{sign}(?:0|[1-9]\d*){fraction}")


def _places(value: Fraction) -> int:
    """The digits of a number behind the point."""
    return len(decimal_text(value).partition(".")[2])


def _ordered(value: Fraction, orders: int, exponents: bool) -> Dfa:
    """The numbers that compare with a value in one of these ways."""
    turned = orders & EQUAL | (GREATER if orders & LESS else 0) | (LESS if orders & GREATER else 0)
    whatever = LESS | EQUAL | GREATER
    positive = orders if value >= 0 else whatever if orders & GREATER else 0
    negative = turned if value <= 0 else whatever if orders & LESS else 0
    return compared(decimal_text(abs(value)), positive, negative, exponents)


def _multiples(step: Fraction) -> Dfa:
    """The multiples of a number, in full."""
    text, places = decimal_text(step), _places(step)
    modulus = int(text.replace(".", ""))
    if modulus * (places + 1) > MAX_REMAINDERS:
        raise GrammarError(
            f"multipleOf: expected at most {MAX_REMAINDERS} remainders, got {modulus * (places + 1)}"
        )
    return multiples(modulus, places)


def _in_full(value: Fraction, step: Fraction) -> Iterator[str]:
    """How a multiple of a number may be written."""
    text, places = decimal_text(value), _places(value)
    for sign in ("", "-") if value == 0 else ("",):
        yield sign + text
        for more in range(1, max(_places(step), 1) - places + 1):
            yield sign + text + ("" if places else ".") + "0" * more


def _read_as(value: Fraction, exponents: bool) -> Dfa:
    """The numbers that may be read as a value: those nearer to it than the doubles beside it."""
    (below, is_first), (above, is_last) = _beside(value, -math.inf), _beside(value, math.inf)
    if value == 0 or is_first or is_last:
        return _ordered(value, EQUAL, exponents)
    return meet([_ordered(below, GREATER, exponents), _ordered(above, LESS, exponents)])


def _beside(value: Fraction, towards: float) -> tuple[Fraction, bool]:
    """The double next to that of a number, as it is written; the number and True where there is none."""
    try:
        found = math.nextafter(float(value), towards)
    except OverflowError:
        return value, True
    return (Fraction(repr(found)), False) if math.isfinite(found) else (value, True)


def _lcm(a: Fraction, b: Fraction) -> Fraction:
    return Fraction(
        math.lcm(a.numerator * b.denominator, b.numerator * a.denominator), a.denominator * b.denominator
    )


def _value_node(value: Fraction, plain: bool) -> Node:
    """One number: in full; unless ``plain``, also as Python writes the float of this value."""
    node: Node = Text(decimal_text(value))
    if plain:
        return node
    if value.denominator == 1:
        node = Seq((node, Repeat(Text(".0"), 0, 1)))
    try:
        shortest = repr(float(value))
    except OverflowError:
        return node
    if "e" in shortest and Fraction(shortest) == value:
        return Alt((node, Text(shortest)))
    return node
