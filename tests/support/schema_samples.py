"""Texts drawn at random from rules: what a model might write under a grammar."""

from __future__ import annotations

import random

from oxillama.grammar.counts import unrolled
from oxillama.grammar.rules import Alt, Chars, Counted, Dfa, Node, Ref, Repeat, Rules, Seq, Text

NEVER = 10**9
MOST_STATES = 200_000
SURROGATES = 0xD800, 0xDFFF


def has_characters(first: int, last: int) -> bool:
    return not (SURROGATES[0] <= first and last <= SURROGATES[1])


class Sampler:
    """Draws texts; ``None`` where the rules match nothing. Long texts are ended by the shortest way out."""

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
        if isinstance(node, Counted):
            node = unrolled(node, MOST_STATES)
        if isinstance(node, Dfa):
            return 1 if self.ways_out(node)[0] < NEVER else NEVER
        return 1

    def draw(self, budget: int = 60) -> str | None:
        if self.cost[self.rules.root] >= NEVER:
            return None
        self.left, self.out = budget, []
        self.write(Ref(self.rules.root))
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
        elif isinstance(node, Counted):
            self.walk(unrolled(node, MOST_STATES))
        elif isinstance(node, Dfa):
            self.walk(node)

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

    def ways_out(self, dfa: Dfa) -> list[int]:
        """For each state, how many characters are needed to an accepting one."""
        away = [0 if q in dfa.accepting else NEVER for q in range(len(dfa.edges))]
        changed = True
        while changed:
            changed = False
            for q, edges in enumerate(dfa.edges):
                for first, last, target in edges:
                    if away[target] + 1 < away[q] and has_characters(first, last):
                        away[q], changed = away[target] + 1, True
        return away

    def walk(self, dfa: Dfa) -> None:
        away = self.ways_out(dfa)
        state, steps = 0, self.rng.randrange(8) if self.left > 0 else 0
        while away[state] or (steps > 0 and self.rng.random() > 0.2):
            edges = [e for e in dfa.edges[state] if away[e[2]] < NEVER and has_characters(*e[:2])]
            if steps <= 0 and edges:
                nearest = min(away[e[2]] for e in edges)
                edges = [e for e in edges if away[e[2]] == nearest]
            if not edges:
                return
            first, last, state = self.rng.choice(edges)
            self.char(first, last)
            steps -= 1
