"""Conversion of a model's text to the blocks of Anthropic's messages, and the events that stream them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic_core import from_json

from oxillama.apps.server.running import Delta, receipt_of
from oxillama.engine.generation import Generation
from oxillama.text.toolcalls import ArgumentsPart, CallFailed, CallStart, Event, ReasoningPart, TextPart
from oxillama.text.toolcalls.openai_form import CallIds

Sent = dict[str, Any]
"""The data of an event; its type is the event's name."""

SIGNATURE = "oxillama"
"""Stands where Anthropic proves that reasoning is a model's own. Nothing checks it."""

PING = b'event: ping\ndata: {"type": "ping"}\n\n'

REASONS = {"stop": "end_turn", "tool_calls": "tool_use"}
"""Anthropic's words for the ends of a text."""


def usage_of(generation: Generation, n_thinking: int) -> dict[str, Any]:
    """Numbers of tokens so far; ``input_tokens`` leaves out tokens of the prefix cache."""
    usage = generation.usage
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.generated_tokens,
        "output_tokens_details": {"thinking_tokens": n_thinking},
    }


def stop_reason(generation: Generation) -> str:
    """The reason for the end of a text, in Anthropic's words if there is one."""
    reason, most = generation.finish_reason or "", generation.options.max_tokens
    if reason == "stop" and generation.stop_string is not None:
        return "stop_sequence"
    if reason == "length":
        is_asked_for = most is not None and len(generation.tokens) >= most
        return "max_tokens" if is_asked_for else "model_context_window_exceeded"
    return REASONS.get(reason, reason)


class Blocks:
    """Builds a message, block by block. Its methods yield the events of a stream.

    Args:
        head: id and model of the message.
        ids_of: makes the ids of the calls of an answer.
        shows_thinking: whether reasoning is sent.

    Attributes:
        message: as far as it has come; whole after `end`.
    """

    def __init__(
        self, head: dict[str, Any], ids_of: Callable[[Generation], CallIds], shows_thinking: bool
    ) -> None:
        self._ids_of, self._ids = ids_of, CallIds()
        self.shows_thinking: bool = shows_thinking
        self.message: dict[str, Any] = {
            **head,
            "type": "message",
            "role": "assistant",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }
        self._written: list[str] = []  # the index of the last block, which is open
        self._n_thinking = 0

    @property
    def _content(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.message["content"]
        return found

    def begin(self, generation: Generation) -> Iterator[Sent]:
        """The first event, sent with the first piece: the number of cached tokens is known then."""
        self._ids = self._ids_of(generation)
        usage = usage_of(generation, 0) | {"output_tokens": 0}
        yield {"type": "message_start", "message": {**self.message, "content": [], "usage": usage}}

    def add(self, delta: Delta) -> Iterator[Sent]:
        """The next piece."""
        if isinstance(delta.event, ReasoningPart):
            self._n_thinking += len(delta.tokens)
        if delta.event is not None:
            yield from self._add(delta.event)

    def _add(self, event: Event) -> Iterator[Sent]:
        if isinstance(event, TextPart) or (isinstance(event, CallFailed) and event.index is None):
            yield from self._open({"type": "text", "text": ""})
            yield self._piece("text_delta", "text", event.text)
        elif isinstance(event, ReasoningPart):
            yield from self._open({"type": "thinking", "thinking": "", "signature": ""})
            if self.shows_thinking:
                yield self._piece("thinking_delta", "thinking", event.text)
        elif isinstance(event, CallStart):
            id = self._ids.of(event.index, event.id)
            block = {"type": "tool_use", "id": id, "name": event.name, "input": {}}
            yield from self._open(block, anew=True)
        elif isinstance(event, ArgumentsPart):
            yield self._piece("input_json_delta", "partial_json", event.text)

    def _piece(self, kind: str, name: str, text: str) -> Sent:
        self._written.append(text)
        index = len(self._content) - 1
        return {"type": "content_block_delta", "index": index, "delta": {"type": kind, name: text}}

    def _open(self, block: dict[str, Any], anew: bool = False) -> Iterator[Sent]:
        """Begins a block, unless the open block is of the same kind and may continue."""
        if not anew and self._content and self._content[-1]["type"] == block["type"]:
            return
        yield from self._close()
        self._content.append(block)
        yield {"type": "content_block_start", "index": len(self._content) - 1, "content_block": dict(block)}

    def _close(self) -> Iterator[Sent]:
        """Ends the last block, if any."""
        if not self._content:
            return
        text, index = "".join(self._written), len(self._content) - 1
        self._written = []
        block = self._content[index]
        if block["type"] == "tool_use":
            block["input"] = input_of(text)
        elif block["type"] == "text":
            block["text"] = text
        else:
            block |= {"thinking": text, "signature": SIGNATURE}
            signature = {"type": "signature_delta", "signature": SIGNATURE}
            yield {"type": "content_block_delta", "index": index, "delta": signature}
        yield {"type": "content_block_stop", "index": index}

    def end(self, generation: Generation) -> Iterator[Sent]:
        """The last events, when the text has ended."""
        if not self._content:  # clients read the text of the first block
            yield from self._open({"type": "text", "text": ""})
        yield from self._close()
        ended = {"stop_reason": stop_reason(generation), "stop_sequence": generation.stop_string}
        more = {"usage": usage_of(generation, self._n_thinking), **receipt_of(generation)}
        self.message |= {**ended, **more}
        yield {"type": "message_delta", "delta": ended, **more}
        yield {"type": "message_stop"}


def input_of(text: str) -> Any:
    """The arguments of a call; the known part of them if the call was cut off."""
    return from_json(text or "{}", allow_partial="trailing-strings")
