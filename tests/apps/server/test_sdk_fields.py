"""Each field and value that the packages of OpenAI, Anthropic and Ollama publish is honoured, or has a row in
the tables of fields without effect and of refused fields."""

from __future__ import annotations

import re
from collections import Counter
from fnmatch import fnmatchcase, translate
from functools import cache
from typing import Any

import anthropic.types.beta.message_count_tokens_params as beta_count
import anthropic.types.beta.message_create_params as beta_create
import anthropic.types.message_count_tokens_params as count
import anthropic.types.message_create_params as create
import ollama
import openai.types.chat.completion_create_params as chat
import openai.types.completion_create_params as completion
import openai.types.embedding_create_params as embedding
import openai.types.responses.input_token_count_params as response_count
import openai.types.responses.response_create_params as response
import pytest
from ollama import _types as ollama_types

from oxillama.apps.server.no_effect import (
    ANTHROPIC,
    DOWNLOADS,
    NO_EFFECT,
    OLLAMA,
    OPENAI,
    REFUSED,
    RESPONSES,
    VECTORS,
)
from oxillama.apps.server.routes import ROUTES
from tests.support.sdk_fields import PLAIN, samples
from tests.support.server import Client
from tests.support.spread import each
from tests.support.tool_models import AS_IT_IS

MODEL = {"chat_template": "{{ reasoning_effort }}{{ enable_thinking }}" + AS_IT_IS + "{# <think> </think> #}"}
"""A model whose template has tools, reasoning with a switch, and efforts."""

CHAT = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "x", "parameters": {}}}
BASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "/v1/chat/completions": (
        OPENAI, chat.CompletionCreateParamsNonStreaming, {"messages": CHAT, "max_tokens": 2},
    ),
    "/v1/completions": (
        OPENAI, completion.CompletionCreateParamsNonStreaming, {"prompt": "x", "max_tokens": 2},
    ),
    "/v1/embeddings": (OPENAI, embedding.EmbeddingCreateParams, {"input": "x"}),
    "/v1/responses": (
        RESPONSES, response.ResponseCreateParamsNonStreaming, {"input": "x", "max_output_tokens": 2},
    ),
    "/v1/responses/input_tokens": (RESPONSES, response_count.InputTokenCountParams, {"input": "x"}),
    "/v1/messages": (ANTHROPIC, create.MessageCreateParamsNonStreaming, {"messages": CHAT, "max_tokens": 2}),
    "/v1/messages?beta=true": (
        ANTHROPIC, beta_create.MessageCreateParamsNonStreaming, {"messages": CHAT, "max_tokens": 2},
    ),
    "/v1/messages/count_tokens": (ANTHROPIC, count.MessageCountTokensParams, {"messages": CHAT}),
    "/v1/messages/count_tokens?beta=true": (
        ANTHROPIC, beta_count.MessageCountTokensParams, {"messages": CHAT},
    ),
    "/api/chat": (OLLAMA, ollama_types.ChatRequest, {"messages": CHAT, "stream": False}),
    "/api/generate": (OLLAMA, ollama_types.GenerateRequest, {"prompt": "x", "stream": False}),
    "/api/embed": (VECTORS, ollama_types.EmbedRequest, {"input": "x"}),
    "/api/embeddings": (VECTORS, ollama_types.EmbeddingsRequest, {"prompt": "x"}),
    "/api/show": (OLLAMA, ollama_types.ShowRequest, {}),
    "/api/pull": (DOWNLOADS, ollama_types.PullRequest, {}),
}  # fmt: skip
"""For each path the table of its refused fields, the type of its body, and what a body has at least."""

PLAIN[ollama.Image] = "aGk="

SAME = {
    "/v1/messages?beta=true": "/v1/messages",
    "/v1/messages/count_tokens": "/v1/messages",
    "/v1/messages/count_tokens?beta=true": "/v1/messages?beta=true",
    "/v1/responses/input_tokens": "/v1/responses",
}
"""Paths that read the insides of fields as another path does: only the other path is tried with those."""

FEW = 9
"""Places that are tried for a row that refuses them."""

KINDS: dict[str, Any] = {each.path: each.body for each in ROUTES}

SKIPPED = (
    *("model=*", "betas*", "stream"),
    *("options", "messages", "tools"),  # a mapping, in the place of a typed object
    "tools.function.parameters*",  # a schema
    *("previous_response_id", "*namespace*", "tools<namespace>*"),  # they refer to something
)
"""Names of other models, what is a header, and what needs another request or another field."""

NEEDS_A_MODEL = (
    "the model takes no pictures",
    "the model takes no sounds",
    "expected a model with tokens for infill",
)
"""Errors of fields that another model honours."""


def completed(path: str, place: str, body: dict[str, Any]) -> dict[str, Any]:
    """A body with the other fields that a field needs, and with values that have a meaning."""
    if path in ("/api/chat", "/api/generate"):
        body = {**body, "options": {"num_predict": 2, **body.get("options", {})}}
    if place == "top_logprobs" and "responses" not in path:
        return {**body, "logprobs": True}
    if place == "max_completion_tokens":
        return {name: value for name, value in body.items() if name != "max_tokens"}
    if place.startswith("tool_choice"):
        allowed = body["tool_choice"]
        if place.startswith("tool_choice<allowed_tools>"):
            inner = allowed.get("allowed_tools", allowed)
            inner["tools"] = [TOOL if "chat" in path else {"type": "function", "name": "x"}]
        plain = {"name": "x", "input_schema": {}} if "messages" in path else {"type": "function", "name": "x"}
        return {**body, "tools": [TOOL if "chat" in path else plain]}
    if place == "options.num_ctx":
        return {**body, "options": {"num_ctx": 256}}
    if place.startswith("tools") and path == "/api/chat":
        function = {"name": "x", **body["tools"][0].get("function", {})}
        return {**body, "tools": [{**body["tools"][0], "type": "function", "function": function}]}
    name = "input" if "responses" in path else "messages"
    if place.startswith(name) and isinstance(body[name], list):
        return {**body, name: [item_of(path, place, body[name][0]), *(CHAT if "/messages" in path else [])]}
    return body


def item_of(path: str, place: str, item: dict[str, Any]) -> dict[str, Any]:
    """A message or an item with the other fields that a field needs."""
    if place.endswith(("tool_name", "tool_call_id")):
        return {**item, "role": "tool"}
    if item.get("type") == "function_call":
        return {**item, "arguments": "{}"}
    if item.get("type") == "function_call_output":
        return {"call_id": "x", **item}
    is_empty = not {"content", "tool_calls", "refusal"} & set(item)
    return {**item, "content": "y"} if "role" in item and is_empty else item


def is_in(place: str, pattern: str) -> bool:
    """Whether a pattern stands for a place, or for something that the place is in."""
    return expression(pattern).match(place) is not None


@cache
def expression(pattern: str) -> re.Pattern[str]:
    """A regular expression for both patterns of `is_in`."""
    return re.compile("|".join(map(translate, (pattern, *(f"{pattern}{mark}*" for mark in ".<=")))))


@cache
def published(path: str) -> dict[str, Any]:
    """The body for each place of a path's type: the fields and the values."""
    _, kind, base = BASES[path]
    found = {}
    for sample in samples(kind):
        place = sample.place.lstrip(".")
        if place not in found and not any(fnmatchcase(place, pattern) for pattern in SKIPPED):
            own = {name: value for name, value in base.items() if not place.startswith(name)}
            found[place] = completed(path, place, {**base, **sample.value, **own, "model": "tiny"})
    return found


def row_of(path: str, place: str, body: dict[str, Any]) -> str | None:
    """The row of a table that refuses a place; None for one that is not refused."""
    row = next((pattern for pattern in REFUSED[BASES[path][0]] if is_in(place, pattern)), None)
    if row is not None:
        return row
    inside = place.removeprefix("options.") if path.startswith("/api/") else place
    name = re.split("[.<=]", inside)[0]
    if name not in NO_EFFECT or name in KINDS[path.partition("?")[0]].model_fields:
        return None
    value, values = (body if inside == place else body["options"])[name], NO_EFFECT[name].values
    return None if values is None or value in values else name


@pytest.mark.parametrize("path", each(BASES, 3))
def test_each_published_field_is_honoured_or_in_a_table(client: Client, path: str) -> None:
    wrong, seen = [], Counter[str]()
    elsewhere = published(SAME[path]) if path in SAME else {}
    for place, body in published(path).items():
        if place in elsewhere and re.search("[.<]", place):
            continue
        row = row_of(path, place, body)
        seen[row or place] += 1
        if seen[row or place] > FEW:
            continue
        answer = client.ask(path, body)
        needs_model = any(each in answer.text for each in NEEDS_A_MODEL)
        if answer.status != (200 if row is None else 400) and not (row is None and needs_model):
            wrong.append(f"{place}: {answer.status} {answer.text[:200]} (row {row})")
    assert not wrong, "\n".join(wrong)


def test_each_row_is_about_a_published_field() -> None:
    for name, table in REFUSED.items():
        places = [place for path in BASES if BASES[path][0] == name for place in published(path)]
        for pattern in table:
            assert any(is_in(place, pattern) for place in places), (name, pattern)


def test_an_error_gives_the_reason(client: Client) -> None:
    error = client.ask("/v1/chat/completions", {"messages": CHAT, "audio": {"voice": "x"}}).error
    assert error["message"] == "audio: expected no such field, for answers are texts"
    assert (error["param"], error["code"]) == ("audio", "unsupported_parameter")
