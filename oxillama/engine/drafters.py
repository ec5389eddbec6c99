"""Drafters: what proposes the next tokens of running requests, for the model to verify in one pass.

A draft changes no text: a drafted token is kept where the model's own sampler, with its own random numbers,
chooses the same one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Listed
from pathlib import Path
from typing import Protocol

from oxillama.engine.runner import Runner
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError, KvCacheFullError, OxiLlamaError
from oxillama.gguf.model_file import ModelFile
from oxillama.models import read_spec
from oxillama.sampling.drafts import DraftSampler
from oxillama.speculative.lookup import SuffixAutomaton
from oxillama.tokenizer.bridge import TokenizerBridge

log = logging.getLogger(__name__)


class Drafter(Protocol):
    """Proposes tokens for any number of sequences; may keep something of each, until `forget`."""

    name: str

    def propose(
        self, sequences: Listed[Sequence], samplers: Listed[DraftSampler], counts: Listed[int]
    ) -> list[list[int]]:
        """For each sequence up to so many tokens that may follow; fewer, or none, as it likes.

        Each token is sampled or copied by the sampler of its sequence.
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """Frees what is kept of a sequence."""
        ...


class LookupDrafter:
    """Drafts what followed the last time that the ending of a text occurred in the text or its prompt."""

    name = "lookup"

    def __init__(self) -> None:
        self._known: dict[Sequence, SuffixAutomaton] = {}

    def propose(
        self, sequences: Listed[Sequence], samplers: Listed[DraftSampler], counts: Listed[int]
    ) -> list[list[int]]:
        found = []
        for sequence, sampler, n in zip(sequences, samplers, counts):
            known = self._known.setdefault(sequence, SuffixAutomaton())
            known.extend(sequence.tokens[len(known.tokens) :])
            found.append(sampler.copied(known.draft(n)))
        return found

    def forget(self, sequence: Sequence) -> None:
        self._known.pop(sequence, None)


class ModelDrafter:
    """Drafts with a smaller model, whose vocabulary must be that of the model it drafts for.

    Each token is sampled from the draft model's logits by the sampler of the request: with its grammar, its
    penalties and, by the seeded rule, the random numbers that will choose the model's token. So the two agree
    wherever their distributions nearly do.

    Parameters
    ----------
    name : of its file.
    runner : of the draft model.
    tokenizer, target : of the draft model, and of the model it drafts for.
    context_size : most tokens of a sequence of the draft model.

    Raises
    ------
    ConfigError : the vocabularies differ, or the draft model is an encoder.
    """

    def __init__(
        self,
        name: str,
        runner: Runner,
        tokenizer: TokenizerBridge,
        target: TokenizerBridge,
        context_size: int,
    ) -> None:
        check_vocabularies(name, tokenizer, target)
        runner.check_logits()
        self.name = name
        self._runner = runner
        self._n_vocab = target.n_vocab
        self._context_size = context_size
        self._ends = target.eog_ids
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
            sequence.tokens.append(token)
            if len(found[i]) < counts[i] and token not in self._ends:
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
            known = self._known[sequence] = Sequence(self._runner.pool)
        n = common_length(known.tokens, sequence.tokens)
        known.truncate(min(n, sequence.total_len - 1))  # the last is run in any case: its logits are wanted
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


def find_draft_model(path: Path, target: TokenizerBridge) -> Path | None:
    """The smallest model beside ``path`` that can draft for it; None if there is none.

    It has at most half of the bytes and the same vocabulary. Only headers are read.
    """
    most = path.stat().st_size // 2
    others = [p for p in path.parent.glob("*.gguf") if p.is_file() and not p.samefile(path)]
    for size, other in sorted((p.stat().st_size, p) for p in others):
        if size > most:
            break
        try:
            with ModelFile.open(other) as file:
                spec = read_spec(file)
                check_vocabularies(other.name, TokenizerBridge.from_metadata(file.metadata), target)
            if spec.causal:
                return other
        except OxiLlamaError as error:
            log.info("%s: cannot draft: %s", other, error)
    return None


def check_vocabularies(name: str, draft: TokenizerBridge, target: TokenizerBridge) -> None:
    """Raises ConfigError unless the ids of both stand for the same tokens."""
    if draft.n_vocab < target.n_vocab:
        raise ConfigError(f"speculate: {name} has {draft.n_vocab} tokens, the model has {target.n_vocab}")
    for id in range(target.n_vocab):
        if draft.token_text(id) != target.token_text(id):
            raise ConfigError(
                f"speculate: token {id} of {name} is {draft.token_text(id)!r}, "
                f"that of the model is {target.token_text(id)!r}"
            )
