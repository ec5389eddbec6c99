"""Automata over the texts of numbers: comparison of the magnitude with a bound, divisibility by a modulus.

They accept any text of a JSON number as one; further rules for the form of a number are separate. A text is written in
full ("-12.50") or with one digit other than 0 before the point and an exponent ("1.25e-7"): then exponents are
compared first, and then the digits.
"""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy, memset

from oxillama._kernels.grammar.classes cimport Classes
from oxillama._kernels.grammar.dfa cimport Arc
from oxillama._kernels.grammar.machines cimport Machine

cdef enum:
    # the place in a number: before it, after the sign, after a leading 0, in the whole part, after the point, in the
    # fraction, after the e, after the sign of the exponent, in the exponent; or any place, if nothing matters any more
    START, SIGN, ZERO, WHOLE, POINT, PART, E, E_SIGN, EXPONENT, ANYWHERE
    NO_EXPONENT = 2     # value of m_order: no exponent can follow
    MAX_MODULUS = 1 << 26
    MAX_PLACES = 100_000

cpdef enum:
    # results of comparing a magnitude with the bound, as bits of a set
    LESS = 1
    EQUAL = 2
    GREATER = 4

cdef Arc[16] CHARACTERS
for _i in range(10):
    CHARACTERS[_i + 3] = Arc(48 + _i, 48 + _i, _i)
CHARACTERS[0] = Arc(43, 43, 43)
CHARACTERS[1] = Arc(45, 45, 45)
CHARACTERS[2] = Arc(46, 46, 46)
CHARACTERS[13] = Arc(69, 69, 69)
CHARACTERS[14] = Arc(101, 101, 69)


cdef Classes of_numbers():
    """The classes of characters in numbers, "e" and "E" in one class, and one class of all others."""
    cdef Classes found = Classes()
    found.note(CHARACTERS, 15)
    found.settle()
    found.split(CHARACTERS, 15)
    return found


cdef struct Place:
    # A state of `Comparison`.
    int32_t where
    int32_t is_negative, has_negative_exponent
    int32_t count       # digits read in the whole part, the fraction or the exponent, as long as they matter
    int32_t order       # comparison of the number so far; in the exponent, of its digits
    int32_t m_count     # count and order of the digits of a mantissa, from the first digit on
    int32_t m_order


cdef inline int32_t compare(int64_t a, int64_t b) noexcept:
    return (a > b) - (a < b)


cdef class Comparison(Machine):
    """The comparison of a magnitude's digits with the digits of a bound, to which zeros are appended."""

    cdef bytes whole, part, mantissa, power   # digits of the bound as integers, and digits of its exponent
    cdef int32_t exponent
    cdef int32_t[2] wanted      # the accepted results, without and with a minus
    cdef bint exponents

    def __cinit__(self, str bound, int32_t positive, int32_t negative, bint exponents):
        whole, _, part = bound.partition(".")
        digits = (whole + part).lstrip("0")
        self.whole, self.part, self.mantissa = values(whole), values(part), values(digits.rstrip("0"))
        self.exponent = <int32_t>(len(digits) - len(part) - 1)
        self.power = values(str(abs(self.exponent)).lstrip("0"))
        self.wanted[0], self.wanted[1], self.exponents = positive, negative, exponents
        self.width, self.classes = sizeof(Place) // 4, of_numbers()

    cdef bint step(self, const int32_t* state, int32_t k, int32_t* after) noexcept:
        cdef Place p
        cdef int32_t char = self.classes.sample(k)
        cdef bint done
        memcpy(&p, state, sizeof(Place))
        if p.where == ANYWHERE:
            done = k != 0
        elif char == 45 and p.where == START:
            p.where, p.is_negative = SIGN, 1
            done = True
        elif char == 46 and (p.where == ZERO or p.where == WHOLE):
            p.where, p.order = POINT, compare(p.count, len(self.whole)) or p.order
            p.count = 0
            done = True
        elif char == 69 and (p.where == WHOLE or p.where == PART) and p.m_order != NO_EXPONENT:
            # all digits are read: only their order matters
            p.where, p.m_order = E, p.m_order or -(p.m_count < len(self.mantissa))
            p.m_count = p.count = p.order = 0
            done = True
        elif (char == 43 or char == 45) and p.where == E:
            p.where, p.has_negative_exponent = E_SIGN, char == 45
            done = True
        else:
            done = 48 <= char <= 57 and self.digit(&p, char - 48)
        if p.where != START and self.wanted[p.is_negative] == (LESS | EQUAL | GREATER):
            memset(&p, 0, sizeof(Place))
            p.where = ANYWHERE
        memcpy(after, &p, sizeof(Place))
        return done and (p.where == ANYWHERE or self.wanted[p.is_negative])

    cdef bint digit(self, Place* p, int32_t digit) noexcept:
        cdef bint first = p.where == START or p.where == SIGN
        if first:
            p.where = WHOLE if digit else ZERO
            p.m_order = 0 if digit and self.exponents else NO_EXPONENT
        elif p.where == WHOLE:
            p.m_count, p.m_order = 0, NO_EXPONENT
        elif p.where == POINT or p.where == PART:
            p.where = PART
        elif p.where == E or p.where == E_SIGN or p.where == EXPONENT:
            p.where = EXPONENT
            if digit or p.count:
                read_whole(self.power, &p.count, &p.order, digit)
            return True
        else:
            return False
        if p.where == PART:
            read(self.part, &p.count, &p.order, digit)
        else:
            read_whole(self.whole, &p.count, &p.order, digit)
        if p.m_order != NO_EXPONENT:
            read(self.mantissa, &p.m_count, &p.m_order, digit)
        return True

    cdef bint accepts(self, const int32_t* state) noexcept:
        cdef const Place* p = <const Place*>state
        cdef int32_t order, sign
        if p.where == ANYWHERE:
            return True
        if p.where == ZERO or p.where == WHOLE:
            order = compare(p.count, len(self.whole)) or p.order or -(len(self.part) > 0)
        elif p.where == PART:
            order = p.order or -(p.count < len(self.part))
        elif p.where != EXPONENT:
            return False
        elif len(self.mantissa) == 0:
            order = 1
        else:
            sign = -1 if p.has_negative_exponent else 1
            if p.count == 0:
                order = compare(0, self.exponent)
            elif sign * self.exponent <= 0:
                order = sign
            else:
                order = sign * (compare(p.count, len(self.power)) or p.order)
            order = order or p.m_order
        return (self.wanted[p.is_negative] & (LESS if order < 0 else GREATER if order else EQUAL)) != 0


cdef bytes values(str digits):
    return bytes([ord(digit) - 48 for digit in digits])


cdef inline void read(bytes digits, int32_t* count, int32_t* order, int32_t digit) noexcept:
    """Reads one more digit from the left: the first different digit decides."""
    if order[0] == 0:
        if count[0] < len(digits):
            order[0] = compare(digit, (<const unsigned char*>digits)[count[0]])
            count[0] += 1
        else:
            order[0] = digit > 0
        if order[0]:
            count[0] = 0


cdef inline void read_whole(bytes digits, int32_t* count, int32_t* order, int32_t digit) noexcept:
    """Reads one more digit of an integer: an integer of more digits than the bound is greater."""
    if count[0] < len(digits):
        order[0] = order[0] or compare(digit, (<const unsigned char*>digits)[count[0]])
        count[0] += 1
    else:
        count[0], order[0] = <int32_t>len(digits) + 1, 0


def compared(str bound not None, int positive, int negative, bint exponents) -> Dfa:
    """The texts of numbers whose magnitude compares with a bound in an accepted way.

    Args:
        bound: a number in full, without a sign and without superfluous zeros.
        positive, negative: sets of `LESS`, `EQUAL` and `GREATER`, for numbers without and with a minus.
        exponents: whether numbers may have exponents.
    """
    cdef Comparison machine
    cdef Place start
    whole, point, part = bound.partition(".")
    if not (whole.isdecimal() and whole.isascii() and (part.isdecimal() and part.isascii() if point else True)):
        raise ValueError(f"bound: expected a number in full, got {bound!r}")
    if len(bound) > MAX_PLACES or not 0 <= positive <= 7 or not 0 <= negative <= 7:
        raise ValueError(f"compared: expected {MAX_PLACES} digits and sets of orders, got {positive}, {negative}")
    machine = Comparison(bound, positive, negative, exponents)
    memset(&start, 0, sizeof(Place))
    return machine.automaton(<const int32_t*>&start)


# ---------------------------------------------------------------------- remainders


cdef class Remainders(Machine):
    """A state: whether a digit was read; digits after the point, -1 before it; the remainder so far."""

    cdef int32_t modulus, places

    def __cinit__(self, int32_t modulus, int32_t places):
        self.modulus, self.places, self.width, self.classes = modulus, places, 3, of_numbers()

    cdef bint step(self, const int32_t* state, int32_t k, int32_t* after) noexcept:
        cdef int32_t char = self.classes.sample(k)
        memcpy(after, state, 12)
        if char == 45:
            return not state[0]
        if char == 46:
            if not state[0] or state[1] >= 0:
                return False
            after[1] = 0
        elif not 48 <= char <= 57:
            return False
        elif state[1] == self.places:
            return char == 48
        else:
            after[0], after[2] = 1, <int32_t>((<int64_t>state[2] * 10 + char - 48) % self.modulus)
            if state[1] >= 0:
                after[1] += 1
        return after[1] < self.places or after[2] == 0  # digits after the last place are 0

    cdef bint accepts(self, const int32_t* state) noexcept:
        cdef int64_t rest = state[2]
        for _ in range(max(state[1], 0), self.places):
            rest = rest * 10 % self.modulus
        return state[0] != 0 and rest == 0


def multiples(int modulus, int places) -> Dfa:
    """The texts in full of the multiples of ``modulus / 10**places``."""
    cdef int32_t[3] start = [0, -1, 0]
    if not (0 < modulus <= MAX_MODULUS and 0 <= places <= MAX_PLACES):
        raise ValueError(f"modulus, places: expected 1 to {MAX_MODULUS} and 0 to {MAX_PLACES}, got {modulus}, {places}")
    return Remainders(modulus, places).automaton(start)
