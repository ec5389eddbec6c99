"""``engine.parse`` and ``Completion.parsed``: an answer as an object of a type."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypedDict

import pytest

from oxillama import AnswerCut, InferenceEngine

MESSAGES = [{"role": "user", "content": "My friend is called Tom."}]


class Kind(Enum):
    DRAGON = "dragon"
    OWL = "owl"


@dataclass
class Friend:
    name: Literal["Rita", "Tom"]
    kind: Kind
    brave: bool


class Plain(TypedDict):
    brave: bool


def test_an_answer_is_an_object_of_the_type(engine: InferenceEngine) -> None:
    friend = engine.parse(MESSAGES, Friend, seed=1, max_tokens=80)
    assert isinstance(friend, Friend) and friend.name in ("Rita", "Tom")
    assert isinstance(friend.kind, Kind) and isinstance(friend.brave, bool)
    text = engine.chat(MESSAGES, json_schema=Friend, seed=1, max_tokens=80)
    assert text.startswith(f'{{"name": "{friend.name}", "kind": "{friend.kind.value}"')
    assert isinstance(engine.parse(MESSAGES, Plain, seed=1)["brave"], bool)
    assert engine.parse(MESSAGES, Kind, seed=1) in Kind


def test_a_pydantic_model(engine: InferenceEngine) -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Answer", brave=(bool, ...))
    assert isinstance(engine.parse(MESSAGES, model, seed=1).brave, bool)


def test_a_text_that_was_cut_is_an_error(engine: InferenceEngine) -> None:
    with pytest.raises(AnswerCut, match=r"cut after 5 tokens \(length\)") as found:
        engine.parse(MESSAGES, Friend, seed=1, max_tokens=5)
    assert found.value.text.startswith("{")


def test_what_a_completion_has_parsed(engine: InferenceEngine) -> None:
    fixed = {
        "type": "object",
        "properties": {"a": {"const": 1}},
        "required": ["a"],
        "additionalProperties": False,
    }
    made = engine.stream("x", json_schema=fixed, max_tokens=40, seed=1).result()
    assert made.parsed == {"a": 1} == json.loads(made.text)
    assert engine.stream("x", json_schema=Plain, max_tokens=40, seed=1).result().parsed.keys() == {"brave"}
    assert engine.stream("x", max_tokens=2).result().parsed is None
    with pytest.raises(AnswerCut):
        _ = engine.stream("x", json_schema=fixed, max_tokens=2).result().parsed
