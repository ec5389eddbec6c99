"""The one handle of a request for text, read by loops, by asyncio, and as a whole."""

from __future__ import annotations

import reprlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama.base.config import GenerationOptions, checks
from oxillama.base.events import Event as MessageEvent, TextPart
from oxillama.engine.completion import Answer, Completion, FeatureResults, Timings, Usage
from oxillama.engine.handle import SILENT, Handle, next_event, ready_event
from oxillama.engine.loading import LoadedModel
from oxillama.engine.protocols import OutputParser
from oxillama.engine.request import End, Event, Piece, TextRequest
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama.engine.sampling.batch import SampledToken


class Generation(Handle, FeatureResults, Answer, Iterator[str], AsyncIterator[str]):
    """A request that runs. Iterate it, or iterate it with ``async for``, or take its `result`.

    The attributes cover what has been read; the engine is ahead of its consumer by at most
    `GenerationOptions.window` pieces. It is cancelled by `cancel` or `close`, and when nobody refers to it.

    Attributes:
        prompt_tokens: ids of the prompt.
        text: text read so far: of the answer alone, where the text is parsed. More of it: see `Answer`.
        options: of the request.
        tokens: ids read so far, an ending token included.
        logprobs: log-probabilities of each of these, in the model's own distribution (``raw``) and in the one
            the token was drawn from (``processed``), with the likeliest others; None unless they were asked
            for.
        logits: float32 (vocab,) each of these was chosen from; None unless they were asked for.
        finish_reason: "stop" (the model ended, or a stop string was found), "tool_calls" ("stop" after calls
            of tools), "length" (``max_tokens`` or the context is full), "timeout", "cancelled", "error"; None
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
        Handle.__init__(self, model.thread, request, owner)
        Answer.__init__(self)
        self._model = model
        self.prompt_tokens: list[int] = request.prompt
        self.options: GenerationOptions = request.options
        self._parser: OutputParser | None = None if request.new_parser is None else request.new_parser()
        self._parts: deque[MessageEvent] = deque()  # parsed, and not read
        self.tokens: list[int] = []
        self.logprobs: list[SampledToken] | None = None if request.n_top_logprobs is None else []
        self.logits: list[np.ndarray] | None = [] if request.options.keep_logits else None
        self._links: list[bytes] = []
        self._pieces: list[str] = []  # the text as the model wrote it
        self._text_request = request
        self._callback = callback
        self._is_stopped = False  # the callback stopped it: later pieces are dropped
        self._take(request.restored)  # read before the snapshot that it was restored from
        self._parts.clear()

    def __repr__(self) -> str:
        state = self.finish_reason or ("running" if self.is_running else "not read to its end")
        n = len(self.tokens)
        return f"<{type(self).__name__}: {state}, {n} tokens read, {reprlib.repr(self.text)}>"

    # --- the result ----------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """The seed of the random numbers, to repeat the run."""
        return self._text_request.sampler.seed

    @property
    def origin(self) -> tuple[list[int], int | None]:
        """What the text follows from: the ids of the prompt and, unless the text is greedy, the seed."""
        sampler = self.options.sampler
        return self.prompt_tokens, None if sampler is not None and sampler.is_greedy else self.seed

    @property
    def schema(self) -> Any:
        """The ``json_schema`` of the text, as it was given; None without one."""
        sampler = self.options.sampler
        return None if sampler is None else sampler.json_schema

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
    def media_bytes(self) -> int:
        """Bytes of the embeddings of the prompt's pictures and sounds."""
        embeddings = self._request.sequence.embeddings
        return 0 if embeddings is None else int(embeddings.nbytes)

    @property
    def raw_text(self) -> str:
        """What was read, as the model wrote it: nothing of it parsed or left out."""
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
        """`prefill_progress` as a share of `prefill_total`, 0 to 1."""
        return self.prefill_progress / self.prefill_total

    @property
    def prefill_steps(self) -> list[tuple[int, float]]:
        """(tokens run, seconds) after each step that ran tokens of the prompt, both since the start."""
        return self._request.prefill_steps[:]

    # --- reading ------------------------------------------------------------------------------------

    def __next__(self) -> str:
        """The next piece of text: whole characters. Raises what ended the request, if that was an error."""
        while not isinstance(part := self._next_part(), TextPart):
            pass
        return part.text

    def events(self) -> MessageEvents:
        """The events of the text, as it is read: an iterator of `oxillama.base.events`, in asyncio too.

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
            self.add(part)
        self._parts += parts

    def _shown(self, part: MessageEvent) -> MessageEvent:
        """Returns an event for the consumer; calls the callback first if the event is text."""
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
        return Completion(**{each.name: getattr(self, each.name) for each in fields(Completion)})

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
