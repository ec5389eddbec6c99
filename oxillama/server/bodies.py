"""Bodies of requests: JSON, checked by pydantic. What a class does not name is for the table of options."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from starlette.requests import Request

from oxillama.media.prompt import MARKER
from oxillama.server.callers import context
from oxillama.server.errors import ApiError
from oxillama.server.json_text import parsed
from oxillama.server.options import NAMES, unknown
from oxillama.server.pieces import LARGE
from oxillama.server.processes import NoProcess
from oxillama.server.workers import pools

B = TypeVar("B", bound="Body")
T = TypeVar("T")

HUGE = 1 << 17
"""Bytes from which a body is read in a process."""

MOST_CHOICES = 1024
"""Texts that a request may ask for: prompts times samples."""


@dataclass(frozen=True)
class MediaText:
    """llama-server's prompt with media.

    Attributes
    ----------
    text : with a marker in the place of each medium. data : base64 of each.
    """

    text: str
    data: list[str]


Prompt = str | list[int | str] | MediaText
"""A text, token ids with texts among them, or a text with media."""


@dataclass(frozen=True)
class Prompts:
    """What stands in a body where one prompt can be given, or several.

    Attributes
    ----------
    each : the prompts. is_list : whether they were given as a list of prompts.
    """

    each: list[Prompt]
    is_list: bool


def prompts(value: Any) -> Prompts:
    """The prompts of a body. Raises ValueError for what is none.

    A list with an integer in it is one prompt, as llama-server has it; any other is a list of prompts.
    """
    one = prompt(value)
    if one is not None:
        return Prompts([one], False)
    each = [prompt(item) for item in value] if isinstance(value, list) else []
    if not each or None in each:
        raise ValueError("a text, token ids, or a list of these")
    return Prompts([item for item in each if item is not None], True)


def prompt(value: Any) -> Prompt | None:
    """One prompt: a text, token ids with texts among them, or llama-server's objects with a text; or None."""
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
        media = [medium for part in parts if (medium := medium_of(part)) is not None]
        texts = [part["text"] if is_text_part(part) else MARKER for part in parts]
        if len(media) + sum(map(is_text_part, parts)) == len(parts):
            return media_text("".join(texts), media)
    return None


def medium_of(part: Any) -> str | None:
    """The data URL or the base64 of a content part that is a picture or a sound and nothing else; or None."""
    name = part.get("type") if isinstance(part, dict) else None
    if name not in ("image_url", "input_audio") or set(part) != {"type", name}:
        return None
    inner, field = part[name], "url" if name == "image_url" else "data"
    known = {field} if name == "image_url" else {field, "format"}
    found = inner.get(field) if isinstance(inner, dict) and set(inner) <= known else inner
    return found if isinstance(found, str) else None


def media_text(text: Any, data: Any) -> Prompt | None:
    """llama-server's prompt with media, a text without any; None for what is none."""
    if not isinstance(text, str) or not isinstance(data, list) or not all(type(x) is str for x in data):
        return None
    return MediaText(text, data) if data else text


def is_text_part(value: Any) -> bool:
    """Whether it is a content part that is a text."""
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


class Body(BaseModel):
    """A body with fields of its own and others.

    Attributes
    ----------
    takes_options : whether the others are options of a text; without, they are errors.
    inner_options : of what the field ``options`` has options: a "text", or "vectors"; "" without the field.
    """

    model_config = ConfigDict(extra="allow", strict=True)
    takes_options: ClassVar[bool] = False
    inner_options: ClassVar[str] = ""

    @property
    def rest(self) -> dict[str, Any]:
        """The fields that the class does not name."""
        return self.model_extra or {}


class Part(BaseModel):
    """A part of a body without further fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Part):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class Generating(Body):
    """What all bodies that ask for text have."""

    takes_options = True
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=MOST_CHOICES)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(Generating):
    prompt: PromptField
    best_of: int | None = Field(None, ge=1, le=MOST_CHOICES)
    return_progress: bool = False
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=100)
    suffix: str | None = None


class NativeBody(Body):
    """llama-server's."""

    takes_options = True
    prompt: PromptField
    model: str | None = None
    stream: bool = False
    n_probs: int = Field(0, ge=0, le=100)
    return_tokens: bool = False
    post_sampling_probs: bool = False
    response_fields: list[str] = Field(default_factory=list, max_length=100)
    timings_per_token: bool = False
    return_progress: bool = False
    id_slot: int = Field(-1, ge=-1)


class ExtraFile(Part):
    """A part of another file that the model sees before the text."""

    text: str
    filename: str = "tmp"


class InfillBody(NativeBody):
    prompt: str = ""
    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraFile] = Field(default_factory=list)


class TemplateBody(Body):
    """A conversation."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    model: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: list[dict[str, Any]] = Field(default_factory=list)


class ChatBody(TemplateBody, Generating):
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=100)
    reasoning_format: Literal["auto", "none", "deepseek"] = "auto"
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    timings_per_token: bool = False
    return_progress: bool = False
    id_slot: int = Field(-1, ge=-1)
    verbose: bool = False


class EmbeddingBody(TemplateBody):
    """Texts, or one conversation, whose fields are vLLM's."""

    input: PromptField = None
    messages: list[dict[str, Any]] = Field(default_factory=list, min_length=1)
    add_generation_prompt: bool = False
    add_special_tokens: bool = False
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    pooling: str | None = None
    user: Any = None


class NativeEmbeddingBody(Body):
    """llama-server's."""

    content: PromptField = None
    input: PromptField = None
    model: str | None = None
    pooling: str | None = None
    embd_normalize: Literal[-1, 2] = 2


class RerankBody(Body):
    query: str
    documents: list[str | dict[str, Any]] | None = Field(None, min_length=1)
    texts: list[str] | None = Field(None, min_length=1)
    model: str | None = None
    top_n: int | None = Field(None, ge=1)
    return_documents: bool = False
    return_text: bool = False


class TokenizeBody(Body):
    content: str
    model: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


def token_list(value: Any) -> list[int]:
    """A list of integers; one of millions is looked through without holding up other threads."""
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise ValueError("a list of integers")
    return value


class DetokenizeBody(Body):
    tokens: Annotated[
        Any,
        AfterValidator(token_list),
        WithJsonSchema({"type": "array", "items": {"type": "integer"}}),
    ]
    model: str | None = None


async def read_body(request: Request, kind: type[B]) -> B:
    """The checked body of a request. Raises ApiError."""
    return await read(request, partial(checked_body, kind))


def checked_body(kind: type[B], value: Any) -> B:
    """What a body holds, as one of a class. Raises ApiError."""
    if not isinstance(value, dict):
        raise ApiError(400, f"body: expected an object, got {type(value).__name__}", code="invalid_json")
    try:
        made = kind.model_validate({name: item for name, item in value.items() if item is not None})
    except ValidationError as error:
        raise first_fault(error) from error
    for name in made.rest:
        if not (kind.takes_options and name in NAMES):
            raise unknown(name, kind.model_fields)
    return made


async def read_json(request: Request) -> Any:
    """What the body of a request holds as JSON. Raises ApiError."""
    return await read(request, unchecked)


def unchecked(value: Any) -> Any:
    return value


async def read(request: Request, check: Callable[[Any], T]) -> T:
    """What ``check`` makes of the JSON in a body. Raises ApiError.

    A large one is read in a thread, a huge one in a process.
    """
    require_json(request)
    data = await request.body()
    context().n_bytes = len(data)
    if len(data) < LARGE:
        return checked(check, data)
    parse, processes = pools().parse, pools().processes
    if len(data) >= HUGE:
        with suppress(NoProcess):
            return await parse.run(processes.run, checked, check, data, True, in_process=True)
    return await parse.run(checked, check, data, size=len(data))


def checked(check: Callable[[Any], T], data: bytes, alone: bool = False) -> T:
    """What ``check`` makes of the JSON in a body; ``alone`` as for `parsed`. Raises ApiError."""
    return check(json_of(data, alone))


def json_of(data: bytes, alone: bool = False) -> Any:
    """The JSON in a body; ``alone`` as for `parsed`. Raises ApiError."""
    try:
        return parsed(data, alone)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"body: expected JSON, got {error}"[:300], code="invalid_json") from error


def require_json(request: Request, *, if_from_page: bool = False) -> None:
    """Raises ApiError for other types of bodies: pages of foreign sites can send those without asking first.

    Parameters
    ----------
    if_from_page : whether that holds for pages alone: other clients may send no body at all.
    """
    if if_from_page and "origin" not in request.headers:
        return
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        found = content_type[:100] or "none"
        raise ApiError(415, f"content-type: expected application/json, got {found}", code="content_type")


def first_fault(error: ValidationError) -> ApiError:
    """The first thing that pydantic found wrong."""
    fault = error.errors(include_url=False)[0]
    where = [part for part in fault["loc"] if isinstance(part, int) or part.isidentifier()]
    param = (
        "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).lstrip(".") or "body"
    )
    if fault["type"] == "missing":
        return ApiError(400, f"{param}: expected a value, got none", param=param, code="missing")
    what = fault["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    found = repr(fault["input"])
    shown = found if len(found) <= 200 else f"{found[:200]}..."
    return ApiError(400, f"{param}: expected {what}, got {shown}", param=param, code="invalid_value")
