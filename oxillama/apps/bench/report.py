"""Measurements as rows, and tables, JSON reports and comparisons of rows.

A row is one metric of one model: the samples of each engine, round by round. Rows are reported as medians and
quartiles: on a shared machine outliers dominate a mean, and a single number hides the spread. With two
engines, ratios are taken within each round.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.base.atomic_file import replaced_file
from oxillama.errors import ConfigError

Samples = dict[str, dict[str, list[float]]]
"""Samples by engine and metric, in the order of the rounds."""


@dataclass(frozen=True)
class Summary:
    """Median, quartiles, minimum, maximum and number of samples, in the samples' unit."""

    median: float
    low: float
    high: float
    min: float
    max: float
    n: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        """Summarize at least one sample; ``low`` and ``high`` are quartiles, linearly interpolated."""
        if not samples:
            raise ValueError("samples: expected at least one, got none")
        low, median, high = np.percentile(samples, (25, 50, 75))
        return cls(float(median), float(low), float(high), min(samples), max(samples), len(samples))


@dataclass(frozen=True)
class Metric:
    """A measured quantity, its unit, and whether a higher value is better."""

    name: str
    unit: str
    higher_is_better: bool


def round_ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """a / b for each round."""
    return [x / y for x, y in zip(a, b, strict=True)]


@dataclass(frozen=True)
class Row:
    """A metric of one model: the samples of each engine in order; ratios are first engine / second."""

    model: str
    metric: Metric
    samples: dict[str, list[float]]

    @property
    def ratio(self) -> Summary | None:
        """First engine / second, round by round; None for one engine, or if the second has zeros."""
        if len(self.samples) < 2:
            return None
        first, second, *_ = self.samples.values()
        if not all(second):  # zero where no request finished in time
            return None
        return Summary.of(round_ratios(first, second))


def rows(model: str, samples: Samples, metrics: Sequence[Metric]) -> list[Row]:
    """A row for each metric that every engine has samples of."""
    return [
        Row(model, metric, {engine: by_metric[metric.name] for engine, by_metric in samples.items()})
        for metric in metrics
        if all(metric.name in by_metric for by_metric in samples.values())
    ]


def spread(summary: Summary, digits: int = 3) -> str:
    """A summary as "median [quartile - quartile]" to ``digits`` significant digits."""
    median, low, high = (_significant(value, digits) for value in (summary.median, summary.low, summary.high))
    return f"{median} [{low} - {high}]"


def _significant(value: float, digits: int) -> str:
    """Plain decimal notation; digits before the point are always kept: 1234.5 to 3 digits is 1234."""
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, decimals)}f}"


def table(results: Sequence[Row]) -> str:
    """Medians with quartiles of each engine, and the ratio first / second, as aligned text.

    Rows with other engines than the row before begin a new table.
    """
    if not results:
        return "(no results)"
    groups = [list(group) for _, group in groupby(results, key=lambda row: list(row.samples))]
    return "\n\n".join(align(_lines(group)) for group in groups)


def _lines(results: Sequence[Row]) -> list[list[str]]:
    engines = list(results[0].samples)
    head = ["model", "metric", *engines]
    if len(engines) > 1:
        head.append(f"{engines[0]} / {engines[1]}")
    lines = [head]
    for row in results:
        arrow = "higher is better" if row.metric.higher_is_better else "lower is better"
        line = [row.model, f"{row.metric.name}, {row.metric.unit} ({arrow})"]
        line += [spread(Summary.of(row.samples[engine])) for engine in engines]
        if len(engines) > 1:
            line.append("" if row.ratio is None else f"{spread(row.ratio)} x")
        lines.append(line)
    return lines


def align(lines: Sequence[Sequence[str]]) -> str:
    """Text columns padded to their widest cell, with a rule below the first line."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in text)


def report(
    command: str, options: Mapping[str, Any], machine: Mapping[str, Any], results: Sequence[Row]
) -> dict[str, Any]:
    """All data of a run, for JSON: command, options, machine, every sample, summaries, ratios."""
    return {
        "command": command,
        "options": dict(options),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": dict(machine),
        "results": [
            {
                "model": row.model,
                "metric": row.metric.name,
                "unit": row.metric.unit,
                "higher_is_better": row.metric.higher_is_better,
                "samples": row.samples,
                "summary": {engine: asdict(Summary.of(values)) for engine, values in row.samples.items()},
                "ratio": asdict(row.ratio) if row.ratio is not None else None,
            }
            for row in results
        ],
    }


def write_report(path: Path, content: Mapping[str, Any]) -> None:
    """Write a `report` as indented JSON. A file is replaced atomically; a device is written to.

    Raises ModelFileError if the path cannot be written.
    """
    text = json.dumps(content, indent=1) + "\n"
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_text(text, encoding="utf-8")
        return
    with replaced_file(path) as file:
        file.write(text.encode())


def read_report(path: Path, command: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Read a report that `write_report` wrote for the same command and options.

    Raises ConfigError for any other file: speeds under other conditions are not comparable.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _by_key(content)
        was = {name: content["options"].get(name) for name in options}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: expected a report of an earlier run, got {error}") from error
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path}: expected a report of an earlier run, got other JSON") from error
    if content.get("command") != command or was != dict(options):
        found = f"{content.get('command')} with {was}"
        raise ConfigError(f"{path}: expected a report of {command} with {dict(options)}, got {found}")
    return content


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """A table of the measurements in both reports: medians, their ratio now / before, and a verdict.

    The verdict is BETTER or WORSE if the quartile ranges do not overlap. Measurements in only one report are
    counted below the table.
    """
    before, now = dict(_by_key(old)), dict(_by_key(new))
    lines = [["model", "metric", "engine", "before", "now", "now / before", ""]]
    for key, summary in now.items():
        if key not in before:
            continue
        was = before[key]
        change = summary.median / was.median
        better = (change > 1) == key[3]
        apart = summary.low > was.high or summary.high < was.low
        verdict = ("BETTER" if better else "WORSE") if apart else "within the spread"
        lines.append([*key[:3], spread(was), spread(summary), f"{change:.3f}", verdict])
    text = align(lines) if len(lines) > 1 else "(nothing measured in both reports)"
    alone = [len(before.keys() - now.keys()), len(now.keys() - before.keys())]
    return text + (f"\nmeasured before only: {alone[0]}; now only: {alone[1]}" if any(alone) else "")


def _by_key(content: Mapping[str, Any]) -> list[tuple[tuple[str, str, str, bool], Summary]]:
    return [
        ((result["model"], result["metric"], engine, result["higher_is_better"]), Summary.of(samples))
        for result in content["results"]
        for engine, samples in result["samples"].items()
    ]
