"""The server on Ray Serve: two replicas answer as one engine does, and one may end at any time."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from oxillama import ConfigError, EngineClosed, EngineConfig, InferenceEngine, ModelFileError
from tests.support.clusters import cluster
from tests.support.tiny_file import write_tiny_model
from tests.support.waiting import until

ray = pytest.importorskip("ray", reason="Ray is not installed")
serve = pytest.importorskip("ray.serve", reason="Ray's packages for serving are not installed")
from ray.serve.exceptions import BackPressureError  # noqa: E402

from oxillama.apps.ray import app, serving  # noqa: E402
from oxillama.apps.ray.homes import Route, tag_of  # noqa: E402
from oxillama.apps.ray.serving import Ingress, Replica, Sending  # noqa: E402
from oxillama.apps.server.errors import ApiError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # warnings of Ray itself

MESSAGES: Any = [{"role": "user", "content": "hello world"}]
LONG = 3000
"""Tokens of a text that is still running when its replica ends."""


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module", autouse=True)
def _cluster(port: int) -> Iterator[None]:
    with cluster():
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield
        serve.shutdown()


@contextmanager
def served(model: Path, port: int, **options: Any) -> Iterator[openai.OpenAI]:
    fields = options.pop("engine", {})
    config = EngineConfig(model_path=model, num_threads=1, **fields)
    serve.run(app(config, **{"replicas": 2, "model_name": "tiny", "api_keys": ("secret",), **options}))
    until(lambda: replicas_that_run() == 2, 60)
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="secret", max_retries=0) as client:
        yield client
    serve.delete("default")


def replicas_that_run() -> int:
    found = serve.status().applications["default"].deployments["oxillama"]
    return int(found.replica_states.get("RUNNING", 0))


@pytest.fixture(scope="module")
def client(model: Path, port: int) -> Iterator[openai.OpenAI]:
    with served(model, port) as found:
        yield found


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[InferenceEngine]:
    with InferenceEngine.from_gguf(model, num_threads=1) as found:
        yield found


def replica_of(response: Any) -> str:
    return str(response.headers["x-oxillama-replica"])


def test_texts_are_those_of_one_engine(client: openai.OpenAI, engine: InferenceEngine) -> None:
    replicas = set()
    for seed in range(12):
        raw = client.completions.with_raw_response.create(
            model="tiny", prompt="once", seed=seed, max_tokens=6
        )
        replicas.add(replica_of(raw))
        assert raw.parse().choices[0].text == engine.generate("once", seed=seed, max_tokens=6)
    assert len(replicas) == 2
    chat = client.chat.completions.create(model="tiny", messages=MESSAGES, seed=4, max_tokens=8)
    assert chat.choices[0].message.content == engine.chat(MESSAGES, seed=4, max_tokens=8)
    assert len(client.embeddings.create(model="tiny", input="hello").data[0].embedding) == 64
    assert [each.id for each in client.models.list()] == ["tiny"]


def test_a_stream_comes_in_pieces(client: openai.OpenAI, engine: InferenceEngine) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, seed=4, max_tokens=40, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == engine.chat(MESSAGES, seed=4, max_tokens=40)
    assert len(pieces) > 10


def test_stored_responses_are_found(client: openai.OpenAI) -> None:
    """Each of them, by every request that names it, at the replica that keeps it."""
    make = partial(client.responses.create, model="tiny", max_output_tokens=4)
    homes = Counter[str]()
    for i in range(8):
        raw = client.responses.with_raw_response.create(model="tiny", input=f"hello {i}", max_output_tokens=4)
        first = raw.parse()
        homes[replica_of(raw)] += 1
        assert client.responses.retrieve(first.id).id == first.id
        more = make(input="world", previous_response_id=first.id)
        item: Any = {"type": "item_reference", "id": first.output[0].id}
        assert make(input=[item, {"role": "user", "content": "x"}]).status
        assert make(input="again", previous_response_id=more.id).previous_response_id == more.id
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError, match="expected the id of a response that is kept"):
            client.responses.retrieve(first.id)
    assert len(homes) == 2


def test_a_response_whose_replica_has_ended(client: openai.OpenAI) -> None:
    id = f"resp_{tag_of('a replica that has ended')}{'0' * 32}"
    with pytest.raises(openai.NotFoundError, match="which no replica has, or one that has ended"):
        client.responses.retrieve(id)
    with pytest.raises(openai.BadRequestError, match=r"previous_response_id: .* or one that has ended"):
        client.responses.create(model="tiny", input="x", previous_response_id=id)


def test_a_replica_with_another_model_does_not_start(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(model.read_bytes())
    found = app(own, num_cpus=1)._bound_deployment.init_args[0]._bound_deployment
    config, options, facts = found.init_args
    os.replace(write_tiny_model(tmp_path / "new.gguf", seed=1), own)
    monkeypatch.setattr(serving, "as_assigned", lambda config: config)
    with pytest.raises(ModelFileError, match=r"model: expected that of the job, fingerprint .*, got .* at "):
        Replica(config, options, facts)


def test_errors_have_their_status(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temprature: is no option"):
        client.completions.create(model="tiny", prompt="a", extra_body={"temprature": 1})
    with pytest.raises(openai.NotFoundError, match="model: expected tiny"):
        client.completions.create(model="other", prompt="a")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").completions.create(model="tiny", prompt="a")
    with pytest.raises(openai.APIStatusError, match="body: expected at most") as found:
        client.completions.create(model="tiny", prompt="a" * (17 << 20))
    assert found.value.status_code == 413
    with pytest.raises(openai.InternalServerError, match="/metrics: expected a path that any"):
        client.with_options(base_url=str(client.base_url).removesuffix("/v1/")).get(
            "/metrics", cast_to=object
        )


def running(times: int = 12) -> int:
    """The most requests that a replica runs, of so many looks at any of them."""
    handle = serve.get_deployment_handle("oxillama", "default").options(method_name="answer", stream=True)
    headers = [(b"authorization", b"Bearer secret")]
    scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": headers, "query_string": b""}
    most = 0
    for _ in range(times):
        text = b"".join(message.get("body", b"") for message in handle.remote(Route(), scope, b"")).decode()
        found = re.search(r"^llamacpp:requests_processing\S* (\d+)", text, re.MULTILINE)
        assert found, text[:500]
        most = max(most, int(found[1]))
    return most


def test_a_client_that_goes_away_ends_its_request(client: openai.OpenAI) -> None:
    streams = [
        client.completions.create(model="tiny", prompt="once", max_tokens=4000, stream=True) for _ in range(6)
    ]
    for stream in streams:
        next(iter(stream))
    assert running() > 0
    for stream in streams:
        stream.close()
    until(lambda: running() == 0)


def kill_replica(name: str) -> None:
    """Ends the replica of this name as a machine that fails does."""
    (found,) = (one for one in ray.util.list_named_actors(all_namespaces=True) if name in one["name"])
    ray.kill(ray.get_actor(found["name"], found["namespace"]), no_restart=True)


def test_a_replica_that_ends_in_mid_stream(client: openai.OpenAI, engine: InferenceEngine) -> None:
    wanted: dict[str, Any] = {"model": "tiny", "prompt": "once upon", "seed": 7, "max_tokens": LONG}
    expected = engine.generate("once upon", seed=7, max_tokens=LONG)
    raw = client.completions.with_raw_response.create(**wanted, stream=True)
    pieces = []
    with pytest.raises((openai.APIError, openai.APIConnectionError)):
        for chunk in raw.parse():
            pieces.append(chunk.choices[0].text)
            if len(pieces) == 3:
                kill_replica(replica_of(raw))
    assert len(pieces) >= 3 and expected.startswith("".join(pieces)) and expected != "".join(pieces)
    again = client.completions.create(**wanted, stream=True)
    assert "".join(chunk.choices[0].text for chunk in again) == expected
    until(lambda: replicas_that_run() == 2, 60)


def test_a_server_that_is_removed_ends_what_it_has_begun(
    model: Path, port: int, engine: InferenceEngine
) -> None:
    wanted: dict[str, Any] = {"model": "tiny", "prompt": "there was", "seed": 7, "max_tokens": LONG}
    with served(model, port) as client:
        stream = client.completions.create(**wanted, stream=True)
        pieces = [next(iter(stream)).choices[0].text]
        removing = threading.Thread(target=serve.delete, args=("default",))
        removing.start()
        pieces += [chunk.choices[0].text for chunk in stream]
        removing.join(60)
    assert "".join(pieces) == engine.generate("there was", seed=7, max_tokens=LONG)


def test_a_replica_whose_engine_has_ended_is_not_healthy(model: Path) -> None:
    replica = object.__new__(Replica)
    with InferenceEngine.from_gguf(model, num_threads=1) as replica.engine:
        asyncio.run(replica.check_health())
    with pytest.raises(EngineClosed):
        asyncio.run(replica.check_health())


START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
END = {"type": "http.response.body", "body": b"text", "more_body": False}


class Replicas:
    """Replaces the handle of Ray Serve: each request gets the next of the answers."""

    def __init__(self, *answers: list[Any]) -> None:
        self.answers, self.n_cancelled = list(answers), 0

    def options(self, **options: Any) -> Replicas:
        return self

    def remote(self, *arguments: Any) -> Replicas:
        self.left = iter(self.answers.pop(0))
        return self

    def __aiter__(self) -> Replicas:
        return self

    async def __anext__(self) -> Any:
        for item in self.left:
            if isinstance(item, Exception):
                raise item
            return item
        raise StopAsyncIteration

    def cancel(self) -> None:
        self.n_cancelled += 1


def through_an_ingress(*answers: list[Any], path: str = "/v1/completions") -> tuple[list[Any], int]:
    """What an ingress sends if replicas answer so, and the status of the error that it raises, or 0."""
    replicas, sent = Replicas(*answers), []

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> int:
        sending = Sending(send)
        try:
            await Ingress(replicas, 1000).pass_on({"method": "POST", "path": path}, b"{}", sending)
        except ApiError as error:
            await sending.fail(error, {"type": "http", "path": path}, send)  # type: ignore[arg-type]
            return error.status
        return 0

    status = asyncio.run(run())
    assert replicas.n_cancelled == len(answers) - len(replicas.answers)
    return sent, status


def test_a_replica_that_ends_before_it_answers_is_replaced() -> None:
    gone = ray.exceptions.RayActorError()
    assert through_an_ingress([gone], [gone], [START, END]) == ([START, END], 0)
    sent, status = through_an_ingress([gone], [gone], [gone], [START, END])
    assert status == sent[0]["status"] == 503


def test_a_stream_that_cannot_go_on_ends_with_an_error() -> None:
    sent, status = through_an_ingress([START, END, ray.exceptions.RayActorError()], [START, END])
    assert status == 503 and sent[:2] == [START, END] and len(sent) == 3
    assert b'"code":"replica_ended"' in sent[2]["body"] and not sent[2]["more_body"]
    sent, _ = through_an_ingress([START, ray.exceptions.RayActorError()], path="/v1/messages")
    assert sent[1]["body"].startswith(b"event: error\ndata: ")


def test_another_answer_that_cannot_go_on_is_not_ended() -> None:
    plain = {**START, "headers": [(b"content-type", b"application/json")]}
    with pytest.raises(ApiError, match="the replica has ended"):
        through_an_ingress([plain, ray.exceptions.RayActorError()])


def test_a_full_queue_is_said() -> None:
    sent, status = through_an_ingress([BackPressureError(num_queued_requests=3, max_queued_requests=2)])
    assert status == sent[0]["status"] == 429


def cached(client: openai.OpenAI, n_groups: int, rounds: int) -> tuple[int, Counter[str]]:
    """Prompt tokens that were in a prefix cache, of rounds over groups of prompts that begin alike."""
    found, replicas = 0, Counter[str]()
    for turn in range(rounds):
        for group in range(n_groups):
            prompt = f"{group} " * 600 + f"and {turn}"
            raw = client.completions.with_raw_response.create(model="tiny", prompt=prompt, max_tokens=1)
            replicas[replica_of(raw)] += 1
            usage = raw.parse().usage
            assert usage is not None and usage.prompt_tokens_details is not None
            found += usage.prompt_tokens_details.cached_tokens or 0
    return found, replicas


CACHES_OF_FIVE = {"prefix_cache_bytes": 5 * 1300 * 256}


def test_prompts_go_where_their_beginning_is(model: Path, port: int) -> None:
    """A replica's cache holds five groups of eight; each replica gets some four of them again and again."""
    with served(model, port, engine=CACHES_OF_FIVE) as client:
        routed, replicas = cached(client, 8, 4)
    with served(model, port, engine=CACHES_OF_FIVE, routing="load") as client:
        spread, _ = cached(client, 8, 4)
    print(json.dumps({"routed": routed, "spread": spread, "replicas": list(replicas.values())}))
    assert min(replicas.values()) >= 4
    assert routed >= 1.5 * spread


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"port": 80}, "port: expected one of model_name"),
        ({"routing": "random"}, "routing: "),
        ({"replicas": 0}, "replicas: "),
        ({"replicas": (3, 2)}, "replicas: "),
        ({"imbalance": 0}, "imbalance: "),
        ({"api_keys": ("",)}, "api_keys: "),
        ({"per_machine": 0}, "per_machine: "),
    ],
)
def test_options_that_cannot_be(model: Path, options: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        app(model, **options)


def test_what_is_asked_of_the_cluster(model: Path) -> None:
    found = app(model, replicas=(1, 3), target_ongoing_requests=5, drain_seconds=7, num_cpus=2)
    deployment = found._bound_deployment.init_args[0]._bound_deployment  # behind the ingress
    scaling = deployment._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (1, 3, 5)
    assert deployment._deployment_config.graceful_shutdown_timeout_s == 7
    assert (
        deployment.ray_actor_options["num_cpus"] == 2 and deployment.ray_actor_options["memory"] > 512 << 20
    )
