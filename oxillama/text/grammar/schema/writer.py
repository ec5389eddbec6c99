"""Writes rules: every state becomes one rule, shared by all values that must meet the state.

Rules are written from a queue, without recursion, so a schema may refer to itself and be deeply
nested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from oxillama.base.deadline import check_deadline
from oxillama.errors import GrammarError
from oxillama.text.grammar.rules import Alt, Node, Ref, Rules, Seq
from oxillama.text.grammar.schema.arrays import Arrays
from oxillama.text.grammar.schema.conditions import ANYTHING, FALSE, Condition, State, ordered, state_of
from oxillama.text.grammar.schema.constants import BOOLEAN, NULL, Constants
from oxillama.text.grammar.schema.formulas import TOP, Expander
from oxillama.text.grammar.schema.json_text import Layout, listed
from oxillama.text.grammar.schema.messages import located
from oxillama.text.grammar.schema.numbers import Numbers
from oxillama.text.grammar.schema.objects import Objects
from oxillama.text.grammar.schema.references import Schema
from oxillama.text.grammar.schema.strings import Strings

MAX_RULES = 30_000
T = TypeVar("T")
VALUE, STRING, NUMBER = "json", "json-string", "json-number"


@dataclass(eq=False, repr=False)
class Writer:
    """Makes the rules of states.

    Attributes:
        followed: follows the references of a condition.
        layout: separators and white space.
        any_order: objects take their properties in any order.
        open_objects: objects that list properties accept others, unless the schema says otherwise.
        unenforced: called with a path and a reason where something cannot be enforced; raises if that is an
            error.
        array_node, object_node: make the texts of a conjunct's arrays or objects; both may call the writer.
        impossible: whether a state is known to have no values.
        path, state: the schema whose rule is being written, and its state; for messages.
    """

    expander: Expander
    followed: Callable[[Condition], Condition]
    layout: Layout
    any_order: bool
    open_objects: bool
    unenforced: Callable[[str, str], None]
    array_node: Callable[[Arrays, Writer], Node]
    object_node: Callable[[Objects, Writer], Node]

    def __post_init__(self) -> None:
        self.impossible: Callable[[State], bool] = self.expander.impossible
        self.path: str = "#"
        self.state: State = ANYTHING
        self.rules: dict[str, Node] = {}
        self.names: dict[State, str] = {ANYTHING: VALUE}
        self.states: dict[str, State] = {}
        self.queue: list[State] = []
        self.counts: dict[str, int] = {}
        self.places: dict[str, str] = {}  # rule name -> path in the schema
        self.members: dict[tuple[str, State], Node] = {}  # the rules of properties
        self.made: dict[Hashable, Any] = {}

    def write(self, root: State) -> Rules:
        """The rules of the values that meet ``root``; the rules of states are deferred."""
        self.rules["root"] = self.node(root)
        for state in self.queue:  # the queue grows during the loop
            check_deadline()
            self.path = path_of(state)
            self.state = state
            try:
                self.rules[self.names[state]] = self.body(state)
            except GrammarError as error:
                raise GrammarError(located(state, self.path, str(error))) from None
            except RecursionError:
                raise GrammarError(located(state, self.path, "nested too deeply")) from None
        if VALUE in self.rules:
            self.rules |= any_value(self.layout)
        deferred = self.rules.keys() & {*self.states, *any_value(self.layout)}
        return Rules("root", self.rules, frozenset(deferred), self.places)

    def followed_state(self, state: State) -> State:
        """The state with each condition replaced by the one that its reference leads to."""
        if len(state) == 1:
            (condition,) = state
            found = self.followed(condition)
            return state if found is condition else state_of(found)
        return state_of(*map(self.followed, ordered(state)))

    def node(self, state: State) -> Node:
        """The node of a state's values: a reference to the state's rule."""
        state = self.followed_state(state)
        if FALSE in state:
            return Alt(())
        if state == ANYTHING:
            self.rules.setdefault(VALUE, Alt(()))  # replaced at the end
            return Ref(VALUE)
        return Ref(self.name(state))

    def name(self, state: State) -> str:
        """The rule name of a state whose references have been followed; queues the rule."""
        if state not in self.names:
            name = self.names[state] = self.new_name(path_of(state))
            self.states[name] = state
            self.queue.append(state)
        return self.names[state]

    def new_name(self, path: str) -> str:
        """A new rule name, derived from the last part of a path."""
        if len(self.rules) + len(self.queue) > MAX_RULES:
            raise GrammarError(f"{self.path}: the schema needs more than {MAX_RULES} rules")
        word = path.rpartition("/")[2].lower().rstrip("-")
        if not (word.isalnum() and word.isascii() and len(word) <= 40):
            word = re.sub("[^a-z0-9]+", "-", word).strip("-")[:40] or "value"
        self.counts[word] = self.counts.get(word, 0) + 1
        number = self.counts[word]
        name = f"{word}-{number}" if number > 1 or word in ("root", VALUE, STRING, NUMBER) else word
        self.places[name] = path
        return name

    def rule(self, body: Node, hint: str) -> Ref:
        """A new rule for a node that is used more than once."""
        name = self.new_name(hint)
        self.rules[name] = body
        return Ref(name)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The cached result of ``make`` for a key."""
        if key not in self.made:
            self.made[key] = make()
        found: T = self.made[key]
        return found

    def body(self, state: State) -> Node:
        """The texts of all values that meet a state."""
        found: list[Node] = []
        for kind in self.expander.asked(state):
            conjuncts = self.expander.of_state(state, kind)
            if conjuncts == (TOP[kind],):
                found.append(self.any_of_kind(kind))
                continue
            for conjunct in conjuncts:
                if isinstance(conjunct, Arrays):
                    found.append(self.array_node(conjunct, self))
                elif isinstance(conjunct, Objects):
                    found.append(self.object_node(conjunct, self))
                else:
                    found.append(self.scalar(conjunct))
        return found[0] if len(found) == 1 else Alt(tuple(found))

    def scalar(self, conjunct: Numbers | Strings | Constants) -> Node:
        try:
            return conjunct.node(self.layout) if isinstance(conjunct, Strings) else conjunct.node()
        except GrammarError as error:
            path, _, reason = located(self.state, self.path, str(error)).partition(": ")
            self.unenforced(path, reason)
            return self.any_of_kind("string" if isinstance(conjunct, Strings) else "number")

    def any_of_kind(self, kind: str) -> Node:
        """The texts of every value of a type."""
        if kind in ("null", "boolean"):
            return (NULL if kind == "null" else BOOLEAN).node()
        if kind in ("array", "object"):
            self.node(ANYTHING)
        name = f"json-{kind}"
        self.rules[name] = any_value(self.layout)[name]
        return Ref(name)

    def strings(self, state: State) -> list[Strings]:
        """The strings that meet a state."""
        return [
            conjunct for conjunct in self.expander.of_state(state, "string") if isinstance(conjunct, Strings)
        ]


@lru_cache(maxsize=8)
def any_value(layout: Layout) -> dict[str, Node]:
    """The rules of any JSON value."""
    kinds = ("string", "number", "array", "object")
    value = Alt((*(Ref(f"json-{kind}") for kind in kinds), BOOLEAN.node(), NULL.node()))
    return {VALUE: value, **{f"json-{kind}": _any_of_kind(kind, layout) for kind in kinds}}


def _any_of_kind(kind: str, layout: Layout) -> Node:
    if kind == "array":
        return listed(Ref(VALUE), layout, "[]")
    if kind == "object":
        return listed(Seq((Strings().name_node(layout), layout.colon, Ref(VALUE))), layout, "{}")
    return Strings().node(layout) if kind == "string" else Numbers().node()


def path_of(state: State) -> str:
    """The path of a state's first schema."""
    for condition in ordered(state):
        if isinstance(condition.what, Schema):
            return condition.what.path
    return "#"
