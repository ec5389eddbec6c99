"""Bodies as clients send them, what a fuzzer makes of them, and the application without a socket."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings, strategies as st
from starlette.applications import Starlette

from oxillama import InferenceEngine
from oxillama.apps.server.app import create_app
from oxillama.apps.server.models import Hosted, Models
from oxillama.apps.server.options import HARMLESS, OPTIONS
from oxillama.apps.server.routes import ROUTES
from oxillama.base.config.server import ServerConfig
from tests.support.tiny_file import write_tiny_model

BRIEFLY = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
"""The same few examples at each time."""

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    {"role": "assistant", "content": "there"},
    {"role": "user", "content": "world"},
]
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    },
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "boolean"}, "strict": True}}
TEXT = {"temperature": 0.5, "top_p": 0.9, "seed": 1, "stop": ["x"], "max_tokens": 3}
RESPONSES = {"input": MESSAGES[1:], "instructions": "Be brief.", "max_output_tokens": 3}
ANTHROPIC = {"model": "tiny", "system": "Be brief.", "messages": MESSAGES[1:2], "max_tokens": 3}
OLLAMA = {"model": "tiny", "stream": False, "options": {"temperature": 0.5, "num_predict": 3, "seed": 1}}

SEEDS: dict[str, list[Any]] = {
    "/v1/completions": [
        {"prompt": "hello", **TEXT},
        {"prompt": [[5, 6], "a"], "n": 2, "echo": True, "logprobs": 1, **TEXT},
        {"prompt": "hello", "stream": True, "stream_options": {"include_usage": True}, **TEXT},
        {"prompt": "hello", "best_of": 2, "logit_bias": {"5": -100}, "user": "me", **TEXT},
    ],
    "/v1/chat/completions": [
        {"messages": MESSAGES, **TEXT},
        {"messages": MESSAGES, "stream": True, "logprobs": True, "top_logprobs": 2, **TEXT},
        {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "auto", **TEXT},
        {"messages": MESSAGES, "response_format": SCHEMA, **TEXT},
    ],
    "/v1/systemone": [
        {"model": "tiny", "state": {"a": 1}, "questions": {"q": {"type": "noul", "instructions": "Is it?"}}}
    ],
    "/v1/decisions": [
        {"model": "tiny", "input": "hello", "questions": [{"type": "predicate", "instructions": "Is it?"}]},
        {
            "model": "tiny",
            "input": MESSAGES[1:2],
            "questions": [
                {"type": "choice", "instructions": "?", "choices": [{"value": "a"}, {"value": True}]}
            ],
        },
    ],
    "/mcp/call": [{"name": "files__read", "arguments": {"path": "a"}}],
    "/v1/chat/completions/input_tokens": [{"messages": MESSAGES}],
    "/completion": [
        {"prompt": "hello", "n_predict": 3, "n_probs": 2, "samplers": ["top_k"], "repeat_last_n": 64},
        {"prompt": ["a", {"prompt_string": "b"}], "n_predict": 3, "response_fields": ["content", "a/b"]},
        {"prompt": "hello", "n_predict": 3, "stream": True, "grammar": 'root ::= "a"', "id_slot": 0},
    ],
    "/infill": [{"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c", "filename": "d"}]}],
    "/v1/embeddings": [
        {"input": "hello", "encoding_format": "base64"},
        {"input": ["a", [5, 6], {"content": [{"type": "text", "text": "x"}]}], "dimensions": 8},
    ],
    "/embedding": [
        {"content": "hello", "pooling": "none", "embd_normalize": -1},
        {"input": ["a", [5, 6]], "embd_normalize": 2},
    ],
    "/v1/rerank": [
        {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1},
        {"query": "a", "texts": ["b"]},
    ],
    "/tokenize": [{"content": "hello", "add_special": True, "with_pieces": True}],
    "/detokenize": [{"tokens": [5, 6, 7]}],
    "/apply-template": [{"messages": MESSAGES, "chat_template_kwargs": {"mode": "a"}, "tools": [TOOL]}],
    "/lora-adapters": [[{"id": 0, "scale": 0.5}], []],
    "/slots/0?action=erase": [{}],
    "/slots/0?action=save": [{"filename": "a"}],
    "/slots/0?action=restore": [{"filename": "a"}],
    "/v1/responses": [
        RESPONSES,
        {**RESPONSES, "input": "hello", "stream": True, "tools": [{"type": "function", **TOOL["function"]}]},
    ],
    "/v1/responses/input_tokens": [{"input": MESSAGES[1:], "instructions": "Be brief."}],
    "/v1/messages": [
        ANTHROPIC,
        {**ANTHROPIC, "stream": True, "tools": [{"name": "look", "input_schema": {"type": "object"}}]},
    ],
    "/v1/messages/count_tokens": [{name: value for name, value in ANTHROPIC.items() if name != "max_tokens"}],
    "/api/chat": [{**OLLAMA, "messages": [{"role": "user", "content": "hello"}]}],
    "/api/generate": [
        {**OLLAMA, "prompt": "hello"},
        {**OLLAMA, "prompt": "hello", "stream": True, "raw": True},
    ],
    "/api/embed": [{"model": "tiny", "input": ["hello"], "truncate": True}],
    "/api/embeddings": [{"model": "tiny", "prompt": "hello"}],
    "/api/show": [{"model": "tiny"}],
    "/api/pull": [{"model": "tiny", "stream": False}],
}
"""Paths with bodies that are right, or nearly. A path that the server does not have is left out."""

FIELDS = {name for each in ROUTES if isinstance(each.body, type) for name in each.body.model_fields}
NAMES = sorted({*FIELDS, *OPTIONS, *HARMLESS, "response_format", "type", "num_ctx", "nonsense"})
NUMBERS = [0, 1, -1, 2, 3, 0.5, 1.0, -0.5, 2**31, 2**63, 2**64, 10**30, 1e300, -(2**63) - 1]
WORDS = ["", "auto", "none", "text", "\x00", "\ud800", "a" * 300, "{{", "root ::= root", "(a*)*b", "\u202e"]
PLAIN = st.one_of(
    st.none(), st.booleans(), st.sampled_from(NUMBERS), st.text(max_size=5), st.sampled_from(WORDS)
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
SLOW = ("n", "best_of", "timeout")
"""Fields whose values decide how long an answer takes; a fuzzer leaves them as they are."""


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values inside a JSON value, its own first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path]
    for key, item in inner:
        if key not in SLOW:
            found += places(item, (*path, key))
    return found


def changed(value: Any, path: tuple[Any, ...], made: Any) -> Any:
    """A copy of a JSON value with another value at a path."""
    if not path:
        return made
    copied = copy.deepcopy(value)
    inside = copied
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = made
    return copied


def like(value: Any) -> st.SearchStrategy[Any]:
    """Random values of the type of a value."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int):
        return st.integers(0, 12)
    if isinstance(value, float):
        return st.floats(0, 1.5)
    return st.text(max_size=8) if isinstance(value, str) else VALUES


@st.composite
def bodies(draw: Any, seeds: list[Any]) -> Any:
    """A body that is right, changed in up to three places."""
    body: Any = draw(st.sampled_from(seeds))
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, 3]))):
        path = draw(st.sampled_from(places(body)[1:] or [()]))
        kind = draw(st.sampled_from(["replace", "like", "like", "like", "add", "wrap", "repeat"]))
        inside = body
        for key in path:
            inside = inside[key]
        if kind == "add":
            place, held = (path, inside) if isinstance(inside, dict) else ((), body)
            if isinstance(held, dict):
                name = draw(st.sampled_from([name for name in NAMES if name not in SLOW]))
                body = changed(body, place, {**held, name: draw(VALUES)})
                continue
        made: Any = {"wrap": [inside], "repeat": [inside, inside]}.get(kind)
        if kind == "like":
            made = draw(like(inside))
        body = changed(body, path, draw(VALUES) if made is None else made)
    return body


@dataclass
class Reply:
    """What the application answered."""

    status: int
    body: bytes
    kind: bytes = b""


def route_of(path: str) -> str:
    """The route that a path of `SEEDS` is on."""
    return path.partition("?")[0].replace("/slots/0", "/slots/{id_slot}")


POSTS = {each.path for each in ROUTES if each.method == "POST"}
PATHS = [path for path in SEEDS if route_of(path) in POSTS]
"""Those of `SEEDS` that the server has."""


class Application:
    """The application for one model, in an event loop of its own, without a socket.

    Args:
        folder: where slots may be saved.
    """

    def __init__(self, engine: InferenceEngine, folder: Path) -> None:
        config = ServerConfig(slot_save_path=folder)
        self.app = create_app(Models([Hosted("tiny", engine)], config), config)
        self.loop, self._life = asyncio.new_event_loop(), self.app.router.lifespan_context(self.app)
        self.loop.run_until_complete(self._life.__aenter__())

    def close(self) -> None:
        """Ends the application with its processes, and its engine."""
        self.loop.run_until_complete(self._life.__aexit__(None, None, None))
        self.loop.close()

    def ask(self, path: str, body: Any, seconds: float = 60, kind: str = "application/json") -> Reply:
        """The answer to a body, bytes or what JSON has. Raises TimeoutError if there is none."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.loop.run_until_complete(asyncio.wait_for(reply_of(self.app, path, data, kind), seconds))


async def reply_of(app: Starlette, path: str, body: bytes, kind: str) -> Reply:
    """The answer of an application to a body."""

    reply, has_sent = Reply(0, b""), False

    async def receive() -> dict[str, Any]:
        nonlocal has_sent
        if has_sent:
            await asyncio.sleep(3600)
        has_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            reply.status, reply.kind = message["status"], dict(message["headers"]).get(b"content-type", b"")
        else:
            reply.body += message.get("body", b"")

    name, _, query = path.partition("?")
    headers = [(b"host", b"localhost"), (b"content-type", kind.encode())]
    scope = {"type": "http", "method": "POST", "path": name, "raw_path": name.encode(), "headers": headers}
    scope |= {"query_string": query.encode(), "http_version": "1.1", "scheme": "http", "root_path": ""}
    await app(scope, receive, send)
    return reply


def fault(path: str, body: Any, reply: Reply) -> str:
    """What is wrong with an answer; "" if nothing is."""
    shown = f"{path} {json.dumps(body)[:1000]}: {reply.status} {reply.body[:1000]!r}"
    if reply.status == 200:
        is_json = reply.kind != b"application/json" or isinstance(json.loads(reply.body), (dict, list))
        return "" if b'"internal_error"' not in reply.body and reply.body and is_json else shown
    if reply.status not in (400, 404, 422) or len(reply.body) > 3000:
        return shown
    error = json.loads(reply.body).get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return "" if isinstance(message, str) and message else shown


@contextmanager
def tiny_application(folder: Path) -> Iterator[Application]:
    """The application of a model with 64 tokens of context, which is in a folder, as the slots are."""
    model = write_tiny_model(folder / "tiny.gguf", context_length=64)
    (folder / "slots").mkdir()
    found = Application(InferenceEngine.from_gguf(model, num_threads=1), folder / "slots")
    yield found
    found.close()
