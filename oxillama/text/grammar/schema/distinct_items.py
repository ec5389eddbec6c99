"""The texts of arrays, including arrays whose items must differ (`uniqueItems`).

Items are compared by their texts, so each value is written in one way: strings as `json.dumps` writes them
without ``ensure_ascii``, numbers in full without an exponent or needless zeros, properties in the order of
the schema. White space between tokens is free, and ignored in comparisons. Arrays and objects that can always
be extended (by an item, by a property of any name) are written freely, and compared by their values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from math import prod

from oxillama.errors import GrammarError
from oxillama.text.grammar.dfa import automaton, meet
from oxillama.text.grammar.regex import parse_regex
from oxillama.text.grammar.rules import Alt, Dfa, Distinct, Member, Node, Ref, Text
from oxillama.text.grammar.schema.array_text import MAX_COUNTING, counting_array, plain_array
from oxillama.text.grammar.schema.arrays import Arrays
from oxillama.text.grammar.schema.conditions import NOTHING, State, both, lower, not_all
from oxillama.text.grammar.schema.constants import Constants
from oxillama.text.grammar.schema.formulas import TOP, Conjunct
from oxillama.text.grammar.schema.json_text import bracketed, decimal_text
from oxillama.text.grammar.schema.numbers import Numbers
from oxillama.text.grammar.schema.object_text import ObjectText, object_node
from oxillama.text.grammar.schema.objects import Objects
from oxillama.text.grammar.schema.strings import Strings
from oxillama.text.grammar.schema.writer import Writer

MANY = 10_000  # limit of the number of values that is computed
MAX_DEPTH = 8  # nesting of values whose number is computed
MAX_PAIRS = 16  # limit of items whose pairs are compared
SCALARS = ("null", "boolean", "number", "string")


def array_node(conjunct: Arrays, writer: Writer) -> Node:
    """The JSON texts of the arrays of a conjunct."""
    if (
        conjunct.unique
        and conjunct.most != 1
        and (conjunct.most is None or conjunct.most > 1)
        and not _differ(conjunct, writer)
    ):
        known = writer.rules.copy()
        try:
            return _Items(writer).array(conjunct)
        except _SeveralWays as error:
            writer.rules = known
            writer.unenforced(writer.path, f"uniqueItems, {error}")
    return (
        counting_array(conjunct, writer) if conjunct.contains else plain_array(conjunct, writer, writer.node)
    )


def _differ(conjunct: Arrays, writer: Writer) -> bool:
    """Whether any two items are known to differ, whatever their values."""
    if conjunct.most is None or conjunct.most > MAX_PAIRS:
        return False
    states = [conjunct.at(i) for i in range(conjunct.most)]
    return all(
        both(a, b) == NOTHING or (a and b and writer.impossible(a | b))
        for i, a in enumerate(states)
        for b in states[i + 1 :]
    )


class _SeveralWays(Exception):
    """Raised where equal items could be written in several ways."""


class _Items:
    """Writes values such that equal values have equal texts.

    Attributes:
        names: the rules made so far: of values written in one way, by their state; and of arrays whose items
            differ, by their conjunct and whether each array is written in one way.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.names: dict[State | tuple[Arrays, bool], str] = {}

    # ----------------------------------------------------------------- arrays whose items differ

    def array(self, conjunct: Arrays, once: bool = False) -> Node:
        """The arrays with no two items equal; each written in one way if ``once``. Raises _SeveralWays."""
        if conjunct.contains:
            return self.counted(conjunct, once)
        states = self.states(conjunct)
        counts = [self.count(state, 0) for state in states]
        most = conjunct.most
        if len(states) == 1 and counts[0] is not None:
            most = counts[0] if most is None else min(most, counts[0])
            if conjunct.least > most:
                return Alt(())
        elif any(
            n is not None and n <= i
            for i in range(conjunct.least)
            for n in (counts[min(i, len(counts) - 1)],)
        ):
            raise _SeveralWays("over places with fewer values than minItems needs")
        if most == 0:
            return Text("[]")
        last = len(states) - 1
        places = [
            [replace(member, to=min(i + 1, last)) for member in members]
            for i, members in enumerate(self.members(states, once))
        ]
        may_run_out = len(states) > 1 and any(count is not None for count in counts)
        needed = places[: conjunct.least]
        return self.told_apart(places, [True] * len(places), conjunct.least, most, needed, may_run_out)

    def counted(self, conjunct: Arrays, once: bool) -> Node:
        """The arrays of a conjunct with `contains`, no two items equal. Raises _SeveralWays.

        A place is a tuple of counts, one for each `Contains`, capped where further items do not matter. An
        item counts for at most one `Contains`.
        """
        kinds = conjunct.contains
        pairs = combinations([both(conjunct.rest, kind.state) for kind in kinds], 2)
        if conjunct.prefix or any(kind.start for kind in kinds):
            raise _SeveralWays("together with contains and prefixItems")
        if not all(self.writer.impossible(both(a, b)) for a, b in pairs):
            raise _SeveralWays("with several contains that an item may meet together")
        others = conjunct.rest
        for kind in kinds:
            others = both(others, not_all(kind.state))
        states = [*(both(conjunct.rest, kind.state) for kind in kinds), others]
        counts = [self.count(state, 0) for state in states]
        mosts = [*(lower(kind.most, count) for kind, count in zip(kinds, counts)), counts[-1]]
        most = lower(conjunct.most, None if None in mosts else sum(n for n in mosts if n is not None))
        least = sum(kind.least for kind in kinds)
        too_few = any(n is not None and n < kind.least for kind, n in zip(kinds, mosts))
        if too_few or (most is not None and most < max(conjunct.least, least)):
            return Alt(())
        if most == 0:
            return Text("[]")
        caps = [kind.least if kind.most is None else kind.most for kind in kinds]
        if prod(cap + 1 for cap in caps) > MAX_COUNTING + 1:
            raise GrammarError(
                f"{self.writer.path}: its arrays need more than {MAX_COUNTING} states to count"
            )
        *wanted, unwanted = self.members(states, once)
        numbers = {place: i for i, place in enumerate(product(*(range(cap + 1) for cap in caps)))}
        places, ends = [], []
        for place, number in numbers.items():
            missing = sum(max(0, kind.least - n) for kind, n in zip(kinds, place))
            room = None if conjunct.most is None or not missing else conjunct.most - missing
            members = [] if room == 0 else [replace(member, to=number, room=room) for member in unwanted]
            for i, (kind, n) in enumerate(zip(kinds, place)):
                to = numbers[tuple([min(m + (i == j), caps[j]) for j, m in enumerate(place)])]
                free = None if n < kind.least else room
                if n != kind.most and free != 0:
                    members += [replace(member, to=to, room=free) for member in wanted[i]]
            places.append(members)
            ends.append(not missing)
        needed = [members for kind, members in zip(kinds, wanted) if kind.least]
        may_run_out = any(count is not None for count in counts)
        return self.told_apart(places, ends, max(conjunct.least, min(1, least)), most, needed, may_run_out)

    def told_apart(
        self,
        places: list[list[Member]],
        ends: list[bool],
        least: int,
        most: int | None,
        needed: list[list[Member]],
        may_run_out: bool,
    ) -> Node:
        """Arrays of ``least`` to ``most`` distinct items; each list of ``needed`` must have a usable one."""
        wanted = tuple([Alt(tuple([member.node for member in members])) for members in needed])
        comma, rows = self.writer.layout.comma, tuple(map(tuple, places))
        body = Distinct(rows, tuple(ends), comma, max(1, least), most, needed=wanted, may_run_out=may_run_out)
        return bracketed(body if least else Alt((Text(""), body)), "[]")

    @staticmethod
    def states(conjunct: Arrays) -> list[State]:
        """The states of the first items, and the state of the further items if there may be any."""
        has_rest = conjunct.most is None or conjunct.most > len(conjunct.prefix)
        return [*conjunct.prefix, *([conjunct.rest] if has_rest else [])]

    def members(self, states: list[State], once: bool) -> list[list[Member]]:
        """The items that are allowed at each place. Raises _SeveralWays."""
        states = [self.writer.followed_state(state) for state in states]
        found = [[Member(self.scalars(state), "text")] for state in states]
        for kind in ("array", "object"):
            known, names = self.writer.rules.copy(), self.names.copy()
            try:
                texts = [[Member(node, "text") for node in self.of_kind(state, kind)] for state in states]
            except _SeveralWays:
                if once:
                    raise
                self.writer.rules, self.names = known, names
                texts = [[Member(node, "value") for node in self.endless(state, kind)] for state in states]
            for place, members in zip(found, texts):
                place += members
        return found

    # ----------------------------------------------------------------- values written in one way

    def node(self, state: State) -> Node:
        """The values that meet a state, each written in one way. Raises _SeveralWays."""
        state = self.writer.followed_state(state)
        if state == NOTHING:
            return Alt(())
        return self.rule(
            state,
            lambda: Alt((self.scalars(state), *self.of_kind(state, "array"), *self.of_kind(state, "object"))),
        )

    def rule(self, what: State | tuple[Arrays, bool], make: Callable[[], Node]) -> Ref:
        """The rule of a state's values or of a conjunct's arrays; made once, so a rule may be recursive."""
        if what not in self.names:
            name = self.names[what] = self.writer.new_name(f"{self.writer.path}/item")
            self.writer.rules[name] = Alt(())  # until it is written
            self.writer.rules[name] = make()
        return Ref(self.names[what])

    def scalars(self, state: State) -> Node:
        """The values of a state that are neither arrays nor objects."""
        found: list[Node] = []
        for conjunct in self.conjuncts(state, *SCALARS):
            if isinstance(conjunct, Numbers):
                found.append(_numbers(conjunct))
            elif isinstance(conjunct, Strings):
                layout = self.writer.layout
                found.append(conjunct.node(layout) if layout.mark else conjunct.spelled_once())
            elif isinstance(conjunct, Constants):
                found.append(conjunct.node())
        return Alt(tuple(found))

    def of_kind(self, state: State, kind: str) -> list[Node]:
        """The arrays or objects of a state, each written in one way. Raises _SeveralWays."""
        found: list[Node] = []
        for conjunct in self.conjuncts(state, kind):
            if conjunct == TOP[kind]:
                raise _SeveralWays(f"over any {kind}")
            if isinstance(conjunct, Objects):
                text = ObjectText(conjunct, self.writer, self.node)
                if text.others is not None:
                    raise _SeveralWays("over objects of unknown names")
                found.append(text.node())
            elif isinstance(conjunct, Arrays):
                if conjunct.unique and (conjunct.most is None or conjunct.most > 1):
                    found.append(self.rule((conjunct, True), partial(self.array, conjunct, once=True)))
                elif conjunct.contains:
                    raise _SeveralWays("over arrays with contains")
                else:
                    found.append(plain_array(conjunct, self.writer, self.node))
        return found

    def endless(self, state: State, kind: str) -> list[Node]:
        """Nodes for the arrays or objects of a state, in any spelling. Raises _SeveralWays if their size is
        limited."""
        found: list[Node] = []
        if self.writer.layout.mark and self.conjuncts(state, kind):
            raise _SeveralWays(f"over any {kind}, in a format that is not JSON")
        for conjunct in self.conjuncts(state, kind):
            if conjunct == TOP[kind]:
                found.append(self.writer.any_of_kind(kind))
            elif isinstance(conjunct, Objects):
                if conjunct.exists or not ObjectText(conjunct, self.writer).is_endless():
                    raise _SeveralWays("over objects of which some can be written in several ways")
                found.append(object_node(conjunct, self.writer))
            elif isinstance(conjunct, Arrays):
                if conjunct.most is not None or conjunct.contains or self.writer.impossible(conjunct.rest):
                    raise _SeveralWays("over arrays of which some can be written in several ways")
                if conjunct.unique and not self.is_endless(conjunct.rest):
                    raise _SeveralWays("over arrays of few different items, some written in several ways")
                found.append(
                    self.rule((conjunct, False), partial(self.array, conjunct))
                    if conjunct.unique
                    else plain_array(conjunct, self.writer, self.writer.node)
                )
        return found

    def is_endless(self, state: State) -> bool:
        """Whether infinitely many values meet a state, as far as is known."""
        return any(
            (isinstance(conjunct, (Numbers, Strings)) and self.size(conjunct, 0) is None)
            or (
                isinstance(conjunct, Arrays)
                and conjunct.most is None
                and not self.writer.impossible(conjunct.rest)
            )
            or (isinstance(conjunct, Objects) and ObjectText(conjunct, self.writer).is_endless())
            for conjunct in self.conjuncts(self.writer.followed_state(state), *TOP)
        )

    def conjuncts(self, state: State, *kinds: str) -> list[Conjunct]:
        return [conjunct for kind in kinds for conjunct in self.writer.expander.of_state(state, kind)]

    # ----------------------------------------------------------------- how many values there are

    def count(self, state: State, depth: int) -> int | None:
        """The number of values that meet a state; None if larger than `MANY` or hard to compute."""
        total = 0
        for conjunct in self.conjuncts(self.writer.followed_state(state), *TOP):
            is_any = conjunct in TOP.values() and isinstance(conjunct, (Arrays, Objects))
            size = None if depth > MAX_DEPTH or is_any else self.size(conjunct, depth)
            if size is None or total + size > MANY:
                return None
            total += size
        return total

    def size(self, conjunct: Conjunct, depth: int) -> int | None:
        """The number of values of a conjunct; None as in `count`."""
        if isinstance(conjunct, Constants):
            return len(conjunct.texts)
        if isinstance(conjunct, Numbers):
            numbers = conjunct.finite(MANY)
            return None if numbers is None else len(numbers)
        if isinstance(conjunct, Strings):
            return conjunct.size()
        if isinstance(conjunct, Arrays):
            if conjunct.most is None or conjunct.most > MAX_PAIRS or conjunct.contains or conjunct.unique:
                return None
            counts = [self.count(conjunct.at(i), depth + 1) for i in range(conjunct.most)]
            if None in counts:
                return None
            known = [count for count in counts if count is not None]
            return sum(prod(known[:n]) for n in range(conjunct.least, conjunct.most + 1))
        text = ObjectText(conjunct, self.writer, lambda state: Text(""))
        if text.others is not None or text.least or text.most is not None:
            return None
        ways = [self.count(member.state, depth + 1) for member in text.known]
        if None in ways:
            return None
        return prod([n + (not member.required) for n, member in zip(ways, text.known) if n is not None])


# --------------------------------------------------------------------------- numbers

ONCE = r"-?(?:[1-9]\d*(?:\.\d*[1-9])?|0\.\d*[1-9])|0"  # written in full, without needless zeros


def _numbers(conjunct: Numbers) -> Node:
    """The numbers of a conjunct, each written in one way."""
    if conjunct.values is not None:
        return Alt(tuple([Text(decimal_text(value)) for value in sorted(conjunct.values)]))
    dfa = conjunct.node()
    assert isinstance(dfa, Dfa)  # `node` returns an Alt only for values
    return meet([dfa, automaton(parse_regex(ONCE, search=False))])
