"""Log-probabilities of a prompt's own tokens, which evaluations of models read."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from oxillama.config import GenerationOptions
from oxillama.config.adapters import Adapters
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation
from oxillama.samples.seeds import seeded
from oxillama.sampling.logprobs import TokenLogprobs, token_logprobs
from oxillama.server.errors import ClientGone
from oxillama.sessions.session import Session

LOGIT_BYTES = 64 << 20
"""Bytes of logits that are computed at a time."""


MOST_ROWS = 64
"""Tokens of a prompt that are run at a time: texts wait for them."""


@dataclass(frozen=True)
class Scored:
    """A prompt that was run.

    Attributes
    ----------
    logprobs : of each token; None for the first, which follows nothing.
    session : whose tokens are the prompt's.
    """

    logprobs: list[TokenLogprobs | None]
    session: Session


def score(
    engine: InferenceEngine, tokens: list[int], top: int, gone: threading.Event, adapters: Adapters = None
) -> Scored:
    """Runs a prompt.

    Parameters
    ----------
    top : how many of the likeliest tokens are noted at each position.
    gone : set when nobody wants it any more; ClientGone is raised then.
    adapters : as in `GenerationOptions`.
    """
    session, n_vocab = engine.session(adapters=adapters), engine.tokenizer.n_vocab
    rows = max(1, min(MOST_ROWS, LOGIT_BYTES // (4 * engine.model.spec.n_vocab)))
    session.give_way()
    found: list[TokenLogprobs | None] = [None]
    try:
        for first in range(0, len(tokens), rows):
            if gone.is_set():
                raise ClientGone
            part = session.logits(tokens[first : first + rows])
            for row, token in zip(part, tokens[first + 1 : first + 1 + rows]):
                found.append(token_logprobs(row[:n_vocab], token, top, engine.model.kernels))
    except BaseException:
        session.close()
        raise
    return Scored(found, session)


def go_on(scored: Scored, options: GenerationOptions, n: int, seed: int | None) -> list[Generation]:
    """``n`` generations that go on from a prompt that was run, with the seeds that `stream_n` gives them."""
    sessions = [scored.session, *(scored.session.fork() for _ in range(n - 1))]
    return [session.stream(one) for session, one in zip(sessions, seeded(options, n, seed))]
