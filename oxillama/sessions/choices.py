"""Repeats a sampler's choices for a text whose logits are all known.

The history of each choice is taken from the text, so the choices of a block are independent: the kernel
samples its rows together on several threads. With a grammar, mirostat or a Python stage, the state after a
token decides the next choice, and rows are sampled one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Listed
from functools import partial
from typing import Any

import numpy as np

from oxillama._kernels.openmp_thread import in_openmp_thread
from oxillama.engine.sampling.batch import GOOD, error_of, workspaces
from oxillama.engine.sampling.sampler import Sampler
from oxillama.errors import ConfigError


def choices(
    sampler: Sampler,
    rows: Listed[np.ndarray | None],
    tokens: Listed[int],
    wanted: Listed[bool],
    n_threads: int,
) -> Iterator[int]:
    """Yield the token that the sampler chooses at each position; where not ``wanted``, the text's own token.

    Args:
        rows: float32 (vocab,) logits of each token; None where not wanted.
        tokens: the text's tokens, which the sampler accepts; callers stop at the first different choice.
        n_threads: number of rows sampled at a time.

    Raises:
        SamplingError, GrammarError: the sampler has no choice for the next token.
    """
    chain = sampler.chain
    if sampler.constraint is None and not chain.config.mirostat and not chain.has_callables:
        yield from together(sampler, rows, tokens, wanted, n_threads)
        return
    for row, token, is_wanted in zip(rows, tokens, wanted, strict=True):
        if is_wanted:
            assert row is not None
            yield sampler.sample(row)
        else:
            follow(sampler, token)
            yield token


def together(
    sampler: Sampler,
    rows: Listed[np.ndarray | None],
    tokens: Listed[int],
    wanted: Listed[bool],
    n_threads: int,
) -> Iterator[int]:
    """`choices` for rows whose choices do not depend on each other."""
    kernels = sampler.chain.kernels
    prepared: list[Any] = []
    for row, token, is_wanted in zip(rows, tokens, wanted, strict=True):
        if is_wanted:
            assert row is not None
            prepared.append(sampler.row(row, None))
            sampler.accept(token)
        else:
            follow(sampler, token)
    found: Iterator[tuple[int, int, float]] = iter(())
    if prepared:
        vocab = len(prepared[0][1])
        rooms = workspaces(kernels, vocab, min(n_threads, len(prepared)))
        found = iter(in_openmp_thread(partial(kernels.sampling.sample_rows, prepared, rooms)))
    for token, is_wanted in zip(tokens, wanted):
        if not is_wanted:
            yield token
            continue
        status, choice, _ = next(found)
        if status != GOOD:
            raise error_of(status, vocab)
        yield choice


def follow(sampler: Sampler, token: int) -> None:
    """Let a sampler accept a token and consume the random numbers that a choice would consume.

    Not for mirostat, whose state depends on the logits. Raises GrammarError as `Sampler.accept` does.
    """
    if sampler.chain.draws_chance:
        sampler.random.uniform()
    if not sampler.chain.is_greedy:
        sampler.random.uniform()
    sampler.accept(token)


def check_skipping(sampler: Sampler) -> None:
    """Raise ConfigError for a sampler whose state depends on the logits of every token."""
    chain = sampler.chain
    if chain.config.mirostat:
        raise ConfigError("sample: cannot be combined with mirostat, whose state depends on every token")
    if chain.has_callables:
        raise ConfigError("sample: cannot be combined with a stage in Python, which may have a state")
