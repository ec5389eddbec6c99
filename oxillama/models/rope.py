"""Rotary embedding: from metadata to radians per position, to the same bits on every machine.

Su et al., RoFormer (2021). Scalings: linear (Chen et al., 2023), NTK-aware ("ntk", and "dynamic" with the
context of the engine), YaRN (Peng et al., 2023), LongRoPE's factors (Ding et al., 2024), Llama
3's frequency factors. Metadata keys follow llama.cpp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext

import numpy as np

from oxillama.models.metadata import Reader

MAGNITUDES = 1e-3, 1e3
"""Of cosines and sines: rotated keys are stored as half floats."""

MAX_ANGLE = 1e6
"""Radians to which the kernels' sines are exact: a pair of 1 radian per position at the longest context."""

KINDS = ("none", "linear", "yarn", "longrope", "ntk", "dynamic")


@dataclass(frozen=True, repr=False)
class Rope:
    """One rotation.

    Attributes:
        n_rot: dimensions that rotate, even.
        neox: pairs are (i, i + n_rot/2), else (2i, 2i+1).
        base: theta of the slowest pair.
        kind: of scaling, one of `KINDS`.
        factor: divisor of positions ("ntk" and "dynamic": the base grows instead).
        original_context: tokens of the training context before any extension.
        magnitude: of cosines and sines.
        mix: share of YaRN, 1 or 0 unless the file states one.
        beta_fast, beta_slow: YaRN keeps pairs of more than ``beta_fast`` rotations in the original context,
            and divides frequencies of fewer than ``beta_slow`` rotations by ``factor``.
        truncate: the ramp between them begins and ends at whole pairs.
        sections: pairs that rotate with time, height, width, and not at all; () for all with time.
        still: pairs that do not rotate.
    """

    n_rot: int
    neox: bool
    base: float
    kind: str = "none"
    factor: float = 1.0
    original_context: int = 0
    magnitude: float = 1.0
    mix: float = 0.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    sections: tuple[int, ...] = ()
    still: tuple[int, ...] = ()

    def frequencies(self, context: int = 0, factors: np.ndarray | None = None) -> np.ndarray:
        """float64 (n_rot / 2,): radians per position of each pair.

        Args:
            context: tokens the engine runs with, for "dynamic".
            factors: float32 (n_rot / 2,), divisors of the frequencies, or None.
        """
        found = rope_powers(self.n_rot, self._base(context))
        if factors is not None:
            found = found / factors.astype(np.float64)
        if self.kind not in ("none", "ntk", "dynamic"):
            ramp = self.mix * self._ramp() if self.mix else np.zeros(len(found))
            found = found * (1.0 / self.factor * (1 - ramp) + ramp)
        if sum(self.sections):
            still = np.arange(len(found)) % sum(self.sections) >= sum(self.sections[:3])
            found = np.where(still, 0.0, found)
        found[list(self.still)] = 0.0
        return found

    def _base(self, context: int) -> float:
        """The base, times s^(n / (n - 2)) for NTK-aware scaling by s."""
        stretch = self.factor if self.kind == "ntk" else 1.0
        if self.kind == "dynamic" and context > self.original_context:
            stretch = self.factor * context / self.original_context - (self.factor - 1)
        return grown_base(self.base, stretch, self.n_rot)

    def _ramp(self) -> np.ndarray:
        """float64 (n_rot / 2,): 1 for pairs whose frequency YaRN keeps, 0 for those that it divides."""
        low, high = self._pair(self.beta_fast), self._pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(0, low), min(self.n_rot - 1, high)
        i = np.arange(self.n_rot // 2, dtype=np.float64)
        return 1 - np.clip((i - low) / max(0.001, high - low), 0, 1)

    def _pair(self, rotations: float) -> float:
        """The (fractional) index of the pair with so many rotations in the original context."""
        with localcontext(prec=30):
            turns = Decimal(self.original_context) / (Decimal(rotations) * 2 * PI)
            return float(self.n_rot * turns.ln() / (2 * Decimal(self.base).ln()))


PI = Decimal("3.14159265358979323846264338327950288")


def grown_base(base: float, stretch: float, n_rot: int) -> float:
    """base * stretch^(n / (n - 2)), the base of NTK-aware scaling; the same bits on every machine."""
    if stretch == 1 or n_rot <= 2:
        return base
    with localcontext(prec=30):
        return float(Decimal(base) * (Decimal(stretch).ln() * n_rot / (n_rot - 2)).exp())


def rope_powers(n_rot: int, base: float) -> np.ndarray:
    """float64 (n_rot / 2,): base^(-2i / n_rot), in decimal arithmetic: the same bits on every machine."""
    with localcontext(prec=30):
        log = Decimal(base).ln()
        powers = [float((log * (-2 * i) / n_rot).exp()) for i in range(n_rot // 2)]
    return np.array(powers, np.float64)


def log_of(x: float) -> float:
    """ln x, correctly rounded: the same bits on every machine."""
    return float(Decimal(x).ln())


def refuse_base_1(read: Reader, key: str, base: float) -> None:
    """Raises LoadError for a base whose pairs all turn alike, between which YaRN has no ramp."""
    read.expect(base != 1, key, "another base than 1 for YaRN", 1)


def read_rope(read: Reader, neox: bool, n_rot: int, context_length: int) -> Rope:
    """The rotation that a file states. Raises LoadError for an unknown scaling or an impossible number."""
    kind = read.text("rope.scaling.type", "linear")
    read.expect(kind in KINDS, "rope.scaling.type", f"one of {', '.join(KINDS)}", repr(kind))
    factor = read.amount("rope.scaling.factor", read.amount("rope.scale_linear")) or 1.0
    alpha = read.amount("rope.scaling.alpha")
    base = read.number("rope.freq_base", 10000.0)
    if alpha > 1 and kind in ("linear", "none") and factor == 1:  # NTK-aware under another name
        kind, factor = "ntk", alpha
    magnitude = read.number("rope.scaling.attn_factor", 1.0)
    mix = 0.0 if kind == "none" else read.amount("rope.scaling.yarn_ext_factor", float(kind == "yarn"))
    if mix:
        refuse_base_1(read, "rope.freq_base", base)
        m = read.factor("rope.scaling.yarn_log_multiplier", 0.0)
        gain = 1 + 0.1 * log_of(max(1.0, factor))
        magnitude *= gain / (1 + 0.1 * m * log_of(max(1.0, factor)))
    else:
        magnitude *= read.number("rope.scaling.yarn_attn_factor", 1.0)
    least, most = MAGNITUDES
    factors = "rope.scaling.attn_factor, yarn_attn_factor and yarn_log_multiplier"
    read.expect(least <= magnitude <= most, factors, f"a magnitude from {least:g} to {most:g}", magnitude)
    return Rope(
        n_rot=n_rot,
        neox=neox,
        base=base,
        kind=kind,
        factor=1.0 if kind == "none" else factor,
        original_context=read.size("rope.scaling.original_context_length", context_length, least=0)
        or context_length,
        magnitude=magnitude,
        mix=mix,
        beta_fast=read.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=read.number("rope.scaling.yarn_beta_slow", 1.0),
        truncate=read.flag("rope.scaling.yarn_truncate", True),
    )
