"""The one handle of a request for text, read by loops, by asyncio, and as a whole."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama.config import GenerationOptions, checks
from oxillama.engine import features
from oxillama.engine.handle import SILENT, Handle, next_event, ready_event
from oxillama.engine.loading import LoadedModel
from oxillama.engine.protocols import OutputParser
from oxillama.engine.request import End, Event, Piece, TextRequest
from oxillama.engine.snapshots import Captured
from oxillama.errors import ConfigError, GenerationTimeout
from oxillama.events import CallEnd, CallFailed, ReasoningPart, TextPart, ToolCall
from oxillama.events import Event as MessageEvent
from oxillama.frozen import frozen
from oxillama.on_use import Shown

if TYPE_CHECKING:
    from oxillama.sampling.logprobs import SampledToken
    from oxillama.sessions.receipt import Receipt
    from oxillama.sessions.snapshot import EngineSnapshot
    from oxillama.speculation.state import SpeculationStats


@frozen()
class Usage:
    """Tokens of a request.

    Attributes
    ----------
    prompt_tokens : of the prompt.
    cached_tokens : those of the prompt that were not run, because the prefix cache or the session had their
        keys and values.
    generated_tokens : sampled, an ending token included.
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int

    @property
    def total_tokens(self) -> int:
        """Of prompt and text."""
        return self.prompt_tokens + self.generated_tokens


@frozen()
class Timings:
    """Seconds of a request; nan for what has not happened.

    Attributes
    ----------
    queue, spent : from the submission to the admission; from there until now.
    time_to_first_token : from the submission to the first token.
    prefill : in steps that ran its prompt: those of the ``prefill_tokens`` that were not cached.
    decode : in steps that ran a token of its text. They brought ``decode_tokens``, read or not: all but those
        that the last step of the prompt brought.
    """

    queue: float
    time_to_first_token: float
    prefill: float
    decode: float
    prefill_tokens: int = 0
    decode_tokens: int = 0
    spent: float = math.nan


@frozen(repr=False)
class Completion(Shown):
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

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message of the conversation, for the next `InferenceEngine.chat`."""
        message: dict[str, Any] = features.load("messages")(self.text, self.reasoning, self.tool_calls)
        return message

    def __str__(self) -> str:
        return self.text


class Generation(Handle, Captured, Iterator[str], AsyncIterator[str]):
    """A request that runs. Iterate it, or iterate it with ``async for``, or take its `result`.

    The attributes cover what has been read; the engine is ahead of its consumer by at most
    `GenerationOptions.window` pieces. It is cancelled by `cancel` or `close`, and when nobody refers to it.

    Attributes
    ----------
    prompt_tokens : ids of the prompt.
    text : text read so far: of the answer, where reasoning and calls are parsed.
    reasoning : the model's reasoning, where it is parsed.
    tool_calls : calls that are complete.
    failed_calls : texts that look like calls and are none: one that was cut off, say.
    options : of the request.
    tokens : ids read so far, an ending token included.
    logprobs : log-probabilities of each of these, in the model's own distribution (``raw``) and in the one
        the token was drawn from (``processed``), with the likeliest others; None unless they were asked for.
    logits : float32 (vocab,) each of these was chosen from; None unless they were asked for.
    finish_reason : "stop" (the model ended, or a stop string was found), "tool_calls" (the same, and it has
        called tools), "length" (``max_tokens`` or the context is full), "timeout", "cancelled", "error"; None
        while it goes on or there is text to be read.
    """

    def __init__(
        self,
        model: LoadedModel,
        request: TextRequest,
        callback: Callable[[str], object] | None = None,
        owner: object = None,
    ) -> None:
        if not (callback is None or callable(callback)):
            raise checks.refuse("callback", "a callable", callback)
        super().__init__(model.thread, request, owner)
        self._model = model
        self.prompt_tokens: list[int] = request.prompt
        self.options: GenerationOptions = request.options
        self.text: str = ""
        self.reasoning: str = ""
        self.tool_calls: list[ToolCall] = []
        self.failed_calls: list[CallFailed] = []
        self._parser: OutputParser | None = None if request.new_parser is None else request.new_parser()
        self._parts: deque[MessageEvent] = deque()  # parsed, and not read
        self.tokens: list[int] = []
        self.logprobs: list[SampledToken] | None = None if request.n_top_logprobs is None else []
        self.logits: list[np.ndarray] | None = [] if request.options.keep_logits else None
        self._links: list[bytes] = []  # of the receipt
        self._pieces: list[str] = []  # of the text as the model wrote it
        self._text_request = request
        self._callback = callback
        self._is_stopped = False  # by the callback: what was run ahead is dropped
        self._take(request.restored)  # read before the snapshot that it was restored from
        self._parts.clear()

    # --- the result ----------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """Of the random numbers, to repeat the run."""
        return self._text_request.sampler.seed

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text; None if it ended otherwise, or its end was not read."""
        ended = self.finish_reason in ("stop", "tool_calls")
        return self._text_request.stop_string if ended else None

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(len(self.prompt_tokens), self._request.n_cached, len(self.tokens))

    @property
    def speculation(self) -> SpeculationStats | None:
        """Counts of its drafts so far; None without speculation."""
        drafts = self._text_request.parts.get("speculation")
        return None if drafts is None else drafts.stats

    @property
    def receipt(self) -> Receipt | None:
        """Of what was read, with which anybody can check it.

        None unless it was asked for and the end was read, and where the end is an error.
        """
        return None if self.finish_reason in (None, "error") else self.receipt_so_far()

    def receipt_so_far(self) -> Receipt | None:
        """Of what was read, even if the text goes on, or an error has ended it; None unless asked for."""
        recorder, reason = self._text_request.parts.get("receipt"), self.finish_reason
        if recorder is None:
            return None
        reason = "stop" if reason == "tool_calls" else reason  # a receipt is of tokens, not of what they say
        receipt: Receipt = recorder.receipt(self.tokens, self._links, reason)
        return receipt

    @property
    def raw_text(self) -> str:
        """What was read, as the model wrote it: with reasoning and calls, which `text` leaves out."""
        return "".join(self._pieces)

    @property
    def timings(self) -> Timings:
        """Seconds so far."""
        request, start = self._request, self._request.submitted_at
        run = request.prefill_seconds, request.decode_seconds
        counts = max(0, self.prefill_progress - request.n_cached), request.n_decoded
        spent = time.perf_counter() - request.admitted_at
        return Timings(request.admitted_at - start, request.first_token_at - start, *run, *counts, spent)

    @property
    def prefill_total(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_tokens)

    @property
    def prefill_progress(self) -> int:
        """Tokens of the prompt that have been run, or need not be."""
        request = self._text_request
        n_run = request.sequence.cached_len if request.finish_reason is None else request.n_run
        return self.prefill_total if request.n_generated else min(n_run, self.prefill_total)

    @property
    def prefill_fraction(self) -> float:
        """The same, as a share of all, 0 to 1."""
        return self.prefill_progress / self.prefill_total

    @property
    def prefill_steps(self) -> list[tuple[int, float]]:
        """Of each step that ran some of the prompt: tokens known at its end, seconds of all up to it."""
        return self._request.prefill_steps[:]

    def capture(self, notes: Mapping[str, Any] | None = None) -> EngineSnapshot:
        """What `snapshot` gives the bytes of."""
        snapshot: EngineSnapshot = features.load("snapshot")(self._model, self._text_request, notes)
        return snapshot

    # --- reading ------------------------------------------------------------------------------------

    def __next__(self) -> str:
        """The next piece of text: whole characters. Raises what ended the request, if that was an error."""
        while not isinstance(part := self._next_part(), TextPart):
            pass
        return part.text

    def events(self) -> MessageEvents:
        """The events of the text, as it is read: an iterator of `oxillama.events`, in asyncio too.

        Reading events reads the text: each piece is handed out once. Of a text that is not parsed, all events
        are `TextPart`.
        """
        return MessageEvents(self)

    def _next_part(self) -> MessageEvent:
        """The next event. Raises StopIteration, or what ended the request."""
        try:
            while True:
                with self._reading.lock:  # two consumers' pieces come in order
                    if not self._parts and self.finish_reason is None:
                        self._take(self._event())
                    if self._parts:
                        part = self._parts.popleft()
                    elif self.finish_reason is None:
                        continue
                    else:
                        break
                return self._shown(part)
        except BaseException:  # an error of the request or the callback, or the user's Ctrl-C
            self.close()
            raise
        raise StopIteration

    def result(self) -> Completion:
        """Waits for the end. Raises what ended the request, if that was an error."""
        self._read_whole()
        for _ in self:
            pass
        return self._completion()

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> str:
        """`__next__`, in asyncio."""
        while not isinstance(part := await self._async_part(), TextPart):
            pass
        return part.text

    async def _async_part(self) -> MessageEvent:
        """`_next_part`, in asyncio."""
        try:
            while self._parts or self.finish_reason is None:
                if self._parts:
                    return self._shown(self._parts.popleft())
                self._take(self._checked(await next_event(self)))
        except BaseException:
            self.cancel()
            raise
        raise StopAsyncIteration

    def __await__(self) -> Generator[object, None, Completion]:
        """`result`, in asyncio."""
        return self._result().__await__()

    async def _result(self) -> Completion:
        self._read_whole()
        async for _ in self:
            pass
        return self._completion()

    def _take(self, event: Event) -> None:
        """Notes an event, and parses its text."""
        if self._is_stopped:
            self.finish_reason = "cancelled" if self.finish_reason is not None else None
            return
        if isinstance(event, Piece):
            self._part(event.text)
            self._pieces.append(event.text)
            self.tokens += event.tokens
            if self.logprobs is not None:
                self.logprobs += event.logprobs
            if self.logits is not None:
                self.logits += event.logits
            self._links += event.links
        elif isinstance(event, End):
            self._part("", at_end=True)
            if self.finish_reason == "stop" and self.tool_calls:
                self.finish_reason = "tool_calls"

    def _part(self, text: str, at_end: bool = False) -> None:
        """Parses text."""
        if self._parser is None:
            parts: list[MessageEvent] = [TextPart(text)] if text else []
        else:
            parts = self._parser.finish() if at_end else self._parser.feed(text)
        for part in parts:
            if isinstance(part, TextPart):
                self.text += part.text
            elif isinstance(part, ReasoningPart):
                self.reasoning += part.text
            elif isinstance(part, CallEnd):
                self.tool_calls.append(part.call)
            elif isinstance(part, CallFailed):
                self.failed_calls.append(part)
        self._parts += parts

    def _shown(self, part: MessageEvent) -> MessageEvent:
        """An event, after the callback if it is text."""
        if self._callback is not None and isinstance(part, TextPart):
            try:
                goes_on = self._callback(part.text) is not False
            except SILENT as error:
                raise ConfigError(f"callback: raised {error!r}") from error
            if not goes_on:
                self._is_stopped = True
                self._parts.clear()
                self.cancel()
        return part

    def _read_whole(self) -> None:
        """Removes the window, and has the rest come as one piece unless there is a callback."""
        request = self._text_request
        if not request.whole:
            request.whole = self._callback is None
            self._open_window()

    def _completion(self) -> Completion:
        assert self.finish_reason is not None
        if self._request.error is not None and self.finish_reason == "error":
            raise self._request.error  # another consumer got it
        return Completion(
            *(self.text, self.finish_reason, self.tokens, self.logprobs, self.seed, self.usage),
            *(self.timings, self.speculation, self.receipt),
            *(self.reasoning, self.tool_calls, self.failed_calls),
        )

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class MessageEvents(Iterator[MessageEvent], AsyncIterator[MessageEvent]):
    """The events of a generation; it lives as long as they are read."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation

    def __next__(self) -> MessageEvent:
        return self.generation._next_part()

    def __aiter__(self) -> MessageEvents:
        return self

    def __anext__(self) -> Coroutine[Any, Any, MessageEvent]:
        return self.generation._async_part()

    def ready(self) -> Iterator[MessageEvent]:
        """The events that have come. Raises what ended the request, if that was an error."""
        generation = self.generation
        while True:
            while generation._parts:
                yield generation._shown(generation._parts.popleft())
            event = ready_event(generation) if generation.finish_reason is None else None
            if event is None:
                return
            generation._take(generation._checked(event))


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
