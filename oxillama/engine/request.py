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
from typing import Annotated, Any

import numpy as np

from oxillama.config import checks
from oxillama.config.engine import MAX_CONTEXT
from oxillama.config.generation import GenerationOptions
from oxillama.engine.runner import Output
from oxillama.engine.sequence import Sequence
from oxillama.engine.stop_strings import StopStrings
from oxillama.errors import SnapshotIncompatible
from oxillama.faults import fault
from oxillama.sampling.logprobs import SampledToken
from oxillama.sampling.sampler import Sampler
from oxillama.sampling.state import LogprobArrays, SamplerState
from oxillama.tokenizer.bridge import TokenizerBridge

LINK_BYTES = 32
"""Of what `TextRequest.record_row` returns."""


@dataclass(slots=True)
class Piece:
    """Text for a consumer, with its tokens. It does not change once it is emitted.

    Attributes
    ----------
    text : may be empty in the last piece.
    tokens : ids sampled since the piece before.
    logprobs : of each token, if they were asked for.
    logits : float32 (vocab,) that each token was sampled from, if they were asked for.
    links : what the request's `record_row` returned for each token, if it has one.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[SampledToken] = field(default_factory=list)
    logits: list[np.ndarray] = field(default_factory=list)
    links: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class End:
    """The last event of a request.

    Attributes
    ----------
    reason : "stop", "length", "timeout", "cancelled", "error", or "done" where no text was asked for.
    error : the cause, if the reason is "error".
    """

    reason: str
    error: BaseException | None = None


Event = Piece | np.ndarray | End


@dataclass(frozen=True, eq=False)
class RequestState:
    """A request for text in the middle of it, for a snapshot: without options, sequence and `Request.parts`.

    Attributes
    ----------
    n_prompt, n_known : tokens of the prompt, and those of them that the prefix cache had.
    limit : max tokens of the text.
    n_read, read : tokens and text that the consumer has read.
    unread : text that the consumer has not read.
    held : text that may begin a stop string.
    undecoded : bytes of an incomplete character.
    seconds_left : until the timeout; None without one.
    grammar : digest of the grammar, "" without one.
    sampler : the state of the sampler.
    logprobs : of each token of the text; None if they were not asked for.
    logits : float32 (tokens, vocab) that the tokens were sampled from; None if they were not asked for.
    links : uint8 (tokens, 32), what `TextRequest.record_row` returned for each token; None without it.
    """

    n_prompt: Annotated[int, (1, MAX_CONTEXT)]
    n_known: Annotated[int, (0, MAX_CONTEXT)]
    limit: Annotated[int, (0, MAX_CONTEXT)]
    n_read: Annotated[int, (0, MAX_CONTEXT)]
    read: str
    unread: str
    held: str
    undecoded: bytes
    seconds_left: float | None
    grammar: str
    sampler: SamplerState
    logprobs: LogprobArrays | None
    logits: Annotated[np.ndarray, "<f4", 2] | None
    links: Annotated[np.ndarray, "|u1", 2] | None


class Request:
    """What the scheduler runs.

    Parameters
    ----------
    sequence : the tokens to run; those that were run already are not run again.
    key : of the prefix cache's tree for the request; None keeps the request out of the prefix cache.
    priority : higher goes first.
    tenant : whose it is.
    timeout : seconds from its submission after which it ends, finished or not; None for never.
    keep : called with the sequence when the request has ended, in place of freeing its pages.

    Attributes
    ----------
    id : number among the requests of the engine, in order of arrival.
    prompt : ids of the sequence at the start.
    output : which rows of a pass are wanted.
    parts : what features keep of the request, by the name of the feature.
    events : for the consumer: pieces or arrays, then an `End`.
    n_read : events that the consumer has taken; the consumer counts.
    window : events that may wait for the consumer; with as many the request pauses.
    listener : called by the engine thread when there is an event, for a consumer that does not block.
    consumer : the handle; when that is gone, the request ends.
    cancelled : why the request is to end; "" while it goes on. Any thread may set it.
    cause : the error that the consumer then gets, unless the consumer cancelled the request.
    finish_reason : None until the request has ended. error : what the consumer gets raised.
    is_published : whether the `End` has been emitted.
    is_held : whether it waits until a prefix store has fetched a beginning of its prompt.
    """

    output = Output.NONE
    tenant = ""

    def __init__(
        self,
        sequence: Sequence,
        *,
        key: bytes | None = b"",
        priority: int = 0,
        timeout: float | None = None,
        window: float = math.inf,
        keep: Callable[[Sequence], object] | None = None,
    ) -> None:
        self.id = 0
        self.sequence = sequence
        self.prompt = list(sequence.tokens)
        self.key = key
        self.priority = priority
        self.timeout = timeout
        self.window = window
        self.keep = keep
        self.parts: dict[str, Any] = {}
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.n_events = 0
        self.n_read = 0
        self.listener: Callable[[], object] | None = None
        self.consumer: weakref.ref[Any] | None = None
        self.cancelled = ""
        self.cause: BaseException | None = None
        self.finish_reason: str | None = None
        self.error: BaseException | None = None
        self.is_published = False
        self.is_held = False
        # for the scheduler and observers: seconds of the scheduler's clock, and tokens of the prompt that the
        # prefix cache or a session had
        self.n_cached = 0
        self.submitted_at = self.admitted_at = self.first_token_at = self.last_token_at = math.nan
        self.deadline = math.inf
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0

    @property
    def name(self) -> str:
        """Of the request in logs and traces."""
        return str(self.id)

    @property
    def wanted(self) -> bool:
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

    def note_tokens(self, now: float) -> None:
        """Notes when the request got tokens."""
        if self.first_token_at != self.first_token_at:  # nan
            self.first_token_at = now
        self.last_token_at = now

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


class TextRequest(Request):
    """A sequence that is continued, token by token.

    Parameters
    ----------
    shown : special tokens whose names belong to the text.

    Attributes
    ----------
    n_generated : tokens of the text, an ending token included. n_accepted : those that were proposed.
    whole : whether the text is emitted in one piece at the end; the consumer may switch this on.
    restored : what the consumer had read before the snapshot that the request was restored from.
    forced_tokens : returns tokens that follow the last one in any case; None if each token is sampled.
    record_row : called with the logits of each sampled token, returns 32 bytes; None for nothing to record.
    new_parser : makes the `OutputParser` of the text; None for a text that is left as it is.
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
            timeout=options.timeout,
            window=math.inf if options.window is None or whole else options.window,
            keep=keep,
        )
        self.options = options
        self.tenant = options.tenant
        self.sampler = sampler
        self.whole = whole
        self.n_generated = self.n_accepted = 0
        self.n_top_logprobs = options.n_top_logprobs
        room = context_size - len(self.prompt)
        self._limit = room if options.max_tokens is None else min(room, options.max_tokens)
        self._ends = tokenizer.eog_ids
        self._n_vocab = tokenizer.n_vocab
        self._keeps_logits = options.keep_logits
        self._stop = StopStrings(tuple(options.stop or ()))
        self._stopped = False  # a stop string was found: what follows is not shown
        self._decoder = tokenizer.stream_decoder(continuing=True, shown=shown)
        self._piece = Piece()  # not emitted yet
        self._emitted: list[Piece] = []  # read or not
        self.restored = Piece()

    @property
    def name(self) -> str:
        return self.options.request_id or super().name

    @property
    def stop_string(self) -> str | None:
        """The stop string that was found."""
        return self._stop.found

    @property
    def limit(self) -> str | None:
        """ "length" if no token more may be generated."""
        return "length" if self.n_generated >= self._limit else None

    @property
    def n_left(self) -> int:
        """Tokens that may yet be generated."""
        return self._limit - self.n_generated

    def row(self, logits: np.ndarray) -> np.ndarray:
        """float32 (vocab,): the logits to sample from.

        Rows of a table that is padded beyond the vocabulary stand for no token and are never chosen.
        """
        return logits[: self._n_vocab]

    def take(self, sampled: int | SampledToken, logits: np.ndarray) -> str | None:
        """Adds a sampled token and those that follow in any case; the finish reason if the text ends.

        Parameters
        ----------
        logits : float32 (vocab,) that the token was sampled from.
        """
        piece = self._piece
        if isinstance(sampled, SampledToken):
            piece.logprobs.append(sampled)
            sampled = sampled.token
        if self._keeps_logits:
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
        self._piece.tokens.append(token)
        self.n_accepted += self.sequence.append(token)
        self.n_generated += 1
        if token in self._ends:
            return "stop"
        text = self._decoder.push(token)
        if self._stop.stops:
            text, self._stopped = self._stop.push(text)
        if text:
            self._piece.text += text
            if not self.whole:
                self._emit_piece()
        if self._stopped:
            return "stop"
        return "length" if self.n_generated >= self._limit else None

    def _emit_piece(self) -> None:
        piece, self._piece = self._piece, Piece()
        self._emitted.append(piece)
        self.emit(piece)

    @property
    def grammar_digest(self) -> str:
        """Of the grammar, in hexadecimal digits; "" without one."""
        digest: bytes = getattr(getattr(self.sampler.constraint, "grammar", None), "digest", b"")
        return digest.hex()

    def state(self, now: float) -> RequestState:
        """What `restore` takes, in another process too; for the engine thread."""
        n = min(self.n_read, len(self._emitted))
        read, unread = joined([self.restored, *self._emitted[:n]]), joined([*self._emitted[n:], self._piece])
        rows, links = read.logits + unread.logits, b"".join(read.links + unread.links)
        logits = np.array(rows, np.float32).reshape(len(rows), -1 if rows else 0)
        has_logprobs = self.n_top_logprobs is not None
        return RequestState(
            n_prompt=len(self.prompt),
            n_known=self.n_cached,
            limit=self._limit,
            n_read=len(read.tokens),
            read=read.text,
            unread=unread.text,
            held=self._stop.held,
            undecoded=self._decoder.undecoded,
            seconds_left=None if self.timeout is None else self.deadline - now,
            grammar=self.grammar_digest,
            sampler=SamplerState.of(self.sampler),
            logprobs=LogprobArrays.of(read.logprobs + unread.logprobs) if has_logprobs else None,
            logits=logits if self._keeps_logits else None,
            links=None if self.record_row is None else np.frombuffer(links, np.uint8).reshape(-1, LINK_BYTES),
        )

    def restore(self, state: RequestState, generated: list[int]) -> None:
        """Takes a request that has just been made to where another one was.

        Parameters
        ----------
        generated : tokens of the text. The caller gives the sequence its tokens.

        Raises
        ------
        SnapshotIncompatible : the state is of other options, or of another grammar.
        ConfigError, SamplingError, TokenizerError : its parts do not agree with each other.
        """
        n, k = len(generated), checks.integer("n_read", state.n_read, 0, len(generated))
        checks.integer("n_known", state.n_known, 0, state.n_prompt)
        asked = (self.n_top_logprobs is not None, self._keeps_logits, self.record_row is not None)
        if asked != tuple(part is not None for part in (state.logprobs, state.logits, state.links)):
            raise SnapshotIncompatible(
                "request: expected the log-probabilities, logits and receipt that its options ask for"
            )
        if self.grammar_digest != state.grammar:
            raise SnapshotIncompatible("grammar: this version of the library compiles it to another one")
        if state.logits is not None and len(state.logits) != n:
            raise checks.refuse("logits", f"those of {n} tokens", state.logits.shape)
        if state.links is not None and state.links.shape != (n, LINK_BYTES):
            raise checks.refuse("links", f"those of {n} tokens", state.links.shape)
        logprobs = [] if state.logprobs is None else state.logprobs.sampled(generated, self._n_vocab)
        logits = [] if state.logits is None else list(state.logits)
        links = [] if state.links is None else [row.tobytes() for row in state.links]
        state.sampler.restore(self.sampler, generated)
        self._decoder.restore(state.undecoded)
        self._stop.held = state.held
        self._limit = min(self._limit, state.limit)
        self.n_generated, self.n_cached = n, state.n_known
        self.restored = Piece(state.read, generated[:k], logprobs[:k], logits[:k], links[:k])
        self._piece = Piece(state.unread, generated[k:], logprobs[k:], logits[k:], links[k:])
        if self._piece.text and not self.whole:
            self._emit_piece()

    def flush(self, error: BaseException | None) -> None:
        """Emits the text that was held back and the last tokens."""
        if not self._stopped and error is None:
            shown, found = self._stop.push(self._decoder.flush())
            self._piece.text += shown + ("" if found else self._stop.flush())
        if self._piece.text or self._piece.tokens:
            self._emit_piece()


def joined(pieces: list[Piece]) -> Piece:
    """One piece of several."""
    whole = Piece("".join(piece.text for piece in pieces))
    for piece in pieces:
        whole.tokens.extend(piece.tokens)
        whole.logprobs.extend(piece.logprobs)
        whole.logits.extend(piece.logits)
        whole.links.extend(piece.links)
    return whole


class EmbeddingRequest(Request):
    """A sequence whose hidden states are wanted; its one event before the end is their reduction.

    Parameters
    ----------
    reduce : makes the result of float32 (tokens, n_embd), or (1, n_embd) if ``last``; called by the engine
        thread.
    last : whether the hidden states of the last token are all that is needed.
    """

    def __init__(
        self,
        sequence: Sequence,
        reduce: Callable[[np.ndarray], np.ndarray],
        *,
        last: bool = False,
        key: bytes | None = None,
    ) -> None:
        super().__init__(sequence, key=key)
        self.output = Output.LAST_HIDDEN if last else Output.ALL_HIDDEN
        self._reduce = reduce
        self._parts: list[np.ndarray] = []

    def take(self, rows: np.ndarray) -> str | None:
        """Adds the hidden states of a pass; the reason if it was the last."""
        self._parts.append(rows)
        if self.sequence.pending:
            return None
        self.emit(self._reduce(np.concatenate(self._parts)))
        return "done"
