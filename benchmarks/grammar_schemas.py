"""Real JSON schemas: time to compile, masks found for the first time, memory, and wrong verdicts.

Each file of the folder holds a ``schema`` and ``tests``, a list of ``{"data": ..., "valid": true or false}``.
Every grammar begins with nothing kept. Its instances are replayed one after another, a mask before each
token; an instance that the engine stops at is refused. Times are of the process: waiting counts for nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.grammar_engines import Engine
from benchmarks.grammar_texts import Case
from oxillama.bench.report import Metric, Row, align
from oxillama.errors import ConfigError, GrammarError

COLUMNS = (
    *("engine", "compiled", "compile, ms: median", "p95", "worst", "masks", "mask, us: mean", "p99", "worst"),
    *("over 1 ms", "MB: mean", "accepted wrongly", "refused wrongly"),
)
Tests = list[tuple[list[int], bool]]


@dataclass
class Outcome:
    """What one engine did: seconds of compilations and masks, bytes, and schemas to look at."""

    compile: list[float] = field(default_factory=list)
    masks: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    slow: list[tuple[float, str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schemas", type=Path, metavar="FOLDER", help="real schemas in place of the cases")
    parser.add_argument("--only", metavar="REGEX", help="of the schemas, those whose file is so called")
    parser.add_argument("--slow", type=int, default=0, metavar="N", help="list the slowest N of each kind")


def schemas(folder: Path, only: str | None) -> list[tuple[str, Any, list[dict[str, Any]]]]:
    """(name, schema, tests) of each file; ConfigError where there is none."""
    found = []
    for path in sorted(folder.glob("*.json")):
        if only is None or re.search(only, path.stem):
            content = json.loads(path.read_text())
            found.append((path.stem, content["schema"], content["tests"]))
    if not found:
        raise ConfigError(f"--schemas: expected a folder of .json files, got {folder}")
    return found


def measure(engines: dict[str, Engine], args: argparse.Namespace) -> dict[str, Outcome]:
    """All engines take turns, schema by schema."""
    outcomes = {name: Outcome() for name in engines}
    for name, schema, tests in schemas(args.schemas, args.only):
        for engine_name, engine in engines.items():
            documents: Tests = []
            for test in tests:
                text = json.dumps(test["data"], ensure_ascii=False)
                documents.append((engine.tokenizer.encode(text, add_special=False), test["valid"]))
            one(engine, Case(name, "", "", schema), documents, outcomes[engine_name])
    return outcomes


def one(engine: Engine, case: Case, tests: Tests, out: Outcome) -> None:
    """One schema and its instances."""
    gc.collect()
    start = time.process_time()
    try:
        compiled = engine.compile(case)
    except (GrammarError, ConfigError, ValueError) as error:
        out.failed.append(f"{case.name}: {error}")
        return
    spent = time.process_time() - start
    out.compile.append(spent)
    worst = 0.0
    for i, (tokens, valid) in enumerate(tests):
        try:
            for seconds in engine.masks(compiled, tokens, time.process_time):
                out.masks.append(seconds)
                worst = max(worst, seconds)
            accepted = True
        except (GrammarError, ConfigError) as error:
            accepted, reason = False, str(error)
        if accepted and not valid:
            out.accepted.append(f"{case.name}: instance {i}")
        if valid and not accepted:
            out.refused.append(f"{case.name}: instance {i}: {reason}")
    out.bytes.append(engine.held(compiled))
    out.slow.append((spent, f"{case.name}: {spent * 1e3:.1f} ms, worst mask {worst * 1e3:.2f} ms"))


def shown(outcomes: dict[str, Outcome], slow: int) -> str:
    """The table, and what to look at."""
    lines: list[Sequence[str]] = [COLUMNS]
    for name, out in outcomes.items():
        compiled, masks = np.array(out.compile) * 1e3, np.array(out.masks) * 1e6
        lines.append(
            [
                name,
                f"{len(compiled)} of {len(compiled) + len(out.failed)}",
                *(f"{np.percentile(compiled, p):.2f}" for p in (50, 95, 100)),
                str(len(masks)),
                f"{masks.mean():.1f}",
                *(f"{np.percentile(masks, p):.0f}" for p in (99, 100)),
                f"{(masks > 1000).mean():.2%}",
                f"{np.mean(out.bytes) / 1e6:.2f}" if any(out.bytes) else "",
                str(len(out.accepted)),
                str(len(out.refused)),
            ]
        )
    return align(lines) + "".join(f"\n{text}" for text in remarks(outcomes, slow))


def remarks(outcomes: dict[str, Outcome], slow: int) -> Iterator[str]:
    for name, out in outcomes.items():
        for title in ("failed", "accepted", "refused"):
            yield from (f"{name}, {title}: {text:.200}" for text in getattr(out, title))
        yield from (f"{name}, slow: {text}" for _, text in sorted(out.slow, reverse=True)[:slow])


def rows(outcomes: dict[str, Outcome]) -> list[Row]:
    """For the report: medians of compilations, means of masks."""
    compiled = {name: [1e3 * float(np.median(out.compile))] for name, out in outcomes.items()}
    masks = {name: [1e6 * float(np.mean(out.masks))] for name, out in outcomes.items()}
    return [
        Row("schemas", Metric("compile, median", "ms", higher_is_better=False), compiled),
        Row("schemas", Metric("mask, mean", "us", higher_is_better=False), masks),
    ]
