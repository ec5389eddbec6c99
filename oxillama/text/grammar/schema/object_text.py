"""The JSON texts of objects.

Properties whose names the schema mentions occur at most once each, in the order of the schema or in any
order. Properties with other names may occur anywhere between them, and their names may repeat. Only where
other names are counted, or required to exist, are they compared (`Distinct`), so that no name repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from oxillama.errors import GrammarError
from oxillama.text.grammar.dfa import language
from oxillama.text.grammar.expressions import differ
from oxillama.text.grammar.rules import Alt, Distinct, Member, Node, Repeat, Seq
from oxillama.text.grammar.schema.conditions import ANYTHING, NOTHING, State, both
from oxillama.text.grammar.schema.json_text import Layout, bracketed
from oxillama.text.grammar.schema.objects import Names, Objects, Rule
from oxillama.text.grammar.schema.strings import Strings
from oxillama.text.grammar.schema.writer import Writer

MAX_PATTERNS = 8  # patterns that classify names
MAX_MEMBERS = 20_000  # members of all places of one object
MAX_KINDS = 3  # required properties of unknown names
FEW_NAMES = 32  # limit of possible other names that are enumerated
MAX_CASES = 64  # ways to have the required properties

EMPTY = Seq(())
ANY = Strings()


class Known(NamedTuple):
    """A property with a known name, and the state of its value."""

    name: str
    state: State
    required: bool


class Others(NamedTuple):
    """Properties of unknown names: pairs of a state of values and the sets of names with that state."""

    ways: tuple[tuple[State, tuple[Strings, ...]], ...]

    def size(self) -> int | None:
        """The number of possible names; None if infinite or large."""
        counts = [named.size() for _, names in self.ways for named in names]
        return None if None in counts else sum(count for count in counts if count is not None)


def object_node(conjunct: Objects, writer: Writer) -> Node:
    """The JSON texts of a conjunct's objects, as a union of cases that cover the conjunct."""
    known = _with_few_names(conjunct, writer) if tells_apart(conjunct) else conjunct
    found = [ObjectText(case, writer).node() for case in _cases(known, writer)]
    return found[0] if len(found) == 1 else Alt(tuple(found))


def tells_apart(conjunct: Objects) -> bool:
    """Whether unknown names are counted, or must exist; then names are compared with each other."""
    return bool(conjunct.exists) or conjunct.least > 1 or conjunct.most is not None


def _with_few_names(conjunct: Objects, writer: Writer) -> Objects:
    """The conjunct with its possible other names listed as properties, if these are few."""
    if not (conjunct.names or any(kind.patterns or kind.absent or kind.state for kind, _ in conjunct.rules)):
        return conjunct
    others = ObjectText(conjunct._replace(exists=()), writer).others
    size = others.size() if others is not None else None
    if others is None or size is None or size > FEW_NAMES:
        return conjunct
    names = {text: None for _, kinds in others.ways for named in kinds for text in named.texts()}
    properties = (*conjunct.properties, *((name, ANYTHING) for name in names))
    no_others = Rule(Names(but=frozenset((*conjunct.known_names(), *names))), NOTHING)
    return conjunct._replace(properties=properties, rules=(*conjunct.rules, no_others))


def _cases(conjunct: Objects, writer: Writer) -> list[Objects]:
    """Conjuncts that cover this one; in each, a required property has a known name or an unknown one."""
    if not conjunct.exists:
        return [conjunct]
    known = conjunct.known_names()
    is_closed = any(kind == Names(but=kind.but) and state == NOTHING for kind, state in conjunct.rules)
    cases = [conjunct._replace(exists=())]
    for rule in conjunct.exists:
        found = []
        for case in cases:
            for name in known:
                if _is_of(name, rule.names, writer):
                    met = case.meet(Objects(properties=((name, rule.state),), required=(name,)))
                    found += [met] if met is not None else []
            if is_closed:
                continue
            if len(case.exists) < MAX_KINDS or rule in case.exists:
                found.append(case._replace(exists=tuple(dict.fromkeys((*case.exists, rule)))))
            else:
                reason = f"that properties of unknown names exist of more than {MAX_KINDS} kinds"
                writer.unenforced(writer.path, reason)
                found.append(case)
        cases = list(dict.fromkeys(found))
        if len(cases) > MAX_CASES:
            raise GrammarError(
                f"{writer.path}: more than {MAX_CASES} ways to have the properties it must have"
            )
    return cases


def _is_of(name: str, names: Names, writer: Writer) -> bool:
    """Whether a name belongs to a set of names."""
    if name in names.but:
        return False
    if names.patterns and not all(language(node).accepts(name) for node in names.patterns):
        return False
    if names.absent and any(language(node).accepts(name) for node in names.absent):
        return False
    return not names.state or any(conjunct.accepts(name) for conjunct in writer.strings(names.state))


class ObjectText:
    """Writes the texts of one conjunct.

    Args:
        value: makes the texts of a state's values, each written in one way; None: the writer's `node`.
    """

    def __init__(
        self, conjunct: Objects, writer: Writer, value: Callable[[State], Node] | None = None
    ) -> None:
        self.conjunct = conjunct
        self.writer = writer
        self.layout: Layout = writer.layout
        self.is_once: bool = value is not None
        self.value: Callable[[State], Node] = value or writer.node
        self.names: list[str] = conjunct.known_names()
        self.own: dict[tuple[str, State], Node] = {}  # rules of properties written in one way
        self.tells_apart: bool = tells_apart(conjunct)
        self.known: list[Known] = self.known_members()
        self.n_required: int = sum(member.required for member in self.known)
        self.others: Others | None = self.other_members(())
        self.any_order: bool = writer.any_order and not self.is_once
        self.least: int = conjunct.least if conjunct.least > max(1, self.n_required) else 0
        self.most = conjunct.most
        if self.others is None and self.most is not None and len(self.known) <= self.most:
            self.most = None

    def node(self) -> Node:
        if self.impossible():
            return Alt(())
        plain = not (self.any_order or self.least or self.most is not None or self.conjunct.exists)
        ways = [self.in_a_row() if plain else self.told_apart()]
        if not (self.n_required or self.conjunct.least or self.conjunct.exists):
            ways.append(EMPTY)
        return bracketed(Alt(tuple(ways)), "{}")

    def impossible(self) -> bool:
        there = {member.name for member in self.known}
        if any(name not in there for name in self.conjunct.required):
            return True
        return self.others is None and (bool(self.conjunct.exists) or self.conjunct.least > len(self.known))

    def is_endless(self) -> bool:
        """Whether a further property of a new unknown name is always possible."""
        return self.others is not None and self.others.size() is None and self.conjunct.most is None

    # ----------------------------------------------------------------- properties

    def known_members(self) -> list[Known]:
        """The possible properties with known names, and the states of their values."""
        found, impossible = [], self.writer.impossible
        properties, required = dict(self.conjunct.properties), set(self.conjunct.required)
        names = self.writer.strings(self.conjunct.names) if self.conjunct.names else None
        for name in self.names:
            state = properties.get(name, ANYTHING)
            if names is not None and not any(conjunct.accepts(name) for conjunct in names):
                continue
            for kind, needs in self.conjunct.rules:
                if name not in kind.but and _is_of(name, kind, self.writer):
                    state = both(state, needs)
            if state != NOTHING and (len(state) < 2 or not impossible(state)):
                found.append(Known(name, state, name in required))
        return found

    def member(self, known: Known) -> Node:
        """A property as a rule, so that several places can use it."""

        key = known.name, known.state
        made = self.own if self.is_once else self.writer.members
        if key not in made:
            made[key] = self.writer.rule(self.item(known), f"{self.writer.path}/{known.name}-")
        return made[key]

    def item(self, known: Known) -> Node:
        return Seq((self.layout.name(known.name), self.layout.colon, self.value(known.state)))

    def other_members(self, must: tuple[Rule, ...]) -> Others | None:
        """The properties of other names that match all rules of ``must``; None if there can be none."""
        wanted, state = Names(), ANYTHING
        for kind, needs in must:
            wanted = Names(
                wanted.but | kind.but,
                tuple(dict.fromkeys(wanted.patterns + kind.patterns)),
                tuple(dict.fromkeys(wanted.absent + kind.absent)),
                both(wanted.state, kind.state),
            )
            state = both(state, needs)
        if state == NOTHING or set(wanted.patterns) & set(wanted.absent):
            return None
        names = self.writer.strings(both(self.conjunct.names, wanted.state))
        patterns: list[Node] = []
        for kind, _ in (*self.conjunct.rules, Rule(wanted, ANYTHING)):
            patterns += [node for node in (*kind.patterns, *kind.absent) if node not in patterns]
        if len(patterns) > MAX_PATTERNS:
            raise GrammarError(
                f"{self.writer.path}: more than {MAX_PATTERNS} patterns tell its properties apart"
            )
        if not patterns and names == [ANY]:
            return self.kinds(patterns, names, wanted, state)
        key = self.conjunct.rules, self.conjunct.names, must, frozenset(self.names), self.tells_apart
        return self.writer.once(key, lambda: self.kinds(patterns, names, wanted, state))

    def kinds(self, patterns: list[Node], names: list[Strings], wanted: Names, must: State) -> Others | None:
        """The properties of other names, grouped by the state of their values."""
        rules = self.conjunct.rules
        closed = not self.writer.open_objects and self.names and all(kind.patterns for kind, _ in rules)
        known = frozenset(self.names) | wanted.but
        ways: dict[State, list[Strings]] = {}
        for matched, absent in self.classes(patterns, wanted):
            state = must
            for kind, needs in rules:
                if set(kind.patterns) <= matched and not set(kind.absent) & matched:
                    state = both(state, needs)
            if state == NOTHING or self.writer.impossible(state) or (closed and not matched):
                continue
            matching = Strings(patterns=frozenset(matched), absent=frozenset(absent)) if patterns else ANY
            for conjunct in names:
                named = matching.meet(conjunct) if patterns else conjunct
                if named == ANY:
                    named = Strings(excluded=known)
                elif named is not None:
                    named = named.without(known)
                if named is not None and not (self.tells_apart and named.is_empty()):
                    ways.setdefault(state, []).append(named)
        if not ways:
            return None
        return Others(tuple((state, tuple(found)) for state, found in ways.items()))

    def classes(self, patterns: list[Node], wanted: Names) -> list[tuple[set[Node], set[Node]]]:
        """Splits names by patterns: (matched, unmatched) for each combination that some name may have."""
        found: list[tuple[set[Node], set[Node]]] = [(set(wanted.patterns), set(wanted.absent))]
        for node in patterns:
            if node in wanted.patterns or node in wanted.absent:
                continue
            longer = []
            for matched, absent in found:
                if not matched:
                    longer.append((matched, absent | {node}))
                    longer.append(({node}, {other for other in absent if not differ(node, other)}))
                elif any(differ(node, other) for other in matched) or _none_match(matched | {node}):
                    longer.append((matched, absent))
                else:
                    longer += [(matched, absent | {node}), (matched | {node}, absent)]
            found = longer
        return found

    # ----------------------------------------------------------------- order and number

    def free(self) -> Node | None:
        """A property of an unknown name, which may repeat; None if there can be none."""
        others = self.others
        if others is None:
            return None

        def make() -> Node:
            ways = [
                Seq((Alt(tuple([named.name_node(self.layout) for named in names])), *self.behind(state)))
                for state, names in others.ways
            ]
            return self.writer.rule(Alt(tuple(ways)), f"{self.writer.path}/other")

        return self.writer.once(others, make)

    def behind(self, state: State) -> tuple[Node, Node]:
        """The nodes after a property's name: the colon and the value."""
        return self.layout.colon, self.value(state)

    def in_a_row(self) -> Node:
        """The properties in order, where nothing is counted: a sequence of optional and required members."""
        comma, pad, other = self.layout.comma, self.layout.pad, self.free()
        loop = Repeat(Seq((comma, other)), 0, None) if other else EMPTY
        n_starts = next((i for i, m in enumerate(self.known) if m.required), len(self.known))
        items = [self.member(m) if i <= n_starts else self.item(m) for i, m in enumerate(self.known)]
        parts: list[Node] = [loop] if other else []  # in reverse order
        tails: dict[int, Node] = {len(self.known): loop}
        for i in range(len(self.known) - 1, -1, -1):
            member = self.known[i]
            item: Node = Seq((comma, items[i]))
            parts += [item if member.required else Repeat(item, 0, 1), loop]
            if i <= n_starts + 1:  # used here and by the member before
                tail: Node = Seq(tuple(reversed(parts)))
                tails[i] = self.writer.rule(tail, f"{self.writer.path}-rest") if n_starts else tail
                parts = [tails[i]] if n_starts else parts
        starts = [(item, tails[i + 1]) for i, item in enumerate(items[: n_starts + 1])]
        starts += [(other, tails[0])] if other else []
        return Alt(tuple([Seq((pad, first, rest, pad)) for first, rest in starts]))

    def told_apart(self) -> Node:
        """The properties of an object in the general case: counted, required by `exists`, or in any order.

        A place of the `Distinct` is a pair: the number of known properties passed (0 with any order), and the
        bit set of the ``exists`` rules already met.
        """
        n_kinds = len(self.conjunct.exists)
        self.bound_by_names()
        known = sorted(self.known, key=lambda m: not m.required) if self.any_order else self.known
        passed = range(1 if self.any_order else len(known) + 1)
        places = [(done, seen) for done in passed for seen in range(1 << n_kinds)]
        number = {place: i for i, place in enumerate(places)}
        found = [tuple(self.at(place, known, number)) for place in places]
        if sum(map(len, found)) > MAX_MEMBERS:
            raise GrammarError(
                f"{self.writer.path}: its objects need more than {MAX_MEMBERS} places to count"
            )
        ends = [seen == (1 << n_kinds) - 1 and not self.needed((done, 0), known, 0) for done, seen in places]
        marks = self.n_required if self.any_order else 0
        if n_kinds and not _leads_to_an_end(found, ends, None if self.most is None else self.most - marks):
            return Alt(())
        needed = tuple([self.member(member) for member in known if member.required])
        for rule in self.conjunct.exists:
            others = self.other_members((rule,))
            needed += (Alt(tuple([self.value(state) for state, _ in others.ways] if others else ())),)
        body = Distinct(
            tuple(found), tuple(ends), self.layout.comma, max(1, self.least), self.most, marks, needed
        )
        return Seq((self.layout.pad, body, self.layout.pad))

    def bound_by_names(self) -> None:
        """Where unknown names are compared and few, bound the number of properties by the number of names."""
        for rules in (*((rule,) for rule in self.conjunct.exists), ()):
            others = self.other_members(rules)
            counted = self.least or self.most is not None or self.conjunct.exists
            size = others.size() if others is not None and counted else None
            if size is None:
                continue
            if rules or max(self.least, self.n_required) > size:
                reason = f"properties of unknown names that are counted, of which there are {size}"
                self.writer.unenforced(self.writer.path, reason)
            elif self.most is None or self.most > size:
                self.most = size

    def needed(self, place: tuple[int, int], known: list[Known], n_kinds: int) -> int:
        """The number of properties that must still follow; with any order, only ``exists`` rules count."""
        done, seen = place
        kinds = n_kinds - seen.bit_count()
        return kinds if self.any_order else kinds + sum(member.required for member in known[done:])

    def at(
        self, place: tuple[int, int], known: list[Known], number: dict[tuple[int, int], int]
    ) -> Iterator[Member]:
        """The properties that may follow at a place."""
        done, seen = place
        n_kinds = len(self.conjunct.exists)
        reserved = self.n_required if self.any_order else 0

        def room(to: tuple[int, int]) -> int | None:
            return None if self.most is None else self.most - reserved - self.needed(to, known, n_kinds)

        def fits(to: tuple[int, int]) -> bool:
            left = room(to)
            return left is None or left > 0

        for i in range(done, len(known)):
            to = place if self.any_order else (i + 1, seen)
            must = self.any_order and known[i].required
            rest = len(known) - i - 1 if self.others is None and not self.any_order else self.least
            if must or fits(to):
                after = max(0, self.least - rest - 1)
                yield Member(
                    self.member(known[i]), "mark", number[to], i, None, after, None if must else room(to)
                )
            if known[i].required and not self.any_order:
                break
        if not (self.least or self.most is not None or n_kinds):
            other = self.free()
            if other is not None:
                yield Member(other, "nothing", number[place])
            return
        if fits(place):
            yield from self.unknown(self.others, number[place], room(place))
        unseen = [k for k in range(n_kinds) if not seen >> k & 1]
        for count in range(1, len(unseen) + 1):
            for chosen in combinations(unseen, count):
                to = (done, seen | sum(1 << k for k in chosen))
                others = self.other_members(tuple(self.conjunct.exists[k] for k in chosen))
                if self.any_order or fits(to):
                    yield from self.unknown(others, number[to], None if self.any_order else room(to))

    def unknown(self, others: Others | None, to: int, room: int | None) -> Iterator[Member]:
        """Properties of unknown names, compared so that no name repeats."""
        for state, names in others.ways if others is not None else ():
            mark = self.layout.mark
            keys = [named.node(self.layout) if mark else named.spelled_once() for named in names]
            yield Member(Alt(tuple(keys)), "text", to, rest=Seq(self.behind(state)), room=room)


def _leads_to_an_end(places: Sequence[Sequence[Member]], ends: Sequence[bool], most: int | None) -> bool:
    """Whether at most ``most`` members lead from the first place to a place where the object may end."""
    seen, near, steps = {0}, {0}, 0
    while near and not any(ends[place] for place in near):
        near = {member.to for place in near for member in places[place]} - seen
        seen |= near
        steps += 1
    return bool(near) and (most is None or steps <= most)


def _none_match(patterns: set[Node]) -> bool:
    """Whether no name matches all of the patterns."""
    return Strings(patterns=frozenset(patterns)).is_empty()
