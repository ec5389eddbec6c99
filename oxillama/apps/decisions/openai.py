"""OpenAI's format of decisions (``POST /v1/decisions``, openai-python 3.57.0)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from oxillama.apps.decisions.wire import (
    Asked,
    Place,
    WireError,
    check_names,
    list_of,
    need,
    object_of,
    optional_text,
    shown,
    text_of,
)
from oxillama.engine.features.decisions.answers import ChoiceAnswer, Decision, PredicateAnswer
from oxillama.engine.features.decisions.pictures import Placeholders
from oxillama.engine.features.decisions.questions import (
    LEVELS,
    MOST_OPTIONS,
    AnyQuestion,
    Choice,
    Predicate,
    Score,
)

NO_EFFECT = ("safety_identifier", "prompt_cache_key", "prompt_cache_options")
"""Beginnings of prompts are cached by themselves."""

FIELDS = ("model", "input", "questions", *NO_EFFECT)
MOST_QUESTIONS = 400
MOST_IDENTIFIER = 128
JSON_LEVELS, JSON_VALUES, JSON_BYTES = 32, 10_000, 256 << 10
TEXTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Types of parts, and where their text is."""

DETAILS = (None, "auto", "high", "original")
"""Of a picture: a model has one number of tokens for it, so that nothing can ask for fewer."""

CALLS = {"function_call": "arguments", "custom_tool_call": "input"}


def asked_of(body: Any) -> Asked:
    """The request of a body. Raises WireError, which has the place of the fault."""
    body = object_of(body, ("body",))
    check_names(body, FIELDS)
    model = text_of(need(body, "model"), ("model",))
    if len(optional_text(body, "safety_identifier") or "") > MOST_IDENTIFIER:
        raise WireError(("safety_identifier",), f"must have at most {MOST_IDENTIFIER} characters")
    optional_text(body, "prompt_cache_key")
    if body.get("prompt_cache_options") is not None:
        object_of(body["prompt_cache_options"], ("prompt_cache_options",))
    questions = list_of(need(body, "questions"), ("questions",), 1, MOST_QUESTIONS)
    media = Placeholders(body)
    state = state_of(need(body, "input"), media)
    asked = [question_of(each, ("questions", i), media) for i, each in enumerate(questions)]
    return Asked(model, state, asked, media.media)


def word_of(value: Any) -> str:
    """The name of a type; a value that is not text becomes its representation, which no type has."""
    return value if isinstance(value, str) else repr(value)


# --- the input ----------------------------------------------------------------------------------------


def state_of(value: Any, media: Placeholders) -> Any:
    """The state of an input: a text, the text or the JSON of the only message, or a list of messages."""
    if isinstance(value, str):
        return value
    items = list_of(value, ("input",), 1, 10_000)
    messages, called = [], set[Any]()
    for i, item in enumerate(items):
        place = ("input", i)
        kind = word_of(object_of(item, place).get("type", "message"))
        if kind == "message":
            messages.append(message_of(item, place, media))
        elif kind in CALLS:
            called.add((kind, text_of(need(item, "call_id", place), (*place, "call_id"))))
            given = text_of(need(item, CALLS[kind], place), (*place, CALLS[kind]))
            name = text_of(need(item, "name", place), (*place, "name"))
            messages.append({"role": "assistant", "call": name, CALLS[kind]: given})
        elif kind.removesuffix("_output") in CALLS:
            id = text_of(need(item, "call_id", place), (*place, "call_id"))
            if (kind.removesuffix("_output"), id) not in called:
                raise WireError((*place, "call_id"), "must be that of an earlier call")
            content = content_of(need(item, "output", place), (*place, "output"), media)
            messages.append({"role": "tool", "content": content})
        else:
            raise WireError((*place, "type"), f"is no item of an input: {kind!r:.100}")
    if len(messages) == 1 and messages[0].get("role") == "user":
        return messages[0]["content"]
    return messages


def message_of(item: Mapping[str, Any], place: Place, media: Placeholders) -> dict[str, Any]:
    check_names(item, ("type", "role", "content", "phase", "id", "status"), place)
    role = need(item, "role", place)
    if role not in ("user", "assistant", "developer", "system"):
        raise WireError((*place, "role"), f"must be user, assistant, developer or system, got {role!r:.100}")
    content = content_of(need(item, "content", place), (*place, "content"), media)
    return {"role": role, "content": content}


def content_of(value: Any, place: Place, media: Placeholders) -> Any:
    """A content: text, the JSON of its only part, or the lines of its parts."""
    if isinstance(value, str):
        return value
    found = [part_of(part, (*place, i), media) for i, part in enumerate(list_of(value, place, 1, 10_000))]
    if len(found) == 1:
        return found[0]
    return "\n".join(part if isinstance(part, str) else compact(part) for part in found)


def part_of(value: Any, place: Place, media: Placeholders) -> Any:
    """The text or the JSON of a part; a placeholder for a picture."""
    part = object_of(value, place)
    kind = word_of(need(part, "type", place))
    if kind in TEXTS:
        check_names(part, ("type", TEXTS[kind], "prompt_cache_breakpoint", "annotations", "logprobs"), place)
        return text_of(need(part, TEXTS[kind], place), (*place, TEXTS[kind]))
    if kind == "input_json":
        return json_of(need(part, "data", place), (*place, "data"))
    if kind == "input_image":
        check_names(part, ("type", "image_url", "detail", "prompt_cache_breakpoint"), place)
        detail = part.get("detail")
        if detail not in DETAILS:
            names = ", ".join(map(str, DETAILS[1:]))
            raise WireError((*place, "detail"), f"must be one of {names}, got {detail!r:.100}", "unsupported")
        url = text_of(need(part, "image_url", place), (*place, "image_url"))
        return media.add(shown(place), {"type": kind, "image_url": url})
    raise WireError((*place, "type"), f"is no part of a content: {kind!r:.100}")


def json_of(value: Any, place: Place) -> Any:
    """An object, or an array of objects, within the published limits."""
    is_listed = isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
    if not (isinstance(value, Mapping) or is_listed):
        raise WireError(place, "must be an object or an array of objects")
    level: Sequence[Any] = [value]
    n_values = depth = 0
    while level:
        depth, n_values = depth + 1, n_values + len(level)
        if depth > JSON_LEVELS or n_values > JSON_VALUES:
            raise WireError(place, f"must have at most {JSON_LEVELS} levels and {JSON_VALUES} values")
        lists = [each.values() if isinstance(each, Mapping) else each for each in level if is_nested(each)]
        level = [item for each in lists for item in each]
    if len(compact(value).encode("utf-8", "replace")) > JSON_BYTES:
        raise WireError(place, f"must have at most {JSON_BYTES} bytes")
    return value


def is_nested(value: Any) -> bool:
    return isinstance(value, (Mapping, list))


def compact(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- questions and answers ----------------------------------------------------------------------------


def question_of(value: Any, place: Place, media: Placeholders) -> AnyQuestion:
    """A question. Raises WireError."""
    question = object_of(value, place)
    kind = word_of(question.get("type"))
    lists = {"predicate": None, "choice": "choices", "score": "levels"}
    if kind not in lists:
        raise WireError((*place, "type"), f"must be one of {', '.join(lists)}, got {kind!r:.100}")
    inner = lists[kind]
    check_names(question, ("type", "instructions", "name", *([inner] if inner else [])), place)
    name = optional_text(question, "name", place)
    instructions = content_of(need(question, "instructions", place), (*place, "instructions"), media)
    if inner is None:
        return Predicate(instructions, name=name)
    entries = need(question, inner, place)
    if inner == "choices":
        return Choice(instructions, choices_of(entries, (*place, inner)), name=name)
    return Score(instructions, levels_of(entries, (*place, inner)), name=name)


def choices_of(value: Any, place: Place) -> list[tuple[str | bool, Any]]:
    """Options, whose values are text or booleans: True is not "true"."""
    found: list[tuple[str | bool, Any]] = []
    for i, entry in enumerate(list_of(value, place, 2, MOST_OPTIONS)):
        check_names(object_of(entry, (*place, i)), ("value", "description"), (*place, i))
        option = need(entry, "value", (*place, i))
        if not isinstance(option, (str, bool)):
            raise WireError((*place, i, "value"), f"must be a string or a boolean, got {option!r:.100}")
        found.append((option, optional_text(entry, "description", (*place, i))))
    if len({(type(option), option) for option, _ in found}) < len(found):
        raise WireError(place, "must have different values")
    return found


class Level(str):
    """What the model is shown of a level: its label, with its description behind it.

    Attributes:
        label: alone.
    """

    label: str = ""


def levels_of(value: Any, place: Place) -> list[Level]:
    found = []
    for i, entry in enumerate(list_of(value, place, *LEVELS)):
        check_names(object_of(entry, (*place, i)), ("label", "description"), (*place, i))
        label = text_of(need(entry, "label", (*place, i)), (*place, i, "label"))
        description = optional_text(entry, "description", (*place, i))
        level = Level(f"{label}: {description}" if description else label)
        level.label = label
        found.append(level)
    return found


def answer_body(model: str, decision: Decision) -> dict[str, Any]:
    cached = {"cached_tokens": decision.n_cached, "cache_write_tokens": 0}
    return {
        "model": model,
        "answers": [answer_of(answer) for answer in decision.answers],
        "usage": {
            "input_tokens": decision.n_input,
            "input_tokens_details": cached,
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": decision.n_input,
        },
    }


def answer_of(answer: Any) -> dict[str, Any]:
    more = {} if answer.label_mass is None else {"x_label_mass": answer.label_mass}
    if isinstance(answer, PredicateAnswer):
        return {"type": "predicate", "name": answer.name, "probability": answer.probability, **more}
    if isinstance(answer, ChoiceAnswer):
        shares = [{"value": value, "probability": p} for value, p in answer.probabilities]
        found = {"type": "choice", "name": answer.name, "choice": answer.choice, "probabilities": shares}
        return {**found, "confidence": answer.confidence, **more}
    shares = [
        {"value": i, "label": getattr(level, "label", level), "probability": p}
        for i, (level, p) in enumerate(zip(answer.legend, answer.probabilities))
    ]
    found = {"type": "score", "name": answer.name, "score": answer.score, "probabilities": shares}
    return {**found, "confidence": answer.confidence, **more}
