"""The answers of ``/v1/chat/completions``, OpenAI's interface for conversations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.answer_size import LOGPROB_HELD_BYTES, check_texts, within
from oxillama.apps.server.bodies import ChatBody, read_body
from oxillama.apps.server.chats import Chat, allowed_tools, asked_names, chat_of, rules_text
from oxillama.apps.server.errors import fault, invalid
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.models import Hosted
from oxillama.apps.server.openai.completions import head_of, usage_of
from oxillama.apps.server.openai.logprobs import chat_logprobs
from oxillama.apps.server.options import conflict
from oxillama.apps.server.prompt_progress import PromptProgress, with_progress
from oxillama.apps.server.running import chosen, in_thread, receipt_of, start_at_once, times_of, timings
from oxillama.apps.server.slot_requests import started
from oxillama.apps.server.stream import DONE, EventForwarder, EventStream, TextLine, answered, data_line
from oxillama.apps.server.text_facts import facts_of
from oxillama.base.events import Event, TextPart
from oxillama.base.lazy_import import lazy
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.media.prompt import MediaPrompt
from oxillama.engine.generation import Generation
from oxillama.engine.sampling.logprobs import SampledToken
from oxillama.text.toolcalls.openai_form import CallIds, delta_of, whole_message

answered_with_tools: Callable[..., Awaitable[Response | EventStream]] = lazy(
    "oxillama.apps.server.openai.served_tools:answered_with_tools"
)


async def chat_completions(request: Request) -> Response | EventStream:
    """The next message of a conversation."""
    body = await read_body(request, ChatBody)
    if any(tool.get("type") == "mcp" for tool in body.tools):
        return await answered_with_tools(request, body)
    return await answered(request, body, Answer)


async def input_tokens(request: Request) -> Response:
    """The number of tokens that the messages of a chat come to."""
    body = await read_body(request, ChatBody)
    _, engine = await chosen(request, body.model)
    n_tokens = await in_thread(lambda: chat_of(engine, with_allowed(body)[0]).n_tokens(engine))
    return JsonAnswer({"object": "response.input_tokens", "input_tokens": n_tokens})


def with_allowed(body: ChatBody) -> tuple[ChatBody, str | dict[str, Any]]:
    """A body with the tools that its choice allows, and the choice among them. Raises ApiError."""
    choice = body.tool_choice
    if isinstance(choice, str) or choice.get("type") != "allowed_tools":
        return body, choice
    where, inner = "tool_choice.allowed_tools", choice.get("allowed_tools")
    if not isinstance(inner, dict):
        raise invalid(where, "a mode and tools", inner)
    tools, mode = allowed_tools(where, inner, body.tools, asked_names)
    return body.model_copy(update={"tools": tools}), mode


class Answer:
    """The answer to a body, whole or as chunks: the role, pieces that are never empty, the finish reason.

    Raises ApiError, and errors of the library.
    """

    def __init__(self, engine: InferenceEngine, hosted: Hosted, body: ChatBody) -> None:
        if body.top_logprobs is not None and not body.logprobs:
            raise fault("top_logprobs", "expected logprobs true beside it, got false")
        self.engine: InferenceEngine = engine
        self.hosted: Hosted = hosted
        self.body: ChatBody = body
        body, choice = with_allowed(body)
        chat = chat_of(
            engine,
            body,
            tool_choice=choice,
            parallel_tool_calls=body.parallel_tool_calls,
            keeps_reasoning=body.reasoning_format == "none",
        )
        self.chat: Chat = chat
        self.prompt, self.options = chat.prepared(
            engine, body.rest, logprobs=body.logprobs or None, top_logprobs=body.top_logprobs or None
        )
        has_text = body.verbose and isinstance(self.prompt, MediaPrompt)
        self.prompt_text: str | None = chat.text(engine) if has_text else None
        if chat.answer and rules_text(self.options):
            raise conflict("continue_final_message", "a grammar, which rules a whole answer")
        if not body.stream:
            check_texts(self.options, body.n)
        self.generations: list[Generation] | None = None
        if body.id_slot < 0:
            self.generations = start_at_once(engine, [self.prompt], self.options, body.n)

    def started(self) -> AbstractAsyncContextManager[list[Generation]]:
        """The generations; they keep the slot, if the body names one, until the block ends."""
        body = self.body
        if self.generations is not None:
            return nullcontext(self.generations)
        return started(self.engine, self.hosted.slots, body.id_slot, [self.prompt], self.options, body.n)

    def head(self, kind: str) -> dict[str, Any]:
        """The fields of every part of an answer."""
        return head_of("chatcmpl", kind, self.hosted.name)

    async def whole(self) -> Response:
        """The answer as one object."""
        async with self.started() as generations:
            found: list[list[dict[str, Any]]] = [[] for _ in generations]
            ids = self.call_ids(generations)
            async for delta in within(generations):
                found[delta.index].append(delta_of(delta.event, ids[delta.index]))
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

    async def lines(self) -> AsyncIterator[str | EventForwarder]:
        """The answer as chunks. The next chunk has the log-probabilities of tokens without a chunk."""
        async with self.started() as generations, aclosing(self.lines_of(generations)) as found:
            async for line in found:
                yield line
        yield DONE

    async def lines_of(self, generations: list[Generation]) -> AsyncGenerator[str | EventForwarder]:
        """The chunks of generations."""
        body, ids = self.body, self.call_ids(generations)
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
            part = delta_of(event, ids[0])
            return data_line({**head, "choices": [choice(0, part)], **more}) if part else ""

        is_plain = len(generations) == 1 and not (body.logprobs or body.timings_per_token)
        found = within(generations, LOGPROB_HELD_BYTES)
        async for delta in with_progress(generations, found) if body.return_progress else found:
            if isinstance(delta, PromptProgress):
                yield data_line({**head, "choices": [choice(delta.index, {})], **more, **delta.field})
                continue
            generation, index, reason = generations[delta.index], delta.index, delta.finish_reason
            waiting[index] += delta.logprobs
            part = delta_of(delta.event, ids[index])
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
                yield EventForwarder(generation, line_of)
        if body.wants_usage:
            yield data_line({**head, "choices": [], **self.usage(generations), **times_of(generations)})

    def call_ids(self, generations: Sequence[Generation]) -> list[CallIds]:
        """The ids of each text's calls."""
        return [self.chat.ids_of(self.prompt, each, index) for index, each in enumerate(generations)]

    def logprobs(self, sampled: Sequence[SampledToken] | None) -> Any:
        """The log-probabilities of tokens; None unless requested."""
        return chat_logprobs(self.engine.tokenizer, sampled or []) if self.body.logprobs else None

    def verbose(self, generations: Sequence[Generation]) -> dict[str, Any]:
        """The fields of `/completion` for the first text, and its raw text; {} unless requested."""
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
    """The part of a chunk for one text."""
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
