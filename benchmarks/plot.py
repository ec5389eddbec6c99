"""Line charts of measurements as SVG, written here; as PNG where matplotlib is installed.

Both axes are logarithmic, because sizes and costs grow by factors. A chart is one quantity: a line per
series, a dot per median, a bar from quartile to quartile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from oxillama.apps.bench.report import Summary
from oxillama.errors import ConfigError

WIDTH, HEIGHT = 460, 320  # size of a chart in pixels
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 46, 46  # its margins
MOST_SIZES = 12  # that are named on an axis; more would cover each other
COLOURS = ("#0b62a4", "#d9822b", "#2e8b57", "#8e44ad", "#b03a2e", "#5d6d7e")


@dataclass(frozen=True)
class Chart:
    """``series`` by name: x (above 0) and the summary of what was measured there."""

    title: str
    x_name: str
    y_name: str
    series: Mapping[str, Sequence[tuple[float, Summary]]]

    @classmethod
    def of(cls, title: str, x_name: str, points: Iterable[tuple[str, float, Sequence[float]]]) -> Chart:
        """A chart of tokens / s, from the line, the x and the samples of each point."""
        series: dict[str, list[tuple[float, Summary]]] = {}
        for name, x, samples in points:
            series.setdefault(name, []).append((x, Summary.of(samples)))
        lines = {name: sorted(line, key=lambda point: point[0]) for name, line in series.items()}
        return cls(title, x_name, "tokens / s", lines)


class Axis:
    """A logarithmic axis from pixel ``start`` to ``end``, a little wider than the values."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = math.log10(min(values)), math.log10(max(values))
        margin = max(0.05, 0.05 * (high - low))
        self.low, self.high, self.start, self.end = low - margin, high + margin, start, end

    def at(self, value: float) -> float:
        """Its pixel."""
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round numbers within the axis: powers of ten, or where these are too few multiples of them."""
        for digits in ((1,), (1, 2, 5), range(1, 10)):
            found = [
                digit * 10.0**power
                for power in range(math.floor(self.low), math.ceil(self.high) + 1)
                for digit in digits
                if self.low <= math.log10(digit) + power <= self.high
            ]
            if len(found) >= 3:
                return found
        return [10 ** (self.low + share * (self.high - self.low)) for share in (0.1, 0.5, 0.9)]


def svg(charts: Sequence[Chart]) -> str:
    """The charts side by side, as a document of its own. Raises ConfigError for a chart without points."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(charts)}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH * len(charts)} {HEIGHT}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for i, chart in enumerate(charts):
        parts += [f'<g transform="translate({i * WIDTH} 0)">', *_chart(chart), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _chart(chart: Chart) -> list[str]:
    points = [point for line in chart.series.values() for point in line]
    if not points:
        raise ConfigError(f"chart {chart.title}: expected at least one point, got none")
    x = Axis([at for at, _ in points], LEFT, WIDTH - RIGHT)
    y = Axis([bound for _, s in points for bound in (s.low, s.high)], HEIGHT - BOTTOM, TOP)
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts = [
        _text(middle, 16, chart.title, size=13),
        _text(middle, HEIGHT - 8, chart.x_name),
        f'<g transform="rotate(-90)">{_text(-HEIGHT / 2, 14, chart.y_name)}</g>',
    ]
    sizes = sorted({at for at, _ in points})
    for value in sizes if len(sizes) <= MOST_SIZES else x.ticks():
        parts += [
            _line(x.at(value), TOP, x.at(value), HEIGHT - BOTTOM),
            _text(x.at(value), HEIGHT - BOTTOM + 15, _number(value)),
        ]
    for value in y.ticks():
        parts += [
            _line(LEFT, y.at(value), WIDTH - RIGHT, y.at(value)),
            _text(LEFT - 6, y.at(value) + 4, _number(value), anchor="end"),
        ]
    for i, (name, line) in enumerate(chart.series.items()):
        name_at = LEFT + i * min(120, (WIDTH - LEFT - RIGHT) // len(chart.series))
        parts += _series(name, line, x, y, COLOURS[i % len(COLOURS)], name_at)
    return parts


def _series(
    name: str, line: Sequence[tuple[float, Summary]], x: Axis, y: Axis, colour: str, name_at: float
) -> list[str]:
    at = [(x.at(value), y.at(s.median)) for value, s in line]
    parts = [
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.8" '
        f'points="{" ".join(f"{px:.1f},{py:.1f}" for px, py in at)}"/>'
    ]
    for (value, s), (px, py) in zip(line, at, strict=True):
        parts.append(_line(x.at(value), y.at(s.low), px, y.at(s.high), colour))
        parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>')
    return [*parts, _text(name_at, TOP - 10, name, anchor="start", colour=colour)]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = "#e3e3e3") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "middle", size: int = 11, colour: str = "#333333"
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"'
    return f"<text {place}>{escape(text)}</text>"


def _number(value: float) -> str:
    for scale, unit in ((1e9, "G"), (1e6, "M")):
        if value >= scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def write(path: Path, charts: Sequence[Chart]) -> None:
    """Write the charts; the ending decides, .svg or .png. Raises ConfigError for what `check` refuses."""
    check(path)
    if path.suffix == ".svg":
        path.write_text(svg(charts), encoding="utf-8")
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(charts), 3.2), layout="constrained")
    for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
        for name, line in chart.series.items():
            medians = [s.median for _, s in line]
            errors = [[s.median - s.low for _, s in line], [s.high - s.median for _, s in line]]
            axes.errorbar([at for at, _ in line], medians, errors, marker="o", label=name)
        axes.set(title=chart.title, xlabel=chart.x_name, ylabel=chart.y_name, xscale="log", yscale="log")
        axes.legend()
    figure.savefig(path, dpi=150)


def check(path: Path) -> None:
    """Raises ConfigError if `write` would fail: another suffix, no such folder, or no matplotlib."""
    if path.suffix not in (".svg", ".png"):
        raise ConfigError(f"--plot: expected a file .svg or .png, got {path}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot: expected a file in an existing folder, got {path}")
    if path.suffix == ".png":
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            message = f"--plot: expected the package matplotlib for {path}, got none; .svg works without it"
            raise ConfigError(message) from error
