"""Receipts of decisions: made, checked by the engine and by the reference, and never true after a change."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oxillama import ConfigError, EngineConfig, ReceiptError
from oxillama.apps.decisions.receipt import (
    DecisionReceipt,
    sealed,
    verify_by_reference,
    verify_decisions,
)
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.features.decisions.deciding import DecisionOptions, decide
from oxillama.gguf.model_file import ModelFile
from tests.engine.features.test_decisions import QUESTIONS, STATE
from tests.support.command_line import called, printed, refused
from tests.support.decision_models import TEMPLATES, chat_file, decision_file
from tests.support.spread import each


def made(kind: str, **options: Any) -> tuple[InferenceEngine, DecisionReceipt]:
    engine = InferenceEngine(EngineConfig(num_threads=1, kv_type="f32"))
    engine.load_model_from_bytes(decision_file(kind) if kind else chat_file())
    (asked,) = decide(engine.model, [(STATE, QUESTIONS)], DecisionOptions(**options))
    decision = asked.decision([reading.result() for reading in asked.readings])
    return engine, DecisionReceipt.of(engine, STATE, asked, decision)


@pytest.mark.parametrize("kind", each(["", *sorted(TEMPLATES)], 3))
def test_receipts_are_true(kind: str) -> None:
    engine, receipt = made(kind, temperatures={"choice": 2.0}, confidence="entropy")
    assert DecisionReceipt.from_json(receipt.to_json()) == receipt
    assert verify_decisions(engine, [receipt]) == [[]]
    with ModelFile.open(decision_file(kind) if kind else chat_file()) as file:
        assert verify_by_reference(file, receipt) == []


@pytest.mark.parametrize("kind", ["", "clef", "kev", "laya", "lev"])
def test_receipts_that_are_not_run_follow_from_their_scores(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, receipt = made(kind, temperatures={"choice": 2.0})
    monkeypatch.setattr(engine.model.thread, "submit", lambda *requests, **_: requests and pytest.fail())
    assert verify_decisions(engine, [receipt], run=()) == [[]]
    scores = [[list(variant) for variant in of_question] for of_question in receipt.scores]
    scores[0][0][0] += 1
    (found,) = verify_decisions(engine, [replace(receipt, scores=scores)], run=())
    assert "answers" in found
    (error,) = verify_decisions(engine, [replace(receipt, scores=[[[1.0]]])], run=())
    assert isinstance(error, ReceiptError)
    texts = [[*tokens[:-1], tokens[-1] + 1] for tokens in receipt.tokens]
    assert verify_decisions(engine, [replace(receipt, tokens=texts)], run=()) == [["tokens"]]


@pytest.mark.parametrize("kind", ["", "clef", "lev"])
def test_prompts_run_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order of receipts, what is alike in their prompts runs once, and all get their scores."""
    engine, receipt = made(kind)
    parts, model = [], engine.model
    for name in list(QUESTIONS)[::-1]:
        asked = QUESTIONS[name]
        (one,) = decide(model, [(STATE, {name: asked})], DecisionOptions())
        decision = one.decision([reading.result() for reading in one.readings])
        parts.append(DecisionReceipt.of(engine, STATE, one, decision))
    ran: list[int] = []
    submit = model.thread.submit

    def counted(*requests: Any, **options: Any) -> None:
        ran.append(len(requests))
        submit(*requests, **options)

    monkeypatch.setattr(model.thread, "submit", counted)
    assert verify_decisions(engine, [*parts, receipt, receipt, *parts[::-1]]) == [[]] * (2 * len(parts) + 2)
    alone = {repr(each) for one in [*parts, receipt] for each in one.tokens}
    assert ran == [len(alone)]
    false = replace(parts[0], scores=[[[2.0 for _ in each] for each in parts[0].scores[0]]])
    first, second = verify_decisions(engine, [parts[0], false])
    assert first == []
    assert "scores" in second  # type: ignore[operator]


def test_what_several_wait_for_fails_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, receipt = made("lev")

    def fail(*args: Any) -> None:
        raise ConfigError("no scores")

    monkeypatch.setattr("oxillama.engine.features.decisions.deciding.label_scores", fail)
    found = verify_decisions(engine, [receipt, receipt])
    assert [str(each) for each in found] == ["no scores"] * 2


def test_receipts_of_names() -> None:
    engine, receipt = made("", readout="names", orders=1)
    assert verify_decisions(engine, [receipt]) == [[]]
    wrong = copy.deepcopy(receipt)
    assert len(wrong.tokens) > len(QUESTIONS) and wrong.answers[1]["label_mass"] > 0
    wrong.answers[1]["label_mass"] *= 1 + 1e-12
    with ModelFile.open(chat_file()) as file:
        assert verify_by_reference(file, receipt) == []
        assert verify_by_reference(file, wrong) == ["answers"]


def changed(value: Any, rng: random.Random) -> Any:
    """A JSON value with a random change."""
    if isinstance(value, dict) and value:
        name = rng.choice(sorted(value))
        return {**value, name: changed(value[name], rng)}
    if isinstance(value, list) and value:
        at = rng.randrange(len(value))
        if rng.random() < 0.2:
            return value[:at] + value[at + 1 :]
        return [*value[:at], changed(value[at], rng), *value[at + 1 :]]
    if isinstance(value, bool):
        return not value if rng.random() < 0.5 else int(value)
    if isinstance(value, (int, float)):
        return value + rng.choice([1, -1, 2**-20]) if value else 1
    return "x" if value != "x" else "y"


@pytest.mark.parametrize("n", [25, pytest.param(500, marks=pytest.mark.slow)])
def test_no_change_is_accepted(n: int) -> None:
    engine, receipt = made("lev")
    whole, rng = json.loads(receipt.to_json()), random.Random(n)
    for _ in range(n):
        text = json.dumps(changed(whole, rng))
        with pytest.raises(ReceiptError):
            DecisionReceipt.from_json(text)
        fields = json.loads(text)
        del fields["format"], fields["version"], fields["seal"]
        try:  # whoever makes a new seal is found by the model
            forged = sealed(DecisionReceipt(**fields))
            (found,) = verify_decisions(engine, [forged])
        except (TypeError, AttributeError):
            continue
        claims = ("library", "calibration")  # the model does not know these facts: only the seal has them
        wrong = [name for name in fields if name not in claims and fields[name] != whole[name]]
        if wrong == ["options"]:  # texts without names of control tokens are read alike in both ways
            given = {**fields["options"], "special_in_content": False}
            wrong = [name for name, value in whole["options"].items() if given.get(name) != value]
        assert found or not wrong


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data, folder = tmp_path / "m.gguf", tmp_path / "requests.jsonl", tmp_path / "receipts"
    model.write_bytes(decision_file("openjev"))
    question = {"type": "noul", "instructions": "Is it late?"}
    choice = {"type": "choice", "instructions": "Which?", "choices": [{"value": True}, {"value": "b"}]}
    lines: list[Any] = [{"state": f"{i} days", "questions": {"q": question}} for i in range(3)]
    lines += [{"state": "s"}, {"model": "m", "input": "x", "questions": [choice]}]
    data.write_text("\n".join(map(json.dumps, lines)))
    options = ["--kv-type", "f32", "--num-threads", "1", "-q"]
    command = ["decide", str(model), str(data), "--receipts", str(folder), "--threshold", "0.8"]
    found = [json.loads(line) for line in printed(capsys, *command, *options, code=1).splitlines()]
    sure = found[0]["answers"]["q"]
    assert sure["x_is_sure"] == (max(sure["noul"], 1 - sure["noul"]) >= 0.8)
    assert isinstance(found[4]["answers"][0]["x_is_sure"], bool)
    names = [f"00000{i}.json" for i in (1, 2, 3, 5)]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert "receipts: expected an empty folder" in refused(capsys, *command, *options)
    paths = [str(folder / name) for name in names]
    assert printed(capsys, "verify", *paths, "--model", model).count("this model gives these answers") == 4
    out = printed(capsys, "verify", *paths, "--model", model, "--sample", "1")
    assert (out.count("this model gives"), out.count("its scores give these answers")) == (1, 3)
    assert "ran 1 of 4 receipts: false scores in one are missed with a probability of 0.75" in out
    assert called("verify", paths[0], "--model", model, "--reference") == 0
    (tmp_path / "other.gguf").write_bytes(decision_file("lev"))
    told = printed(capsys, "verify", paths[0], "--model", tmp_path / "other.gguf", code=1)
    assert "this model differs: model, kind" in told
    Path(paths[0]).write_text(Path(paths[0]).read_text().replace("0 days", "9 days"))
    assert "its seal does not fit" in refused(capsys, "verify", paths[0], "--model", model)
