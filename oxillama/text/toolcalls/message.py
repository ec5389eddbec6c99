"""`MessageParser`: turns the text of a model, piece by piece, into events."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from oxillama.base.config import checks
from oxillama.base.events import ArgumentsPart, CallEnd, Event, ReasoningPart, TextPart, ToolCall
from oxillama.text.toolcalls.call_format import CallParser
from oxillama.text.toolcalls.calls import Calls, TextEmitter
from oxillama.text.toolcalls.incoming_text import IncomingText, MalformedCall, Parsing
from oxillama.text.toolcalls.objects import parse_objects
from oxillama.text.toolcalls.patterns import pattern
from oxillama.text.toolcalls.schemas import parameter_schemas
from oxillama.text.toolcalls.tool_grammar import ToolCallGrammar
from oxillama.text.toolcalls.turns import Turns

MOST_FAILED = 32
"""Calls of a message that may fail; behind them, all is text. Each may have the rest of it parsed again."""


class MessageParser:
    """Turns the text of a message into events.

    The events are the same however the text is cut into pieces, but for the cuts of their own texts:
    neighbouring pieces of text, of reasoning, or of one call's arguments always join to the same. Behind
    `MOST_FAILED` calls that failed, no more are looked for.

    Whitespace between text, reasoning and calls is dropped. Special tokens must be in the text.

    Args:
        grammar: the format, of `grammar_of_template`.
        tools: what the model may call, as for chat templates. In formats of tags they tell strings from
            numbers; where a call has no delimiter, an object with another name is text.
        in_reasoning: whether the text begins inside reasoning (`ToolCallGrammar.begins_in_reasoning`).
        constrained: whether the text follows the grammar of its format (`message_rules`). What fails is then
            the last call, cut off, and all of the text behind its beginning belongs to it.
        answers: whether text that has begun goes on to the end of the message, whatever it holds.

    Raises:
        ConfigError: a tool without a name; a text that begins inside reasoning that the format does not have.
    """

    def __init__(
        self,
        grammar: ToolCallGrammar,
        tools: Sequence[Mapping[str, Any]] | None = None,
        in_reasoning: bool = False,
        constrained: bool = False,
        answers: bool = False,
    ) -> None:
        checks.boolean("constrained", constrained)
        checks.boolean("answers", answers)
        checks.instance("grammar", grammar, ToolCallGrammar)
        if checks.boolean("in_reasoning", in_reasoning) and grammar.reasoning is None:
            raise checks.refuse("in_reasoning", f"False, for {grammar.name} has no reasoning", in_reasoning)
        self.grammar = grammar
        self.in_reasoning = in_reasoning
        self.constrained = constrained
        self.answers = answers
        self._events: list[Event] = []
        self._source = IncomingText()
        schemas = parameter_schemas(tools or ())
        names = None if tools is None else frozenset(schemas)
        self._calls = Calls(self._source, self._add, grammar, names, schemas, constrained)
        self._text = TextEmitter(self._add, TextPart)
        self._parser = CallParser(self._calls)
        self._parsing = self._message()
        if grammar.headers:
            self._parsing = Turns(self._calls, self._text, in_reasoning).messages()

    def feed(self, text: str) -> list[Event]:
        """The events that the next piece of text brings. Raises ConfigError after the end."""
        if self._source.ended:
            raise checks.refuse("text", "none behind the end of the message", text)
        self._source.push(text)
        return self._advance()

    def finish(self) -> list[Event]:
        """The events that the end of the message brings: what was held back, and calls that are cut off."""
        self._source.ended = True
        return self._advance()

    def _advance(self) -> list[Event]:
        next(self._parsing, None)
        events, self._events[:] = list(self._events), []
        return events

    def _add(self, event: Event) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(event, (TextPart, ReasoningPart, ArgumentsPart)) and type(last) is type(event):
            self._events[-1] = replace(
                event, text=last.text + event.text
            )  # argument parts belong to one call
        else:
            self._events.append(event)

    # --- with delimiters ----------------------------------------------------------------------------

    def _message(self) -> Parsing[None]:
        grammar, source = self.grammar, self._source
        think = grammar.reasoning[:1] if grammar.reasoning else ()
        marks = grammar.framing + grammar.dropped + (think if grammar.reasoning_anywhere else ())
        always = grammar.opens + marks
        opened = (yield from self._reason()) if self.in_reasoning else ""
        while opened or (yield from source.next()):
            if opened in grammar.opens:
                yield from self._call(opened)
                opened = ""
                always = always if self._calls.n_failed < MOST_FAILED else marks
            elif opened in think:
                opened = yield from self._reason()
            elif opened in grammar.framing:
                self._text.part()
                opened = ""
            elif self._text.has_begun:
                opened = yield from source.until(() if self.answers else always, self._text.add)
            else:  # nothing but whitespace, reasoning and calls so far
                self._text.add((yield from source.spaces()))
                opened = yield from source.one_of((*always, *think))
                if not opened and grammar.bare and (yield from source.next()) == "{":
                    yield from self._bare()
                elif not opened:
                    opened = yield from source.until(() if self.answers else always, self._text.add)
        self._text.end()

    def _reason(self) -> Parsing[str]:
        """Reasoning up to its end, or to a call that ends it; returns the beginning of that call."""
        assert self.grammar.reasoning is not None
        open, close = self.grammar.reasoning
        self._text.part()
        text = TextEmitter(self._add, ReasoningPart)
        text.part()
        yield from self._source.spaces()
        yield from self._source.one_of((open,))  # in the prompt already, and once more
        opens = self.grammar.opens if self.grammar.ends_reasoning else ()
        stop = yield from self._source.until((close, *opens), text.add)
        if not stop:
            text.end()
        return stop if stop in opens else ""

    def _call(self, opened: str) -> Parsing[None]:
        """A call, or several, and their events."""
        self._text.part()
        self._source.keep(opened)
        try:
            yield from self._parser.block(opened)
            self._source.kept()
        except MalformedCall as error:
            yield from self._failed(opened, str(error))

    def _failed(self, opened: str, reason: str) -> Parsing[None]:
        """The text of something that looked like a call, up to its closing text or the next call."""
        text, opens = self._source.kept(), self.grammar.opens
        start, stops = len(text), tuple[str, ...]()
        close = self.grammar.closing(opened) or pattern(self.grammar.calls[0]).ends[-1]
        if close and not self.constrained:  # an open string may have swallowed both
            start, stops = 0, (close, *opens)
            while found := next((o for o in opens if text[start:].lstrip().startswith(o)), ""):
                start = text.index(found, start) + len(found)
            self._source.unread(text[start:])
        if close or self.constrained:
            rest, stop = yield from self._source.text_until(stops)
            if stop != close:
                self._source.unread(stop)
            text = text[:start] + rest + (stop if stop == close else "")
        self._calls.fail(text, reason)

    def _bare(self) -> Parsing[None]:
        """An object that is a call if it has a name and arguments, else text; then perhaps others."""
        self._source.keep("")
        try:
            yield from parse_objects(self._calls, surely=False)
            self._source.kept()
        except MalformedCall as error:
            text = self._source.kept()
            if self._calls.has_open:
                self._calls.fail(text, str(error))
            else:
                self._text.add(text)
        if self._calls.n_begun:
            self._text.part()


class ToolCallDetector:
    """Finds the calls in a model's text. `MessageParser` also gives text, reasoning and failed calls.

    Args:
        grammar, tools, in_reasoning: as for `MessageParser`.
    """

    def __init__(
        self,
        grammar: ToolCallGrammar,
        tools: Sequence[Mapping[str, Any]] | None = None,
        in_reasoning: bool = False,
    ) -> None:
        self.grammar = grammar
        self.tools = tools
        self.in_reasoning = in_reasoning
        self.reset()

    def reset(self) -> None:
        """Forgets what was fed: a new message begins."""
        self._parser = MessageParser(self.grammar, self.tools, self.in_reasoning)
        self._found: deque[ToolCall] = deque()

    def feed(self, text: str) -> ToolCall | None:
        """The first complete call that was not returned yet. Of several, ``feed("")`` gives the others."""
        return self._next(self._parser.feed(text))

    def finish(self) -> ToolCall | None:
        """The next call at the end of the message, also a call without its end; further calls follow."""
        return self._next(self._parser.finish())

    def _next(self, events: list[Event]) -> ToolCall | None:
        self._found += [event.call for event in events if isinstance(event, CallEnd)]
        return self._found.popleft() if self._found else None
