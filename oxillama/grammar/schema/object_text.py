"""The texts of objects.

Properties whose names the schema mentions come at most once each: in any order where they are few, else in
the order of the schema. Properties with other names may stand anywhere between them. What a text's reader
makes of a name that comes twice is its own affair, so names that are not mentioned are never counted on:
two of them may be one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from oxillama.errors import GrammarError
from oxillama.grammar.dfa import language
from oxillama.grammar.rules import Alt, Node, Ref, Repeat, Seq
from oxillama.grammar.schema.conditions import ANYTHING, NOTHING, State, both
from oxillama.grammar.schema.json_text import bracketed
from oxillama.grammar.schema.objects import Names, Objects, Rule
from oxillama.grammar.schema.strings import Strings
from oxillama.grammar.schema.writer import Writer

MAX_PATTERNS = 8  # that names are told apart by
MAX_STATES = 20_000  # of one object that counts
MAX_CASES = 64  # ways to meet what must exist

EMPTY = Seq(())
# How far an object has been written: the known members used (bits, if any order will do) or passed (their
# number), the number of properties as far as it matters, whether what must exist has been written.
Progress = tuple[int, int, bool]


@dataclass(frozen=True, slots=True)
class Member:
    """A property with a known name."""

    name: str
    node: Node
    required: bool


def object_node(box: Objects, writer: Writer) -> Node:
    """The JSON texts of the objects of a box."""
    found = [_Object(case, writer).node() for case in _cases(box, writer)]
    return found[0] if len(found) == 1 else Alt(tuple(found))


def _cases(box: Objects, writer: Writer) -> list[Objects]:
    """Boxes that cover this one, in which what must exist has a known name, or is one unknown property."""
    known = box.known_names()
    cases = [replace(box, exists=())]
    for rule in box.exists:
        found = []
        for case in cases:
            for name in known:
                if _is_of(name, rule.names, writer):
                    met = case.meet(Objects(properties=((name, rule.state),), required=(name,)))
                    found += [met] if met is not None else []
            if not case.exists:
                found.append(replace(case, exists=(rule,)))
            elif case.exists != (rule,):
                writer.unenforced(writer.path, "that properties of unknown names exist of more than one kind")
                found.append(case)
        cases = list(dict.fromkeys(found))
        if len(cases) > MAX_CASES:
            raise GrammarError(
                f"{writer.path}: more than {MAX_CASES} ways to have the properties it must have"
            )
    return cases


def _is_of(name: str, names: Names, writer: Writer) -> bool:
    """Whether a name is of a kind."""
    return (
        name not in names.but
        and all(language(node).accepts(name) for node in names.patterns)
        and not any(language(node).accepts(name) for node in names.absent)
        and (not names.state or any(box.accepts(name) for box in writer.strings(names.state)))
    )


class _Object:
    """Writes one box, with at most one unknown property that must exist."""

    def __init__(self, box: Objects, writer: Writer) -> None:
        self.box = box
        self.writer = writer
        self.layout = writer.layout
        self.known = box.known_names()
        self.members = self.known_members()
        must = box.exists[0] if box.exists else None
        self.others = self.other_members(box.rules)
        self.witness = self.other_members(box.rules, must) if must else None
        # A name that comes again must not undo what exists: from then on all of its kind must be alike.
        self.others_after = self.other_members((*box.rules, must)) if must and must.state else self.others
        self.any_order = len(self.members) <= writer.any_order
        self.n_required = sum(member.required for member in self.members)
        self.rules: dict[Progress, str] = {}
        self.todo: list[Progress] = []
        self.set_counts()

    def node(self) -> Node:
        if self.impossible():
            return Alt(())
        return bracketed(self.start(), "{}")

    def impossible(self) -> bool:
        there = {member.name for member in self.members}
        return (bool(self.box.exists) and self.witness is None) or any(
            name not in there for name in self.box.required
        )

    # ----------------------------------------------------------------- properties

    def known_members(self) -> list[Member]:
        """The properties whose names are known, those that cannot be left out."""
        found = []
        properties = dict(self.box.properties)
        for name in self.known:
            state = self.value_state(name, properties.get(name, ANYTHING))
            if state == NOTHING:
                continue
            found.append(Member(name, self.member(name, state), name in self.box.required))
        return found

    def member(self, name: str, state: State) -> Node:
        """A property, as a rule: it may be written in several places."""

        def make() -> Node:
            item = Seq((self.layout.name(name), self.layout.colon, self.writer.node(state)))
            return self.writer.rule(item, f"{self.writer.path}/{name}-")

        return self.writer.once((name, state), make)

    def value_state(self, name: str, state: State) -> State:
        """What the value of a name must meet."""
        if self.box.names and not any(box.accepts(name) for box in self.writer.strings(self.box.names)):
            return NOTHING
        for rule in self.box.rules:
            if _is_of(name, rule.names, self.writer):
                state = both(state, rule.state)
        return NOTHING if self.writer.impossible(state) else state

    def other_members(self, rules: tuple[Rule, ...], must: Rule | None = None) -> Node | None:
        """A property of another name, which ``must`` be of a kind; None where there can be none."""
        wanted = must.names if must else Names()
        names = self.writer.strings(both(self.box.names, wanted.state))
        patterns: list[Node] = []
        for kind, _ in (*rules, Rule(wanted, ANYTHING)):
            patterns += [node for node in (*kind.patterns, *kind.absent) if node not in patterns]
        if len(patterns) > MAX_PATTERNS:
            raise GrammarError(
                f"{self.writer.path}: more than {MAX_PATTERNS} patterns tell its properties apart"
            )
        key = rules, self.box.names, must, frozenset(self.known)
        return self.writer.once(key, lambda: self.kinds(patterns, rules, names, must))

    def kinds(
        self, patterns: list[Node], rules: tuple[Rule, ...], names: list[Strings], must: Rule | None
    ) -> Node | None:
        """The properties of other names, by the patterns that their names match."""
        wanted = must.names if must else Names()
        closed = not self.writer.open_objects and self.known and all(kind.patterns for kind, _ in rules)
        ways: dict[State, list[Node]] = {}
        for matched, absent in self.classes(patterns, wanted):
            state = must.state if must else ANYTHING
            for kind, needs in rules:
                if set(kind.patterns) <= matched and not set(kind.absent) & matched:
                    state = both(state, needs)
            if state == NOTHING or self.writer.impossible(state) or (closed and not matched):
                continue
            kind_of_name = Strings(patterns=frozenset(matched), absent=frozenset(absent))
            for box in names:
                named = kind_of_name.meet(box)
                named = named.without(frozenset(self.known) | wanted.but) if named else None
                if named is not None:
                    ways.setdefault(state, []).append(named.name_node(self.layout))
        members = [
            Seq((Alt(tuple(keys)), self.layout.colon, self.writer.node(s))) for s, keys in ways.items()
        ]
        return self.writer.rule(Alt(tuple(members)), f"{self.writer.path}/other") if members else None

    def classes(self, patterns: list[Node], wanted: Names) -> list[tuple[set[Node], set[Node]]]:
        """Ways for a name to match some patterns and not the others, less those that no name can match."""
        found: list[tuple[set[Node], set[Node]]] = [(set(wanted.patterns), set(wanted.absent))]
        for node in patterns:
            if node in wanted.patterns or node in wanted.absent:
                continue
            longer = []
            for matched, absent in found:
                longer.append((matched, absent | {node}))
                if not matched:
                    longer.append(({node}, absent))
                elif not Strings(patterns=frozenset(matched | {node})).is_empty():
                    longer.append((matched | {node}, absent))
            found = longer
        return found

    # ----------------------------------------------------------------- order and number

    def set_counts(self) -> None:
        """Decide whether properties are to be counted, and up to which number."""
        least, most = self.box.least, self.box.most
        certain = self.n_required + 1
        if least > certain and (self.others or self.witness):
            self.writer.unenforced(
                self.writer.path,
                f"at least {least} properties of which some have names that are not known and could be equal",
            )
            least = certain
        if most is not None and not (self.others or self.witness) and len(self.members) <= most:
            most = None
        self.least = least if least > self.n_required else 0
        self.most = most
        self.cap = max(self.least, 0 if most is None else most)

    def start(self) -> Node:
        """All that may stand between the braces."""
        begin = (0, 0, False)
        pad = self.layout.pad
        in_a_row = not self.any_order and self.cap == 0 and self.witness is None
        after = self.tails() if in_a_row else self.after
        ways: list[Node] = [Seq((pad, node, after(state), pad)) for state, node in self.steps(begin)]
        if self.complete(begin):
            ways.append(EMPTY)
        for state in self.todo:  # grows while it is read
            self.writer.rules[self.rules[state]] = self.rest(state)
        return Alt(tuple(ways))

    def tails(self) -> Callable[[Progress], Node]:
        """What may follow a property where order is all there is to keep: the other members one by one."""
        comma = self.layout.comma
        loop = Repeat(Seq((comma, self.others)), 0, None) if self.others else EMPTY
        n_starts = next((i for i, m in enumerate(self.members) if m.required), len(self.members))
        tail: Node = loop
        found = [tail]
        for i in range(len(self.members) - 1, -1, -1):
            member = self.members[i]
            item: Node = Seq((comma, member.node))
            item = item if member.required else Repeat(item, 0, 1)
            tail = Seq((loop, item, *(tail.items if isinstance(tail, Seq) else (tail,))))
            if i <= n_starts + 1 and n_starts:  # used here and in the next one
                tail = self.writer.rule(tail, f"{self.writer.path}-rest")
            found.append(tail)
        found.reverse()
        return lambda state: found[state[0]]

    def after(self, state: Progress) -> Node:
        """What may follow a property."""
        if state not in self.rules:
            if len(self.rules) >= MAX_STATES:
                raise GrammarError(
                    f"{self.writer.path}: its objects need more than {MAX_STATES} states to count"
                )
            self.rules[state] = self.writer.new_name(f"{self.writer.path}-rest")
            self.todo.append(state)
        return Ref(self.rules[state])

    def rest(self, state: Progress) -> Node:
        steps = self.steps(state)
        comma = self.layout.comma
        loops = [Seq((comma, node)) for target, node in steps if target == state]
        ways = [Seq((node, self.after(target))) for target, node in steps if target != state]
        more: Node = Seq((comma, Alt(tuple(ways))))
        if self.complete(state):
            more = Alt((EMPTY, more)) if ways else EMPTY
        return Seq((Repeat(Alt(tuple(loops)), 0, None), more)) if loops else more

    def complete(self, state: Progress) -> bool:
        """Whether the object may end."""
        progress, count, seen = state
        enough = count >= self.least and (seen or self.witness is None)
        return enough and not any(member.required for _, member in self.left(progress))

    def left(self, progress: int) -> list[tuple[int, Member]]:
        """The known members that may still come, with their indices."""
        if self.any_order:
            return [(i, member) for i, member in enumerate(self.members) if not progress >> i & 1]
        return list(enumerate(self.members))[progress:]

    def steps(self, state: Progress) -> list[tuple[Progress, Node]]:
        """The properties that may come next, each with the state after it."""
        progress, count, seen = state
        if self.most is not None and count >= self.most:
            return []
        found: list[tuple[Progress, Node]] = []
        more = min(count + 1, self.cap)
        for i, member in self.left(progress):
            found.append(((progress | 1 << i if self.any_order else i + 1, more, seen), member.node))
            if member.required and not self.any_order:
                break
        others = self.others_after if seen else self.others
        if others is not None:
            found.append(((progress, more, seen), others))
        if self.witness is not None and not seen:
            found.append(((progress, more, True), self.witness))
        return found
