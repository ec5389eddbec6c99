"""`MessageParser`: what a model writes, piece by piece, as events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oxillama.config import checks
from oxillama.events import ArgumentsPart, Event, ReasoningPart, TextPart
from oxillama.toolcalls.calls import Calls
from oxillama.toolcalls.json_calls import objects
from oxillama.toolcalls.parts import Part
from oxillama.toolcalls.schemas import parameter_schemas, tool_names
from oxillama.toolcalls.source import MalformedCall, Reading, Source
from oxillama.toolcalls.syntax import syntax_of
from oxillama.toolcalls.tag_calls import close_of
from oxillama.toolcalls.tool_grammar import TURNS, ToolCallGrammar
from oxillama.toolcalls.turns import Turns

MOST_FAILED = 32
"""Calls of a message that may fail; behind them, all is text. Each may have the rest of it read again."""


class MessageParser:
    """Turns the text of a message into events.

    The events are the same however the text is cut into pieces, but for the cuts of their own texts:
    neighbouring pieces of text, of reasoning, or of one call's arguments always join to the same. Behind
    `MOST_FAILED` calls that failed, no more are looked for.

    Whitespace between text, reasoning and calls is dropped. Special tokens must be in the text.

    Parameters
    ----------
    grammar : the format, of `grammar_of_template`.
    tools : what the model may call, as for chat templates. In formats of tags they tell strings from numbers;
        where a call has no delimiter, an object with another name is text.
    in_reasoning : whether the text begins inside reasoning (`ToolCallGrammar.begins_in_reasoning`).
    constrained : whether the text follows the grammar of its format (`message_rules`). What fails is then the
        last call, cut off, and all of the text behind its beginning belongs to it.

    Raises
    ------
    ConfigError : a tool without a name; a text that begins inside reasoning that the format does not have.
    """

    def __init__(
        self,
        grammar: ToolCallGrammar,
        tools: Sequence[Mapping[str, Any]] | None = None,
        in_reasoning: bool = False,
        constrained: bool = False,
    ) -> None:
        checks.boolean("constrained", constrained)
        checks.instance("grammar", grammar, ToolCallGrammar)
        if checks.boolean("in_reasoning", in_reasoning) and grammar.reasoning is None:
            raise checks.refuse("in_reasoning", f"False, for {grammar.name} has no reasoning", in_reasoning)
        self.grammar = grammar
        self.in_reasoning = in_reasoning
        self.constrained = constrained
        self._events: list[Event] = []
        self._source = Source()
        names = None if tools is None else tool_names(tools)
        schemas = parameter_schemas(tools or ())
        self._calls = Calls(self._source, self._add, names, schemas, constrained)
        self._text = Part(self._add, TextPart)
        if grammar.style in TURNS:
            turns = Turns(self._source, self._calls, self._text, grammar, in_reasoning)
            self._reading = turns.harmony() if grammar.style == "harmony" else turns.recipients()
        else:
            self._reading = self._message()

    def feed(self, text: str) -> list[Event]:
        """The events that the next piece of text brings. Raises ConfigError behind the end."""
        if self._source.ended:
            raise checks.refuse("text", "none behind the end of the message", text)
        self._source.push(text)
        return self._read()

    def finish(self) -> list[Event]:
        """The events that the end of the message brings: what was held back, and calls that are cut off."""
        self._source.ended = True
        return self._read()

    def _read(self) -> list[Event]:
        next(self._reading, None)
        events, self._events[:] = list(self._events), []
        return events

    def _add(self, event: Event) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(event, TextPart) and isinstance(last, TextPart):
            self._events[-1] = TextPart(last.text + event.text)
        elif isinstance(event, ReasoningPart) and isinstance(last, ReasoningPart):
            self._events[-1] = ReasoningPart(last.text + event.text)
        elif (
            isinstance(event, ArgumentsPart) and isinstance(last, ArgumentsPart) and last.index == event.index
        ):
            self._events[-1] = ArgumentsPart(last.index, last.text + event.text)
        else:
            self._events.append(event)

    # --- with delimiters ----------------------------------------------------------------------------

    def _message(self) -> Reading[None]:
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
                opened = yield from source.until(always, self._text.add)
            else:  # nothing but whitespace, reasoning and calls so far
                self._text.add((yield from source.spaces()))
                opened = yield from source.one_of((*always, *think))
                if not opened and grammar.style == "bare" and (yield from source.next()) == "{":
                    yield from self._bare()
                elif not opened:
                    opened = yield from source.until(always, self._text.add)
        self._text.end()

    def _reason(self) -> Reading[str]:
        """Reasoning up to its end, or to a call that ends it; returns what that call begins with."""
        assert self.grammar.reasoning is not None
        open, close = self.grammar.reasoning
        self._text.part()
        text = Part(self._add, ReasoningPart)
        text.part()
        yield from self._source.spaces()
        yield from self._source.one_of((open,))  # in the prompt already, and once more
        opens = self.grammar.opens if self.grammar.ends_reasoning else ()
        stop = yield from self._source.until((close, *opens), text.add)
        if not stop:
            text.end()
        return stop if stop in opens else ""

    def _call(self, opened: str) -> Reading[None]:
        """A call, or several, and their events."""
        self._text.part()
        self._source.keep(opened)
        try:
            yield from syntax_of(self.grammar, self._source, self._calls, opened)
            self._source.kept()
        except MalformedCall as error:
            yield from self._failed(opened, str(error))

    def _failed(self, opened: str, reason: str) -> Reading[None]:
        """What was read of a call that is none, up to what would have closed it, or to the next call."""
        text = self._source.kept()
        if self.constrained:
            rest, _ = yield from self._source.text_until(())
            self._calls.fail(text + rest, reason)
            return
        start = 0
        while found := next((o for o in self.grammar.opens if text[start:].lstrip().startswith(o)), ""):
            start = text.index(found, start) + len(found)
        close = close_of(self.grammar, opened)
        if close:
            self._source.unread(text[start:])  # an open string may have swallowed both
            rest, stop = yield from self._source.text_until((close, *self.grammar.opens))
            if stop != close:
                self._source.unread(stop)
            text = text[:start] + rest + (stop if stop == close else "")
        self._calls.fail(text, reason)

    def _bare(self) -> Reading[None]:
        """An object that is a call if it has a name and arguments, else text; then perhaps others."""
        self._source.keep("")
        try:
            yield from objects(self._source, self._calls, surely=False)
            self._source.kept()
        except MalformedCall as error:
            text = self._source.kept()
            if self._calls.has_open:
                self._calls.fail(text, str(error))
            else:
                self._text.add(text)
        if self._calls.n_begun:
            self._text.part()
