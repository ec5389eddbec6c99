"""Rows of logits to tokens: the sampling kernel runs for many sequences at once.

A program of stages (`chain`) runs in a workspace, of which each thread has some.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama._kernels.openmp_thread import in_openmp_thread
from oxillama.base.config import checks
from oxillama.errors import SamplingError

if TYPE_CHECKING:
    from oxillama.engine.sampling.protocols import History, RowSampler

GOOD, BAD_LOGIT, ALL_MASKED, BAD_HISTORY = range(4)
"""Statuses of `sampling.pyx`."""

kept_workspaces = threading.local()


def workspaces(kernels: Kernels, vocab: int, n: int = 1) -> list[Any]:
    """The calling thread's first n workspaces; a thread keeps workspaces for one vocabulary size."""
    if getattr(kept_workspaces, "key", None) != (kernels.target, vocab):
        kept_workspaces.key, kept_workspaces.workspaces = (kernels.target, vocab), []
    kept: list[Any] = kept_workspaces.workspaces
    while len(kept) < n:
        kept.append(kernels.sampling.Workspace(vocab))
    return kept[:n]


F32 = np.dtype(np.float32)


def is_row(logits: Any) -> bool:
    """Whether something is C-contiguous float32 (vocab,) already, and not empty."""
    return (
        type(logits) is np.ndarray
        and logits.dtype is F32
        and logits.ndim == 1
        and logits.size > 0
        and logits.flags.c_contiguous
    )


def as_logits(logits: np.ndarray) -> np.ndarray:
    """C-contiguous float32 (vocab,). Raises SamplingError unless there is one row of numbers."""
    try:
        if getattr(logits, "dtype", None) != np.float32:
            with np.errstate(over="ignore"):  # inf is refused
                logits = np.asarray(logits, np.float32)
        logits = np.asarray(logits, order="C")
    except (ValueError, OverflowError, TypeError) as error:
        raise SamplingError(f"logits: expected one row of numbers: {error}") from error
    if logits.ndim != 1 or len(logits) == 0:
        raise SamplingError(f"logits: expected one row of numbers, got shape {logits.shape}")
    return logits


def error_of(status: int, vocab: int) -> SamplingError:
    """The error of a status that is not GOOD."""
    if status == BAD_LOGIT:
        return SamplingError("logits: hold a NaN or +inf")
    if status == ALL_MASKED:
        return SamplingError("logits: every token is masked")
    return SamplingError(f"history: holds a token that is not in the vocabulary of {vocab}")


@dataclass(frozen=True)
class TokenLogprobs:
    """The log-probability of a token, and the likeliest tokens.

    Attributes:
        token: its id.
        logprob: natural logarithm of its probability; -inf if it was not a candidate.
        top: (id, logprob) of the likeliest tokens, in descending order, the lower id first among equals.
    """

    token: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True)
class SampledToken:
    """A sampled token and its log-probabilities.

    Attributes:
        token: its id.
        raw: in the model's own distribution.
        processed: in the distribution it was drawn from, after every stage.
    """

    token: int
    raw: TokenLogprobs
    processed: TokenLogprobs


def sample_batch(
    samplers: Sequence[RowSampler],
    logits: np.ndarray | Sequence[np.ndarray],
    histories: Sequence[History | None] | None = None,
    tops: Sequence[int | None] | None = None,
    n_threads: int = 1,
) -> list[int | SampledToken | Exception]:
    """The next token of each sequence, the same as each sampler's own `sample` would give.

    Args:
        samplers: one for each sequence, each a different object.
        logits: float32 (sequences, vocab), or a row for each.
        histories: see `Sampler.sample`.
        tops: number of likeliest tokens to note for each sequence, or None without log-probabilities.
        n_threads: sequences that are sampled at a time; stages in Python take turns.

    Returns:
        list: a token of each sequence, with log-probabilities where ``tops`` says so; or the error of
            `sample`, after which the sampler's state is as it was.
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
    samplers: Sequence[RowSampler],
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
                key = (sampler.kernels.target, len(native[1]))
                groups.setdefault(key, []).append((i, native))
        except Exception as error:  # a stage of the user's own may raise anything
            results[i] = error
    for (_, vocab), members in groups.items():
        kernels = samplers[members[0][0]].kernels
        rooms = workspaces(kernels, vocab, max(1, min(n_threads, len(members))))
        rows = [native for _, native in members]
        if len(rows) == 1:  # a thread samples whole rows
            chosen = kernels.sampling.sample_rows(rows, rooms)
        else:
            chosen = in_openmp_thread(partial(kernels.sampling.sample_rows, rows, rooms))
        for (i, _), found in zip(members, chosen, strict=True):
            try:
                status, token, logprob = found
                results[i] = samplers[i].take(status, token, logprob, vocab)
            except Exception as error:
                results[i] = error
