"""States of which it is known that they can be written, though they are of several or combined conditions.

`certain` knows schemas by their keywords. Here a state is brought into its boxes, which takes a small part of
the time of writing its rule, and each box is looked at: which states it refers to is read from what will
write it, and automata that might be too large are made now. So what is combined is written on demand as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import count
from math import prod

from oxillama.grammar.analysis import is_productive
from oxillama.grammar.rules import Alt, Node, Ref, Seq
from oxillama.grammar.schema.arrays import Arrays
from oxillama.grammar.schema.certain import ANYHOW, Certain, is_text
from oxillama.grammar.schema.conditions import ANYTHING, NOTHING, State, both, not_all
from oxillama.grammar.schema.constants import Constants
from oxillama.grammar.schema.formulas import TOP, Box
from oxillama.grammar.schema.numbers import Numbers
from oxillama.grammar.schema.object_text import ObjectText, object_texts
from oxillama.grammar.schema.objects import Objects
from oxillama.grammar.schema.strings import Strings
from oxillama.grammar.schema.writer import Writer

MAX_PREFIX = 64  # items of an array with places of their own
MAX_COUNTED = 16  # properties, where they are counted
MAX_MEMBERS = 64  # names of such an object
MAX_REMAINDERS = 100  # that a number is told by
MAX_NUMBER = 10**12  # of a bound
MAX_PLACES = 10**6  # ... and of its denominator
NEVER = Alt(())


class CertainStates:
    """Finds the states of which every box is certain."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.below: dict[State, None] = {}
        self.found: dict[State, tuple[State, Node]] = {}  # states, references followed, and what they need

    def of(self, state: State) -> Certain | None:
        """What is known of a state; None where it has to be written. GrammarError as for writing it."""
        return self.writer.at(state, self.find)

    def find(self, state: State) -> Certain | None:
        self.below = {}
        ways: list[Node] = []
        for kind in self.writer.expander.asked(state):
            for box in self.writer.expander.of_state(state, kind):
                needs = ANYHOW if box == TOP[kind] else self.box(box)
                if needs is None:
                    return None
                ways.append(needs)
        return Certain(tuple(self.below), _any(ways))

    def box(self, box: Box) -> Node | None:
        """What a box needs; None where that is not seen."""
        if isinstance(box, Arrays):
            return self.arrays(box)
        if isinstance(box, Objects):
            return self.objects(box)
        if isinstance(box, Strings):
            return ANYHOW if _has_strings(box) else None
        return ANYHOW if isinstance(box, Constants) or _has_numbers(box) else None

    def meets(self, state: State) -> Node:
        """What a value that meets a state needs; the state is one of those below."""
        if state not in self.found:
            followed = self.writer.followed_state(state)
            needs: Node = Ref(self.writer.name(followed))
            if followed == ANYTHING:
                needs = ANYHOW
            elif followed == NOTHING or self.writer.impossible(followed):
                needs = NEVER
            self.found[state] = followed, needs
        followed, needs = self.found[state]
        if followed not in (ANYTHING, NOTHING):  # the rule refers to it, to what has no text too
            self.below[followed] = None
        return needs

    def arrays(self, box: Arrays) -> Node | None:
        if (box.unique and box.most != 1) or len(box.prefix) > MAX_PREFIX:
            return None
        if box.contains:
            return self.counted(box)
        if box.most == 0:
            return ANYHOW
        items = [self.meets(state) for state in (*box.prefix, box.rest)]
        return _all(items[: box.least])

    def counted(self, box: Arrays) -> Node | None:
        """The arrays of which so many items are of one kind, wherever they stand."""
        ((kind, start, least, most), *more) = box.contains
        if more or start or box.prefix or max(box.least, box.most or 0, least, most or 0) > MAX_COUNTED:
            return None
        one = self.meets(both(box.rest, kind))
        other = self.meets(box.rest if most is None else both(box.rest, not_all(kind)))
        # The ways to have as few, and as many, of the kind as there may be.
        high = max(least, box.least) if most is None else min(most, max(least, box.least))
        return _any(_all([one] * (n > 0) + [other] * (box.least > n)) for n in {least, high})

    def objects(self, box: Objects) -> Node | None:
        if (
            len(box.exists) > 1
            or (box.most is not None and box.most > MAX_COUNTED)
            or box.least > MAX_COUNTED
        ):
            return None
        ways = []
        for text in object_texts(box, self.writer):
            needs = NEVER if text.impossible() else self.object(text)
            if needs is None:
                return None
            ways.append(needs)
        return _any(ways)

    def object(self, text: ObjectText) -> Node | None:
        """What one of the ways to write the objects of a box needs."""
        box, others = text.box, text.others
        existing = text.other_members(box.exists) if box.exists else None
        names = [named for found in (others, existing) if found for _, kinds in found.ways for named in kinds]
        is_plain = not any(named.patterns or named.absent for named in names)
        if text.tells_apart and not (is_plain and len(text.known) <= MAX_MEMBERS):
            return None
        for named in names:
            if named.least or named.most is not None or named.values is not None:
                return None
            if not _has_strings(named):
                named.automaton(bounded=False)  # or an error, which would come when the rule is written
        members = {name: self.meets(state) if is_text(name) else NEVER for name, state, _ in text.known}
        unknown = _any([self.meets(state) for state, _ in others.ways]) if others else NEVER
        needs = [members[name] for name in box.required]
        if box.exists:
            if text.least or (text.most is not None and text.n_required >= text.most):
                return None
            needs.append(_any([self.meets(state) for state, _ in existing.ways]) if existing else NEVER)
        elif text.least:
            if unknown is not ANYHOW and len(text.known) > text.n_required:
                return None
            needs.append(unknown)
        elif box.least and not box.required:
            if not is_plain:
                return None
            needs.append(_any([*members.values(), unknown]))
        return _all(needs)


def _all(needs: Iterable[Node]) -> Node:
    """All of these."""
    found = tuple(dict.fromkeys([one for one in needs if one is not ANYHOW]))
    return found[0] if len(found) == 1 else Seq(found) if found else ANYHOW


def _any(needs: Iterable[Node]) -> Node:
    """Any of these."""
    found = tuple(needs)
    if any(one is ANYHOW for one in found):
        return ANYHOW
    return found[0] if len(found) == 1 else Alt(tuple(dict.fromkeys(found)))


def _has_strings(box: Strings) -> bool:
    """Whether the strings of a box can be written, and there are some."""
    if box.values is not None:
        return all(map(is_text, box.values))
    if box.absent or len(box.patterns) + bool(box.excluded) + bool(box.least or box.most is not None) > 1:
        return False
    return all(map(is_productive, box.patterns))


def _has_numbers(box: Numbers) -> bool:
    """Whether the numbers of a box can be written, and there are some."""
    if box.values is not None:
        return all(map(_is_plain, box.values))
    bounds = [bound for bound in (box.low, box.high) if bound is not None]
    steps = [step for step in (box.step, *box.not_steps) if step is not None]
    if box.excluded or not all(map(_is_plain, (*bounds, *steps))):
        return False
    if prod([_remainders(step) for step in steps]) > MAX_REMAINDERS:
        return False
    if box.step is not None:
        return not box.not_steps or len(bounds) < 2  # a multiple is in, settled bounds are multiples
    return len(bounds) < 2 or bounds[1] - bounds[0] > 1 or not (steps or box.low_open or box.high_open)


def _remainders(step: Fraction) -> int:
    """How many remainders an automaton of multiples tells apart, at most."""
    places = next(places for places in count() if 10**places % step.denominator == 0)
    return int(step * 10**places) * (places + 1)


def _is_plain(number: Fraction) -> bool:
    """Whether a number has few digits."""
    return abs(number) < MAX_NUMBER and MAX_PLACES % number.denominator == 0
