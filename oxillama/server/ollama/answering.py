"""Answers as Ollama's clients read them: objects, or lines of JSON of which the last has the numbers."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from oxillama.config import GenerationOptions
from oxillama.engine.generation import Generation
from oxillama.sampling.logprobs import SampledToken
from oxillama.server.errors import ApiError
from oxillama.server.ollama.asking import Asked
from oxillama.server.openai.logprobs import chat_logprobs
from oxillama.server.running import Delta, deltas, in_thread, start
from oxillama.server.stream import EventStream, as_json
from oxillama.toolcalls import CallEnd, CallFailed, Event, ReasoningPart, TextPart

LINES = "application/x-ndjson"

REASONS = {"tool_calls": "stop"}
"""Reasons for the end of a text that Ollama has other words for."""

Shape = Callable[[dict[str, Any]], dict[str, Any]]
"""Puts content, thinking and calls where an endpoint has them."""


@dataclass(frozen=True)
class Plan:
    """A request for text, made ready to run.

    Attributes
    ----------
    shape : of the answers of the endpoint.
    keeps_context : whether the token ids of all of it are told at the end.
    """

    asked: Asked
    prompt: list[int]
    options: GenerationOptions
    shape: Shape
    keeps_context: bool = False


def message(part: dict[str, Any]) -> dict[str, Any]:
    """The shape of a chat's answers."""
    return {"message": {"role": "assistant", "content": "", **part}}


def response(part: dict[str, Any]) -> dict[str, Any]:
    """The shape of other texts."""
    rest = {name: value for name, value in part.items() if name != "content"}
    return {"response": part.get("content", ""), **rest}


def head(name: str) -> dict[str, Any]:
    """What every object of an answer has: the model, as the client called it, and the time."""
    return {"model": name, "created_at": datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")}


def part_of(event: Event | None) -> dict[str, Any]:
    """What an event tells: a piece of text or of reasoning, or a call that is complete; {} for nothing."""
    if isinstance(event, TextPart):
        return {"content": event.text}
    if isinstance(event, ReasoningPart):
        return {"thinking": event.text}
    if isinstance(event, CallEnd):
        call = {"index": event.index, "name": event.call.name, "arguments": event.call.args}
        return {"tool_calls": [{"function": call}]}
    if isinstance(event, CallFailed) and event.index is None:
        return {"content": event.text}
    return {}


def ending(plan: Plan, generation: Generation) -> dict[str, Any]:
    """What is known when a text has ended; times in nanoseconds."""
    asked, usage, seconds = plan.asked, generation.usage, generation.timings
    reason = generation.finish_reason or ""
    found: dict[str, Any] = {
        "done": True,
        "done_reason": REASONS.get(reason, reason),
        "total_duration": asked.total_ns,
        "load_duration": asked.load_ns,
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": nanoseconds(seconds.prefill),
        "eval_count": usage.generated_tokens,
        "eval_duration": nanoseconds(seconds.decode),
    }
    if plan.keeps_context:
        found["context"] = [*generation.prompt_tokens, *generation.tokens]
    if generation.receipt is not None:
        found["receipt"] = generation.receipt.to_json()
    return found


def nanoseconds(seconds: float) -> int:
    return 0 if math.isnan(seconds) else round(1e9 * seconds)


def logprobs_of(plan: Plan, sampled: list[SampledToken]) -> dict[str, Any]:
    """Log-probabilities of tokens, if they were asked for and there are any."""
    if not sampled:
        return {}
    return {"logprobs": chat_logprobs(plan.asked.engine.tokenizer, sampled)["content"]}


async def parts(plan: Plan) -> AsyncIterator[tuple[dict[str, Any], Delta, Generation]]:
    """What comes of a plan: parts of the answer, with what brought them."""
    (generation,) = await in_thread(start, plan.asked.engine, [plan.prompt], plan.options, 1)
    async with aclosing(deltas([generation])) as found:  # type: ignore[type-var]
        async for delta in found:
            yield part_of(delta.event), delta, generation


async def lines(plan: Plan) -> AsyncIterator[str]:
    """The answer as lines."""
    waiting: list[SampledToken] = []
    async for part, delta, generation in parts(plan):
        waiting += delta.logprobs
        if not part and delta.finish_reason is None:
            continue
        end = {"done": False} if delta.finish_reason is None else ending(plan, generation)
        found = {**head(plan.asked.name), **plan.shape(part), **end, **logprobs_of(plan, waiting)}
        waiting.clear()
        yield line(found)


async def whole(plan: Plan) -> dict[str, Any]:
    """The answer as one object."""
    texts = {"content": "", "thinking": ""}
    calls: list[Any] = []
    sampled: list[SampledToken] = []
    end: dict[str, Any] = {}
    async for part, delta, generation in parts(plan):
        for name in texts:
            texts[name] += part.get(name, "")
        calls += part.get("tool_calls", [])
        sampled += delta.logprobs
        if delta.finish_reason is not None:
            end = ending(plan, generation)
    part = {name: text for name, text in texts.items() if text} | ({"tool_calls": calls} if calls else {})
    return {**head(plan.asked.name), **plan.shape(part), **end, **logprobs_of(plan, sampled)}


def line(value: Any) -> str:
    return f"{as_json(value)}\n"


def error_body(error: ApiError) -> dict[str, Any]:
    """An error as Ollama has it."""
    return {"error": error.message}


def stream(found: AsyncIterator[str]) -> EventStream:
    """Lines as an answer; nothing is sent while none comes, for clients take every line for an object."""
    return EventStream(found, None, lambda error: line(error_body(error)), LINES)
