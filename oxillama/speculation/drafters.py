"""Drafters: what proposes the next tokens of running requests, for the model to verify in one pass.

A draft changes no text: a drafted token is kept where the model's own sampler, with its own random numbers,
chooses the same one.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Listed
from typing import Protocol, runtime_checkable

import numpy as np

from oxillama.engine.runner import Runner
from oxillama.engine.sequence import Sequence
from oxillama.errors import KvCacheFullError
from oxillama.speculation.corpus import Corpus
from oxillama.speculation.lookup import SuffixAutomaton
from oxillama.speculation.sampling import DraftSampler

LEAST = 2
"""Tokens of the shortest ending that a draft is copied for."""


class Drafter(Protocol):
    """Proposes tokens for any number of sequences; may keep something of each, until `forget`."""

    name: str

    def propose(
        self, sequences: Listed[Sequence], samplers: Listed[DraftSampler], counts: Listed[int]
    ) -> list[list[int]]:
        """For each sequence up to so many tokens that may follow; fewer, or none, as it likes.

        Each token is sampled or copied by the sampler of its sequence, which says when a further one does
        not pay (``is_done``).
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """Frees what is kept of a sequence."""
        ...


@runtime_checkable
class HiddenStateDrafter(Drafter, Protocol):
    """A drafter that reads the target's hidden states, as blocks for next-token prediction do.

    Attributes
    ----------
    needs_hidden : True; other drafters need not have it.
    """

    needs_hidden: bool

    def observe(self, sequence: Sequence, start: int, hidden: np.ndarray) -> None:
        """Takes the hidden states of tokens of a sequence that the target has run.

        Called before `propose`, for every pass over the sequence, prompts included; rejected tokens are left
        out. Positions that were seen before come again where they were run again: the new states replace the
        old ones, and all behind them. Pages of the prefix cache were not run, so their positions are never
        seen.

        Parameters
        ----------
        start : position of the first row.
        hidden : float32 (n, n_embd), after the target's last norm, of positions ``start`` to ``start + n``.
        """
        ...


class LookupDrafter:
    """Drafts what followed the last time that the ending of a text occurred in the text or its prompt.

    Parameters
    ----------
    corpus : more texts, of all sequences; asked where a longer ending occurs in them. None for none.
    """

    name = "lookup"

    def __init__(self, corpus: Corpus | None = None) -> None:
        self._corpus = corpus
        self._known: dict[Sequence, SuffixAutomaton] = {}

    def propose(
        self, sequences: Listed[Sequence], samplers: Listed[DraftSampler], counts: Listed[int]
    ) -> list[list[int]]:
        found = []
        for sequence, sampler, n in zip(sequences, samplers, counts):
            known = self._known.setdefault(sequence, SuffixAutomaton())
            known.extend(sequence.tokens[len(known.tokens) :])
            found.append(sampler.copied(self._draft(known, n)))
        return found

    def _draft(self, known: SuffixAutomaton, n: int) -> list[int]:
        if self._corpus is not None:
            found = self._corpus.draft(known.tokens, n, least=max(LEAST, known.longest()[0] + 1))
            if found:
                return found
        return known.draft(n, LEAST)

    def forget(self, sequence: Sequence) -> None:
        self._known.pop(sequence, None)


class ModelDrafter:
    """Drafts with a smaller model that has the same tokens as the model it drafts for.

    Each token is sampled from the draft model's logits by the sampler of the request: with its grammar, its
    penalties and, by the seeded rule, the random numbers that will choose the model's token. So the two agree
    wherever their distributions nearly do.

    Parameters
    ----------
    name : of its file.
    runner : of the draft model.
    n_vocab : tokens that may be drafted, the first ones of the draft model.
    ends : tokens behind which nothing is drafted.
    context_size : max tokens of a sequence of the draft model.

    Raises
    ------
    ConfigError : the draft model is an encoder.
    """

    def __init__(
        self, name: str, runner: Runner, n_vocab: int, ends: Collection[int], context_size: int
    ) -> None:
        runner.check_logits()
        self.name = name
        self._runner = runner
        self._n_vocab = n_vocab
        self._context_size = context_size
        self._ends = ends
        self._known: dict[Sequence, Sequence] = {}

    def propose(
        self, sequences: Listed[Sequence], samplers: Listed[DraftSampler], counts: Listed[int]
    ) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in sequences]
        active = []
        for i, (sequence, n) in enumerate(zip(sequences, counts)):
            if sequence.total_len + n <= self._context_size:
                self._follow(sequence)
                active.append(i)
        try:
            while active:
                active = self._propose_next(active, found, sequences, samplers, counts)
        except KvCacheFullError:  # the texts go on without the rest
            pass
        return found

    def _propose_next(
        self,
        active: list[int],
        found: list[list[int]],
        sequences: Listed[Sequence],
        samplers: Listed[DraftSampler],
        counts: Listed[int],
    ) -> list[int]:
        """Adds a token to what was found for each active sequence; those that may get another."""
        mine = [self._known[sequences[i]] for i in active]
        rows = self._runner.forward([(sequence, sequence.pending) for sequence in mine])
        going = []
        for i, sequence, row in zip(active, mine, rows):
            token = samplers[i].sample(row[: self._n_vocab], sequence.tokens)
            if token is None:
                continue
            found[i].append(token)
            sequence.draft([token])
            if len(found[i]) < counts[i] and token not in self._ends and not samplers[i].is_done:
                going.append(i)
        return going

    def forget(self, sequence: Sequence) -> None:
        known = self._known.pop(sequence, None)
        if known is not None:
            known.release()

    def _follow(self, sequence: Sequence) -> None:
        """Brings the draft model's sequence to the same tokens; what both begin with is not run again."""
        known = self._known.get(sequence)
        if known is None:
            known = self._known[sequence] = Sequence(self._runner.pool, checkpoints=0)
        n = common_length(known.tokens, sequence.tokens)
        known.truncate(min(n, sequence.total_len - 1))  # the last is run in any case: its logits are wanted
        known.keep_drafts()
        known.tokens += sequence.tokens[len(known.tokens) :]


def common_length(a: Listed[int], b: Listed[int]) -> int:
    """Tokens with which both begin."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    low, high = 0, n  # a[:low] == b[:low], a[:high] != b[:high]
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
