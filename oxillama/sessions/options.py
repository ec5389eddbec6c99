"""Options as plain data and back, for snapshots and receipts, with hooks where types are not enough.

Equal options give equal data: a float option is stored as a float even if given as an int, and logit biases
are a list in the order of token ids. -inf is a string. A Python stage is stored by name, and the caller of
the decoder supplies it again. `LEFT_OUT` lists the options that are left out.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from oxillama.base.config import EngineConfig, GenerationOptions, SamplerConfig, checks
from oxillama.errors import ConfigError, GrammarError
from oxillama.sessions.codec import Hooks, Plain, decode, encode
from oxillama.text.grammar import Grammar
from oxillama.text.grammar.plain import plain_rules, rules_of
from oxillama.text.grammar.python_types import schema_of_type
from oxillama.text.toolcalls.definitions import definitions
from oxillama.text.toolcalls.tool_grammar import ToolCallGrammar

Options = SamplerConfig | GenerationOptions | EngineConfig
Kind = TypeVar("Kind", SamplerConfig, GenerationOptions, EngineConfig)
Stages = Mapping[str, Callable[..., Any]]
"""Python stages of a sampler, by the names that `stage_names` assigns."""

LEFT_OUT = ("adapters", "request_id", "trace", "prefix_cache_dir")
"""Options that are left out: adapters are files; a request id belongs to one request; and data must not
choose paths that are written to."""


@dataclass(frozen=True)
class SavedType:
    """Replaces a Python type in decoded options: the JSON schema of the type."""

    text: str

    def json_schema(self) -> Any:
        """The schema."""
        return json.loads(self.text)


def plain_options(options: Options) -> Plain:
    """Encode every field of the options except `LEFT_OUT`.

    Raises ConfigError or GrammarError for a schema that JSON cannot hold.
    """
    found: Plain = encode(type(options), options, hooks({}))
    return found


def options_of(kind: type[Kind], plain: Any, stages: Stages | None = None, name: str = "options") -> Kind:
    """Decode options from `plain_options`; absent fields get their defaults.

    Raises:
        ConfigError: the data are malformed, or ``stages`` lacks a named stage; the message names it.
        GrammarError: the rules of the grammar are malformed.
    """
    return decode(kind, plain, hooks(stages or {}), name=name)


def canonical_json(value: Any) -> bytes:
    """The canonical JSON text of plain data: sorted keys, no spaces, UTF-8. Raises ConfigError otherwise."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"options: expected plain data, got other values: {error}") from error


def hooks(stages: Stages) -> Hooks:
    """Encoders and decoders by field, for fields whose types do not say how to store a value."""
    schemas = {"mapping": _mapping, "type": _saved_type}
    return {
        **dict.fromkeys(LEFT_OUT),
        "packed": (_packed, _packed),
        "logit_bias": (_plain_biases, _biases),
        "order": (_plain_order, partial(_order, stages)),
        "grammar": (_plain_grammar, partial(_tagged, "grammar", {"rules": _grammar})),
        "json_schema": (partial(_plain_schema, "json_schema"), partial(_tagged, "json_schema", schemas)),
        **{
            name: (partial(_plain_schema, name), partial(_tagged, name, {"mapping": _mapping}))
            for name in ("structural_tag", "response_format")
        },
        "tools": (definitions, lambda plain: plain),
        "message_format": (_plain_format, lambda plain: plain),
    }


def _plain_format(form: Any) -> Any:
    return asdict(form) if isinstance(form, ToolCallGrammar) else form


def _packed(packed: Any) -> Any:
    """The packed file to read; data must not have one made."""
    path = os.fsdecode(packed) if isinstance(packed, os.PathLike) else packed
    return "auto" if path == "make" else path


# --- biases and stages ----------------------------------------------------------------------------------


def _plain_biases(biases: Mapping[int, float]) -> list[Any]:
    return [[token, "-inf" if bias == -math.inf else bias] for token, bias in sorted(biases.items())]


def _biases(plain: Any) -> dict[int, Any]:
    if not isinstance(plain, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in plain):
        raise checks.refuse("logit_bias", "pairs of token id and bias", plain)
    if not all(checks.is_token(token) for token, _ in plain):
        raise checks.refuse("logit_bias", "token ids", plain)
    return {token: -math.inf if bias == "-inf" else bias for token, bias in plain}


def stage_names(order: Sequence[Any]) -> dict[int, str]:
    """Names of the callables in `SamplerConfig.order` by index: ``module.qualname``; a second gets " 2"."""
    found: dict[int, str] = {}
    known: dict[str, list[Any]] = {}
    for i, stage in enumerate(order):
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


def _plain_order(order: Sequence[Any]) -> list[Any]:
    names = stage_names(order)
    return [stage if isinstance(stage, str) else {"stage": names[i]} for i, stage in enumerate(order)]


def _order(stages: Stages, plain: Any) -> list[Any]:
    return [_stage(stage, stages) for stage in checks.instance("order", plain, list)]


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


# --- grammars and schemas --------------------------------------------------------------------------------


def _plain_grammar(grammar: Any) -> Any:
    if grammar is None or isinstance(grammar, str):
        return grammar
    return {"rules": plain_rules(grammar.rules)} if isinstance(grammar, Grammar) else str(grammar)


def _plain_schema(name: str, schema: Any) -> Any:
    """The JSON text of an object with schemas; keys keep their order, which is the order of properties."""
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


def _tagged(name: str, kinds: Mapping[str, Callable[[Any], Any]], value: Any) -> Any:
    """The value itself; for a dict with one key, the value decoded by the key's function in ``kinds``."""
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
