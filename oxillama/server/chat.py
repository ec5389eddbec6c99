"""``/v1/chat/completions``: OpenAI's interface for conversations."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from oxillama.config import GenerationOptions
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Completion, Generation
from oxillama.server.bodies import ChatBody, ResponseFormat, read_body
from oxillama.server.completions import FINGERPRINT, usage_of
from oxillama.server.errors import ApiError
from oxillama.server.logprobs import chat_logprobs
from oxillama.server.messages import Reader, parts_of, prompt_tokens
from oxillama.server.options import options_of
from oxillama.server.running import Delta, checked_prompt, connected, deltas, in_thread, results, start
from oxillama.server.state import Served, served
from oxillama.server.stream import DONE, EventStream, data_line


@dataclass(frozen=True)
class Plan:
    """A body, made ready to run."""

    body: ChatBody
    prompt: list[int]
    options: GenerationOptions

    def reader(self, engine: InferenceEngine) -> Reader:
        """Of one message."""
        sampler = self.options.sampler
        is_constrained = sampler is not None and sampler.constraint is not None
        return Reader(engine, self.prompt, self.body.reasoning_format, is_constrained)


def plan_of(engine: InferenceEngine, body: ChatBody, request_id: str) -> Plan:
    """What a body asks for. Raises ApiError, and errors of the library."""
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs: expected logprobs true beside it, got false", param="top_logprobs")
    options = options_of(
        body.rest,
        engine.config.sampler,
        ChatBody.model_fields,
        {"max_tokens": None},
        logprobs=body.logprobs or None,
        top_logprobs=body.top_logprobs or None,
        request_id=request_id,
        **({} if body.response_format is None else constraint_of(body.response_format)),
    )
    return Plan(body, checked_prompt(engine, prompt_tokens(engine, body), name="messages"), options)


def constraint_of(wanted: ResponseFormat) -> dict[str, Any]:
    """The field of `SamplerConfig` that a response format comes to."""
    if wanted.type == "text":
        if wanted.json_schema is not None or wanted.schema_ is not None:
            raise ApiError(
                400, "response_format: expected no schema for text, got one", param="response_format"
            )
        return {}
    if wanted.type == "json_schema":
        if wanted.json_schema is None and wanted.schema_ is None:
            param = "response_format.json_schema"
            raise ApiError(400, f"{param}: expected a schema, got none", param=param, code="missing")
        return {"json_schema": wanted.schema_ if wanted.json_schema is None else wanted.json_schema.schema_}
    return {"json_schema": {"type": "object"} if wanted.schema_ is None else wanted.schema_}


async def chat_completions(request: Request) -> Response | EventStream:
    here = served(request)
    body = await read_body(request, ChatBody)
    here.hosted.check_name(body.model)
    engine = here.hosted.ready()
    plan = await in_thread(plan_of, engine, body, request.state.request_id)
    if body.stream:
        return EventStream(events(here, engine, plan), here.config.ping_seconds)
    return await connected(request, whole(here, engine, plan))


def head_of(here: Served, kind: str) -> dict[str, Any]:
    """What every part of an answer has."""
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": here.hosted.name,
        "system_fingerprint": FINGERPRINT,
    }


async def whole(here: Served, engine: InferenceEngine, plan: Plan) -> Response:
    """The answer of a body that asks for no stream."""
    generations = await in_thread(start, engine, [plan.prompt], plan.options, plan.body.n)
    found = await results(generations)
    choices = [choice_of(engine, plan, i, completion) for i, completion in enumerate(found)]
    usage = usage_of([plan.prompt], generations, plan.body.n)
    return JSONResponse({**head_of(here, "chat.completion"), "choices": choices, "usage": usage})


def choice_of(engine: InferenceEngine, plan: Plan, index: int, completion: Completion) -> dict[str, Any]:
    """A whole message."""
    text, reasoning = parts_of(plan.reader(engine).feed(completion.text, True))
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    logprobs = None
    if plan.body.logprobs:
        logprobs = chat_logprobs(engine.tokenizer, completion.logprobs or [])
    if reasoning:
        message |= reasoning_fields(reasoning)
    choice = {
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": completion.finish_reason,
    }
    if completion.receipt is not None:
        choice["receipt"] = completion.receipt.to_json()
    return choice


def reasoning_fields(text: str) -> dict[str, str]:
    """Reasoning, under both names that clients look for."""
    return {"reasoning_content": text, "reasoning": text}


async def events(here: Served, engine: InferenceEngine, plan: Plan) -> AsyncIterator[str]:
    """The answer of a body that asks for a stream."""
    generations = await in_thread(start, engine, [plan.prompt], plan.options, plan.body.n)
    chunks = Chunks(head_of(here, "chat.completion.chunk"), engine, plan, generations)
    for index in range(len(generations)):
        yield chunks.line(index, {"role": "assistant", "content": None})
    async for delta in deltas(generations):
        for line in chunks.of(delta):
            yield line
    if plan.body.wants_usage:
        usage = usage_of([plan.prompt], generations, plan.body.n)
        yield data_line({**chunks.head, "choices": [], "usage": usage})
    yield DONE


class Chunks:
    """Makes the chunks of a streamed answer: the role, pieces that are never empty, the finish reason."""

    def __init__(
        self, head: dict[str, Any], engine: InferenceEngine, plan: Plan, generations: Sequence[Generation]
    ) -> None:
        self.head, self.engine, self.plan, self.generations = head, engine, plan, generations
        self._readers = [plan.reader(engine) for _ in generations]

    def line(
        self, index: int, delta: dict[str, Any], finish_reason: str | None = None, logprobs: Any = None
    ) -> str:
        """One chunk."""
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        if finish_reason is not None and self.generations[index].receipt is not None:
            choice["receipt"] = self.generations[index].receipt.to_json()  # type: ignore[union-attr]
        usage = {"usage": None} if self.plan.body.wants_usage else {}
        return data_line({**self.head, "choices": [choice], **usage})

    def of(self, delta: Delta) -> list[str]:
        """The chunks that come of a delta. Log-probabilities go with the first of them."""
        parts = self._readers[delta.index].feed(delta.text, delta.finish_reason is not None)
        text, reasoning = parts_of(parts)
        logprobs = None
        if self.plan.body.logprobs and delta.logprobs:
            logprobs = chat_logprobs(self.engine.tokenizer, delta.logprobs)
        lines = []
        if reasoning:
            lines.append(self.line(delta.index, reasoning_fields(reasoning), None, logprobs))
            logprobs = None
        if text:
            lines.append(self.line(delta.index, {"content": text}, None, logprobs))
            logprobs = None
        if delta.finish_reason is not None:
            lines.append(self.line(delta.index, {}, delta.finish_reason, logprobs))
        return lines
