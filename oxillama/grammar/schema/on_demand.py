"""The rules of a schema one by one: those that are certain when they are asked for, all others at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from threading import Lock

from oxillama.errors import GrammarError
from oxillama.grammar.analysis import unproductive
from oxillama.grammar.rules import Alt, Node, Ref, Rules, Seq
from oxillama.grammar.schema.certain import Certainty, key
from oxillama.grammar.schema.certain_states import CertainStates
from oxillama.grammar.schema.conditions import ANYTHING, NOTHING, State, of_schema, state_of
from oxillama.grammar.schema.messages import located
from oxillama.grammar.schema.references import NO_SCOPE, Schema
from oxillama.grammar.schema.writer import Writer, any_value, path_of, replaced

NO_VALUE = "#: no text matches the schema: no value meets it"


class OnDemand:
    """Writes rules as they are asked for: a `Part`, after `prepare`.

    Parameters
    ----------
    writer : of the rules.
    certainty : finds the schemas whose rules can wait.
    all_rules : writes the whole grammar.
    place : of the schema in a larger text, for messages.
    """

    def __init__(
        self, writer: Writer, certainty: Certainty, all_rules: Callable[[], Rules], place: str
    ) -> None:
        self.place = place
        self.writer = writer
        self.certainty = certainty
        self.all_rules = all_rules
        self.root = ""
        self.common = any_value(writer.layout)
        self.lock = Lock()
        self.local: dict[str, list[str]] = {}  # the rules that were written with a rule
        self.empty: set[str] = set()  # rules without a text, and the keys of such schemas

    @property
    def is_large(self) -> bool:
        """Whether a rule could be over a limit, so that all are built at once."""
        return self.certainty.keywords.references.is_large()

    def prepare(self, root: State) -> None:
        """Write all rules that are not certain, and find those that have no text."""
        self.writer.rules |= self.common.rules
        node = self.writer.node(root)
        if not isinstance(node, Ref):
            raise GrammarError(NO_VALUE)
        self.root = node.name
        todo: list[State | Schema] = (
            [self.writer.states[self.root]] if self.root in self.writer.states else []
        )
        states = CertainStates(self.writer)
        needs: dict[str, Node] = {}
        seen: set[State | Schema] = {ANYTHING}
        for one in todo:  # grows while it is read
            if one in seen:
                continue
            seen.add(one)
            schema = one if isinstance(one, Schema) else _alone(one)
            found = self.certainty.of(schema) if schema is not None else None
            if found is not None:
                todo += found.below
                continue
            if isinstance(one, Schema):
                state = self.writer.followed_state(state_of(of_schema(one, NO_SCOPE)))
                needs[key(one)] = self.met(state)
                if state in seen:
                    continue
                seen.add(state)
            else:
                state = one
            first = len(self.writer.queue)
            known = states.of(state)
            if known is not None:
                todo += known.below
                needs[self.writer.name(state)] = known.needs
                continue
            self.write(self.writer.name(state))
            todo += self.writer.queue[first:]
        written = {name: self.writer.rules[name] for names in self.local.values() for name in names}
        for state, name in self.writer.names.items():
            schema = _alone(state)
            if name not in needs and name not in self.writer.rules and schema is not None:
                needs[name] = Ref(key(schema))
        self.empty = unproductive({**self.certainty.needs, **needs, **written})
        if self.root in self.empty:
            raise GrammarError(NO_VALUE)

    def met(self, state: State) -> Node:
        """The rule of a state in an expression of needs."""
        return Alt(()) if state == NOTHING else Seq(()) if state == ANYTHING else Ref(self.writer.name(state))

    def write(self, name: str) -> None:
        """Write the rule of a name."""
        first = len(self.writer.rules)
        self.writer.write_one(name)
        self.local[name] = list(islice(self.writer.rules, first, None))

    def rules(self, name: str) -> Rules:
        """A rule, and those that were written with it; nothing in them refers to a rule without a text."""
        if name not in self.writer.rules:
            self.write(name)
        found = {one: self.writer.rules[one] for one in self.local.get(name, (name,))}
        if self.empty:
            found = {one: replaced(node, self.with_text) for one, node in found.items()}
            self.empty |= unproductive(found)
        return Rules(name, found)

    def located(self, name: str, reason: str) -> str:
        """A reason with the path of the schema that a rule was written for."""
        if self.place and reason.startswith(self.place):
            return reason
        state = self.writer.states.get(name, ANYTHING)
        found = located(state, path_of(state), reason.removeprefix("grammar: "))
        return f"{self.place}: {found}" if self.place else found

    def with_text(self, ref: Ref) -> Node:
        """What stands for a rule: nothing, if it has no text."""
        return Alt(()) if self.is_empty(ref.name) else ref

    def is_empty(self, name: str) -> bool:
        """Whether a rule has no text."""
        state = self.writer.states.get(name)
        schema = _alone(state) if state is not None else None
        return name in self.empty or (schema is not None and key(schema) in self.empty)


def _alone(state: State) -> Schema | None:
    """The schema whose values a state is; None where there is more to it."""
    if len(state) != 1:
        return None
    (condition,) = state
    plain = condition.positive and condition.scope == NO_SCOPE
    return condition.what if plain and isinstance(condition.what, Schema) else None
