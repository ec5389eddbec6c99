"""Chooses the tokens of a text again, from rows of logits that are all there.

The tokens so far are those that the text claims, so the rows of a block do not wait for each other: the
kernel samples them together, on several threads. With a grammar, mirostat or a stage in Python, the state
after a token decides how the next is chosen, and rows are sampled one after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Listed
from functools import partial
from typing import Any

import numpy as np

from oxillama._kernels.openmp_thread import in_openmp_thread
from oxillama.errors import ConfigError
from oxillama.sampling.chain import GOOD, error_of, workspaces
from oxillama.sampling.sampler import Sampler


def choices(
    sampler: Sampler,
    rows: Listed[np.ndarray | None],
    tokens: Listed[int],
    wanted: Listed[bool],
    n_threads: int,
) -> Iterator[int]:
    """For each token of a text what the sampler chooses in its place, or the token itself if not ``wanted``.

    Parameters
    ----------
    rows : float32 (vocab,) logits that each token was chosen from; None where it is not wanted.
    tokens : that the sampler takes in; whoever finds another choice reads no further.
    n_threads : rows that are sampled at a time.

    Raises
    ------
    SamplingError, GrammarError : there is no choice in the place of the next token.
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
    """The same, for rows whose choices do not depend on each other."""
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
    """Has a sampler take a token in as if it had chosen it: with the random numbers that a choice takes.

    Not with mirostat, whose state follows from the logits. GrammarError as `Sampler.accept`.
    """
    if sampler.chain.draws_chance:
        sampler.random.uniform()
    if not sampler.chain.is_greedy:
        sampler.random.uniform()
    sampler.accept(token)


def check_skipping(sampler: Sampler) -> None:
    """Raises ConfigError for a sampler whose state depends on the logits of every token."""
    chain = sampler.chain
    if chain.config.mirostat:
        raise ConfigError("sample: cannot be combined with mirostat, whose state depends on every token")
    if chain.has_callables:
        raise ConfigError("sample: cannot be combined with a stage in Python, which may have a state")
