"""``return_progress``: how far a prompt is, in the chunks of a stream before its first token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from oxillama import InferenceEngine
from oxillama.apps.server.prompt_progress import SECONDS, with_progress
from oxillama.apps.server.running import Delta
from tests.support.server import Client, serving
from tests.support.tiny_file import write_tiny_model
from tests.support.waiting import idle, stopped

WORDS = "hello world "
CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "m.gguf", ends=False, context_length=20_000)
    with serving(InferenceEngine.from_gguf(model, num_threads=1, prefill_chunk_size=8)) as found:
        yield found


def body_of(path: str, text: str, **more: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    return {**prompt, "stream": True, "max_tokens": 3, "seed": 1, "return_progress": True, **more}


def part_of(event: Any) -> dict[str, Any]:
    """The first choice of an event of OpenAI's, or an event of llama-server's."""
    found: dict[str, Any] = (event.get("choices") or [event])[0]
    return found


def text_of(event: Any) -> str:
    part = part_of(event)
    return part.get("content") or part.get("text") or part.get("delta", {}).get("content") or ""


def progress(events: list[Any], index: int = 0) -> list[dict[str, Any]]:
    """The progress of one text; none may come behind the first piece of it."""
    found, has_begun = [], False
    for event in events:
        if event == "[DONE]" or part_of(event).get("index", 0) != index:
            continue
        if "prompt_progress" in event:
            assert not has_begun
            found.append(event["prompt_progress"])
        else:
            has_begun |= bool(text_of(event))
    return found


@pytest.mark.parametrize("path", [CHAT, TEXT, NATIVE])
def test_a_prompt_grows_from_what_was_cached_to_its_end(client: Client, path: str) -> None:
    text = path + WORDS * 150
    parts = progress(client.ask(path, body_of(path, text)).events)
    assert all(set(part) == {"total", "cache", "processed", "time_ms"} for part in parts)
    numbers, total, cache = [part["processed"] for part in parts], parts[0]["total"], parts[0]["cache"]
    assert numbers == [*range(cache, total, 8), total]  # one for each chunk of a prompt that runs alone
    assert numbers[0] == parts[0]["cache"] and numbers[-1] == parts[-1]["total"]
    if path == NATIVE:
        events = client.ask(path, body_of(path, "x " + text, timings_per_token=True)).events
        told = [event["timings"] for event in events if "prompt_progress" in event]
        assert [each["prompt_n"] for each in told[:3]] == [0, 8, 16]
        spent = [each["prompt_ms"] for each in told]
        assert spent == sorted(spent) and spent[0] == 0 < spent[1]
        assert {each["predicted_n"] for each in told} == {0}
    assert len({(part["total"], part["cache"]) for part in parts}) == 1
    times = [part["time_ms"] for part in parts]
    assert times == sorted(times) and times[0] >= 0
    first, *rest = progress(client.ask(path, body_of(path, text)).events)
    assert first["cache"] == first["processed"] > 0.9 * first["total"] == 0.9 * parts[0]["total"]
    assert [part["processed"] for part in rest] == [first["total"]]


@pytest.mark.parametrize("path", [CHAT, TEXT, NATIVE])
def test_the_text_is_the_same_and_only_who_asks_is_told(client: Client, path: str) -> None:
    told, quiet = (client.ask(path, body_of(path, WORDS, return_progress=r)).events for r in (True, False))
    assert progress(quiet) == [] and progress(told)
    whole = ["".join(text_of(event) for event in events if event != "[DONE]") for events in (told, quiet)]
    assert whole[0] == whole[1] != ""


def test_each_text_has_its_own(client: Client) -> None:
    events = client.ask(TEXT, body_of(TEXT, "", prompt=["one " * 30, "two " * 50])).events
    totals = [progress(events, index)[-1]["total"] for index in (0, 1)]
    assert totals[0] < totals[1]
    assert all(progress(events, i)[-1]["processed"] == totals[i] for i in (0, 1))
    events = client.ask(CHAT, body_of(CHAT, WORDS * 40, n=2)).events
    assert [progress(events, i)[-1]["processed"] > 80 for i in (0, 1)] == [True, True]


def test_a_client_that_goes_away_meanwhile_ends_it(client: Client) -> None:
    engine = client.hosted.ready()
    with stopped(engine):
        connection, response = client.open(CHAT, body_of(CHAT, "gone " + WORDS * 1500, max_tokens=10_000))
        assert b"role" in response.readline()
        time.sleep(0.3)
        connection.close()
    idle(engine)


def test_an_error_while_the_prompt_is_read_is_an_answer(client: Client) -> None:
    answer = client.ask(CHAT, body_of(CHAT, WORDS * 20_000))
    assert answer.refusal("type") == (400, "exceed_context_size_error")


def test_the_first_delta_may_come_long_after_the_prompt() -> None:
    facts = {"timings": SimpleNamespace(spent=0.1), "usage": SimpleNamespace(cached_tokens=2)}
    steps = [(5, 0.5), (9, 1.0)]
    generation: Any = SimpleNamespace(prefill_total=9, prefill_steps=steps, **facts)
    first, last = Delta(0, None, [1], []), Delta(0, None, [2], [], "stop")

    async def deltas() -> AsyncIterator[Delta]:
        await asyncio.sleep(5 * SECONDS)
        yield first
        yield last

    async def run() -> list[Any]:
        return [part async for part in with_progress([generation], deltas())]

    *progress_parts, one, two = asyncio.run(run())
    assert [part.processed for part in progress_parts] == [2, 5, 9] and (one, two) == (first, last)
