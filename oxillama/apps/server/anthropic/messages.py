"""``/v1/messages``: Anthropic's interface for conversations."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server import errors
from oxillama.apps.server.anthropic.blocks import PING, Blocks, Sent
from oxillama.apps.server.anthropic.bodies import CountBody, MessagesBody
from oxillama.apps.server.anthropic.from_blocks import conversation_messages, functions
from oxillama.apps.server.bodies import read_body
from oxillama.apps.server.chats import EFFORT, Chat, checked_variables, thinking_variables
from oxillama.apps.server.errors import ApiError, invalid
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.running import begin, chosen, connected, deltas, in_thread, last, start_at_once
from oxillama.apps.server.stream import EventStream, named_event
from oxillama.base.config import GenerationOptions
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation

VERSIONS = ("2023-06-01", "2026-10-21")
"""Of the interface; what is supported of it here is the same in both."""

CHOICES = {"auto": "auto", "none": "none", "any": "required"}
"""OpenAI's words for choices of tools."""


TYPES = {**errors.TYPES, 413: "request_too_large", 503: "overloaded_error"}
"""Types by status; other statuses below 500 are `INVALID`, those from 500 on api_error."""


def error_body(error: ApiError) -> dict[str, Any]:
    """The JSON of an error. The error of a too long prompt has the words that agents look for."""
    kind = TYPES.get(error.status, errors.INVALID if error.status < 500 else "api_error")
    is_long = error.code == "context_length_exceeded"
    message = f"prompt is too long: {error.message}" if is_long else error.message
    more = {"param": error.param, "code": error.code, **error.more}
    facts = {name: value for name, value in more.items() if value is not None}
    return {"type": "error", "error": {"type": kind, "message": message, **facts}}


def error_event(error: ApiError) -> str:
    """An error in the middle of a stream."""
    return named_event("error", error_body(error))


def check_version(request: Request) -> None:
    """Raises ApiError for an unknown version of the interface."""
    found = request.headers.get("anthropic-version", VERSIONS[0])
    if found not in VERSIONS:
        raise invalid("anthropic-version", f"one of {', '.join(VERSIONS)}", found)


def chat_of(engine: InferenceEngine, body: CountBody) -> Chat:
    """The chat of a body. Raises ApiError, ChatTemplateError."""
    messages, answer = conversation_messages(body.system, body.messages)
    tools, choice = functions(body.tools), body.tool_choice
    is_thinking = body.thinking is not None and body.thinking.type != "disabled"
    beside = {"tools": tools, "thinking": is_thinking, "output_config.format": format_of(body) is not None}
    for name, is_there in beside.items():
        if answer and is_there:
            place = f"messages[{len(body.messages) - 1}]"
            wanted = f"a last message that is the user's, beside {name}"
            raise invalid(place, wanted, "one of the assistant's")
    variables, has_tools = {}, bool(tools)
    if body.thinking is not None:
        budget = body.thinking.budget_tokens
        variables = thinking_variables(engine, has_tools, is_thinking, "thinking", budget)
    elif answer:  # no reasoning can precede it any more
        variables = thinking_variables(engine, has_tools, False, None)
    if body.output_config.effort is not None:
        variables[EFFORT] = body.output_config.effort
    variables |= checked_variables(body.chat_template_kwargs)
    named = {"type": "function", "function": {"name": choice.name}}
    return Chat(
        messages,
        tools,
        variables,
        answer,
        CHOICES.get(choice.type, named),
        not choice.disable_parallel_tool_use,
        keeps_reasoning=bool(answer),
    )


def format_of(body: CountBody) -> dict[str, Any] | None:
    """The schema that the answer is to follow. Raises ApiError for two."""
    if body.output_config.format is not None and body.output_format is not None:
        raise invalid("output_format", "none beside output_config.format", "another")
    found = body.output_config.format or body.output_format
    return None if found is None else found.schema_


async def count_tokens(request: Request) -> Response:
    """The number of tokens of a prompt, also of one that is too long."""
    check_version(request)
    body = await read_body(request, CountBody)
    _, engine = await chosen(request, body.model)
    n_tokens = await in_thread(lambda: chat_of(engine, body).n_tokens(engine))
    return JsonAnswer({"input_tokens": n_tokens})


async def messages(request: Request) -> Response | EventStream:
    """The next message of a conversation."""
    check_version(request)
    body = await read_body(request, MessagesBody)
    here, engine = await chosen(request, body.model)

    def prepared() -> tuple[Blocks, list[int], GenerationOptions, list[Generation] | None]:
        chat, choice, stop = chat_of(engine, body), body.tool_choice, tuple(body.stop_sequences) or None
        if (choice.name is None) == (choice.type == "tool"):
            wanted = "the name of a tool" if choice.type == "tool" else f"none for {choice.type}"
            raise invalid("tool_choice.name", wanted, choice.name)
        schema = format_of(body)
        head = {"id": f"msg_{uuid.uuid4().hex}", "model": here.hosted.name}
        shows_thinking = body.thinking is None or body.thinking.display != "omitted"
        budget = None if body.thinking is None else body.thinking.budget_tokens
        limits = {} if budget is None else {"reasoning_budget": budget}
        prompt, options = chat.prepared(engine, body.rest, stop=stop, json_schema=schema, **limits)
        blocks = Blocks(head, partial(chat.ids_of, prompt), shows_thinking)
        return blocks, prompt, options, start_at_once(engine, [prompt], options)

    blocks, prompt, options, started = await in_thread(prepared)
    sent = events(engine, blocks, prompt, options, started)
    if body.stream:
        lines = (named_event(event["type"], event) async for event in sent)
        return EventStream(lines, here.config.ping_seconds, error_event, ping=PING)
    await connected(request, last(sent))
    return JsonAnswer(blocks.message)


async def events(
    engine: InferenceEngine,
    blocks: Blocks,
    prompt: list[int],
    options: GenerationOptions,
    started: list[Generation] | None,
) -> AsyncIterator[Sent]:
    """The events of a message from its beginning to its end; ``started`` as for `begin`."""
    (generation,) = await begin(engine, [prompt], options, started=started)
    has_begun = False
    async for delta in deltas([generation]):
        if not has_begun:
            has_begun = True
            for sent in blocks.begin(generation):
                yield sent
        for sent in blocks.add(delta):
            yield sent
    for sent in blocks.end(generation):
        yield sent
