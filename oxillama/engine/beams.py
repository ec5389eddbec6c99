"""Beam search: the likeliest continuations of a prompt, found by keeping the best few of each length.

All beams run in one pass a step. Each step is a job of the engine thread, so requests run in between. Beams
that continue the same one share its pages until they write.
"""

from __future__ import annotations

import heapq
import math
import weakref
from dataclasses import dataclass
from functools import partial

import numpy as np

from oxillama.config import SamplerConfig, checks
from oxillama.engine.loading import LoadedModel
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError
from oxillama.sampling.sampler import Sampler


@dataclass(frozen=True, kw_only=True)
class BeamSearchConfig:
    """Options of a beam search.

    Attributes
    ----------
    beam_width : beams that are kept.
    max_new_tokens : most tokens of a hypothesis.
    length_penalty : a hypothesis of n tokens scores its log-probability / n ** length_penalty; more than 0
        prefers longer ones.
    early_stopping : ends when no beam can come to a higher score than the best hypothesis has. Otherwise all
        beams run to their ends, which adds hypotheses of lower scores.

    Raises
    ------
    ConfigError : a field is outside its range; the message names it.
    """

    beam_width: int = 4
    max_new_tokens: int = 256
    length_penalty: float = 1.0
    early_stopping: bool = True

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_new_tokens"):
            object.__setattr__(self, name, checks.integer(name, getattr(self, name), 1))
        object.__setattr__(self, "length_penalty", checks.number("length_penalty", self.length_penalty, 0.0))
        checks.boolean("early_stopping", self.early_stopping)


@dataclass(frozen=True)
class BeamHypothesis:
    """A continuation.

    Attributes
    ----------
    tokens : ids after the prompt, an ending token included.
    logprob_sum : natural logarithm of its probability.
    finished : whether it ended with an ending token.
    """

    tokens: tuple[int, ...]
    logprob_sum: float
    finished: bool

    def score(self, length_penalty: float = 1.0) -> float:
        """logprob_sum / tokens ** length_penalty."""
        return self.logprob_sum / float(max(1, len(self.tokens)) ** length_penalty)


class _Beam:
    """A sequence with its probability.

    Attributes
    ----------
    parent : the sequence that it continues, whose pages it has not taken over yet.
    """

    def __init__(
        self,
        sequence: Sequence,
        sampler: Sampler,
        tokens: tuple[int, ...] = (),
        logprob_sum: float = 0.0,
        parent: Sequence | None = None,
    ) -> None:
        self.sequence, self.sampler = sequence, sampler
        self.tokens, self.logprob_sum = tokens, logprob_sum
        self.parent = parent

    def continued(self, token: int, logprob_sum: float) -> _Beam:
        """This beam and a token more."""
        sampler = self.sampler.fork()
        sampler.accept(token)
        sequence = Sequence(self.sequence.pool, [*self.sequence.tokens, token])
        return _Beam(sequence, sampler, (*self.tokens, token), logprob_sum, self.sequence)

    def take_pages(self) -> None:
        """Shares the pages of the sequence that it continues."""
        if self.parent is not None:
            self.sequence.take_fork(self.parent, self.parent.cached_len)
            self.parent = None


def beam_search(
    model: LoadedModel, prompt: list[int], config: BeamSearchConfig, sampling: SamplerConfig
) -> list[BeamHypothesis]:
    """The hypotheses that were found, at most ``beam_width``: the best first, equals in order of their ids.

    In each step the best ``beam_width`` continuations are kept, of which those that end leave the search. So
    a width of 1 is greedy decoding.

    Parameters
    ----------
    prompt : ids, with room for a token.
    sampling : log-probabilities are those of the distribution after its stages, from which nothing is drawn.

    Raises
    ------
    ConfigError : the model has no logits, or a stage needs random numbers or has a state of its own.
    KvCacheFullError : there are no pages for the beams.
    """
    model.runner.check_logits()
    sampler = model.sampler(sampling)
    if sampler.chain.has_callables or sampling.mirostat or sampling.xtc_probability:
        raise ConfigError("sampler: expected no mirostat, xtc or stage in Python for a beam search, got one")
    most = min(config.max_new_tokens, model.context_size - len(prompt))
    search = _Search(model, config, most)
    try:
        return search.run(_Beam(Sequence(model.pool, prompt), sampler))
    finally:
        model.call(lambda: search.keep([]))


class _Search:
    """The beams that go on, whose pages it holds, and the hypotheses that have ended."""

    def __init__(self, model: LoadedModel, config: BeamSearchConfig, most: int) -> None:
        self.model, self.config, self.most = model, config, most
        self.beams: list[_Beam] = []
        self.ended: list[BeamHypothesis] = []

    def run(self, first: _Beam) -> list[BeamHypothesis]:
        """Searches on from a beam."""
        penalty = self.config.length_penalty
        self.model.call(lambda: self.keep([first]))
        for _ in range(self.most):
            rows = self.model.call(self.forward)
            following = self.following(rows)
            self.model.call(partial(self.keep, following))
            # the most that a beam can come to: no further token costs anything, and it has the full length
            bound = max((beam.logprob_sum / self.most**penalty for beam in self.beams), default=-math.inf)
            best = max((hypothesis.score(penalty) for hypothesis in self.ended), default=-math.inf)
            if not self.beams or (self.config.early_stopping and best >= bound):
                break
        else:
            self.ended += [BeamHypothesis(beam.tokens, beam.logprob_sum, False) for beam in self.beams]
        return sorted(self.ended, key=lambda found: (-found.score(penalty), found.tokens))

    def forward(self) -> np.ndarray:
        """float32 (beams, vocab): the logits after each beam; a job of the engine thread."""
        chunk, runner = self.model.config.prefill_chunk_size, self.model.runner
        for beam in self.beams:
            while beam.sequence.pending > chunk:
                runner.forward([(beam.sequence, chunk)])
        return runner.forward([(beam.sequence, beam.sequence.pending) for beam in self.beams])

    def following(self, rows: np.ndarray) -> list[_Beam]:
        """The best continuations, of which those that end are noted."""
        n_wanted, found = self.config.beam_width - len(self.ended), []
        for number, (beam, row) in enumerate(zip(self.beams, rows)):
            row = row[: self.model.tokenizer.n_vocab]
            ids, p = beam.sampler.distribution(row, beam.sequence.tokens)
            for id, probability in likeliest(ids, p, n_wanted):
                found.append((-beam.logprob_sum - math.log(probability), number, id))
        going = []
        for cost, number, token in heapq.nsmallest(n_wanted, found):
            tokens = (*self.beams[number].tokens, token)
            if token in self.model.tokenizer.eog_ids:
                self.ended.append(BeamHypothesis(tokens, -cost, True))
            else:
                going.append(self.beams[number].continued(token, -cost))
        return going

    def keep(self, beams: list[_Beam]) -> None:
        """Goes on with these beams: forks those that have pages, frees the pages of all others."""
        loop = self.model.loop
        for beam in beams:
            beam.take_pages()
            loop.hold(beam.sequence, weakref.ref(self))
        for beam in self.beams:
            loop.release(beam.sequence)
        self.beams = beams


def likeliest(ids: np.ndarray, p: np.ndarray, n: int) -> list[tuple[int, float]]:
    """The ``n`` likeliest tokens with their probabilities, none of them 0; of equals the lower ids."""
    least = np.partition(p, -n)[-n] if n < len(p) else 0.0
    near = np.flatnonzero((p >= least) & (p > 0))
    best = near[np.lexsort((ids[near], -p[near]))[:n]]
    return list(zip(ids[best].tolist(), p[best].tolist()))
