"""Workspaces of the sampling kernels, one set for each thread; and the errors of their statuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.errors import SamplingError

GOOD, BAD_LOGIT, ALL_MASKED, BAD_HISTORY = range(4)
"""Statuses of `sampling.pyx`."""

_kept = threading.local()


def workspaces(kernels: Kernels, vocab: int, n: int = 1) -> list[Any]:
    """The calling thread's first n workspaces; it keeps those of one vocabulary."""
    if getattr(_kept, "key", None) != (kernels.target, vocab):
        _kept.key, _kept.workspaces = (kernels.target, vocab), []
    kept: list[Any] = _kept.workspaces
    while len(kept) < n:
        kept.append(kernels.sampling.Workspace(vocab))
    return kept[:n]


@contextmanager
def set_aside() -> Iterator[None]:
    """A context in which the calling thread uses other workspaces: a stage in Python may sample, too."""
    key, kept = _kept.key, _kept.workspaces
    del _kept.key
    try:
        yield
    finally:
        _kept.key, _kept.workspaces = key, kept


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
