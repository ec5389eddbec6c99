"""What clients of other servers send, and this server takes: heads, bodies, names, numbers, options."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oxillama import InferenceEngine, demo
from oxillama.apps.server.errors import ApiError
from oxillama.apps.server.media import file_bytes
from oxillama.apps.server.model_names import name_of_file
from oxillama.apps.server.models import Hosted
from oxillama.apps.server.raw_bodies import CODINGS
from oxillama.apps.server.routes import ROUTES
from tests.support.raw_http import received, sent, statuses
from tests.support.server import Answer, Client, answer_of, serving, serving_models
from tests.support.tiny_file import CHATML, write_tiny_model
from tests.support.tool_models import AS_IT_IS, NO_THOUGHTS, tool_model

MODEL = {"context_length": 256, "ends": False}
SERVER = {"cors_origins": ("https://page.example",), "max_body_bytes": 20_000}
CHAT = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hello", "max_tokens": 3},
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": 3},
    "/v1/chat/completions/input_tokens": {"messages": CHAT},
    "/v1/messages": {"messages": CHAT, "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": CHAT},
    "/v1/responses": {"input": "hello", "max_output_tokens": 3},
    "/v1/responses/input_tokens": {"input": "hello"},
    "/v1/embeddings": {"input": "hello"},
    "/completion": {"prompt": "hello", "n_predict": 3},
    "/embedding": {"content": "hello"},
    "/tokenize": {"content": "hello"},
    "/apply-template": {"messages": CHAT},
    "/api/chat": {"messages": CHAT, "stream": False, "options": {"num_predict": 3}},
    "/api/generate": {"prompt": "hello", "stream": False, "options": {"num_predict": 3}},
    "/api/embed": {"input": "hello"},
    "/api/embeddings": {"prompt": "hello"},
    "/api/show": {},
}
"""A body that is right for each path that takes the name of a model in its body."""

V1_TEXTS = ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses")
TEXTS = (*V1_TEXTS, "/completion", "/api/chat")


def message_of(answer: Answer) -> str:
    """The message of an error, in the form of any interface."""
    error = answer.json["error"]
    return str(error if isinstance(error, str) else error["message"])


# --- heads --------------------------------------------------------------------------------------------


def send_without_type(client: Client, path: str, **headers: str) -> Answer:
    """The answer to a body without a content type."""
    data = json.dumps(BODIES[path]).encode()
    connection = client.connect()
    connection.putrequest("POST", path)
    for name, value in {"Content-Length": str(len(data)), **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(data)
    return answer_of(connection)


@pytest.mark.parametrize("path", BODIES)
def test_a_body_without_a_type_is_taken_unless_a_page_may_have_sent_it(client: Client, path: str) -> None:
    assert send_without_type(client, path).status == 200
    for header in ({"Origin": "null"}, {"Origin": "https://page.example"}, {"Sec_Fetch_Mode": "no-cors"}):
        assert send_without_type(client, path, **header).status == 415


def test_the_type_of_plain_curl_is_for_ollamas_paths(client: Client) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for path in BODIES:
        status = 200 if path.startswith("/api/") else 415
        assert client.ask(path, BODIES[path], headers=form).status == status
        client.ask(path, BODIES[path], headers={**form, "Origin": "https://evil.example"}, status=415)
    assert client.ask("/api/chat", BODIES["/api/chat"], headers={"Content-Type": "text/plain"}).status == 415


def test_a_preflight_for_a_private_network(client: Client) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Private-Network": "true"}
    for path in ("/v1/chat/completions", "/api/chat", "/v1/models"):
        for origin, allowed in (("https://page.example", "true"), ("https://evil.example", None)):
            answer = client.ask(path, method="OPTIONS", headers={"Origin": origin, **asked}, status=200)
            assert answer.headers.get("access-control-allow-private-network") == allowed


def test_health_checks_of_http_1_0(client: Client) -> None:
    for head in (b"GET /health HTTP/1.0\r\n\r\n", b"HEAD /health HTTP/1.0\r\nUser-Agent: probe\r\n\r\n"):
        assert statuses(received(sent(client.port, head))) == [200]
    evil = b"GET /health HTTP/1.0\r\nHost: evil.example\r\n\r\n"
    assert statuses(received(sent(client.port, evil))) == [403]
    assert statuses(received(sent(client.port, b"GET /health HTTP/1.1\r\n\r\n"))) == [400]


# --- compressed bodies --------------------------------------------------------------------------------


def bare_deflate(data: bytes) -> bytes:
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return made.compress(data) + made.flush()


COMPRESSED: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("GZip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    ("x-gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", bare_deflate),
    ("identity", bytes),
]


@pytest.mark.parametrize(("coding", "compress"), COMPRESSED)
def test_compressed_bodies(client: Client, coding: str, compress: Callable[[bytes], bytes]) -> None:
    headers = {"Content-Encoding": coding}
    for path, body in BODIES.items():
        data = compress(b"\xef\xbb\xbf" + json.dumps(body).encode())
        assert client.ask(path, data, headers=headers).status == 200, path


def test_zstd(client: Client) -> None:
    zstd = pytest.importorskip("compression.zstd", reason="of Python 3.14")
    assert "zstd" in CODINGS
    data = zstd.compress(json.dumps(BODIES["/v1/completions"]).encode())
    assert client.ask("/v1/completions", data, headers={"Content-Encoding": "zstd"}).status == 200
    assert client.ask("/v1/completions", data[:-3], headers={"Content-Encoding": "zstd"}).status == 400


@pytest.mark.parametrize(("coding", "compress"), COMPRESSED[:5])
def test_a_body_may_not_become_too_large(
    client: Client, coding: str, compress: Callable[[bytes], bytes]
) -> None:
    bomb = compress(b'{"prompt": "' + b"x" * 10_000_000 + b'"}')
    assert len(bomb) < 20_000
    answer = client.ask("/v1/completions", bomb, headers={"Content-Encoding": coding})
    assert answer.refusal("code") == (413, "body_too_large")
    whole = compress(b'{"prompt": "a", "max_tokens": 1}'.rjust(20_000))
    assert client.ask("/v1/completions", whole, headers={"Content-Encoding": coding}).status == 200


def test_bodies_that_are_not_what_their_coding_says(client: Client) -> None:
    good = gzip.compress(json.dumps(BODIES["/v1/completions"]).encode())
    cut = zlib.compress(json.dumps(BODIES["/v1/completions"]).encode())[:-3]  # inside of the checksum
    for coding, data in (
        *(("gzip", good[:-9]), ("gzip", b"{}"), ("gzip", good + b"more")),
        *(("deflate", good), ("deflate", cut), ("deflate", b"")),
    ):
        answer = client.ask("/v1/completions", data, headers={"Content-Encoding": coding})
        assert answer.refusal("code") == (400, "invalid_body")
    for coding in ("br", "gzip, gzip", "zip"):
        answer = client.ask("/v1/completions", good, headers={"Content-Encoding": coding})
        assert answer.refusal("code") == (415, "content_encoding")
        assert coding in answer.error["message"]
    answer = client.ask("/api/chat", b"x", headers={"Content-Encoding": "br"})
    assert answer.json["error"].startswith("content-")


def test_a_record_has_the_body_without_its_compression(tmp_path: Path) -> None:
    from oxillama.sessions.records.folder import RecordFolder  # noqa: F401  # the room must be there

    with serving(demo.DRAFT, record=tmp_path) as client:
        data = gzip.compress(json.dumps({"prompt": "Once", "max_tokens": 2}).encode())
        assert client.ask("/v1/completions", data, headers={"Content-Encoding": "gzip"}).status == 200
    (record,) = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert b"Once" in record.read_bytes()


# --- texts that are none ------------------------------------------------------------------------------


def test_half_a_character_is_an_error_of_the_client_on_every_path(client: Client) -> None:
    paths = {route.path for route in ROUTES if route.method == "POST" and route.takes == "application/json"}
    paths = {path.replace("{id_slot}", "0?action=save") for path in paths}
    for path in sorted(paths):
        for body in (
            b'{"messages": [{"role": "user", "content": "a \\ud83d b"}], "input": "\\uD83D"}',
            b'{"prompt": "a", "user": {"name": ["x", "\\udc00"]}}',
            b'{"a\\udfff": 1}',
            b'[{"id": "\\ud800\\ud800"}]',
        ):
            answer = client.ask(path, body)
            assert answer.status in (400, 404), (path, answer.text)  # 404: there are no tool servers
            if answer.status == 400:
                assert "expected text that UTF-8 can express" in message_of(answer), path


def test_the_error_names_the_field(client: Client) -> None:
    body = b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "\\ud83d"}]}]}'
    error = client.ask("/v1/chat/completions", body).error
    assert (error["param"], error["code"]) == ("messages[0].content[0].text", "invalid_value")
    assert error["message"].startswith(f"{error['param']}: expected text that UTF-8 can express, got ")


def test_whole_characters_and_escaped_backslashes_are_texts(client: Client) -> None:
    for text in (b"\\ud83d\\ude00", b"\\\\ud83d"):
        body = b'{"messages": [{"role": "user", "content": "' + text + b'"}]}'
        prompt = client.ask("/apply-template", body).json["prompt"]
        assert json.loads(b'"' + text + b'"') in prompt


def test_half_a_character_in_the_arguments_of_a_call(tmp_path: Path) -> None:
    """Arguments are JSON within JSON, which the server decodes later than the body."""
    template = AS_IT_IS.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")
    function = {"name": "f", "arguments": '{"a": "\\ud83d"}'}
    calls = [{"id": "x", "type": "function", "function": function}]
    messages = [*CHAT, {"role": "assistant", "content": "", "tool_calls": calls}, *CHAT]
    with serving(tool_model(tmp_path / "m.gguf", template)) as client:
        for path in ("/apply-template", "/v1/chat/completions", "/v1/chat/completions/input_tokens"):
            assert client.ask(path, {"messages": messages, "max_tokens": 1}).status in (200, 400)


def test_names_of_files_and_metadata_that_are_not_utf_8(tmp_path: Path) -> None:
    whole = write_tiny_model(tmp_path / "m.gguf", metadata={"general.license": "LICENSE"}, n_layers=1)
    path = os.fsdecode(os.fsencode(tmp_path) + b"/mo\xffdel.gguf")
    try:
        Path(path).write_bytes(whole.read_bytes().replace(b"LICENSE", b"LI\xff\xfeNSE"))
    except OSError:
        pytest.skip("file names of this system are UTF-8")
    name = name_of_file(path)
    assert name == "mo\\xffdel"
    hosted = Hosted(name, load=lambda: InferenceEngine.from_gguf(path, num_threads=1), path=path)
    with serving_models(hosted) as client:
        for place in ("/v1/models", "/api/tags", "/api/ps", "/props", "/metrics"):
            client.ask(place, status=200)
        client.ask("/api/show", {"model": name, "verbose": True}, status=200)
        client.ask("/v1/completions", {"model": name, "prompt": "a"}, status=200)
        assert client.ask("/api/show", {"model": name}).json["license"] == "LI\ufffd\ufffdNSE"


def test_a_url_of_a_file_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff \xe2\x82\xac")).write_bytes(b"here")
    except OSError:
        pytest.skip("file names of this system are UTF-8")
    assert file_bytes("x", tmp_path, "%FF%20%e2%82%ac") == file_bytes("x", tmp_path, "/%ff \u20ac") == b"here"
    for name in ("%00", "%ff", "../%FF%20%e2%82%ac/../..", ""):
        with pytest.raises(ApiError, match="expected a file below"):
            file_bytes("x", tmp_path, name)


# --- names, numbers, options --------------------------------------------------------------------------


def test_a_name_may_end_with_latest_on_every_path(client: Client) -> None:
    for name in ("tiny", "tiny:latest"):
        for path, body in BODIES.items():
            assert client.ask(path, {**body, "model": name}).status == 200, (path, name)
        for path in (f"/v1/models/{name}", f"/props?model={name}", f"/slots?model={name}"):
            assert client.ask(path).status == 200, path
    for name in ("tiny:other", "tiny:latest:latest", ":latest"):
        assert client.ask("/v1/completions", {**BODIES["/v1/completions"], "model": name}).status == 404
    assert client.ask("/api/pull", {"model": "tiny:latest", "stream": False}).json == {"status": "success"}


def test_a_model_whose_own_name_has_the_tag() -> None:
    with serving(demo.DRAFT, "box:latest") as client:
        for name in ("box", "box:latest"):
            client.ask("/v1/completions", {"model": name, "prompt": "a", "max_tokens": 1}, status=200)


@pytest.mark.parametrize("path", [path for path in BODIES if path.startswith("/api/e") or path in TEXTS])
def test_whole_numbers_with_a_point(client: Client, path: str) -> None:
    body = dict(BODIES[path])
    if path.startswith("/api/e"):
        body["options"] = {"num_ctx": 64.0, "num_batch": 8.0}
        assert client.ask(path, {**body, "options": {"num_ctx": 64.5}}).status == 400
    else:
        more = {"top_k": 20.0, "seed": 7.0, "repeat_last_n": 16.0}
        inner = {"options": {**body.get("options", {}), **more, "num_ctx": 128.0, "num_predict": 3.0}}
        body |= inner if path == "/api/chat" else more
        wrong = {"options": {"num_predict": 3.5}} if path == "/api/chat" else {"top_k": 3.5}
        assert client.ask(path, {**body, **wrong}).status == 400
    assert client.ask(path, body).status == 200


@pytest.mark.parametrize("path", TEXTS)
def test_a_top_p_of_0_takes_the_likeliest_token(client: Client, path: str) -> None:
    def text(**options: Any) -> Any:
        body = BODIES[path]
        inner = {"options": {**body["options"], **options}} if path == "/api/chat" else options
        found = client.ask(path, {**body, **inner}).json
        part = found.get("choices") or found.get("content") or found.get("output") or found.get("message")
        return json.dumps(part).partition('"id"')[0]

    assert text(top_p=0) == text(top_p=0.0, temperature=1.5) == text(temperature=0)


def test_options_beside_the_options(client: Client) -> None:
    base = {**BODIES["/api/generate"], "options": {"num_predict": 4, "temperature": 0}}
    inside = client.ask("/api/generate", base).json
    for beside, options in (
        ({"temperature": 0}, {"num_predict": 4}),
        ({"temperature": 0, "num_predict": 4}, {"temperature": 0}),
        ({"temperature": 0, "num_predict": 4, "num_ctx": 128}, {}),
    ):
        answer = client.ask("/api/generate", {**base, "options": options, **beside}).json
        assert (answer["response"], answer["eval_count"]) == (inside["response"], 4)
    error = client.ask("/api/generate", {**base, "temperature": 1}).json["error"]
    assert error == "temperature: expected the value of options.temperature, got 1"
    assert client.ask("/api/generate", {**base, "num_ctx": 1}).status == 400
    answer = client.ask("/api/generate", {**base, "temprature": 1})
    assert answer.json["error"].startswith("temprature: is no")


def test_every_option_that_ollama_documents(client: Client) -> None:
    options = {"numa": False, "num_ctx": 64, "num_batch": 2, "num_gpu": 1, "main_gpu": 0, "num_thread": 8}
    options |= {"low_vram": False, "f16_kv": True, "logits_all": False, "vocab_only": False, "use_mmap": True}
    options |= {"use_mlock": False, "embedding_only": False, "num_keep": 5, "seed": 42, "num_predict": 2}
    options |= {"top_k": 20, "top_p": 0.9, "min_p": 0.0, "typical_p": 0.7, "tfs_z": 1.0, "repeat_last_n": 33}
    options |= {"temperature": 0.8, "repeat_penalty": 1.2, "presence_penalty": 1.5, "frequency_penalty": 1.0}
    options |= {"penalize_newline": True, "stop": ["\n", "user:"]}
    assert client.ask("/api/generate", {**BODIES["/api/generate"], "options": options}).status == 200
    for name, value in (("penalize_newline", False), ("tfs_z", 0.5), ("vocab_only", True)):
        body = {**BODIES["/api/generate"], "options": {name: value}}
        assert client.ask("/api/generate", body).json["error"].startswith(f"{name}: expected ")


def test_a_raw_prompt_needs_no_reasoning_switched_off(client: Client) -> None:
    body = {**BODIES["/api/generate"], "raw": True}
    assert client.ask("/api/generate", {**body, "think": False}).status == 200
    for think in (True, "low"):
        answer = client.ask("/api/generate", {**body, "think": think})
        assert answer.json["error"].startswith("think: expected ")


def test_verbosity(client: Client) -> None:
    for path, wrap in (
        ("/v1/chat/completions", lambda value: {"verbosity": value}),
        ("/v1/responses", lambda value: {"text": {"verbosity": value}}),
    ):
        assert client.ask(path, {**BODIES[path], **wrap("medium")}).status == 200
        for value in ("low", "high"):
            answer = client.ask(path, {**BODIES[path], **wrap(value)})
            assert answer.status == 400 and "verbosity: expected" in answer.error["message"]


def test_a_text_that_is_cut_inside_a_character(client: Client) -> None:
    """The same on all paths, whole and streamed: what has come of the character is U+FFFD."""
    cut = {"choices": ["a\u20ac"], "temperature": 0}
    body = {**BODIES["/v1/completions"], "max_tokens": 2, **cut}
    assert client.ask("/v1/completions", body).choice["text"] == "a\ufffd"
    events = client.ask("/v1/completions", {**body, "stream": True}).events[:-1]
    assert "".join(event["choices"][0]["text"] for event in events) == "a\ufffd"
    chat = {"messages": CHAT, "max_tokens": 2, **cut}
    assert client.ask("/v1/chat/completions", chat).choice["message"]["content"] == "a\ufffd"
    assert client.ask("/v1/messages", chat).json["content"][0]["text"] == "a\ufffd"
    told = client.ask("/v1/responses", {"input": "x", "max_output_tokens": 2, **cut}).json
    assert told["output"][0]["content"][0]["text"] == "a\ufffd"
    options = {"options": {"num_predict": 2, **cut}}
    assert client.ask("/api/generate", {**BODIES["/api/generate"], **options}).json["response"] == "a\ufffd"


# --- templates ----------------------------------------------------------------------------------------

SWITCH = CHATML.replace(
    "assistant\n{% endif",
    "assistant\n{% if enable_thinking is false %}<think>\n\n</think>{% endif %}{% endif",
)
EFFORT = "{{ reasoning_effort }}" + SWITCH + "{# <think> </think> #}"


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    path = write_tiny_model(tmp_path_factory.mktemp("m") / "m.gguf", chat_template=EFFORT, ends=False)
    with serving(path, "m") as found:
        yield found


def test_an_effort_of_none_switches_reasoning_off(thinking: Client) -> None:
    def count(path: str, body: dict[str, Any]) -> int:
        found = thinking.ask(path, body).json
        return int(found.get("input_tokens") or len(found.get("prompt", "")))

    for path in ("/v1/chat/completions/input_tokens", "/apply-template"):
        base = {"messages": CHAT}
        off = count(path, {**base, "chat_template_kwargs": {"enable_thinking": False}})
        assert count(path, {**base, "reasoning_effort": "none"}) == off != count(path, base)
        assert count(path, {**base, "reasoning_effort": "low"}) > count(path, base)
    none = {"reasoning_effort": "none", "messages": CHAT}
    usage = thinking.ask("/v1/chat/completions", {**none, "max_tokens": 1}).json["usage"]
    assert usage["prompt_tokens"] == count("/v1/chat/completions/input_tokens", none)
    vector = thinking.ask("/v1/embeddings", {**none, "add_generation_prompt": True}).json["usage"]
    assert vector["prompt_tokens"] == usage["prompt_tokens"]


def test_an_effort_of_none_where_reasoning_has_no_switch(reasoner: Client) -> None:
    for effort, has_reasoning in (("none", False), ("low", True)):
        body = {"messages": CHAT, "reasoning_effort": effort, "max_tokens": 8, "seed": 1}
        message = reasoner.ask("/v1/chat/completions", body).choice["message"]
        assert ("reasoning_content" in message) == has_reasoning
        assert bool(message["content"]) == (not has_reasoning)


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_efforts_of_ollama(thinking: Client, path: str) -> None:
    counts = {}
    for think in (False, True, "low", "medium", "high", "max"):
        answer = thinking.ask(path, {**BODIES[path], "think": think}, status=200)
        counts[think] = answer.json["prompt_eval_count"]
    assert counts["medium"] > counts["max"] > counts[True]
    error = thinking.ask(path, {**BODIES[path], "think": "most"}).json["error"]
    assert error == "think: expected true, false, or one of low, medium, high, max, got 'most'"


def test_capabilities_are_those_of_the_template_in_use(tmp_path: Path) -> None:
    own = write_tiny_model(tmp_path / "own.gguf", chat_template=AS_IT_IS)
    plain = write_tiny_model(tmp_path / "plain.gguf")
    used = tmp_path / "used.jinja"
    used.write_text(NO_THOUGHTS)

    def engine(path: Path) -> InferenceEngine:
        return InferenceEngine.from_gguf(path, num_threads=1, chat_template=used)

    def load() -> InferenceEngine:
        return engine(plain)

    hosted = [Hosted("own", engine(own)), Hosted("plain", load=load, path=str(plain), chat_template=used)]
    with serving_models(*hosted) as client:
        for _ in range(2):  # before and after the second model is loaded
            for name in ("own", "plain"):
                shown = client.ask("/api/show", {"model": name}).json
                assert (shown["capabilities"], shown["template"]) == (["completion", "tools"], NO_THOUGHTS)
            listed = client.ask("/v1/models").json["models"]
            assert [each["capabilities"] for each in listed] == [["completion", "tools"]] * 2
            client.ask("/v1/completions", {"model": "plain", "prompt": "a", "max_tokens": 1}, status=200)


def test_a_template_for_tools_of_its_own(tmp_path: Path) -> None:
    key = "tokenizer.chat_template.tool_use"
    path = write_tiny_model(tmp_path / "m.gguf", metadata={key: NO_THOUGHTS})
    hosted = Hosted("m", load=lambda: InferenceEngine.from_gguf(path, num_threads=1), path=str(path))
    with serving_models(hosted) as client:
        assert client.ask("/api/show", {"model": "m"}).json["capabilities"] == ["completion", "tools"]


# --- messages -----------------------------------------------------------------------------------------


def test_refusals_of_the_assistant_are_texts(client: Client) -> None:
    for said in (
        {"content": None, "refusal": "hello world"},
        {"content": [{"type": "refusal", "refusal": "hello world"}]},
    ):
        messages = [*CHAT, {"role": "assistant", **said}, *CHAT]
        assert "hello world" in client.ask("/apply-template", {"messages": messages}).json["prompt"]


def test_a_message_that_no_template_shows(client: Client) -> None:
    messages = [{"role": "assistant", "content": "x", "audio": {"id": "a"}}, *CHAT]
    answer = client.ask("/v1/chat/completions", {"messages": messages})
    assert answer.refusal("param") == (400, "messages[0].audio")
