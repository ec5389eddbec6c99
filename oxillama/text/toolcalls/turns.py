"""Messages within the message: each has a header, which says whether it is reasoning, an answer or a call."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oxillama.base.events import ReasoningPart
from oxillama.errors import GrammarError
from oxillama.text.grammar.rulebook import SPACE, RuleBook, texts_without
from oxillama.text.grammar.rules import Alt, Dfa, Node, Repeat, Seq
from oxillama.text.toolcalls.call_format import MANY, CallParser, CallRules
from oxillama.text.toolcalls.calls import Calls, TextEmitter
from oxillama.text.toolcalls.incoming_text import MalformedCall, Parsing
from oxillama.text.toolcalls.tool_grammar import ToolCallGrammar

NOTHING = Seq(())
_RECIPIENT, _CHANNEL = re.compile(r"to=([^\s<]+)"), re.compile(r"<\|channel\|>\s*(\w+)")


class Headers:
    """What the headers of a format's messages say.

    Attributes:
        start, message, ends: what begins a message, what ends its header, and what ends it.
        thought: the header of reasoning; "" for a format without it.
        users: recipients of answers, and of reasoning.
        leads: what a header without a start begins with; none if it is a name.
    """

    def __init__(self, grammar: ToolCallGrammar) -> None:
        self.grammar = grammar
        self.start: str
        self.message: str
        self.start, self.message, *ends = grammar.turns
        self.ends: tuple[str, ...] = tuple(ends)
        begin = grammar.next[grammar.next.index(self.start) :]
        self.thought: str = grammar.reasoning[0].removeprefix(begin) if grammar.reasoning else ""
        self._has_channels = grammar.answers[0].startswith("<|channel|>")
        self._is_name = "to=" not in grammar.headers[0]
        self.users: frozenset[str] = frozenset(map(self.recipient, (*grammar.answers, self.thought))) - {""}
        self.leads: tuple[str, ...] = () if self._is_name else ("<|channel|>", "to=", self.message)

    def recipient(self, header: str) -> str:
        """Whom a message goes to; "" if its header does not say."""
        if self._is_name:
            return header.strip()
        found = [name for name in _RECIPIENT.findall(header) if name != "assistant" or not self._has_channels]
        return found[-1] if found else ""

    def is_thought(self, header: str) -> bool:
        """Whether a message without a tool as its recipient is reasoning."""
        if self._has_channels:
            return bool((_CHANNEL.findall(header) or [""])[-1] == _CHANNEL.findall(self.thought)[0])
        return bool(self.thought) and self.recipient(header) == self.recipient(self.thought)

    def tool(self, recipient: str) -> str:
        """The tool that a recipient is. Raises MalformedCall."""
        lead = "functions." if "functions." in self.grammar.headers[0] else ""
        if not recipient.startswith(lead):
            raise MalformedCall(f"expected a call of {lead}NAME, got one of {recipient[:80]!r}")
        return recipient.removeprefix(lead)

    def starts(self, tools: Sequence[str]) -> tuple[str, ...]:
        """What begins a further message: a text that answers may hold does so only before a known name."""
        if not self._is_name or not tools:
            return (self.start,)
        return tuple(f"{self.start}{name}{self.message}" for name in (*self.users, *tools))


# --- their grammar ------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """A regular expression of a text alone."""
    return re.escape(text).replace("\\\n", "\\n")


def free_text(stops: Sequence[str], begins: Sequence[str] = (), blank: bool = True) -> Dfa:
    """`texts_without`, whose languages are as few as may be: states multiply with each."""
    found = [f"[^]*({'|'.join(map(escaped, stops))})"] if stops else []
    found += [f"({'|'.join(begins)})"] if begins else []
    return texts_without((), tuple(found), blank)


def turn_rules(
    book: RuleBook, calls: CallRules, tools: Sequence[str], choice: str, in_reasoning: bool, many: bool
) -> Node:
    """The grammar of the whole message: see `message_rules`."""
    headers = Headers(calls.grammar)
    for name in tools:
        if name in headers.users:
            raise GrammarError(f"tool {name}: expected another name, for it is a recipient in this format")
    body = book.rule(free_text((*headers.starts(tools), *headers.ends)))
    written = [book.rule(Seq((calls.mark(text), body))) for text in calls.grammar.answers]
    thought = [book.rule(Seq((calls.mark(headers.thought), body)))] if headers.thought else []
    plain, next, call = Alt((*written, *thought)), calls.mark(calls.grammar.next), calls.turn()
    lead = f"{SPACE}*({'|'.join(map(escaped, headers.leads))})"
    begun = book.rule(free_text((headers.start, *headers.ends), (lead,))) if in_reasoning else None
    if choice == "none":
        return Seq((begun or plain, Repeat(Seq((next, plain)), 0, None)))
    if choice in ("required", "one"):
        more = Repeat(Seq((next, call)), 0, MANY - 1) if many else NOTHING
        if begun is not None:
            return Seq((begun, Repeat(Seq((next, thought[0])), 0, 1), next, call, more))
        return Seq((*(Repeat(Seq((node, next)), 0, 1) for node in thought), call, more))
    if many:
        item = Alt((plain, call))
        return Seq((begun or item, Repeat(Seq((next, item)), 0, None)))
    plains = Repeat(Seq((next, plain)), 0, None)
    ways: list[Node] = [Seq((begun or plain, plains, Repeat(Seq((next, call, plains)), 0, 1)))]
    return Alt((*ways, *([Seq((call, plains))] if begun is None else [])))


# --- their parser -------------------------------------------------------------------------------------


class Turns:
    """Parses the messages of one message.

    Args:
        calls: emits the events of calls.
        text: the answer.
        in_reasoning: whether the first message has begun as reasoning.
    """

    def __init__(self, calls: Calls, text: TextEmitter, in_reasoning: bool) -> None:
        self._source, self._grammar = calls.source, calls.grammar
        self._calls = calls
        self._text = text
        self._in_reasoning = in_reasoning
        self._headers = headers = Headers(calls.grammar)
        self._starts = headers.starts(tuple(sorted(calls.tools or ())))

    def messages(self) -> Parsing[None]:
        """Texts without a header are answers, or reasoning that the prompt has begun.

        Source of gpt-oss's headers: https://github.com/openai/harmony, docs/format.md.
        """
        source, headers = self._source, self._headers
        first = more = True
        while more:
            space = yield from source.spaces()
            found = yield from source.one_of((headers.start, *headers.ends, *headers.leads))
            if found == headers.start:
                more = yield from self._message(found)
            elif found not in headers.ends:
                source.unread(found)
                if found or (first and (yield from self._is_name())):
                    more = yield from self._message("")
                else:
                    source.unread(space)
                    more = yield from self._plain(first and self._in_reasoning)
            first = False
        self._text.end()

    def _is_name(self) -> Parsing[bool]:
        """Whether a header that is a name follows; where none is known, whether a line of one word does."""
        if self._headers.leads:
            return False
        found = yield from self._source.one_of(
            tuple(s.removeprefix(self._headers.start) for s in self._starts)
        )
        if not found and self._calls.tools is None:
            line, stop = yield from self._source.text_until(("\n", " "))
            found = line + stop
            self._source.unread(found)
            return stop == "\n" and re.fullmatch(r"[\w.-]+", line) is not None
        self._source.unread(found)
        return bool(found)

    def _message(self, begun: str) -> Parsing[bool]:
        """A message from its header on; whether there may be another one."""
        source, headers = self._source, self._headers
        source.keep(begun)
        header, stop = yield from source.text_until((headers.message, *headers.ends))
        raw = source.kept()
        recipient = headers.recipient(header)
        if stop != headers.message:
            if header.strip():
                reason = f"expected a header and {headers.message}, got {header[:80]!r}"
                self._calls.fail(raw, reason)
            return bool(stop)
        if recipient and recipient not in headers.users:
            return (yield from self._call(raw, recipient))
        return (yield from self._plain(headers.is_thought(header)))

    def _plain(self, is_reasoning: bool) -> Parsing[bool]:
        """A body that is reasoning or an answer."""
        text = self._text
        if is_reasoning:
            text = TextEmitter(text.emit, ReasoningPart)
            text.part()
        stop = yield from self._source.until((*self._starts, *self._headers.ends), text.add)
        if stop:
            text.part()
        else:
            text.end()
        self._unread_start(stop)
        return bool(stop)

    def _unread_start(self, stop: str) -> None:
        if stop not in self._headers.ends:
            self._source.unread(stop)

    def _call(self, header: str, recipient: str) -> Parsing[bool]:
        """A body that is a call."""
        source, calls, grammar = self._source, self._calls, self._grammar
        self._text.part()
        source.keep(header)
        stop, stops = "", (*self._starts, *self._headers.ends)
        try:
            name = self._headers.tool(recipient)
            opened = (yield from source.expect(grammar.opens)) if grammar.opens else ""
            yield from CallParser(calls).block(opened, name)
            yield from source.spaces()
            if (yield from source.next()):
                stop = yield from source.expect(stops)
            if calls.has_open:
                calls.end()
            source.kept()
            self._unread_start(stop)
        except MalformedCall as error:
            if calls.constrained:
                yield from source.text_until(())
            elif not stop:
                kept = source.kept()  # an open string may have swallowed the end
                header = header if kept.startswith(header) else ""  # what went before is a call of its own
                source.unread(kept.removeprefix(header))
                source.keep(header)
                stop = (yield from source.text_until(stops))[1]
            self._unread_start(stop)
            calls.fail(source.kept(), str(error))
        return bool(stop)
