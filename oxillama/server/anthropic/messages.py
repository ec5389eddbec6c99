"""``/v1/messages``: Anthropic's interface for conversations."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation
from oxillama.server.anthropic.blocks import PING, Blocks, Sent
from oxillama.server.anthropic.bodies import CountBody, MessagesBody
from oxillama.server.anthropic.conversation import conversation_messages, functions
from oxillama.server.anthropic.errors import error_event
from oxillama.server.bodies import read_body
from oxillama.server.chats import Chat, ChatPlan, chat_plan
from oxillama.server.errors import invalid
from oxillama.server.messages import Conversation, checked_variables, prompt_tokens
from oxillama.server.running import connected, deltas, in_thread, start
from oxillama.server.state import Served, chosen
from oxillama.server.stream import EventStream, named_event
from oxillama.server.thinking import EFFORT, thinking_variables

VERSIONS = ("2023-06-01", "2026-10-21")
"""Of the interface; what is supported of it here is the same in both."""

CHOICES = {"auto": "auto", "none": "none", "any": "required"}
"""OpenAI's words for choices of tools."""


@dataclass(frozen=True)
class Plan(ChatPlan):
    """A body, made ready to run."""

    body: MessagesBody

    @property
    def shows_thinking(self) -> bool:
        """Whether reasoning is sent."""
        return self.body.thinking is None or self.body.thinking.display != "omitted"


def check_version(request: Request) -> None:
    """Raises ApiError for a version of the interface that is not known."""
    found = request.headers.get("anthropic-version", VERSIONS[0])
    if found not in VERSIONS:
        raise invalid("anthropic-version", f"one of {', '.join(VERSIONS)}", found)


def conversation_of(engine: InferenceEngine, body: CountBody) -> Conversation:
    """The conversation of a body. Raises ApiError, ChatTemplateError."""
    messages, answer = conversation_messages(body.system, body.messages)
    tools = functions(body.tools)
    is_thinking = body.thinking is not None and body.thinking.type != "disabled"
    if answer:
        for name, is_there in (
            ("tools", bool(tools)),
            ("thinking", is_thinking),
            ("output_config.format", format_of(body) is not None),
        ):
            if is_there:
                place = f"messages[{len(body.messages) - 1}]"
                wanted = f"a last message that is the user's, beside {name}"
                raise invalid(place, wanted, "one of the assistant's")
    variables, has_tools = {}, bool(tools)
    if body.thinking is not None:
        budget = body.thinking.budget_tokens
        variables = thinking_variables(engine, has_tools, is_thinking, "thinking", budget)
    elif answer:  # which no reasoning can precede any more
        variables = thinking_variables(engine, has_tools, False, None)
    if body.output_config.effort is not None:
        variables[EFFORT] = body.output_config.effort
    variables |= checked_variables(body.chat_template_kwargs)
    return Conversation(messages, tools, variables, answer=answer)


def format_of(body: CountBody) -> dict[str, Any] | None:
    """The schema that the answer is to follow. Raises ApiError for two."""
    if body.output_config.format is not None and body.output_format is not None:
        raise invalid("output_format", "none beside output_config.format", "another")
    found = body.output_config.format or body.output_format
    return None if found is None else found.schema_


def plan_of(engine: InferenceEngine, body: MessagesBody, request_id: str) -> Plan:
    """What a body asks for. Raises ApiError, and errors of the library."""
    talk, choice = conversation_of(engine, body), body.tool_choice
    if (choice.name is None) == (choice.type == "tool"):
        wanted = "the name of a tool" if choice.type == "tool" else f"none for {choice.type}"
        raise invalid("tool_choice.name", wanted, choice.name)
    named = {"type": "function", "function": {"name": choice.name}}
    chat = Chat(
        talk,
        body.rest,
        MessagesBody.model_fields,
        {"stop": tuple(body.stop_sequences) or None, "json_schema": format_of(body)},
        CHOICES.get(choice.type, named),
        not choice.disable_parallel_tool_use,
        keeps_reasoning=bool(talk.answer),
    )
    return Plan(**vars(chat_plan(engine, chat, request_id)), body=body)


async def count_tokens(request: Request) -> Response:
    """How many tokens a prompt has, be it too long or not."""
    check_version(request)
    body = await read_body(request, CountBody)
    body.refuse_rest()
    _, engine = await chosen(request, body.model)

    def count() -> int:
        return len(prompt_tokens(engine, conversation_of(engine, body)))

    return JSONResponse({"input_tokens": await in_thread(count)})


async def messages(request: Request) -> Response | EventStream:
    check_version(request)
    body = await read_body(request, MessagesBody)
    here, engine = await chosen(request, body.model)
    plan = await in_thread(plan_of, engine, body, request.state.request_id)
    if body.stream:
        return EventStream(lines(here, engine, plan), here.config.ping_seconds, error_event, ping=PING)
    return await connected(request, whole(here, engine, plan))


def blocks_of(here: Served, plan: Plan, generation: Generation) -> Blocks:
    """An empty message."""
    head = {"id": f"msg_{uuid.uuid4().hex}", "model": here.hosted.name}
    return Blocks(head, generation, plan.n_calls, plan.shows_thinking)


async def whole(here: Served, engine: InferenceEngine, plan: Plan) -> Response:
    """The answer of a body that asks for no stream."""
    (generation,) = await in_thread(start, engine, [plan.prompt], plan.options, 1)
    blocks = blocks_of(here, plan, generation)
    async for _ in events(blocks):
        pass
    return JSONResponse(blocks.message)


async def lines(here: Served, engine: InferenceEngine, plan: Plan) -> AsyncIterator[str]:
    """The answer of a body that asks for a stream."""
    (generation,) = await in_thread(start, engine, [plan.prompt], plan.options, 1)
    async for sent in events(blocks_of(here, plan, generation)):
        yield named_event(sent["type"], sent)


async def events(blocks: Blocks) -> AsyncIterator[Sent]:
    """The events of a message from its beginning to its end."""
    has_begun = False
    async for delta in deltas([blocks.generation]):
        if not has_begun:
            has_begun = True
            for sent in blocks.begin():
                yield sent
        for sent in blocks.add(delta):
            yield sent
    for sent in blocks.end():
        yield sent
