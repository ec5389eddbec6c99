"""Options as plain data and back: dicts, lists, strings, numbers, which JSON holds without loss.

What is equal gives equal data: an option that is a float is one here, whatever it was given as, and biases of
logits are a list in the order of the ids. -inf is a string. A callable is named, and whoever reads the data
gives it again. `LEFT_OUT` says what is left out; a path of an adapter says little of what was run.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from oxillama.config import EngineConfig, GenerationOptions, SamplerConfig, SchedulerConfig, checks
from oxillama.errors import ConfigError, GrammarError
from oxillama.grammar import Grammar
from oxillama.grammar.plain import plain_rules, rules_of
from oxillama.grammar.python_types import schema_of_type
from oxillama.toolcalls.definitions import definitions
from oxillama.toolcalls.tool_grammar import ToolCallGrammar

Plain = dict[str, Any]
Stages = Mapping[str, Callable[..., Any]]
"""Stages of a sampler written in Python, by the names that `stage_names` gives."""

LEFT_OUT = frozenset({"adapters", "request_id", "trace", "prefix_cache_dir"})
"""Options that are not described: adapters are files, a name is one request's own, and no data may have
files written."""

FLOATS = frozenset(field.name for field in fields(SamplerConfig) if field.type == "float")


@dataclass(frozen=True)
class SavedType:
    """In the place of a Python type: the JSON schema that it had."""

    text: str

    def json_schema(self) -> Any:
        """The schema."""
        return json.loads(self.text)


def canonical_json(value: Any) -> bytes:
    """The one JSON text of plain data: keys sorted, no spaces, UTF-8. Raises ConfigError for other values."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"options: expected plain data, got other values: {error}") from error


# --- to plain data --------------------------------------------------------------------------------------


def plain_sampler(config: SamplerConfig) -> Plain:
    """Every field of the options. Raises ConfigError, GrammarError for a schema that JSON cannot hold."""
    found: Plain = {f.name: getattr(config, f.name) for f in fields(config)}
    for name in FLOATS:
        found[name] = float(found[name])
    for name in ("banned_tokens", "allowed_tokens", "choices"):
        found[name] = None if found[name] is None else list(found[name])
    biases = sorted(config.logit_bias.items())
    found["logit_bias"] = [[token, "-inf" if bias == -math.inf else bias] for token, bias in biases]
    found["dry_sequence_breakers"] = [
        breaker if isinstance(breaker, str) else list(breaker) for breaker in config.dry_sequence_breakers
    ]
    names = stage_names(config)
    found["order"] = [
        stage if isinstance(stage, str) else {"stage": names[i]} for i, stage in enumerate(config.order)
    ]
    found["grammar"] = _plain_grammar(config.grammar)
    for name in ("json_schema", "structural_tag"):
        found[name] = _plain_schema(name, getattr(config, name))
    return found


def plain_options(options: GenerationOptions) -> Plain:
    """Every field of the options but for those of `LEFT_OUT`; a sampler of None stays None."""
    found: Plain = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in LEFT_OUT}
    found["sampler"] = None if options.sampler is None else plain_sampler(options.sampler)
    found["stop"] = list(options.stop or ())
    found["timeout"] = None if options.timeout is None else float(options.timeout)
    found["speculate"] = _path(options.speculate)
    found["tools"] = None if options.tools is None else definitions(options.tools)
    found["response_format"] = _plain_schema("response_format", options.response_format)
    form = options.message_format
    found["message_format"] = asdict(form) if isinstance(form, ToolCallGrammar) else form
    return found


def plain_engine(config: EngineConfig) -> Plain:
    """Every field of the options but for those of `LEFT_OUT`."""
    found: Plain = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in LEFT_OUT}
    for name in ("model_path", "tokenizer_path", "speculate"):
        found[name] = _path(found[name])
    found["sampler"] = plain_sampler(config.sampler)
    scheduler = config.scheduler
    found["scheduler"] = {
        **{f.name: getattr(scheduler, f.name) for f in fields(scheduler)},
        "max_decode_wait_ms": float(scheduler.max_decode_wait_ms),
        "promote_seconds": float(scheduler.promote_seconds),
    }
    return found


def stage_names(config: SamplerConfig) -> dict[int, str]:
    """By place in ``order``: the name, ``module.qualname``, of each callable. A second one gets " 2"."""
    found: dict[int, str] = {}
    known: dict[str, list[Any]] = {}
    for i, stage in enumerate(config.order):
        if isinstance(stage, str):
            continue
        named = stage if hasattr(stage, "__qualname__") else type(stage)
        name = f"{named.__module__}.{named.__qualname__}"
        alike = known.setdefault(name, [])
        if not any(other is stage for other in alike):
            alike.append(stage)
        at = next(n for n, other in enumerate(alike, 1) if other is stage)
        found[i] = name if at == 1 else f"{name} {at}"
    return found


def _plain_grammar(grammar: Any) -> Any:
    if grammar is None or isinstance(grammar, str):
        return grammar
    return {"rules": plain_rules(grammar.rules)} if isinstance(grammar, Grammar) else str(grammar)


def _plain_schema(name: str, schema: Any) -> Any:
    """The text of an object with schemas, whose keys keep their order: it is that of the properties."""
    if schema is None or isinstance(schema, (bool, str)):
        return schema
    kind = "mapping" if isinstance(schema, Mapping) else "type"
    try:
        if isinstance(schema, SavedType):
            return {kind: schema.text}
        of_type = schema if kind == "mapping" else schema_of_type(schema)
        return {kind: json.dumps(of_type, allow_nan=False, default=_as_dict)}
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: expected JSON values, got others: {error}") from error


def _as_dict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__}")


def _path(path: Any) -> str | None:
    return None if path is None else os.fsdecode(path)


# --- and back -------------------------------------------------------------------------------------------


def sampler_of(plain: Any, stages: Stages | None = None) -> SamplerConfig:
    """The options that `plain_sampler` described; what it does not name is at its default.

    Raises
    ------
    ConfigError : it is no such description, or ``stages`` lacks a stage that it names; the message names it.
    GrammarError : the rules of its grammar are none.
    """
    found = _known("sampler", plain, SamplerConfig)
    biases = found.get("logit_bias", [])
    if not isinstance(biases, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in biases):
        raise checks.refuse("logit_bias", "pairs of token id and bias", biases)
    if not all(checks.is_token(token) for token, _ in biases):
        raise checks.refuse("logit_bias", "token ids", biases)
    found["logit_bias"] = {token: -math.inf if bias == "-inf" else bias for token, bias in biases}
    for name in ("order", "dry_sequence_breakers"):
        if name in found and not isinstance(found[name], list):
            raise checks.refuse(name, "a list", found[name])
    if "order" in found:
        found["order"] = [_stage(stage, stages or {}) for stage in found["order"]]
    if "dry_sequence_breakers" in found:
        found["dry_sequence_breakers"] = [
            tuple(breaker) if isinstance(breaker, list) else breaker
            for breaker in found["dry_sequence_breakers"]
        ]
    found["grammar"] = _held("grammar", found.get("grammar"), {"rules": _grammar})
    found["json_schema"] = _held(
        "json_schema", found.get("json_schema"), {"mapping": _mapping, "type": _saved_type}
    )
    found["structural_tag"] = _held("structural_tag", found.get("structural_tag"), {"mapping": _mapping})
    return SamplerConfig(**found)


def options_of(plain: Any, stages: Stages | None = None) -> GenerationOptions:
    """The options that `plain_options` described. Raises as `sampler_of`."""
    found = _known("options", plain, GenerationOptions)
    if found.get("sampler") is not None:
        found["sampler"] = sampler_of(found["sampler"], stages)
    found["response_format"] = _held("response_format", found.get("response_format"), {"mapping": _mapping})
    return GenerationOptions(**found)


def engine_of(plain: Any, stages: Stages | None = None) -> EngineConfig:
    """The options that `plain_engine` described. Raises as `sampler_of`."""
    found = _known("config", plain, EngineConfig)
    if "sampler" in found:
        found["sampler"] = sampler_of(found["sampler"], stages)
    if "scheduler" in found:
        found["scheduler"] = SchedulerConfig(**_known("scheduler", found["scheduler"], SchedulerConfig))
    return EngineConfig(**found)


def _known(name: str, plain: Any, kind: Any) -> Plain:
    """A copy of a description whose keys are all fields of ``kind``, but for those of `LEFT_OUT`."""
    checks.instance(name, plain, dict)
    names = {f.name for f in fields(kind)} - LEFT_OUT
    for key in plain:
        if key not in names:
            raise ConfigError(f"{name}: expected options of {kind.__name__}, got {checks.shown(key)}")
    return dict(plain)


def _stage(stage: Any, stages: Stages) -> Any:
    if not isinstance(stage, dict):
        return stage
    name = stage.get("stage")
    if len(stage) != 1 or not isinstance(name, str):
        raise checks.refuse("order", "the name of a stage", stage)
    if name not in stages:
        raise ConfigError(f"stages: expected the stage {name}, which is written in Python, got none")
    if not callable(stages[name]):
        raise checks.refuse(f"stages[{name}]", "a callable", stages[name])
    return stages[name]


def _held(name: str, value: Any, kinds: Mapping[str, Callable[[Any], Any]]) -> Any:
    """A value as it is, or what the one key of a dict says that it was."""
    if not isinstance(value, dict):
        return value
    kind, inner = next(iter(value.items()), ("", None))
    if len(value) != 1 or kind not in kinds:
        raise checks.refuse(name, f"one of {', '.join(kinds)}", list(value))
    return kinds[kind](inner)


def _grammar(rules: Any) -> Grammar:
    return Grammar.from_rules(rules_of(rules))


def _mapping(text: Any) -> Any:
    try:
        return checks.instance("json_schema", json.loads(text), dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarError(f"schema: is not JSON: {error}") from None


def _saved_type(text: Any) -> SavedType:
    _mapping(text)
    return SavedType(text)
