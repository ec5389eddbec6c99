"""Grammars of whole messages: free text up to the beginning of a call, then that call, and so on.

What a message may be depends on where its reader stands (`MessageParser`): white space, reasoning and calls
first, then text and calls. So texts are automata that leave out whatever would begin something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oxillama.errors import GrammarError
from oxillama.grammar.regex import parse_regex
from oxillama.grammar.rulebook import SPACE, RuleBook
from oxillama.grammar.rules import Alt, Node, Repeat, Rules, Seq
from oxillama.toolcalls.call_format import MANY, CallRules
from oxillama.toolcalls.objects import ARGUMENTS, IDS, NAMES
from oxillama.toolcalls.tool_grammar import ToolCallGrammar
from oxillama.toolcalls.turns import NOTHING, escaped, free_text, turn_rules
from oxillama.toolcalls.value_rules import BREAK, Tool

_KEYS = "|".join((*ARGUMENTS, *IDS, *NAMES, "function", "type"))
_BARE = rf'{SPACE}*\{{{SPACE}*"({_KEYS})"'
"""A message that may be a call without a delimiter, as a regular expression."""
MOST_FRAMING = 4
"""Texts that mean nothing, before and behind calls that must come."""
_MORE = rf"{SPACE}*[;,]?{SPACE}*\{{"
"""What would be read as a further call, behind one without a closing delimiter."""


def message_rules(
    grammar: ToolCallGrammar,
    tools: Sequence[Tool],
    choice: str,
    *,
    parallel: bool = True,
    in_reasoning: bool = False,
    special: Mapping[str, int] | None = None,
) -> Rules:
    """The grammar of the messages in which every call is valid.

    Parameters
    ----------
    grammar : the format.
    tools : that may be called; of one name only, if that one must be called.
    choice : "auto" for text and calls, "required" for calls alone, "one" for one call, "none" for no call.
    parallel : whether there may be more than one.
    in_reasoning : whether the message begins inside reasoning.
    special : ids of special tokens by their texts, of which the format's delimiters may be made.

    Raises
    ------
    GrammarError : the format has no calls; a schema cannot be enforced, or is over a limit; the message names
        the tool.
    """
    if not grammar.has_calls:
        raise GrammarError(f"tools: expected a format with calls, got {grammar.name}")
    book = RuleBook()
    calls = CallRules(grammar, tools, book, special or {})
    many = parallel and choice != "one" and not grammar.single
    if grammar.headers:
        names = [tool.name for tool in tools]
        return book.rules(turn_rules(book, calls, names, choice, in_reasoning, many))
    _check_delimiters(grammar)
    return book.rules(_Message(book, calls, many).root(choice, in_reasoning))


def _check_delimiters(grammar: ToolCallGrammar) -> None:
    for text in grammar.opens:
        if any(text.endswith(text[:n]) for n in range(1, len(text))):
            raise GrammarError(
                f"tools: expected a delimiter that does not end as it begins, got {text!r:.80}"
            )


class _Message:
    """Messages with delimiters."""

    def __init__(self, book: RuleBook, calls: CallRules, many: bool) -> None:
        self._book, self._calls, self._many = book, calls, many
        self._grammar = grammar = calls.grammar
        self._is_bare = grammar.bare
        think = grammar.reasoning[:1] if grammar.reasoning else ()
        self._opens = (*grammar.opens, *grammar.framing, *(think if grammar.reasoning_anywhere else ()))
        self._framing: list[Node] = [calls.mark(text) for text in grammar.framing]
        lead = tuple(f"{SPACE}*{escaped(text)}" for text in (*think, *grammar.framing))
        self._leads = (*lead, _BARE) if self._is_bare else lead
        self._leads_after = (*lead, _MORE) if self._is_bare else lead
        self._space = book.rule(parse_regex(f"{SPACE}*", search=False))

    def root(self, choice: str, in_reasoning: bool) -> Node:
        whole = self._required(choice) if choice in ("required", "one") else self._auto(choice == "auto")
        if not in_reasoning:
            return whole
        thought, close = self._thought()
        ways: list[Node] = [Seq((thought, close, whole))]
        if choice in ("auto", "none"):
            ways.append(thought)
        if self._grammar.ends_reasoning and choice != "none":
            ways.append(Seq((thought, self._after_reasoning(choice))))
        return Alt(tuple(ways))

    def _thought(self) -> tuple[Node, Node]:
        """What stands inside reasoning, and what ends it."""
        assert self._grammar.reasoning is not None
        close = self._grammar.reasoning[1]
        stops = (close, *(self._grammar.opens if self._grammar.ends_reasoning else ()))
        return self._book.rule(free_text(stops)), self._calls.mark(close)

    def _reasoning(self) -> list[Node]:
        """Reasoning as a whole, if the format has any."""
        if self._grammar.reasoning is None:
            return []
        thought, close = self._thought()
        return [self._book.rule(Seq((self._calls.mark(self._grammar.reasoning[0]), thought, close)))]

    def _cut_reasoning(self) -> list[Node]:
        """Reasoning that the end of the message cuts."""
        if self._grammar.reasoning is None:
            return []
        return [Seq((self._space, self._calls.mark(self._grammar.reasoning[0]), self._thought()[0]))]

    def _required(self, choice: str) -> Node:
        first = self._calls.block(self._many, bare=True)
        more = Repeat(Seq((BREAK, first)), 0, MANY - 1) if self._many and not self._is_bare else NOTHING
        thoughts = [Repeat(Seq((BREAK, node)), 0, 1) for node in self._reasoning()]
        framing = [Repeat(Seq((BREAK, Alt(tuple(self._framing)))), 0, MOST_FRAMING)] if self._framing else []
        return Seq((*thoughts, *framing, BREAK, first, more, *framing))

    def _after_reasoning(self, choice: str) -> Node:
        """A call that ends reasoning, and what follows."""
        call = self._calls.block(self._many, bare=False)
        if choice in ("required", "one"):
            return Seq((call, Repeat(Seq((BREAK, call)), 0, MANY - 1) if self._many else NOTHING))
        return Seq((call, self._behind_call()))

    def _auto(self, with_calls: bool) -> Node:
        """Text, with or without calls."""
        parts = (*self._reasoning(), *self._framing)
        before = [Repeat(Seq((self._space, Alt(parts))), 0, None)] if parts else []
        ways = [self._text(self._leads if with_calls else self._leads_alone(), with_calls)]
        ways += self._cut_reasoning()
        if with_calls:
            first = self._calls.block(self._many, bare=True)
            ways.append(Seq((self._space, first, self._behind_call())))
        return Seq((*before, Alt(tuple(ways))))

    def _leads_alone(self) -> tuple[str, ...]:
        """What text may not begin with where there are no calls."""
        return tuple(lead for lead in self._leads if lead != _BARE)

    def _behind_call(self) -> Node:
        """What follows a call where there was no text before it."""
        thoughts = self._reasoning()
        calls: list[Node] = []
        if self._many:
            calls = [self._calls.block(True, bare=False)]
        between = [Seq((self._space, node)) for node in (*thoughts, *self._framing, *calls)]
        end = Alt((self._text(self._leads_after, self._many), *self._cut_reasoning()))
        return self._book.rule(Seq((Repeat(Alt(tuple(between)), 0, None) if between else NOTHING, end)))

    def _text(self, leads: tuple[str, ...], with_calls: bool) -> Node:
        """White space, or text that begins with none of ``leads``, and calls behind it."""
        first = free_text(self._opens, leads, blank=False)
        after = self._book.rule(free_text(self._opens, (_MORE,) if self._is_bare else ()))
        calls = [Seq((self._calls.block(self._many), after))] if with_calls else []
        parts = (*(self._reasoning() if self._grammar.reasoning_anywhere else ()), *self._framing)
        thoughts = [Seq((node, after)) for node in parts]
        rest: list[Node] = [Repeat(Alt((*thoughts, *calls)), 0, None)] if thoughts or calls else []
        if calls and not self._many:
            more = Repeat(Alt(tuple(thoughts)), 0, None) if thoughts else NOTHING
            rest = [more, Repeat(calls[0], 0, 1), more]
        return self._book.rule(Alt((self._space, Seq((first, *rest)))))
