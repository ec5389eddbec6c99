"""Calibration: the temperature of the least log loss, its file, and what it does to answers."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, EngineConfig, Predicate
from oxillama.apps.decisions.calibration import (
    Bin,
    Calibration,
    Example,
    best_temperature,
    calibration_error,
    examples,
    fitted,
    log_loss,
    reliability,
    report,
)
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.features.decisions.deciding import DecisionOptions, decide
from tests.support.command_line import printed, refused
from tests.support.decision_models import decision_file

OPTIONS = ["--kv-type", "f32", "--num-threads", "1", "-q"]


@pytest.fixture(scope="module")
def engine() -> InferenceEngine:
    made = InferenceEngine(EngineConfig(num_threads=1, kv_type="f32"))
    made.load_model_from_bytes(decision_file("openjev"))
    return made


def drawn(engine: InferenceEngine, n: int, right: int, score: float = 2.0) -> list[Example]:
    """``n`` predicates, for which the model says yes with this score, and ``right`` of which are so."""
    (asked,) = decide(engine.model, [("s", {"q": Predicate("?")})], DecisionOptions())
    read = ([np.array([score, 0.0], np.float32)], [0.5], [None])
    return [Example(asked, asked.questions[0], read, int(i >= right)) for i in range(n)]


def test_the_temperature_of_the_least_log_loss(engine: InferenceEngine) -> None:
    found = drawn(engine, 100, 73)
    t = best_temperature(found)
    assert t == pytest.approx(2 / math.log(73 / 27), rel=1e-3)
    assert log_loss(found, t) < min(log_loss(found, t * 1.05), log_loss(found, t / 1.05))
    assert best_temperature(drawn(engine, 10, 10)) == pytest.approx(
        0.05, rel=0.01
    )  # always right: the range ends
    assert best_temperature(drawn(engine, 10, 5)) == pytest.approx(20, rel=0.01)


def test_types_and_buckets_need_enough_examples(engine: InferenceEngine) -> None:
    assert fitted(drawn(engine, 9, 7), "openjev") == {}
    assert list(fitted(drawn(engine, 10, 7), "openjev")) == ["noul"]
    assert list(fitted(drawn(engine, 50, 40), "openjev")) == ["noul", "noul.2"]


def test_reliability(engine: InferenceEngine) -> None:
    found = drawn(engine, 100, 73)
    before, after = (reliability(found, {"noul": t}, "openjev") for t in (1.0, best_temperature(found)))
    p = 1 / (1 + math.exp(-2))
    assert before[8] == Bin(100, pytest.approx(p), 0.73) and sum(each.n for each in before) == 100
    assert calibration_error(before) == pytest.approx(p - 0.73)
    assert calibration_error(after) < 1e-3
    text = report(before, after)
    assert "0.8 to 0.9       100  0.881  0.730" in text and text.endswith("0.0000 after")
    assert calibration_error([]) == 0


def labelled(n: int) -> list[dict[str, Any]]:
    question = {"type": "noul", "instructions": "Is it even?"}
    return [
        {"state": f"number {i}", "questions": {"q": question, "r": question}, "expected": {"q": i % 2 == 0}}
        for i in range(n)
    ]


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data, output = tmp_path / "m.gguf", tmp_path / "labelled.jsonl", tmp_path / "calibration.json"
    model.write_bytes(decision_file("openjev"))
    data.write_text("\n".join(map(json.dumps, labelled(12))))
    assert "ECE" in printed(capsys, "calibrate", model, data, "-o", output, *OPTIONS)
    known = Calibration.load(output)
    assert (
        list(known.temperatures) == ["noul"]
        and known.digest == hashlib.sha256(output.read_bytes()).hexdigest()
    )
    request = {"state": "number 3", "questions": {"q": {"type": "noul", "instructions": "Is it even?"}}}
    data.write_text(json.dumps(request))
    found = []
    for more in ([], ["--calibration", str(output)]):
        answers = json.loads(printed(capsys, "decide", model, data, *more, *OPTIONS))["answers"]
        found.append(answers["q"]["noul"])
    t = known.temperatures["noul"]
    assert math.log(found[1] / (1 - found[1])) == pytest.approx(math.log(found[0] / (1 - found[0])) / t)
    other = tmp_path / "other.gguf"
    other.write_bytes(decision_file("lev"))
    told = refused(capsys, "decide", other, data, "--calibration", output, *OPTIONS)
    assert "calibration: expected that of the model" in told
    told = refused(capsys, "decide", model, data, "--calibration", data, *OPTIONS)
    assert "expected a file of oxillama calibrate" in told


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"x": True}, "is no question"),
        ({"q": "true"}, "is none of the options"),
        ([True], "must have an answer for each question"),
        (None, "must have an answer for each question"),
    ],
)
def test_labels_that_are_refused(engine: InferenceEngine, expected: Any, message: str) -> None:
    body = {**labelled(1)[0], "expected": expected}
    with pytest.raises(ConfigError, match=message):
        examples(engine, [body], DecisionOptions())
    with pytest.raises(ConfigError, match="expected: must be provided"):
        examples(engine, [{"state": "s"}], DecisionOptions())
