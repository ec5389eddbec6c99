"""``/v1/responses``: OpenAI's interface for conversations of items."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.answer_size import LOGPROB_OBJECT_BYTES, within
from oxillama.apps.server.bodies import read_body
from oxillama.apps.server.chats import Chat, checked_variables, effort_variables
from oxillama.apps.server.errors import fault, invalid
from oxillama.apps.server.json_text import JsonAnswer, WrittenAnswer
from oxillama.apps.server.prompt_progress import PromptProgress, with_progress
from oxillama.apps.server.responses.bodies import LOGPROBS, InputBody, ResponsesBody, TextFormat
from oxillama.apps.server.responses.from_items import chosen_tools, conversation_messages, listed
from oxillama.apps.server.responses.items import Items, Sent, new_id
from oxillama.apps.server.responses.namespaces import Functions, shown_tools
from oxillama.apps.server.responses.store import ResponseStore, Turn
from oxillama.apps.server.running import (
    Served,
    begin,
    chosen,
    connected,
    in_thread,
    last,
    start_at_once,
    timings,
)
from oxillama.apps.server.stream import EventStream, as_json, named_event
from oxillama.base.config import GenerationOptions
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation


def store_of(request: Request) -> ResponseStore:
    """The store of responses of a request's application."""
    found: ResponseStore = request.app.state.responses
    return found


def turn_before(store: ResponseStore, body: InputBody) -> Turn | None:
    """The turn that a body continues; the input gets the items to which it refers.

    Raises ApiError if they are not stored.
    """
    body.input = store.with_references(listed(body.input))
    if body.previous_response_id is None:
        return None
    return store.get(body.previous_response_id, 400, "previous_response_id").turn


def chat_of(engine: InferenceEngine, body: InputBody, before: Turn | None) -> Chat:
    """The chat of a body. Raises ApiError, ChatTemplateError."""
    functions = Functions(body.tools)
    earlier = [] if before is None else before.conversation()
    messages = conversation_messages(body.instructions, earlier, listed(body.input), functions)
    tools, choice = chosen_tools(body.tool_choice, functions)
    variables: dict[str, Any] = {}
    if body.reasoning.effort is not None:
        variables = effort_variables(engine, bool(tools), body.reasoning.effort, "reasoning.effort")
    variables |= checked_variables(body.chat_template_kwargs)
    return Chat(messages, tools, variables, "", choice, body.parallel_tool_calls, name="input")


def schema_of(wanted: TextFormat) -> Any:
    """The schema that the text is to follow; None for any text. Raises ApiError."""
    if wanted.type == "json_schema":
        if wanted.schema_ is None:
            raise invalid("text.format.schema", "a schema", None)
        return wanted.schema_
    if wanted.schema_ is not None:
        raise invalid("text.format.schema", f"none for {wanted.type}", wanted.schema_)
    return {"type": "object"} if wanted.type == "json_object" else None


async def responses(request: Request) -> Response | EventStream:
    """The response to an input, and to the responses before it."""
    store = store_of(request)
    body = await read_body(request, ResponsesBody)
    here, engine = await chosen(request, body.model)
    before = turn_before(store, body)

    def prepared() -> tuple[Items, list[int], GenerationOptions, list[Generation] | None]:
        chat = chat_of(engine, body, before)
        prompt, options = chat.prepared(
            engine,
            body.rest,
            max_tokens=body.max_output_tokens,
            json_schema=schema_of(body.text.format),
            logprobs=LOGPROBS in body.include or body.top_logprobs is not None or None,
            top_logprobs=body.top_logprobs or None,
        )
        head = sendable(head_of(here, store, body, options))
        tokenizer = None if options.n_top_logprobs is None else engine.tokenizer
        own_names = Functions(body.tools).own_names
        items = Items(head, partial(chat.ids_of, prompt), tokenizer, own_names)
        return items, prompt, options, start_at_once(engine, [prompt], options)

    items, prompt, options, started = await in_thread(prepared)

    async def keep() -> None:
        if items.response["store"]:
            await store.put(items.response, before, listed(body.input))

    sent = events(engine, items, prompt, options, started, keep, body)
    if body.stream:
        lines = (named_event(event["type"], event) async for event in sent)
        return EventStream(lines, here.config.ping_seconds, items.failed)
    await connected(request, last(sent))
    return JsonAnswer(items.response)


def head_of(
    here: Served, store: ResponseStore, body: ResponsesBody, options: GenerationOptions
) -> dict[str, Any]:
    """A response without output: the options of its request.

    It has all fields that Open Responses requires: https://www.openresponses.org/reference.
    """
    sampler = options.sampler
    assert sampler is not None  # the engine's sampler, if the body sets nothing
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata,
        "model": here.hosted.name,
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": body.reasoning.effort, "summary": None},
        "service_tier": "default",
        "store": body.store and store.most_bytes > 0,
        "temperature": sampler.temperature,
        "presence_penalty": sampler.presence_penalty,
        "frequency_penalty": sampler.frequency_penalty,
        "text": {"format": body.text.format.model_dump(by_alias=True, exclude_none=True)},
        "tool_choice": body.tool_choice,
        "tools": shown_tools(body.tools),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": sampler.top_p,
        "truncation": "disabled",
        "usage": None,
        **{name: body.rest.get(name) for name in ("user", "safety_identifier", "prompt_cache_key")},
    }


def sendable(head: dict[str, Any]) -> dict[str, Any]:
    """A response that repeats fields of the body. Raises ApiError for a value that JSON cannot hold."""
    try:
        as_json(head).encode()
    except (ValueError, RecursionError) as error:
        what = "expected numbers and texts that JSON in UTF-8 can express, got others"
        raise fault("body", what, "invalid_json") from error
    return head


async def events(
    engine: InferenceEngine,
    items: Items,
    prompt: list[int],
    options: GenerationOptions,
    started: list[Generation] | None,
    keep: Callable[[], Awaitable[None]],
    body: ResponsesBody,
) -> AsyncIterator[Sent]:
    """The events of a response; ``keep`` is called at its end, ``started`` is as for `begin`."""

    def timed(sent: Sent) -> Sent:
        return {**sent, "timings": timings(generation)} if body.timings_per_token else sent

    (generation,) = await begin(engine, [prompt], options, started=started)
    for sent in items.begin(generation):
        yield sent
    found = within([generation], LOGPROB_OBJECT_BYTES)
    async for delta in with_progress([generation], found) if body.return_progress else found:
        if isinstance(delta, PromptProgress):
            yield items.progress(delta)
            continue
        for sent in items.add(delta):
            yield timed(sent) if sent["type"].endswith(".delta") else sent
    *closing, end = items.end(generation)
    await keep()
    for sent in closing:
        yield sent
    yield timed(end)


async def count_tokens(request: Request) -> Response:
    """The number of tokens of a body's prompt, also of one that is too long."""
    store = store_of(request)
    body = await read_body(request, InputBody)
    before = turn_before(store, body)
    _, engine = await chosen(request, body.model)
    n_tokens = await in_thread(lambda: chat_of(engine, body, before).n_tokens(engine))
    return JsonAnswer({"object": "response.input_tokens", "input_tokens": n_tokens})


async def response(request: Request) -> Response:
    """A stored response."""
    if request.query_params.get("stream", "false").lower() not in ("false", "0"):
        raise fault("stream", "expected false for a response that is kept, got true")
    return WrittenAnswer(store_of(request).get(request.path_params["id"]).pieces)


async def delete_response(request: Request) -> Response:
    """Deletes a response. Responses that continue it stay."""
    id = request.path_params["id"]
    store_of(request).remove(id)
    return JsonAnswer({"id": id, "object": "response", "deleted": True})
