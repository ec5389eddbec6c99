"""Sets of strings: length bounds, patterns to match or not to match, allowed and excluded values.

A `Strings` is one conjunction of such conditions; a schema's strings are a union of `Strings`. Lengths count
code points.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from oxillama._kernels.grammar.spelling import DUMPED, ONE_WAY, spell
from oxillama.errors import GrammarError
from oxillama.text.grammar.codepoints import complement
from oxillama.text.grammar.counts import within
from oxillama.text.grammar.dfa import all_but, automaton, language, meet, number_of_texts, only, texts_of
from oxillama.text.grammar.expressions import ANYTHING, alternatives, sequence
from oxillama.text.grammar.rules import NEVER, Alt, Chars, Counted, Dfa, Node, Repeat, Seq, Text
from oxillama.text.grammar.schema.conditions import lower
from oxillama.text.grammar.schema.json_text import (
    ANY_NAME,
    ANY_TEXT,
    ANY_TEXT_ONCE,
    Layout,
    counted,
    literal,
    quoted,
    spelled_expression,
)

MANY_VALUES = 16  # more values are written as an automaton


class Strings(NamedTuple):
    """The strings that meet all conditions.

    Attributes:
        least, most: bounds of the number of code points; ``most`` may be None, for no upper bound.
        patterns, absent: expressions that match the string, and expressions that do not.
        values: the allowed strings; None: unrestricted.
        excluded: the excluded strings.
    """

    least: int = 0
    most: int | None = None
    patterns: frozenset[Node] = frozenset()
    absent: frozenset[Node] = frozenset()
    values: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()

    def meet(self, other: Strings) -> Strings | None:
        """The intersection; None if it is empty, as far as can be decided without automata."""
        values = self.values if other.values is None else other.values
        if self.values is not None and other.values is not None:
            values = self.values & other.values
        least, most = max(self.least, other.least), lower(self.most, other.most)
        patterns, absent = self.patterns | other.patterns, self.absent | other.absent
        return Strings(least, most, patterns, absent, values, self.excluded | other.excluded).settled()

    def settled(self) -> Strings | None:
        """Without redundant conditions; None if the set is known to be empty."""
        if self.values is not None:
            kept = frozenset(filter(self.accepts, self.values))
            return Strings(values=kept) if kept else None
        if (self.most is not None and self.least > self.most) or self.patterns & self.absent:
            return None
        return self

    def accepts(self, text: str) -> bool:
        """Whether a string meets all conditions."""
        return (
            self.least <= len(text)
            and (self.most is None or len(text) <= self.most)
            and (self.values is None or text in self.values)
            and text not in self.excluded
            and all(language(node).accepts(text) for node in self.patterns)
            and not any(language(node).accepts(text) for node in self.absent)
        )

    def negated(self) -> Iterator[Strings]:
        """Sets that cover the strings which miss at least one condition."""
        if self.least:
            yield Strings(most=self.least - 1)
        if self.most is not None:
            yield Strings(least=self.most + 1)
        for node in self.patterns:
            yield Strings(absent=frozenset({node}))
        for node in self.absent:
            yield Strings(patterns=frozenset({node}))
        if self.values is not None:
            yield Strings(excluded=self.values)
        if self.excluded:
            yield Strings(values=self.excluded)

    def without(self, names: frozenset[str]) -> Strings | None:
        """The strings except ``names``; None if the set is known to be empty."""
        relevant = frozenset(name for name in names if self.accepts(name))
        return self._replace(excluded=self.excluded | relevant).settled() if relevant else self

    def automaton(self, bounded: bool = True) -> Dfa:
        """The strings as an automaton over their characters; with ``bounded`` False, of any length."""
        least, most = (self.least, self.most) if bounded else (0, None)
        if self.values is not None:
            return only(sorted(self.values))
        if (least, most) == (0, None) and not (self.patterns or self.absent):
            return all_but(sorted(self.excluded))
        return _determinised(self.patterns, self.absent, self.excluded, least, most)

    def is_empty(self) -> bool:
        """Whether no string meets all conditions."""
        if not (self.patterns or self.excluded or self.absent):
            return False
        return within(self.automaton(bounded=False), self.least, self.most) == NEVER

    def spelled_once(self) -> Node:
        """The JSON spellings, one for each string: as `json.dumps` writes it without ``ensure_ascii``."""
        if not (self.patterns or self.absent or self.excluded) and self.values is None:
            return quoted(counted(ANY_TEXT_ONCE, self.least, self.most))
        return self.spelled(ONE_WAY)

    def size(self) -> int | None:
        """The number of strings; None if infinite or too large to count."""
        if self.values is not None:
            return len(self.values)
        if self.most == 0:
            return int(self.accepts(""))
        if not (self.patterns or self.absent):
            return None
        try:
            return number_of_texts(self.automaton(bounded=False), self.least, self.most)
        except GrammarError:
            return None

    def texts(self) -> list[str]:
        """All the strings, sorted; they must be few."""
        return sorted(self.values) if self.values is not None else texts_of(self.automaton())

    def name_node(self, layout: Layout) -> Node:
        """The JSON spellings of the strings as property names."""
        return ANY_NAME if self == Strings() and not layout.mark else self.node(layout)

    def node(self, layout: Layout) -> Node:
        """The JSON spellings of the strings."""
        if layout.mark:
            mark = Text(layout.mark)
            return Seq((mark, without_text(self, layout.mark), mark))
        if self.values is not None and len(self.values) > MANY_VALUES:
            return self.spelled()
        if self.values is not None:
            return Alt(tuple([quoted(literal(value)) for value in sorted(self.values)]))
        if not (self.absent or self.excluded) and len(self.patterns) <= 1:
            if not self.patterns:
                return quoted(counted(ANY_TEXT, self.least, self.most))
            expression = next(iter(self.patterns))
            bounded = _bounded(expression, self.least, self.most)
            if bounded is not None:
                return _spelled(bounded)
        return self.spelled()

    def spelled(self, ways: int = DUMPED) -> Node:
        """The JSON spellings as an automaton; the length is counted separately."""
        found = within(self.automaton(bounded=False), self.least, self.most)
        if isinstance(found, Dfa):
            return quoted(spell(found, ways))
        return quoted(Counted(spell(found.dfa, ways), found.whole, found.least, found.most))


@lru_cache(maxsize=128)
def _spelled(expression: Node) -> Node:
    """The JSON spellings of an expression's strings; cached, since schemas repeat formats."""
    return quoted(spelled_expression(expression))


@lru_cache(maxsize=64)
def _determinised(
    patterns: frozenset[Node], absent: frozenset[Node], excluded: frozenset[str], least: int, most: int | None
) -> Dfa:
    unwanted = [automaton(node) for node in absent] + ([only(sorted(excluded))] if excluded else [])
    return meet([automaton(node) for node in patterns], unwanted, least, most)


def _bounded(node: Node, least: int, most: int | None) -> Node | None:
    """The expression with its strings' length bounded; None if no simple expression does it."""
    if least == 0 and most is None:
        return node
    if isinstance(node, Alt):
        branches = [_bounded(item, least, most) for item in node.items]
        return None if None in branches else alternatives([one for one in branches if one is not None])
    items: list[Node] = list(node.items) if isinstance(node, Seq) else [node]
    fixed, elastic = 0, []
    for i, item in enumerate(items):
        length = _length(item)
        if length is not None:
            fixed += length
        elif isinstance(item, Repeat) and isinstance(item.item, Chars):
            elastic.append(i)
        else:
            return None
    if len(elastic) > 1:
        return None
    if not elastic:
        return node if least <= fixed and (most is None or fixed <= most) else Alt(())
    i = elastic[0]
    run = items[i]
    assert isinstance(run, Repeat)
    low = max(run.least, least - fixed)
    high = lower(run.most, None if most is None else most - fixed)
    if high is not None and low > high:
        return Alt(())
    items[i] = Repeat(run.item, low, high)
    return sequence(items)


def _length(node: Node) -> int | None:
    """The common length of all strings of an expression in characters; None if lengths vary."""
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Text):
        return len(node.text)
    if isinstance(node, Seq):
        lengths = [_length(item) for item in node.items]
        known = [length for length in lengths if length is not None]
        return sum(known) if len(known) == len(lengths) else None
    if isinstance(node, Alt):
        found = {_length(item) for item in node.items}
        return found.pop() if len(found) == 1 else None
    if isinstance(node, Repeat) and node.least == node.most:
        length = _length(node.item)
        return None if length is None else length * node.least
    return None


@lru_cache(maxsize=256)
def without_text(strings: Strings, text: str, unlike: frozenset[Node] = frozenset()) -> Node:
    """The strings without JSON escapes, except strings that contain ``text`` or match ``unlike``.

    Cached, since the parameters of tools repeat the same few calls.

    Raises:
        GrammarError: the automaton would need too many states.
    """
    rest = strings.meet(Strings(absent=unlike | {sequence([ANYTHING, Text(text), ANYTHING])}))
    if rest is None:
        return Alt(())
    try:
        return rest.automaton()
    except GrammarError:
        if strings.patterns or strings.absent or strings.excluded or unlike:
            raise
        first = ord(text[0])  # only length bounds: exclude the first character of ``text`` instead
        return Repeat(Chars(complement(((first, first),))), strings.least, strings.most)
