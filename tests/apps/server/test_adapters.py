"""Adapters: their scales for all requests and for one, in every interface for text."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from oxillama import InferenceEngine, demo
from oxillama.errors import ConfigError
from oxillama.models.adapters.stack import LoraStack
from tests.support.server import Client, serving

PROMPT = "Once upon a time"
OPTIONS = {"temperature": 0, "max_tokens": 16}
PATH = "/lora-adapters"


def engine_with_adapter(scale: float = 1.0) -> InferenceEngine:
    return InferenceEngine.from_gguf(demo.STORY, num_threads=1, adapters=[(str(demo.PIRATE), scale)])


@pytest.fixture
def client() -> Iterator[Client]:
    with serving(engine_with_adapter()) as found:
        yield found


@pytest.fixture(scope="module")
def texts() -> dict[float, str]:
    """The text at each scale, as the library gives it."""
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1) as engine:
        return {
            scale: engine.generate(PROMPT, adapters=[(demo.PIRATE, scale)] if scale else [], **OPTIONS)
            for scale in (0.0, 0.5, 1.0)
        }


def complete(client: Client, **fields: Any) -> str:
    answer = client.ask("/v1/completions", {"prompt": PROMPT, **OPTIONS, **fields}, status=200)
    text: str = answer.choice["text"]
    return text


def test_scales_for_all_requests(client: Client, texts: dict[float, str]) -> None:
    assert texts[0.0] != texts[1.0] != texts[0.5]
    listed = {"id": 0, "path": demo.PIRATE.name, "scale": 1.0}
    assert client.ask(PATH).json == [listed]
    assert complete(client) == texts[1.0]
    for body, scale in (([{"id": 0, "scale": 0.5}], 0.5), ([], 0.0), ([{"id": 0, "scale": 1}], 1.0)):
        assert client.ask(PATH, body).json == {"success": True}
        assert client.ask(PATH).json == [{**listed, "scale": scale}]
        assert complete(client) == texts[scale]


def test_scales_of_one_request(client: Client, texts: dict[float, str]) -> None:
    with ThreadPoolExecutor(len(texts)) as pool:
        found = pool.map(lambda scale: complete(client, lora=[{"id": 0, "scale": scale}]), texts)
    assert list(found) == list(texts.values())
    assert complete(client, lora=[]) == texts[0.0]
    assert complete(client) == texts[1.0]
    native = {"prompt": PROMPT, "temperature": 0, "n_predict": 16, "lora": [{"id": 0, "scale": 0.5}]}
    assert client.ask("/completion", native).json["content"] == texts[0.5]
    echoed = complete(client, lora=[{"id": 0, "scale": 0.5}], echo=True, logprobs=1)
    assert echoed == PROMPT + texts[0.5]


def test_an_adapter_that_is_only_for_requests_that_name_it(texts: dict[float, str]) -> None:
    with serving(engine_with_adapter(0.0)) as client:
        assert complete(client) == texts[0.0]
        assert complete(client, lora=[{"id": 0, "scale": 1.0}]) == texts[1.0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"id": 0, "scale": 1}, ": expected a list, got {'id': 0, 'scale': 1}"),
        ([{"id": 1, "scale": 1}], "[0].id: expected an id below 1, got 1"),
        ([{"id": True, "scale": 1}], "[0].id: expected an id below 1, got True"),
        ([{"id": 0, "scale": "1"}], "[0].scale: expected a number, got '1'"),
        ([{"id": 0}], "[0]: expected an id and a scale, got {'id': 0}"),
        ([{"id": 0, "scale": 1}] * 2, "[1].id: expected each id once, got 0"),
        ([{"id": 0, "scale": 1, "path": "/x"}], "[0]: expected an id and a scale"),
    ],
)
def test_what_is_refused(client: Client, value: Any, message: str) -> None:
    answer = client.ask("/v1/completions", {"prompt": PROMPT, "lora": value})
    assert (answer.status, answer.error["message"][: 4 + len(message)]) == (400, f"lora{message}")
    answer = client.ask(PATH, value)
    assert (answer.status, answer.error["message"][: 4 + len(message)]) == (400, f"body{message}")
    assert client.ask(PATH).json[0]["scale"] == 1.0


def test_scales_that_are_too_large(client: Client) -> None:
    body = b'[{"id": 0, "scale": 1e999}]'
    assert client.ask(PATH, body).status == 400
    assert client.ask("/v1/completions", b'{"prompt": "x", "lora": %b}' % body).status == 400
    assert client.ask(PATH).json[0]["scale"] == 1.0


def test_a_model_without_adapters() -> None:
    with serving(demo.DRAFT) as client:
        assert client.ask(PATH).json == []
        answer = client.ask(PATH, [{"id": 0, "scale": 1}])
        wanted = "body[0].id: expected none, the model has no adapters, got 0"
        assert answer.refusal("message") == (400, wanted)


def test_a_stack_keeps_its_adapters() -> None:
    with engine_with_adapter() as engine:
        stack: LoraStack = engine.adapters.stack
        for scales in ([], [1.0, 1.0], [float("nan")], ["1"]):
            with pytest.raises(ConfigError, match=r"^scale"):
                stack.rescale(scales)  # type: ignore[arg-type]
        stack.rescale([0])
        assert stack.scales == [0.0]
