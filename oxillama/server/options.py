"""The options of a request for text, by the names that clients have for them.

This is the one table of names. What is in neither table is an error that names it. A field that is null is
as good as absent, as OpenAI's clients have it.
"""

from __future__ import annotations

import difflib
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from oxillama.config import GenerationOptions
from oxillama.config.generation import OPTION_NAMES
from oxillama.engine.engine import InferenceEngine
from oxillama.server.errors import ApiError, invalid
from oxillama.server.loras import loras

Convert = Callable[[str, Any], Any]

ABSENT = object()
"""What a field comes to that changes nothing."""


def same(name: str, value: Any) -> Any:
    return value


def most_tokens(name: str, value: Any) -> Any:
    """A number of tokens; -1 or -2 for as many as the context holds."""
    return None if value in (-1, -2) and not isinstance(value, bool) else value


def seed(name: str, value: Any) -> Any:
    """A seed; -1 for a new one. Others below 0 are taken modulo 2^64: clients send signed integers."""
    if isinstance(value, bool) or not isinstance(value, int) or value < -(2**63):
        return value  # which is then refused
    return None if value == -1 else value % 2**64


def biases(engine: InferenceEngine, name: str, value: Any) -> dict[int, float]:
    """Biases by token id: OpenAI's object, or llama-server's pairs, in which false bans a token.

    A text in the place of an id stands for each of its tokens; in an object a number in quotes is an id.
    """
    pairs = value.items() if isinstance(value, Mapping) else value
    found: dict[int, float] = {}
    try:
        for token, bias in pairs:
            if isinstance(value, Mapping) and re.fullmatch(r"-?[0-9]{1,19}", token):
                token = int(token)
            if isinstance(token, bool) or not isinstance(token, (int, str)) or token == "":
                raise TypeError
            tokens = engine.tokenizer.encode(token, add_special=False) if isinstance(token, str) else [token]
            found |= dict.fromkeys(tokens, float("-inf") if bias is False else bias)
    except (TypeError, ValueError):
        raise invalid(name, "an object or pairs of token ids or texts and biases", value) from None
    return found


def own_salt(name: str, value: Any) -> Any:
    """A salt that no other request has, for one that may use nothing that others have run."""
    if value is True:
        return ABSENT
    if value is not False:
        raise invalid(name, "true or false", value)
    return uuid.uuid4().hex


def breakers(name: str, value: Any) -> Any:
    """Texts, or lists of token ids."""
    if not isinstance(value, list):
        raise invalid(name, "a list", value)
    return tuple(tuple(item) if isinstance(item, list) else item for item in value)


def texts(name: str, value: Any) -> Any:
    """A list as a tuple."""
    return tuple(value) if isinstance(value, list) else value


def stage_names(name: str, value: Any) -> Any:
    """Names of the sampler's stages: a list, or with semicolons between them."""
    names = value.split(";") if isinstance(value, str) else value
    if not isinstance(names, list):
        raise invalid(name, "a list of names", value)
    return tuple({"typ_p": "typical_p"}.get(item, item) if isinstance(item, str) else item for item in names)


def speculation(name: str, value: Any) -> str:
    """How tokens are drafted; no file is opened for a client."""
    if value not in ("off", "lookup", "self"):
        raise invalid(name, 'one of "off", "lookup", "self"', value)
    return str(value)


@dataclass(frozen=True)
class Option:
    """Where a field of a body goes.

    Attributes
    ----------
    field : of `GenerationOptions` or `SamplerConfig`, which check the value.
    convert : makes that field's value of the body's.
    """

    field: str
    convert: Convert = same


CONVERTED: dict[str, Convert] = {
    "max_tokens": most_tokens,
    "seed": seed,
    "dry_sequence_breakers": breakers,
    "banned_tokens": texts,
    "allowed_tokens": texts,
    "choices": texts,
    "order": stage_names,
    "speculate": speculation,
}
"""Fields whose values are not JSON's own."""

NOT_OFFERED = (
    *("sampler", "window", "keep_logits", "request_id"),  # the server's own
    *("logprobs", "top_logprobs"),  # each interface has its form
    *("tools", "tool_choice", "parallel_tool_calls", "message_format"),  # of chats alone
    *("adapters", "logit_bias"),  # of the model: see OF_THE_MODEL
)
"""Fields that no body may set under their own names."""

OTHER_NAMES = {
    "max_completion_tokens": "max_tokens",  # OpenAI
    "num_predict": "max_tokens",  # Ollama
    "n_predict": "max_tokens",  # llama-server from here on
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "repetition_window",
    "dry_penalty_last_n": "dry_range",
    "samplers": "order",
    "cache_salt": "salt",  # vLLM
}
"""Other names of fields, and whose they are."""

OPTIONS: dict[str, Option] = {
    **{name: Option(name, CONVERTED.get(name, same)) for name in OPTION_NAMES if name not in NOT_OFFERED},
    **{name: Option(field, CONVERTED.get(field, same)) for name, field in OTHER_NAMES.items()},
    "cache_prompt": Option("salt", own_salt),
}
"""Every name of an option."""

OF_THE_MODEL: dict[str, tuple[str, Callable[[InferenceEngine, str, Any], Any]]] = {
    "logit_bias": ("logit_bias", biases),
    "lora": ("adapters", loras),
}
"""Names whose values depend on what the model has: the field, and what makes its value."""

HARMLESS: dict[str, tuple[Any, ...] | None] = {
    "user": None,
    "metadata": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
    "prompt_cache_retention": None,
    "service_tier": ("auto", "default"),
    "store": (False,),
    "modalities": (["text"],),
    "id_slot": (-1,),
    "n_keep": (0, -1),
    "n_discard": (0,),
    "return_progress": (False,),
    "use_beam_search": (False,),
    "best_of": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": None,
    **dict.fromkeys(("num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep")),  # Ollama
    **dict.fromkeys(("low_vram", "numa", "use_mmap", "use_mlock")),
    "functions": ([],),
    "function_call": ("none", "auto"),
}
"""Fields that change nothing here, and the values with which that is right; None for any."""


def check_harmless(name: str, value: Any) -> None:
    """Raises ApiError for a value that asks for something."""
    allowed = HARMLESS[name]
    if allowed is not None and not any(type(value) is type(v) and value == v for v in allowed):
        shown = " or ".join(map(repr, allowed))
        message = f"{name}: expected {shown}, which is all that is supported, got {value!r:.200}"
        raise ApiError(400, message, param=name, code="unsupported_value")


def options_of(
    rest: Mapping[str, Any],
    engine: InferenceEngine,
    known: Iterable[str] = (),
    defaults: Mapping[str, Any] = {},
    **fixed: Any,
) -> GenerationOptions:
    """The options that the fields of a body ask for.

    Parameters
    ----------
    rest : fields that the interface has not read itself.
    engine : whose sampler is in use for what they do not say, and whose adapters they name.
    known : names of those that it has, for the message about a name that is unknown.
    defaults : fields of `GenerationOptions` where the body says nothing.
    fixed : fields of `GenerationOptions` and `SamplerConfig` that the interface sets, where they are not
        None. A body cannot set them, too.

    Raises
    ------
    ApiError : a name is unknown, or two fields say different things.
    ConfigError : a value is outside its range.
    """
    fixed = {name: value for name, value in fixed.items() if value is not None}
    chosen: dict[str, Any] = {}
    said: dict[str, str] = {}
    for name, value in rest.items():
        if value is None:
            continue
        if name in OPTIONS:
            option = OPTIONS[name]
            made = option.convert(name, value)
            if made is ABSENT:
                continue
            if option.field in chosen and chosen[option.field] != made:
                raise invalid(name, f"the value of {said[option.field]}", value)
            if option.field in fixed:
                message = f"{name}: cannot be combined with what sets {option.field} already"
                raise ApiError(400, message, param=name, code="invalid_value")
            chosen[option.field], said[option.field] = made, name
        elif name in OF_THE_MODEL:
            field, make = OF_THE_MODEL[name]
            chosen[field] = make(engine, name, value)
        elif name in HARMLESS:
            check_harmless(name, value)
        else:
            raise unknown(name, known)
    return GenerationOptions.of(None, {**defaults, **fixed, **chosen}, engine.config.sampler)


def unknown(name: str, known: Iterable[str]) -> ApiError:
    """The error for a field that nobody knows, or that a path does not have."""
    names = {*known, *OPTIONS, *OF_THE_MODEL, *HARMLESS} - {name}
    near = difflib.get_close_matches(name, sorted(names), 1)
    hint = f"; {near[0]} is" if near else ""
    return ApiError(400, f"{name[:200]}: is no option{hint}", param=name[:200], code="unknown_parameter")
