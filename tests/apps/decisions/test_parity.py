"""Decision models answer as llama.cpp does: reference files that may lie beside the project."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, InferenceEngine
from oxillama.apps.decisions import systemone
from oxillama.engine.features.decisions.deciding import DecisionOptions, decide
from oxillama.engine.features.decisions.prompts import orders
from tests.support.paths import SHARED

FOLDER = SHARED / "parity-decisions"
FILES = sorted(FOLDER.glob("*.gguf"))


def cases(path: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Requests, and what is known of their answers."""
    named = [json.loads(path.with_suffix(f".{kind}.json").read_bytes()) for kind in ("requests", "reference")]
    return [(a["request"], b) for a, b in zip(named[0]["cases"], named[1]["cases"], strict=True)]


def check_answer(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """The same fields in the same order, probabilities within 1e-4."""
    found.pop("x_label_mass", None)
    assert list(found) == ["type", *(name for name in found if name != "type")]
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if name == "probabilities":
            assert list(found[name]) == list(value)
            assert found[name] == pytest.approx(value, abs=1e-4)
        elif isinstance(value, float):
            assert found[name] == pytest.approx(value, abs=1e-3 if name == "score" else 1e-4)
        elif name == "choice":
            shares = found["probabilities"]
            assert found[name] == value or abs(shares[found[name]] - shares[value]) < 1e-4
        else:
            assert found[name] == value


@pytest.mark.skipif(not FILES, reason="the reference files are not here")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_reference(path: Any) -> None:
    engine = InferenceEngine.from_gguf(path, kv_type="f32", num_threads=1)
    assert engine.model.spec.decision is not None
    options, kind = DecisionOptions(special_in_content=True), engine.model.spec.decision.kind
    for request, known in cases(path):
        if "answers" not in known:
            with pytest.raises(ConfigError):
                asked = systemone.asked_of(request, kind)
                decide(engine.model, [(asked.state, asked.questions)], options)
            continue
        asked = systemone.asked_of(request, kind)
        (started,) = decide(engine.model, [(asked.state, asked.questions)], options)
        read = [reading.result() for reading in started.readings]
        for task, values, stated in zip(started.tasks, read, known["tasks"], strict=True):
            assert task.tokens == stated["tokens"]
            assert task.marks == stated["markers"]
            assert [token for group in task.labels for token in group] == stated["labels"]
            if stated["order"]:
                assert orders(task, started.questions) == stated["order"]
            scores = values[: len(stated["scores"])]
            assert np.abs(scores - np.array(stated["scores"])).max() < 1e-3
        body = systemone.answer_body("m", asked.questions, started.decision(read))
        assert body["usage"]["input_tokens"] == known["input_tokens"]
        assert list(body["answers"]) == list(known["answers"])
        for id, answer in body["answers"].items():
            check_answer(answer, known["answers"][id])
    engine.model.check_integrity()
