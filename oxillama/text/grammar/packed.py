"""Pickled rules; each rule is unpickled when it is first used."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from oxillama._kernels.grammar.dfa import Dfa
from oxillama.text.grammar.analysis import analysis_of
from oxillama.text.grammar.rules import Node, Rules


def packed(rules: Rules) -> Rules:
    """A copy of a grammar for another process: its rules pickled, and its analysis."""
    automata: dict[Dfa, int] = {}
    table: Any = {Dfa: lambda one: (automaton, (automata.setdefault(one, len(automata)),))}
    named = {}
    for name, node in rules.rules.items():
        file = io.BytesIO()
        pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
        pickler.dispatch_table = table
        pickler.dump(node)
        named[name] = file.getvalue()
    each = [pickle.dumps(one, pickle.HIGHEST_PROTOCOL) for one in automata]
    found = replace(rules, rules=ReadRules(named, each))
    object.__setattr__(found, "analysis", analysis_of(rules))
    return found


def automaton(number: int) -> Dfa:
    """Placeholder of automaton ``number`` in pickled nodes; `Reader` replaces this function."""
    raise pickle.UnpicklingError(f"automaton {number}: read without the others")


class Reader(pickle.Unpickler):
    """Unpickles a node; ``automata`` holds automata already unpickled, or their bytes."""

    def __init__(self, data: bytes, automata: list[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self.automata = automata

    def find_class(self, module: str, name: str) -> Any:
        return self._automaton if name == automaton.__name__ else super().find_class(module, name)

    def _automaton(self, number: int) -> Dfa:
        if isinstance(self.automata[number], bytes):
            self.automata[number] = pickle.loads(self.automata[number])
        found: Dfa = self.automata[number]
        return found


class ReadRules(Mapping[str, Node]):
    """The nodes of packed rules, by name. Threads may share one.

    Nodes are not cached: they are many objects, which would slow down Python's garbage collector.

    Args:
        named: rule name -> pickled node; nodes refer to automata by number.
        automata: the pickled automata, each once.
    """

    def __init__(self, named: dict[str, bytes], automata: list[bytes]) -> None:
        self._named = named
        self._automata: list[Any] = list(automata)

    def __getitem__(self, name: str) -> Node:
        node: Node = Reader(self._named[name], self._automata).load()
        return node

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)
