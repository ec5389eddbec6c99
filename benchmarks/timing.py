"""Comparing engines fairly: they take turns, and each round gives one ratio.

Engines run A B A B ... in short turns. Whatever else the machine does then hits both alike, and the
ratio within a round, whose median is reported, is far steadier than the ratio of two medians taken
minutes apart. The order never flips: with A B B A an engine would at times find its own weights in the
caches, at times the other's. A pause before each turn lets the other's threads stop spinning.
"""

from __future__ import annotations

import gc
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oxillama.benchmark import Summary
from oxillama.errors import ConfigError

Samples = dict[str, dict[str, list[float]]]
"""Samples by engine, then by metric, in the order of the rounds."""

SETTLE_SECONDS = 0.05
"""Pause before a turn: longer than idle OpenMP threads spin."""


@dataclass(frozen=True)
class Metric:
    """Something measured, its unit, and which way is better."""

    name: str
    unit: str
    higher_is_better: bool


def alternate(
    subjects: Mapping[str, Callable[[], Mapping[str, float]]],
    *,
    rounds: int = 10,
    warmup: int = 1,
    sleep: Callable[[float], None] = time.sleep,
) -> Samples:
    """Let each subject take a turn per round; the results of ``warmup`` rounds are thrown away.

    A subject is called without arguments and returns its samples by metric.
    """
    samples: Samples = {name: {} for name in subjects}
    for round_ in range(warmup + rounds):
        for name, run in subjects.items():
            gc.collect()
            sleep(SETTLE_SECONDS)
            turn = run()
            if round_ >= warmup:
                for metric, value in turn.items():
                    samples[name].setdefault(metric, []).append(value)
    return samples


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


@dataclass(frozen=True)
class CpuTime:
    """Seconds of core time since the machine started: of all cores, the busy part, and this process's."""

    total: float
    busy: float
    own: float

    @classmethod
    def now(cls, stat: Path = Path("/proc/stat")) -> CpuTime | None:
        """The counters now, ended child processes included; None where the system does not tell."""
        if not stat.exists():
            return None
        ticks = [int(word) for word in stat.read_text().split("\n")[0].split()[1:9]]
        second = os.sysconf("SC_CLK_TCK")
        idle = ticks[3] + ticks[4]  # idle and waiting for a disk; time stolen by other guests is busy
        own = sum(os.times()[:4])
        return cls(sum(ticks) / second, (sum(ticks) - idle) / second, own)


def others_share(before: CpuTime | None, after: CpuTime | None) -> float | None:
    """Share of the machine's core time between two moments that went to other processes, 0 to 1."""
    if before is None or after is None or after.total <= before.total:
        return None
    others = (after.busy - before.busy) - (after.own - before.own)
    return min(1.0, max(0.0, others / (after.total - before.total)))


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


def table(results: Sequence[Row]) -> str:
    """Medians with quartiles per engine, and the ratio first/second, as aligned text."""
    if not results:
        return "(no results)"
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
    return align(lines)


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
    """Each measurement found in both reports: medians, their ratio, and whether the quartiles part."""
    before = dict(_by_key(old))
    lines = [["model", "metric", "engine", "before", "now", "now / before", ""]]
    for key, summary in _by_key(new):
        if key not in before:
            continue
        was = before[key]
        change = summary.median / was.median
        better = (change > 1) == key[3]
        apart = summary.low > was.high or summary.high < was.low
        verdict = ("better" if better else "worse") if apart else "within the spread"
        lines.append([*key[:3], spread(was), spread(summary), f"{change:.3f}", verdict])
    return align(lines) if len(lines) > 1 else "(nothing measured in both reports)"


def _by_key(content: Mapping[str, Any]) -> list[tuple[tuple[str, str, str, bool], Summary]]:
    return [
        ((result["model"], result["metric"], engine, result["higher_is_better"]), Summary.of(samples))
        for result in content["results"]
        for engine, samples in result["samples"].items()
    ]
