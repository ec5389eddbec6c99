"""Sampling for many sequences at once, and for one that keeps no state."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama._kernels.openmp_thread import in_openmp_thread
from oxillama.config import checks
from oxillama.config.sampler import SamplerConfig
from oxillama.errors import SamplingError
from oxillama.sampling.chain import SamplerChain, workspaces
from oxillama.sampling.sampler import Sampler

if TYPE_CHECKING:
    from oxillama.sampling.logprobs import SampledToken

History = Sequence[int] | np.ndarray


def sample(
    logits: np.ndarray,
    config: SamplerConfig | SamplerChain,
    history: History = (),
    *,
    seed: int | None = None,
    kernels: Kernels | None = None,
) -> int:
    """One token, by a `Sampler` made for it and forgotten: its parameters and errors are a sampler's."""
    return Sampler(config, kernels, seed).sample(logits, history)


def sample_batch(
    samplers: Sequence[Sampler],
    logits: np.ndarray | Sequence[np.ndarray],
    histories: Sequence[History | None] | None = None,
    tops: Sequence[int | None] | None = None,
    n_threads: int = 1,
) -> list[int | SampledToken | Exception]:
    """The next token of each sequence, the same as each sampler's own `sample` would give.

    Parameters
    ----------
    samplers : one for each sequence, each a different object.
    logits : float32 (sequences, vocab), or a row for each.
    histories : see `Sampler.sample`.
    tops : for each sequence how many of the likeliest tokens to note, or None for no log-probabilities.
    n_threads : sequences that are sampled at a time; stages in Python take turns.

    Returns
    -------
    list : for each sequence its token, with log-probabilities where they are noted, or the error that
        `sample` would have raised. Such a sampler's state is as it was, and no other sequence notices.
    """
    if len(samplers) > 1 and len({id(sampler) for sampler in samplers}) < len(samplers):
        raise SamplingError("samplers: expected different objects, got one twice")
    histories = [None] * len(samplers) if histories is None else histories
    tops = [None] * len(samplers) if tops is None else tops
    if not len(samplers) == len(logits) == len(histories) == len(tops):
        raise SamplingError(
            f"sample_batch: expected one row and history for each of {len(samplers)} samplers, "
            f"got {len(logits)} rows, {len(histories)} histories and {len(tops)} tops"
        )
    if type(n_threads) is not int or n_threads < 1:
        n_threads = checks.integer("n_threads", n_threads, 1)
    results: list[Any] = [None] * len(samplers)
    try:
        _sample(samplers, logits, histories, tops, n_threads, results)
    except BaseException:  # the user's Ctrl-C, or no memory: nobody has sampled
        for sampler, result in zip(samplers, results):
            sampler.abandon()
            if result is not None and not isinstance(result, Exception):
                sampler.rollback(1)
        raise
    return results


def _sample(
    samplers: Sequence[Sampler],
    logits: np.ndarray | Sequence[np.ndarray],
    histories: Sequence[History | None],
    tops: Sequence[int | None],
    n_threads: int,
    results: list[Any],
) -> None:
    """Rows of one vocabulary and target together; chains with stages in Python one after another."""
    groups: dict[tuple[str, int], list[tuple[int, tuple[Any, ...]]]] = {}
    for i, (sampler, row, history, top) in enumerate(zip(samplers, logits, histories, tops, strict=True)):
        try:
            if top is not None:
                results[i] = sampler.sample_with_logprobs(row, history, top)
                continue
            native = sampler.row(row, history)
            if native is None:
                results[i] = sampler.sample(row, history)
            else:
                key = (sampler.chain.kernels.target, len(native[1]))
                groups.setdefault(key, []).append((i, native))
        except Exception as error:  # a stage of the user's own may raise anything
            results[i] = error
    for (_, vocab), members in groups.items():
        kernels = samplers[members[0][0]].chain.kernels
        rooms = workspaces(kernels, vocab, max(1, min(n_threads, len(members))))
        rows = [native for _, native in members]
        if len(rows) == 1:  # one row is sampled by one thread
            chosen = kernels.sampling.sample_rows(rows, rooms)
        else:
            chosen = in_openmp_thread(partial(kernels.sampling.sample_rows, rows, rooms))
        for (i, _), found in zip(members, chosen, strict=True):
            try:
                status, token, logprob = found
                results[i] = samplers[i].take(status, token, logprob, vocab)
            except Exception as error:
                results[i] = error
