"""``/v1/responses``: OpenAI's interface for conversations of items."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oxillama.config import GenerationOptions
from oxillama.engine.engine import InferenceEngine
from oxillama.server.bodies import read_body
from oxillama.server.chats import Chat, checked_variables, effort_variables
from oxillama.server.errors import ApiError, invalid
from oxillama.server.json_text import JsonAnswer
from oxillama.server.prompt_progress import PromptProgress, with_progress
from oxillama.server.responses.bodies import LOGPROBS, InputBody, ResponsesBody, TextFormat
from oxillama.server.responses.conversation import chosen_tools, conversation_messages, functions, listed
from oxillama.server.responses.items import Items, Sent, new_id
from oxillama.server.responses.store import ResponseStore
from oxillama.server.running import Served, begin, chosen, connected, deltas, in_thread, last, timings
from oxillama.server.stream import EventStream, as_json, named_event

TOOL = {"description": None, "parameters": None, "strict": True}
"""What a function has where the body does not say."""


def store_of(request: Request) -> ResponseStore:
    """Where the application of a request keeps responses."""
    found: ResponseStore = request.app.state.responses
    return found


def items_before(store: ResponseStore, body: InputBody) -> tuple[Any, ...]:
    """The items that a body goes on from. Raises ApiError if they are not there."""
    if body.previous_response_id is None:
        return ()
    return store.get(body.previous_response_id, 400, "previous_response_id").items


def chat_of(engine: InferenceEngine, body: InputBody, before: tuple[Any, ...]) -> Chat:
    """The chat of a body. Raises ApiError, ChatTemplateError."""
    messages = conversation_messages(body.instructions, before, listed(body.input))
    tools, choice = chosen_tools(body.tool_choice, functions(body.tools))
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
    before = items_before(store, body)

    def prepared() -> tuple[Items, list[int], GenerationOptions]:
        chat = chat_of(engine, body, before)
        prompt, options = chat.prepared(
            engine,
            request.state.request_id,
            body.rest,
            max_tokens=body.max_output_tokens,
            json_schema=schema_of(body.text.format),
            logprobs=LOGPROBS in body.include or body.top_logprobs is not None or None,
            top_logprobs=body.top_logprobs or None,
        )
        head = sendable(head_of(here, store, body, options))
        tokenizer = None if options.n_top_logprobs is None else engine.tokenizer
        return Items(head, chat.n_calls, tokenizer), prompt, options

    items, prompt, options = await in_thread(prepared)

    def keep() -> None:
        if items.response["store"]:
            store.put(items.response, before, listed(body.input))

    sent = events(engine, items, prompt, options, keep, body)
    if body.stream:
        lines = (named_event(event["type"], event) async for event in sent)
        return EventStream(lines, here.config.ping_seconds, items.failed)
    await connected(request, last(sent))
    return JsonAnswer(items.response)


def head_of(
    here: Served, store: ResponseStore, body: ResponsesBody, options: GenerationOptions
) -> dict[str, Any]:
    """A response without output: what it was asked for, as it was understood.

    It has all fields that Open Responses requires: https://www.openresponses.org/reference.
    """
    sampler = options.sampler
    assert sampler is not None  # that of the engine, where the body says nothing
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
        "tools": [{**TOOL, **tool} for tool in body.tools if tool.get("type") == "function"],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": sampler.top_p,
        "truncation": "disabled",
        "usage": None,
        **{name: body.rest.get(name) for name in ("user", "safety_identifier", "prompt_cache_key")},
    }


def sendable(head: dict[str, Any]) -> dict[str, Any]:
    """A response that repeats what the body has. Raises ApiError if an answer cannot hold that."""
    try:
        as_json(head).encode()
    except (ValueError, RecursionError) as error:
        message = "body: expected numbers and texts that JSON in UTF-8 can express, got others"
        raise ApiError(400, message, param="body", code="invalid_json") from error
    return head


async def events(
    engine: InferenceEngine,
    items: Items,
    prompt: list[int],
    options: GenerationOptions,
    keep: Callable[[], None],
    body: ResponsesBody,
) -> AsyncIterator[Sent]:
    """The events of a response from its beginning to its end, where ``keep`` is called."""

    def timed(sent: Sent) -> Sent:
        return {**sent, "timings": timings(generation)} if body.timings_per_token else sent

    (generation,) = await begin(engine, [prompt], options)
    for sent in items.begin():
        yield sent
    found = deltas([generation])
    async for delta in with_progress([generation], found) if body.return_progress else found:
        if isinstance(delta, PromptProgress):
            yield items.progress(delta)
            continue
        for sent in items.add(delta):
            yield timed(sent) if sent["type"].endswith(".delta") else sent
    *closing, end = items.end(generation)
    keep()
    for sent in closing:
        yield sent
    yield timed(end)


async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of a body has, be it too long or not."""
    store = store_of(request)
    body = await read_body(request, InputBody)
    before = items_before(store, body)
    _, engine = await chosen(request, body.model)
    n_tokens = await in_thread(lambda: chat_of(engine, body, before).n_tokens(engine))
    return JsonAnswer({"object": "response.input_tokens", "input_tokens": n_tokens})


async def response(request: Request) -> Response:
    """A response that is kept."""
    if request.query_params.get("stream", "false").lower() not in ("false", "0"):
        raise ApiError(400, "stream: expected false for a response that is kept, got true", param="stream")
    return JsonAnswer(store_of(request).get(request.path_params["id"]).response)


async def delete_response(request: Request) -> Response:
    """Forgets a response. Those that go on from it stay."""
    id = request.path_params["id"]
    store_of(request).remove(id)
    return JsonAnswer({"id": id, "object": "response", "deleted": True})
