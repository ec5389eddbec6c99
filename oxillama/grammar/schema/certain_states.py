"""States of which it is known that they can be written, though they are of several or combined conditions.

`certain` knows schemas by their keywords. Here a state is brought into its boxes, which takes a small part of
the time of writing its rule, and each box is looked at: one of simple limits can be written, and refers to
states that are read off it. So what is combined is written on demand as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from oxillama.grammar.analysis import is_productive
from oxillama.grammar.rules import Alt, Node, Ref, Seq
from oxillama.grammar.schema.arrays import Arrays
from oxillama.grammar.schema.conditions import ANYTHING, NOTHING, State, both
from oxillama.grammar.schema.constants import Constants
from oxillama.grammar.schema.formulas import TOP, Box
from oxillama.grammar.schema.numbers import Numbers
from oxillama.grammar.schema.objects import Objects
from oxillama.grammar.schema.strings import Strings
from oxillama.grammar.schema.writer import Writer

MAX_PREFIX = 64  # items of an array with places of their own
MAX_COUNTED = 16  # properties, where they are counted
MAX_MEMBERS = 64  # names of such an object
MAX_NUMBER = 10**12  # of a bound
MAX_PLACES = 10**6  # ... and of its denominator
ANYHOW = Seq(())  # met by some value whatever else is met
NEVER = Alt(())


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a state.

    Attributes
    ----------
    below : the states that its rule refers to, references followed.
    needs : what must be met below for it to be met, as an expression of names of rules.
    """

    below: tuple[State, ...]
    needs: Node


class CertainStates:
    """Finds the states of which every box is certain."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.below: dict[State, None] = {}

    def of(self, state: State) -> Found | None:
        """What is known of a state; None where it has to be written. GrammarError as for writing it."""
        return self.writer.at(state, self.find)

    def find(self, state: State) -> Found | None:
        self.below = {}
        ways: list[Node] = []
        for kind in TOP:
            for box in self.writer.expander.of_state(state, kind):
                needs = ANYHOW if box == TOP[kind] else self.box(box)
                if needs is None:
                    return None
                ways.append(needs)
        return Found(tuple(self.below), ANYHOW if ANYHOW in ways else Alt(tuple(dict.fromkeys(ways))))

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
        state = self.writer.followed_state(state)
        if state == NOTHING:
            return NEVER
        if state == ANYTHING:
            return ANYHOW
        self.below[state] = None
        return Ref(self.writer.name(state))

    def arrays(self, box: Arrays) -> Node | None:
        if box.contains or (box.unique and box.most != 1) or len(box.prefix) > MAX_PREFIX:
            return None
        if box.most == 0:
            return ANYHOW
        items = [self.meets(state) for state in (*box.prefix, box.rest)]
        return _all(items[: box.least])

    def objects(self, box: Objects) -> Node | None:
        kinds = [kind for kind, _ in box.rules]
        if box.exists or box.names or any(kind.patterns or kind.absent or kind.state for kind in kinds):
            return None
        known = box.known_names()
        if box.most is not None and (box.most > MAX_COUNTED or len(known) > MAX_MEMBERS):
            return None
        properties = dict(box.properties)
        members: dict[str, Node] = {}
        for name in known:
            state = properties.get(name, ANYTHING)
            for kind, needs in box.rules:
                if name not in kind.but:
                    state = both(state, needs)
            if not _is_text(name):
                state = NOTHING
            members[name] = NEVER if self.writer.impossible(state) else self.meets(state)
        state = ANYTHING
        for _, needs in box.rules:
            state = both(state, needs)
        closed = not self.writer.open_objects and bool(known) and not box.rules
        others = NEVER if closed or self.writer.impossible(state) else self.meets(state)
        if box.least > max(1, len(box.required)):
            return None
        if box.least and not box.required:
            return _any((*members.values(), others))
        return _all(members[name] for name in box.required)


def _all(needs: Iterable[Node]) -> Node:
    """All of these."""
    found = tuple(dict.fromkeys(one for one in needs if one != ANYHOW))
    return found[0] if len(found) == 1 else Seq(found)


def _any(needs: Iterable[Node]) -> Node:
    """Any of these."""
    found = tuple(dict.fromkeys(needs))
    return ANYHOW if ANYHOW in found else Alt(found)


def _is_text(text: str) -> bool:
    """Whether it has an encoding."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _has_strings(box: Strings) -> bool:
    """Whether the strings of a box can be written, and there are some."""
    if box.values is not None:
        return all(map(_is_text, box.values))
    if box.absent or len(box.patterns) + bool(box.excluded) + bool(box.least or box.most is not None) > 1:
        return False
    return all(map(is_productive, box.patterns))


def _has_numbers(box: Numbers) -> bool:
    """Whether the numbers of a box can be written, and there are some."""
    if box.values is not None:
        return all(map(_is_plain, box.values))
    if box.excluded or box.not_steps or box.step not in (None, Fraction(1)):
        return False
    bounds = [bound for bound in (box.low, box.high) if bound is not None]
    return all(map(_is_plain, bounds)) and (len(bounds) < 2 or bounds[1] - bounds[0] > 1)


def _is_plain(number: Fraction) -> bool:
    """Whether a number has few digits."""
    return abs(number) < MAX_NUMBER and MAX_PLACES % number.denominator == 0
