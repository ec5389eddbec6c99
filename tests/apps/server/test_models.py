"""Several models in one server: loaded when they are asked for, unloaded when others need the memory."""

from __future__ import annotations

import asyncio
import gc
import http.client
import random
import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from oxillama import ConfigError, InferenceEngine, LoadError, demo
from oxillama.apps.cli import build_parser
from oxillama.apps.cli.serve import hosted_models, server_config
from oxillama.apps.server import models
from oxillama.apps.server.llama_server.status import label
from oxillama.apps.server.models import Hosted, Models
from oxillama.base.config.server import ServerConfig
from tests.support.server import Answer, Client, answer_of, bearer, serving_models
from tests.support.spread import slow
from tests.support.waiting import stopped, until

BODY = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
PATH = "/v1/completions"


class Loader:
    """Loads a model as often as it is asked to."""

    def __init__(self, path: Any = demo.DRAFT) -> None:
        self.path = path
        self.engine: weakref.ref[InferenceEngine] | None = None
        self.models: list[weakref.ref[Any]] = []
        self.may_load = threading.Event()
        self.may_load.set()
        self.failure: Exception | None = None

    def __call__(self) -> InferenceEngine:
        assert self.may_load.wait(60)
        if self.failure is not None:
            raise self.failure
        engine = InferenceEngine.from_gguf(self.path, num_threads=1)
        self.engine = weakref.ref(engine)
        self.models.append(weakref.ref(engine.model.runner.model))
        return engine

    @property
    def n_loads(self) -> int:
        return len(self.models)


def hosted(loaders: dict[str, Loader], n_bytes: int = 0) -> list[Hosted]:
    return [Hosted(name, load=load, n_bytes=n_bytes) for name, load in loaders.items()]


def states(client: Client) -> dict[str, str]:
    """The state of each model, as clients are told."""
    return {card["id"]: card["status"]["value"] for card in client.ask("/v1/models").json["data"]}


def send(client: Client, name: str) -> http.client.HTTPConnection:
    """A connection on which a text was asked for."""
    return client.begin(PATH, {**BODY, "model": name})


def text_of(answer: Answer) -> str:
    assert answer.status == 200, answer.text
    found: str = answer.choice["text"]
    return found


def test_each_is_loaded_when_it_is_asked_for() -> None:
    loaders = {"story": Loader(demo.STORY), "draft": Loader()}
    with serving_models(*hosted(loaders)) as client:
        until(lambda: client.ask("/health").status == 200)
        assert states(client) == {"story": "loaded", "draft": "unloaded"}
        answer = client.ask("/props?model=draft")  # a GET loads nothing
        assert (answer.status, loaders["draft"].n_loads) == (503, 0)
        assert states(client) == {"story": "loaded", "draft": "unloaded"}
        for name, path in (("story", demo.STORY), ("draft", demo.DRAFT), ("story", demo.STORY)):
            with InferenceEngine.from_gguf(path, num_threads=1) as alone:
                expected = alone.generate(BODY["prompt"], temperature=0, max_tokens=8)
                tokens = alone.tokenizer.encode("Once", add_special=False)
            answer = client.ask(PATH, {**BODY, "model": name})
            assert (answer.json["model"], text_of(answer)) == (name, expected)
            assert client.ask("/tokenize", {"content": "Once", "model": name}).json["tokens"] == tokens
            assert client.ask(f"/props?model={name}").json["model_alias"] == name
        assert text_of(client.ask(PATH, BODY)) == expected  # the default
        assert states(client) == {"story": "loaded", "draft": "loaded"}
        assert [loader.n_loads for loader in loaders.values()] == [1, 1]
        other = client.ask(PATH, {**BODY, "model": "nobody"})
        assert other.refusal("code") == (404, "model_not_found")
        assert other.error["message"] == "model: expected one of story, draft, got nobody"
        assert client.ask("/v1/models/draft").json["status"] == {"value": "loaded"}
        assert client.ask("/v1/models/nobody").status == 404


def test_metrics_of_several() -> None:
    with serving_models(*hosted({"a": Loader(), 'b"': Loader()})) as client:
        until(lambda: client.ask("/health").status == 200)
        client.ask(PATH, {**BODY, "model": "a"})
        lines = client.ask("/metrics").text.splitlines()
        assert 'oxillama:model_loaded{model_name="a"} 1' in lines
        assert 'oxillama:model_loaded{model_name="b\\""} 0' in lines
        assert 'llamacpp:tokens_predicted_total{model_name="a"} 8' in lines
        client.ask(PATH, {**BODY, "model": 'b"'})
        text = client.ask("/metrics").text
        for name in ("a", 'b\\"'):
            assert f'oxillama:generation_tokens_total{{model_name="{name}"}} 8.0' in text
        assert text.count("# TYPE llamacpp:requests_processing gauge") == 1


@pytest.mark.parametrize("name", ['"', "\\", "\n", 'a"\\\n\\n"', "a} 1\nb{"])
def test_the_metrics_of_any_name_are_read_back(name: str) -> None:
    """The format ends a line at a newline, and escapes three characters in a label."""
    line = f"a{label(name)} 1"
    assert "\n" not in line
    found = re.fullmatch(r'a\{model_name="((?:[^"\\]|\\["\\n])*)"\} 1', line)
    assert found is not None
    escapes = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
    assert re.sub(r"\\.", lambda m: escapes[m[0]], found[1]) == name


def test_counters_survive_the_unloading_of_a_model() -> None:
    loaders = {"a": Loader(), "b": Loader()}
    ended = "oxillama:request_success_total"  # counted when the client may have its answer already
    with serving_models(*hosted(loaders), models_max=1) as client:

        def values(name: str) -> dict[str, float]:
            pattern = f'^(.*){{.*model_name="{name}".*}} (.*)$'
            found = re.findall(pattern, client.ask("/metrics").text, re.MULTILINE)
            return {metric: float(value) for metric, value in found}

        for n, name in enumerate("abaab", 1):
            assert text_of(client.ask(PATH, {**BODY, "model": name}))
            until(lambda n=n, name=name: values(name).get(ended) == "abaab"[:n].count(name))  # type: ignore[misc]
            found = {each: values(each) for each in "ab"}
            for each in "ab":
                times = "abaab"[:n].count(each)
                assert found[each]["oxillama:model_loaded"] == (each == name)
                for counter in ("oxillama:generation_tokens_total", "llamacpp:tokens_predicted_total"):
                    assert found[each].get(counter, 0) == 8 * times
                assert found[each].get("oxillama:time_to_first_token_seconds_count", 0) == times
                assert found[each].get("oxillama:request_success_total", 0) == times
            for gauge in ("oxillama:model_matrix_bytes", "oxillama:prefix_cache_pages"):
                assert found[name][gauge] > 0 == found["ba"[name == "b"]].get(gauge, 0)
        assert [loader.n_loads for loader in loaders.values()] == [2, 2]


def test_an_unloaded_model_is_freed_although_old_garbage_stays() -> None:
    loaders = {"a": Loader(), "b": Loader()}
    with serving_models(*hosted(loaders), models_max=1) as client:
        client.ask("/v1/models")
        gc.collect()
        gc.disable()  # so that nothing but the unloading itself frees the model
        try:
            send(client, "a").close()  # whose request ends with an error
            text_of(client.ask(PATH, {**BODY, "model": "a"}))
            text_of(client.ask(PATH, {**BODY, "model": "b"}))
            until(lambda: loaders["a"].models[0]() is None)
        finally:
            gc.enable()


def test_freed_memory_is_returned_after_an_unloading(monkeypatch: pytest.MonkeyPatch) -> None:
    loader, seen = Loader(), []
    monkeypatch.setattr(models, "return_freed_memory", lambda: seen.append(loader.models[0]() is None))
    with serving_models(*hosted({"a": loader}), models_idle_seconds=0) as client:
        until(lambda: loader.n_loads == 1 and states(client) == {"a": "unloaded"})
        until(lambda: bool(seen))
    assert seen == [True]


def test_counters_are_there_while_a_model_is_unloaded() -> None:
    loaders = {"a": Loader(), "b": Loader()}
    with serving_models(*hosted(loaders), models_max=1) as client:
        assert text_of(client.ask(PATH, BODY))
        engine, may_close, closes = client.hosted.ready(), threading.Event(), threading.Event()
        close = engine.close

        def slowly() -> None:
            closes.set()
            assert may_close.wait(60)
            close()

        engine.close = slowly  # type: ignore[method-assign]
        del engine
        other = send(client, "b")
        assert closes.wait(60)
        assert 'llamacpp:tokens_predicted_total{model_name="a"} 8' in client.ask("/metrics").text.splitlines()
        may_close.set()
        assert text_of(answer_of(other))


@pytest.mark.slow
def test_the_one_used_longest_ago_goes_first() -> None:
    loaders = {name: Loader() for name in ("a", "b", "c")}
    with serving_models(*hosted(loaders), models_max=2) as client:
        for name in ("a", "b", "a", "c"):
            assert text_of(client.ask(PATH, {**BODY, "model": name}))
        assert states(client) == {"a": "loaded", "b": "unloaded", "c": "loaded"}
        client.ask(PATH, {**BODY, "model": "b"})
        assert states(client) == {"a": "unloaded", "b": "loaded", "c": "loaded"}
        assert client.ask("/health").status == 200  # it is loaded again when somebody asks
        assert text_of(client.ask(PATH, BODY))
        assert [loader.n_loads for loader in loaders.values()] == [2, 2, 1]
        assert loaders["a"].models[0]() is None is loaders["b"].models[0]()  # with their memory


def test_a_limit_of_bytes() -> None:
    with InferenceEngine.from_gguf(demo.DRAFT, num_threads=1) as engine:
        size = engine.metrics.snapshot().matrix_bytes
    loaders = {name: Loader() for name in ("a", "b", "c")}
    with serving_models(*hosted(loaders, size), models_memory=2 * size) as client:
        for name in ("a", "b", "c"):
            assert text_of(client.ask(PATH, {**BODY, "model": name}))
        assert states(client) == {"a": "unloaded", "b": "loaded", "c": "loaded"}


def test_none_is_unloaded_under_a_request() -> None:
    loaders = {"a": Loader(), "b": Loader()}
    with serving_models(*hosted(loaders), models_max=1) as client:
        expected = text_of(client.ask(PATH, {**BODY, "model": "a"}))
        a = client.hosted
        with stopped(a.ready()):
            running = send(client, "a")
            until(lambda: a.n_running == 1)
            other = send(client, "b")
            until(lambda: a.is_leaving)
            behind = send(client, "a")  # that must not keep the other one waiting for ever
            until(lambda: len(a.waiting) == 1)
            assert states(client) == {"a": "loaded", "b": "loading"}
            assert loaders["b"].n_loads == 0
        assert [text_of(answer_of(each)) for each in (running, other, behind)] == [expected] * 3
        assert [loader.n_loads for loader in loaders.values()] == [2, 1]
        assert states(client) == {"a": "loaded", "b": "unloaded"}


def test_a_client_that_leaves_while_it_waits_is_let_go() -> None:
    loaders = {"a": Loader(), "b": Loader(), "c": Loader()}
    with serving_models(*hosted(loaders), models_max=2) as client:
        client.ask(PATH, BODY)
        _, b, c = client.models
        loaders["b"].may_load.clear()
        first = send(client, "b")
        until(lambda: b.has_begun)
        second = send(client, "c")
        until(lambda: len(c.waiting) == 1)
        second.close()
        until(lambda: c.loading is None and not c.waiting)  # its turn had not come
        first.close()
        until(lambda: not b.waiting)
        loaders["b"].may_load.set()
        until(lambda: b.state == "loaded")  # what had begun goes to its end
        assert b.n_running == 0
        assert states(client) == {"a": "loaded", "b": "loaded", "c": "unloaded"}
        assert loaders["c"].n_loads == 0


def test_a_model_that_comes_to_a_client_that_has_left_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is free and the client leaves before the client's task runs again."""

    async def both() -> int:
        (one,) = hosted({"a": Loader()})
        models = Models([one], ServerConfig())
        task, take = asyncio.ensure_future(models.acquire(one)), models._take

        def take_and_leave(hosted: Hosted) -> None:
            take(hosted)
            asyncio.get_running_loop().call_soon(task.cancel)

        monkeypatch.setattr(models, "_take", take_and_leave)
        await asyncio.wait([task])
        assert task.cancelled() and one.engine is not None
        one.engine.close()
        return one.n_running

    assert asyncio.run(both()) == 0


def test_a_load_that_fails_can_be_tried_again() -> None:
    loaders = {"a": Loader(), "b": Loader()}
    loaders["b"].failure = LoadError("blk.0: is not there")
    with serving_models(*hosted(loaders)) as client:
        for _ in range(2):
            answer = client.ask(PATH, {**BODY, "model": "b"})
            assert answer.refusal("code") == (500, "load_failed")
            message = "model: expected b to load, got an error: blk.0: is not there"
            assert answer.error["message"] == message
            assert states(client)["b"] == "failed"
            assert text_of(client.ask(PATH, BODY))
        loaders["b"].failure = OSError("a secret path")
        assert "secret" not in client.ask(PATH, {**BODY, "model": "b"}).text
        loaders["b"].failure = None
        assert text_of(client.ask(PATH, {**BODY, "model": "b"}))
        assert states(client)["b"] == "loaded"


def test_one_that_nobody_uses_is_unloaded() -> None:
    loaders = {"a": Loader()}
    with serving_models(*hosted(loaders), models_idle_seconds=0) as client:
        for n in (1, 2, 3):  # the first is that of the start
            until(lambda n=n: loaders["a"].n_loads == n and states(client) == {"a": "unloaded"})  # type: ignore[misc]
            assert client.ask("/health").status == 200
            if n < 3:
                assert text_of(client.ask(PATH, BODY))
        assert states(client) == {"a": "unloaded"}


def test_all_at_the_start() -> None:
    loaders = {"a": Loader(), "b": Loader()}
    with serving_models(*hosted(loaders), load_all=True) as client:
        until(lambda: states(client) == {"a": "loaded", "b": "loaded"})
        assert [loader.n_loads for loader in loaders.values()] == [1, 1]


def test_the_end_comes_while_one_is_loading() -> None:
    loader = Loader()
    loader.may_load.clear()
    with serving_models(Hosted("a", load=loader)) as client:
        until(lambda: client.hosted.has_begun)
    loader.may_load.set()
    until(lambda: loader.n_loads == 1 and loader.engine is not None and loader.engine() is None)


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ("aa", {}, "model: expected another name for each, got a twice"),
        ("ab", {"models_memory": 9}, "models_memory: expected at least the 10 bytes of a, got 9"),
        ("ab", {"models_memory": 19, "load_all": True}, "load_all: expected room for all models"),
        ("ab", {"models_max": 1, "load_all": True}, "load_all: expected room for all models"),
    ],
)
def test_models_that_cannot_be_served_together(names: str, options: dict[str, Any], message: str) -> None:
    found = [Hosted(name, load=Loader(), n_bytes=10) for name in names]
    with pytest.raises(ConfigError, match=message):
        Models(found, ServerConfig(**options))


@pytest.mark.slow
@pytest.mark.parametrize("n_clients", [3, slow(8)])
def test_many_clients_of_models_that_do_not_fit_together(n_clients: int) -> None:
    loaders = {"a": Loader(), "b": Loader(demo.STORY), "c": Loader()}
    with serving_models(*hosted(loaders), models_max=1) as client:
        expected = {}
        for name, loader in loaders.items():
            with InferenceEngine.from_gguf(loader.path, num_threads=1) as alone:
                expected[name] = alone.generate(BODY["prompt"], temperature=0, max_tokens=8)
        found: list[tuple[str, str]] = []

        def run(seed: int) -> None:
            draw = random.Random(seed)
            for _ in range(6):
                name = draw.choice("abc")
                connection = send(client, name)
                if draw.random() < 0.3:
                    connection.close()  # gone
                else:
                    found.append((name, text_of(answer_of(connection))))

        with ThreadPoolExecutor(n_clients) as pool:
            assert list(pool.map(run, range(n_clients), timeout=120)) == [None] * n_clients
        assert len(found) > 2 * n_clients and all(text == expected[name] for name, text in found)
        until(lambda: not any(each.n_running or each.waiting or each.loading for each in client.models))
        assert sum(each.engine is not None for each in client.models) <= 1


def test_who_waits_for_a_model_takes_nobodys_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MOST_WAITING", 2)
    slow = Loader()
    with serving_models(
        Hosted("fast", InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)),
        Hosted("slow", load=slow),
        api_keys=("alice", "bob"),
    ) as client:
        slow.may_load.clear()
        held = []
        for key in ("alice", "alice", "bob"):
            held.append(client.begin(PATH, {**BODY, "model": "slow"}, headers=bearer(key)))
            until(lambda: len(client.models.by_name["slow"].waiting) == len(held))
        refused = client.ask(PATH, {**BODY, "model": "slow"}, headers=bearer("alice"))
        assert refused.refusal("code") == (429, "queue_full")
        slow.may_load.set()
        assert [answer_of(connection).status for connection in held] == [200] * 3


def test_a_model_with_several_names() -> None:
    loader, other = Loader(), Loader()
    models_of = [
        Hosted("small", load=loader, others=("fast", "tiny"), tags=("a", "b")),
        Hosted("big", load=other),
    ]
    with serving_models(*models_of) as client:
        cards = client.ask("/v1/models").json["data"]
        assert [(card["id"], card["aliases"], card["tags"]) for card in cards] == [
            ("small", ["small", "fast", "tiny"], ["a", "b"]),
            ("big", ["big"], []),
        ]
        for name in ("small", "fast", "tiny"):
            answer = client.ask(PATH, {**BODY, "model": name})
            assert (answer.status, answer.json["model"]) == (200, "small")
        assert client.ask("/v1/models/tiny").json["id"] == "small"
        assert (loader.n_loads, other.n_loads) == (1, 0)
        assert "small, fast, tiny, big" in client.ask(PATH, {**BODY, "model": "x"}).error["message"]
        assert client.ask("/api/generate", {"model": "tiny:latest", "prompt": ""}).status == 200
    with pytest.raises(ConfigError, match="expected another name for each, got fast twice"):
        Models([Hosted("fast", load=loader), Hosted("x", load=other, others=("fast",))], ServerConfig())


def test_names_and_tags_of_the_command_line() -> None:
    words = ["serve", str(demo.DRAFT), "--alias", "a, b", "--tags", "x,y", "-m", f"c,d={demo.STORY}"]
    args = build_parser(words[0]).parse_args(words)
    first, second = hosted_models(args, server_config(args))
    assert (first.name, first.names, first.tags) == ("a", ("a", "b"), ("x", "y"))
    assert (second.name, second.names, second.tags) == ("c", ("c", "d"), ())
