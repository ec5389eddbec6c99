"""The state of a text request, for a snapshot, and its restoration into a new request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from oxillama.base.config import checks
from oxillama.base.config.engine import MAX_CONTEXT
from oxillama.engine.request import Piece, TextRequest
from oxillama.engine.sampling.state import LogprobArrays, SamplerState
from oxillama.errors import SnapshotIncompatible
from oxillama.sessions.chain import LINK_BYTES


@dataclass(frozen=True, eq=False)
class RequestState:
    """An unfinished text request, for a snapshot; without options, sequence and `Request.parts`.

    Attributes:
        n_prompt, n_known: number of prompt tokens, and how many of them came from the prefix cache.
        limit: max tokens of the text.
        n_read, read: tokens and text that the consumer has read.
        unread: text that the consumer has not yet read.
        held: text held back because it may begin a stop string.
        undecoded: bytes of an incomplete character.
        seconds_left: time until the timeout; None without one.
        grammar: digest of the grammar; "" without one.
        sampler: the state of the sampler.
        logprobs: log-probabilities of each token of the text; None if not requested.
        logits: float32 (tokens, vocab), the logits of the tokens; None if not requested.
        links: uint8 (tokens, 32), the results of `TextRequest.record_row` for each token; None without it.
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

    @classmethod
    def of(cls, request: TextRequest, now: float) -> RequestState:
        """The state of a request, on the engine thread. ``now`` is by the scheduler's clock."""
        n = min(request.n_read, len(request.emitted))
        read = joined([request.restored, *request.emitted[:n]])
        unread = joined([*request.emitted[n:], request.piece])
        rows, links = read.logits + unread.logits, b"".join(read.links + unread.links)
        logits = np.array(rows, np.float32).reshape(len(rows), -1 if rows else 0)
        has_logprobs = request.n_top_logprobs is not None
        return cls(
            n_prompt=len(request.prompt),
            n_known=request.n_cached,
            limit=request.max_tokens,
            n_read=len(read.tokens),
            read=read.text,
            unread=unread.text,
            held="" if request.stops is None else request.stops.held,
            undecoded=request.decoder.undecoded,
            seconds_left=None if request.timeout is None else request.deadline - now,
            grammar=grammar_digest(request),
            sampler=SamplerState.of(request.sampler),
            logprobs=LogprobArrays.of(read.logprobs + unread.logprobs) if has_logprobs else None,
            logits=logits if request.keeps_logits else None,
            links=None
            if request.record_row is None
            else np.frombuffer(links, np.uint8).reshape(-1, LINK_BYTES),
        )

    def restore(self, request: TextRequest, generated: list[int]) -> None:
        """Bring a newly made request to this state.

        Args:
            generated: tokens of the text. The caller gives them to the sequence.

        Raises:
            SnapshotIncompatible: the state belongs to other options or to another grammar.
            ConfigError, SamplingError, TokenizerError: parts of the state contradict each other.
        """
        n, k = len(generated), checks.integer("n_read", self.n_read, 0, len(generated))
        checks.integer("n_known", self.n_known, 0, self.n_prompt)
        asked = (request.n_top_logprobs is not None, request.keeps_logits, request.record_row is not None)
        if asked != tuple(part is not None for part in (self.logprobs, self.logits, self.links)):
            raise SnapshotIncompatible(
                "request: expected the log-probabilities, logits and receipt that its options ask for"
            )
        if grammar_digest(request) != self.grammar:
            raise SnapshotIncompatible("grammar: this version of the library compiles it to another one")
        if self.logits is not None and len(self.logits) != n:
            raise checks.refuse("logits", f"those of {n} tokens", self.logits.shape)
        if self.links is not None and self.links.shape != (n, LINK_BYTES):
            raise checks.refuse("links", f"those of {n} tokens", self.links.shape)
        logprobs = [] if self.logprobs is None else self.logprobs.sampled(generated, request.n_vocab)
        logits = [] if self.logits is None else list(self.logits)
        links = [] if self.links is None else [row.tobytes() for row in self.links]
        self.sampler.restore(request.sampler, generated)
        request.decoder.restore(self.undecoded)
        if request.stops is not None:
            request.stops.held = self.held
        request.max_tokens = min(request.max_tokens, self.limit)
        request.n_generated, request.n_cached = n, self.n_known
        request.restored = Piece(self.read, generated[:k], logprobs[:k], logits[:k], links[:k])
        request.piece = Piece(self.unread, generated[k:], logprobs[k:], logits[k:], links[k:])
        if request.piece.text and not request.whole:
            request.emit_piece()


def grammar_digest(request: TextRequest) -> str:
    """The digest of the request's grammar in hexadecimal digits; "" without a grammar."""
    digest: bytes = getattr(getattr(request.sampler.constraint, "grammar", None), "digest", b"")
    return digest.hex()


def joined(pieces: list[Piece]) -> Piece:
    """The concatenation of pieces."""
    whole = Piece("".join(piece.text for piece in pieces))
    for piece in pieces:
        whole.tokens.extend(piece.tokens)
        whole.logprobs.extend(piece.logprobs)
        whole.logits.extend(piece.logits)
        whole.links.extend(piece.links)
    return whole
