"""Sampling: random numbers, penalties, cuts and the draw, over the candidates of one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from oxillama.base.config import SamplerConfig
from oxillama.base.config.sampler import CONSTRAINTS, STAGES as TABLE
from oxillama.reference.candidates import LARGEST, Candidates, Weights, cut
from oxillama.reference.dry import breaker_sequences, penalize
from oxillama.reference.floats import F32, exp_double, log_double
from oxillama.reference.grammar import Recogniser
from oxillama.reference.source import Unsupported
from oxillama.text.tokenizer.tokenizer import Tokenizer

MASK = 2**64 - 1
LN2 = 6.931471805599453e-1


class Xorshift64:
    """Marsaglia's xorshift64 (2003), seeded through a step of splitmix64 (Steele et al., 2014)."""

    def __init__(self, seed: int) -> None:
        z = (seed + 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        self.state: int = (z ^ (z >> 31)) or 1

    def uniform(self) -> float:
        """A double in [0, 1) with 53 random bits."""
        x = self.state
        x ^= (x << 13) & MASK
        x ^= x >> 7
        x ^= (x << 17) & MASK
        self.state = x
        return (x >> 11) * 2.0**-53


class ReferenceSampler:
    """Samples the tokens of one sequence.

    Args:
        config: the options, including a seed.
        ends: ids of tokens that end a generation.
        tokenizer: for DRY breakers that are texts.
        grammar: the text's grammar, at its start; ``config`` must not name one.

    Raises:
        Unsupported: ``config`` has a grammar or a Python stage, which are not implemented here.
    """

    def __init__(
        self,
        config: SamplerConfig,
        ends: frozenset[int],
        tokenizer: Tokenizer | None = None,
        grammar: Recogniser | None = None,
    ) -> None:
        asked = [name for name in CONSTRAINTS if getattr(config, name) is not None]
        asked += ["order"] if any(callable(stage) for stage in config.order) else []
        if asked:
            raise Unsupported(f"reference: sampler: no statement of {asked[0]}")
        self.config = config
        self.ends = ends
        self.grammar = grammar
        self.random: Xorshift64 = Xorshift64(config.seed or 0)
        self.mu: float = 2.0 * config.mirostat_tau
        self.n_chosen: int = 0
        self.has_dry: bool = config.dry_multiplier != 0 and config.dry_range != 0
        self.breakers: list[tuple[int, ...]] = (
            breaker_sequences(config.dry_sequence_breakers, tokenizer) if self.has_dry else []
        )

    def sample(self, logits: np.ndarray, history: Sequence[int]) -> int:
        """The next token after ``history``, from float32 (vocab,) logits. Raises as `Sampler.sample`."""
        config = self.config
        chance = self.random.uniform() if config.xtc_probability else 0.0
        u = 0.0 if config.is_greedy else self.random.uniform()
        c = self.candidates(logits, history, chance)
        token, logprob = c.draw(u)
        if config.mirostat:
            self.mu -= config.mirostat_eta * (-logprob / LN2 - config.mirostat_tau)
        self.n_chosen += 1
        if self.grammar is not None:
            self.grammar.advance(token)
        return token

    def distribution(self, logits: np.ndarray, history: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that the next one is drawn from, int64 (n,), and their probabilities, float64 (n,).

        XTC always acts. Raises SamplingError like `sample`.
        """
        c = self.candidates(logits, history, 0.0)
        weights = c.weights()
        return c.ids, weights.e.astype(np.float64) / weights.total

    def candidates(self, logits: np.ndarray, history: Sequence[int], chance: float) -> Candidates:
        """The candidates after all stages; XTC acts if ``chance`` is below its probability."""
        config, c = self.config, Candidates(logits)
        self.mask(c)
        for stage in config.order:
            assert isinstance(stage, str)
            if stage == "penalties":
                self.penalize(c, history)
            elif stage == "dry":
                if self.has_dry:
                    penalize(c, history, config, self.breakers)
            elif not (config.mirostat and TABLE[stage].is_cut):
                self.apply(stage, c, chance)
        if config.mirostat:
            (zipf if config.mirostat == 1 else surprise)(c, self.mu)
        return c

    def mask(self, c: Candidates) -> None:
        """Apply biases, banned and allowed tokens, and the grammar.

        Ends of generation are not banned where the grammar allows nothing else.
        """
        config = self.config
        banned, allowed = {*config.banned_tokens}, None if self.grammar is None else self.grammar.allowed()
        goes_on = allowed is None or not self.ends.issuperset(np.flatnonzero(allowed).tolist())
        if goes_on and (config.ignore_eos or self.n_chosen < config.min_tokens):
            banned |= self.ends
        for token, bias in {**config.logit_bias, **dict.fromkeys(banned, -np.inf)}.items():
            c.x[token] = min(c.x[token] + F32(min(bias, LARGEST)), F32(LARGEST))
        if config.allowed_tokens is not None:
            c.only(np.unique(np.array(config.allowed_tokens, np.int64)))
        if allowed is not None:
            c.only(allowed[c.ids])

    def penalize(self, c: Candidates, history: Sequence[int]) -> None:
        """Penalize the tokens of the window: divide positive logits by the repetition penalty, multiply
        others; then subtract count * frequency penalty and the presence penalty."""
        config, window = self.config, self.config.repetition_window
        penalties = config.repetition_penalty, config.frequency_penalty, config.presence_penalty
        if penalties == (1, 0, 0) or window == 0:
            return
        repetition, frequency, presence = (F32(number) for number in penalties)
        counts = Counter(history if window < 0 else history[max(0, len(history) - window) :])
        for i, token in enumerate(c.ids):
            x = c.x[i]
            if x == -np.inf or token not in counts:
                continue
            with np.errstate(over="ignore"):
                x = x / repetition if x > 0 else x * repetition
                x = x - (F32(counts[token]) * frequency + presence)
            c.x[i] = np.clip(x, -F32(LARGEST), F32(LARGEST))
        c.is_ranked = False

    def apply(self, stage: str, c: Candidates, chance: float) -> None:
        """Apply a stage, if it is on."""
        config = self.config
        if stage == "temperature":
            if config.temperature != 1 or config.dynatemp_range:
                temper(c, config)
            return
        if stage == "xtc":
            if config.xtc_probability:
                exclude_top(c, config.xtc_probability, config.xtc_threshold, chance)
            return
        number = getattr(config, stage)
        if number == (1 if stage in ("top_p", "typical_p") else 0):
            return
        if config.is_greedy and stage != "typical_p":  # all other stages keep the highest logit
            return
        STAGES[stage](c, number)


def needed_above(c: Candidates, w: Weights, mass: float) -> float:
    """A logit such that all lower ones together have a probability below 1 - mass."""
    return c.top + log_double((1.0 - mass) * w.total / len(c.x)) - 0.01


def top_p(c: Candidates, mass: float) -> None:
    """Keep the fewest candidates with the highest probabilities whose sum reaches the mass."""
    w = c.weights()
    target = mass * w.total * (1.0 - 1e-6)
    c.keep(c.x, *cut(c.x, w.e, target, max(needed_above(c, w, mass), -LARGEST), len(c.x)))


def typical_p(c: Candidates, mass: float) -> None:
    """Keep the candidates whose surprise is nearest to the entropy, until their sum exceeds the mass."""
    w = c.weights()
    center = c.top + w.moment / w.total
    key = F32(0) - np.abs(c.x - F32(center))
    nearest = center - needed_above(c, w, mass)
    lowest = -max(nearest, c.top - center) - 0.01
    c.keep(key, *cut(key, w.e, mass * w.total * (1.0 + 1e-6), max(lowest, -LARGEST), len(c.x)))


def top_n_sigma(c: Candidates, n: float) -> None:
    """Keep logits within n standard deviations of the highest."""
    d = c.x.astype(np.float64) - c.top
    d = np.where(d > -np.inf, d, 0.0)
    d = np.pad(d, (0, -len(d) % 64)).reshape(-1, 16)
    sums, squares = np.zeros(16), np.zeros(16)
    for step in d:
        sums, squares = sums + step, squares + step * step
    count, total, square = int((c.x > -np.inf).sum()), sums[0], squares[0]
    for j in range(1, 16):
        total, square = total + sums[j], square + squares[j]
    mean = total / count
    deviation = square / count - mean * mean
    c.keep_from(c.top - n * float(np.sqrt(max(deviation, 0.0))))


def eta_cutoff(c: Candidates, epsilon: float) -> None:
    """Keep p >= min(epsilon, sqrt(epsilon) e^-H), where H is the entropy."""
    w = c.weights()
    bound, other = log_double(epsilon), 0.5 * log_double(epsilon) - w.entropy
    c.keep_from(c.top + log_double(w.total) + min(bound, other))


STAGES = {
    "top_k": lambda c, k: c.top_k(int(k)),
    "top_p": top_p,
    "typical_p": typical_p,
    "top_n_sigma": top_n_sigma,
    "min_p": lambda c, share: c.keep_from(c.top + log_double(share)),
    "top_a": lambda c, a: c.keep_from(c.top + log_double(a / c.weights().total)),
    "epsilon_cutoff": lambda c, epsilon: c.keep_from(c.top + log_double(epsilon * c.weights().total)),
    "eta_cutoff": eta_cutoff,
}
"""Cuts by name; each takes the candidates and the option's value."""


def exclude_top(c: Candidates, probability: float, threshold: float, chance: float) -> None:
    """XTC: randomly drop the candidates with p >= threshold except the least likely (last among equals)."""
    if threshold > 0.5 or not chance < probability:
        return
    bound = c.top + log_double(threshold * c.weights().total) if threshold > 0 else -LARGEST
    bound = bound - (abs(bound) + 1.0) * 1.2e-7
    if bound > c.top:
        return
    least = c.x[c.x >= F32(max(bound, -LARGEST))].min()
    last = np.flatnonzero(c.x == least)[-1]
    c.x[(c.x >= least) & (np.arange(len(c.x)) != last)] = -np.inf
    c.is_ranked = False


def temper(c: Candidates, config: SamplerConfig) -> None:
    """(x - top) / temperature; at 0 only the first of the highest candidates is left.

    With a temperature range, the temperature depends on the entropy.
    """
    temperature, spread = config.temperature, config.dynatemp_range
    if spread > 0:
        count = int((c.x > -np.inf).sum())
        if count < 2:
            return
        low, share = max(temperature - spread, 0.0), min(c.weights().entropy / log_double(count), 1.0)
        if config.dynatemp_exponent > 0:
            share = exp_double(config.dynatemp_exponent * log_double(share)) if share > 0 else 0.0
        else:
            share = 1.0
        temperature = low + (temperature + spread - low) * share
    if not temperature > 0.0:
        c.keep(c.x, c.top, 1)
        return
    divisor = max(F32(min(temperature, LARGEST)), F32(1.17549435e-38))
    with np.errstate(over="ignore"):
        c.x = (c.x - F32(c.top)) / divisor


def surprise(c: Candidates, mu: float) -> None:
    """Mirostat 2: keep -log2 p <= mu, or at least the first of the highest."""
    logit = c.top + log_double(c.weights().total) - mu * LN2
    if logit - c.top > 1e-6:
        c.keep(c.x, c.top, 1)
    else:
        c.keep_from(logit)


def zipf(c: Candidates, mu: float) -> None:
    """Mirostat 1: keep as many as a Zipf law, with the slope of the first hundred, needs for surprise mu."""
    order = c.order(c.x)
    highest = c.x[order[c.x[order] > -np.inf][:100]].astype(np.float64).tolist()
    products = squares = 0.0
    for i in range(len(highest) - 1):
        step = log_double((i + 2) / (i + 1))
        products += step * (highest[i] - highest[i + 1])
        squares += step * step
    if len(highest) < 2 or not products < np.inf:
        c.top_k(1)
        return
    slope = products / squares
    excess = slope - 1.0
    power = 1.0 - exp_double(-excess * log_double(float(c.vocab)))
    if -1e-9 < excess < 1e-9 or power == 0.0:
        ln_k = mu * LN2 - log_double(log_double(float(c.vocab)))
    else:
        ln_k = log_double(excess / power) + mu * LN2
    ln_k = ln_k / slope if slope > 0.0 else np.inf if ln_k > 0.0 else -np.inf
    if ln_k < 40.0:
        c.top_k(max(1, int(exp_double(ln_k) * (1.0 + 1e-12))))
