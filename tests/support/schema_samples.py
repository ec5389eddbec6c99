"""Texts drawn at random from rules: what a model might write under a grammar."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache

from oxillama.text.grammar.rules import (
    Alt,
    Chars,
    Counted,
    Dfa,
    Distinct,
    Member,
    Node,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    has_characters,
)

NEVER = 10**9
SURROGATES = 0xD800, 0xDFFF


class Stuck(Exception):
    """Members that differ were not found."""


class Sampler:
    """Draws texts; ``None`` where the rules match nothing, "" where none was found.

    Long texts are ended by the shortest way out.
    """

    def __init__(self, rules: Rules, rng: random.Random) -> None:
        self.rules, self.rng = rules, rng
        self.cost = dict.fromkeys(rules.rules, NEVER)
        changed = True
        while changed:
            changed = False
            for name, body in rules.rules.items():
                found = self.shortest(body) + 1
                if found < self.cost[name]:
                    self.cost[name], changed = found, True

    def shortest(self, node: Node) -> int:
        """Roughly how many nodes the shortest text of a node takes."""
        if isinstance(node, Chars):
            return 1 if any(has_characters(*pair) for pair in node.ranges) else NEVER
        if isinstance(node, Ref):
            return self.cost[node.name]
        if isinstance(node, Seq):
            return min(NEVER, sum(map(self.shortest, node.items)))
        if isinstance(node, Alt):
            return min(map(self.shortest, node.items), default=NEVER)
        if isinstance(node, Repeat):
            return min(NEVER, node.least * self.shortest(node.item)) if node.least else 0
        if isinstance(node, Distinct):
            return self.shortest_distinct(node)
        if isinstance(node, Dfa | Counted):
            return 1 if ways_out(node)[1][0] < NEVER else NEVER
        return 1

    def draw(self, budget: int = 60) -> str | None:
        if self.cost[self.rules.root] >= NEVER:
            return None
        self.left, self.out = budget, []
        try:
            self.write(Ref(self.rules.root))
        except (Stuck, RecursionError):
            return ""
        return "".join(self.out)

    def write(self, node: Node) -> None:
        self.left -= 1
        if isinstance(node, Text):
            self.out.append(node.text)
        elif isinstance(node, Chars):
            self.char(*self.rng.choice([pair for pair in node.ranges if has_characters(*pair)]))
        elif isinstance(node, Ref):
            self.write(self.rules.rules[node.name])
        elif isinstance(node, Seq):
            for item in node.items:
                self.write(item)
        elif isinstance(node, Alt):
            costs = [(self.shortest(item), item) for item in node.items]
            most = NEVER - 1 if self.left > 0 else min(cost for cost, _ in costs)
            self.write(self.rng.choice([item for cost, item in costs if cost <= most]))
        elif isinstance(node, Repeat):
            self.repeat(node)
        elif isinstance(node, Dfa | Counted):
            self.walk(node)
        elif isinstance(node, Distinct):
            self.members(node)

    def shortest_distinct(self, node: Distinct) -> int:
        """At least so many nodes: an end and all that must be there, whatever may not come twice."""
        costs: dict[int, int] = {0: 0}
        for _ in node.places:
            for place, members in enumerate(node.places):
                for member in members if place in costs else ():
                    cost = costs[place] + self.member(member)
                    costs[member.to] = min(costs.get(member.to, NEVER), cost)
        marks = [
            min((self.member(m) for place in node.places for m in place if m.mark == mark), default=NEVER)
            for mark in range(node.marks)
        ]
        firsts = [self.member(member) for member in node.places[0]]
        ends = [cost for place, cost in costs.items() if node.ends[place]]
        return min(NEVER, max(min(firsts, default=NEVER), min(ends, default=NEVER), sum(marks)))

    def member(self, member: Member) -> int:
        return min(NEVER, self.shortest(member.node) + (self.shortest(member.rest) if member.rest else 0))

    def members(self, node: Distinct) -> None:
        """Write members at random until they may end; what came before is tried again."""
        out, left, place, came, written = self.out, self.left, 0, list[str](), list[str]()
        marks = set[int]()
        for _ in range(400):
            ends = node.ends[place] and len(came) >= node.least and marks.issuperset(range(node.marks))
            if written and ends and (self.rng.random() < 0.4 or left <= 0):
                self.out = [*out, ",".join(written)]
                return
            member = self.rng.choice(node.places[place] or (None,))
            if member is None or self.member(member) >= NEVER:
                continue
            spare = len([key for key in came if not (key.startswith("#") and int(key[1:]) < node.marks)])
            if (node.most is not None and len(came) >= node.most) or len(came) < member.after:
                continue
            if member.room is not None and spare >= member.room:
                continue
            self.out = []
            self.write(member.node)
            text = "".join(self.out)
            key = f"#{member.mark}" if member.by == "mark" else text
            if member.by == "value":
                key = json.dumps(json.loads(text), sort_keys=True)
            if key in came:
                continue
            if member.rest is not None:
                self.write(member.rest)
            if member.by != "nothing":
                came.append(key)
            marks |= {member.mark} if member.by == "mark" else set()
            written.append("".join(self.out))
            place = member.to
        raise Stuck

    def char(self, first: int, last: int) -> None:
        point = self.rng.choice([first, last, self.rng.randint(first, last)])
        if SURROGATES[0] <= point <= SURROGATES[1]:
            point = last if last > SURROGATES[1] else first
        self.out.append(chr(point))

    def repeat(self, node: Repeat) -> None:
        if self.shortest(node.item) >= NEVER:
            return
        times = node.least + (self.rng.choice([0, 0, 1, 2]) if self.left > 0 else 0)
        for _ in range(times if node.most is None else min(times, node.most)):
            self.write(node.item)

    def walk(self, node: Dfa | Counted) -> None:
        rows, away = ways_out(node)
        state, steps = 0, self.rng.randrange(8) if self.left > 0 else 0
        while away[state] or (steps > 0 and self.rng.random() > 0.2):
            edges = [e for e in rows[state] if away[e[2]] < NEVER and has_characters(*e[:2])]
            if steps <= 0 and edges:
                nearest = min(away[e[2]] for e in edges)
                edges = [e for e in edges if away[e[2]] == nearest]
            if not edges:
                return
            first, last, state = self.rng.choice(edges)
            self.char(first, last)
            steps -= 1


@cache
def written_out(node: Counted) -> Dfa:
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


@cache
def ways_out(node: Dfa | Counted) -> tuple[Sequence[Sequence[tuple[int, int, int]]], list[int]]:
    """The edges of each state, and how many characters are needed from it to an accepting one."""
    dfa = node if isinstance(node, Dfa) else written_out(node)
    return dfa.edges, [NEVER if away is None else away for away in dfa.to_the_end()]
