"""Messages within the message: each has a header, which says whether it is reasoning, an answer or a call."""

from __future__ import annotations

import re
from collections.abc import Callable

from oxillama.events import ReasoningPart
from oxillama.toolcalls.calls import Calls
from oxillama.toolcalls.parts import Part
from oxillama.toolcalls.source import MalformedCall, Reading, Source
from oxillama.toolcalls.tag_calls import invokes
from oxillama.toolcalls.tool_grammar import ToolCallGrammar

MESSAGE, CHANNEL, START = "<|message|>", "<|channel|>", "<|start|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>", START)
WRAPPER = "<atem:function_calls>"
"""What calls in tags stand in, where each message names its recipient."""


class Turns:
    """Reads the messages of one message.

    Parameters
    ----------
    source, calls : what is read, and who hands out calls.
    text : the answer.
    grammar : the format.
    in_reasoning : whether the first message has begun as reasoning.
    """

    def __init__(
        self, source: Source, calls: Calls, text: Part, grammar: ToolCallGrammar, in_reasoning: bool
    ) -> None:
        self._source = source
        self._calls = calls
        self._text = text
        self._grammar = grammar
        self._in_reasoning = in_reasoning
        self._closing: tuple[str, ...] = ENDS[:3]

    def harmony(self) -> Reading[None]:
        """gpt-oss: a header with a channel and perhaps a recipient, and a body.

        Source: https://github.com/openai/harmony, docs/format.md.
        """
        source = self._source
        space = yield from source.spaces()
        stop = yield from source.one_of((CHANNEL, "to=", START))
        if stop:
            source.unread(stop)
        else:  # the prompt has the header
            source.unread(space)
            stop = yield from self._plain(self._in_reasoning, ENDS)
        while stop:
            source.keep("")
            header, stop = yield from source.text_until((MESSAGE, *ENDS[:3]))
            raw = source.kept()
            if stop == MESSAGE:
                recipients = [name for name in re.findall(r"to=([^\s<]+)", header) if name != "assistant"]
                channels = re.findall(r"<\|channel\|>\s*(\w+)", header)
                if recipients:
                    stop = yield from self._call(raw, self._function(recipients[-1]), ENDS)
                else:
                    stop = yield from self._plain((channels or ["final"])[-1] == "analysis", ENDS)
            elif header.strip():
                self._calls.fail(raw, f"expected a header and {MESSAGE}, got {header[:80]!r}")
        self._text.end()

    def recipients(self) -> Reading[None]:
        """A header that is the name of the user, of the model itself, or of a tool, and a body.

        Without a header the text is the answer.
        """
        source, grammar = self._source, self._grammar
        lead, behind, end, user, myself = grammar.headers
        (start,) = grammar.opens
        space = yield from source.spaces()
        began = yield from source.one_of(tuple({start, lead, lead.lstrip(), behind} - {"", "\n"}))
        known = () if self._calls.tools is None else tuple(sorted(self._calls.tools))
        names = tuple(f"{name}{behind}" for name in (user, myself, *known) if name)
        # a mark that text may hold starts a message only before a name that is known
        starts = tuple(f"{start}{name}" for name in names) if known and not end else (start,)
        unnamed = (f"{start.removesuffix(lead)}{behind}",) if lead else ()
        self._closing = closing = (*((end,) if end else ()), *grammar.dropped)
        ends = (*starts, *unnamed, *closing)
        stop, head = start, began
        if began == behind or (not began and (lead.strip() or not (yield from self._is_name(names)))):
            source.unread("" if began else space)
            stop = yield from self._plain(False, ends)
        while stop:
            if stop in closing:
                space = yield from source.spaces()
                stop = yield from source.one_of((start, *unnamed, *closing))
                if not stop:
                    source.unread(space)
                    stop = yield from self._plain(False, ends)
                continue
            if stop in unnamed:
                stop = yield from self._plain(False, ends)
                continue
            source.unread(stop.removeprefix(start))
            source.keep(head)
            head = start
            name, found = yield from source.text_until((behind, *closing))
            raw = source.kept()
            if found != behind:
                self._calls.fail(raw, f"expected a recipient and {behind}, got {name[:80]!r}")
                stop = found
            elif name.strip() in (user, myself):
                stop = yield from self._plain(name.strip() != user, ends)
            else:
                body = self._tags() if grammar.tags else self._json(name)
                stop = yield from self._call(raw, body, ends)
        self._text.end()

    def _is_name(self, names: tuple[str, ...]) -> Reading[bool]:
        """Whether a name follows; where none is known, whether a line of one word does."""
        found = yield from self._source.one_of(names)
        if not found and self._calls.tools is None:
            line, stop = yield from self._source.text_until(("\n", " "))
            found = line if stop == "\n" and re.fullmatch(r"[\w.-]+", line) else ""
            self._source.unread(line + stop)
            return bool(found)
        self._source.unread(found)
        return bool(found)

    def _plain(self, is_reasoning: bool, ends: tuple[str, ...]) -> Reading[str]:
        """A body that is reasoning or an answer; returns what it ends with."""
        text = self._text
        if is_reasoning:
            text = Part(text.emit, ReasoningPart)
            text.part()
        stop = yield from self._source.until(ends, text.add)
        if stop:
            text.part()
        else:
            text.end()
        if stop == START:
            self._source.unread(stop)
        return stop

    def _function(self, recipient: str) -> Reading[None]:
        if not recipient.startswith("functions."):
            raise MalformedCall(f"expected a call of functions.NAME, got one of {recipient[:80]!r}")
        yield from self._json(recipient.removeprefix("functions."))

    def _json(self, name: str) -> Reading[None]:
        self._calls.begin(name)
        yield from self._source.spaces()
        yield from self._source.json(self._calls.arguments)

    def _tags(self) -> Reading[None]:
        yield from self._source.expect((WRAPPER,))
        yield from invokes(self._source, self._calls, self._grammar, WRAPPER)

    def _call(self, header: str, body: Reading[None], ends: tuple[str, ...]) -> Reading[str]:
        """A body that is a call; returns what it ends with."""
        source, calls = self._source, self._calls
        self._text.part()
        source.keep(header)
        stop = ""
        try:
            yield from body
            yield from source.spaces()
            if (yield from source.next()):
                stop = yield from source.expect(ends)
            if calls.has_open:
                calls.end()
            source.kept()
            if stop == START:
                source.unread(stop)
        except MalformedCall as error:
            if calls.constrained:
                yield from source.text_until(())
            elif not stop:
                kept = source.kept()  # an open string may have swallowed the end
                header = header if kept.startswith(header) else ""  # what went before is a call of its own
                source.unread(kept.removeprefix(header))
                source.keep(header)
                stop = yield from source.until(ends, _nothing)
            if stop == START:
                source.unread(stop)
            text = source.kept()
            calls.fail(text if stop in self._closing else text.removesuffix(stop), str(error))
        return stop


_nothing: Callable[[str], None] = lambda text: None  # noqa: E731
