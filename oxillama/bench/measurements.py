"""Measurements as rows, and all that is done with rows: one table, one report in JSON, one comparison.

A row is one metric of one subject: the samples of each engine, round by round. From these come medians,
quartiles and, where there are two engines, the ratio within each round.
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

from oxillama.bench.benchmark import Summary
from oxillama.errors import ConfigError

Samples = dict[str, dict[str, list[float]]]
"""Samples by engine, then by metric, in the order of the rounds."""


@dataclass(frozen=True)
class Metric:
    """Something measured, its unit, and which way is better."""

    name: str
    unit: str
    higher_is_better: bool


def round_ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """a / b of each round."""
    return [x / y for x, y in zip(a, b, strict=True)]


@dataclass(frozen=True)
class Row:
    """One metric of one model: each engine's samples in order; the first engine is the one compared."""

    model: str
    metric: Metric
    samples: dict[str, list[float]]

    @property
    def ratio(self) -> Summary | None:
        """First engine over second, summarized over the rounds; None when there is one engine only."""
        if len(self.samples) < 2:
            return None
        first, second, *_ = self.samples.values()
        return Summary.of(round_ratios(first, second))


def rows(model: str, samples: Samples, metrics: Sequence[Metric]) -> list[Row]:
    """One row for each metric that every engine gave samples of."""
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
    """Plain notation: 1234.5 to 3 digits is 1234 (digits before the point are all kept)."""
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, decimals)}f}"


def machine_text(machine: Mapping[str, Any]) -> str:
    """What `oxillama.bench.benchmark.describe_machine` found, in two lines."""
    memory = machine["memory_bytes"]
    parts = [f"{machine['cpu']}, {machine['available_cores']} of {machine['cores']} cores"]
    parts += [f"{memory / 1e9:.1f} GB"] if memory else []
    parts += [machine["kernel"]]
    others = machine.get("others_share")
    parts += [] if others is None else [f"other processes took {others:.0%} of the cores' time"]
    engines = machine.get("engines") or {"oxillama": machine["oxillama"]}
    software = [f"{name} {version}" for name, version in engines.items()]
    software += [f"target {machine['target']}", f"Python {machine['python']} ({machine['compiler']})"]
    return ", ".join(parts) + "\n" + ", ".join(software)


def table(results: Sequence[Row]) -> str:
    """Medians with quartiles per engine, and the ratio first/second, as aligned text.

    Rows of other engines than those of the rows before begin a table of their own.
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
        if row.ratio is not None:
            line.append(spread(row.ratio) + " x")
        lines.append(line)
    return lines


def align(lines: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell, a rule below the first line."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in text)


def report(
    command: str, options: Mapping[str, Any], machine: Mapping[str, Any], results: Sequence[Row]
) -> dict[str, Any]:
    """Everything about a run, for JSON: command, options, machine, every sample, summaries, ratios."""
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
    """Write a `report` as indented JSON."""
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_report(path: Path, command: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Read what `write_report` wrote for the same command and options.

    Raises ConfigError for anything else: numbers of other conditions would be compared in vain.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: expected a report of an earlier run: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("results"), list):
        raise ConfigError(f"{path}: expected a report of an earlier run, found no results in it")
    was = {name: content.get("options", {}).get(name) for name in options}
    if content.get("command") != command or was != dict(options):
        found = f"{content.get('command')} with {was}"
        raise ConfigError(f"{path}: expected a report of {command} with {options}, found {found}")
    return content


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Each measurement found in both reports: medians, now / before, and whether the quartiles part.

    Where they do not, the difference is within the spread. What only one report has is counted below.
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
