"""The answers of ``/v1/chat/completions``, OpenAI's interface for conversations."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation
from oxillama.events import Event, TextPart
from oxillama.media.prompt import MediaPrompt
from oxillama.on_use import on_use
from oxillama.sampling.logprobs import SampledToken
from oxillama.server.bodies import ChatBody, read_body
from oxillama.server.chats import chat_of, rules_text
from oxillama.server.errors import ApiError
from oxillama.server.json_text import JsonAnswer
from oxillama.server.models import Hosted
from oxillama.server.openai.completions import FINGERPRINT, usage_of
from oxillama.server.openai.logprobs import chat_logprobs
from oxillama.server.prompt_progress import PromptProgress, with_progress
from oxillama.server.running import chosen, connected, deltas, in_thread, receipt_of, times_of, timings
from oxillama.server.slot_requests import started
from oxillama.server.stream import DONE, EventStream, Relay, TextLine, data_line
from oxillama.server.text_facts import facts_of
from oxillama.toolcalls.conversation import delta_of, whole_message

answered_with_tools: Callable[..., Awaitable[Response | EventStream]] = on_use(
    "oxillama.server.openai.served_tools:answered_with_tools"
)


async def chat_completions(request: Request) -> Response | EventStream:
    """The next message of a conversation."""
    body = await read_body(request, ChatBody)
    if any(tool.get("type") == "mcp" for tool in body.tools):
        return await answered_with_tools(request, body)
    here, engine = await chosen(request, body.model)
    answer = await in_thread(Answer, engine, here.hosted, body, request.state.request_id)
    if body.stream:
        return EventStream(answer.lines(), here.config.ping_seconds)
    return await connected(request, answer.whole())


async def input_tokens(request: Request) -> Response:
    """The number of tokens that the messages of a chat come to."""
    body = await read_body(request, ChatBody)
    _, engine = await chosen(request, body.model)
    n_tokens = await in_thread(chat_of(body).n_tokens, engine)
    return JsonAnswer({"object": "response.input_tokens", "input_tokens": n_tokens})


class Answer:
    """The answer to a body, whole or as chunks: the role, pieces that are never empty, the finish reason.

    Raises ApiError, and errors of the library.
    """

    def __init__(self, engine: InferenceEngine, hosted: Hosted, body: ChatBody, request_id: str) -> None:
        if body.top_logprobs is not None and not body.logprobs:
            message = "top_logprobs: expected logprobs true beside it, got false"
            raise ApiError(400, message, param="top_logprobs")
        self.engine: InferenceEngine = engine
        self.hosted: Hosted = hosted
        self.body: ChatBody = body
        chat = chat_of(
            body,
            tool_choice=body.tool_choice,
            parallel_tool_calls=body.parallel_tool_calls,
            keeps_reasoning=body.reasoning_format == "none",
        )
        self.n_calls: int = chat.n_calls
        self.prompt, self.options = chat.prepared(
            engine,
            request_id,
            body.rest,
            logprobs=body.logprobs or None,
            top_logprobs=body.top_logprobs or None,
        )
        has_text = body.verbose and isinstance(self.prompt, MediaPrompt)
        self.prompt_text: str | None = chat.text(engine) if has_text else None
        if chat.answer and rules_text(self.options):
            message = "continue_final_message: cannot be combined with a grammar, which rules a whole answer"
            raise ApiError(400, message, param="continue_final_message", code="invalid_value")

    def started(self) -> AbstractAsyncContextManager[list[Generation]]:
        """The generations; the slot, if the body names one, is theirs until the block ends."""
        body = self.body
        return started(self.engine, self.hosted.slots, body.id_slot, [self.prompt], self.options, body.n)

    def head(self, kind: str) -> dict[str, Any]:
        """What every part of an answer has."""
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self.hosted.name,
            "system_fingerprint": FINGERPRINT,
        }

    async def whole(self) -> Response:
        """The answer as one object."""
        async with self.started() as generations:
            found: list[list[dict[str, Any]]] = [[] for _ in generations]
            async for delta in deltas(generations):
                found[delta.index].append(delta_of(delta.event, self.n_calls))
        choices = [
            {
                "index": index,
                "message": whole_message(found[index]),
                "logprobs": self.logprobs(generation.logprobs),
                "finish_reason": generation.finish_reason,
                **receipt_of(generation),
            }
            for index, generation in enumerate(generations)
        ]
        head = self.head("chat.completion")
        facts = {**self.usage(generations), **times_of(generations), **self.verbose(generations)}
        return JsonAnswer({**head, "choices": choices, **facts})

    async def lines(self) -> AsyncIterator[str | Relay]:
        """The answer as chunks. What has no chunk of its own has its log-probabilities in the next one."""
        async with self.started() as generations, aclosing(self.lines_of(generations)) as found:
            async for line in found:
                yield line
        yield DONE

    async def lines_of(self, generations: list[Generation]) -> AsyncGenerator[str | Relay]:
        """The chunks of generations."""
        body = self.body
        head = self.head("chat.completion.chunk")
        waiting: list[list[SampledToken]] = [[] for _ in generations]
        more: dict[str, Any] = {"usage": None} if body.wants_usage else {}
        for index in range(len(generations)):
            opening = choice(index, {"role": "assistant", "content": None})
            yield data_line({**head, "choices": [opening], **more})
        text_line = TextLine(lambda text: {**head, "choices": [choice(0, {"content": text})], **more})

        def line_of(event: Event) -> str:
            if isinstance(event, TextPart):
                return text_line(event.text)
            part = delta_of(event, self.n_calls)
            return data_line({**head, "choices": [choice(0, part)], **more}) if part else ""

        is_plain = len(generations) == 1 and not (body.logprobs or body.timings_per_token)
        found = deltas(generations)
        async for delta in with_progress(generations, found) if body.return_progress else found:
            if isinstance(delta, PromptProgress):
                yield data_line({**head, "choices": [choice(delta.index, {})], **more, **delta.field})
                continue
            generation, index, reason = generations[delta.index], delta.index, delta.finish_reason
            waiting[index] += delta.logprobs
            part = delta_of(delta.event, self.n_calls)
            if not part and reason is None:
                continue
            logprobs = self.logprobs(waiting[index]) if waiting[index] else None
            waiting[index] = []
            chunk = {**head, "choices": [choice(index, part, reason, logprobs)], **more}
            if reason is not None:
                chunk["choices"][0] |= receipt_of(generation)
                chunk |= {} if body.wants_usage else times_of(generations)
                chunk |= self.verbose([generation])
            if body.timings_per_token:
                chunk["timings"] = timings(generation)
            yield data_line(chunk)
            if is_plain and reason is None:
                yield Relay(generation, line_of)
        if body.wants_usage:
            yield data_line({**head, "choices": [], **self.usage(generations), **times_of(generations)})

    def logprobs(self, sampled: Sequence[SampledToken] | None) -> Any:
        """Of tokens, if they were asked for."""
        return chat_logprobs(self.engine.tokenizer, sampled or []) if self.body.logprobs else None

    def verbose(self, generations: Sequence[Generation]) -> dict[str, Any]:
        """What `/completion` tells of the first of some texts, and what the model wrote, if it is wanted."""
        if not self.body.verbose:
            return {}
        first = generations[0]
        facts = facts_of(self.engine, self.hosted.name, first, self.prompt_text)
        return {"__verbose": {**facts, "content": first.raw_text, "tokens": first.tokens}}

    def usage(self, generations: Sequence[Generation]) -> dict[str, Any]:
        """Numbers of tokens."""
        return {"usage": usage_of([self.prompt], generations, self.body.n)}


def choice(
    index: int, delta: dict[str, Any], finish_reason: str | None = None, logprobs: Any = None
) -> dict[str, Any]:
    """What a chunk says of one text."""
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
