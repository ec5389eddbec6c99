"""A whole diagnosis of this machine, and kernels that are counted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from oxillama import EngineConfig, InferenceEngine, _kernels
from oxillama.apps.bench.kernel_calls import counted_kernels
from oxillama.apps.doctor import diagnosis, measure
from oxillama.apps.doctor.diagnosis import better_targets, diagnose
from oxillama.base.targets import TARGETS
from tests.support.command_line import error, output, run


def test_without_measuring() -> None:
    found = diagnose()
    assert found.measured.rates == () and found.weights is None
    assert not any(finding.loss for finding in found.findings)
    json.dumps(found.as_json())


def test_with_a_model(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "LEAST_BYTES", 1 << 20)
    found = diagnose(model, num_threads=1)
    (rates,) = found.measured.rates
    assert rates.threads == 1 and min(rates.read, rates.products, rates.float_products) > 0
    rated = found.measured.model
    assert rated is not None and rated.float_share == 1  # the tiny model has float32 matrices
    assert rated.decode > 0 and 0 < rated.outside < 1 and 0 < rated.other_kernels < 1
    content = json.loads(json.dumps(found.as_json()))
    assert content["model"]["share_of_read"] > 0 and content["weight_bytes"] == found.weights


def test_a_model_that_does_not_fit_is_not_run(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "LEAST_BYTES", 1 << 20)
    monkeypatch.setattr(diagnosis, "weight_bytes", lambda path: 1 << 60)
    found = diagnose(model, num_threads=1)
    assert found.measured.model is None and found.is_held_back
    assert found.findings[0].what == "the model's weights do not fit the free memory"


def test_better_targets() -> None:
    automatic = (target.name for target in TARGETS if target.use == "automatic")
    runnable = [name for name in automatic if _kernels.targets()[name] is None]
    assert better_targets(runnable[0]) == {}
    assert better_targets("portable") == dict.fromkeys(runnable[:-1], True)


def test_counted_kernels_give_the_same_bits(model: Path) -> None:
    config = EngineConfig(model_path=model, num_threads=1)
    plain = _kernels.best

    def logits() -> np.ndarray:
        with InferenceEngine(config) as engine, engine.session() as session:
            return session.prefill([1, 2, 3])

    expected = logits()
    with counted_kernels() as calls:
        assert np.array_equal(logits(), expected)
    assert _kernels.best is plain
    assert calls.counts["linear.Linear.apply"] == len(calls.products) > 4
    assert 0 < calls.of("linear") < calls.in_kernels
    assert sum(product.macs for product in calls.products) > 0
    calls.clear()
    assert calls.in_kernels == calls.added == 0
    logits()
    assert not calls.counts


def test_the_command(model: Path) -> None:
    text = output("doctor")
    assert "rates were not measured" in text and "CPU " in text
    done = run("doctor", model, "-t", "1")
    assert done.returncode in (0, 1), done.stderr
    assert b"tokens/s" in done.stdout and b"GMAC/s" in done.stdout
    assert "No such file" in error("doctor", "absent.gguf")
