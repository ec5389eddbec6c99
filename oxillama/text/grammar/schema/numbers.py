"""Sets of numbers: an interval, multiples, non-multiples, allowed and excluded values.

Numbers are exact (`Fraction`). A constrained number is written in full; if no multiple is required it may
also be one digit before the point and an exponent, so an automaton can compare the text with a value.
An integer may end in ".0", as Python writes a float. A number without bounds is any JSON number.

JSON parsers convert numbers to doubles. Rounding is monotonic, so a number within a closed bound stays within
the bound. But a number close to an open bound, or to an excluded value, could be rounded to it. Therefore
such numbers keep a distance of one double.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from oxillama._kernels.grammar.numbers import EQUAL, GREATER, LESS, compared, multiples
from oxillama.errors import GrammarError
from oxillama.text.grammar.dfa import automaton, meet, only
from oxillama.text.grammar.grammar_text import errors_under
from oxillama.text.grammar.regex import parse_regex
from oxillama.text.grammar.rules import Alt, Dfa, Node, Repeat, Seq, Text
from oxillama.text.grammar.schema.json_text import decimal_text

MAX_REMAINDERS = 40_000  # states of one multipleOf: remainders times decimal places
# Numbers of magnitude at least 1e-300 with few zeros after the point; smaller ones may be parsed as 0.
NOT_ZERO = r"-?(?:0\.0{0,24}[1-9]\d*|[1-9][\d.]*(?:[eE](?:\+?\d+|-0*(?:\d\d?|[12]\d\d|300)))?)"


@lru_cache(maxsize=32)
def _fixed(pattern: str) -> Dfa:
    return automaton(parse_regex(pattern, search=False))


class Numbers(NamedTuple):
    """The numbers that meet all conditions.

    Attributes:
        low, high: the bounds, or None. ``low_open``, ``high_open``: the bound itself is excluded.
        step: the number is a multiple of the step; None: unrestricted. 1: an integer.
        not_steps: the number is a multiple of none of these.
        values: the allowed numbers; None: unrestricted.
        excluded: the excluded numbers.
        plain: integers are written without ".0".
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
        """The intersection; None if it is known to be empty."""
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
        """Without redundant conditions; None if the set is known to be empty."""
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
        """Sets that cover the numbers which miss at least one condition."""
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
        """All the numbers in ascending order, if they are at most ``limit``; else None."""
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
        """The JSON texts of the numbers."""
        if self.values is not None:
            return Alt(tuple([_value_node(value, self.plain) for value in sorted(self.values)]))
        if self == Numbers():
            return _fixed(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
        if self == Numbers(step=Fraction(1), plain=self.plain):
            return _fixed(r"-?(?:0|[1-9]\d*)" + ("" if self.plain else r"(?:\.0)?"))
        return _automaton(self)


@lru_cache(maxsize=64)
def _automaton(numbers: Numbers) -> Dfa:
    """The intersection of the automata of all conditions.

    "-0" is allowed exactly where negative numbers are. Where 0 is excluded, numbers that parse as 0 are
    excluded too.
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
    with errors_under("number"):
        return meet(wanted, unwanted)


def _written(numbers: Numbers, sign: str, exponents: bool) -> Dfa:
    """An automaton of the spellings of numbers with this sign, whatever their values."""
    if exponents:
        return _fixed(sign + r"(?:0(?:\.\d+)?|[1-9](?:\.\d+)?(?:[eE][+-]?\d+)?|[1-9]\d+(?:\.\d+)?)")
    if numbers.step is None:
        fraction = r"(?:\.\d+)?"
    else:
        places = _places(numbers.step)
        fraction = rf"(?:\.\d{{1,{places}}})?" if places else "" if numbers.plain else r"(?:\.0)?"
    return _fixed(rf"{sign}(?:0|[1-9]\d*){fraction}")


def _places(value: Fraction) -> int:
    """The number of digits after the decimal point."""
    return len(decimal_text(value).partition(".")[2])


def _ordered(value: Fraction, orders: int, exponents: bool) -> Dfa:
    """The numbers whose comparison with ``value`` is one of ``orders``."""
    turned = orders & EQUAL | (GREATER if orders & LESS else 0) | (LESS if orders & GREATER else 0)
    whatever = LESS | EQUAL | GREATER
    positive = orders if value >= 0 else whatever if orders & GREATER else 0
    negative = turned if value <= 0 else whatever if orders & LESS else 0
    return compared(decimal_text(abs(value)), positive, negative, exponents)


def _multiples(step: Fraction) -> Dfa:
    """The multiples of a number, written in full."""
    text, places = decimal_text(step), _places(step)
    modulus = int(text.replace(".", ""))
    if modulus * (places + 1) > MAX_REMAINDERS:
        raise GrammarError(
            f"multipleOf: expected at most {MAX_REMAINDERS} remainders, got {modulus * (places + 1)}"
        )
    return multiples(modulus, places)


def _in_full(value: Fraction, step: Fraction) -> Iterator[str]:
    """The spellings of ``value``, a multiple of ``step``, in full."""
    text, places = decimal_text(value), _places(value)
    for sign in ("", "-") if value == 0 else ("",):
        yield sign + text
        for more in range(1, max(_places(step), 1) - places + 1):
            yield sign + text + ("" if places else ".") + "0" * more


def _read_as(value: Fraction, exponents: bool) -> Dfa:
    """The numbers that may be parsed as ``value``: all between its neighbouring doubles."""
    (below, is_first), (above, is_last) = _beside(value, -math.inf), _beside(value, math.inf)
    if value == 0 or is_first or is_last:
        return _ordered(value, EQUAL, exponents)
    return meet([_ordered(below, GREATER, exponents), _ordered(above, LESS, exponents)])


def _beside(value: Fraction, towards: float) -> tuple[Fraction, bool]:
    """The double next to ``value``, and False; (value, True) if there is no finite one."""
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
    """The spellings of one number: in full; unless ``plain``, also the repr of the float."""
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
