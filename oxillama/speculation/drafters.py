"""Drafters: propose the next tokens of running requests; the model verifies them in one pass.

A draft does not change the text: a drafted token is kept only if the model's own sampler, with its own random
numbers, chooses the same token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence as Listed
from typing import Protocol, runtime_checkable

import numpy as np

from oxillama.engine.cache.radix import common_length
from oxillama.engine.runner import Runner
from oxillama.engine.sequence import Sequence
from oxillama.errors import KvCacheFullError
from oxillama.speculation.corpus import Corpus
from oxillama.speculation.lookup import SuffixAutomaton
from oxillama.speculation.sampling import DraftSampler

LEAST = 2
"""The minimum length of a repeated suffix in tokens for a draft to be copied."""


class Drafter(Protocol):
    """Proposes tokens for any number of sequences; may keep state for each sequence until `forget`."""

    name: str

    def propose(
        self, sequences: Listed[Sequence], samplers: Listed[DraftSampler], counts: Listed[int]
    ) -> list[list[int]]:
        """Propose up to ``counts[i]`` tokens that may follow sequence i; a drafter may return fewer.

        Each token is sampled or copied by the sampler of its sequence; ``is_done`` of the sampler says that
        further tokens would not be worth their cost.
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """Free the state of a sequence."""
        ...


@runtime_checkable
class HiddenStateDrafter(Drafter, Protocol):
    """A drafter that reads the target's hidden states, such as a next-token-prediction (MTP) layer.

    Attributes:
        needs_hidden: True. Other drafters may lack the attribute.
        tapped: layers whose inputs it reads in place of those states; it may lack the attribute, too.
    """

    needs_hidden: bool

    def observe(self, sequence: Sequence, start: int, hidden: np.ndarray) -> None:
        """Receive hidden states of tokens that the target has run.

        Called before `propose`, for every pass over the sequence, including the prompt; rejected tokens are
        left out. A position that is run again is passed again: the new states replace the old ones from this
        position on. Pages from the prefix cache are not run, so their positions are never passed.

        Args:
            start: position of the first row.
            hidden: float32 (n, n_embd), after the target's last norm, of positions ``start`` to ``start + n -
                1``; or float32 (n, layers * n_embd), the inputs of the layers `tapped` at those positions.
        """
        ...


def sample_each(
    logits: np.ndarray,
    active: list[int],
    found: list[list[int]],
    sequences: Listed[Sequence],
    samplers: Listed[DraftSampler],
    counts: Listed[int],
    ends: Collection[int],
    chances: np.ndarray | None = None,
) -> list[int]:
    """Sample the next token of each active sequence from its row of ``logits``, and add it to ``found``.

    ``chances`` : estimates of their acceptance, float32 (active,); None for the tokens' probabilities.

    Returns the indices in ``active`` of the sequences that may draft another token.
    """
    going = []
    for at, i in enumerate(active):
        chance = None if chances is None else float(chances[at])
        token = samplers[i].sample(logits[at], sequences[i].tokens + found[i], chance)
        if token is not None:
            found[i].append(token)
            if len(found[i]) < counts[i] and token not in ends and not samplers[i].is_done:
                going.append(at)
    return going


class LookupDrafter:
    """Drafts a copy of the text after the last occurrence of the sequence's current suffix (prompt lookup).

    Args:
        corpus: further texts, used when a longer suffix occurs in them. None: only the sequence itself.
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
    """Drafts with a smaller model whose vocabulary is the same as the target model's.

    Each token is sampled from the draft model's logits by the request's sampler: with its grammar, its
    penalties and, by the seeded rule, the random numbers that will choose the target's token. So both models
    choose the same token wherever their distributions are close.

    Args:
        name: file name of the draft model.
        runner: runs the draft model.
        n_vocab: only the first ``n_vocab`` tokens of the draft model may be drafted.
        ends: tokens after which a draft ends.
        context_size: max tokens of a sequence of the draft model.

    Raises:
        ConfigError: the draft model is an encoder.
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
                mine = [self._known[sequences[i]] for i in active]
                rows = self._runner.forward([(known, known.pending) for known in mine])[:, : self._n_vocab]
                going = sample_each(rows, active, found, sequences, samplers, counts, self._ends)
                for at in going:
                    mine[at].draft(found[active[at]][-1:])
                active = [active[at] for at in going]
        except KvCacheFullError:  # the drafts so far are still valid
            pass
        return found

    def forget(self, sequence: Sequence) -> None:
        known = self._known.pop(sequence, None)
        if known is not None:
            known.release()

    def _follow(self, sequence: Sequence) -> None:
        """Give the draft model's sequence the same tokens; the common prefix is not run again."""
        known = self._known.get(sequence)
        if known is None:
            known = self._known[sequence] = Sequence(self._runner.pool, checkpoints=0)
        n = common_length(known.tokens, sequence.tokens)
        known.truncate(min(n, sequence.total_len - 1))  # the last token is always run, for its logits
        known.keep_drafts()
        known.tokens += sequence.tokens[len(known.tokens) :]
