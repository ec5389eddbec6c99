"""``/api/chat`` and ``/api/generate``: objects, or lines of JSON of which the last has the numbers."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.answer_size import LOGPROB_BYTES, LOGPROB_HELD_BYTES, within
from oxillama.apps.server.bodies import read_body
from oxillama.apps.server.chats import Chat
from oxillama.apps.server.errors import ApiError, fault, invalid, prompt_too_long
from oxillama.apps.server.infill import infill_tokens
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.media import ClientMedia
from oxillama.apps.server.ollama.asking import (
    Asked,
    ask,
    context_of,
    conversation,
    kept_seconds,
    schema_of,
    thinking,
    with_images,
)
from oxillama.apps.server.ollama.bodies import GenerateBody, OllamaChatBody, TextBody
from oxillama.apps.server.openai.logprobs import chat_logprobs
from oxillama.apps.server.options import options_of
from oxillama.apps.server.prompts import bounded
from oxillama.apps.server.running import begin, connected, in_thread, last, receipt_of, served, start_at_once
from oxillama.apps.server.stream import EventStream, as_json
from oxillama.base.config import GenerationOptions
from oxillama.base.events import CallEnd, CallFailed, Event, ReasoningPart, TextPart
from oxillama.engine.generation import Generation
from oxillama.engine.sampling.logprobs import SampledToken
from oxillama.text.toolcalls.openai_form import CallIds

LINES = "application/x-ndjson"

REASONS = {"tool_calls": "stop"}
"""Reasons for the end of a text that Ollama has other words for."""

Shape = Callable[[dict[str, Any]], dict[str, Any]]
"""Puts content, thinking and calls into the fields of an endpoint."""


@dataclass(frozen=True)
class Plan:
    """A request for text, made ready to run.

    Attributes:
        shape: of the answers of the endpoint.
        ids_of: makes the ids of the calls of an answer.
        keeps_context: whether the last object has the token ids of prompt and text.
        started: as for `begin`.
    """

    asked: Asked
    prompt: list[int]
    options: GenerationOptions
    shape: Shape
    ids_of: Callable[[Generation], CallIds] = lambda generation: CallIds()
    keeps_context: bool = False
    started: list[Generation] | None = None


def message(part: dict[str, Any]) -> dict[str, Any]:
    """The shape of a chat's answers."""
    return {"message": {"role": "assistant", "content": "", **part}}


def response(part: dict[str, Any]) -> dict[str, Any]:
    """The shape of other texts."""
    rest = {name: value for name, value in part.items() if name != "content"}
    return {"response": part.get("content", ""), **rest}


def head(name: str) -> dict[str, Any]:
    """The fields of every object of an answer: the model, under the client's name for it, and the time."""
    return {"model": name, "created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z")}


def part_of(event: Event | None, ids: CallIds) -> dict[str, Any]:
    """The fields of an event: a piece of text or of reasoning, or a complete call; {} for other events."""
    if isinstance(event, TextPart):
        return {"content": event.text}
    if isinstance(event, ReasoningPart):
        return {"thinking": event.text}
    if isinstance(event, CallEnd):
        call = {"index": event.index, "name": event.call.name, "arguments": event.call.args}
        return {"tool_calls": [{"id": ids.of(event.index, event.call.id), "function": call}]}
    if isinstance(event, CallFailed) and event.index is None:
        return {"content": event.text}
    return {}


def ending(plan: Plan, generation: Generation) -> dict[str, Any]:
    """The fields at the end of a text; times in nanoseconds."""
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
    return found | receipt_of(generation)


def nanoseconds(seconds: float) -> int:
    return 0 if math.isnan(seconds) else round(1e9 * seconds)


def logprobs_of(plan: Plan, sampled: list[SampledToken]) -> dict[str, Any]:
    """Log-probabilities of tokens, if they were asked for and there are any."""
    if not sampled:
        return {}
    return {"logprobs": chat_logprobs(plan.asked.engine.tokenizer, sampled)["content"]}


async def answers(plan: Plan, each: bool) -> AsyncIterator[dict[str, Any]]:
    """The objects of an answer: one for each piece, or one for all; the last has the numbers."""
    (generation,) = await begin(plan.asked.engine, [plan.prompt], plan.options, started=plan.started)
    waiting: list[SampledToken] = []
    ids = plan.ids_of(generation)
    part: dict[str, Any] = {}
    async for delta in within([generation], LOGPROB_HELD_BYTES if each else LOGPROB_BYTES):
        waiting += delta.logprobs
        for name, value in part_of(delta.event, ids).items():
            part[name] = part[name] + value if name in part else value
        is_end = delta.finish_reason is not None
        if is_end or (each and part):
            end = ending(plan, generation) if is_end else {"done": False}
            found = {**head(plan.asked.name), **plan.shape(part), **end}
            yield found | logprobs_of(plan, waiting)
            waiting, part = [], {}


def line(value: Any) -> str:
    return f"{as_json(value)}\n"


def error_body(error: ApiError) -> dict[str, Any]:
    """An error in Ollama's form."""
    return {"error": error.message}


def stream(found: AsyncIterator[dict[str, Any]]) -> EventStream:
    """A stream of lines; it sends no pings, for clients take every line for an object."""
    lines = (line(each) async for each in found)
    return EventStream(lines, None, lambda error: line(error_body(error)), LINES)


async def chat(request: Request) -> Response | EventStream:
    """The next message of a conversation."""
    body = await read_body(request, OllamaChatBody)
    return await answer(request, body, bool(body.messages), plan_of_chat, message)


async def generate(request: Request) -> Response | EventStream:
    """The continuation of a prompt."""
    body = await read_body(request, GenerateBody)
    has_prompt = bool(body.prompt or body.suffix or body.context or body.images)
    return await answer(request, body, has_prompt, plan_of_text, response)


async def answer(
    request: Request, body: TextBody, has_prompt: bool, make: Callable[..., Plan], shape: Shape
) -> Response | EventStream:
    """The answer to a body, for which ``make`` makes a plan, unless the body has no prompt."""
    if not has_prompt:
        return await only_load(request, body, shape({}))
    asked = await ask(request, body.model, body.keep_alive)

    def started() -> Plan:
        plan = make(asked, body)
        return replace(plan, started=start_at_once(asked.engine, [plan.prompt], plan.options))

    plan = await in_thread(started)
    if body.stream:
        return stream(answers(plan, True))
    return JsonAnswer(await connected(request, last(answers(plan, False))))


async def only_load(request: Request, body: TextBody, empty: dict[str, Any]) -> Response:
    """A request without a prompt: loads the model, or unloads it if it is to be kept for no time."""
    is_end = kept_seconds(request, body.keep_alive, asks=False) == 0
    hosted = served(request).models.find(body.model)
    if not is_end or hosted.state in ("loaded", "loading"):
        await ask(request, body.model, body.keep_alive, asks=False)
    reason = "unload" if is_end else "load"
    found = {**head(body.model or hosted.name), **empty, "done": True, "done_reason": reason}
    return Response(line(found), media_type=LINES) if body.stream else JsonAnswer(found)


def fixed_of(body: TextBody) -> dict[str, Any]:
    """The fields of `GenerationOptions` and `SamplerConfig` that fields of the body come to."""
    if body.top_logprobs and not body.logprobs:
        raise fault("top_logprobs", "expected logprobs true beside it, got false")
    return {
        "json_schema": schema_of(body.format),
        "logprobs": body.logprobs or None,
        "top_logprobs": body.top_logprobs or None,
    }


def plan_of_chat(asked: Asked, body: OllamaChatBody) -> Plan:
    """The plan of a chat. Raises ApiError, and errors of the library."""
    chat = Chat(conversation(body.messages), body.tools, tool_choice=body.tool_choice)
    return plan_of_talk(asked, body, chat)


def plan_of_talk(asked: Asked, body: TextBody, chat: Chat) -> Plan:
    rest, context = context_of(asked.engine, body)
    variables = thinking(asked.engine, body.think, bool(chat.tools))
    chat = replace(chat, variables=variables, room=context)
    prompt, options = chat.prepared(asked.engine, rest, **fixed_of(body))
    plan = Plan(asked, prompt, options, message, partial(chat.ids_of, prompt))
    return within_context(plan, context, chat.name)


def within_context(plan: Plan, context: int, name: str) -> Plan:
    """A plan whose prompt and text are at most ``context`` tokens together.

    Raises ApiError if the prompt leaves no room for a token.
    """
    n = len(plan.prompt)
    if n + 1 > context:
        raise prompt_too_long(name, n, context, 1)
    most = plan.options.max_tokens
    free = context - n
    return replace(plan, options=replace(plan.options, max_tokens=free if most is None else min(most, free)))


def plan_of_text(asked: Asked, body: GenerateBody) -> Plan:
    """The plan of a text. Raises ApiError, and errors of the library."""
    tokenizer = asked.engine.tokenizer
    has_template = "default" in tokenizer.templates
    known = tokenizer.chat_template_source("default") if has_template else "{{ .Prompt }}"
    if body.template not in (None, "", known):
        raise invalid("template", "that of the model's file", body.template)
    for name in ("system", "template", "context"):
        if (body.raw or body.suffix) and getattr(body, name):
            raise invalid(name, "none beside raw or suffix", getattr(body, name))
    if body.raw and body.suffix:
        raise invalid("suffix", "none beside raw", body.suffix)
    for name in ("suffix", "context"):
        if body.images and getattr(body, name):
            raise invalid("images", f"none beside {name}", len(body.images))
    plain = body.raw or body.suffix or not has_template
    if plain and body.think:  # false asks for nothing: a text without a template has no reasoning of its own
        raise invalid("think", "none, or false, for a text without a template", body.think)
    if body.system and not has_template:
        raise invalid("system", "a model with a chat template", body.system)
    if plain:
        plan = plan_of_plain(asked, body)
    else:
        said = [{"role": "system", "content": body.system}] if body.system else []
        content = with_images(body.prompt, body.images, "images")
        said += [{"role": "user", "content": content}] if content or not body.context else []
        plan = plan_of_talk(asked, body, Chat(said, name="prompt"))
        plan = replace(plan, shape=response)
    if body.context:
        opening = plan.prompt[1:] if plan.prompt[:1] == [tokenizer.bos_id] else plan.prompt
        plan = replace(plan, prompt=[*body.context, *opening])
    _, context = context_of(asked.engine, body)
    keeps_context = not (body.raw or body.images)  # tokens do not hold pictures
    return within_context(replace(plan, keeps_context=keeps_context), context, "prompt")


def plan_of_plain(asked: Asked, body: GenerateBody) -> Plan:
    """A plain prompt, or a prompt with a suffix."""
    engine = asked.engine
    rest, context = context_of(engine, body)
    options = options_of(rest, engine, {"max_tokens": None}, **fixed_of(body))
    prompt: Any
    if body.images:
        texts = [*[""] * len(body.images), body.prompt]
        places = [f"images[{i}]" for i in range(len(body.images))]
        prompt = ClientMedia(engine, "prompt", context).between(places, texts, body.images)
    elif body.suffix:
        prompt = infill_tokens(engine, body.prompt, body.suffix, "suffix")
    else:
        prompt = bounded(engine).encode(body.prompt)
    return Plan(asked, prompt, options, response)
