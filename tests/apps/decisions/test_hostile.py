"""Hostile requests and files: typed errors, whatever is changed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from oxillama.apps.decisions import openai, systemone
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.features.decisions.questions import checked_questions, plain_json
from oxillama.errors import ConfigError, OxiLlamaError
from tests.apps.decisions.test_receipt import changed
from tests.apps.server.test_decisions import OPENAI, SYSTEM_ONE
from tests.support.decision_models import TEMPLATES, decision_file, made_file

ODD = (
    None, [], {}, "", 0, -1, 1e400, True, "\ud800", "<|end|>" * 3, [[]], {"": {"": ""}}, "x" * 3000,
    {"a": [None] * 99},
)  # fmt: skip


def mutant(value: Any, rng: random.Random) -> Any:
    """A JSON value with some random changes."""
    for _ in range(rng.randrange(1, 4)):
        value = changed(value, rng)
    if isinstance(value, dict) and value and rng.random() < 0.5:
        name = rng.choice(sorted(value, key=str))
        inner = value[name]
        if isinstance(inner, (dict, list)) and rng.random() < 0.7:
            return {**value, name: mutant(inner, rng)}
        return {**value, name: rng.choice(ODD)}
    return value


@pytest.mark.parametrize("n", [200, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["lev", "kev", "laya", "lfm2-d1-omni", "clef", "lfm2-d1"])
def test_mutants_of_requests(kind: str, n: int) -> None:
    engine, rng, counts = InferenceEngine(), random.Random(n), [0, 0]
    engine.load_model_from_bytes(decision_file(kind))
    prompts = engine.model.feature("decision prompts").prompts
    for i in range(n):
        body = mutant(OPENAI if i % 2 else SYSTEM_ONE, rng)
        try:
            asked = openai.asked_of(body) if i % 2 else systemone.asked_of(body, kind)
            plain_json("state", asked.state)
            tasks = prompts.tasks(asked.state, checked_questions(asked.questions))
            assert all(task.tokens for task in tasks)
            counts[0] += 1
        except OxiLlamaError:
            counts[1] += 1
    assert min(counts) > n // 20


@pytest.mark.filterwarnings("ignore:tensors that the model does not use")
@pytest.mark.filterwarnings("ignore:options that the model does not have")
@pytest.mark.parametrize("n", [40, pytest.param(500, marks=pytest.mark.slow)])
def test_mutants_of_files(n: int) -> None:
    """Metadata of decisions and templates."""
    rng, kinds = random.Random(n), sorted(TEMPLATES)
    keys = (
        "decision.block_count",
        "decision.routing_block_count",
        "decision.head_count",
        "embedding_length_out",
    )
    keys += ("decision.max_head_tokens", "decision.temperature.noul", "attention.layer_norm_epsilon")
    for _ in range(n):
        kind = rng.choice(kinds)
        wrong = {rng.choice(keys): rng.choice([0, 1, 2, 3, 1000, 2**31, 0.0, -1.0, 1e30, "x", True])}
        source = TEMPLATES[kind]
        at = rng.randrange(len(source))
        template = (
            source[:at] + rng.choice(["{{", "%}", "", "[MASK]", "<|end|>"]) + source[at + rng.randrange(3) :]
        )
        engine = InferenceEngine()
        try:
            engine.load_model_from_bytes(made_file(kind, template if rng.random() < 0.5 else None, **wrong))
            engine.decide("state", {"q": {"type": "noul", "instructions": "?"}})
        except OxiLlamaError:
            continue
        finally:
            engine.close()


def test_levels_and_sizes() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    for state in (deep, {"a": deep}):
        engine = InferenceEngine()
        engine.load_model_from_bytes(decision_file("kev"))
        with pytest.raises(ConfigError, match="at most 60 levels"):
            engine.decide(state, {"q": {"type": "noul", "instructions": "?"}})
