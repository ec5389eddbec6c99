"""The options of a request for text, by the names that clients use.

The names follow from the declarations of `GenerationOptions` and `SamplerConfig`; the tables here have those
whose values are not the option's. What is in no table is an error that names it. A field that is null is as
good as absent, as OpenAI's clients have it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from oxillama.apps.server.callers import context, within_limits
from oxillama.apps.server.errors import ApiError, fault, invalid, unsupported
from oxillama.apps.server.loras import loras
from oxillama.apps.server.no_effect import NO_EFFECT
from oxillama.apps.server.prompts import bounded
from oxillama.base.config import GenerationOptions, SamplerConfig
from oxillama.base.config.option import declared
from oxillama.base.config.option_texts import did_you_mean
from oxillama.base.config.response_format import constraint_of, same_constraint
from oxillama.base.config.sampler import CONSTRAINTS
from oxillama.engine.engine import InferenceEngine

WINDOW = 64
"""Pieces of text that may wait for the event loop. A small model makes 16 in the 60 ms that the loop may wait
for a processor, and a step over the streams that are not paused costs nearly as much as one over all."""


def whole(value: Any) -> Any:
    """A value for an integer: 8192.0 is 8192, as in JSON Schema. Some clients send floats for all numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**64 else value


def most_tokens(name: str, value: Any) -> Any:
    """A number of tokens; -1 or -2 for as many as the context holds."""
    return None if value in (-1, -2) and not isinstance(value, bool) else value


def seed(name: str, value: Any) -> Any:
    """A seed; -1 for a new one. Others below 0 are taken modulo 2^64: clients send signed integers."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**64:
        return value  # the option's check refuses it
    return None if value == -1 else value % 2**64


def stage_off(name: str, value: Any) -> Any:
    """The number of a stage of the sampler; -1 switches the stage off, as 0 does (llama-server, vLLM)."""
    return 0 if value == -1 and not isinstance(value, bool) else value


def biases(engine: InferenceEngine, name: str, value: Any) -> dict[int, float]:
    """Biases by token id: OpenAI's object, or llama-server's pairs, in which false bans a token.

    A text in the place of an id stands for each of its tokens; in an object a number in quotes is an id.
    """
    pairs = value.items() if isinstance(value, Mapping) else value
    found: dict[int, float] = {}
    try:
        if isinstance(value, str):
            raise TypeError
        for token, bias in pairs:
            if isinstance(value, Mapping) and re.fullmatch(r"-?[0-9]{1,19}", token):
                token = int(token)
            if isinstance(token, bool) or not isinstance(token, (int, str)) or token == "":
                raise TypeError
            tokens = (
                bounded(engine, name).encode(token, add_special=False) if isinstance(token, str) else [token]
            )
            found |= dict.fromkeys(tokens, float("-inf") if bias is False else bias)
    except (TypeError, ValueError):
        raise invalid(name, "an object or pairs of token ids or texts and biases", value) from None
    return found


def own_salt(name: str, value: Any) -> dict[str, Any]:
    """Whether a prompt may use the cached prefixes of others; if not, a salt of its own."""
    if not isinstance(value, bool):
        raise invalid(name, "true or false", value)
    return {} if value else {"salt": uuid.uuid4().hex}


def breakers(name: str, value: Any) -> Any:
    """Texts, or lists of token ids."""
    if not isinstance(value, list):
        raise invalid(name, "a list", value)
    return tuple(tuple(item) if isinstance(item, list) else item for item in value)


def stage_names(name: str, value: Any) -> Any:
    """Names of the sampler's stages: a list, or with semicolons between them."""
    names = value.split(";") if isinstance(value, str) else value
    if not isinstance(names, list):
        raise invalid(name, "a list of names", value)
    return tuple({"typ_p": "typical_p"}.get(item, item) if isinstance(item, str) else item for item in names)


DRAFTERS = ("off", "lookup", "self")
"""What may draft for a client."""


def speculation(name: str, value: Any) -> str:
    """How tokens are drafted; no file is opened for a client."""
    if value not in DRAFTERS:
        raise invalid(name, 'one of "' + '", "'.join(DRAFTERS) + '"', value)
    return str(value)


STRUCTURED = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choices",
    "grammar": "grammar",
    "structural_tag": "structural_tag",
    "json_object": "json_schema",
}
"""The keys of vLLM's `structured_outputs`, and the fields that they come to."""


def structured_outputs(name: str, value: Any) -> dict[str, Any]:
    """The field of a constraint, from vLLM's object with one of the keys of `STRUCTURED`."""
    if not isinstance(value, Mapping):
        raise invalid(name, f"an object with one of {', '.join(STRUCTURED)}", value)
    given = {key: item for key, item in value.items() if item is not None}
    for key, item in list(given.items()):
        if key not in STRUCTURED:
            raise invalid(name, f"one of {', '.join(STRUCTURED)}", key)
        if key == "json_object" and item is False:
            del given[key]
    if len(given) != 1:
        raise invalid(name, f"one of {', '.join(STRUCTURED)}", list(given))
    ((key, item),) = given.items()
    if key == "json_object":
        return json_object(f"{name}.{key}", item)
    return {STRUCTURED[key]: item}


def json_object(name: str, value: Any) -> dict[str, Any]:
    """Whether the text must be any JSON object."""
    if not isinstance(value, bool):
        raise invalid(name, "true or false", value)
    return {"json_schema": {"type": "object"}} if value else {}


def grammar(name: str, value: Any) -> dict[str, Any]:
    """A grammar; an empty text asks for no grammar, as in llama-server."""
    return {} if value == "" else {"grammar": value}


DECLARED = {**declared(GenerationOptions), **declared(SamplerConfig)}
OTHER_NAMES = {other: name for name, option in DECLARED.items() for other in option.names.split()}

OPTIONS = {**{name: name for name, option in DECLARED.items() if option.server}, **OTHER_NAMES}
"""The option of each name."""

CONVERTED: dict[str, Callable[[str, Any], Any]] = {
    "max_tokens": most_tokens,
    "reasoning_budget": most_tokens,
    "seed": seed,
    "top_k": stage_off,
    "top_n_sigma": stage_off,
    "dry_sequence_breakers": breakers,
    "order": stage_names,
    "speculate": speculation,
}
"""What makes the values of options that are not JSON's own."""

SEVERAL: dict[str, Callable[[str, Any], dict[str, Any]]] = {
    "response_format": lambda name, value: constraint_of(value),
    "structured_outputs": structured_outputs,
    "guided_json_object": json_object,
    "grammar": grammar,
    "cache_prompt": own_salt,
}
"""Names whose values say which field they set, or none: what makes fields of them."""

OF_THE_MODEL: dict[str, tuple[str, Callable[[InferenceEngine, str, Any], Any]]] = {
    "logit_bias": ("logit_bias", biases),
    "lora": ("adapters", loras),
}
"""Names whose values depend on what the model has: the field, and what makes its value."""

HARMLESS: dict[str, tuple[Any, ...] | None] = {name: each.values for name, each in NO_EFFECT.items()}
"""Fields that change nothing here, and the values with which that is right; None for any."""

NAMES = frozenset((*OPTIONS, *SEVERAL, *OF_THE_MODEL, *HARMLESS))
"""Of the tables above: what a body may say of a text, on all paths that make texts."""


def check_harmless(name: str, value: Any) -> None:
    """Raises ApiError for a value that asks for something."""
    allowed = HARMLESS[name]
    value = whole(value)
    if allowed is not None and not any(type(value) is type(v) and value == v for v in allowed):
        shown = " or ".join(map(repr, allowed))
        raise unsupported(name, f"{shown}, which is all that is supported", value)


def options_of(
    rest: Mapping[str, Any],
    engine: InferenceEngine,
    defaults: Mapping[str, Any] = {},
    known: Iterable[str] = (),
    **fixed: Any,
) -> GenerationOptions:
    """The options that the fields of a body ask for.

    Args:
        rest: fields that the interface has not read itself.
        engine: whose sampler is in use for what they do not say, and whose adapters they name.
        defaults: fields of `GenerationOptions` where the body says nothing.
        known: other names that are right, for the message about one that is not.
        fixed: fields of `GenerationOptions` and `SamplerConfig` that the interface sets, where they are not
            None. A body cannot set them, too.

    Raises:
        ApiError: a name is unknown, or two fields say different things.
        ConfigError: a value is outside its range.
    """
    fixed = {name: value for name, value in fixed.items() if value is not None}
    chosen: dict[str, Any] = {}
    said: dict[str, str] = {}
    for name, value in rest.items():
        if value is None:
            continue
        if name in OF_THE_MODEL:
            field, make = OF_THE_MODEL[name]
            chosen[field] = make(engine, name, value)
        elif name in OPTIONS or name in SEVERAL:
            for field, made in made_of(name, value).items():
                if field in chosen and not same_constraint(chosen[field], made):
                    raise invalid(name, f"the value of {said[field]}", value)
                other = next((said[c] for c in CONSTRAINTS if c in said and c != field), None)
                if field in CONSTRAINTS and other is not None:
                    raise conflict(name, other)
                if field in fixed:
                    raise conflict(name, f"what sets {field} already")
                chosen[field], said[field] = made, name
        elif name in HARMLESS:
            check_harmless(name, value)
        else:
            raise unknown(name, known)
    here = context()
    usual = {"window": WINDOW, "request_id": here.request_id, **defaults}
    if here.config.max_tokens is not None:
        usual["max_tokens"] = here.config.max_tokens
    found = GenerationOptions.of(None, {**usual, **fixed, **chosen}, engine.config.sampler)
    return within_limits(found, {*fixed, *chosen})


def made_of(name: str, value: Any) -> dict[str, Any]:
    """The fields that a name of `OPTIONS` or `SEVERAL` sets, with values. Raises ApiError, ConfigError."""
    if name in SEVERAL:
        return SEVERAL[name](name, value)
    field = OPTIONS[name]
    if DECLARED[field].kind == "int":
        value = whole(value)
    return {field: CONVERTED[field](name, value) if field in CONVERTED else value}


def conflict(name: str, other: str) -> ApiError:
    """The error for a field that cannot be honoured together with another one."""
    return fault(name, f"cannot be combined with {other}", "invalid_value")


def unknown(name: str, known: Iterable[str] = (), refused: Mapping[str, str] = {}) -> ApiError:
    """The error for a field that nobody knows, or that a path does not have.

    Args:
        known: other fields of the path.
        refused: reasons for published fields that the path refuses.
    """
    if name in refused:
        return fault(name, f"expected no such field, for {refused[name]}", "unsupported_parameter")
    names = {*known, *NAMES} - {name}
    hint = did_you_mean(name[:200], {each: each for each in sorted(names)})
    return fault(name[:200], f"is no option{hint}", "unknown_parameter")
