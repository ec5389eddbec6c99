"""The rules of a schema one by one: those that are certain when they are asked for, all others at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from threading import Lock

from oxillama.grammar.analysis import all_productive
from oxillama.grammar.rules import Node, Ref, Rules
from oxillama.grammar.schema.certain import Certainty, key
from oxillama.grammar.schema.conditions import ANYTHING, State, of_schema, state_of
from oxillama.grammar.schema.references import NO_SCOPE, Schema
from oxillama.grammar.schema.writer import Writer, any_value


class OnDemand:
    """Writes rules as they are asked for: a `Part`, after `prepare`.

    Parameters
    ----------
    writer : of the rules.
    certainty : finds the schemas whose rules can wait.
    all_rules : writes the whole grammar.
    """

    def __init__(self, writer: Writer, certainty: Certainty, all_rules: Callable[[], Rules]) -> None:
        self.writer = writer
        self.certainty = certainty
        self.all_rules = all_rules
        self.root = ""
        self.common = any_value(writer.layout)
        self.lock = Lock()
        self.local: dict[str, list[str]] = {}  # the rules that were written with a rule

    def prepare(self, root: State) -> bool:
        """Write all rules that are not certain.

        False where some rule may have no text: then all are needed, to leave out what leads there.
        """
        self.writer.rules |= self.common.rules
        node = self.writer.node(root)
        if not isinstance(node, Ref):
            return False
        self.root = node.name
        todo = [self.writer.states.get(node.name, ANYTHING)]
        needs: dict[str, Node] = {}
        seen = {ANYTHING}
        for state in todo:  # grows while it is read
            if state in seen:
                continue
            seen.add(state)
            schema = _alone(state)
            found = self.certainty.of(schema) if schema is not None else None
            if found is None:
                first = len(self.writer.queue)
                self.write(self.writer.name(state))
                todo += self.writer.queue[first:]
                continue
            for below in found.below:
                state_below = self.writer.followed_state(state_of(of_schema(below, NO_SCOPE)))
                todo.append(state_below)
                if self.certainty.of(below) is None:
                    needs[key(below)] = Ref(self.writer.name(state_below))
        if self.local or self.certainty.needs:
            written = {name: self.writer.rules[name] for names in self.local.values() for name in names}
            for state, name in self.writer.names.items():
                schema = _alone(state)
                if name not in self.writer.rules and schema is not None:
                    needs[name] = Ref(key(schema))
            if not all_productive({**self.certainty.needs, **needs, **written}):
                return False
        return True

    def write(self, name: str) -> None:
        """Write the rule of a name."""
        first = len(self.writer.rules)
        self.writer.write_one(name)
        self.local[name] = list(islice(self.writer.rules, first, None))

    def rules(self, name: str) -> Rules:
        """A rule, and those that were written with it."""
        with self.lock:
            if name not in self.writer.rules:
                self.write(name)
        return Rules(name, {one: self.writer.rules[one] for one in self.local.get(name, (name,))})


def _alone(state: State) -> Schema | None:
    """The schema whose values a state is; None where there is more to it."""
    if len(state) != 1:
        return None
    (condition,) = state
    plain = condition.positive and condition.scope == NO_SCOPE
    return condition.what if plain and isinstance(condition.what, Schema) else None
