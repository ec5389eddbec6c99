"""Work off the event loop: turns between clients, room for small work, deadlines, JSON in pieces."""

from __future__ import annotations

import asyncio
import ctypes
import json
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from oxillama import InferenceEngine, QueueFull, demo
from oxillama.apps.server.bodies import MOST_PARTS, parsed
from oxillama.apps.server.callers import CONTEXT, RequestContext
from oxillama.apps.server.json_text import whole_pieces
from oxillama.apps.server.models import Hosted
from oxillama.apps.server.pieces import ENCODER, LARGE
from oxillama.apps.server.urgency import AT_ONCE, PATIENCE, short_turns
from oxillama.apps.server.workers import LARGE as LARGE_JOB, MOST_WAITING, Pools, Workers, in_daemon
from oxillama.base.deadline import DeadlineExceeded, check_deadline, deadline
from oxillama.base.single_flight import SingleFlight
from tests.support.paths import ROOT
from tests.support.server import serving, serving_models
from tests.support.waiting import until


async def as_client(name: str, workers: Workers, job: Any, *arguments: Any, **how: Any) -> Any:
    CONTEXT.set(RequestContext(client=name))
    return await workers.run(job, *arguments, **how)


def test_what_only_a_job_refers_to_is_freed_with_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    async def used() -> None:
        loop, told = asyncio.get_running_loop(), threading.Event()
        call = loop.call_soon_threadsafe

        def slowly(*arguments: Any) -> None:  # the thread still runs when the loop goes on
            call(*arguments)
            assert told.wait(60)

        monkeypatch.setattr(loop, "call_soon_threadsafe", slowly)
        held = Workers("held", 1)
        found = weakref.ref(held)
        running = asyncio.ensure_future(in_daemon(partial(getattr, held, "name", None)))
        del held
        await running
        assert found() is None
        told.set()

    asyncio.run(used())


def test_clients_have_turns() -> None:
    workers, go_on = Workers("test", 1), threading.Event()
    order: list[str] = []

    async def run() -> None:
        first = asyncio.ensure_future(as_client("a", workers, go_on.wait, 10))
        await asyncio.sleep(0.05)
        names = [*("a" * 5), "b", *("c" * 2)]
        jobs = [asyncio.ensure_future(as_client(name, workers, order.append, name)) for name in names]
        await asyncio.sleep(0.05)
        go_on.set()
        await asyncio.gather(first, *jobs)

    asyncio.run(run())
    assert "".join(order) == "abcacaaa"
    workers.close()


def test_large_work_leaves_a_thread_to_small_work() -> None:
    workers, go_on = Workers("test", 2), threading.Event()

    async def run() -> None:
        large = [
            asyncio.ensure_future(as_client(str(i), workers, go_on.wait, 60, size=LARGE_JOB))
            for i in range(5)
        ]
        await asyncio.sleep(0.05)
        assert await asyncio.wait_for(as_client("small", workers, lambda: 5), 30) == 5
        go_on.set()
        await asyncio.gather(*large)

    asyncio.run(run())
    workers.close()


def test_large_work_of_all_kinds_runs_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, began = threading.Event(), threading.Event()
    pools = Pools()

    def first() -> None:
        began.set()
        go_on.wait(100)

    async def run() -> None:
        waiting = asyncio.ensure_future(as_client("a", pools.parse, first, size=LARGE_JOB))
        while not began.is_set():
            await asyncio.sleep(0.001)
        monkeypatch.setattr("oxillama.apps.server.workers.LARGE_WAIT", 90)
        second = asyncio.ensure_future(as_client("b", pools.compile, lambda: 2, size=LARGE_JOB))
        assert await as_client("c", pools.compile, lambda: 3) == 3  # small
        await asyncio.sleep(0.1)
        assert not second.done()
        monkeypatch.setattr("oxillama.apps.server.workers.LARGE_WAIT", 0.01)
        third = as_client("d", pools.prepare, lambda: 4, size=LARGE_JOB)
        assert await asyncio.wait_for(third, 60) == 4  # it has waited long enough
        go_on.set()
        assert await asyncio.wait_for(second, 60) == 2
        await waiting

    asyncio.run(run())
    pools.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no timer slack")
def test_heavy_work_leaves_pythons_lock_to_engines() -> None:
    prctl = ctypes.CDLL(None).prctl

    def slack() -> int:
        found: int = prctl(30, 0, 0, 0, 0)  # PR_GET_TIMERSLACK
        return found

    pools = Pools()

    async def run() -> list[int]:
        jobs = (pools.parse, LARGE_JOB), (pools.parse, 0), (pools.compile, 0)
        return [await as_client("a", workers, slack, size=size) for workers, size in jobs]

    assert asyncio.run(run()) == [PATIENCE, AT_ONCE, PATIENCE]
    pools.close()
    hosted = Hosted("m", load=lambda: InferenceEngine.from_gguf(demo.DRAFT, num_threads=1))
    with serving_models(hosted) as client:
        until(lambda: hosted.engine is not None)
        assert hosted.engine.model.call(slack) == AT_ONCE
        assert client.ask("/health").status in (200, 503)


def test_the_switch_interval_of_a_server_is_short() -> None:
    before = sys.getswitchinterval()
    with short_turns():
        assert sys.getswitchinterval() < before / 5
    assert sys.getswitchinterval() == before


def test_a_client_has_a_limited_queue_and_may_leave_it() -> None:
    workers, begun, go_on = Workers("test", 1), threading.Event(), threading.Event()
    ran: list[int] = []

    def wait() -> None:
        begun.set()
        go_on.wait(60)

    async def run() -> None:
        first = asyncio.ensure_future(as_client("a", workers, wait))
        await asyncio.to_thread(begun.wait, 60)
        jobs = [asyncio.ensure_future(as_client("a", workers, ran.append, i)) for i in range(MOST_WAITING)]
        await asyncio.sleep(0.05)
        with pytest.raises(QueueFull, match="wait already"):
            await as_client("a", workers, ran.append, -1)
        for job in jobs[1:]:
            job.cancel()
        await asyncio.gather(*jobs[1:], return_exceptions=True)
        go_on.set()
        await asyncio.gather(first, jobs[0])

    asyncio.run(run())
    assert ran == [0]
    workers.close()


def test_a_job_that_takes_too_long_is_ended() -> None:
    workers, ended = Workers("test", 1), []

    def endless() -> None:
        try:
            while True:
                check_deadline()
                time.sleep(0.001)
        finally:
            ended.append(True)

    async def run() -> None:
        with pytest.raises(DeadlineExceeded, match=r"longer than 0\.2 s"):
            await as_client("a", workers, endless, seconds=0.2)
        assert ended

        def check() -> int:
            time.sleep(0.01)
            check_deadline()
            return 5

        assert await as_client("a", workers, check) == 5  # the next job of the thread has no deadline

    asyncio.run(run())
    workers.close()


def test_an_earlier_deadline_of_an_outer_block_counts() -> None:
    for seconds in (None, 60):
        with deadline(0.001), deadline(seconds):
            time.sleep(0.01)
            with pytest.raises(DeadlineExceeded, match=r"longer than 0\.001 s"):
                check_deadline()
    with deadline(60), deadline(0.001):
        time.sleep(0.01)
        with pytest.raises(DeadlineExceeded):
            check_deadline()
    check_deadline()


def test_a_value_is_made_once_and_nobody_waits_for_anothers() -> None:
    found, made, go_on = SingleFlight[str](2), [], threading.Event()

    def slow() -> str:
        made.append("slow")
        go_on.wait(60)
        return "slow"

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(found.get, "slow", slow)
        until(lambda: made == ["slow"])
        assert found.get("fast", lambda: "fast") == "fast"
        go_on.set()
    assert made == ["slow"]
    for name in "abc":
        found.get(name, lambda: "x")
    assert found.get("slow", lambda: "again") == "again"


def test_an_error_is_everybodys_and_an_interruption_its_own() -> None:
    found = SingleFlight[int](2)
    made: list[BaseException] = []
    callers: list[BaseException] = []

    def make(error: BaseException) -> int:
        if error in made:
            return 5
        made.append(error)
        until(lambda: len(callers) == 2)
        time.sleep(0.2)  # until the other one waits
        raise error

    def run(error: BaseException) -> Any:
        callers.append(error)
        try:
            return found.get(type(error), lambda: make(error))
        except BaseException as caught:
            return type(caught)

    for error in (ValueError(), KeyboardInterrupt(), DeadlineExceeded()):
        callers.clear()
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(run, [error] * 2))
        expected = [ValueError] * 2 if isinstance(error, ValueError) else [type(error), 5]
        assert sorted(results, key=str) == sorted(expected, key=str)  # threads may overtake each other


@pytest.mark.parametrize("what", ["value", "error"])
def test_an_interrupt_anywhere_leaves_nothing_to_wait_for(what: str) -> None:
    """In a process of its own, in which no other test has left anything."""
    command = [sys.executable, "-m", "tests.support.interrupts", what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr


# --- JSON ---------------------------------------------------------------------------------------------

BROKEN = (
    "[1,2,]", "[1,,2]", "[1,2", "[,1]", "[,]", "[01,2]", "[+1,2]", "[1 2,3]", "[1.,2]", '{"a":1,}', '{"a"}',
    "[NaN]", "[1,Infinity]", '["a\n"]', '["\\x"]', '["\\u12"]', '["', "nul", "", "[1]]", "[-]", "[-,1]",
)  # fmt: skip


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_body_is_refused(text: str) -> None:
    for room in (0, LARGE):
        with pytest.raises(ValueError):
            parsed((" " * room + text).encode())
    with pytest.raises(ValueError):
        parsed(f'{{"a": "{"x" * LARGE}", "b": {text}}}'.encode())


def test_brackets_inside_strings_are_no_lists() -> None:
    text = '[{"\\' * (MOST_PARTS // 2) + "\n"
    assert parsed(json.dumps({text: [text, "", {}]}).encode()) == {text: [text, "", {}]}


def test_a_body_of_many_lists_is_refused() -> None:
    for item in ("[]", "{}", '["[", {}]'):
        body = '["]",' + f"{item}," * MOST_PARTS + "[]]"
        with pytest.raises(ValueError, match="lists and objects"):
            parsed(body.encode())
    with pytest.raises(RecursionError):
        parsed(("[" * 200_000 + "]" * 200_000).encode())


VALUES: tuple[Any, ...] = (
    {"a": [1, 2.5, None, True, {"b": 'ü"\n' * 40_000}] * 50, "c": "x" * 200_000, "e": [], "f": {}, "": ()},
    [[1] * 5000] * 3,
    list(range(10_000)),
    [{"i": i, "t": "x" * (i % 50)} for i in range(5000)],
    "é" * 300_000,
    5,
    {},
)


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_large_answer_is_written_as_json_has_it(value: Any) -> None:
    pieces = whole_pieces(value)
    assert b"".join(pieces).decode() == ENCODER.encode(value)
    assert max(map(len, pieces)) < 20 * LARGE


# --- in the server ------------------------------------------------------------------------------------


@pytest.fixture
def engine() -> Any:
    with InferenceEngine.from_gguf(demo.DRAFT, num_threads=1) as engine:
        yield engine


def test_a_text_that_cannot_fit_is_not_tokenized(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "ab " * 300_000
    with serving(engine) as client:
        bodies = {
            "/v1/completions": {"prompt": text},
            "/completion": {"prompt": ["x", text]},
            "/v1/embeddings": {"input": text},
            "/api/generate": {"prompt": text, "raw": True},
            "/infill": {"input_prefix": text, "input_suffix": text},
        }
        encode = type(engine.tokenizer).encode

        def short(self: Any, told: str, *how: Any, **named: Any) -> Any:
            assert len(told) < 100_000, "it is tokenized"
            return encode(self, told, *how, **named)

        monkeypatch.setattr(type(engine.tokenizer), "encode", short)
        for path, body in bodies.items():
            client.ask(path, body, status=400)
        found = client.ask("/v1/completions", bodies["/v1/completions"])
        assert found.error["code"] == "context_length_exceeded"
        assert 512 < found.error["n_prompt_tokens"] < len(engine.tokenizer.vocab.tokens) * 1000
        for path, body in (
            ("/tokenize", {"content": "a" * 1_100_000}),
            ("/detokenize", {"tokens": [5] * 1_100_000}),
        ):
            assert client.ask(path, body).status == 400


@pytest.mark.slow
def test_nobody_waits_for_anothers_large_work(engine: InferenceEngine) -> None:
    properties = {f"p{i}": {"enum": [f"v{j}{i}" for j in range(8)]} for i in range(1500)}
    with serving(engine) as client:
        schemas = [{"type": "object", "properties": {**properties, name: {}}} for name in "abcd"]
        bodies = [{"prompt": "a", "max_tokens": 1, "json_schema": schema} for schema in schemas]
        began = time.monotonic()

        def run(body: Any) -> float:
            assert client.ask("/v1/completions", body).status == 200
            return time.monotonic() - began

        with ThreadPoolExecutor(4) as pool:
            took = pool.map(run, bodies)
            time.sleep(0.1)
            small = [run({"prompt": "a", "max_tokens": 1, **more}) for more in ({"regex": "[a-z]+"}, {})]
        assert max(small) < max(took) / 2
