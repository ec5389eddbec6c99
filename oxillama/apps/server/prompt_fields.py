"""Fields that take prompts: texts, token ids, and texts with media."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

from oxillama.engine.features.media.prompt import MARKER


@dataclass(frozen=True)
class MediaText:
    """llama-server's prompt with media.

    Attributes:
        text: with a marker in the place of each medium.
        data: base64 of each.
        places: the field of each.
    """

    text: str
    data: list[str]
    places: list[str]


Prompt = str | list[int | str] | MediaText
"""A text, token ids with texts among them, or a text with media."""


@dataclass(frozen=True)
class Prompts:
    """The value of a field that takes one prompt or several.

    Attributes:
        each: the prompts.
        is_list: whether they were given as a list of prompts.
    """

    each: list[Prompt]
    is_list: bool


def prompts(value: Any) -> Prompts:
    """The prompts of a body. Raises ValueError for other values.

    A list with an integer in it is one prompt, as for llama-server; any other list is a list of prompts.
    """
    one = prompt(value)
    if one is not None:
        return Prompts([one], False)
    each = [prompt(item) for item in value] if isinstance(value, list) else []
    if not each or None in each:
        raise ValueError("a text, token ids, or a list of these")
    return Prompts([item for item in each if item is not None], True)


def prompt(value: Any) -> Prompt | None:
    """A single prompt: a text, token ids with texts among them, or llama-server's object; None for others."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        is_one = all(type(item) in (int, str) for item in value) and any(type(item) is int for item in value)
        return value if is_one else None
    if not isinstance(value, dict):
        return None
    if set(value) == {"prompt_string", "multimodal_data"}:
        return media_text(value["prompt_string"], value["multimodal_data"])
    if len(value) != 1:
        return None
    text, parts = value.get("prompt_string"), value.get("content")
    if isinstance(text, str):
        return text
    if isinstance(parts, list) and parts:
        found = [medium_of(part) for part in parts]
        places = [f"content[{i}].{each[1]}" for i, each in enumerate(found) if each is not None]
        media = [each[0] for each in found if each is not None]
        texts = [part["text"] if is_text_part(part) else MARKER for part in parts]
        if len(media) + sum(map(is_text_part, parts)) == len(parts):
            return media_text("".join(texts), media, places)
    return None


def medium_of(part: Any) -> tuple[str, str] | None:
    """The data URL or the base64 of a content part that is a picture or a sound, and its field; or None."""
    name = part.get("type") if isinstance(part, dict) else None
    if name not in ("image_url", "input_audio") or set(part) != {"type", name}:
        return None
    inner, field = part[name], "url" if name == "image_url" else "data"
    known = {field} if name == "image_url" else {field, "format"}
    is_inner = isinstance(inner, dict) and set(inner) <= known
    found, place = (inner.get(field), f"{name}.{field}") if is_inner else (inner, name)
    return (found, place) if isinstance(found, str) else None


def media_text(text: Any, data: Any, places: list[str] | None = None) -> Prompt | None:
    """llama-server's prompt with media, a plain text without media; None for other values."""
    if not isinstance(text, str) or not isinstance(data, list) or not all(type(x) is str for x in data):
        return None
    places = places or [f"multimodal_data[{i}]" for i in range(len(data))]
    return MediaText(text, data, places) if data else text


def is_text_part(value: Any) -> bool:
    """Whether a value is a content part of type text."""
    return isinstance(value, dict) and value.get("type") == "text" and isinstance(value.get("text"), str)


PROMPT: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "minItems": 1, "items": {"type": ["string", "integer", "array", "object"]}},
        {"type": "object", "minProperties": 1, "maxProperties": 2},
    ]
}
"""The JSON schema of what `prompts` takes, and of a little more."""

PromptField = Annotated[Any, AfterValidator(prompts), WithJsonSchema(PROMPT)]
