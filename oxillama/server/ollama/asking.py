"""What requests of Ollama's clients ask for: a model, for how long, with which options."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from oxillama.conversations.prompt import template_of
from oxillama.engine.engine import InferenceEngine
from oxillama.server.chats import EFFORT, effort_variables, function_call, thinking_variables
from oxillama.server.errors import ApiError, invalid
from oxillama.server.media import image_part
from oxillama.server.models import Hosted, Models
from oxillama.server.ollama.bodies import Message
from oxillama.server.running import leased, served
from oxillama.toolcalls import grammar_of_template
from oxillama.toolcalls.conversation import call_id

LATEST = ":latest"
"""What Ollama's clients put behind a name without a tag."""

UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
MOST_SECONDS = 1e9


@dataclass(frozen=True)
class Asked:
    """A request whose model is there.

    Attributes
    ----------
    name : of the model, as the client said it.
    began : of `time.perf_counter_ns`.
    load_ns : nanoseconds until the model was there.
    """

    engine: InferenceEngine
    name: str
    began: int
    load_ns: int

    @property
    def total_ns(self) -> int:
        """Nanoseconds since it began."""
        return time.perf_counter_ns() - self.began


def find(models: Models, name: str | None) -> Hosted:
    """A model by its name, with or without ":latest". Raises ApiError."""
    if name is not None and name not in models.by_name and name.endswith(LATEST):
        name = name.removesuffix(LATEST)
    return models.find(name)


async def ask(request: Request, name: str | None, keep_alive: float | str | None) -> Asked:
    """The model of a request, loaded. Raises ApiError, ClientGone."""
    began = time.perf_counter_ns()
    seconds = idle_seconds(keep_alive)
    lease = await leased(request, find(served(request).models, name))
    lease.idle_seconds = seconds
    load_ns = time.perf_counter_ns() - began
    return Asked(lease.hosted.ready(), name or lease.hosted.name, began, load_ns)


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
    """Of a time as "1h30m". Raises ValueError."""
    parts = DURATION.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        raise ValueError(text)
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def context_of(engine: InferenceEngine, options: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The options without num_ctx, and the size of the context that it asks for.

    Raises ApiError if that is larger than the context of the engine.
    """
    rest = dict(options)
    n = rest.pop("num_ctx", None)
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
    """Variables of the template for what is asked of thinking. Raises ApiError if the model cannot do it."""
    if think is None:
        return {}
    template = template_of(engine.tokenizer, has_tools)
    if isinstance(think, str):
        if think not in ("low", "medium", "high"):
            raise invalid("think", 'true, false, "low", "medium" or "high"', think)
        if EFFORT not in template.variables:
            raise refused("think", "true or false, for the template of the model has no efforts", think)
        return effort_variables(engine, has_tools, think, "think")
    if think and grammar_of_template(template.source).reasoning is None:
        raise refused("think", "a model that thinks, the template of this one has no reasoning", think)
    return thinking_variables(engine, has_tools, think, "think")


def refused(name: str, expected: str, value: object) -> ApiError:
    found = invalid(name, expected, value)
    found.code = "unsupported_value"
    return found


def with_images(text: str, images: Sequence[str], where: str) -> Any:
    """The content of a message: a text, with pictures in base64 before it."""
    if not images:
        return text
    parts: list[dict[str, Any]] = [image_part(f"{where}[{i}]", data) for i, data in enumerate(images)]
    return [*parts, {"type": "text", "text": text}] if text else parts


def conversation(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as OpenAI has them: a result of a tool belongs to the first call of that name without one."""
    found: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []  # id and name of calls without results
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
            waiting.append((id, name))
            arguments = json.dumps(call.function.arguments, ensure_ascii=False)
            calls.append(function_call(id, name, arguments))
        if calls:
            plain["tool_calls"] = calls
        if message.role == "tool":
            fitting = [each for each in waiting if message.tool_name in (None, each[1])]
            if message.tool_name is not None:
                plain["name"] = message.tool_name
            if fitting:
                waiting.remove(fitting[0])
                plain["tool_call_id"], plain["name"] = fitting[0]
        elif message.tool_name is not None:
            raise invalid("messages.tool_name", "a message of the role tool", message.role)
        found.append(plain)
    return found
