"""``/api/chat`` and ``/api/generate``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from oxillama.config import GenerationOptions
from oxillama.server.bodies import read_body
from oxillama.server.chats import Chat, chat_plan
from oxillama.server.errors import ApiError, invalid, prompt_too_long
from oxillama.server.infill import infill_tokens
from oxillama.server.messages import Conversation
from oxillama.server.ollama.answering import LINES, Plan, head, line, lines, message, response, stream, whole
from oxillama.server.ollama.asking import (
    Asked,
    ask,
    context_of,
    conversation,
    find,
    idle_seconds,
    schema_of,
    thinking,
)
from oxillama.server.ollama.bodies import GenerateBody, OllamaChatBody, TextBody
from oxillama.server.options import options_of
from oxillama.server.running import connected, in_thread
from oxillama.server.state import served
from oxillama.server.stream import EventStream


async def chat(request: Request) -> Response | EventStream:
    """The next message of a conversation."""
    body = await read_body(request, OllamaChatBody)
    body.refuse_rest()
    if not body.messages:
        return await only_load(request, body, message({}))
    asked = await ask(request, body.model, body.keep_alive)
    return await answer(request, body, await in_thread(plan_of_chat, asked, body, request.state.request_id))


async def generate(request: Request) -> Response | EventStream:
    """Text that goes on from a prompt."""
    body = await read_body(request, GenerateBody)
    body.refuse_rest()
    if not (body.prompt or body.suffix or body.context):
        return await only_load(request, body, response({}))
    asked = await ask(request, body.model, body.keep_alive)
    return await answer(request, body, await in_thread(plan_of_text, asked, body, request.state.request_id))


async def answer(request: Request, body: TextBody, plan: Plan) -> Response | EventStream:
    if body.stream:
        return stream(lines(plan))
    return JSONResponse(await connected(request, whole(plan)))


async def only_load(request: Request, body: TextBody, empty: dict[str, Any]) -> Response:
    """A request without a prompt: loads the model, or unloads it if it is to be kept for no time."""
    is_end = idle_seconds(body.keep_alive) == 0
    hosted = find(served(request).models, body.model)
    if not is_end or hosted.state in ("loaded", "loading"):
        await ask(request, body.model, body.keep_alive)
    reason = "unload" if is_end else "load"
    found = {**head(body.model or hosted.name), **empty, "done": True, "done_reason": reason}
    return Response(line(found), media_type=LINES) if body.stream else JSONResponse(found)


def fixed_of(body: TextBody) -> dict[str, Any]:
    """The fields of `GenerationOptions` and `SamplerConfig` that fields of the body come to."""
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs: expected logprobs true beside it, got false", param="top_logprobs")
    return {
        "json_schema": schema_of(body.format),
        "logprobs": body.logprobs or None,
        "top_logprobs": body.top_logprobs or None,
    }


def plan_of_chat(asked: Asked, body: OllamaChatBody, request_id: str) -> Plan:
    """What a chat asks for. Raises ApiError, and errors of the library."""
    talk = Conversation(conversation(body.messages), body.tools)
    return plan_of_talk(asked, body, talk, request_id, body.tool_choice)


def plan_of_talk(
    asked: Asked, body: TextBody, talk: Conversation, request_id: str, tool_choice: Any = "auto"
) -> Plan:
    rest, context = context_of(asked.engine, body.options)
    variables = thinking(asked.engine, body.think, bool(talk.tools))
    chat = Chat(replace(talk, variables=variables), rest, fixed=fixed_of(body), tool_choice=tool_choice)
    plan = chat_plan(asked.engine, chat, request_id)
    return bounded(Plan(asked, plan.prompt, plan.options, message), context, talk.name)


def bounded(plan: Plan, context: int, name: str) -> Plan:
    """A plan whose prompt and text are at most ``context`` tokens together.

    Raises ApiError if the prompt leaves no room for a token.
    """
    n = len(plan.prompt)
    if n + 1 > context:
        raise prompt_too_long(name, n, context, 1)
    most = plan.options.max_tokens
    free = context - n
    return replace(plan, options=replace(plan.options, max_tokens=free if most is None else min(most, free)))


def plan_of_text(asked: Asked, body: GenerateBody, request_id: str) -> Plan:
    """What a text asks for. Raises ApiError, and errors of the library."""
    tokenizer = asked.engine.tokenizer
    has_template = "default" in tokenizer.chat_template_names
    known = tokenizer.chat_template_source("default") if has_template else "{{ .Prompt }}"
    if body.template not in (None, "", known):
        raise invalid("template", "that of the model's file", body.template)
    for name in ("system", "template", "context"):
        if (body.raw or body.suffix) and getattr(body, name):
            raise invalid(name, "none beside raw or suffix", getattr(body, name))
    if body.raw and body.suffix:
        raise invalid("suffix", "none beside raw", body.suffix)
    plain = body.raw or body.suffix or not has_template
    if plain and body.think is not None:
        raise invalid("think", "none for a text without a template", body.think)
    if body.system and not has_template:
        raise invalid("system", "a model with a chat template", body.system)
    if plain:
        plan = plan_of_plain(asked, body, request_id)
    else:
        said = [{"role": "system", "content": body.system}] if body.system else []
        said += [{"role": "user", "content": body.prompt}] if body.prompt or not body.context else []
        plan = plan_of_talk(asked, body, Conversation(said, name="prompt"), request_id)
        plan = replace(plan, shape=response)
    if body.context:
        opening = plan.prompt[1:] if plan.prompt[:1] == [tokenizer.bos_id] else plan.prompt
        plan = replace(plan, prompt=[*body.context, *opening])
    _, context = context_of(asked.engine, body.options)
    return bounded(replace(plan, keeps_context=not body.raw), context, "prompt")


def plan_of_plain(asked: Asked, body: GenerateBody, request_id: str) -> Plan:
    """A prompt as it is, or one with a suffix."""
    engine = asked.engine
    rest, _ = context_of(engine, body.options)
    options: GenerationOptions = options_of(
        rest, engine, (), {"max_tokens": None}, request_id=request_id, **fixed_of(body)
    )
    if body.suffix:
        prompt = infill_tokens(engine, body.prompt, body.suffix, "suffix")
    else:
        prompt = engine.tokenizer.encode(body.prompt)
    return Plan(asked, prompt, options, response)
