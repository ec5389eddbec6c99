"""Rotations of a file: each pair's frequency in radians per position, and cosines' and sines' magnitude."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext

import numpy as np

from oxillama.reference.rows import frequencies, rotate, rotation_table
from oxillama.reference.source import Source, Unsupported

LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
PI = Decimal("3.14159265358979323846264338327950288")


@dataclass(frozen=True)
class Rotation:
    """Frequencies, float64 (pairs,) radians per position, and the magnitude."""

    turns: np.ndarray
    magnitude: float
    neox: bool

    def apply(self, *heads: np.ndarray) -> list[np.ndarray]:
        """Heads (n, heads, dim) at positions 0 to n - 1, rotated."""
        table = rotation_table(np.arange(len(heads[0])), self.turns, self.magnitude)
        return [rotate(x, table, self.neox) for x in heads]


def read_rotations(source: Source, key_dim: int, context: int | None = None) -> list[Rotation]:
    """The rotations of layers without a window and of layers with a window; [] if nothing rotates.

    Scalings: linear (positions are divided), YaRN, NTK-aware (the base grows; also ``rope.scaling.alpha``),
    dynamic NTK and LongRoPE. The last two depend on the context size of the run; None: the file's.
    """
    facts = source.facts
    kind, factor = source.key("rope.scaling.type", "linear"), source.key("rope.scaling.factor", 0.0) or 1.0
    alpha = source.key("rope.scaling.alpha", 0.0)
    n_rot, base = source.key("rope.dimension_count", key_dim), source.key("rope.freq_base", 10000.0)
    local = source.key("rope.freq_base_swa", facts.local_base or base)
    if kind not in ("none", "linear", "yarn", "longrope", "ntk", "dynamic"):
        raise Unsupported(f"reference: {source.name}.rope.scaling.type: no statement of {kind!r}")
    if facts.rope == "none":
        return []
    magnitude = source.key("rope.scaling.attn_factor", 1.0)
    original = source.key("rope.scaling.original_context_length", 0) or source.key("context_length")
    run = context or source.key("context_length")
    growth = factor if kind == "ntk" else 1.0
    if kind == "dynamic" and run > original:
        growth = factor * run / original - (factor - 1)
    elif (facts.any_alpha and alpha) or (alpha > 1 and factor == 1 and kind in ("none", "linear")):
        growth = alpha
    yarn, gain = None, 1.0
    if kind == "yarn":
        yarn = Yarn(
            factor,
            original,
            source.key("rope.scaling.yarn_beta_fast", facts.beta_fast),
            source.key("rope.scaling.yarn_beta_slow", 1.0),
            source.key("rope.scaling.yarn_truncate", True),
        )
        in_scores = facts.gain_on_scores and source.key(LOG_MULTIPLIER, 0.0)
        lessened = 1 + 0.1 * source.key(LOG_MULTIPLIER, 0.0) * float(Decimal(max(1.0, factor)).ln())
        gain = 1.0 if in_scores else yarn.gain() / lessened
    sections = [int(n) for n in source.key("rope.dimension_sections", ())]
    in_order = facts.sections == "always" or (facts.sections == "two" and min((*sections[:2], 0, 0)[:2]) > 0)
    in_order = in_order and sum(sections) > 0
    factors = source.optional("rope_freqs.weight")
    if facts.longrope or kind == "longrope":
        short, long = (source.optional(f"rope_factors_{length}.weight") for length in ("short", "long"))
        by_length = long if run > original else short
        factors = by_length if factors is None else factors
    if facts.compressed:
        local = source.key("attention.compress_rope_freq_base")
    if facts.fixed_base:
        return [Rotation(frequencies(key_dim, facts.fixed_base), 1.0, True)] * 2
    found = []
    whole = n_rot // 4 * 2 if facts.half_turned else n_rot
    sizes = whole, source.key("rope.dimension_count_swa", n_rot)
    for i, (theta, n_rot) in enumerate(zip((base, local), sizes)):
        # windowed layers with their own base have no scaling
        plain = bool(i and (facts.local_base or facts.plain_windows))
        plain = i == 0 if facts.compressed else plain
        if growth != 1 and not plain:
            theta = stretched(theta, growth, n_rot)
        turns = frequencies(n_rot, theta)
        if factors is not None and not (i and facts.plain_windows):
            turns = turns / factors.astype(np.float64)[: len(turns)]
        size = 1.0 if i and facts.plain_windows else magnitude
        if yarn is not None and not plain:
            ramp = yarn.ramp(n_rot, theta)
            turns, size = turns * (1.0 / factor * (1 - ramp) + ramp), magnitude * gain
        elif kind in ("linear", "longrope") and not plain:
            turns = turns * (1.0 / factor)
        if facts.interleaved:
            turns[still_pairs(sections, len(turns))] = 0.0
        elif in_order:
            turns = np.where(np.arange(len(turns)) % sum(sections) < sum(sections[:3]), turns, 0.0)
        size = 1.0 if facts.compressed else size
        found.append(Rotation(turns, size, facts.rope == "neox" or in_order))
    return found


def still_pairs(sections: Sequence[int], pairs: int) -> list[int]:
    """The pairs that do not rotate: time, height and width take pairs in turn, the rest are still."""
    t, h, w, rest = (*(int(n) for n in sections), 0, 0, 0, 0)[:4]
    total = t + h + w + rest
    if not total:
        return []
    at = [i % total for i in range(pairs)]
    limits = 3 * t, 3 * h, 3 * w
    return [pair for pair, i in enumerate(at) if not i < limits[i % 3]]


def stretched(base: float, factor: float, n_rot: int) -> float:
    """base * factor^(n / (n - 2))."""
    if n_rot <= 2:
        return base
    with localcontext() as context:
        context.prec = 30
        return float(Decimal(base) * (Decimal(factor).ln() * n_rot / (n_rot - 2)).exp())


@dataclass(frozen=True)
class Yarn:
    """YaRN (Peng et al., 2023): high frequencies are kept, low ones divided, with a ramp between."""

    factor: float
    context: int
    beta_fast: float
    beta_slow: float
    truncate: bool

    def gain(self) -> float:
        """1 + 0.1 ln(factor), by which the magnitude is multiplied."""
        return 1 + 0.1 * float(Decimal(max(1.0, self.factor)).ln())

    def ramp(self, n_rot: int, base: float) -> np.ndarray:
        """float64 (pairs,): 1 where a frequency is kept, 0 where it is divided."""
        low, high = (self.pair(beta, n_rot, base) for beta in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(0, low), min(n_rot - 1, high)
        i = np.arange(n_rot // 2, dtype=np.float64)
        return 1 - np.clip((i - low) / max(0.001, high - low), 0, 1)

    def pair(self, rotations: float, n_rot: int, base: float) -> float:
        """The fractional index of the pair with this number of rotations in the original context."""
        with localcontext() as context:
            context.prec = 30
            turns = Decimal(self.context) / (Decimal(rotations) * 2 * PI)
            return float(n_rot * turns.ln() / (2 * Decimal(base).ln()))
