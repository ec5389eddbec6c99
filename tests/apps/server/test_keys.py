"""What follows from a key: cached prompts, slots and responses, limits, a share of the batch."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oxillama import ConfigError, InferenceEngine, SchedulerConfig, demo
from oxillama.apps.server import callers
from oxillama.apps.server.callers import Caller, Keys, Limits, context
from oxillama.apps.server.errors import without_paths
from oxillama.apps.server.gate import Gate
from oxillama.apps.server.models import Hosted
from oxillama.apps.server.ollama.asking import kept_seconds
from oxillama.apps.server.openai import completions
from oxillama.base.config.server import ServerConfig
from oxillama.engine.loop import Observers
from oxillama.engine.protocols import Observer
from oxillama.errors import LoadError
from tests.support.command_line import command, started
from tests.support.server import Answer, Client, answer_of, bearer, in_context, serving, serving_models
from tests.support.tiny_file import write_tiny_model
from tests.support.waiting import stopped, until

PATH = "/v1/completions"
PROMPT = [5 + i % 200 for i in range(64)]


@pytest.fixture
def engine() -> Iterator[InferenceEngine]:
    scheduler = SchedulerConfig(max_sequences=4)
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1, scheduler=scheduler) as engine:
        yield engine


def ask(client: Client, key: str, path: str, body: Any = None, **headers: str) -> Answer:
    return client.ask(path, body, headers={**bearer(key), **headers})


def cached(client: Client, key: str, prompt: list[int], **more: Any) -> int:
    found = ask(client, key, PATH, {"prompt": prompt, "max_tokens": 1, **more})
    n: int = found.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return n


@pytest.mark.parametrize("share", [False, True])
def test_a_key_cannot_see_what_another_has_asked(engine: InferenceEngine, share: bool) -> None:
    prompt = [*PROMPT, 7 + share]
    with serving(engine, api_keys=("alice", "bob"), share_prefixes=share) as client:
        assert cached(client, "alice", prompt, cache_salt="a") == 0
        assert cached(client, "alice", prompt, cache_salt="a") >= 64
        assert (cached(client, "bob", prompt, cache_salt="a") >= 64) is share
        assert cached(client, "alice", prompt, cache_salt="b") == 0


def test_slots_and_responses_belong_to_a_key(engine: InferenceEngine, tmp_path: Path) -> None:
    with serving(engine, api_keys=("alice", "bob"), slot_save_path=tmp_path) as client:
        body = {"prompt": PROMPT, "n_predict": 1, "id_slot": 0}
        assert ask(client, "alice", "/completion", body).status == 200
        assert ask(client, "alice", "/slots").json[0]["n_tokens"] > 60
        assert ask(client, "bob", "/slots").json[0]["n_tokens"] == 0
        save = {"filename": "a.bin"}
        assert ask(client, "alice", "/slots/0?action=save", save).status == 200
        assert ask(client, "bob", "/slots/0?action=restore", save).status == 400
        assert ask(client, "alice", "/slots/1?action=restore", save).status == 200


def test_stored_responses_belong_to_a_key(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", context_length=256, ends=False)
    path, body = "/v1/responses", {"input": "hello world", "max_output_tokens": 4}
    with serving(model, api_keys=("alice", "bob")) as client:
        made = ask(client, "alice", path, body).json["id"]
        more = {**body, "previous_response_id": made}
        for key, status in (("bob", 404), ("alice", 200)):
            assert ask(client, key, f"{path}/{made}").status == status
            assert (ask(client, key, path, more).status == 200) is (status == 200)
            head = bearer(key)
            assert client.ask(f"{path}/{made}", method="DELETE", headers=head).status == status


def test_downloads_are_an_admins(engine: InferenceEngine) -> None:
    hosted = Hosted("story", engine)

    def make(name: str, path: str) -> Hosted:
        raise AssertionError("it is downloaded")

    with serving_models(hosted, make=make, api_keys=("alice", "bob"), allow_pull=True) as client:
        body = {"model": "user/repo:Q4_K_M", "stream": False}
        refused = ask(client, "alice", "/api/pull", body)
        assert refused.status == 403 and "admin" in refused.json["error"]
        assert ask(client, "alice", "/api/pull", {"model": "story", "stream": False}).status == 200


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/api/generate", {"prompt": "Once", "options": {"num_predict": 1}}),
        ("/api/chat", {"messages": [{"role": "user", "content": "Mia"}], "options": {"num_predict": 1}}),
        ("/api/embed", {"input": "Once"}),
        ("/api/embeddings", {"prompt": "Once"}),
    ],
)
def test_only_an_admin_unloads_a_model(path: str, asked: dict[str, Any]) -> None:
    def load() -> InferenceEngine:
        return InferenceEngine.from_gguf(demo.STORY, num_threads=1)

    plain = {} if "embed" in path else {"stream": False}
    keys = {"api_keys": ("alice", "bob"), "admin_keys": ("root",)}
    with serving_models(Hosted("story", load=load, path=str(demo.STORY)), **keys) as client:
        until(lambda: client.ask("/health").status == 200)
        ask(client, "alice", "/completion", {"prompt": PROMPT, "n_predict": 1, "id_slot": 0})
        n = ask(client, "alice", "/slots").json[0]["n_tokens"]
        for zero in (0, "0", "0s", "-0"):
            refused = ask(client, "bob", path, {"keep_alive": zero, **plain})
            assert refused.status == 403 and "an admin's (--admin-key) to unload a model" in str(refused.json)
        for short in (0, "1ms"):
            assert ask(client, "bob", path, {**asked, "keep_alive": short, **plain}).status == 200
        stopped_at = time.monotonic() + 0.2
        until(lambda: time.monotonic() > stopped_at)
        assert ask(client, "alice", "/slots").json[0]["n_tokens"] == n > 60
        assert ask(client, "root", path, {"keep_alive": 0, **plain}).status == 200
        until(lambda: client.hosted.engine is None)
        assert ask(client, "bob", path, {"keep_alive": 0, **plain}).status == 403
        assert client.hosted.engine is None


def test_a_key_may_keep_a_model_longer() -> None:
    """The server unloads models after a time, which another key cannot shorten."""

    def kept(keep_alive: Any, limits: Limits, idle: float | None) -> float | None:
        config = ServerConfig(models_idle_seconds=idle)
        request: Any = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(served=None)))
        request.app.state.served = SimpleNamespace(config=config)
        with in_context(caller=Caller("bob", limits)):
            return kept_seconds(request, keep_alive, asks=True)

    for limits, idle, asked, expected in (
        (Limits(), 60, "5m", 300),
        (Limits(), 60, 1, 60),
        (Limits(), 60, -1, -1),
        (Limits(), 60, None, None),
        (Limits(), None, "5m", None),
        (Limits(admin=True), 60, 1, 1),
        (Limits(admin=True), None, 0, 0),
    ):
        assert kept(asked, limits, idle) == expected


def test_the_log_names_keys_and_warns_of_a_server_without(
    engine: InferenceEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with serving(engine, api_keys=("alice", "bob")) as client:
        name = client.server._app.state.keys.caller("alice").name
        assert ask(client, "alice", "/v1/models").status == 200
        assert ask(client, "other", "/v1/models").status == 401
    lines = [record.message for record in caplog.records if "/v1/models" in record.message]
    assert f" {name} GET" in lines[0] and name not in lines[1]
    assert "alice" not in caplog.text
    for host, keys, warns in (("0.0.0.0", (), True), ("0.0.0.0", ("k",), False), ("127.0.0.1", (), False)):
        caplog.clear()
        with serving(engine, host=host, api_keys=keys):
            pass
        assert ("has no --api-key" in caplog.text) is warns


@pytest.mark.parametrize("path", ["/metrics", "/lora-adapters"])
def test_what_an_admin_may(engine: InferenceEngine, path: str) -> None:
    body: Any = [] if path == "/lora-adapters" else None
    with serving(engine, api_keys=("alice", "bob"), admin_keys=("root",)) as client:
        assert ask(client, "alice", path, body).refusal("code") == (403, "not_admin")
        assert ask(client, "root", path, body).status == 200
        assert client.ask(path, body).status == 401
    for keys in ((), ("alone",)):
        with serving(engine, api_keys=keys) as client:
            assert ask(client, "alone", path, body).status == 200


def test_requests_of_a_key_run_and_wait(engine: InferenceEngine) -> None:
    body = {"prompt": "Once", "max_tokens": 300, "ignore_eos": True, "stream": True, "n": 4}
    head = bearer("alice")
    with serving(engine, api_keys=("alice", "bob"), key_running=1, key_waiting=1) as client:
        first, response = client.open(PATH, body, headers=head)
        second = client.begin(PATH, {"prompt": "a", "max_tokens": 1}, headers=head)
        caller = client.server._app.state.keys.caller("alice")
        until(lambda: len(caller._waiting) == 1)
        third = ask(client, "alice", PATH, {"prompt": "a", "max_tokens": 1})
        assert third.refusal("code") == (429, "key_queue_full")
        assert int(third.headers["retry-after"]) >= 1
        assert ask(client, "bob", PATH, {"prompt": "a", "max_tokens": 1}).status == 200
        first.close()
        response.close()
        assert answer_of(second).status == 200
        until(lambda: caller._n_running == 0 and not caller._waiting)


def test_a_client_that_leaves_while_its_key_waits_gives_its_place_back(engine: InferenceEngine) -> None:
    body = {"prompt": "Once", "max_tokens": 300, "ignore_eos": True, "stream": True, "n": 4}
    head = bearer("alice")
    with serving(engine, api_keys=("alice", "bob"), key_running=1) as client:
        first, response = client.open(PATH, body, headers=head)
        caller = client.server._app.state.keys.caller("alice")
        second = client.begin(PATH, {"prompt": "a", "max_tokens": 1}, headers=head)
        until(lambda: len(caller._waiting) == 1)
        second.close()
        until(lambda: not caller._waiting)
        first.close()
        response.close()
        until(lambda: caller._n_running == 0)
        assert ask(client, "alice", PATH, {"prompt": "a", "max_tokens": 1}).status == 200


def test_a_turn_that_comes_to_a_client_that_has_left_is_given_on() -> None:
    """The turn comes and the client leaves before the client's task runs again."""

    async def both() -> None:
        caller = Caller("a", Limits(running=1))
        assert caller.try_enter()
        first, second = (asyncio.ensure_future(caller.enter()) for _ in range(2))
        await asyncio.sleep(0)
        caller.leave()
        first.cancel()
        await asyncio.wait_for(second, 60)
        assert first.cancelled() and not caller.try_enter()
        caller.leave()
        assert caller.try_enter()

    asyncio.run(both())


def test_tokens_of_a_minute(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True}
    now = 0.0
    monkeypatch.setattr(callers, "time", SimpleNamespace(monotonic=lambda: now))
    with serving(engine, api_keys=("alice", "bob"), key_tokens=100) as client:
        assert ask(client, "alice", PATH, body).json["usage"]["total_tokens"] == 104
        refused = ask(client, "alice", PATH, body)
        assert refused.refusal("code") == (429, "key_tokens_used_up")
        assert refused.headers["retry-after"] == "4"  # 4 tokens too many take 2.4 s
        assert ask(client, "bob", PATH, body).status == 200
        now = 2.0
        assert ask(client, "alice", PATH, body).status == 429
        now = 3.0
        assert ask(client, "alice", PATH, {"prompt": "a", "max_tokens": 1}).status == 200


def test_a_request_that_waits_is_refused_when_the_tokens_are_used_up(engine: InferenceEngine) -> None:
    long = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True, "stream": True}
    head = bearer("alice")
    with serving(engine, api_keys=("alice", "bob"), key_tokens=100, key_running=1) as client:
        caller = client.server._app.state.keys.caller("alice")
        with stopped(engine):
            first = client.begin(PATH, long, headers=head)
            until(lambda: caller._n_running == 1)
            others = [client.begin(PATH, {"prompt": "a", "max_tokens": 1}, headers=head) for _ in range(2)]
            until(lambda: len(caller._waiting) == 2)
        assert "[DONE]" in answer_of(first).text
        for refused in map(answer_of, others):
            assert refused.status == 429 and int(refused.headers["retry-after"]) >= 2
        until(lambda: caller._n_running == 0)


def test_a_limit_that_is_raised_applies_to_those_who_wait(engine: InferenceEngine, tmp_path: Path) -> None:
    path, body = tmp_path / "keys", {"prompt": "a", "max_tokens": 1}
    path.write_text("alice running=1\nbob\n")
    head = bearer("alice")
    with serving(engine, api_key_file=path) as client:
        keys = client.server._app.state.keys
        caller = keys.caller("alice")
        with stopped(engine):
            found = [client.begin(PATH, body, headers=head) for _ in range(3)]
            until(lambda: len(caller._waiting) == 2)
            path.write_text("alice running=3\nbob\n")
            client.server._connections._loop.call_soon_threadsafe(keys.reload)
            until(lambda: caller._n_running == 3 and not caller._waiting)
        assert [answer_of(connection).status for connection in found] == [200] * 3


def test_limits_of_every_request(engine: InferenceEngine) -> None:
    with serving(engine, max_tokens_limit=5, timeout_limit=20) as client:
        found = client.ask("/completion", {"prompt": "Once", "ignore_eos": True}).json
        assert found["tokens_predicted"] == 5
        assert (
            client.ask(PATH, {"prompt": "Once", "ignore_eos": True}).json["usage"]["completion_tokens"] == 5
        )
        for field, value in (("max_tokens", 6), ("timeout", 21)):
            assert client.ask(PATH, {"prompt": "Once", field: value}).refusal("param") == (400, field)
        assert client.ask(PATH, {"prompt": "Once", "max_tokens": 5, "timeout": 20}).status == 200


def test_who_asks_without_a_key_what_needs_none_is_nobody(engine: InferenceEngine) -> None:
    callers = []
    with serving(engine, api_keys=("alice", "bob"), admin_keys=("root",)) as client:
        gate = client.server._app.middleware_stack.app
        while not isinstance(gate, Gate):
            gate = gate.app
        app = gate.app

        async def seen(*asgi: Any) -> None:
            callers.append(context().caller)
            await app(*asgi)

        gate.app = seen
        for head in ({}, bearer("root"), {"Authorization": "Bearer no key of it"}):
            assert client.ask("/health", headers=head).status == 200
    assert [(each.limits.admin, each.limits.priority) for each in callers] == [
        (False, False),
        (True, True),
        (False, False),
    ]


def test_a_priority_is_for_keys_that_may(engine: InferenceEngine) -> None:
    body = {"prompt": "Once", "max_tokens": 1, "priority": 1}
    with serving(engine, api_keys=("alice", "bob"), admin_keys=("root",)) as client:
        assert ask(client, "alice", PATH, body).refusal("param") == (403, "priority")
        assert ask(client, "root", PATH, body).status == 200
        assert ask(client, "alice", PATH, {**body, "priority": 0}).status == 200


class Steps(Observer):
    """The steps that each request of a key waits for its end, from when the engine has it."""

    def __init__(self, tenant: str) -> None:
        self.tenant, self.n = tenant, 0
        self.waits: list[int] = []
        self._since: dict[Any, int] = {}

    def queued(self, request: Any) -> None:
        if request.tenant == self.tenant:
            self._since[request] = self.n

    def stepped(self, batch: Any, now: float) -> None:
        self.n += 1

    def ended(self, request: Any, now: float) -> None:
        if request.tenant == self.tenant:
            self.waits.append(self.n - self._since.pop(request))


@pytest.mark.parametrize("others", [("alice",), ("alice", "carol", "dave")])
def test_many_streams_of_other_keys_do_not_starve_one(
    engine: InferenceEngine, others: tuple[str, ...]
) -> None:
    long = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 30}
    scheduler = engine.model.scheduler
    with serving(engine, api_keys=(*others, "bob")) as client:
        caller = client.server._app.state.keys.caller("bob")
        steps = Steps(caller.name)
        loop = engine.model.loop
        engine.model.call(lambda: setattr(loop, "observers", Observers([*loop.observers.every, steps])))
        held = [client.begin(PATH, long, headers=bearer(others[n % len(others)])) for n in range(10)]
        until(lambda: len(scheduler.waiting) + len(scheduler.running) > 280)
        for _ in range(20):
            assert ask(client, "bob", PATH, {"prompt": "a", "max_tokens": 1}).status == 200
        assert len(scheduler.waiting) + len(scheduler.running) > 200  # the others still run
        for connection in held:
            connection.close()
    n_keys = len(others) + 1
    assert len(steps.waits) == 20
    assert max(steps.waits) <= n_keys, steps.waits


def test_embeddings_of_one_key_do_not_starve_those_of_another(engine: InferenceEngine) -> None:
    many = {"input": [[5 + (i + j) % 200 for j in range(100)] for i in range(1000)]}
    scheduler, loop = engine.model.scheduler, engine.model.loop
    with serving(engine, api_keys=("alice", "bob")) as client:
        steps = Steps(client.server._app.state.keys.caller("bob").name)
        engine.model.call(lambda: setattr(loop, "observers", Observers([*loop.observers.every, steps])))
        held = client.begin("/v1/embeddings", many, headers=bearer("alice"))
        until(lambda: len(scheduler.waiting) > 500)
        for _ in range(5):
            assert ask(client, "bob", "/v1/embeddings", {"input": PROMPT}).status == 200
        assert len(scheduler.waiting) > 100
        held.close()
    assert len(steps.waits) == 5 and max(steps.waits) <= 2, steps.waits


class Cached(Observer):
    """Tokens of prompts that were cached, of each request."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def ended(self, request: Any, now: float) -> None:
        self.found.append(request.n_cached)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/embed"])
def test_embeddings_see_nothing_of_another_key_and_are_charged(engine: InferenceEngine, path: str) -> None:
    body, loop, cached = {"input": PROMPT, "model": "story"}, engine.model.loop, Cached()
    if path == "/api/embed":
        body["input"] = "Once upon a time there was a fox. " * 9
    with serving(engine, api_keys=("alice", "bob"), key_tokens=150) as client:
        engine.model.call(lambda: setattr(loop, "observers", Observers([*loop.observers.every, cached])))
        statuses = [
            ask(client, key, path, body).status for key in ("alice", "bob", "alice", "alice", "alice")
        ]
    n = len(cached.found)
    assert statuses == [200] * n + [429] * (5 - n) and 3 <= n < 5
    assert cached.found[:2] == [0, 0] and cached.found[2] > 40


def test_prompts_with_log_probabilities_are_run_in_turns(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"prompt": [PROMPT] * 3, "echo": True, "logprobs": 1, "max_tokens": 1}
    real, ran, go_on, running = completions.score, list[str](), threading.Event(), threading.Lock()
    pools = list[Any]()

    def score(*arguments: Any) -> Any:
        assert running.acquire(blocking=False)  # one at a time
        pools.append(context().pools)
        assert go_on.wait(60)
        ran.append(context().client)
        found = real(*arguments)
        running.release()
        return found

    monkeypatch.setattr(completions, "score", score)
    with serving(engine, api_keys=("alice", "bob")) as client:
        keys = client.server._app.state.keys
        alice, bob = (keys.caller(key).name for key in ("alice", "bob"))
        held = list[Any]()
        for key in ("alice", "alice", "bob"):
            held.append(client.begin(PATH, body, headers=bearer(key)))
            until(
                lambda: bool(pools) and sum(map(len, list(pools[0].score._small.values()))) == len(held) - 1
            )
        go_on.set()
        assert [answer_of(connection).status for connection in held] == [200] * 3
    assert ran[:3] == [alice, alice, bob]
    assert ran.count(bob) == 3 and ran.count(alice) == 6


def test_a_key_that_fills_its_queue_leaves_the_others_theirs() -> None:
    scheduler = SchedulerConfig(max_sequences=2, max_waiting=5)
    long = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 10}
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1, scheduler=scheduler)
    with serving(engine, api_keys=("alice", "bob")) as client:
        connection, response = client.open(PATH, long, headers=bearer("alice"))
        until(lambda: len(engine.model.scheduler.waiting) >= 5)
        refused = ask(client, "alice", PATH, {"prompt": "a", "max_tokens": 1})
        assert refused.refusal("code") == (429, "queue_full")
        assert ask(client, "bob", PATH, {"prompt": "a", "max_tokens": 1}).status == 200
        response.close()
        connection.close()


def test_a_key_does_not_take_all_connections(engine: InferenceEngine) -> None:
    body = {"prompt": "Once", "max_tokens": 1}
    with serving(engine, api_keys=("alice", "bob", "carol"), max_connections=12) as client:
        in_flight, held = client.server._app.state.in_flight, []
        with stopped(engine):
            for key, n in (("alice", 9), ("bob", 2), ("carol", 1)):
                for _ in range(n):
                    held.append(client.begin(PATH, body, headers=bearer(key)))
                    until(lambda: len(in_flight) == len(held))
                if key != "carol":
                    refused = ask(client, key, PATH, body)
                    assert refused.refusal("code") == (429, "key_connections")
                    assert int(refused.headers["retry-after"]) >= 1
        assert [answer_of(connection).status for connection in held] == [200] * 12


def test_a_single_key_may_have_all_connections(engine: InferenceEngine) -> None:
    with serving(engine, api_keys=("alone",), max_connections=3) as client:
        in_flight, held = client.server._app.state.in_flight, []
        with stopped(engine):
            for _ in range(3):
                body = {"prompt": "Once", "max_tokens": 1}
                held.append(client.begin(PATH, body, headers=bearer("alone")))
                until(lambda: len(in_flight) == len(held))
        assert [answer_of(connection).status for connection in held] == [200] * 3


def digest(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# ours\n\nplain\n{digest('hashed')} name=alice running=2 waiting=0 tokens=9 priority\n")
    keys = Keys(ServerConfig(api_key_file=path, key_running=7))
    alice, plain = keys.caller("hashed"), keys.caller("plain")
    assert alice is not None and plain is not None and keys.caller("other") is None
    limits = alice.limits
    assert (alice.name, limits.running, limits.waiting, limits.tokens) == ("alice", 2, 0, 9)
    assert (limits.priority, limits.admin, plain.limits.running) == (True, False, 7)
    assert "plain" not in f"{vars(keys)} {plain.name}"
    path.write_text("other\n")
    keys.reload()
    assert keys.caller("hashed") is None and keys.caller("other") is not None
    path.write_text("other nonsense=1\n")
    keys.reload()  # which is logged
    assert keys.caller("other") is not None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("secret running=x", "line 1: expected one of name=, "),
        ("secret nonsense", "got nonsense"),
        ("sha256:12", "expected a key, or sha256:"),
        ("sch\u00f6n", "expected a key"),
        ("secret running=0", "at least 1"),
        ("a name=x\nb name=x", "got x twice"),
        ("", "expected a key on a line"),
    ],
)
def test_a_wrong_file_of_keys(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(line, "utf-8")
    with pytest.raises(ConfigError, match="api_key_file: ") as error:
        Keys(ServerConfig(api_key_file=path))
    assert message in str(error.value)
    assert "secret" not in str(error.value)


def test_pages_of_other_sites(engine: InferenceEngine) -> None:
    foreign = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    with serving(engine, cors_origins=("https://good.example",)) as client:
        for path in ("/props", "/slots", "/v1/models"):
            assert client.ask(path, headers=foreign).status == 403
            assert client.ask(path, headers={**foreign, "Origin": "https://good.example"}).status == 200
            assert client.ask(path, headers={"Sec-Fetch-Site": "same-origin"}).status == 200
        assert client.ask("/", headers={"Sec-Fetch-Site": "cross-site"}).status == 200  # a link to the page


def test_a_server_that_others_reach_checks_the_host_unless_it_has_keys(engine: InferenceEngine) -> None:
    with serving(engine, host="0.0.0.0") as client:
        for host, status in (("10.1.2.3:80", 200), ("[::5]", 200), ("evil.example", 403), ("[::5", 400)):
            assert client.ask("/v1/models", headers={"Host": host}).status == status
    with serving(engine, host="0.0.0.0", api_keys=("k",)) as client:
        assert ask(client, "k", "/v1/models", Host="my.example").status == 200


def test_no_folder_of_the_server_is_told(engine: InferenceEngine) -> None:
    error = LoadError("/srv/models/a b/x.gguf: needs 5 bytes, '/srv/other/y.bin' has 1/2 of them")
    assert "/srv" not in without_paths(LoadError("/srv/models/x.gguf: needs 5 bytes, '/srv/y.bin' has 1/2"))
    assert without_paths(LoadError("x: expected a/b or 1/2")) == "x: expected a/b or 1/2"
    assert "other" not in without_paths(error)
    with serving(engine) as client:
        for path in ("/props", "/v1/models", "/lora-adapters", "/api/tags"):
            assert str(demo.STORY.parent) not in client.ask(path).text


@pytest.mark.slow
def test_the_end_of_a_server(engine: InferenceEngine, caplog: pytest.LogCaptureFixture) -> None:
    body = {"prompt": "Once", "max_tokens": 490, "ignore_eos": True, "n": 8, "logprobs": 50}
    caplog.set_level(logging.WARNING)
    with ThreadPoolExecutor(6) as pool, serving(engine, shutdown_seconds=0.3) as client:
        streams = [client.open(PATH, {**body, "stream": True}) for _ in range(3)]
        begun = [pool.submit(response.read) for _, response in streams]
        whole = [pool.submit(client.ask, PATH, body) for _ in range(3)]
        until(lambda: len(client.server._app.state.in_flight) == 6)
    for connection, response in streams:
        response.close()
        connection.close()
    for (_, response), text in zip(streams, begun):
        events = Answer(response.status, {}, text.result().decode()).events
        assert (response.status, events[-1]) == (200, "[DONE]")
        assert events[-2]["error"]["code"] == "shutting_down"
    answers = [each.result() for each in whole]
    assert [answer.refusal("code") for answer in answers] == [(503, "shutting_down")] * 3
    assert any("waiting for 6 requests" in record.message for record in caplog.records)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs signals")
def test_keys_on_sighup_a_unix_socket_and_a_second_ctrl_c(tmp_path: Path) -> None:
    keys, path, log = tmp_path / "keys", tmp_path / "s", tmp_path / "log"
    keys.write_text("first\nother\n")
    line = command("serve", "--unix-socket", path, "--api-key-file", keys, "--shutdown-seconds", "600")
    with log.open("wb") as file, started([*line, "--threads", "1"], stderr=file) as run:
        until(lambda: b"is ready" in log.read_bytes(), 60)
        assert path.stat().st_mode & 0o777 == 0o600  # only its owner can open it

        def connected() -> socket.socket:
            found = socket.socket(socket.AF_UNIX)
            found.settimeout(60)
            found.connect(str(path))
            return found

        def begun(connection: socket.socket, key: str, body: str) -> bytes:
            head = f"POST {PATH} HTTP/1.1\r\nHost: any\r\nAuthorization: Bearer {key}\r\n"
            head += "Connection: close\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            connection.sendall(head.encode())
            return connection.recv(100)[9:12]

        def status(key: str) -> bytes:
            with connected() as connection:
                return begun(connection, key, '{"prompt": "a", "max_tokens": 1}')

        assert [status("first"), status("second")] == [b"200", b"401"]
        keys.write_text("second\nother\n")
        run.send_signal(signal.SIGHUP)
        until(lambda: status("second") == b"200")
        assert status("first") == b"401"
        long = '{"prompt": "Once", "max_tokens": 490, "ignore_eos": true, "n": 900, "stream": true}'
        with connected() as waiting:
            assert begun(waiting, "second", long) == b"200"
            run.send_signal(signal.SIGINT)
            until(lambda: b"waiting for 1 requests" in log.read_bytes())
            run.send_signal(signal.SIGINT)
            run.wait(60)  # and not for 600 s
    assert b"Traceback" not in log.read_bytes(), log.read_text()[-3000:]
    assert not path.exists()
