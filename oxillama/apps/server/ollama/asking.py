"""The common fields of Ollama's requests: the model, how long it is kept, the options."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.requests import Request

from oxillama.apps.server.callers import context
from oxillama.apps.server.chats import EFFORT, effort_variables, function_call, thinking_variables
from oxillama.apps.server.errors import invalid, unsupported
from oxillama.apps.server.media import media_part
from oxillama.apps.server.ollama.bodies import Message, OllamaBody, TextBody
from oxillama.apps.server.options import whole
from oxillama.apps.server.running import leased, served
from oxillama.engine.engine import InferenceEngine
from oxillama.text.chat.prompt import template_of
from oxillama.text.toolcalls.openai_form import call_id

NUM_CTX = "num_ctx"
"""The option that bounds prompt and text together."""

EFFORTS = ("low", "medium", "high", "max")
"""Texts of the field ``think``."""

UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
MOST_SECONDS = 1e9


@dataclass(frozen=True)
class Asked:
    """A request whose model is loaded.

    Attributes:
        name: of the model, as the client said it.
        began: of `time.perf_counter_ns`.
        load_ns: nanoseconds until the model was there.
    """

    engine: InferenceEngine
    name: str
    began: int
    load_ns: int

    @property
    def total_ns(self) -> int:
        """Nanoseconds since the request began."""
        return time.perf_counter_ns() - self.began


async def ask(request: Request, name: str | None, keep_alive: float | str | None, asks: bool = True) -> Asked:
    """The model of a request, loaded.

    Args:
        keep_alive: for how long the model is kept then, as for `kept_seconds`.
        asks: whether the request asks the model for anything.

    Raises:
        ApiError: there is no such model, or it cannot be loaded; or as `kept_seconds`.
        ClientGone: the client went away meanwhile.
    """
    began = time.perf_counter_ns()
    seconds = kept_seconds(request, keep_alive, asks)
    lease = await leased(request, served(request).models.find(name))
    lease.idle_seconds = seconds
    load_ns = time.perf_counter_ns() - began
    return Asked(lease.hosted.ready(), name or lease.hosted.name, began, load_ns)


def kept_seconds(request: Request, keep_alive: float | str | None, asks: bool) -> float | None:
    """The seconds for which a model is kept after a request, as for `idle_seconds`.

    Other keys may use the model, and have slots in it. So the key of an admin alone may have a model unloaded
    earlier than the server does: with another key the model is kept for at least as long.

    Raises ApiError for an invalid time; for a request that only unloads, with 403, unless the key is an
    admin's.
    """
    seconds, caller = idle_seconds(keep_alive), context().caller
    if seconds == 0 and not asks:
        caller.check_admin("to unload a model")
    if seconds is None or seconds < 0 or caller.limits.admin:
        return seconds
    least = served(request).config.models_idle_seconds
    return None if least is None else max(seconds, least)


def idle_seconds(keep_alive: float | str | None) -> float | None:
    """Seconds: of a number, or of a text as "5m" or "1h30m"; below 0 for ever. Raises ApiError."""
    if keep_alive is None:
        return None
    text = str(keep_alive).strip()
    sign, plain = (-1, text[1:]) if text.startswith("-") else (1, text)
    try:
        seconds = float(plain) if not DURATION.match(plain) else seconds_of(plain)
    except ValueError:
        raise invalid("keep_alive", 'seconds, or a time as "5m"', keep_alive) from None
    if not 0 <= seconds <= MOST_SECONDS:
        raise invalid("keep_alive", f"at most {MOST_SECONDS:.0f} seconds", keep_alive)
    return sign * seconds


def seconds_of(text: str) -> float:
    """The seconds of a duration such as "1h30m". Raises ValueError."""
    parts = DURATION.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        raise ValueError(text)
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def options_of_body(body: OllamaBody) -> dict[str, Any]:
    """The options of a body: the entries of ``options``, and other fields of the body that are options.

    Raises ApiError for an option with two values.
    """
    beside = {**body.rest, NUM_CTX: body.num_ctx} if isinstance(body, TextBody) else {}
    found = {name: value for name, value in body.options.items() if value is not None}
    for name, value in beside.items():
        if value is not None and found.setdefault(name, value) != value:
            raise invalid(name, f"the value of options.{name}", value)
    return found


def context_of(engine: InferenceEngine, body: OllamaBody) -> tuple[dict[str, Any], int]:
    """The options of a body without num_ctx, and the size of the context that it asks for.

    Raises ApiError if that is larger than the context of the engine, and as `options_of_body`.
    """
    rest = options_of_body(body)
    n = whole(rest.pop(NUM_CTX, None))
    if n is None:
        return rest, engine.context_size
    if type(n) is not int or not 1 <= n <= engine.context_size:
        most = f"an integer from 1 to {engine.context_size}, the context that the model was loaded with"
        raise invalid("options.num_ctx", most, n)
    return rest, n


def schema_of(format: str | dict[str, Any]) -> Any:
    """The JSON schema that a format asks for; None for text. Raises ApiError."""
    if isinstance(format, dict):
        return format
    if format not in ("", "json"):
        raise invalid("format", '"json" or a schema', format)
    return {"type": "object"} if format == "json" else None


def thinking(engine: InferenceEngine, think: bool | str | None, has_tools: bool) -> dict[str, Any]:
    """Variables of the template for the field ``think``. Raises ApiError if the model cannot honour it."""
    if think is None:
        return {}
    template = template_of(engine.tokenizer, has_tools)
    if isinstance(think, str):
        if think not in EFFORTS:
            raise invalid("think", f"true, false, or one of {', '.join(EFFORTS)}", think)
        if EFFORT not in template.variables:
            raise unsupported("think", "true or false, for the template of the model has no efforts", think)
        return effort_variables(engine, has_tools, think, "think")
    if think and template.format.reasoning is None:
        raise unsupported("think", "a model that thinks, the template of this one has no reasoning", think)
    return thinking_variables(engine, has_tools, think, "think")


def with_images(text: str, images: Sequence[str], where: str) -> Any:
    """The content of a message: a text, with pictures and sounds in base64 before it."""
    if not images:
        return text
    parts: list[dict[str, Any]] = [media_part(f"{where}[{i}]", data) for i, data in enumerate(images)]
    return [*parts, {"type": "text", "text": text}] if text else parts


def conversation(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in OpenAI's form.

    The result of a tool belongs to the call of its ``tool_call_id``. Without such a call it belongs to the
    first call of its ``tool_name`` without a result: some clients send ids with results alone.
    """
    found: list[dict[str, Any]] = []
    waiting: list[Waiting] = []
    n_calls = 0
    for i, message in enumerate(messages):
        content = with_images(message.content or "", message.images or (), f"messages[{i}].images")
        plain: dict[str, Any] = {"role": message.role, "content": content}
        if message.thinking:
            plain["reasoning_content"] = message.thinking
        calls = []
        for call in message.tool_calls or ():
            id, name = call.id or call_id(n_calls), call.function.name
            n_calls += 1
            waiting.append(Waiting(id, name, call.id is not None))
            arguments = json.dumps(call.function.arguments, ensure_ascii=False)
            calls.append(function_call(id, name, arguments))
        if calls:
            plain["tool_calls"] = calls
        for field in ("tool_name", "tool_call_id"):
            if message.role != "tool" and getattr(message, field):
                raise invalid(f"messages[{i}].{field}", "a message of the role tool", message.role)
        if message.role == "tool":
            plain |= result_of(message, waiting)
        found.append(plain)
    return found


class Waiting(NamedTuple):
    """A call without a result. ``is_known`` says whether the client gave the id."""

    id: str
    name: str
    is_known: bool


def result_of(message: Message, waiting: list[Waiting]) -> dict[str, str]:
    """The id of a result's call and the name of its tool, as far as they are known.

    Args:
        waiting: the calls before the result. The call of this result is removed.
    """
    id, name = message.tool_call_id, message.tool_name
    named = [call for call in waiting if name in (None, "", call.name)]
    same = [call for call in waiting if call.id == id]
    same = same or [call for call in named if not (id and call.is_known)]
    if same:
        waiting.remove(same[0])
        id, name, _ = same[0]
    return {key: value for key, value in (("tool_call_id", id), ("name", name)) if value}
