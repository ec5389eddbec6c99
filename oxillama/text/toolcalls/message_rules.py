"""Grammars of whole messages: free text up to the beginning of a call, then that call, and so on.

What a message may be depends on where its parser stands (`MessageParser`): white space, reasoning and calls
first, then text and calls. So texts are automata that leave out whatever would begin something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oxillama.errors import GrammarError
from oxillama.text.grammar.regex import parse_regex
from oxillama.text.grammar.rulebook import SPACE, RuleBook
from oxillama.text.grammar.rules import Alt, Node, Repeat, Rules, Seq
from oxillama.text.toolcalls.call_format import MANY, CallRules
from oxillama.text.toolcalls.objects import ARGUMENTS, IDS, NAMES
from oxillama.text.toolcalls.parameters import Tool
from oxillama.text.toolcalls.tool_grammar import ToolCallGrammar
from oxillama.text.toolcalls.turns import NOTHING, escaped, free_text, turn_rules
from oxillama.text.toolcalls.value_rules import BREAK

_KEYS = "|".join((*ARGUMENTS, *IDS, *NAMES, "function", "type"))
_BARE = rf'{SPACE}*\{{{SPACE}*"({_KEYS})"'
"""A message that may be a call without a delimiter, as a regular expression."""
MOST_FRAMING = 4
"""Texts that mean nothing, before and behind calls that must come."""
_MORE = rf"{SPACE}*[;,]?{SPACE}*\{{"
"""What would be parsed as a further call, behind one without a closing delimiter."""


def message_rules(
    grammar: ToolCallGrammar,
    tools: Sequence[Tool],
    choice: str,
    *,
    parallel: bool = True,
    in_reasoning: bool = False,
    special: Mapping[str, int] | None = None,
    answer: Rules | None = None,
) -> Rules:
    """The grammar of the messages in which every call is valid.

    Args:
        grammar: the format.
        tools: that may be called; of one name only, if that one must be called.
        choice: "auto" for text and calls, "required" for calls alone, "one" for one call, "none" for no call.
        parallel: whether there may be more than one.
        in_reasoning: whether the message begins inside reasoning.
        special: ids of special tokens by their texts, of which the format's delimiters may be made.
        answer: the grammar of a message that is no call, for the choice "auto"; None for any. The format has
            delimiters around calls then, and no headers.

    Raises:
        GrammarError: the format has no calls; a schema cannot be enforced, or is over a limit; the message
            names the tool.
    """
    if not grammar.has_calls:
        raise GrammarError(f"tools: expected a format with calls, got {grammar.name}")
    book = RuleBook()
    calls = CallRules(grammar, tools, book, special or {})
    many = parallel and choice != "one" and not grammar.single
    if grammar.headers:
        names = [tool.name for tool in tools]
        return book.rules(turn_rules(book, calls, names, choice, in_reasoning, many))
    for text in grammar.opens:
        if any(text.endswith(text[:n]) for n in range(1, len(text))):
            wanted = "a delimiter that does not end as it begins"
            raise GrammarError(f"tools: expected {wanted}, got {text!r:.80}")
    other = None if answer is None else book.include(answer)
    return book.rules(_Message(book, calls, many, other).root(choice, in_reasoning))


def reasoned_rules(
    grammar: ToolCallGrammar, answer: Rules, *, in_reasoning: bool, special: Mapping[str, int]
) -> Rules:
    """The grammar of an answer behind reasoning, which need not come.

    Args:
        grammar: the format, which has reasoning.
        answer: the grammar of the answer.
        in_reasoning, special: as for `message_rules`.
    """
    book, plain = RuleBook(), grammar.without_calls()
    message = _Message(book, CallRules(plain, (), book, special), False, book.include(answer))
    return book.rules(message.answered(in_reasoning))


class _Message:
    """Messages with delimiters."""

    def __init__(self, book: RuleBook, calls: CallRules, many: bool, answer: Node | None = None) -> None:
        self._book, self._calls, self._many, self._answer = book, calls, many, answer
        self._grammar = grammar = calls.grammar
        think = grammar.reasoning[:1] if grammar.reasoning else ()
        self._opens = (*grammar.opens, *grammar.framing, *(think if grammar.reasoning_anywhere else ()))
        self._framing: list[Node] = [calls.mark(text) for text in grammar.framing]
        self._leads = tuple(f"{SPACE}*{escaped(text)}" for text in (*think, *grammar.framing))
        self._space = book.rule(parse_regex(f"{SPACE}*", search=False))
        self._reasoning: list[Node] = []
        self._cut_reasoning: list[Node] = []  # reasoning that the message's end cuts off
        if grammar.reasoning is not None:
            open, close = map(calls.mark, grammar.reasoning)
            stops = (grammar.reasoning[1], *(grammar.opens if grammar.ends_reasoning else ()))
            self._thought, self._close = book.rule(free_text(stops)), close
            self._reasoning = [book.rule(Seq((open, self._thought, close)))]
            self._cut_reasoning = [Seq((self._space, open, self._thought))]

    def root(self, choice: str, in_reasoning: bool) -> Node:
        """The whole message: see `message_rules`."""
        is_free = choice in ("auto", "none") and self._answer is None
        if self._answer is not None:
            whole: Node = Alt((self._required(), self.answered()))
        else:
            whole = self._free(choice == "auto") if is_free else self._required()
        if not in_reasoning:
            return whole
        ways: list[Node] = [Seq((self._thought, self._close, whole))]
        if is_free:
            ways.append(self._thought)
        if self._grammar.ends_reasoning and choice != "none":
            call = self._calls.block(self._many)
            behind = self._behind_call() if is_free else self._more_calls(call)
            ways.append(Seq((self._thought, call, behind)))
        return Alt(tuple(ways))

    def _more_calls(self, call: Node) -> Node:
        return Repeat(Seq((BREAK, call)), 0, MANY - 1) if self._many else NOTHING

    def _required(self) -> Node:
        """Calls alone, perhaps after reasoning."""
        first = self._calls.block(self._many, bare=True)
        more = NOTHING if self._grammar.bare else self._more_calls(first)
        thoughts = [Repeat(Seq((BREAK, node)), 0, 1) for node in self._reasoning]
        framing = [Repeat(Seq((BREAK, Alt(tuple(self._framing)))), 0, MOST_FRAMING)] if self._framing else []
        return Seq((*thoughts, *framing, BREAK, first, more, *framing))

    def answered(self, in_reasoning: bool = False) -> Node:
        """An answer, perhaps after reasoning."""
        assert self._answer is not None
        if in_reasoning:
            return Seq((self._thought, self._close, BREAK, self._answer))
        return Alt((self._answer, *(Seq((BREAK, node, BREAK, self._answer)) for node in self._reasoning)))

    def _free(self, with_calls: bool) -> Node:
        """Text, with or without calls."""
        parts = (*self._reasoning, *self._framing)
        before = [Repeat(Seq((self._space, Alt(parts))), 0, None)] if parts else []
        bare = (_BARE,) if self._grammar.bare and with_calls else ()
        ways = [self._text((*self._leads, *bare), with_calls), *self._cut_reasoning]
        if with_calls:
            ways.append(Seq((self._space, self._calls.block(self._many, bare=True), self._behind_call())))
        return Seq((*before, Alt(tuple(ways))))

    def _behind_call(self) -> Node:
        """What follows a call where there was no text before it."""
        parts = [*self._reasoning, *self._framing, *([self._calls.block(True)] if self._many else [])]
        more = (_MORE,) if self._grammar.bare else ()
        end = Alt((self._text((*self._leads, *more), self._many), *self._cut_reasoning))
        between = [Repeat(Seq((self._space, Alt(tuple(parts)))), 0, None)] if parts else []
        return self._book.rule(Seq((*between, end)))

    def _text(self, leads: tuple[str, ...], with_calls: bool) -> Node:
        """White space, or text that begins with none of ``leads``, and calls behind it."""
        first = free_text(self._opens, leads, blank=False)
        after = self._book.rule(free_text(self._opens, (_MORE,) if self._grammar.bare else ()))
        parts = (*(self._reasoning if self._grammar.reasoning_anywhere else ()), *self._framing)
        others: list[Node] = [Seq((node, after)) for node in parts]
        call = [Seq((self._calls.block(self._many), after))] if with_calls else []
        rest: list[Node] = []
        if call and not self._many:
            more = [Repeat(Alt(tuple(others)), 0, None)] if others else []
            rest = [*more, Repeat(call[0], 0, 1), *more]
        elif others or call:
            rest = [Repeat(Alt((*others, *call)), 0, None)]
        return self._book.rule(Alt((self._space, Seq((first, *rest)))))
