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
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from oxillama.grammar.dfa import determinise, from_steps, language
from oxillama.grammar.regex import parse_regex
from oxillama.grammar.rules import NEVER, Alt, Dfa, Node, Repeat, Seq, Text
from oxillama.grammar.schema.json_text import decimal_text
from oxillama.grammar.schema.number_text import Machine


@lru_cache(maxsize=8)
def _fixed(pattern: str) -> Dfa:
    return determinise([language(parse_regex(pattern, search=False))], all)


def any_number() -> Node:
    """Every JSON number."""
    return _fixed(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")


def any_integer(plain: bool) -> Node:
    """Every integer written in full; unless ``plain``, also as a float without a fractional part."""
    return _fixed(r"-?(?:0|[1-9]\d*)" + ("" if plain else r"(?:\.0)?"))


@dataclass(frozen=True, slots=True)
class Numbers:
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
        return Numbers(
            low,
            high,
            low_open,
            high_open,
            step,
            self.not_steps | other.not_steps,
            values,
            self.excluded | other.excluded,
            self.plain or other.plain,
        ).settled()

    def settled(self) -> Numbers | None:
        """Without conditions that the others imply; None if it is seen to be empty."""
        if self.values is not None:
            free = replace(self, values=None)
            kept = frozenset(value for value in self.values if free.contains(value))
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
        return replace(self, low=low, high=high, low_open=False, high_open=False)

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
            return any_number()
        if self == Numbers(step=Fraction(1), plain=self.plain):
            return any_integer(self.plain)
        return _automaton(self)


@lru_cache(maxsize=64)
def _automaton(numbers: Numbers) -> Dfa:
    low, high = numbers.low, numbers.high
    low_open, high_open = numbers.low_open, numbers.high_open
    if numbers.step is None and low_open and low:
        low, low_open = _beside(low, math.inf)
    if numbers.step is None and high_open and high:
        high, high_open = _beside(high, -math.inf)
    gaps = []
    for value in sorted(numbers.excluded):
        below, above = _beside(value, -math.inf), _beside(value, math.inf)
        far = numbers.step is None and value and not (below[1] or above[1])
        gaps.append((below[0], above[0]) if far else (value, value))
    machine = Machine(
        numbers.step, sorted(numbers.not_steps), low, low_open, high, high_open, gaps, numbers.plain
    )
    return from_steps(machine.start, machine.step, machine.accepts, machine.alphabet())


def _beside(value: Fraction, towards: float) -> tuple[Fraction, bool]:
    """The double next to that of a number, as it is written; the number and True where there is none."""
    try:
        found = math.nextafter(float(value), towards)
    except OverflowError:
        return value, True
    return (Fraction(repr(found)), False) if math.isfinite(found) else (value, True)


def is_empty(numbers: Numbers) -> bool:
    """Whether no text is written for these numbers."""
    return numbers.node() == NEVER


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
