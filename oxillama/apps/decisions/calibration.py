"""Calibration: temperatures fitted to labelled examples, in a file.

The method: Guo et al., "On Calibration of Modern Neural Networks" (2017). Each type of question
with enough examples gets the temperature of the least log loss, and so does each bucket of numbers of options
(`rules.bucket`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oxillama.apps.decisions.lines import asked_of
from oxillama.apps.decisions.wire import WireError, need, object_of
from oxillama.base.atomic_file import replaced_file
from oxillama.base.config import checks
from oxillama.base.version import __version__
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.decisions.answers import in_order
from oxillama.engine.features.decisions.deciding import Deciding, DecisionOptions, Read, decide
from oxillama.engine.features.decisions.questions import Question
from oxillama.engine.features.decisions.rules import bucket
from oxillama.errors import ConfigError

FORMAT, VERSION = "oxillama calibration", 1
OF_TYPE, OF_BUCKET = 10, 50
"""Examples that a temperature needs."""

RANGE = (0.05, 20.0)
STEPS = 40
"""Of the search, each of which narrows the range to 0.618 of it."""

BINS = 10
EXPECTED = "expected"
"""The field of a labelled request: the right answers, by id or in order of the questions; null for none."""


@dataclass(frozen=True)
class Example:
    """A question that was read, and the number of its right option."""

    asked: Deciding
    question: Question
    read: Read
    right: int

    def shares(self, t: float) -> list[float]:
        """The probabilities of its options at a temperature."""
        return self.asked.shares(self.question, self.read, t)


@dataclass(frozen=True)
class Calibration:
    """Temperatures of a model.

    Attributes:
        model: hash of the model's file, 64 hexadecimal digits.
        readout, orders: as in `DecisionOptions`.
        temperatures: by type of question, or type and bucket.
        digest: SHA-256 of the file, 64 hexadecimal digits, by which receipts name it.
    """

    model: str
    readout: str | None
    orders: int | None
    temperatures: Mapping[str, float]
    digest: str = ""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """The calibration in a file. Raises ConfigError for another file."""
        try:
            data = Path(path).read_bytes()
            found = json.loads(data)
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"calibration: {os.fspath(path)}: cannot be read: {error}") from None
        if not isinstance(found, dict) or (found.get("format"), found.get("version")) != (FORMAT, VERSION):
            raise ConfigError(f"calibration: expected a file of oxillama calibrate, got {os.fspath(path)}")
        temperatures = checks.instance("calibration: temperatures", found.get("temperatures"), dict)
        for name, value in temperatures.items():
            checks.number(f"calibration: {name}", value, *RANGE)
        model = checks.instance("calibration: model", found.get("model"), str)
        digest = hashlib.sha256(data).hexdigest()
        return cls(model, found.get("readout"), found.get("orders"), temperatures, digest)

    def options(self, engine: InferenceEngine, given: Mapping[str, Any]) -> DecisionOptions:
        """Options with these temperatures. Raises ConfigError for another model, or another readout."""
        own = engine.model.fingerprint.content.hex()
        if own != self.model:
            raise ConfigError(
                f"calibration: expected that of the model {own[:16]}, got that of {self.model[:16]}"
            )
        for name in ("readout", "orders"):
            if given.get(name) not in (None, getattr(self, name)):
                raise ConfigError(
                    f"{name}: expected {getattr(self, name)}, as it was calibrated, got {given[name]}"
                )
        fixed = {"readout": self.readout, "orders": self.orders}
        return DecisionOptions(**{**given, **fixed, "temperatures": self.temperatures})


def examples(engine: InferenceEngine, bodies: Iterable[Any], options: DecisionOptions) -> list[Example]:
    """The labelled questions of requests in either format. Raises WireError, and as `decide`."""
    waiting: list[tuple[Deciding, Sequence[Any]]] = []
    for number, body in enumerate(bodies, 1):
        body = dict(object_of(body, ("line", number)))
        expected = need(body, EXPECTED, ("line", number))
        del body[EXPECTED]
        (started,) = decide(engine.model, [asked_of(engine, body).request], options)
        ids = [question.id for question in started.questions]
        if isinstance(expected, Mapping):
            for id in expected:
                if id not in ids:
                    raise WireError(("line", number, EXPECTED, str(id)), "is no question")
            expected = [expected.get(id) for id in ids]
        if not isinstance(expected, list) or len(expected) != len(ids):
            raise WireError(("line", number, EXPECTED), "must have an answer for each question, or null")
        waiting.append((started, expected))
    found = []
    for number, (started, expected) in enumerate(waiting, 1):
        reads = started.read([reading.result() for reading in started.readings])
        for question, read, right in zip(started.questions, reads, expected):
            if right is not None:
                found.append(Example(started, question, read, place_of(question, right, number)))
    return found


def place_of(question: Question, right: Any, number: int) -> int:
    """The number of the right option. Raises WireError."""
    for i, option in enumerate(question.options):
        if option.value == right and type(option.value) is type(right):
            return i
    raise WireError(("line", number, EXPECTED, question.id), f"is none of the options: {right!r:.100}")


def fitted(found: Sequence[Example], kind: str) -> dict[str, float]:
    """The temperatures of the least log loss, of types and of buckets with enough examples."""
    groups: dict[str, list[Example]] = {}
    for example in found:
        question = example.question
        groups.setdefault(question.type, []).append(example)
        groups.setdefault(f"{question.type}.{bucket(len(question.options), kind)}", []).append(example)
    return {
        name: best_temperature(group)
        for name, group in sorted(groups.items())
        if len(group) >= (OF_BUCKET if "." in name else OF_TYPE)
    }


def best_temperature(group: Sequence[Example]) -> float:
    """The temperature of the least log loss, with four digits; a golden-section search over its logarithm."""
    ratio = (math.sqrt(5) - 1) / 2
    low, high = map(math.log, RANGE)
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    of_a, of_b = log_loss(group, math.exp(a)), log_loss(group, math.exp(b))
    for _ in range(STEPS):
        if of_a <= of_b:
            high, b, of_b = b, a, of_a
            a = high - ratio * (high - low)
            of_a = log_loss(group, math.exp(a))
        else:
            low, a, of_a = a, b, of_b
            b = low + ratio * (high - low)
            of_b = log_loss(group, math.exp(b))
    return min(RANGE[1], max(RANGE[0], float(f"{math.exp((low + high) / 2):.4g}")))


def log_loss(group: Sequence[Example], t: float) -> float:
    """The mean of -ln p of the right options."""
    return in_order([-math.log(max(1e-300, each.shares(t)[each.right])) for each in group]) / len(group)


@dataclass(frozen=True)
class Bin:
    """Answers of about the same probability: how many, its mean, and the share of right ones."""

    n: int
    mean: float
    right: float


def reliability(found: Sequence[Example], temperatures: Mapping[str, float], kind: str) -> list[Bin]:
    """The answers in bins of the probability of the likeliest option, empty bins included."""
    filled: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for each in found:
        own = bucket(len(each.question.options), kind)
        t = temperatures.get(f"{each.question.type}.{own}", temperatures.get(each.question.type, 1.0))
        p = each.shares(t)
        top = max(p)
        filled[min(BINS - 1, int(top * BINS))].append((top, p.index(top) == each.right))
    made = []
    for group in filled:
        n = max(1, len(group))
        made.append(Bin(len(group), sum(p for p, _ in group) / n, sum(right for _, right in group) / n))
    return made


def calibration_error(bins: Sequence[Bin]) -> float:
    """ECE: how far probabilities are from the share of right answers, as the mean over all answers."""
    total = sum(each.n for each in bins)
    return sum(each.n * abs(each.mean - each.right) for each in bins) / total if total else 0.0


def report(before: Sequence[Bin], after: Sequence[Bin]) -> str:
    """A table of both, with a bar for the share of right answers and a mark at the mean probability."""
    lines = ["probability     answers  mean   right            answers  mean   right"]
    for i, (old, new) in enumerate(zip(before, after)):
        if old.n or new.n:
            cells = [f"{each.n:7}  {each.mean:.3f}  {each.right:.3f}  {plotted(each)}" for each in (old, new)]
            lines.append(f"{i / BINS:.1f} to {(i + 1) / BINS:.1f}   " + "  ".join(cells))
    errors = [calibration_error(bins) for bins in (before, after)]
    return "\n".join([*lines, f"ECE {errors[0]:.4f} before, {errors[1]:.4f} after"])


def plotted(each: Bin) -> str:
    """A bar as long as the share of right answers; | is the mean probability."""
    line = list(("#" * round(10 * each.right)).ljust(11))
    if each.n:
        line[round(10 * each.mean)] = "|"
    return "".join(line)


def save(path: str | os.PathLike[str], made: Calibration, facts: Mapping[str, Any]) -> None:
    """Writes a calibration; ``facts`` are further fields for people. Raises ModelFileError if it cannot."""
    found = {"format": FORMAT, "version": VERSION, "library": __version__, "model": made.model}
    found |= {
        "readout": made.readout,
        "orders": made.orders,
        "temperatures": dict(made.temperatures),
        **facts,
    }
    with replaced_file(Path(path), synced=False) as file:
        file.write((json.dumps(found, indent=1) + "\n").encode())
