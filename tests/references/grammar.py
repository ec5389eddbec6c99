"""What a grammar allows, straight from the definition of its nodes: slow, sharing nothing with the library.

A text is given as tokens. For every node and every position two things are computed, rules by least fixpoint:
where a match that begins there can end, and whether a match that begins there can run through the end
of the text (and go on beyond it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from oxillama.grammar.rules import Alt, Chars, Counted, Dfa, Node, Ref, Repeat, Rules, Seq, Text, Tokens

CUT = -1  # stands for the bytes of a token that is no text


class Reading:
    """What can be said of one sequence of tokens; ``strings`` holds each token's bytes, None for no text."""

    def __init__(self, rules: Rules, tokens: Sequence[int], strings: Sequence[bytes | None]) -> None:
        self.rules = rules
        self.text: list[int] = []
        self.token_at: dict[int, tuple[int, int, bool]] = {}
        for token in tokens:
            data = strings[token]
            begin = len(self.text)
            self.text += [CUT] if data is None else list(data)
            self.token_at[begin] = token, len(self.text), data is not None
        self.end = len(self.text)
        self.productive: set[str] = set()
        self.fixpoint(lambda: {n for n, r in rules.rules.items() if self.can_match(r)}, self.productive)
        positions = range(self.end + 1)
        self.ends: set[tuple[str, int, int]] = set()
        self.fixpoint(
            lambda: {(n, i, j) for n, r in rules.rules.items() for i in positions for j in self.match(r, i)},
            self.ends,
        )
        self.through: set[tuple[str, int]] = set()
        self.fixpoint(
            lambda: {(n, i) for n, r in rules.rules.items() for i in positions if self.runs_out(r, i)},
            self.through,
        )

    @staticmethod
    def fixpoint(more: Callable[[], set], known: set) -> None:
        while not (found := more()) <= known:
            known |= found

    @property
    def is_alive(self) -> bool:
        """Whether some text of the language begins with this one."""
        return (self.rules.root, 0) in self.through

    @property
    def is_complete(self) -> bool:
        """Whether this text is in the language."""
        return (self.rules.root, 0, self.end) in self.ends

    def can_match(self, node: Node) -> bool:
        """Whether the node matches anything at all."""
        if isinstance(node, Text):
            return not any(0xD800 <= ord(c) <= 0xDFFF for c in node.text)
        if isinstance(node, Chars):
            return any(first < 0xD800 or last > 0xDFFF for first, last in node.ranges if first <= last)
        if isinstance(node, Tokens):
            return node.negated or bool(node.ids)
        if isinstance(node, Ref):
            return node.name in self.productive
        if isinstance(node, Seq):
            return all(self.can_match(item) for item in node.items)
        if isinstance(node, Alt):
            return any(self.can_match(item) for item in node.items)
        if isinstance(node, Repeat):
            return node.least == 0 or self.can_match(node.item)
        return self.dfa_goes_on(written_out(node), 0)

    def dfa_goes_on(self, dfa: Dfa, state: int) -> bool:
        """Whether an accepting state can be reached."""
        seen, todo = {state}, [state]
        while todo:
            state = todo.pop()
            if state in accepting_of(dfa):
                return True
            for first, last, target in edges_of(dfa)[state]:
                if self.can_match(Chars(((first, last),))) and target not in seen:
                    seen.add(target)
                    todo.append(target)
        return False

    # ------------------------------------------------------------------ where matches end

    def match(self, node: Node, i: int) -> set[int]:
        if isinstance(node, Text):
            data = list(node.text.encode("utf-8", "surrogatepass")) if self.can_match(node) else [256]
            return {i + len(data)} if self.text[i : i + len(data)] == data else set()
        if isinstance(node, Chars):
            return self.match_character(node.ranges, i)
        if isinstance(node, Tokens):
            token = self.token_at.get(i)
            return {token[1]} if token is not None and self.takes(node, token) else set()
        if isinstance(node, Ref):
            return {end for name, begin, end in self.ends if name == node.name and begin == i}
        if isinstance(node, Seq):
            places = {i}
            for item in node.items:
                places = {end for place in places for end in self.match(item, place)}
            return places
        if isinstance(node, Alt):
            return {end for item in node.items for end in self.match(item, i)}
        if isinstance(node, Repeat):
            return {place for place, times in self.repeated(node, i) if times >= node.least}
        node = written_out(node)
        return {place for place, state in self.dfa_places(node, i) if state in accepting_of(node)}

    def repeated(self, node: Repeat, i: int) -> set[tuple[int, int]]:
        """Places and how many items, no more than matter, have been matched there."""
        cap = node.least if node.most is None else node.most
        seen, todo = {(i, 0)}, [(i, 0)]
        while todo:
            place, times = todo.pop()
            if node.most is not None and times >= node.most:
                continue
            for end in self.match(node.item, place):
                reached = end, min(times + 1, cap)
                if end == place:  # items that match nothing may be had in any number
                    reached = end, max(times, node.least)
                if reached not in seen:
                    seen.add(reached)
                    todo.append(reached)
        return seen

    def dfa_places(self, dfa: Dfa, i: int) -> set[tuple[int, int]]:
        seen, todo = {(i, 0)}, [(i, 0)]
        while todo:
            place, state = todo.pop()
            for first, last, target in edges_of(dfa)[state]:
                for end in self.match_character(((first, last),), place):
                    if (end, target) not in seen:
                        seen.add((end, target))
                        todo.append((end, target))
        return seen

    def match_character(self, ranges: Sequence[tuple[int, int]], i: int) -> set[int]:
        for length in range(1, 5):
            data = self.text[i : i + length]
            if len(data) == length and CUT not in data:
                try:
                    code = ord(bytes(data).decode())
                except (UnicodeDecodeError, TypeError):
                    continue
                return {i + length} if any(first <= code <= last for first, last in ranges) else set()
        return set()

    def takes(self, node: Tokens, token: tuple[int, int, bool]) -> bool:
        id, _, is_text = token
        return is_text and id not in node.ids if node.negated else id in node.ids

    # ------------------------------------------------------------------ through the end

    def runs_out(self, node: Node, i: int) -> bool:
        """Whether a match from i can have all of the rest of the text as its beginning."""
        if i == self.end:
            return self.can_match(node)
        rest = self.text[i:]
        if isinstance(node, Text):
            return self.can_match(node) and list(node.text.encode())[: len(rest)] == rest
        if isinstance(node, Chars):
            return self.character_runs_out(node.ranges, rest)
        if isinstance(node, Tokens):
            return self.end in self.match(node, i)
        if isinstance(node, Ref):
            return (node.name, i) in self.through
        if isinstance(node, Seq):
            places = {i}
            for k, item in enumerate(node.items):
                if any(self.runs_out(item, place) for place in places) and all(
                    self.can_match(later) for later in node.items[k + 1 :]
                ):
                    return True
                places = {end for place in places for end in self.match(item, place)}
            return self.end in places
        if isinstance(node, Alt):
            return any(self.runs_out(item, i) for item in node.items)
        if isinstance(node, Repeat):
            return any(
                (place == self.end and times >= node.least)
                or ((node.most is None or times < node.most) and self.runs_out(node.item, place))
                for place, times in self.repeated(node, i)
            )
        node = written_out(node)
        return any(
            self.dfa_goes_on(node, state)
            if place == self.end
            else any(
                self.character_runs_out(((first, last),), self.text[place:])
                and self.dfa_goes_on(node, target)
                for first, last, target in edges_of(node)[state]
            )
            for place, state in self.dfa_places(node, i)
        )

    def character_runs_out(self, ranges: Sequence[tuple[int, int]], rest: list[int]) -> bool:
        """Whether the rest of the text is the beginning, or all, of one of these characters' bytes."""
        if CUT in rest or len(rest) > 4:
            return False
        for low, high, length in (
            (0, 0x7F, 1),
            (0x80, 0x7FF, 2),
            (0x800, 0xD7FF, 3),
            (0xE000, 0xFFFF, 3),
            (0x10000, 0x10FFFF, 4),
        ):
            if len(rest) > length:
                continue
            for first, last in ranges:
                first, last = max(first, low), min(last, high)
                if first > last:
                    continue
                # The bytes of code points ascend with them, and so do their beginnings.
                begin, end = chr(first).encode()[: len(rest)], chr(last).encode()[: len(rest)]
                if begin <= bytes(rest) <= end and all(0x80 <= byte < 0xC0 for byte in rest[1:]):
                    return True
        return False


@cache
def edges_of(dfa: Dfa) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """Its edges; the automaton makes new tuples each time."""
    return dfa.edges


@cache
def accepting_of(dfa: Dfa) -> frozenset[int]:
    """Its accepting states."""
    return dfa.accepting


def written_out(node: Dfa | Counted) -> Dfa:
    """An automaton without counts."""
    return node if isinstance(node, Dfa) else by_counts(node)


@cache
def by_counts(node: Counted) -> Dfa:
    """An automaton with a state for every state and number of characters that are reached."""
    rows, cap = node.dfa.edges, node.least if node.most is None else node.most
    number, order, edges = {(0, 0): 0}, [(0, 0)], []
    for q, n in order:  # grows while it is read
        found = []
        for first, last, target in rows[q]:
            after = n + (target < node.whole)
            if node.most is None or after <= node.most:
                key = target, min(after, cap)
                if number.setdefault(key, len(order)) == len(order):
                    order.append(key)
                found.append((first, last, number[key]))
        edges.append(found)
    ends = node.dfa.accepting
    return Dfa(edges, {i for i, (q, n) in enumerate(order) if q in ends and n >= node.least})


def mask(rules: Rules, tokens: Sequence[int], strings: Sequence[bytes | None], end_ids: set[int]) -> set[int]:
    """The tokens that may follow ``tokens``; ``strings`` is None for tokens that are no text."""
    allowed = {
        id
        for id in range(len(strings))
        if id not in end_ids and strings[id] != b"" and Reading(rules, [*tokens, id], strings).is_alive
    }
    complete = Reading(rules, tokens, strings).is_complete
    for id in end_ids:
        named = Reading(rules, [*tokens, id], [None if i in end_ids else s for i, s in enumerate(strings)])
        if complete or named.is_complete:
            allowed.add(id)
    return allowed
