"""What every request passes, and what the server tells of itself."""

from __future__ import annotations

import gzip
import http.client
import json
import logging
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from oxillama import ConfigError, InferenceEngine, TokenizerBridge, demo
from oxillama.apps.server import gate
from oxillama.apps.server.listening import listener
from oxillama.apps.server.models import Hosted
from oxillama.apps.server.page.files import the_page
from oxillama.base.config.server import ServerConfig
from tests.support.server import Client, answer_of, serving, serving_models
from tests.support.waiting import until

MODEL, SERVER = demo.STORY, {"max_body_bytes": 10_000}
HELLO = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}


def has_ipv6() -> bool:
    """Whether something can listen at ::1."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_health_models_and_props(client: Client) -> None:
    for path in ("/health", "/v1/health"):
        assert client.ask(path).json == {"status": "ok"}
    (card,) = client.ask("/v1/models").json["data"]
    assert (card["id"], card["object"], card["meta"]["n_ctx"]) == ("story", "model", 512)
    assert client.ask("/v1/models/story").json == card
    assert client.ask("/v1/models/other").error["code"] == "model_not_found"
    props = client.ask("/props").json
    assert props["default_generation_settings"]["params"]["top_k"] == 40
    template = TokenizerBridge.from_gguf(demo.STORY).chat_template_source("default")
    assert (props["bos_token"], props["chat_template"]) == ("<|bos|>", template)


def test_metrics_have_both_names(client: Client) -> None:
    client.ask("/v1/completions", HELLO)
    answer = client.ask("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert float(values['oxillama:generation_tokens_total{model_name="story"}']) >= 4
    assert values["llamacpp:tokens_predicted_total"] == str(
        int(float(values['oxillama:generation_tokens_total{model_name="story"}']))
    )
    assert values["llamacpp:requests_processing"] == "0"


def test_a_model_that_is_loading() -> None:
    may_load = threading.Event()

    def load() -> InferenceEngine:
        assert may_load.wait(60)
        return InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)

    with serving_models(Hosted("story", load=load)) as client:
        for path in ("/health", "/v1/health"):
            assert client.ask(path).refusal("code", "message") == (503, "loading", "Loading model")
        (card,) = client.ask("/v1/models").json["data"]
        assert (card["id"], card["status"], "meta" in card) == ("story", {"value": "loading"}, False)
        waiting = client.begin("/v1/completions", HELLO)
        until(lambda: len(client.hosted.waiting) == 2)  # and the request of the start
        may_load.set()
        assert answer_of(waiting).status == 200
        assert client.ask("/health").status == 200
        assert client.ask("/v1/models").json["data"][0]["status"] == {"value": "loaded"}


def test_request_ids(client: Client) -> None:
    first, second = (client.ask("/health").headers["x-request-id"] for _ in range(2))
    assert first != second and first.startswith("req_")
    own = client.ask("/nope", headers={"X-Request-Id": "mine-1.2"})
    assert (own.status, own.headers["x-request-id"]) == (404, "mine-1.2")
    for other in ("a b", "x" * 129, "<script>"):
        assert (
            client.ask("/health", headers={"X-Request-Id": other}).headers["x-request-id"].startswith("req_")
        )


def test_the_access_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "oxillama.apps.server"):
        client.ask("/health?x=1", headers={"X-Request-Id": "log-me"})
        client.ask("/v1/completions", {"prompt": "x", "oops": 1}, headers={"X-Request-Id": "log-me-too"})

        def lines() -> list[str]:
            found = (record.getMessage() for record in caplog.records)
            return [line for line in found if line.startswith("log-me")]

        until(lambda: len(lines()) == 2)  # they are written behind the answers
    first, second = lines()
    name = "log-me-three"
    with caplog.at_level(logging.INFO, "oxillama"):
        client.ask("/v1/completions", HELLO, headers={"X-Request-Id": name})
        named = [record for record in caplog.records if getattr(record, "request_id", None) == name]
    assert named  # the engine's log calls the request so
    assert first.startswith("log-me 127.0.0.1 GET /health 200 ")
    assert second.startswith("log-me-too 127.0.0.1 POST /v1/completions 400 ")


def test_paths_and_methods_that_do_not_exist(client: Client) -> None:
    answer = client.ask("/v1/nothing")
    assert answer.refusal("type") == (404, "not_found_error")
    assert answer.error["message"] == "GET /v1/nothing: Not Found"
    assert client.ask("/v1/completions").status == 405
    assert client.ask("/health", method="OPTIONS").status == 405


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "body: expected JSON"),
        (b"{", "body: expected JSON"),
        (b"[1]", "body: expected an object, got list"),
        (b'{"prompt": NaN}', "body: expected JSON, got NaN"),
        (b"\xff", "body: expected JSON"),
        (b"[" * 9000, "body: expected JSON"),
        (b'{"prompt": ' + b"1" * 5000 + b"}", "body: expected JSON"),
        (b"{}", "prompt: expected a value, got none"),
        (b'{"prompt": null}', "prompt: expected a value, got none"),
        (b'{"prompt": "\\ud800"}', "prompt: expected text that UTF-8 can express"),
    ],
)
def test_bodies_that_are_none(client: Client, body: bytes, message: str) -> None:
    answer = client.ask("/v1/completions", body)
    assert answer.refusal("type") == (400, "invalid_request_error")
    assert answer.error["message"].startswith(message)


def test_other_types_than_json_are_refused(client: Client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = client.ask("/v1/completions", json.dumps(HELLO).encode(), headers={"Content-Type": kind})
        assert answer.refusal("code") == (415, "content_type")
    kind = "Application/JSON; charset=utf-8"
    assert client.ask("/v1/completions", HELLO, headers={"Content-Type": kind}).status == 200


def test_bodies_that_are_too_large(client: Client) -> None:
    body = {**HELLO, "prompt": "x" * 10001}
    assert client.ask("/v1/completions", body).refusal("code") == (413, "body_too_large")
    connection = client.connect()
    chunks = iter([b'{"prompt": "'] + [b"x" * 1000] * 11 + [b'"}'])
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", chunks, headers, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_all_bodies_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that come slowly hold their bytes until their requests end; small bodies are always taken."""
    monkeypatch.setattr(gate, "MOST_BODIES", 1_000_000)
    with serving(demo.DRAFT, max_body_bytes=400_000) as client:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        slow = []
        for _ in range(3):
            slow.append(socket.create_connection(("127.0.0.1", client.port)))
            slow[-1].sendall(head + b"Content-Length: 350000\r\n\r\n" + b" " * 310_000)
        in_flight = client.server._app.state.in_flight
        until(lambda: in_flight.n_bytes == 930_000)
        large = json.dumps(HELLO).encode() + b" " * 100_000
        for body, headers in ((large, {}), (gzip.compress(large), {"Content-Encoding": "gzip"})):
            answer = client.ask("/v1/completions", body, headers=headers)
            assert answer.refusal("code") == (503, "bodies_full")
        assert client.ask("/v1/completions", HELLO).status == 200
        slow.pop().close()
        until(lambda: in_flight.n_bytes == 620_000)
        assert client.ask("/v1/completions", large).status == 200
        for each in slow:
            each.close()
        until(lambda: in_flight.n_bytes == 0)


def test_names_of_the_host(client: Client) -> None:
    port = client.port
    for host in ("localhost", f"127.0.0.1:{port}", f"[::1]:{port}", "LOCALHOST"):
        assert client.ask("/health", headers={"Host": host}).status == 200
    for host in ("evil.example", f"evil.example:{port}", "", "localhost.evil.example"):
        assert client.ask("/health", headers={"Host": host}).refusal("type") == (403, "permission_error")
    with serving(demo.DRAFT, allowed_hosts=("box.local",)) as other:
        assert other.ask("/health", headers={"Host": "box.local"}).status == 200
        assert other.ask("/health", headers={"Host": "evil.example"}).status == 403


def test_keys() -> None:
    with serving(demo.DRAFT, api_keys=("alpha", "beta")) as client:
        assert client.ask("/health").status == 200
        wrong = [{"Authorization": each} for each in ("Bearer gamma", "Bearer ", "Basic alpha")]
        for path in ("/v1/models", "/v1/completions", "/nope", "/metrics"):
            body = HELLO if path == "/v1/completions" else None
            for headers in ({}, {"x-api-key": "alph"}, *wrong):
                answer = client.ask(path, body, headers=headers)
                assert answer.refusal("code") == (401, "invalid_api_key")
                assert answer.headers["www-authenticate"] == "Bearer"
                assert "gamma" not in answer.text
        for headers in ({"Authorization": "Bearer beta"}, {"x-api-key": "alpha"}):
            assert client.ask("/v1/completions", HELLO, headers=headers).status == 200


def test_cors_is_off_unless_asked_for(client: Client) -> None:
    origin = {"Origin": "https://page.example"}
    assert "access-control-allow-origin" not in client.ask("/health", headers=origin).headers
    with serving(demo.DRAFT, cors_origins=("https://page.example",), api_keys=("k",)) as other:
        asked = {**origin, "Access-Control-Request-Method": "POST"}
        preflight = other.ask("/v1/completions", method="OPTIONS", headers=asked)
        assert preflight.headers["access-control-allow-origin"] == "https://page.example"
        refused = other.ask("/v1/completions", HELLO, headers=origin, status=401)
        assert refused.headers["access-control-allow-origin"] == "https://page.example"
        stranger = other.ask("/health", headers={"Origin": "https://other.example"})
        assert "access-control-allow-origin" not in stranger.headers


def test_credentials_of_other_origins_only_where_they_are_asked_for() -> None:
    asked = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    for credentials, origin in ((False, "*"), (True, "https://page.example")):
        with serving(demo.DRAFT, cors_origins=("*",), cors_credentials=credentials) as other:
            headers = other.ask("/v1/completions", method="OPTIONS", headers=asked).headers
        assert headers["access-control-allow-origin"] == origin
        assert headers.get("access-control-allow-credentials") == ("true" if credentials else None)
        assert headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"


def test_tokens_and_back(client: Client) -> None:
    tokenizer = client.hosted.ready().tokenizer
    text = "Mia — and the fox"
    plain = client.ask("/tokenize", {"content": text}).json["tokens"]
    assert plain == tokenizer.encode(text, add_special=False)
    special = client.ask("/tokenize", {"content": text, "add_special": True}).json["tokens"]
    assert special == tokenizer.encode(text)
    pieces = client.ask("/tokenize", {"content": text, "with_pieces": True}).json["tokens"]
    assert [piece["id"] for piece in pieces] == plain
    data = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert data.decode() == text
    assert client.ask("/detokenize", {"tokens": special}).json == {"content": "<|bos|>" + text}
    named = {"content": "<|bos|>"}
    assert client.ask("/tokenize", named).json["tokens"] == [tokenizer.bos_id]
    assert len(client.ask("/tokenize", {**named, "parse_special": False}).json["tokens"]) > 1
    for body in ({"tokens": [-1]}, {"tokens": [1024]}, {"tokens": [1.5]}, {"tokens": "x"}, {}):
        assert client.ask("/detokenize", body).status == 400
    assert client.ask("/tokenize", {"content": "x", "oops": 1}).error["code"] == "unknown_parameter"


def test_a_running_request_ends_before_the_server_does() -> None:
    with ThreadPoolExecutor(1) as pool, serving(demo.STORY) as client:
        body = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "stream": True}
        connection, response = client.open("/v1/completions", body)
        assert response.read(10)
        rest = pool.submit(response.read)
    connection.close()
    assert rest.result().endswith(b"data: [DONE]\n\n")


def test_requests_behind_the_deadline_are_cancelled() -> None:
    with serving(demo.STORY, shutdown_seconds=0.5) as client:
        body = {"prompt": "Once", "max_tokens": 10, "stream": True}
        connections = [client.open("/v1/completions", {**body, "n": 1})[0]]
        # a reader that reads nothing, of a text that is longer than what lies between the two
        endless = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "n": 512, "stream": True}
        connections.append(client.open("/v1/completions", endless)[0])
    for connection in connections:
        connection.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("port", value) for value in (-1, 65536, "8080", True)),
        *(("host", value) for value in ("", 5, "a,,b", "::1,::1")),
        *(("model_tags", value) for value in ("a,", "a,a")),
        ("pooling", "sum"),
        *(("api_keys", value) for value in ("abc", ("",), (" a",), ("ä",), ("a\n",))),
        *(("max_body_bytes", value) for value in (0, 1.5)),
        *(("stored_response_bytes", value) for value in (-1, None)),
        *(("shutdown_seconds", value) for value in (0, float("inf"))),
        ("ssl_keyfile", "key.pem"),
        ("model_name", " "),
        ("cors_origins", (1,)),
        ("cors_credentials", True),
        ("media_path", "/nowhere"),
    ],
)
def test_options_out_of_range(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: expected ") as error:
        ServerConfig(**{field: value})  # type: ignore[arg-type]
    assert field != "api_keys" or "abc" not in str(error.value)  # no key is shown


def test_the_access_log_has_tokens_and_rates_and_no_files_of_the_page(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    prompt = "Once upon a time, there was"
    body = {"prompt": prompt, "max_tokens": 5, "ignore_eos": True}
    n_prompt = len(engine.tokenizer.encode(prompt))
    with caplog.at_level(logging.INFO), serving(engine) as client:
        for path in the_page():
            assert client.ask(path).status == 200
        client.ask("/page/x/none.js")
        client.ask("/health")
        for more in ({}, {"n": 2}, {"stream": True}):
            client.ask("/v1/completions", {**body, **more})
    lines = [record.getMessage() for record in caplog.records if record.name == "oxillama.apps.server.gate"]
    assert len(lines) == 5 and " /page/x/none.js 404 " in lines[0] and lines[1].endswith(" s")
    work = rf"; {n_prompt} prompt tokens, \d+ cached, [\d.]+/s, 5 tokens, [\d.]+/s"
    for line, n in zip(lines[2:], (1, 2, 1), strict=True):
        assert re.search(rf" POST /v1/completions 200 [\d.]+ s({work}){{{n}}}$", line), line


def test_paths_that_a_server_is_started_without(client: Client) -> None:
    with serving(demo.DRAFT, metrics=False, slots=False) as other:
        for path in ("/metrics", "/slots"):
            assert client.ask(path).status == 200
            answer = other.ask(path)
            assert answer.refusal("type") == (501, "not_supported_error")
            assert f"--no-{path[1:]}" in answer.error["message"]


def test_pages_of_this_machine() -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    ports = ["https://localhost:8080", "http://127.0.0.1:3000", "http://[::1]:1"]
    here = ["http://localhost", *ports, "http://a.b"]
    others = [f"http://{host}" for host in ("evil.example", "localhost.evil.example", "notlocalhost")]
    with serving(demo.DRAFT, cors_origins=("localhost", "http://a.b")) as client:
        for origin in (*here, *others, "http://127.0.0.11"):
            headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
            preflight = client.ask(
                "/v1/completions", method="OPTIONS", headers={**headers, **asked}, status=200
            )
            allowed = preflight.headers.get("access-control-allow-origin")
            assert allowed == (origin if origin in here else None)
            client.ask("/v1/models", headers=headers, status=200 if origin in here else 403)


@pytest.mark.skipif(not has_ipv6(), reason="the machine has no IPv6")
def test_several_addresses() -> None:
    with serving(demo.DRAFT, host="127.0.0.1, ::1") as client:
        for host in ("127.0.0.1", "::1"):
            connection = http.client.HTTPConnection(host, client.port, timeout=60)
            connection.request("GET", "/v1/models")
            assert connection.getresponse().status == 200
            connection.close()
        taken = ServerConfig(host="::1", port=client.port)
        message = "host, port: expected a free address, got ::1"
        with pytest.raises(ConfigError, match=message), listener(taken, taken.host, taken.port):
            pass
