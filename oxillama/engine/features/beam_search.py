"""Beam search: the likeliest continuations of a prompt, found by keeping the best few of each length.

`search` is the one search. A `BeamModel` runs its beams: `EngineBeams` all of them in one pass a step, with
pages that beams share until they write; `ForwardBeams` one after the other, with whatever gives logits.
"""

from __future__ import annotations

import heapq
import math
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence as Listed
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from oxillama import _kernels
from oxillama.base.config import SamplerConfig, checks
from oxillama.base.config.adapters import Adapters
from oxillama.engine.loading import LoadedModel, Prompt, checked_tokens
from oxillama.engine.sampling.sampler import Sampler
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError
from oxillama.models.adapters.stack import Adaptation

UNCHANGED = SamplerConfig(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0)
"""The distribution of the model itself."""


BLOCK = 64
"""Probabilities of which first only the largest is looked at."""


@dataclass(frozen=True, kw_only=True)
class BeamSearchConfig:
    """Options of a beam search.

    Attributes:
        beam_width: beams that are kept.
        max_new_tokens: max tokens of a hypothesis.
        length_penalty: a hypothesis of n tokens scores its log-probability / n ** length_penalty; more than 0
            prefers longer ones.
        early_stopping: ends when no beam can come to a higher score than the best hypothesis has. Otherwise
            all beams run to their ends, which adds hypotheses of lower scores.

    Raises:
        ConfigError: a field is outside its range; the message names it.
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

    Attributes:
        tokens: ids after the prompt, an ending token included; from `beam_generate` with the prompt before
            them.
        logprob_sum: natural logarithm of the probability of the tokens after the prompt.
        finished: whether it ended with an ending token.
    """

    tokens: tuple[int, ...]
    logprob_sum: float
    finished: bool

    def score(self, length_penalty: float = 1.0, prompt_len: int = 0) -> float:
        """logprob_sum / new tokens ** length_penalty.

        Args:
            prompt_len: how many of `tokens` are the prompt's, which are not counted.

        Raises:
            ConfigError: there are not so many tokens.
        """
        n_prompt = checks.integer("prompt_len", prompt_len, 0, len(self.tokens))
        return self.logprob_sum / float(max(1, len(self.tokens) - n_prompt) ** length_penalty)

    def after(self, prompt: Listed[int]) -> BeamHypothesis:
        """A copy with the tokens of its prompt before its own tokens."""
        return replace(self, tokens=(*prompt, *self.tokens))


@dataclass(eq=False)
class Beam:
    """A continuation under way.

    Attributes:
        sampler: whose distribution gives the log-probabilities; its grammar has accepted all tokens.
        tokens: ids after the prompt.
        logprob_sum: natural logarithm of their probability.
        parent: the beam that it continues by one token; None for the empty continuation.
    """

    sampler: Sampler
    tokens: tuple[int, ...] = ()
    logprob_sum: float = 0.0
    parent: Beam | None = None

    def continued(self, token: int, logprob_sum: float) -> Beam:
        """This beam and a token more."""
        sampler = self.sampler.fork()
        sampler.accept(token)
        return Beam(sampler, (*self.tokens, token), logprob_sum, self)


class BeamModel(Protocol):
    """Runs the beams of a search.

    Attributes:
        prompt: ids before all beams.
        n_vocab: logits that stand for tokens.
        ends: ids that end a text.
    """

    prompt: list[int]
    n_vocab: int
    ends: Collection[int]

    def rows(self, beams: Listed[Beam]) -> Listed[np.ndarray]:
        """float32 (vocab,) for each beam: the logits after its last token. The parents of ``beams`` are the
        beams of the previous call."""
        ...


def search(
    model: BeamModel,
    config: BeamSearchConfig,
    sampler: Sampler,
    most: int,
    check: Callable[[], object] = lambda: None,
) -> list[BeamHypothesis]:
    """The hypotheses that were found, at most ``beam_width``: the best first, equals in order of their ids.

    In each step the best ``beam_width`` continuations are kept, of which those that end leave the search. So
    a width of 1 is greedy decoding.

    Args:
        sampler: log-probabilities are taken from the distribution after its stages; no token is drawn.
        most: tokens of a hypothesis.
        check: called before each step; what it raises ends the search.

    Raises:
        ConfigError: a stage of the sampler needs random numbers or has a state of its own.
    """
    options = sampler.config
    if sampler.chain.has_callables or options.mirostat or options.xtc_probability:
        raise ConfigError("sampler: expected no mirostat, xtc or stage in Python for a beam search, got one")
    penalty = config.length_penalty
    beams, ended = [Beam(sampler)], list[BeamHypothesis]()
    for _ in range(most):
        check()
        rows = model.rows(beams)
        for beam in beams:
            beam.parent = None  # all that came before would live as long
        beams = following(model, beams, rows, config.beam_width - len(ended), ended)
        # the most that a beam can come to: no further token costs anything, and it has the full length
        bound = max((beam.logprob_sum / most**penalty for beam in beams), default=-math.inf)
        best = max((hypothesis.score(penalty) for hypothesis in ended), default=-math.inf)
        if not beams or (config.early_stopping and best >= bound):
            break
    else:
        ended += [BeamHypothesis(beam.tokens, beam.logprob_sum, False) for beam in beams]
    return sorted(ended, key=lambda found: (-found.score(penalty), found.tokens))


def following(
    model: BeamModel, beams: Listed[Beam], rows: Listed[np.ndarray], n: int, ended: list[BeamHypothesis]
) -> list[Beam]:
    """The ``n`` likeliest continuations of all beams but those that end, which are added to ``ended``."""
    found = []
    for number, (beam, row) in enumerate(zip(beams, rows)):
        ids, p = beam.sampler.distribution(row[: model.n_vocab], [*model.prompt, *beam.tokens])
        for id, probability in likeliest(ids, p, n):
            found.append((-beam.logprob_sum - math.log(probability), number, id))
    going = []
    for cost, number, token in heapq.nsmallest(n, found):
        if token in model.ends:
            ended.append(BeamHypothesis((*beams[number].tokens, token), -cost, True))
        else:
            going.append(beams[number].continued(token, -cost))
    return going


def likeliest(ids: np.ndarray, p: np.ndarray, n: int) -> list[tuple[int, float]]:
    """The ``n`` likeliest tokens with their probabilities, none of them 0; of equals the lower ids."""
    n_blocks, least = len(p) // BLOCK, 0.0
    if n < n_blocks:  # the largest of n blocks are n that reach the least of them
        tops = p[: n_blocks * BLOCK].reshape(n_blocks, BLOCK).max(axis=1)
        least = np.partition(tops, -n)[-n]
    near = np.flatnonzero((p >= least) & (p > 0))
    best = near[np.lexsort((ids[near], -p[near]))[:n]]
    return list(zip(ids[best].tolist(), p[best].tolist()))


# --- in an engine -----------------------------------------------------------------------------------------


def beam_search(
    model: LoadedModel,
    prompt: Prompt,
    config: BeamSearchConfig | None,
    adapters: Adapters,
    sampling: Mapping[str, Any],
    check: Callable[[], object] = lambda: None,
) -> list[BeamHypothesis]:
    """`search` by the model of an engine. Each step is a job of its thread, so requests run in between.

    Args:
        config: None for the usual one.
        adapters: as in `GenerationOptions`.
        sampling: fields of `SamplerConfig`.
        check: called before each step, and may raise.

    Raises as `InferenceEngine.beam_search`, and ConfigError if the model has no logits.
    """
    tokens = model.prompt_tokens(prompt, free=1)
    model.runner.check_logits()
    config = BeamSearchConfig() if config is None else checks.instance("config", config, BeamSearchConfig)
    sampler = model.sampler(replace(UNCHANGED, **sampling))
    beams = EngineBeams(model, tokens, model.adaptation(adapters, tokens))
    try:
        most = min(config.max_new_tokens, model.context_size - len(tokens))
        return search(beams, config, sampler, most, check)
    finally:
        model.call(beams.release)


class EngineBeams:
    """The beams of one search as sequences of an engine, and their pages."""

    def __init__(self, model: LoadedModel, prompt: list[int], adapters: Adaptation | None) -> None:
        self.prompt: list[int] = prompt
        self.adapters: Adaptation | None = adapters
        self.n_vocab: int = model.tokenizer.n_vocab
        self.ends: Collection[int] = model.tokenizer.eog_ids
        self._model = model
        self._sequences: dict[Beam, Sequence] = {}

    def rows(self, beams: Listed[Beam]) -> list[np.ndarray]:
        """float32 (vocab,) for each beam."""
        return list(self._model.call(lambda: self._run(beams)))

    def _run(self, beams: Listed[Beam]) -> np.ndarray:
        chunk, runner = self._model.config.prefill_chunk_size, self._model.runner
        self._keep(beams)
        parts = [(sequence, sequence.pending) for sequence in self._sequences.values()]
        for sequence, pending in parts:
            for _ in range((pending - 1) // chunk):
                runner.forward([(sequence, chunk)])
        return runner.forward([(sequence, sequence.pending) for sequence, _ in parts])

    def _keep(self, beams: Listed[Beam]) -> None:
        """Has beams go on from the pages of those that they continue; frees the pages of all those."""
        before, self._sequences = self._sequences, {}
        for beam in beams:
            tokens = [*self.prompt, *beam.tokens]
            sequence = Sequence(self._model.pool, tokens, adapters=self.adapters)
            self._sequences[beam] = sequence
            self._model.loop.hold(sequence, weakref.ref(self))
            if beam.parent is not None:
                parent = before[beam.parent]
                sequence.take_fork(parent, parent.cached_len)
        for sequence in before.values():
            self._model.loop.release(sequence)

    def release(self) -> None:
        """Frees all pages."""
        self._keep([])


# --- by anything that gives logits ------------------------------------------------------------------------


class BeamForwardPass(Protocol):
    """A model that runs one sequence."""

    def forward_tokens(self, tokens: list[int]) -> np.ndarray:
        """Appends tokens; float32 (vocab,) logits after the last, or (tokens, vocab) after each."""
        ...

    def reset(self) -> None:
        """Forgets all tokens."""
        ...


def beam_generate(
    config: BeamSearchConfig,
    prompt_tokens: Listed[int],
    forward: BeamForwardPass,
    eos_id: int | Collection[int] | None = None,
) -> list[BeamHypothesis]:
    """The likeliest continuations of a prompt by any model, best first; their tokens begin with the prompt's.

    Args:
        forward: runs the beams one after the other, each from the first token, but for one that only
            continues the tokens that were run last.
        eos_id: the ending token or tokens; with None no token ends a beam.

    Raises:
        PromptError: the prompt is no token ids, or none.
        ConfigError: ``config`` or ``eos_id`` is of another type.
    """
    checks.instance("config", config, BeamSearchConfig)
    prompt = checked_tokens(prompt_tokens, checks.INT_MAX, checks.MOST_ITEMS)
    is_one = checks.is_token(eos_id)
    ends = () if eos_id is None else checks.token_ids("eos_id", [eos_id] if is_one else eos_id)
    model, sampler = ForwardBeams(forward, prompt, ends), Sampler(UNCHANGED, _kernels.best())
    found = search(model, config, sampler, config.max_new_tokens)
    return [hypothesis.after(prompt) for hypothesis in found]


class ForwardBeams:
    """The beams of one search, run by a `BeamForwardPass`."""

    n_vocab = checks.INT_MAX  # its logits are all tokens'

    def __init__(self, forward: BeamForwardPass, prompt: list[int], ends: Collection[int]) -> None:
        self.prompt: list[int] = prompt
        self.ends: Collection[int] = ends
        self._forward = forward
        self._run: list[int] = []  # what the model has run

    def rows(self, beams: Listed[Beam]) -> list[np.ndarray]:
        """float32 (vocab,) for each beam."""
        return [self._row([*self.prompt, *beam.tokens]) for beam in beams]

    def _row(self, tokens: list[int]) -> np.ndarray:
        n = len(self._run)
        if n == 0 or n >= len(tokens) or tokens[:n] != self._run:
            self._forward.reset()
            n = 0
        self._run = tokens
        logits = np.asarray(self._forward.forward_tokens(tokens[n:]), np.float32)
        return logits if logits.ndim == 1 else np.ascontiguousarray(logits[-1])
