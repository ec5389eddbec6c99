"""Log-probabilities of a prompt's own tokens, for evaluations of models."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from oxillama.apps.server.errors import ClientGone
from oxillama.base.config import GenerationOptions
from oxillama.base.config.adapters import Adapters
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.sample_seeds import seeded
from oxillama.engine.generation import Generation
from oxillama.engine.sampling.logprobs import TokenLogprobs, token_logprobs
from oxillama.sessions.session import Session

LOGIT_BYTES = 64 << 20
"""Bytes of logits that are computed at a time."""


MOST_ROWS = 64
"""Tokens of a prompt that are run at a time: texts wait for them."""


@dataclass(frozen=True)
class Scored:
    """The result of running a prompt.

    Attributes:
        logprobs: of each token; None for the first, which follows nothing.
        session: whose tokens are the prompt's.
    """

    logprobs: list[TokenLogprobs | None]
    session: Session


def score(
    engine: InferenceEngine, tokens: list[int], top: int, gone: threading.Event, adapters: Adapters = None
) -> Scored:
    """Runs a prompt.

    Args:
        top: how many of the likeliest tokens are noted at each position.
        gone: set when nobody wants it any more; ClientGone is raised then.
        adapters: as in `GenerationOptions`.
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
    """``n`` generations that continue a prompt that was run, with the seeds of `stream_n`."""
    sessions = [scored.session, *(scored.session.fork() for _ in range(n - 1))]
    return [session.stream(one) for session, one in zip(sessions, seeded(options, n, seed))]
