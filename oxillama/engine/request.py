"""A request: a sequence to run, what is wanted of it, and the events that its reader gets.

The engine thread owns everything here but three things: its reader takes `events`, counts `n_read`, and any
thread may set `cancelled`.
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

from oxillama.cache.radix import Node
from oxillama.config import checks
from oxillama.config.engine import MAX_CONTEXT
from oxillama.config.generation import GenerationOptions
from oxillama.engine.runner import Output
from oxillama.engine.sequence import Sequence
from oxillama.engine.shared_prompt import SharedPrompt
from oxillama.engine.stop_strings import StopStrings
from oxillama.errors import SnapshotIncompatible
from oxillama.faults import fault
from oxillama.grammar import GrammarState
from oxillama.sampling.logprobs import SampledToken
from oxillama.sampling.sampler import Sampler
from oxillama.sampling.state import LogprobArrays, SamplerState
from oxillama.sessions.recorder import ReceiptState, Recorder
from oxillama.speculation.jump_forward import JumpForward
from oxillama.speculation.state import Speculation, SpeculationState
from oxillama.tokenizer.bridge import TokenizerBridge
from oxillama.toolcalls.parsing import Reading


@dataclass(frozen=True)
class Piece:
    """Text for a reader, with the tokens that brought it.

    Attributes
    ----------
    text : may be empty in the last piece.
    tokens : ids sampled since the piece before.
    logprobs : of each of these, if they were asked for.
    logits : float32 (vocab,) each of these was chosen from, if they were asked for.
    links : for each of these that of `LogitsChain`, if a receipt was asked for.
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
    error : what went wrong, if the reason is "error".
    """

    reason: str
    error: BaseException | None = None


Event = Piece | np.ndarray | End


@dataclass(frozen=True, eq=False)
class RequestState:
    """A request for text in the middle of it, for a snapshot: all but its options and its sequence.

    Attributes
    ----------
    n_prompt, n_known : tokens of the prompt, and those of them that the prefix cache had.
    limit : most tokens of the text.
    n_read, read : tokens and text that its reader has had.
    unread : text that the reader has not had.
    held : text that may begin a stop string.
    undecoded : bytes of a character that is not whole.
    seconds_left : until its timeout; None without one.
    grammar : digest of the grammar, "" without one.
    logprobs : of each token of the text; None if they were not asked for.
    logits : float32 (tokens, vocab) that the tokens were chosen from; None if they were not asked for.
    sampler, speculation, receipt : states of what the request has; None for what it has not.
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
    logprobs: LogprobArrays | None
    logits: Annotated[np.ndarray, "<f4", 2] | None
    sampler: SamplerState
    speculation: SpeculationState | None
    receipt: ReceiptState | None


class Request:
    """What the scheduler runs.

    Parameters
    ----------
    sequence : the tokens to run; those that were run already are not run again.
    key : of the prefix cache's tree for it; None to keep out of the prefix cache.
    priority : higher goes first.
    timeout : seconds from its submission after which it ends, finished or not; None for never.
    keep : called with the sequence when the request has ended, in place of freeing its pages.

    Attributes
    ----------
    id : number among the requests of the engine, in order of arrival.
    prompt : ids of the sequence at the start.
    output : which rows of it are wanted of the passes.
    shared : the prompt, if other requests have the same; None otherwise.
    events : for the reader: pieces or arrays, then an `End`.
    n_read : events that the reader has taken; the reader counts.
    window : events that may wait for the reader; with as many the request pauses.
    listener : called by the engine thread when there is an event, for a reader that does not block.
    reader : its handle; when that is gone, the request ends.
    cancelled : why the request is to end; "" while it goes on. Any thread may set it.
    cause : the error that its reader then gets, unless the reader cancelled it.
    finish_reason : None until it has ended. error : what the reader is told of it.
    is_told : whether there will be no more events.
    """

    output = Output.NONE

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
        self.shared: SharedPrompt | None = None
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.n_events = 0
        self.n_read = 0
        self.listener: Callable[[], object] | None = None
        self.reader: weakref.ref[Any] | None = None
        self.cancelled = ""
        self.cause: BaseException | None = None
        self.finish_reason: str | None = None
        self.error: BaseException | None = None
        self.is_told = False
        # for the scheduler and the metrics
        self.n_cached = 0  # tokens of the prompt that the prefix cache or a session had
        self.submitted_at = self.admitted_at = self.first_token_at = self.last_token_at = math.nan
        self.deadline = math.inf
        self.node: Node | None = None
        # for the prefix cache on the disk
        self.is_held = False  # while blocks of its prompt are read
        self.blocks: list[str] = []  # names of the whole blocks of its prompt
        self.n_offered = 0  # of these, those that were offered to be written
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0

    @property
    def name(self) -> str:
        """What logs and traces call it."""
        return str(self.id)

    @property
    def wanted(self) -> bool:
        """Whether its reader has room for another event."""
        return self.n_events - self.n_read < self.window

    @property
    def limit(self) -> str | None:
        """The finish reason, if there is nothing to run."""
        return None

    def submit(self, now: float) -> None:
        """Notes when it was submitted, and so when it is to end."""
        self.submitted_at = now
        self.deadline = math.inf if self.timeout is None else now + self.timeout

    def ends_at(self, now: float) -> str | None:
        """Why it is to end now; None if it goes on."""
        if self.reader is not None and self.reader() is None:
            return "cancelled"
        return self.cancelled or ("timeout" if now >= self.deadline else None)

    def put(self, event: Event) -> None:
        """Hands an event to the reader."""
        self.n_events += 1
        self.events.put(event)

    def note_token(self, now: float) -> None:
        """Notes when it got a token."""
        if math.isnan(self.first_token_at):
            self.first_token_at = now
        self.last_token_at = now

    def finish(self, reason: str, error: BaseException | None = None) -> None:
        """Hands over all but the `End`; a second call does nothing. The scheduler frees the pages."""
        if self.finish_reason is not None:
            return
        self.error = error or (self.cause if reason == self.cancelled else None)
        self.finish_reason = reason
        try:
            self.flush(error)
        except Exception as failed:  # the text is not whole
            self.finish_reason, self.error = "error", fault(failed)

    def tell(self) -> None:
        """Hands over the `End`, when all that its reader may ask for is noted. A second call does nothing."""
        if self.is_told or self.finish_reason is None:
            return
        with suppress(Exception):  # a reader that is not told looks for itself
            self.put(End(self.finish_reason, self.error))
        self.is_told = True

    def flush(self, error: BaseException | None) -> None:
        """Hands over what was held back."""


class TextRequest(Request):
    """A sequence that is continued, token by token.

    Attributes
    ----------
    n_generated : tokens sampled, an ending token included.
    whole : whether the text is handed over in one piece at the end; the reader may switch this on.
    speculation : drafts its next tokens; None without drafts.
    jump : finds the tokens that must follow a sampled one; None if each token is sampled.
    recorder : makes its receipt; None without one.
    reading : how its reader takes the text apart; None for a text that is left as it is.
    restored : what its reader had before the snapshot from which it goes on.
    """

    output = Output.LAST_LOGITS

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
        reading: Reading | None = None,
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
        self.sampler = sampler
        self.whole = whole
        self.speculation: Speculation | None = None
        self.recorder: Recorder | None = None
        self.jump: JumpForward | None = None
        self.n_generated = 0
        room = context_size - len(self.prompt)
        self._limit = room if options.max_tokens is None else min(room, options.max_tokens)
        self._ends = tokenizer.eog_ids
        self._n_vocab = tokenizer.n_vocab
        self._stop = StopStrings(tuple(options.stop or ()))
        self._stopped = False  # a stop string was found: what follows is not shown
        self.reading = reading
        self._decoder = tokenizer.stream_decoder(
            continuing=True, shown=frozenset() if reading is None else reading.shown
        )
        self._piece = Piece()  # not handed over yet
        self._handed: list[Piece] = []  # all that was handed over, read or not
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
        return "length" if self.n_left <= 0 else None

    @property
    def n_left(self) -> int:
        """Tokens that may yet be generated."""
        return self._limit - self.n_generated

    @property
    def n_top_logprobs(self) -> int | None:
        """How many of the likeliest tokens are noted with each; None without log-probabilities."""
        return self.options.n_top_logprobs

    def row(self, logits: np.ndarray) -> np.ndarray:
        """float32 (vocab,): the logits to sample from.

        Rows of a table that is padded beyond the vocabulary stand for no token and are never chosen.
        """
        return logits[: self._n_vocab]

    def take(self, sampled: int | SampledToken, logits: np.ndarray | None) -> str | None:
        """Adds a token and its text; the reason if it was the last. One that must follow has no logits."""
        piece = self._piece
        if isinstance(sampled, SampledToken):
            piece.logprobs.append(sampled)
            sampled = sampled.token
        token = sampled
        piece.tokens.append(token)
        if self.options.keep_logits and logits is not None:
            piece.logits.append(logits.copy())
        if self.recorder is not None and logits is not None:
            piece.links.append(self.recorder.add(logits))
        self.sequence.append(token)
        self.n_generated += 1
        if token in self._ends:
            return "stop"
        shown, self._stopped = self._stop.push(self._decoder.push(token))
        self._add(shown)
        return "stop" if self._stopped else self.limit

    def _add(self, text: str) -> None:
        """Adds text to the piece under way, and hands the piece over unless the text is wanted whole."""
        piece = self._piece
        if text:
            rest = (piece.tokens, piece.logprobs, piece.logits, piece.links)
            self._piece = piece = Piece(piece.text + text, *rest)
        if piece.text and not self.whole:
            self._hand_over()

    def _hand_over(self) -> None:
        self._handed.append(self._piece)
        self.put(self._piece)
        self._piece = Piece()

    @property
    def grammar_digest(self) -> str:
        """Of its grammar, in hexadecimal digits; "" without one."""
        constraint = self.sampler.constraint
        return constraint.grammar.digest.hex() if isinstance(constraint, GrammarState) else ""

    def state(self, now: float) -> RequestState:
        """What `restore` takes, in another process too; for the engine thread."""
        n = min(self.n_read, len(self._handed))
        read, unread = joined([self.restored, *self._handed[:n]]), joined([*self._handed[n:], self._piece])
        logits = read.logits + unread.logits
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
            logprobs=(
                None if self.n_top_logprobs is None else LogprobArrays.of(read.logprobs + unread.logprobs)
            ),
            logits=(
                np.array(logits, np.float32).reshape(len(logits), -1 if logits else 0)
                if self.options.keep_logits
                else None
            ),
            sampler=SamplerState.of(self.sampler),
            speculation=None if self.speculation is None else self.speculation.state(),
            receipt=None if self.recorder is None else self.recorder.state(read.links + unread.links),
        )

    def restore(self, state: RequestState, generated: list[int]) -> None:
        """Takes a request that has just been made to where another one was.

        Parameters
        ----------
        generated : tokens of the text. The caller gives the sequence its tokens.

        Raises
        ------
        SnapshotIncompatible : the state is of other options, or of another grammar.
        ConfigError, SamplingError, ReceiptError, TokenizerError : its parts do not agree with each other.
        """
        n, k = len(generated), checks.integer("n_read", state.n_read, 0, len(generated))
        checks.integer("n_known", state.n_known, 0, state.n_prompt)
        asked = (self.n_top_logprobs is not None, self.options.keep_logits, self.recorder is not None)
        if asked != tuple(part is not None for part in (state.logprobs, state.logits, state.receipt)):
            raise SnapshotIncompatible(
                "request: expected the log-probabilities, logits and receipt that its options ask for"
            )
        if self.grammar_digest != state.grammar:
            raise SnapshotIncompatible("grammar: this version of the library compiles it to another one")
        if state.logits is not None and len(state.logits) != n:
            raise checks.refuse("logits", f"those of {n} tokens", state.logits.shape)
        logits = [] if state.logits is None else list(state.logits)
        logprobs = [] if state.logprobs is None else state.logprobs.sampled(generated, self._n_vocab)
        state.sampler.restore(self.sampler, generated)
        links = (
            self.recorder.restore(state.receipt, state.sampler.seed, n)
            if self.recorder is not None and state.receipt is not None
            else []
        )
        if self.speculation is not None and state.speculation is not None:
            self.speculation.restore(state.speculation)
        self._decoder.restore(state.undecoded)
        self._stop.held = state.held
        self._limit = min(self._limit, state.limit)
        self.n_generated, self.n_cached = n, state.n_known
        self.restored = Piece(state.read, generated[:k], logprobs[:k], logits[:k], links[:k])
        self._piece = Piece(state.unread, generated[k:], logprobs[k:], logits[k:], links[k:])
        self._add("")

    def flush(self, error: BaseException | None) -> None:
        """Hands over the text that was held back and the last tokens."""
        if not self._stopped and error is None:
            shown, found = self._stop.push(self._decoder.flush())
            self._add(shown + ("" if found else self._stop.flush()))
        if self._piece.text or self._piece.tokens:
            self._hand_over()


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
    """A sequence whose hidden states are wanted; its one event before the end is what is made of them.

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
        self.put(self._reduce(np.concatenate(self._parts)))
        return "done"
