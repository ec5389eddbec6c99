"""A request: a sequence to run, which rows are wanted of its passes, and a queue of events for its consumer.

The engine thread owns everything here but three things: the consumer takes `events` and counts `n_read`, and
any thread may set `cancelled`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama.base.config.generation import GenerationOptions
from oxillama.base.faults import fault
from oxillama.base.lazy_import import lazy
from oxillama.engine.sampling.sampler import Sampler
from oxillama.engine.sequence import Output, Sequence
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.tokenizer.tokenizer import StreamDecoder

if TYPE_CHECKING:
    from oxillama.engine.sampling.batch import SampledToken
    from oxillama.engine.stop_strings import StopStrings

new_stops: Callable[..., Any] = lazy("oxillama.engine.stop_strings:StopStrings")


@dataclass(slots=True)
class Piece:
    """Text for a consumer, with its tokens. It does not change once it is emitted.

    Attributes:
        text: may be empty in the last piece.
        tokens: ids sampled since the piece before.
        logprobs: of each token, if they were asked for.
        logits: float32 (vocab,) that each token was sampled from, if they were asked for.
        links: what the request's `record_row` returned for each token, if it has one.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[SampledToken] = field(default_factory=list)
    logits: list[np.ndarray] = field(default_factory=list)
    links: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, repr=False)
class End:
    """The last event of a request.

    Attributes:
        reason: "stop", "length", "timeout", "cancelled", "error", or "done" where no text was asked for.
        error: the cause, if the reason is "error".
    """

    reason: str
    error: BaseException | None = None


Event = Piece | np.ndarray | End


class Request:
    """What the scheduler runs.

    Args:
        sequence: the tokens to run; those that were run already are not run again.
        key: of the prefix cache's tree for the request; None keeps the request out of the prefix cache.
        priority: higher goes first.
        max_wait: seconds between two tokens, to which others' prompts are cut; None for the scheduler's.
        timeout: seconds from its submission after which it ends, finished or not; None for never.
        keep: called with the sequence when the request has ended, in place of freeing its pages.

    Attributes:
        id: number among the requests of the engine, in order of arrival.
        prompt: ids of the sequence at the start.
        output: which rows of a pass are wanted.
        first_wanted: position of the first; -1 for the last one.
        kept_after: tokens that later prompts are likely to begin with, after which the prefix cache keeps the
            recurrent state; 0 for none.
        parts: what features keep of the request, by the name of the feature.
        events: for the consumer: pieces or arrays, then an `End`.
        n_read: events that the consumer has taken; the consumer counts.
        window: events that may wait for the consumer; with as many the request pauses.
        listener: called by the engine thread when there is an event, for a consumer that does not block.
        consumer: the handle; when that is gone, the request ends.
        cancelled: why the request is to end; "" while it goes on. Any thread may set it.
        cause: the error that the consumer then gets, unless the consumer cancelled the request.
        finish_reason: None until the request has ended.
        error: what the consumer gets raised.
        is_published: whether the `End` has been emitted.
        is_held: whether it waits until a prefix store has fetched a beginning of its prompt.
    """

    output = Output.NONE
    first_wanted: int = -1
    kept_after: int = 0
    tenant = ""

    def __init__(
        self,
        sequence: Sequence,
        *,
        key: bytes | None = b"",
        priority: int = 0,
        max_wait: float | None = None,
        timeout: float | None = None,
        window: float = math.inf,
        keep: Callable[[Sequence], object] | None = None,
    ) -> None:
        self.id = 0
        self.sequence = sequence
        self.prompt: list[int] = list(sequence.tokens)
        self.key = key
        self.priority = priority
        self.max_wait = max_wait
        self.timeout = timeout
        self.window = window
        self.keep = keep
        self.parts: dict[str, Any] = {}
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.n_events: int = 0
        self.n_read = 0
        self.listener: Callable[[], object] | None = None
        self.consumer: weakref.ref[Any] | None = None
        self.cancelled = ""
        self.cause: BaseException | None = None
        self.finish_reason: str | None = None
        self.error: BaseException | None = None
        self.is_published: bool = False
        self.is_held = False
        # The scheduler writes times, in seconds of its clock, and counts: tokens of the prompt that the
        # prefix cache or a session had, tokens run at the end, tokens after the prompt's last step.
        self.n_cached = self.n_run = 0
        self.n_decoded: int = 0
        self.admitted_at: float
        self.submitted_at: float
        self.first_token_at: float
        self.last_token_at: float
        self.submitted_at = self.admitted_at = self.first_token_at = self.last_token_at = math.nan
        self.deadline: float = math.inf
        self.prefill_seconds: float = 0.0
        self.prefill_steps: list[tuple[int, float]] = []
        self.decode_seconds: float = 0.0

    @property
    def name(self) -> str:
        """The name of the request in logs and traces."""
        return str(self.id)

    @property
    def has_room(self) -> bool:
        """Whether the consumer has room for another event."""
        return self.n_events - self.n_read < self.window

    @property
    def limit(self) -> str | None:
        """The finish reason, if there is nothing to run."""
        return None

    def submit(self, now: float) -> None:
        """Notes the time of submission, from which the deadline follows."""
        self.submitted_at = now
        self.deadline = math.inf if self.timeout is None else now + self.timeout

    def ends_at(self, now: float) -> str | None:
        """Why the request is to end now; None if it goes on."""
        if self.consumer is not None and self.consumer() is None:
            return "cancelled"
        return self.cancelled or ("timeout" if now >= self.deadline else None)

    def emit(self, event: Event) -> None:
        """Hands an event to the consumer."""
        self.n_events += 1
        self.events.put(event)

    def note_tokens(self, now: float, n: int) -> None:
        """Notes when the request got ``n`` tokens."""
        if self.first_token_at != self.first_token_at:  # nan
            self.first_token_at, n = now, 0
        self.last_token_at = now
        self.n_decoded += n

    def finish(self, reason: str, error: BaseException | None = None) -> None:
        """Emits all but the `End`; a second call does nothing. The scheduler frees the pages."""
        if self.finish_reason is not None:
            return
        self.error = error or (self.cause if reason == self.cancelled else None)
        self.finish_reason = reason
        try:
            self.flush(error)
        except Exception as failed:  # the text is not whole
            self.finish_reason, self.error = "error", fault(failed)

    def publish_end(self) -> None:
        """Emits the `End`, when everything else about the request is noted. A second call does nothing."""
        if self.is_published or self.finish_reason is None:
            return
        with suppress(Exception):  # a consumer that gets no event looks for itself
            self.emit(End(self.finish_reason, self.error))
        self.is_published = True

    def flush(self, error: BaseException | None) -> None:
        """Emits what was held back."""

    def take_rows(self, rows: np.ndarray) -> str | None:
        """Takes the rows of a pass, float32 (rows, n_embd or vocab); the finish reason if it was the last.

        A `TextRequest` has its rows sampled instead.
        """
        raise NotImplementedError


class TextRequest(Request):
    """A sequence that is continued, token by token.

    Args:
        shown: special tokens whose names belong to the text.

    Attributes:
        n_generated: tokens of the text, an ending token included.
        n_accepted: those that were proposed.
        whole: whether the text is emitted in one piece at the end; the consumer may switch this on.
        max_tokens: of the text.
        n_vocab: of the tokenizer.
        keeps_logits: whether pieces get the logits of their tokens.
        decoder, stops: make text of tokens, and find stop strings in the text.
        piece: not emitted yet.
        emitted: all pieces before, read or not.
        restored: what the consumer had read before the snapshot that the request was restored from.
        forced_tokens: returns tokens that follow the last one in any case; None if each token is sampled.
        record_row: called with the logits of each sampled token, returns 32 bytes; None for nothing to
            record.
        new_parser: makes the `OutputParser` of the text; None for a text that is left as it is.
    """

    output = Output.LAST_LOGITS
    forced_tokens: Callable[[], list[int]] | None = None
    record_row: Callable[[np.ndarray], bytes] | None = None
    new_parser: Callable[[], Any] | None = None

    def __init__(
        self,
        sequence: Sequence,
        options: GenerationOptions,
        sampler: Sampler,
        tokenizer: TokenizerBridge,
        context_size: int,
        *,
        key: bytes | None = b"",
        whole: bool = False,
        keep: Callable[[Sequence], object] | None = None,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(
            sequence,
            key=key,
            priority=options.priority,
            max_wait=None if options.max_decode_wait_ms is None else options.max_decode_wait_ms / 1000,
            timeout=options.timeout,
            window=math.inf if options.window is None or whole else options.window,
            keep=keep,
        )
        self.options = options
        self.tenant: str = options.tenant
        self.sampler = sampler
        self.whole = whole
        self.n_generated: int = 0
        self.n_accepted: int = 0
        self.n_top_logprobs: int | None = options.n_top_logprobs
        room = context_size - len(self.prompt)
        self.max_tokens: int = room if options.max_tokens is None else min(room, options.max_tokens)
        self._ends = tokenizer.eog_ids
        self.n_vocab: int = tokenizer.n_vocab
        self.keeps_logits: bool = options.keep_logits
        self.stops: StopStrings | None = new_stops(tuple(options.stop)) if options.stop else None
        self._stop_tokens: dict[int, str] = tokenizer.hidden_ids(options.stop) if options.stop else {}
        self._stopped = False  # a stop string was found: what follows is not shown
        self.decoder: StreamDecoder = tokenizer.stream_decoder(continuing=True, shown=shown)
        self.piece: Piece = Piece()
        self.emitted: list[Piece] = []
        self.restored: Piece = Piece()

    @property
    def name(self) -> str:
        return self.options.request_id or super().name

    @property
    def stop_string(self) -> str | None:
        """The stop string that was found."""
        return None if self.stops is None else self.stops.found

    @property
    def limit(self) -> str | None:
        """ "length" if no token more may be generated."""
        return "length" if self.n_generated >= self.max_tokens else None

    @property
    def n_left(self) -> int:
        """Tokens that may yet be generated."""
        return self.max_tokens - self.n_generated

    def row(self, logits: np.ndarray) -> np.ndarray:
        """float32 (vocab,): the logits to sample from.

        Rows of a table that is padded beyond the vocabulary stand for no token and are never chosen.
        """
        return logits[: self.n_vocab]

    def take(self, sampled: int | SampledToken, logits: np.ndarray) -> str | None:
        """Adds a sampled token and those that follow in any case; the finish reason if the text ends.

        Args:
            logits: float32 (vocab,) that the token was sampled from.
        """
        piece = self.piece
        if not isinstance(sampled, int):
            piece.logprobs.append(sampled)
            sampled = sampled.token
        if self.keeps_logits:
            piece.logits.append(logits.copy())
        if self.record_row is not None:
            piece.links.append(self.record_row(logits))
        reason = self._append(sampled)
        if reason is None and self.forced_tokens is not None:
            for token in self.forced_tokens():
                self.sampler.accept(token)
                reason = self._append(token)
                if reason is not None:
                    break
        return reason

    def _append(self, token: int) -> str | None:
        """Adds a token and its text; the finish reason if the text ends."""
        self.piece.tokens.append(token)
        self.n_accepted += self.sequence.append(token)
        self.n_generated += 1
        if token in self._stop_tokens and self.stops is not None:
            self.stops.found = self._stop_tokens[token]
            return "stop"
        if token in self._ends:
            return "stop"
        text = self.decoder.push(token)
        if self.stops is not None:
            text, self._stopped = self.stops.push(text)
        if text:
            self.piece.text += text
            if not self.whole:
                self.emit_piece()
        if self._stopped:
            return "stop"
        return "length" if self.n_generated >= self.max_tokens else None

    def emit_piece(self) -> None:
        """Emits `piece` and begins the next one."""
        piece, self.piece = self.piece, Piece()
        self.emitted.append(piece)
        self.emit(piece)

    def flush(self, error: BaseException | None) -> None:
        """Emits the text that was held back and the last tokens."""
        if not self._stopped and error is None:
            rest = self.decoder.flush()
            self.piece.text += rest if self.stops is None else self.stops.end(rest)
        if self.piece.text or self.piece.tokens:
            self.emit_piece()
