"""Reference of the sampler: every stage in float64, by its definition, over a whole vocabulary; -inf is out.

``slack`` moves the bounds of a cut a little, so that a test can tell a rounding from a mistake: a positive
one keeps more, a negative one less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from oxillama.config.sampler import CUTS, SamplerConfig

MINUS = -np.inf


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max())
    result: np.ndarray = powers / powers.sum()
    return result


def ranked(x: np.ndarray) -> np.ndarray:
    """Indices from the highest down, the lower first among equals, without -inf."""
    order = np.lexsort((np.arange(len(x)), -x))
    result: np.ndarray = order[x[order] > MINUS]
    return result


def only(x: np.ndarray, kept: np.ndarray) -> np.ndarray:
    out = np.full(len(x), MINUS)
    out[kept] = x[kept]
    return out


def entropy(p: np.ndarray) -> float:
    return float(-np.sum(p[p > 0] * np.log(p[p > 0])))


def penalties(x: np.ndarray, config: SamplerConfig, history: Sequence[int]) -> np.ndarray:
    x = x.copy()
    for token, count in Counter(last(history, config.repetition_window)).items():
        x[token] = (
            x[token] / config.repetition_penalty if x[token] > 0 else x[token] * config.repetition_penalty
        )
        x[token] -= count * config.frequency_penalty + config.presence_penalty
    return x


def last(history: Sequence[int], window: int) -> list[int]:
    tokens = list(history)
    return tokens if window < 0 else tokens[len(tokens) - min(window, len(tokens)) :]


def dry(
    x: np.ndarray, config: SamplerConfig, history: Sequence[int], breakers: Sequence[Sequence[int]] = ()
) -> np.ndarray:
    """By definition and in quadratic time: every earlier place is compared with the end, token by token."""
    tokens = last(history, config.dry_range)
    n, allowed = len(tokens), config.dry_allowed_length
    limit = n
    for end in range(
        n
    ):  # how far from the end a breaker begins: the nearest counts, the longest of those there
        lengths = [len(b) for b in breakers if end + 1 >= len(b) and matches(tokens, n - 1 - end, b)]
        if lengths:
            limit = end - (max(lengths) - 1)
            break
    if n <= allowed or limit < allowed:
        return x
    longest: dict[int, int] = {}
    for place in range(1, n):  # the token at `place` followed what may repeat now
        length = 0
        while length < min(place, limit) and tokens[place - 1 - length] == tokens[n - 1 - length]:
            length += 1
        if length >= allowed:
            longest[tokens[place]] = max(longest.get(tokens[place], 0), length)
    x = x.copy()
    for token, length in longest.items():
        if [token] not in [list(b) for b in breakers]:
            x[token] -= config.dry_multiplier * float(config.dry_base) ** (length - allowed)
    return x


def matches(tokens: Sequence[int], at: int, sequence: Sequence[int]) -> bool:
    return list(tokens[at : at + len(sequence)]) == list(sequence)


def top_n_sigma(x: np.ndarray, n: float, slack: float = 0) -> np.ndarray:
    finite = x[x > MINUS]
    return only(x, x >= min(x.max(), x.max() - n * finite.std() * (1 + slack) - slack))


def top_k(x: np.ndarray, k: int, slack: float = 0) -> np.ndarray:
    return only(x, ranked(x)[:k])


def top_p(x: np.ndarray, mass: float, slack: float = 0) -> np.ndarray:
    order = ranked(x)
    reached = np.cumsum(softmax(x[order])) >= mass * (1 + slack)
    return only(x, order[: int(reached.argmax()) + 1] if reached.any() else order)


def typical_p(x: np.ndarray, mass: float, slack: float = 0) -> np.ndarray:
    order = ranked(x)
    p = softmax(x[order])
    with np.errstate(divide="ignore"):
        distance = np.abs(-np.log(p) - entropy(p))
    nearest = np.argsort(distance, kind="stable")
    exceeded = np.cumsum(p[nearest]) > mass * (1 + slack)
    return only(x, order[nearest[: int(exceeded.argmax()) + 1]] if exceeded.any() else order)


def reaching(x: np.ndarray, bound: float, slack: float) -> np.ndarray:
    """Those with p >= bound, and always the highest."""
    p = softmax(x)
    kept = p >= bound * (1 - slack)
    kept |= x == x.max()
    return only(x, kept & (x > MINUS))


def min_p(x: np.ndarray, share: float, slack: float = 0) -> np.ndarray:
    return reaching(x, share * softmax(x).max(), slack)


def top_a(x: np.ndarray, a: float, slack: float = 0) -> np.ndarray:
    return reaching(x, a * softmax(x).max() ** 2, slack)


def epsilon_cutoff(x: np.ndarray, epsilon: float, slack: float = 0) -> np.ndarray:
    return reaching(x, epsilon, slack)


def eta_cutoff(x: np.ndarray, eta: float, slack: float = 0) -> np.ndarray:
    return reaching(x, min(eta, np.sqrt(eta) * np.exp(-entropy(softmax(x)))), slack)


def xtc(x: np.ndarray, threshold: float, slack: float = 0) -> np.ndarray:
    """When chance has it."""
    p = softmax(x)
    probable = [i for i in ranked(x) if p[i] >= threshold * (1 - slack)]
    out = x.copy()
    if threshold <= 0.5 and len(probable) > 1:
        out[probable[:-1]] = MINUS
    return out


def temperature(x: np.ndarray, config: SamplerConfig) -> np.ndarray:
    t = config.temperature
    if config.dynatemp_range > 0:
        n = np.count_nonzero(x > MINUS)
        if n < 2:
            return x
        low, high = max(0.0, t - config.dynatemp_range), t + config.dynatemp_range
        share = min(1.0, entropy(softmax(x)) / np.log(n))
        t = low + (high - low) * share**config.dynatemp_exponent
    if t == 0:
        return only(x, ranked(x)[:1])
    return (x - x.max()) / t


def mirostat(x: np.ndarray, version: int, mu: float, slack: float = 0) -> np.ndarray:
    order = ranked(x)
    p = softmax(x[order])
    if version == 2:
        kept = order[p >= 2 ** -(mu + slack)]
        return only(x, kept if len(kept) else order[:1])
    m = min(100, len(p))
    if m < 2:
        return x
    t = np.log((np.arange(m - 1) + 2) / (np.arange(m - 1) + 1))
    b = x[order[: m - 1]] - x[order[1:m]]
    s = (t * b).sum() / (t * t).sum()
    if s == 0:  # the limit
        return x if 2**mu > len(x) - 1 else only(x, order[:1])
    e = s - 1
    k = (e * 2**mu / (1 - float(len(x)) ** -e)) ** (1 / s)
    return only(x, order[: max(1, int(min(k * (1 + slack), len(x))))])


def processed(
    logits: np.ndarray,
    config: SamplerConfig,
    history: Sequence[int] = (),
    *,
    breakers: Sequence[Sequence[int]] = (),
    chance: bool = True,
    mu: float | None = None,
    slack: float = 0,
) -> np.ndarray:
    """Logits after every stage, -inf for what is out. ``chance`` says whether XTC acts."""
    x = logits.astype(np.float64)
    for token, bias in config.logit_bias.items():
        x[token] += bias
    x[list(config.banned_tokens)] = MINUS
    if config.allowed_tokens is not None:
        x = only(x, np.array(config.allowed_tokens))
    cuts = {
        "top_n_sigma": top_n_sigma,
        "top_k": top_k,
        "typical_p": typical_p,
        "top_p": top_p,
        "min_p": min_p,
        "top_a": top_a,
        "epsilon_cutoff": epsilon_cutoff,
        "eta_cutoff": eta_cutoff,
    }
    for stage in config.order:
        assert isinstance(stage, str)
        if config.mirostat and stage in CUTS:
            continue
        if stage == "penalties":
            x = penalties(x, config, history)
        elif stage == "dry":
            x = dry(x, config, history, breakers) if config.dry_multiplier else x
        elif stage == "xtc":
            x = xtc(x, config.xtc_threshold, slack) if config.xtc_probability and chance else x
        elif stage == "temperature":
            x = temperature(x, config)
        elif getattr(config, stage) != (1 if stage in ("top_p", "typical_p") else 0):
            x = cuts[stage](x, getattr(config, stage), slack)
    if config.mirostat:
        x = mirostat(x, config.mirostat, 2 * config.mirostat_tau if mu is None else mu, slack)
    return x


def distribution(
    logits: np.ndarray, config: SamplerConfig, history: Sequence[int] = (), **others: object
) -> np.ndarray:
    """Probability of every token after every stage."""
    return softmax(processed(logits, config, history, **others))  # type: ignore[arg-type]
