"""JSON schemas with instances: time to compile, masks found for the first time, memory, and wrong verdicts.

Real schemas come from a folder: each file holds a ``schema`` and ``tests``, a list of
``{"data": ..., "valid": true or false}``. Those of Python types and of tools are in `grammar_models`. Every
grammar begins with nothing kept. Its instances are replayed one after another, a mask before each token; an
instance that the engine stops at is refused. Times are of the process: waiting counts for nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.grammar_engines import Engine
from benchmarks.grammar_models import Sample, models, tags, unions
from benchmarks.grammar_texts import Case
from oxillama.apps.bench.report import Metric, Row, align
from oxillama.errors import ConfigError, GrammarError

Tests = list[tuple[list[int], bool]]


@dataclass
class Outcome:
    """What one engine did with a group of schemas.

    Attributes:
        compile: seconds of each compilation, by schema.
        masks: seconds of each mask, by schema.
        bytes: that each grammar took in the end, with what was found of it; none where that is not known.
        failed, accepted, refused: schemas that do not compile, instances with a wrong verdict; and why.
    """

    compile: dict[str, list[float]] = field(default_factory=dict)
    masks: dict[str, list[float]] = field(default_factory=dict)
    bytes: list[int] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    accepted: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schemas", type=Path, metavar="FOLDER", help="real schemas in place of the cases")
    parser.add_argument("--models", action="store_true", help="schemas of Python types and tools, and tags")
    parser.add_argument(
        "--any-order", action="store_true", help="our objects take their properties in any order"
    )
    parser.add_argument("--only", metavar="REGEX", help="of the schemas, those that are so called")
    parser.add_argument("--slow", type=int, default=0, metavar="N", help="list the slowest N of each kind")


def groups(args: argparse.Namespace) -> dict[str, list[Sample]]:
    """What was asked for. ConfigError where a folder has no schemas."""
    found: dict[str, list[Sample]] = {}
    if args.schemas:
        found["real schemas"] = list(of_folder(args.schemas))
        if not found["real schemas"]:
            raise ConfigError(f"--schemas: expected a folder of .json files, got {args.schemas}")
    if args.models:
        found |= {"Python types": models(), "unions of tools": unions(), "tags of tools": tags()}
    if args.only:
        found = {
            group: [sample for sample in samples if re.search(args.only, sample[0])]
            for group, samples in found.items()
        }
    return {group: samples for group, samples in found.items() if samples}


def of_folder(folder: Path) -> Iterator[Sample]:
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        yield path.stem, content["schema"], content["tests"]


def measure(engines: dict[str, Engine], samples: Sequence[Sample], rounds: int) -> dict[str, Outcome]:
    """All engines take turns, schema by schema; each has ``rounds`` turns."""
    outcomes = {name: Outcome() for name in engines}
    for name, schema, tests in samples:
        documents: Tests = []
        for test in tests:
            text = test["text"] if "text" in test else json.dumps(test["data"], ensure_ascii=False)
            tokenizer = next(iter(engines.values())).tokenizer
            documents.append((tokenizer.encode(text, add_special=False), test["valid"]))
        is_tag = "structures" in schema if isinstance(schema, dict) else False
        case = Case(name, "", "", tag=schema) if is_tag else Case(name, "", "", schema)
        for _ in range(rounds):
            for engine_name, engine in engines.items():
                one(engine, case, documents, outcomes[engine_name])
    return outcomes


def one(engine: Engine, case: Case, tests: Tests, out: Outcome) -> None:
    """One schema and its instances."""
    gc.collect()
    start = time.process_time()
    try:
        compiled = engine.compile(case)
    except (GrammarError, ConfigError, ValueError, RuntimeError) as error:
        out.failed[case.name] = str(error)
        return
    out.compile.setdefault(case.name, []).append(time.process_time() - start)
    masks = out.masks.setdefault(case.name, [])
    for i, (tokens, valid) in enumerate(tests):
        try:
            masks += engine.masks(compiled, tokens, time.process_time)
            accepted, reason = True, "the engine takes it"
        except (GrammarError, ConfigError) as error:
            accepted, reason = False, str(error)
        if accepted != valid:
            (out.accepted if accepted else out.refused)[f"{case.name}, instance {i}"] = reason
    held = engine.held(compiled)
    if held is not None:
        out.bytes.append(held)


# --------------------------------------------------------------------------- tables


def shown(title: str, samples: Sequence[Sample], outcomes: dict[str, Outcome], slow: int) -> str:
    """The table of a group, an engine to a column, and what to look at."""
    instances = [test["valid"] for _, _, tests in samples for test in tests]
    lines: list[Sequence[str]] = [
        (f"{title}: {len(samples)}, with {len(instances)} instances, {sum(instances)} valid", *outcomes)
    ]

    def row(name: str, cell: Callable[[Outcome], str]) -> None:
        lines.append((name, *map(cell, outcomes.values())))

    shared = set.intersection(*(set(out.compile) for out in outcomes.values()))
    row("schemas that compile", lambda out: f"{len(out.compile)} ({len(out.compile) / len(samples):.1%})")
    row("instances accepted wrongly", lambda out: str(len(out.accepted)))
    row("instances refused wrongly", lambda out: str(len(out.refused)))
    for which, names in (("", None), (f" of the {len(shared)} that all compile", shared)):
        if names is None or (len(outcomes) > 1 and 0 < len(names) < len(samples)):
            row(f"compile, ms: median{which}", lambda out, n=names: _percentiles(out.compile, n, 1e3, 50))  # type: ignore[misc]
            row("  95th percentile", lambda out, n=names: _percentiles(out.compile, n, 1e3, 95))  # type: ignore[misc]
            row("  worst", lambda out, n=names: _percentiles(out.compile, n, 1e3, 100))  # type: ignore[misc]
            row(f"mask, us: mean{which}", lambda out, n=names: _percentiles(out.masks, n, 1e6, None))  # type: ignore[misc]
            row("  99th percentile", lambda out, n=names: _percentiles(out.masks, n, 1e6, 99))  # type: ignore[misc]
            row("  worst", lambda out, n=names: _percentiles(out.masks, n, 1e6, 100))  # type: ignore[misc]
    row("masks above 1 ms", lambda out: f"{np.mean(_all(out.masks, None) > 1e-3):.2%}")
    row("memory of a grammar, MB: mean", lambda out: f"{np.mean(out.bytes) / 1e6:.2f}" if out.bytes else "")
    return align(lines) + "".join(f"\n{text}" for text in remarks(outcomes, slow))


def _all(times: dict[str, list[float]], names: set[str] | None) -> np.ndarray:
    """The seconds of some schemas; None for all."""
    return np.array([x for name, found in times.items() if names is None or name in names for x in found])


def _percentiles(times: dict[str, list[float]], names: set[str] | None, unit: float, at: float | None) -> str:
    """A percentile, or the mean."""
    found = _all(times, names) * unit
    if not len(found):
        return ""
    value = found.mean() if at is None else np.percentile(found, at)
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def remarks(outcomes: dict[str, Outcome], slow: int) -> Iterator[str]:
    for name, out in outcomes.items():
        for title in ("failed", "accepted", "refused"):
            for what, reason in getattr(out, title).items():
                yield f"{name}, {title}: {what}: {' '.join(reason.split()):.160}"
        slowest = sorted(((max(found), what) for what, found in out.compile.items()), reverse=True)
        yield from (f"{name}, slow to compile: {what}: {s * 1e3:.1f} ms" for s, what in slowest[:slow])
        slowest = sorted(((max(found), what) for what, found in out.masks.items() if found), reverse=True)
        yield from (f"{name}, slow mask: {what}: {s * 1e3:.2f} ms" for s, what in slowest[:slow])


def rows(group: str, outcomes: dict[str, Outcome]) -> list[Row]:
    """For the report: medians of compilations, means of masks."""
    compiled = {
        n: [1e3 * float(np.median(_all(out.compile, None)))] for n, out in outcomes.items() if out.compile
    }
    masks = {n: [1e6 * float(np.mean(_all(out.masks, None)))] for n, out in outcomes.items() if out.masks}
    return [
        Row(group, Metric("compile, median", "ms", higher_is_better=False), compiled),
        Row(group, Metric("mask, mean", "us", higher_is_better=False), masks),
    ]
