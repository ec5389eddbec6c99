"""Bodies of requests: JSON, checked by pydantic. Fields that a class does not name are options."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NoReturn, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)
from starlette.requests import Request

from oxillama.apps.server.callers import context
from oxillama.apps.server.errors import ApiError, invalid
from oxillama.apps.server.no_effect import OPENAI, REFUSED
from oxillama.apps.server.options import NAMES, unknown, whole
from oxillama.apps.server.processes import NoProcess
from oxillama.apps.server.prompt_fields import PromptField
from oxillama.apps.server.raw_bodies import HALF, check_texts, decompressed, form_parts
from oxillama.apps.server.workers import pools

B = TypeVar("B", bound="Body")
T = TypeVar("T")

HUGE = 1 << 17
"""Bytes from which a body is read in a process."""

MOST_PARTS = 1 << 18
"""Lists and objects in a body."""

FORM, OLLAMA = "application/x-www-form-urlencoded", "/api/"
"""The content type of ``curl -d``, and the beginning of Ollama's paths."""

MOST_CHOICES = 1024
"""Texts that a request may ask for: prompts times samples."""


Whole = Annotated[int, BeforeValidator(whole)]
"""An integer, which may have a point: 8192.0."""


class Body(BaseModel):
    """A body with fields of its class and other fields.

    Attributes:
        takes_options: whether the other fields are options of a text; otherwise they are errors.
        interface: whose table of `REFUSED` has the reasons for published fields that are refused.
        inner_options: the kind of options in the field ``options``: "text" or "vectors"; "" without the
            field.
    """

    model_config = ConfigDict(extra="allow", strict=True)
    takes_options: ClassVar[bool] = False
    interface: ClassVar[str] = OPENAI
    inner_options: ClassVar[str] = ""

    @property
    def rest(self) -> dict[str, Any]:
        """The fields that the class does not name."""
        return self.model_extra or {}


class ClosedObject(BaseModel):
    """An object inside a body, which takes no other fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(ClosedObject):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False
    continuous_usage_stats: Literal[False] = False


class Generating(Body):
    """The fields of all bodies that ask for text."""

    takes_options = True
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Whole = Field(1, ge=1, le=MOST_CHOICES)

    @property
    def wants_usage(self) -> bool:
        """Whether the client wants the numbers of tokens at the end of a stream."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(Generating):
    prompt: PromptField
    best_of: Whole | None = Field(None, ge=1, le=MOST_CHOICES)
    return_progress: bool = False
    echo: bool = False
    add_special_tokens: Literal[True] = True
    logprobs: Whole | None = Field(None, ge=0, le=100)
    suffix: str | None = None


class NativeBody(Body):
    """The body of llama-server's interface."""

    takes_options = True
    prompt: PromptField
    model: str | None = None
    stream: bool = False
    n_probs: Whole = Field(0, ge=0, le=100)
    return_tokens: bool = False
    post_sampling_probs: bool = False
    response_fields: list[str] = Field(default_factory=list, max_length=100)
    timings_per_token: bool = False
    return_progress: bool = False
    id_slot: Whole = Field(-1, ge=-1)


class ExtraFile(ClosedObject):
    """An extract of another file, which the model sees before the text."""

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
    add_special_tokens: Literal[False] = False
    logprobs: bool = False
    top_logprobs: Whole | None = Field(None, ge=0, le=100)
    reasoning_format: Literal["auto", "none", "deepseek"] = "auto"
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    timings_per_token: bool = False
    return_progress: bool = False
    id_slot: Whole = Field(-1, ge=-1)
    verbose: bool = False


class EmbeddingBody(TemplateBody):
    """Texts, or one conversation, whose fields are vLLM's."""

    input: PromptField = None
    messages: list[dict[str, Any]] = Field(default_factory=list, min_length=1)
    add_generation_prompt: bool = False
    add_special_tokens: bool = False
    encoding_format: Literal["float", "base64"] = "float"
    embed_dtype: Literal["float32"] = "float32"
    endianness: Literal["native", "little"] = "native"
    dimensions: Whole | None = Field(None, ge=1)
    pooling: str | None = None
    user: Any = None


class NativeEmbeddingBody(Body):
    """The body of llama-server's interface."""

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
    top_n: Whole | None = Field(None, ge=1)
    return_documents: bool = False
    return_text: bool = False


class TokenizeBody(Body):
    content: str
    model: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


def token_list(value: Any) -> list[int]:
    """A list of integers, checked in Python, so that other threads run meanwhile."""
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
    """The value of a body as an object of a class. Raises ApiError."""
    if not isinstance(value, dict):
        raise ApiError(400, f"body: expected an object, got {type(value).__name__}", code="invalid_json")
    try:
        made = kind.model_validate({name: item for name, item in value.items() if item is not None})
    except ValidationError as error:
        raise first_fault(error) from error
    for name in made.rest:
        if not (kind.takes_options and name in NAMES):
            raise unknown(name, kind.model_fields, REFUSED.get(kind.interface, {}))
    return made


async def read_json(request: Request) -> Any:
    """The JSON value of a request's body. Raises ApiError."""
    return await read(request, unchecked)


REQUEST = "request"
"""The name of the part of a form that has the JSON."""


def unchecked(value: Any) -> Any:
    return value


async def read(request: Request, check: Callable[[Any], T]) -> T:
    """The result of ``check`` for the JSON value of a body. Raises ApiError.

    A huge body is read in a process, or in a thread if there are no processes.
    """
    require_json(request)
    data = await body_bytes(request)
    if len(data) < HUGE:
        return checked(check, data)
    parse, processes = pools().parse, pools().processes
    with suppress(NoProcess):
        return await parse.run(processes.run, checked, check, data, in_process=True)
    return await parse.run(checked, check, data, size=len(data))


async def body_bytes(request: Request) -> bytes:
    """The bytes of a request's body, decompressed. Raises ApiError."""
    data = await request.body()
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        data = await decoded(data, coding)
    context().n_bytes = len(data)
    return data


async def read_form(request: Request, check: Callable[[Any, dict[str, bytes]], T]) -> T | None:
    """The result of ``check`` for the JSON of the part "request" of a form, and for the other parts by names.

    None for other bodies, and for a form that a page may have sent, which `require_json` refuses. Raises
    ApiError.
    """
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "multipart/form-data" or is_from_page(request):
        return None
    data = await body_bytes(request)

    def found() -> T:
        parts = form_parts(data, kind)
        if REQUEST not in parts:
            raise invalid(REQUEST, "a part of the form with JSON", "none")
        return checked(lambda value: check(value, parts), parts.pop(REQUEST))

    return await pools().parse.run(found, size=len(data))


async def decoded(data: bytes, coding: str) -> bytes:
    """The bytes of a compressed body. Raises ApiError."""
    most = context().config.max_body_bytes
    data = await pools().parse.run(decompressed, data, coding, most, size=HUGE)  # as large as it may become
    context().hold(len(data))
    recording = context().recording
    if recording is not None:
        recording.replace_body(data)
    return data


def checked(check: Callable[[Any], T], data: bytes) -> T:
    """The result of ``check`` for the JSON value of a body. Raises ApiError."""
    try:
        value = parsed(data)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"body: expected JSON, got {error}"[:300], code="invalid_json") from error
    if HALF.search(data):
        check_texts(value)
    return check(value)


JSON_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
"""A string with its quotes."""


def parsed(data: bytes) -> Any:
    """The value that a body holds. Raises ValueError, RecursionError."""
    if data.count(b"[") + data.count(b"{") > MOST_PARTS:  # upper bound: brackets in strings count, too
        rest = JSON_STRING.sub(b"", data)
        if rest.count(b"[") + rest.count(b"{") > MOST_PARTS:
            raise ValueError(f"more than {MOST_PARTS} lists and objects")
    return json.loads(data.decode("utf-8-sig"), parse_constant=refuse_constant)


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which JSON does not have")


def require_json(request: Request, *, if_from_page: bool = False) -> None:
    """Raises ApiError for other content types: foreign pages can send those without a preflight request.

    A request that no page can have sent may be without a content type. On Ollama's paths it may have the one
    that ``curl -d`` sends, which Ollama's documentation relies on.

    Args:
        if_from_page: whether other clients than pages may send any content type, for they may send no body.
    """
    kind = request.headers.get("content-type")
    plain = "none" if kind is None else kind.partition(";")[0].strip().lower()
    if plain == "application/json":
        return
    allowed = ("none", FORM) if request.url.path.startswith(OLLAMA) else ("none",)
    if is_from_page(request) or not (if_from_page or plain in allowed):
        found = (kind or "none")[:100]
        raise ApiError(415, f"content-type: expected application/json, got {found}", code="content_type")


def is_from_page(request: Request) -> bool:
    """Whether a page may have sent a request: browsers add headers to it (WHATWG Fetch, 3.2; W3C Fetch
    Metadata)."""
    return any(name == "origin" or name.startswith("sec-fetch-") for name in request.headers)


def first_fault(error: ValidationError) -> ApiError:
    """The error for the first fault that pydantic found."""
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
