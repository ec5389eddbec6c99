"""``/v1/chat/completions``: OpenAI's interface for conversations."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation
from oxillama.sampling.logprobs import SampledToken
from oxillama.server.bodies import ChatBody, read_body
from oxillama.server.chats import Chat, ChatPlan, chat_plan
from oxillama.server.errors import ApiError
from oxillama.server.messages import Deltas, conversation_of, prompt_tokens, whole_message
from oxillama.server.openai.completions import FINGERPRINT, usage_of
from oxillama.server.openai.logprobs import chat_logprobs
from oxillama.server.running import Delta, connected, deltas, in_thread, start
from oxillama.server.state import Served, chosen
from oxillama.server.stream import DONE, EventStream, data_line
from oxillama.server.timings import timings


@dataclass(frozen=True)
class Plan(ChatPlan):
    """A body, made ready to run."""

    body: ChatBody

    @property
    def parts(self) -> Deltas:
        """Makes the deltas of a message."""
        return Deltas(self.n_calls)


def plan_of(engine: InferenceEngine, body: ChatBody, request_id: str) -> Plan:
    """What a body asks for. Raises ApiError, and errors of the library."""
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs: expected logprobs true beside it, got false", param="top_logprobs")
    fixed: dict[str, Any] = {"logprobs": body.logprobs or None, "top_logprobs": body.top_logprobs or None}
    chat = Chat(
        conversation_of(body),
        body.rest,
        ChatBody.model_fields,
        fixed,
        body.tool_choice,
        body.parallel_tool_calls,
        body.reasoning_format == "none",
    )
    return Plan(**vars(chat_plan(engine, chat, request_id)), body=body)


async def chat_completions(request: Request) -> Response | EventStream:
    body = await read_body(request, ChatBody)
    here, engine = await chosen(request, body.model)
    plan = await in_thread(plan_of, engine, body, request.state.request_id)
    if body.stream:
        return EventStream(events(here, engine, plan), here.config.ping_seconds)
    return await connected(request, whole(here, engine, plan))


async def input_tokens(request: Request) -> Response:
    """The number of tokens that the messages of a chat come to."""
    body = await read_body(request, ChatBody)
    _, engine = await chosen(request, body.model)
    tokens = await in_thread(lambda: prompt_tokens(engine, conversation_of(body)))
    return JSONResponse({"object": "response.input_tokens", "input_tokens": len(tokens)})


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
    parts = plan.parts
    found: list[list[dict[str, Any]]] = [[] for _ in generations]
    async for delta in deltas(generations):
        if delta.event is not None:
            found[delta.index].append(parts.of(delta.event))
    choices = [
        {
            "index": index,
            "message": whole_message(found[index]),
            "logprobs": logprobs_of(engine, plan, generation.logprobs or []),
            "finish_reason": generation.finish_reason,
            **receipt_of(generation),
        }
        for index, generation in enumerate(generations)
    ]
    last = {"choices": choices, "usage": usage_of([plan.prompt], generations, plan.body.n)}
    return JSONResponse({**head_of(here, "chat.completion"), **last, **times_of(generations)})


def times_of(generations: Sequence[Generation]) -> dict[str, Any]:
    """llama-server's times, of an answer with one text."""
    return {"timings": timings(generations[0])} if len(generations) == 1 else {}


def logprobs_of(engine: InferenceEngine, plan: Plan, sampled: Sequence[SampledToken]) -> Any:
    """Of tokens, if they were asked for."""
    return chat_logprobs(engine.tokenizer, sampled) if plan.body.logprobs else None


def receipt_of(generation: Generation) -> dict[str, Any]:
    """The receipt of a text that has ended, if one was asked for."""
    return {} if generation.receipt is None else {"receipt": generation.receipt.to_json()}


async def events(here: Served, engine: InferenceEngine, plan: Plan) -> AsyncIterator[str]:
    """The answer of a body that asks for a stream."""
    generations = await in_thread(start, engine, [plan.prompt], plan.options, plan.body.n)
    chunks = Chunks(head_of(here, "chat.completion.chunk"), engine, plan, generations)
    for index in range(len(generations)):
        yield chunks.line(index, {"role": "assistant", "content": None})
    async for delta in deltas(generations):
        line = chunks.of(delta)
        if line:
            yield line
    if plan.body.wants_usage:
        usage = usage_of([plan.prompt], generations, plan.body.n)
        yield data_line({**chunks.head, "choices": [], "usage": usage, **times_of(generations)})
    yield DONE


class Chunks:
    """Makes the chunks of a streamed answer: the role, pieces that are never empty, the finish reason."""

    def __init__(
        self, head: dict[str, Any], engine: InferenceEngine, plan: Plan, generations: Sequence[Generation]
    ) -> None:
        self.head, self.engine, self.plan, self.generations = head, engine, plan, generations
        self._parts = plan.parts
        self._waiting: list[list[SampledToken]] = [[] for _ in generations]

    def line(
        self, index: int, delta: dict[str, Any], finish_reason: str | None = None, logprobs: Any = None
    ) -> str:
        """One chunk."""
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        if finish_reason is not None:
            choice |= receipt_of(self.generations[index])
        body = self.plan.body
        more: dict[str, Any] = {"usage": None} if body.wants_usage else {}
        if finish_reason is not None and not body.wants_usage:
            more |= times_of(self.generations)
        if body.timings_per_token and "role" not in delta:
            more["timings"] = timings(self.generations[index])
        return data_line({**self.head, "choices": [choice], **more})

    def of(self, delta: Delta) -> str:
        """The chunk that comes of a delta; "" for none. Its log-probabilities then go with the next one."""
        waiting = self._waiting[delta.index]
        waiting += delta.logprobs
        part = {} if delta.event is None else self._parts.of(delta.event)
        if not part and delta.finish_reason is None:
            return ""
        logprobs = logprobs_of(self.engine, self.plan, waiting) if waiting else None
        waiting.clear()
        return self.line(delta.index, part, delta.finish_reason, logprobs)
