"""The paths of the server: one table for the application, its OpenAPI document and the pages about it."""

from __future__ import annotations

from typing import Any

from oxillama.apps.server import bodies
from oxillama.apps.server.anthropic import messages
from oxillama.apps.server.anthropic.bodies import CountBody, MessagesBody
from oxillama.apps.server.decisions import (
    DECISIONS_BODY,
    SYSTEMONE_BODY,
    decisions,
    system_one,
    system_one_error,
)
from oxillama.apps.server.errors import ApiError, ErrorBody
from oxillama.apps.server.llama_server import (
    adapters,
    completion,
    slots,
    status,
    tokens,
    vectors as native_vectors,
)
from oxillama.apps.server.ollama import about, bodies as ollama, pulling, texts, vectors as ollama_vectors
from oxillama.apps.server.openai import chat, completions, vectors
from oxillama.apps.server.openapi import FILE, SCALES, openapi
from oxillama.apps.server.page.files import page
from oxillama.apps.server.page.hub import MOST_CHARACTERS, hub
from oxillama.apps.server.page.pdf import pdf
from oxillama.apps.server.paths import JSON, Interface, Path
from oxillama.apps.server.responses import endpoints
from oxillama.apps.server.responses.bodies import InputBody, ResponsesBody
from oxillama.apps.server.tool_servers import CallBody, call_tool, list_tools

EVENTS, LINES = "text/event-stream", texts.LINES
JSON_OR_EVENTS, JSON_OR_LINES = (JSON, EVENTS), (JSON, LINES)

OF_MODEL = (("model", {"type": "string"}),)
FREE_SLOT = ("fail_on_no_slot", {"enum": ["0", "1"]})
ACTION = ("action", {"enum": list(slots.ACTIONS)})
UNSTREAMED = ("stream", {"enum": ["false", "0"]})
ANY: dict[str, Any] = {}
TEXT: dict[str, Any] = {"type": "string", "maxLength": MOST_CHARACTERS}

LLAMA_SERVER = Interface(
    "llama-server",
    (
        Path("GET", "/health", status.health),
        Path("GET", "/v1/health", status.health),
        Path("GET", "/metrics", status.metrics, answers=("text/plain",), statuses=(501,)),
        Path("GET", "/v1/models", status.models),
        Path("GET", "/v1/models/{model:path}", status.model),
        Path("GET", "/models", status.models),
        Path("GET", "/props", status.props, queries=OF_MODEL),
        Path("GET", "/slots", slots.slots, statuses=(501,), queries=(*OF_MODEL, FREE_SLOT)),
        Path(
            "POST",
            "/slots/{id_slot}",
            slots.change_slot,
            slots.SlotBody,
            needs_body=False,
            statuses=(409, 501),
            queries=(*OF_MODEL, ACTION),
        ),
        Path("GET", "/lora-adapters", adapters.adapters, queries=OF_MODEL),
        Path("POST", "/lora-adapters", adapters.set_adapters, SCALES, queries=OF_MODEL),
        Path("POST", "/completion", completion.completion, bodies.NativeBody, JSON_OR_EVENTS),
        Path("POST", "/completions", completion.completion, bodies.NativeBody, JSON_OR_EVENTS),
        Path("POST", "/infill", completion.infill, bodies.InfillBody, JSON_OR_EVENTS),
        Path("POST", "/embedding", native_vectors.embedding, bodies.NativeEmbeddingBody),
        Path("POST", "/embeddings", native_vectors.embedding, bodies.NativeEmbeddingBody),
        Path("POST", "/tokenize", tokens.tokenize, bodies.TokenizeBody),
        Path("POST", "/detokenize", tokens.detokenize, bodies.DetokenizeBody),
        Path("POST", "/apply-template", tokens.apply_template, bodies.TemplateBody),
    ),
)

RERANK = ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking", "/v2/rerank")
"""The names of one path in llama-server, vLLM and Cohere's interface."""

OPENAI = Interface(
    "OpenAI",
    (
        Path("POST", "/v1/completions", completions.completions, bodies.CompletionBody, JSON_OR_EVENTS),
        Path("POST", "/v1/chat/completions", chat.chat_completions, bodies.ChatBody, JSON_OR_EVENTS),
        Path("POST", "/chat/completions", chat.chat_completions, bodies.ChatBody, JSON_OR_EVENTS),
        Path("POST", "/v1/chat/completions/input_tokens", chat.input_tokens, bodies.ChatBody),
        Path("POST", "/chat/completions/input_tokens", chat.input_tokens, bodies.ChatBody),
        Path("POST", "/v1/embeddings", vectors.embeddings, bodies.EmbeddingBody),
        *(Path("POST", path, vectors.rerank, bodies.RerankBody) for path in RERANK),
        Path("POST", "/v1/decisions", decisions, DECISIONS_BODY),
    ),
)

SYSTEM_ONE = Interface(
    "System One",
    (Path("POST", "/v1/systemone", system_one, SYSTEMONE_BODY, statuses=(422,), takes_form=True),),
    ("/v1/systemone",),
    system_one_error,
)

RESPONSES = Interface(
    "OpenAI's responses",
    (
        Path("POST", "/v1/responses", endpoints.responses, ResponsesBody, JSON_OR_EVENTS),
        Path("POST", "/responses", endpoints.responses, ResponsesBody, JSON_OR_EVENTS),
        Path("POST", "/v1/responses/input_tokens", endpoints.count_tokens, InputBody),
        Path("GET", "/v1/responses/{id}", endpoints.response, queries=(UNSTREAMED,)),
        Path("DELETE", "/v1/responses/{id}", endpoints.delete_response),
    ),
)

ANTHROPIC = Interface(
    "Anthropic",
    (
        Path("POST", "/v1/messages", messages.messages, MessagesBody, JSON_OR_EVENTS),
        Path("POST", "/v1/messages/count_tokens", messages.count_tokens, CountBody),
    ),
    ("/v1/messages",),
    messages.error_body,
)

OLLAMA = Interface(
    "Ollama",
    (
        Path("HEAD", "/", about.alive, answers=()),
        Path("POST", "/api/chat", texts.chat, ollama.OllamaChatBody, JSON_OR_LINES),
        Path("POST", "/api/generate", texts.generate, ollama.GenerateBody, JSON_OR_LINES),
        Path("POST", "/api/embed", ollama_vectors.embed, ollama.EmbedBody),
        Path("POST", "/api/embeddings", ollama_vectors.embeddings, ollama.EmbeddingsBody),
        Path("GET", "/api/tags", about.tags),
        Path("POST", "/api/show", about.show, ollama.ShowBody),
        Path("GET", "/api/ps", about.ps),
        Path("GET", "/api/version", about.version),
        Path("POST", "/api/pull", pulling.pull, ollama.PullBody, JSON_OR_LINES),
        Path("POST", "/api/push", about.refused, ANY, (), statuses=(501,)),
        Path("POST", "/api/create", about.refused, ANY, (), statuses=(501,)),
        Path("POST", "/api/copy", about.refused, ANY, (), statuses=(501,)),
        Path("DELETE", "/api/delete", about.refused, ANY, (), statuses=(501,)),
    ),
    ("/api",),
    texts.error_body,
)

TOOLS = Interface(
    "MCP",
    (Path("GET", "/mcp/tools", list_tools), Path("POST", "/mcp/call", call_tool, CallBody, statuses=(409,))),
)

DOCUMENT = Interface("OpenAPI", (Path("GET", "/openapi.json", openapi),))

PAGE = Interface(
    "Page",
    (
        Path("GET", "/", page, answers=("text/html",), statuses=(304,)),
        Path("GET", "/page/{version}/{file:path}", page, answers=("*/*",), statuses=(304,)),
        Path("GET", "/page/hub", hub, statuses=(501, 503), queries=(("search", TEXT), ("repo", TEXT))),
        Path("POST", "/page/pdf", pdf, FILE, takes="application/pdf", statuses=(422, 501)),
    ),
)

INTERFACES = (LLAMA_SERVER, OPENAI, SYSTEM_ONE, RESPONSES, ANTHROPIC, OLLAMA, TOOLS, DOCUMENT, PAGE)

OPEN_PATHS = ("/health", "/v1/health")
"""Paths that need no key, for those who watch over the process; those of the page need none, either."""

ROUTES: tuple[Path, ...] = tuple(route for interface in INTERFACES for route in interface.routes)
"""Those of all interfaces."""


def error_body(path: str) -> ErrorBody:
    """The function that shapes errors on a path, also on an unknown path."""
    for interface in INTERFACES:
        if any(path == prefix or path.startswith(f"{prefix}/") for prefix in interface.prefixes):
            return interface.error_body
    return ApiError.body
