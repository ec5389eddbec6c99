"""The rejection rule: tokens have the distribution of the model, whatever is drafted (chi-square tests)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oxillama.base.config.sampler import SamplerConfig
from oxillama.engine.sampling.sampler import Sampler, Xorshift64
from oxillama.speculation import sampling as drafts
from oxillama.speculation.sampling import DraftSampler, accept_or_replace, draw, sample_drafted
from oxillama.text.grammar import Grammar, GrammarState, Vocabulary
from tests.support.spread import leading

N = 8
DRAWS = 200_000
CRITICAL = {1: 15.1, 2: 18.4, 3: 21.1, 4: 23.5, 5: 25.7, 6: 27.9, 7: 29.9}
"""Of chi-square at a probability of 1e-4, by degrees of freedom."""

P = np.array([0.3, 0.05, 0.0, 0.2, 0.15, 0.1, 0.12, 0.08])
DISTRIBUTIONS = {
    "alike": P + 0.01 * np.cos(np.arange(N)) * (P > 0),
    "flat": np.ones(N),
    "opposite": P[::-1],
    "apart": np.array([0, 0, 1.0, 0, 0, 0, 0, 0]),
    "certain": np.array([1.0, 0, 0, 0, 0, 0, 0, 0]),
}


def chi_square(counts: np.ndarray, p: np.ndarray) -> float:
    """Over the tokens that may come; inf if another one came."""
    if counts[p == 0].any():
        return float("inf")
    expected = counts.sum() * p[p > 0]
    return float(((counts[p > 0] - expected) ** 2 / expected).sum())


def as_distribution(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As samplers give them: the candidates alone, in no order."""
    ids = np.flatnonzero(p)[::-1].astype(np.int32)
    return ids, p[ids] / p.sum()


def counts_of(q: np.ndarray, rule: Callable[..., tuple[int, float]], n: int) -> np.ndarray:
    target, draft = as_distribution(P), as_distribution(q)
    own, other = Xorshift64(1), Xorshift64(2)
    counts = np.zeros(N)
    for drafted in np.random.default_rng(3).choice(draft[0], n, p=draft[1]).tolist():
        token, p = rule(target, draft, drafted, own.uniform(), other)
        assert p == P[token]
        counts[token] += 1
    return counts


@pytest.mark.parametrize("q", leading(DISTRIBUTIONS.values(), 2), ids=DISTRIBUTIONS)
def test_tokens_have_the_distribution_of_the_model(q: np.ndarray) -> None:
    n = DRAWS if q is DISTRIBUTIONS["flat"] else 20_000
    assert chi_square(counts_of(q, accept_or_replace, n), P) < CRITICAL[6]


def wrong_residual(*arguments: Any) -> tuple[int, float]:
    """Draws from the model's distribution where the draft is rejected."""
    (target, draft, token, u, random) = arguments
    ids, p = target
    q = np.zeros(N)
    q[draft[0]] = draft[1]
    full = np.zeros(N)
    full[ids] = p
    chosen = token if u * q[token] < full[token] else draw(ids, p, random.uniform())
    return chosen, float(full[chosen])


def test_a_wrong_residual_is_noticed() -> None:
    assert chi_square(counts_of(DISTRIBUTIONS["flat"], wrong_residual, 40_000), P) > 10 * CRITICAL[6]


def test_as_many_are_accepted_as_can_be() -> None:
    """The sum of min(p, q), over all tokens."""
    q = np.ones(N) / N
    own, other = Xorshift64(3), Xorshift64(4)
    target, draft = as_distribution(P), as_distribution(q)
    accepted = 0
    for _ in range(20_000):
        token = draw(*draft, other.uniform())
        accepted += accept_or_replace(target, draft, token, own.uniform(), other)[0] == token
    assert accepted / 20_000 == pytest.approx(np.minimum(P, q).sum(), abs=0.015)


CONFIGS: dict[str, SamplerConfig] = {
    "temperature": SamplerConfig(temperature=0.8, top_k=0, seed=1),
    "cuts": SamplerConfig(temperature=1.1, top_k=5, min_p=0.05, seed=2),
    "penalties": SamplerConfig(temperature=1.0, repetition_penalty=1.5, seed=3),
    "bias": SamplerConfig(temperature=1.0, logit_bias={2: 3.0}, banned_tokens=(0,), seed=4),
    "xtc": SamplerConfig(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.1, seed=5),
    "grammar": SamplerConfig(temperature=1.0, grammar="root ::= [b-f]+", seed=6),
}
LOGITS = np.log(np.maximum(P, 1e-3)).astype(np.float32)
DRAFT = np.array([0.5, -0.5, 0.3, 0.1, -1.0, 0.4, 0.0, 0.2], np.float32)


def sampler_of(config: SamplerConfig) -> Sampler:
    if config.grammar is None:
        return Sampler(config)
    vocabulary = Vocabulary([bytes([97 + i]) for i in range(N)], end_ids=[])
    return Sampler(config, constraint=GrammarState(Grammar.parse(str(config.grammar)), vocabulary))


@pytest.mark.parametrize("config", leading(CONFIGS.values(), 2), ids=CONFIGS)
def test_every_option_counts_in_both_distributions(config: SamplerConfig) -> None:
    """A sampler that drafts and verifies against one that samples, in the same state each time."""
    n, drafting, plain = 12_000, sampler_of(config), sampler_of(config)
    random = Xorshift64(9)
    counts, expected, n_accepted = np.zeros(N), np.zeros(N), 0
    for _ in range(n):
        expected[plain.sample(LOGITS, [1, 3])] += 1
        trial = DraftSampler(drafting, random)
        drafted = trial.sample(DRAFT, [1, 3])
        trial.rewind()
        assert drafted is not None
        draft = trial.distributions[0]
        token = sample_drafted(
            drafting,
            LOGITS,
            [1, 3],
            lambda target, u, draft=draft, drafted=drafted: accept_or_replace(  # type: ignore[misc]
                target, draft, drafted, u, random
            ),
        )
        assert isinstance(token, int)
        counts[token] += 1
        n_accepted += token == drafted
        plain.rollback(0)
    used = (counts + expected) > 0
    difference = ((counts - expected) ** 2 / np.maximum(counts + expected, 1)).sum()
    assert difference < CRITICAL[max(1, int(used.sum()) - 1)]
    assert n_accepted > 0
    assert drafting.n_generated == plain.n_generated == n


def test_a_draft_leaves_the_sampler_as_it_was() -> None:
    for config in (CONFIGS["grammar"], SamplerConfig(mirostat=2, seed=1)):
        sampler = sampler_of(config)
        sampler.sample(LOGITS, [])
        before = sampler.state()
        for random in (None, Xorshift64(1)):
            trial = DraftSampler(sampler, random)
            for _ in range(4):
                trial.sample(DRAFT, [])
            assert sampler.n_generated > 1
            trial.rewind()
            assert sampler.state() == before


def test_log_probabilities_are_those_of_the_processed_distribution() -> None:
    sampler, plain = sampler_of(CONFIGS["cuts"]), sampler_of(CONFIGS["cuts"])
    drawn = sample_drafted(sampler, LOGITS, [], lambda target, u: (int(target[0][0]), target[1][0]), top=3)
    ids, p = plain.distribution(LOGITS, [])
    order = sorted(zip((-p).tolist(), ids.tolist()))[:3]
    assert not isinstance(drawn, int)
    assert drawn.processed.logprob == pytest.approx(np.log(p[0]))
    assert [token for token, _ in drawn.processed.top] == [token for _, token in order]
    assert drawn.raw == plain.sample_with_logprobs(LOGITS, [], 3).raw or drawn.token != plain.history[-1]


def test_draw_takes_its_share() -> None:
    ids = np.array([5, 2, 9], np.int32)
    shares = [draw(ids, np.array([1.0, 0.0, 3.0]), u) for u in (0.0, 0.2, 0.25, 0.99)]
    assert shares == [5, 5, 9, 9]
    assert drafts.draw(ids, np.array([0.0, 2.0, 0.0]), 0.5) == 2


GREEDY = {
    "plain": SamplerConfig.greedy(),
    "biases": SamplerConfig(temperature=0, logit_bias={0: -5.0}),
    "bans": SamplerConfig(temperature=0, banned_tokens=(0, 2)),
    "allowed": SamplerConfig(temperature=0, allowed_tokens=(3, 4)),
    "penalties": SamplerConfig(temperature=0, repetition_penalty=4.0),
    "grammar": SamplerConfig(temperature=0, grammar="root ::= [b-f]+"),
}


@pytest.mark.parametrize("config", GREEDY.values(), ids=GREEDY)
def test_greedy_drafts_are_what_the_sampler_would_choose(config: SamplerConfig) -> None:
    sampler, trial = sampler_of(config), DraftSampler(sampler_of(config))
    for _ in range(3):
        assert trial.sample(DRAFT, [0]) == sampler.sample(DRAFT, [0])
    trial.rewind()
    assert trial.sampler.n_generated == 0


@pytest.mark.parametrize("random", [None, Xorshift64(5)], ids=["seeded", "rejection"])
def test_a_draft_is_told_the_models_own_probabilities(random: Xorshift64 | None) -> None:
    told: list[float] = []
    config = SamplerConfig(temperature=0.5, top_k=3, seed=1)
    trial = DraftSampler(sampler_of(config), random, lambda p: told.append(p) or len(told) < 2)  # type: ignore[func-returns-value]
    p = np.exp(DRAFT) / np.exp(DRAFT).sum()
    first = trial.sample(DRAFT, [])
    assert not trial.is_done
    second = trial.sample(DRAFT, [])
    assert trial.is_done
    assert second is not None  # it is verified, too: to drop it for what it is would be a bias
    assert told == pytest.approx([p[first], p[second]])
