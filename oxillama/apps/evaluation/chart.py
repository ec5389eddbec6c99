"""The chart of a comparison as SVG: the divergence over the share of the tokens."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

import numpy as np

from oxillama.apps.evaluation.comparison import Comparison

WIDTH, HEIGHT = 560, 360  # in pixels
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 50  # margins
LOWEST = 1e-9
"""Smaller divergences are drawn at this value, because the axis is logarithmic."""
POINTS = 200


def chart(comparison: Comparison, title: str) -> str:
    """SVG text of quantiles: the divergence (logarithmic axis) over the share of tokens with at most it."""
    shares = np.linspace(0, 1, POINTS + 1)
    values = np.maximum(np.quantile(comparison.divergences, shares), LOWEST)
    low, high = math.floor(math.log10(values[0])), math.ceil(math.log10(values[-1]))
    high = max(high, low + 1)

    def x(share: float) -> float:
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    points = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in zip(shares.tolist(), values.tolist()))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>',
    ]
    for exponent in range(low, high + 1):
        at = y(10.0**exponent)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">1e{exponent}</text>')
    for percent in (0, 25, 50, 75, 100):
        at = x(percent / 100)
        parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{percent}%</text>')
    parts.append(f'<polyline points="{points}" fill="none" stroke="#0b62a4" stroke-width="2"/>')
    note = (
        f"KL in nats over share of {comparison.divergences.size} tokens; top-1 {comparison.agrees.mean():.2%}"
    )
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 12}">{escape(note)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
