"""States to rules: every state that values must meet becomes one rule, shared wherever it is needed.

Rules are written from a queue, not by recursion, so a schema may refer to itself and nest as deep as it is
read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from oxillama.errors import GrammarError
from oxillama.grammar.rules import Alt, Node, Ref, Rules, Seq
from oxillama.grammar.schema.arrays import Arrays
from oxillama.grammar.schema.conditions import ANYTHING, FALSE, Condition, State, ordered, state_of
from oxillama.grammar.schema.constants import BOOLEAN, NULL, Constants
from oxillama.grammar.schema.formulas import TOP, Expander
from oxillama.grammar.schema.json_text import Layout, listed
from oxillama.grammar.schema.messages import located
from oxillama.grammar.schema.numbers import Numbers
from oxillama.grammar.schema.objects import Objects
from oxillama.grammar.schema.references import Schema
from oxillama.grammar.schema.strings import Strings

MAX_RULES = 30_000
T = TypeVar("T")
VALUE, STRING, NUMBER = "json", "json-string", "json-number"


@dataclass(eq=False, repr=False)
class Writer:
    """Makes the rules of states.

    Attributes
    ----------
    followed : what a condition on nothing but a reference stands for.
    layout : separators and white space.
    any_order : objects take their properties in any order.
    open_objects : objects that list properties and do not say so accept others.
    unenforced : called with a path and a reason where something cannot be enforced; raises if that is an
        error.
    array_node, object_node : the texts of the arrays or objects of a conjunct; both may call the writer.
    impossible : whether no value is seen to meet a state.
    path, state : the schema whose rule is being written, and all that its values meet; for messages.
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
        self.places: dict[str, str] = {}  # the paths that rules were named after
        self.members: dict[tuple[str, State], Node] = {}  # the rules of properties
        self.made: dict[Hashable, Any] = {}

    def write(self, root: State) -> Rules:
        """The rules of the values that meet ``root``; those of states are deferred."""
        self.rules["root"] = self.node(root)
        for state in self.queue:  # grows while it is read
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
        """The state with references followed."""
        if len(state) == 1:
            (condition,) = state
            found = self.followed(condition)
            return state if found is condition else state_of(found)
        return state_of(*map(self.followed, ordered(state)))

    def node(self, state: State) -> Node:
        """What a value that meets the state is written as."""
        state = self.followed_state(state)
        if FALSE in state:
            return Alt(())
        if state == ANYTHING:
            self.rules.setdefault(VALUE, Alt(()))  # filled in at the end
            return Ref(VALUE)
        return Ref(self.name(state))

    def name(self, state: State) -> str:
        """The name of the rule of a state whose references have been followed."""
        if state not in self.names:
            name = self.names[state] = self.new_name(path_of(state))
            self.states[name] = state
            self.queue.append(state)
        return self.names[state]

    def new_name(self, path: str) -> str:
        """A name for a rule, after the last part of a path."""
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
        """A rule of its own for a node that is used more than once."""
        name = self.new_name(hint)
        self.rules[name] = body
        return Ref(name)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` makes, which is called at the first request for a key."""
        if key not in self.made:
            self.made[key] = make()
        found: T = self.made[key]
        return found

    def body(self, state: State) -> Node:
        """All texts of the values that meet a state."""
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
        """Every value of a type."""
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
    """The rules of every JSON value."""
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
    """Where the first schema of a state stands."""
    for condition in ordered(state):
        if isinstance(condition.what, Schema):
            return condition.what.path
    return "#"
