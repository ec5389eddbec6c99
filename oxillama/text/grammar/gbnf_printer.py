"""Print `Rules` as GBNF text, which people and `parse_gbnf` can read."""

from __future__ import annotations

from oxillama.errors import GrammarError
from oxillama.text.grammar.codepoints import Ranges, complement, union
from oxillama.text.grammar.dfa import meet
from oxillama.text.grammar.expressions import ANY
from oxillama.text.grammar.gbnf import WORD
from oxillama.text.grammar.rules import (
    LAST_CODE_POINT,
    Alt,
    Chars,
    Counted,
    Dfa,
    Distinct,
    Node,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    Tokens,
)

MAX_SETS = 1024  # rules for the sets of members of one `Distinct`
MAX_UNROLLED = 4_000  # states of an automaton with a count, one rule each


def print_gbnf(rules: Rules) -> str:
    """A grammar as GBNF text, its root first.

    `parse_gbnf` reads the text as a grammar of the same language. Rule names with characters that GBNF does
    not allow are changed, and each state of a `Dfa` becomes a rule with a new name.

    Raises:
        GrammarError: GBNF cannot express the grammar, or would need too many rules; names the JSON path for a
            schema.
    """
    return _Printer(rules).text()


class _Printer:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.names: dict[str, str] = {}
        self.taken: set[str] = set()  # the values of `names`
        self.lines: list[str] = []
        for name in (rules.root, *rules.rules):
            if name not in self.names:
                wanted = "".join(c if c in WORD else "-" for c in name) or "rule"
                self.names[name] = self.fresh("root" if name == rules.root else wanted)

    def fresh(self, wanted: str) -> str:
        name, n = wanted, 1
        while name in self.taken:
            n += 1
            name = f"{wanted}-{n}"
        self.taken.add(name)
        return name

    def text(self) -> str:
        for name, spelled in self.names.copy().items():
            try:
                self.lines.append(f"{spelled} ::= {self.alternatives(self.rules.rules[name])}")
            except GrammarError as error:
                place = self.rules.places.get(name)
                raise GrammarError(f"{place}: {error}" if place else str(error)) from None
        return "\n".join(self.lines) + "\n"

    def alternatives(self, node: Node) -> str:
        if isinstance(node, Alt) and node.items:
            return " | ".join(self.sequence(item) for item in node.items)
        return self.sequence(node)

    def sequence(self, node: Node) -> str:
        if isinstance(node, Seq) and node.items:
            return " ".join(self.item(item) for item in node.items)
        return self.item(node)

    def item(self, node: Node) -> str:
        if isinstance(node, Text):
            return '"' + "".join(_spell(ord(char), '"\\') for char in node.text) + '"'
        if isinstance(node, Chars):
            return "." if node == ANY else _spell_class(node.ranges)
        if isinstance(node, Tokens):
            return self.tokens(node)
        if isinstance(node, Ref):
            return self.names[node.name]
        if isinstance(node, Dfa):
            return self.dfa(node)
        if isinstance(node, Counted):
            dfa = meet([node.dfa], (), node.least, node.most, node.whole)
            if dfa.n_states > MAX_UNROLLED:
                raise GrammarError(f"automaton: expected at most {MAX_UNROLLED} states that count, got more")
            return self.dfa(dfa)
        if isinstance(node, Repeat):
            atom = self.item(node.item)
            if isinstance(node.item, Repeat):
                atom = f"({atom})"
            return atom + _spell_bounds(node.least, node.most)
        if isinstance(node, Distinct):
            return self.distinct(node)
        if isinstance(node, Seq) and not node.items:
            return '""'
        if isinstance(node, Alt) and not node.items:
            return "[]"
        return f"({self.alternatives(node)})"

    def tokens(self, node: Tokens) -> str:
        if node.negated and len(node.ids) != 1:
            raise GrammarError(f"GBNF: has no words for any token but {len(node.ids)} others")
        spelled = [f"{'!' * node.negated}<[{id}]>" for id in node.ids]
        return spelled[0] if len(spelled) == 1 else f"({' | '.join(spelled)})" if spelled else "[]"

    def further(self, wanted: str) -> str:
        """A new rule name that the grammar does not use."""
        name = self.fresh(f"{wanted}-{len(self.names)}")
        self.names[f"\0{name}"] = name
        return name

    def dfa(self, node: Dfa) -> str:
        """Print a right-linear rule for each state; returns the name of the start state's rule."""
        names = [self.further("dfa") for _ in node.edges]
        for state, edges in enumerate(node.edges):
            by_target: dict[int, list[tuple[int, int]]] = {}
            for first, last, target in edges:
                by_target.setdefault(target, []).append((first, last))
            options = [f"{_spell_class(union(r))} {names[target]}" for target, r in by_target.items()]
            options += ['""'] * (state in node.accepting)
            self.lines.append(f"{names[state]} ::= {' | '.join(options) or '[]'}")
        return names[0]

    def distinct(self, node: Distinct) -> str:
        """Print a rule for each set of members that have occurred; possible for numbered members only."""
        names: dict[tuple[int, frozenset[int]], str] = {}
        todo: list[tuple[int, frozenset[int]]] = []

        def after(place: int, came: frozenset[int]) -> str:
            if (place, came) not in names:
                if len(names) == MAX_SETS:
                    raise GrammarError(
                        f"GBNF: expected members of an array or object in at most {MAX_SETS} sets, got more; "
                        "any_order=False keeps properties in the order of the schema"
                    )
                names[place, came] = self.further("came")
                todo.append((place, came))
            return names[place, came]

        def members(place: int, came: frozenset[int]) -> list[str]:
            found = []
            needed = sum(mark < node.marks for mark in came)
            for member in node.places[place]:
                if member.by not in ("mark", "nothing"):
                    raise GrammarError("GBNF: has no words for members of an array or object that differ")
                is_new = member.mark not in came and (node.most is None or len(came) < node.most)
                has_room = member.room is None or len(came) - needed < member.room
                if member.by == "mark" and not (is_new and has_room and len(came) >= member.after):
                    continue
                then = after(member.to, came | {member.mark} if member.by == "mark" else came)
                rest = "" if member.rest is None else self.item(member.rest) + " "
                found.append(f"{self.item(member.node)} {rest}{then}")
            return found

        first = members(0, frozenset())
        separator = "" if node.separator is None else self.item(node.separator) + " "
        for place, came in todo:  # `todo` grows during the loop
            options = [f"{separator}{member}" for member in members(place, came)]
            if node.ends[place] and len(came) >= node.least and came >= set(range(node.marks)):
                options.append('""')
            self.lines.append(f"{names[place, came]} ::= {' | '.join(options) or '[]'}")
        return f"({' | '.join(first) or '[]'})"


def _spell(code: int, special: str) -> str:
    char = chr(code)
    if char in special:
        return "\\" + char
    if 0x20 <= code < 0x7F:
        return char
    if char in "\t\r\n":
        return {"\t": "\\t", "\r": "\\r", "\n": "\\n"}[char]
    return f"\\x{code:02X}" if code < 0x100 else f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


def _spell_class(ranges: Ranges) -> str:
    open_ended = len(ranges) > 1 and ranges[0][0] == 0 and ranges[-1][1] == LAST_CODE_POINT
    shown = complement(ranges) if open_ended else ranges
    parts = []
    for first, last in shown:
        low, high = _spell(first, "]\\[-"), _spell(last, "]\\[-")
        low = f"\\x{first:02X}" if low == "^" else low
        parts.append(low if first == last else f"{low}-{high}")
    return f"[{'^' * open_ended}{''.join(parts)}]"


def _spell_bounds(least: int, most: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    if short is not None:
        return short
    if most is None:
        return f"{{{least},}}"
    return f"{{{least}}}" if least == most else f"{{{least},{most}}}"
