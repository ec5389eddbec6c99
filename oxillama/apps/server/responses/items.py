"""Conversion of a model's text to the items of OpenAI's responses, and the events that stream them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from oxillama.apps.server.callers import context
from oxillama.apps.server.errors import ApiError
from oxillama.apps.server.openai.logprobs import chat_logprobs
from oxillama.apps.server.prompt_progress import PromptProgress
from oxillama.apps.server.running import Delta, receipt_of
from oxillama.apps.server.stream import named_event
from oxillama.engine.generation import Generation
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.toolcalls import ArgumentsPart, CallFailed, CallStart, Event, ReasoningPart, TextPart
from oxillama.text.toolcalls.openai_form import CallIds

Sent = dict[str, Any]
"""The data of an event; its type is the event's name."""

PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


def new_id(prefix: str) -> str:
    """An id that nobody can guess, with the tag of the process that keeps what it names."""
    return f"{prefix}_{context().id_tag}{uuid.uuid4().hex}"


class Items:
    """Builds a response, item by item. Its methods yield the numbered events of a stream.

    Args:
        head: the response without output.
        ids_of: makes the ids of the calls of an answer.
        tokenizer: for log-probabilities; None if they were not asked for.
        own_names: (namespace, name) of functions in namespaces, by the names that the model knows.

    Attributes:
        response: as far as it has come; whole after `end`.
    """

    def __init__(
        self,
        head: dict[str, Any],
        ids_of: Callable[[Generation], CallIds],
        tokenizer: TokenizerBridge | None,
        own_names: Mapping[str, tuple[str, str]],
    ) -> None:
        self.own_names: Mapping[str, tuple[str, str]] = own_names
        self._ids_of, self._ids = ids_of, CallIds()
        self.tokenizer: TokenizerBridge | None = tokenizer
        self.response = {**head, "status": "in_progress", "output": []}
        self._n_sent = 0
        self._written: list[str] = []  # the index of the last item, which is open
        self._noted: list[dict[str, Any]] = []  # its log-probabilities
        self._n_reasoning = 0

    @property
    def _output(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.response["output"]
        return found

    def _event(self, kind: str, **data: Any) -> Sent:
        self._n_sent += 1
        return {"type": f"response.{kind}", "sequence_number": self._n_sent - 1, **data}

    def _of_item(self, kind: str, **data: Any) -> Sent:
        """An event of the last item."""
        return self._event(kind, item_id=self._output[-1]["id"], output_index=len(self._output) - 1, **data)

    def begin(self, generation: Generation) -> Iterator[Sent]:
        """The first events."""
        self._ids = self._ids_of(generation)
        for kind in ("created", "in_progress"):
            yield self._event(kind, response={**self.response, "output": []})

    def progress(self, told: PromptProgress) -> Sent:
        """How far the prompt is."""
        return self._event("in_progress", response={**self.response, "output": []}, **told.field)

    def add(self, delta: Delta) -> Iterator[Sent]:
        """The next piece."""
        event = delta.event
        if isinstance(event, ReasoningPart):
            self._n_reasoning += len(delta.tokens)
        noted: list[dict[str, Any]] = []
        if self.tokenizer is not None and (event is None or isinstance(event, TextPart)):
            noted = chat_logprobs(self.tokenizer, delta.logprobs)["content"]
        if event is not None:
            yield from self._add(event, noted)
        if self._output and self._output[-1]["type"] == "message":
            self._noted += noted

    def _add(self, event: Event, noted: list[dict[str, Any]]) -> Iterator[Sent]:
        if isinstance(event, TextPart) or (isinstance(event, CallFailed) and event.index is None):
            yield from self._open("message", role="assistant", content=[])
            yield self._piece("output_text.delta", event.text, content_index=0, logprobs=noted)
        elif isinstance(event, ReasoningPart):
            yield from self._open("reasoning", summary=[], content=[], encrypted_content=None)
            yield self._piece("reasoning_text.delta", event.text, content_index=0)
        elif isinstance(event, CallStart):
            id = self._ids.of(event.index, event.id)
            space, name = self.own_names.get(event.name, ("", event.name))
            named = {"namespace": space, "name": name} if space else {"name": name}
            yield from self._open("function_call", anew=True, call_id=id, **named, arguments="")
        elif isinstance(event, ArgumentsPart):
            yield self._piece("function_call_arguments.delta", event.text)

    def _piece(self, kind: str, text: str, **data: Any) -> Sent:
        self._written.append(text)
        return self._of_item(kind, delta=text, **data)

    def _part(self) -> dict[str, Any]:
        """The content of the last item so far."""
        text = "".join(self._written)
        if self._output[-1]["type"] == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(self._noted)}

    def _open(self, kind: str, anew: bool = False, **fields: Any) -> Iterator[Sent]:
        """Begins an item, unless the open item is of the same kind and may continue."""
        if not anew and self._output and self._output[-1]["type"] == kind:
            return
        yield from self._close("completed")
        item = {"id": new_id(PREFIXES[kind]), "type": kind, "status": "in_progress", **fields}
        self._output.append(item)
        yield self._event("output_item.added", output_index=len(self._output) - 1, item=copied(item))
        if "content" in item:
            yield self._of_item("content_part.added", content_index=0, part=self._part())

    def _close(self, status: str) -> Iterator[Sent]:
        """Ends the last item, if any."""
        if not self._output:
            return
        item, text, part = self._output[-1], "".join(self._written), self._part()
        if item["type"] == "function_call":
            item["arguments"] = text
            yield self._of_item("function_call_arguments.done", name=item["name"], arguments=text)
        else:
            item["content"] = [part]
            if item["type"] == "message":
                done = self._of_item(
                    "output_text.done", content_index=0, text=text, logprobs=part["logprobs"]
                )
            else:
                done = self._of_item("reasoning_text.done", content_index=0, text=text)
            yield done
            yield self._of_item("content_part.done", content_index=0, part=part)
        item["status"] = status
        yield self._event("output_item.done", output_index=len(self._output) - 1, item=copied(item))
        self._written, self._noted = [], []

    def end(self, generation: Generation) -> Iterator[Sent]:
        """The last events, when the text has ended."""
        response = self.response
        reason = generation.finish_reason or ""
        status = "completed" if reason in ("stop", "tool_calls") else "incomplete"
        if not self._output:  # clients read the text of the message
            yield from self._open("message", role="assistant", content=[])
        yield from self._close(status)
        response |= {"status": status, "usage": self._usage(generation), **receipt_of(generation)}
        if status == "completed":
            response["completed_at"] = int(time.time())
        else:
            response["incomplete_details"] = {"reason": {"length": "max_output_tokens"}.get(reason, reason)}
        yield self._event(status, response=response)

    def _usage(self, generation: Generation) -> dict[str, Any]:
        usage = generation.usage
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.generated_tokens,
            "output_tokens_details": {"reasoning_tokens": self._n_reasoning},
            "total_tokens": usage.total_tokens,
        }

    def failed(self, error: ApiError) -> str:
        """The last event of a stream that ends with an error."""
        code = "server_error" if error.status >= 500 else error.code or "invalid_prompt"
        failed = {"status": "failed", "error": {"code": code, "message": error.message}}
        sent = self._event("failed", response={**self.response, **failed})
        return named_event(sent["type"], sent)


def copied(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is now."""
    return {name: list(value) if isinstance(value, list) else value for name, value in item.items()}
