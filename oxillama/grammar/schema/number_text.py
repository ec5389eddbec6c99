"""A machine that reads the text of a number and knows how its value compares with bounds.

The state is a tuple: where in the number it is, the sign, whether all digits were zero, for each bound how
the digits so far compare with its digits, and the remainders of the digits so far by each modulus.
A text is written in full ("-12.50") or with one digit other than 0 before the point and an exponent
("1.25e-7"): then exponents compare first and the digits after.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from oxillama.errors import GrammarError
from oxillama.grammar.schema.json_text import decimal_text

MAX_MODULUS = 100_000
SMALLEST = Fraction(1, 10**300)  # what is smaller may be read as 0
MAX_ZEROS = 24  # after the point, before the other digits of a number that must not be read as 0

# where in the number: before it, after the sign, after a leading 0, in the whole part, after the point, in
# the fraction, after the e, after the sign of the exponent, in the exponent
START, SIGN, ZERO, WHOLE, POINT, PART, E, E_SIGN, EXPONENT = range(9)
_ENDS = (ZERO, WHOLE, PART, EXPONENT)


def _cmp(a: int | str, b: int | str) -> int:
    return (a > b) - (a < b)  # type: ignore[operator]


class _Progress(NamedTuple):
    """How far the comparison of a magnitude with a bound's has come.

    ``whole``: (digits read, how they compare), ``part``: the same after the point, ``mantissa``: the same
    from the first digit on, ``exponent``: (digits read without leading zeros, how they compare).
    """

    whole: tuple[int, int] = (0, 0)
    part: tuple[int, int] = (0, 0)
    mantissa: tuple[int, int] = (0, 0)
    exponent: tuple[int, int] = (0, 0)


class _Bound:
    """The digits of a bound, and the comparison of a text's digits with them."""

    def __init__(self, value: Fraction) -> None:
        self.value = value
        self.sign = _cmp(value.numerator, 0)
        self.whole, _, self.part = decimal_text(abs(value)).partition(".")
        digits = (self.whole + self.part).lstrip("0")
        self.mantissa = digits.rstrip("0")
        self.exponent = len(digits) - len(self.part) - 1
        self.exponent_digits = str(abs(self.exponent)).lstrip("0")

    @staticmethod
    def read(progress: tuple[int, int], digits: str, char: str, cap: int) -> tuple[int, int]:
        """Compare one more digit; beyond the bound's digits its digit is 0."""
        count, order = progress
        if count + 1 > len(digits) and cap > len(digits):
            return cap, 0  # longer than the bound, which decides
        order = order or _cmp(char, digits[count] if count < len(digits) else "0")
        return (cap if order and cap <= len(digits) else min(count + 1, cap)), order

    def digit(self, p: _Progress, where: int, char: str, one_digit: bool) -> _Progress:
        """One more digit; ``one_digit``: the text may yet get an exponent."""
        if where in (ZERO, WHOLE):
            whole = self.read(p.whole, self.whole, char, len(self.whole) + 1)
            mantissa = self.read((0, 0), self.mantissa, char, len(self.mantissa)) if one_digit else (0, 0)
            return _Progress(whole, mantissa=mantissa)
        if where == PART:
            part = p.part if p.whole[1] else self.read(p.part, self.part, char, len(self.part))
            mantissa = self.read(p.mantissa, self.mantissa, char, len(self.mantissa)) if one_digit else (0, 0)
            return _Progress(p.whole, part, mantissa)
        if char == "0" and p.exponent[0] == 0:
            return p
        exponent = self.read(p.exponent, self.exponent_digits, char, len(self.exponent_digits) + 1)
        return _Progress(mantissa=p.mantissa, exponent=exponent)

    def at_point(self, p: _Progress) -> _Progress:
        """The whole part is read: its order is known."""
        return _Progress((0, self._whole_order(p)), p.part, p.mantissa)

    def _whole_order(self, p: _Progress) -> int:
        count, order = p.whole
        return _cmp(count, len(self.whole)) or order

    def at_e(self, p: _Progress) -> _Progress:
        """The digits are read: only their order matters."""
        count, order = p.mantissa
        return _Progress(mantissa=(0, order or -(count < len(self.mantissa))))

    def magnitude(self, p: _Progress, where: int, e_sign: int) -> int:
        """The order of the magnitudes at the end of the text, which is not of a zero."""
        if where in (ZERO, WHOLE):
            return self._whole_order(p) or -bool(self.part)
        if where == PART:
            count, order = p.part
            return p.whole[1] or order or -(count < len(self.part))
        if self.sign == 0:
            return 1
        count, order = p.exponent
        own = self.exponent_digits
        if count == 0:
            difference = _cmp(0, self.exponent)
        elif not own or e_sign * self.exponent < 0:
            difference = e_sign
        else:
            difference = e_sign * (_cmp(count, len(own)) or order)
        return difference or p.mantissa[1]

    def order(self, p: _Progress, where: int, negative: bool, zero: bool, e_sign: int) -> int:
        """The order of the text's value and the bound."""
        if zero:
            return -self.sign
        if negative != (self.sign < 0):
            return -1 if negative else 1
        magnitude = self.magnitude(p, where, e_sign)
        return -magnitude if negative else magnitude


class _State(NamedTuple):
    where: int = START
    negative: bool = False
    zero: bool = True
    one_digit: bool = False  # the whole part is one digit, and not 0
    e_sign: int = 1
    places: int = 0  # digits after the point, as far as they matter
    zeros: int = 0  # of them the leading zeros of a number below 1, if their number is bounded
    orders: tuple[_Progress, ...] = ()
    remainders: tuple[tuple[int, bool], ...] = ()  # and whether digits that do not count were other than 0


class Machine:
    """Reads a number character by character; see `from_steps` of the automata.

    Parameters
    ----------
    step : the number must be a multiple of this, and is then written with no more places than it; None: any.
    not_steps : it must be a multiple of none of these.
    low, low_open, high, high_open : its bounds.
    excluded : pairs of values: it must not lie between them, nor be both.
    plain : an integer has no ".0".

    Where it may be negative there is "-0" too, where it may not there is none. Where it must not be 0 it is
    no number that would be read as 0.
    """

    def __init__(
        self,
        step: Fraction | None,
        not_steps: Sequence[Fraction],
        low: Fraction | None,
        low_open: bool,
        high: Fraction | None,
        high_open: bool,
        excluded: Sequence[tuple[Fraction, Fraction]],
        plain: bool = False,
    ) -> None:
        self.integer = step is not None
        self.moduli = [_modulus(one) for one in ([] if step is None else [step]) + list(not_steps)]
        self.most_places = max(self.moduli[0][1], not plain) if step is not None else None
        self.cap = max([places for _, places in self.moduli], default=0)
        self.bounds: list[tuple[_Bound, frozenset[int]]] = []  # with the orders allowed
        if low is not None:
            self.bounds.append((_Bound(low), frozenset({1} if low_open else {0, 1})))
        if high is not None:
            self.bounds.append((_Bound(high), frozenset({-1} if high_open else {-1, 0})))
        self.gaps: list[int] = []  # the first of two bounds, of which the number must meet one
        for first, last in excluded:
            if first == last:
                self.bounds.append((_Bound(first), frozenset({-1, 1})))
            else:
                self.gaps.append(len(self.bounds))
                self.bounds += [(_Bound(first), frozenset({-1, 0})), (_Bound(last), frozenset({0, 1}))]
        self.never_negative = low is not None and low >= 0
        self.not_zero = any(bound.sign == 0 and 0 not in allowed for bound, allowed in self.bounds)
        if self.not_zero:
            self.bounds.append((_Bound(SMALLEST), frozenset({0, 1})))  # of the magnitude
        self.start = _State(
            orders=(_Progress(),) * len(self.bounds), remainders=((0, False),) * len(self.moduli)
        )

    def alphabet(self) -> list[str]:
        """The characters of numbers, in groups that make no difference here."""
        if self.moduli and any(modulus > 1 for modulus, _ in self.moduli):
            return [*"-+.0123456789", "eE"]
        special = {"0"}.union(*(set(b.whole + b.part + b.exponent_digits) for b, _ in self.bounds))
        groups = [""]
        for digit in "0123456789":
            if digit in special:
                groups += [digit, ""]
            else:
                groups[-1] += digit
        return ["-", "+", ".", "eE", *filter(None, groups)]

    def step(self, state: object, char: str) -> object | None:
        assert isinstance(state, _State)
        s, where = state, state.where
        if char == "-" and where == START:
            return _State(SIGN, bool(self.bounds), orders=s.orders, remainders=s.remainders)
        if char == "." and where in (ZERO, WHOLE) and self.most_places != 0:
            orders = tuple([b.at_point(p) for (b, _), p in zip(self.bounds, s.orders)])
            return _State(POINT, s.negative, s.zero, s.one_digit, orders=orders, remainders=s.remainders)
        if char in "eE":
            if self.moduli or where not in (WHOLE, PART) or not s.one_digit:
                return None
            orders = tuple([b.at_e(p) for (b, _), p in zip(self.bounds, s.orders)])
            return _State(E, s.negative, s.zero, orders=orders)
        if char in "+-" and where == E:
            return _State(E_SIGN, s.negative, s.zero, e_sign=-1 if char == "-" else 1, orders=s.orders)
        return self.digit(s, char) if char.isdigit() else None

    def digit(self, s: _State, char: str) -> _State | None:
        if s.where in (START, SIGN):
            where = ZERO if char == "0" else WHOLE
        elif s.where in (WHOLE, PART, EXPONENT):
            where = s.where
        elif s.where == POINT:
            where = PART
        elif s.where in (E, E_SIGN):
            where = EXPONENT
        else:
            return None
        zero, one_digit, places, remainders = s.zero, s.one_digit, s.places, s.remainders
        zeros = s.zeros
        if where == EXPONENT:
            one_digit = True
        else:
            zero = zero and char == "0"
            one_digit = (where == WHOLE and s.where != WHOLE) or (where == PART and one_digit)
            if where == PART:
                if self.most_places is not None and places >= self.most_places:
                    return None
                places = min(places + 1, self.cap + 1)
                if self.not_zero:
                    zeros = zeros + 1 if zero else 0
                    if zeros > MAX_ZEROS:
                        return None
            remainders = tuple(
                [self.remainder(m, r, int(char), places) for m, r in zip(self.moduli, remainders)]
            )
            if self.most_places == 1 and places == 1 and self.moduli[0][1] == 0 and char != "0":
                return None
        orders = tuple(
            [
                b.digit(p, where, char, one_digit and not self.moduli)
                for (b, _), p in zip(self.bounds, s.orders)
            ]
        )
        return _State(where, s.negative, zero, one_digit, s.e_sign, places, zeros, orders, remainders)

    @staticmethod
    def remainder(
        modulus: tuple[int, int], state: tuple[int, bool], digit: int, places: int
    ) -> tuple[int, bool]:
        remainder, rest = state
        if places > modulus[1]:
            return remainder, rest or digit != 0
        remainder = (remainder * 10 + digit) % modulus[0]
        # Beyond being 0 or not, only the remainder by what is coprime to the next digits' weight counts.
        weight = modulus[0] // math.gcd(modulus[0], 10)
        return (remainder % weight or weight if remainder else 0), rest

    def accepts(self, state: object) -> bool:
        assert isinstance(state, _State)
        s = state
        if s.where not in _ENDS:
            return False
        for i, ((modulus, places), (remainder, rest)) in enumerate(zip(self.moduli, s.remainders)):
            missing = max(0, places - s.places)
            divides = not rest and remainder * 10**missing % modulus == 0
            if divides != (i == 0 and self.integer):
                return False
        if s.negative and s.zero and self.never_negative:
            return False
        met = [
            bound.order(p, s.where, s.negative and bound.value is not SMALLEST, s.zero, s.e_sign) in allowed
            for (bound, allowed), p in zip(self.bounds, s.orders)
        ]
        for i in self.gaps:
            met[i] = met[i + 1] = met[i] or met[i + 1]
        return all(met)


def _modulus(step: Fraction) -> tuple[int, int]:
    """A step as an integer and the number of decimal places it is shifted by."""
    text = decimal_text(step)
    places = len(text.partition(".")[2])
    modulus = int(text.replace(".", ""))
    if modulus > MAX_MODULUS:
        raise GrammarError(f"multipleOf: expected digits that make at most {MAX_MODULUS}, got {text}")
    return modulus, places
