"""The result of a request for text: its counts, its times, parsed events, and results of features."""

from __future__ import annotations

import math
import os
import reprlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oxillama.base.events import CallEnd, CallFailed, Event, ReasoningPart, TextPart, ToolCall
from oxillama.engine import features
from oxillama.errors import AnswerCut, ConfigError, GenerationTimeout

if TYPE_CHECKING:
    from oxillama.engine.loading import LoadedModel
    from oxillama.engine.request import TextRequest
    from oxillama.engine.sampling.batch import SampledToken
    from oxillama.sessions.receipt import Receipt
    from oxillama.sessions.snapshot import EngineSnapshot
    from oxillama.speculation.state import SpeculationStats


@dataclass(frozen=True)
class Usage:
    """Tokens of a request.

    Attributes:
        prompt_tokens: of the prompt.
        cached_tokens: tokens of the prompt that were not run, because the prefix cache or the session had
            their keys and values.
        generated_tokens: sampled, an ending token included.
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int

    @property
    def total_tokens(self) -> int:
        """Tokens of the prompt and the text."""
        return self.prompt_tokens + self.generated_tokens


@dataclass(frozen=True)
class Timings:
    """Seconds of a request; nan for what has not happened.

    Attributes:
        queue: from the submission to the admission.
        spent: from the admission until now.
        time_to_first_token: from the submission to the first token.
        prefill: in steps that ran its prompt: ``prefill_tokens`` tokens, which were not cached.
        decode: in steps that ran a token of its text. They brought ``decode_tokens``, read or not; tokens of
            the last step of the prompt are not among them.
    """

    queue: float
    time_to_first_token: float
    prefill: float
    decode: float
    prefill_tokens: int = 0
    decode_tokens: int = 0
    spent: float = math.nan


@dataclass(frozen=True, repr=False)
class Completion:
    """A text with what belongs to it; see `Generation` for the fields."""

    text: str
    finish_reason: str
    tokens: list[int]
    logprobs: list[SampledToken] | None
    seed: int
    usage: Usage
    timings: Timings
    speculation: SpeculationStats | None = None
    receipt: Receipt | None = None
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    failed_calls: list[CallFailed] = field(default_factory=list)
    origin: tuple[list[int], int | None] = ([], None)
    schema: Any = None

    @property
    def parsed(self) -> Any:
        """The value of a text with a ``json_schema``: an object of the type that it was, else JSON values.

        None without a ``json_schema``. Raises AnswerCut if the text was cut before its end, GenerationTimeout
        if the timeout cut it, TypeError or ValueError if the type refuses what its schema allows.
        """
        if self.schema is None:
            return None
        text = text_of(self)
        if self.finish_reason != "stop":
            n = len(self.tokens)
            raise AnswerCut(f"the text was cut after {n} tokens ({self.finish_reason}): {text[-40:]!r}", text)
        return features.load("parse")(text, self.schema)

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message of the conversation, for the next `InferenceEngine.chat`."""
        write, parts = features.load("messages"), (self.text, self.reasoning, self.tool_calls)
        message: dict[str, Any] = write(*parts, origin=self.origin)
        return message

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Completion: {len(self.tokens)} tokens, {self.finish_reason}, {reprlib.repr(self.text)}>"


class Answer:
    """The events of a text, put together.

    Attributes:
        text: of the answer.
        reasoning: the model's reasoning.
        tool_calls: complete calls.
        failed_calls: texts that begin like a call and cannot be parsed.
    """

    def __init__(self) -> None:
        self.text: str = ""
        self.reasoning: str = ""
        self.tool_calls: list[ToolCall] = []
        self.failed_calls: list[CallFailed] = []

    def add(self, event: Event) -> None:
        """Adds an event."""
        if isinstance(event, TextPart):
            self.text += event.text
        elif isinstance(event, ReasoningPart):
            self.reasoning += event.text
        elif isinstance(event, CallEnd):
            self.tool_calls.append(event.call)
        elif isinstance(event, CallFailed):
            self.failed_calls.append(event)


class Captured:
    """A base of objects that go on from their snapshot, with `InferenceEngine.restore`, in any process."""

    @abstractmethod
    def capture(self, notes: Mapping[str, Any] | None = None) -> EngineSnapshot:
        """The object whose bytes `snapshot` returns."""

    def snapshot(self, *, compress: bool = False, notes: Mapping[str, Any] | None = None) -> bytes:
        """The present state as bytes; the object itself goes on, too.

        Text that was not read yet is part of the snapshot, and a restored generation yields it first.

        Args:
            compress: store with zlib what gets smaller by it.
            notes: JSON values to be kept with it.

        Raises:
            ConfigError: an option cannot be saved; a generation has ended, or continues a session; a session
                is closed, or a generation continues it.
            EngineClosed: the engine was closed.
        """
        return self.capture(notes).serialize(compress=compress)

    def snapshot_to_file(
        self,
        path: str | os.PathLike[str],
        *,
        compress: bool = False,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes `snapshot` to a file, whole or not at all. Raises ModelFileError, too."""
        self.capture(notes).write(path, compress=compress)


class FeatureResults(Captured):
    """The results of features for one text: a base of its handle."""

    tokens: list[int]
    finish_reason: str | None
    _model: LoadedModel
    _text_request: TextRequest
    _links: list[bytes]  # hashes for the receipt

    @property
    def speculation(self) -> SpeculationStats | None:
        """Counts of its drafts so far; None without speculation."""
        drafts = self._text_request.parts.get("speculation")
        return None if drafts is None else drafts.stats

    @property
    def receipt(self) -> Receipt | None:
        """The receipt of what was read, with which anybody can check it.

        None unless it was asked for and the end was read, and where the end is an error.
        """
        return None if self.finish_reason in (None, "error") else self.receipt_so_far()

    def receipt_so_far(self) -> Receipt | None:
        """The receipt of what was read, even if the text goes on, or an error has ended it; None unless it
        was asked for."""
        recorder, reason = self._text_request.parts.get("receipt"), self.finish_reason
        if recorder is None:
            return None
        reason = "stop" if reason == "tool_calls" else reason  # a receipt is of tokens, not of their meaning
        receipt: Receipt = recorder.receipt(self.tokens, self._links, reason)
        return receipt

    def capture(self, notes: Mapping[str, Any] | None = None) -> EngineSnapshot:
        """The object whose bytes `snapshot` returns."""
        snapshot: EngineSnapshot = features.load("snapshot")(self._model, self._text_request, notes)
        return snapshot


def text_of(completion: Completion) -> str:
    """The text alone.

    Raises GenerationTimeout if the timeout cut it, ConfigError if there are calls, which would be lost.
    """
    if completion.tool_calls:
        raise ConfigError("tools: expected stream(...).result(), which has the calls, got generate")
    if completion.finish_reason == "timeout":
        n = len(completion.tokens)
        raise GenerationTimeout(f"timeout: it came after {n} tokens of the text", completion.text)
    return completion.text
