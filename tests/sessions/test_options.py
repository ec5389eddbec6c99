"""Options as plain data: JSON holds all of them, and they come back as they were."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, GenerationOptions, Grammar, GrammarError, SamplerConfig, SchedulerConfig
from oxillama.base.config import EngineConfig
from oxillama.base.config.sampler import ORDER
from oxillama.engine.features.constraints import compiled
from oxillama.sessions.options import canonical_json, options_of, plain_options, stage_names
from oxillama.text.grammar.plain import plain_rules, rules_of


def halved(ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> np.ndarray:
    return logits / 2


class Scaled:
    def __call__(self, ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> np.ndarray:
        return logits * 3


@dataclass
class Animal:
    legs: int
    name: str


SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "number", "minimum": 0.1}, **{key: {} for key in "hgfedca"}},
    "required": ["b"],
}
"""With more properties than come in any order."""

SAMPLERS = {
    "defaults": SamplerConfig(),
    "numbers": SamplerConfig(temperature=1, top_k=7, top_p=0.1 + 0.2, dynatemp_range=0.3, seed=2**64 - 1),
    "penalties": SamplerConfig(repetition_penalty=1.1, frequency_penalty=-0.5, repetition_window=-1),
    "dry": SamplerConfig(dry_multiplier=0.8, dry_sequence_breakers=("\n", (3, 4), "é")),
    "mirostat": SamplerConfig.mirostat_v2(tau=3.3),
    "tokens": SamplerConfig(
        logit_bias={9: -math.inf, 3: 1, 5: 0.25}, banned_tokens=(4, 2), allowed_tokens=(1, 5, 9), min_tokens=3
    ),
    "grammar": SamplerConfig(grammar='root ::= "a"+ [b-é]'),
    "compiled": SamplerConfig(grammar=Grammar.from_regex("[a-cx]{2,5}(é|yes)+")),
    "tokens in a grammar": SamplerConfig(grammar=Grammar.parse('root ::= <[3]> !<[4]> "x"?')),
    "schema": SamplerConfig(json_schema=SCHEMA),
    "schema text": SamplerConfig(json_schema=json.dumps(SCHEMA)),
    "any JSON": SamplerConfig(json_schema=True),
    "type": SamplerConfig(json_schema=Animal),
    "list of types": SamplerConfig(json_schema=list[Animal]),
    "regex": SamplerConfig(regex="a+|b"),
    "choices": SamplerConfig(choices=("yes", "no", "")),
    "structural tag": SamplerConfig(structural_tag={"format": {"type": "const_string", "value": "é"}}),
    "structural tag as text": SamplerConfig(structural_tag='{"format": {"type": "any_text"}}'),
    "order": SamplerConfig(order=("temperature", *(name for name in ORDER if name != "temperature"))),
    "stages": SamplerConfig(order=(halved, *ORDER, Scaled(), halved, lambda i, x, h: x, lambda i, x, h: -x)),
}


def back(config: SamplerConfig) -> SamplerConfig:
    """The options, from the JSON of their plain data."""
    stages = {name: config.order[at] for at, name in stage_names(config.order).items()}
    return options_of(SamplerConfig, json.loads(canonical_json(plain_options(config))), stages)  # type: ignore[arg-type]


@pytest.mark.parametrize("config", SAMPLERS.values(), ids=SAMPLERS)
def test_samplers_come_back(config: SamplerConfig) -> None:
    found = back(config)
    assert plain_options(found) == plain_options(config)
    for field in fields(config):
        if field.name not in ("grammar", "json_schema", "structural_tag"):
            assert getattr(found, field.name) == getattr(config, field.name)
    if config.constraint is not None and config.constraint != "grammar":
        assert compiled(found, None).digest == compiled(config, None).digest  # type: ignore[arg-type]
    if isinstance(config.grammar, Grammar):
        assert found.grammar.digest == config.grammar.digest


def test_equal_options_have_one_text() -> None:
    same = [
        SamplerConfig(temperature=1, logit_bias={3: 1, 2: -0.5}, banned_tokens=(1,)),
        SamplerConfig(temperature=1.0, logit_bias={2: -0.5, 3: 1.0}, banned_tokens=np.array([1])),  # type: ignore[arg-type]
    ]
    assert len({canonical_json(plain_options(config)) for config in same}) == 1
    texts = {canonical_json(plain_options(config)) for config in SAMPLERS.values()}
    assert len(texts) == len(SAMPLERS)
    with pytest.raises(ConfigError, match="options: expected plain data"):
        canonical_json({"x": math.nan})


def test_requests_and_engines_come_back(tmp_path: Any) -> None:
    options = GenerationOptions(
        sampler=SAMPLERS["dry"], stop="x", timeout=3, salt="é", speculate=tmp_path, max_tokens=None
    )
    plain = json.loads(canonical_json(plain_options(options)))
    assert options_of(GenerationOptions, plain) == GenerationOptions(
        sampler=SAMPLERS["dry"], stop=["x"], timeout=3.0, salt="é", speculate=str(tmp_path), max_tokens=None
    )
    config = EngineConfig(
        model_path=tmp_path, sampler=SAMPLERS["tokens"], scheduler=SchedulerConfig(max_sequences=3)
    )
    found = options_of(EngineConfig, json.loads(canonical_json(plain_options(config))))
    assert plain_options(found) == plain_options(config)
    assert found.scheduler == config.scheduler and found.sampler == config.sampler


def test_stages_have_names_and_are_asked_for() -> None:
    config = SAMPLERS["stages"]
    names = list(stage_names(config.order).values())
    here = __name__
    assert names == [
        f"{here}.halved",
        f"{here}.Scaled",
        f"{here}.halved",
        f"{here}.<lambda>",
        f"{here}.<lambda> 2",
    ]
    with pytest.raises(ConfigError, match=rf"stages: expected the stage {here}\.halved, which"):
        options_of(SamplerConfig, plain_options(config))
    with pytest.raises(ConfigError, match=r"stages\[.*halved\]: expected a callable, got 3"):
        options_of(SamplerConfig, plain_options(config), {f"{here}.halved": 3})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tempurature": 1.0}, "options: 'tempurature': no such field"),
        ({"temperature": "hot"}, "temperature: expected a number"),
        ({"logit_bias": {"3": 1.0}}, "logit_bias: expected pairs"),
        ({"logit_bias": [["3", 1.0]]}, "logit_bias: expected token ids"),
        ({"logit_bias": [[3, "inf"]]}, "logit_bias"),
        ({"order": 3}, "order: expected a list"),
        ({"order": [{"stage": 3}]}, "order: expected the name of a stage"),
        ({"order": [{}]}, "order: expected the name of a stage"),
        ({"grammar": {"source": "x"}}, "grammar: expected one of rules"),
        ({"grammar": {}}, "grammar: expected one of rules"),
        ({"json_schema": {"type": 3}}, "schema: is not JSON"),
        ({"json_schema": {"mapping": "[1]"}}, "json_schema: expected a dict"),
    ],
)
def test_other_data_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, GrammarError), match=message):
        options_of(SamplerConfig, {**plain_options(SamplerConfig()), **change})


DFA = ["dfa", [[[97, 97, 0]]], [0]]
MEMBER: list[Any] = ["member", ["text", "a"], "mark", 0, 0, None, 0, None]


@pytest.mark.parametrize(
    "node",
    [
        3, [], ["text"], ["text", 3], ["text", "\ud800"], ["chars", [[5, 3]]], ["chars", [[1, 5], [5, 9]]],
        ["chars", [[0, 0x110000]]], ["tokens", [-1], False], ["tokens", [1], 1], ["dfa", [], []],
        ["dfa", [[[1, 2, 7]]], [0]], ["dfa", [[]], [1]], ["repeat", ["text", "a"], True, None],
        ["repeat", ["text", "a"], 3, 2], ["seq", 3], ["other", []], ["ref", "nowhere"], {"a": 1},
        [["text", "a"]], None, "text", ["text"], ["text", "a", "b"], ["tokens", [2**31], False],
        ["dfa", [[[5, 3, 0]]], [0]], ["counted", ["text", "a"], 0, 0, None], ["counted", DFA, 2, 0, None],
        MEMBER, ["distinct", [[MEMBER]], [True, True], ["text", ","], 1, None, 0, [], False],
        ["distinct", [[[*MEMBER[:3], 1, *MEMBER[4:]]]], [True], ["text", ","], 1, None, 0, [], False],
        ["distinct", [[[*MEMBER[:2], "colour", *MEMBER[3:]]]], [True], ["text", ","], 1, None, 0, [], False],
    ],
)  # fmt: skip
def test_rules_that_are_none_are_refused(node: Any) -> None:
    with pytest.raises(GrammarError):
        Grammar.from_rules(rules_of({"root": "root", "rules": [["root", node]]}))
    with pytest.raises(GrammarError):
        rules_of(node)


def test_rules_may_be_as_deep_as_a_grammar_and_no_deeper() -> None:
    node: Any = ["text", "a"]
    for _ in range(150):
        node = ["seq", [node]]
    assert Grammar.from_rules(rules_of({"root": "r", "rules": [["r", node]]})).matches("a")
    for _ in range(5000):
        node = ["seq", [node]]
    with pytest.raises(GrammarError, match="inside each other"):
        rules_of({"root": "r", "rules": [["r", node]]})
    several = {"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b"]}, "maxItems": 2}
    ordered = {"properties": {"a": {}, "b": several}, "minProperties": 1}
    for grammar in (Grammar.json(), *map(Grammar.from_json_schema, ({"items": several}, ordered))):
        assert rules_of(json.loads(json.dumps(plain_rules(grammar.rules)))) == grammar.rules


def test_no_data_has_a_file_written(tmp_path: Any) -> None:
    """What is left out: a trace's path in a snapshot would be written by whoever goes on from it."""
    config = EngineConfig(trace=tmp_path / "trace.json", context_size=9)
    assert "trace" not in plain_options(config)
    assert options_of(EngineConfig, plain_options(config)) == EngineConfig(context_size=9)
    assert "request_id" not in plain_options(GenerationOptions(request_id="one"))
    with pytest.raises(ConfigError, match=r"options: 'trace': no such field"):
        options_of(EngineConfig, {"trace": str(tmp_path / "trace.json")})
