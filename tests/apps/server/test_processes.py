"""Processes for jobs: what comes back, what fails, and that none outlives its server."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from oxillama import GrammarError, InferenceEngine, demo
from oxillama.apps.server import process_main, processes as module
from oxillama.apps.server.bodies import HUGE, ChatBody, CompletionBody, checked, checked_body
from oxillama.apps.server.callers import CONTEXT, RequestContext
from oxillama.apps.server.errors import ApiError
from oxillama.apps.server.pieces import LARGE, PARTS, cut, joined
from oxillama.apps.server.processes import JobTooLate, NoProcess, Processes
from oxillama.apps.server.prompts import LONG, bounded
from oxillama.apps.server.workers import Pools
from oxillama.text.chat.bridge import TokenizerBridge
from tests.support.server import Client, serving, working
from tests.support.spread import leading
from tests.support.waiting import until

# --- jobs, which processes find by their names --------------------------------------------------------


def fail(kind: str) -> None:
    if kind == "api":
        raise ApiError(418, "no", param="p", code="c", retry_seconds=7, more=5)
    if kind == "grammar":
        raise GrammarError("#/a: no")
    if kind == "system":
        raise OSError(errno.EIO, "no")
    raise UnicodeDecodeError("utf-8", b"x", 0, 1, "no")


def begin_and_sleep(path: str) -> None:
    Path(path).touch()
    time.sleep(600)


def unpicklable() -> Any:
    return threading.Lock()


def noisy() -> int:
    print("x" * 100_000)
    os.write(1, b"y" * 100)
    return 5


def priority() -> int:
    return os.nice(0)


def grow(n: int) -> int:
    global kept
    kept = b"x" * n
    return os.getpid()


kept = b""


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes(2)
    yield made
    made.close()
    assert made.pids == []


def is_alive(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def n_files() -> int:
    return len(os.listdir("/proc/self/fd"))


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")

# --- pieces -------------------------------------------------------------------------------------------

VALUES: tuple[Any, ...] = (
    None,
    [],
    [[]] * (3 * PARTS),
    list(range(100_000)),
    {str(i): [i, {"a": "x" * (i % 90)}] for i in range(9000)},
    {"a": {"b": [[["x" * LARGE] * 3] * 3, {"c": list(range(5000))}]}},
    b"x" * (5 * LARGE),
    "\u2603\ud800" * LARGE,
    [b"x" * 100, bytearray(3), (1, 2.5, True), frozenset((1,))] * 1000,
    [{"k": "v" * LARGE}],
)


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_value_in_pieces_is_the_same_value(value: Any) -> None:
    pieces = cut(value)
    assert joined(pieces) == value
    largest = max(len(piece) for piece in pieces)
    assert largest < 8 * LARGE


def test_random_values_in_pieces_are_the_same() -> None:
    rng = random.Random(5)

    def value(depth: int) -> Any:
        if depth == 0 or rng.random() < 0.3:
            return rng.choice([1, 2.5, None, "x" * rng.randrange(99), b"y" * rng.choice([9, 2 * LARGE])])
        items = [value(depth - 1) for _ in range(rng.randrange(6))] * (
            500 if depth == 1 and rng.random() < 0.1 else 1
        )
        return items if rng.random() < 0.5 else {f"{i}": item for i, item in enumerate(items)}

    for _ in range(20):
        made = value(4)
        assert joined(cut(made)) == made


# --- what comes of jobs -------------------------------------------------------------------------------


def test_a_job_has_the_result_that_it_has_here(processes: Processes) -> None:
    biases = dict.fromkeys(map(str, range(9000)), 1.5)
    data = json.dumps({"prompt": "a\u2603" * HUGE, "n": 2, "logit_bias": biases}).encode()
    body = processes.run(checked_body, CompletionBody, json.loads(data))
    assert body == checked_body(CompletionBody, json.loads(data))
    assert processes.run(noisy) == 5
    assert processes.run(len, "abc") == 3
    assert processes.run(priority) == os.nice(0) + 5
    assert len(processes.pids) == 1  # the idle one is taken


@pytest.mark.parametrize("kind", leading(["api", "grammar", "system", "unicode"], 2))
def test_a_job_has_the_error_that_it_has_here(processes: Processes, kind: str) -> None:
    with pytest.raises(Exception) as here:
        fail(kind)
    with pytest.raises(Exception) as there:
        processes.run(fail, kind)
    assert type(here.value) is type(there.value)
    assert str(here.value) == str(there.value)
    assert vars(here.value) == vars(there.value)
    assert processes.run(len, "abc") == 3 and len(processes.pids) == 1


def test_a_result_that_cannot_be_sent_is_an_error(processes: Processes) -> None:
    with pytest.raises(TypeError, match="pickle"):
        processes.run(unpicklable)
    assert processes.run(len, "abc") == 3


def test_a_body_is_read_as_a_thread_reads_it(processes: Processes) -> None:
    many = [{"role": "user", "content": "hi"}] * 3000
    bodies = ({"messages": many}, {"messages": []}, {"prompt": 5}, [], {"prompt": "a", "n": "x"})
    for body in bodies:
        for kind in (ChatBody, CompletionBody):
            for data in (json.dumps(body).encode(), json.dumps(body).encode()[:-1], b"[" * 3_000):
                answers = []
                for run in (processes.run, lambda job, *how: job(*how)):
                    try:
                        answers.append(run(checked, partial(checked_body, kind), data + b" " * LARGE))
                    except ApiError as error:
                        answers.append(error.body())
                assert answers[0] == answers[1]


def test_tokenizers_are_sent_once_and_forgotten(processes: Processes) -> None:
    here = TokenizerBridge.from_gguf(demo.STORY)
    for text in ("", "Once upon a time", "<|im_start|>x\u2603\n" * 500):
        for encode in (TokenizerBridge.encode, TokenizerBridge.encode_rendered):
            assert processes.run(encode, here, text) == encode(here, text)
    (process,) = processes._idle
    assert len(process._known) == 1
    del here
    gc.collect()
    assert processes.run(len, "abc") == 3
    assert not process._known


# --- processes that end -------------------------------------------------------------------------------


def test_a_job_whose_process_is_killed_is_an_error_and_the_next_one_runs(
    processes: Processes, tmp_path: Path
) -> None:
    def kill() -> None:
        until((tmp_path / "begun").exists)
        os.kill(processes.pids[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(ApiError) as found:
        processes.run(begin_and_sleep, str(tmp_path / "begun"))
    thread.join()
    assert (found.value.status, found.value.code) == (503, "process_ended")
    assert processes.run(len, "abc") == 3
    (pid,) = processes.pids
    os.kill(pid, signal.SIGKILL)  # while it has nothing to do
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert processes.run(len, "abc") == 3


def test_a_job_that_hangs_is_ended_and_the_next_one_runs(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.run(len, "abc")
    with pytest.raises(JobTooLate):
        processes.run(time.sleep, 600, seconds=0.2)
    monkeypatch.setattr(module, "JOB_SECONDS", 0.5)
    with pytest.raises(ApiError, match="the process that worked for the request has ended"):
        processes.run(time.sleep, 600)
    assert processes.run(len, "abc", seconds=60) == 3


@pytest.mark.slow
def test_a_process_that_has_grown_is_replaced(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    first = processes.run(os.getpid)
    assert processes.run(os.getpid) == first
    assert processes.run(grow, 600 << 20) == first
    assert processes.run(os.getpid) != first


def test_there_are_no_more_processes_than_may_be() -> None:
    processes = Processes(2)
    threads = [threading.Thread(target=processes.run, args=(time.sleep, 0.3)) for _ in range(6)]
    for thread in threads:
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads):
        seen = max(seen, len(processes.pids))
        time.sleep(0.005)
    assert seen == 2
    processes.close()
    with pytest.raises(NoProcess):
        processes.run(len, "abc")
    with pytest.raises(NoProcess):
        Processes(0).run(len, "abc")


@linux
def test_processes_and_files_do_not_leak() -> None:
    processes = Processes(1)
    processes.run(len, "abc")
    before = n_files()
    for i in range(4):
        if i % 2:
            with pytest.raises(JobTooLate):
                processes.run(time.sleep, 60, seconds=0.05)
        else:
            with pytest.raises(ApiError):
                processes.run(os._exit, 1)
        processes.run(len, "abc")
        assert n_files() == before
    (pid,) = processes.pids
    processes.close()
    assert n_files() == before - 2 and not is_alive(pid)


@linux
def test_a_job_that_waits_when_the_server_ends_gets_an_error() -> None:
    processes, found = Processes(1), []

    def run() -> None:
        try:
            processes.run(time.sleep, 60)
        except ApiError as error:
            found.append(error.code)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: processes.pids != [])
    (pid,) = processes.pids
    processes.close()
    thread.join(60)
    assert found == ["process_ended"] and not is_alive(pid)


PARENT = """
import sys, time, threading
from oxillama.apps.server.processes import Processes
processes = Processes(2)
processes.run(len, "abc")
threading.Thread(target=processes.run, args=(time.sleep, 60), daemon=True).start()
threading.Thread(target=processes.run, args=(len, "abc"), daemon=True).start()
while len(processes.pids) < 2: time.sleep(0.01)
print(*processes.pids, flush=True)
if sys.argv[1] == "waits": time.sleep(60)
"""


@linux
@pytest.mark.parametrize("how", ["killed", "ends"])
def test_processes_end_with_their_server(how: str) -> None:
    words = [sys.executable, "-c", PARENT, "waits" if how == "killed" else "ends"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        if how == "killed":
            parent.kill()
    until(lambda: not any(map(is_alive, pids)))


# --- in a server --------------------------------------------------------------------------------------

PROPERTIES = {f"p{i}": {"enum": [f"v{j}{i}" for j in range(8)]} for i in range(10_000)}
BIG = {"type": "object", "properties": {f"p{i}": PROPERTIES[f"p{i}"] for i in range(1500)}}


@pytest.fixture
def engine() -> Iterator[InferenceEngine]:
    with InferenceEngine.from_gguf(demo.DRAFT, num_threads=1) as engine:
        yield engine


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What runs in processes, in order."""
    seen: list[Any] = []
    run = Processes.run

    def noting(self: Processes, job: Any, *arguments: Any, **how: Any) -> Any:
        found = run(self, job, *arguments, **how)
        seen.append(job.__name__)
        return found

    monkeypatch.setattr(Processes, "run", noting)
    return seen


def large_work(client: Client) -> list[Any]:
    """What a server answers to work of each kind, without what differs each time."""
    context = {"prompt": "Once", "max_tokens": 3, "temperature": 0}
    answers = (
        client.ask("/v1/completions", {**context, "json_schema": BIG}),
        client.ask("/v1/completions", {**context, "metadata": [1.5] * HUGE}),
        client.ask("/v1/completions", {"prompt": "ab " * HUGE}),
        client.ask("/v1/completions", {**context, "json_schema": {**BIG, "minProperties": "x"}}),
        client.ask("/tokenize", {"content": "Once upon a time. " * (LONG // 16)}),
        client.ask("/tokenize", {"content": "a\u2603" * LONG, "with_pieces": True}),
    )
    return [
        (each.status, each.json.get("error") or each.json.get("choices") or each.json["tokens"])
        for each in answers
    ]


STATUSES = [200, 200, 400, 400, 200, 200]


@pytest.mark.slow
def test_large_work_is_done_in_processes_with_the_same_answers(
    engine: InferenceEngine, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oxillama.apps.server.running.AT_ONCE", 0.001)
    with serving(engine) as client:
        there = large_work(client)
    assert [found[0] for found in there] == STATUSES
    tokens = engine.tokenizer.encode("a\u2603" * LONG, add_special=False)
    assert [each["id"] for each in there[5][1]] == tokens and there[5][1][1]["piece"] == [0xE2]
    assert {"compiled", "checked", "written_tokens"} == set(ran)
    ran.clear()
    with serving(demo.DRAFT, job_processes=0) as client:
        assert large_work(client) == there
    assert ran == []


def test_a_long_text_is_tokenized_in_a_process(engine: InferenceEngine, ran: list[Any]) -> None:
    text = ("Once upon a time. " * LONG)[:LONG]
    with working(1):
        for each, jobs in ((text, ["packed_tokens"]), (text[1:], [])):
            ran.clear()
            tokens = bounded(engine, fits=False).encode(each, add_special=False)
            assert tokens == engine.tokenizer.encode(each, add_special=False)
            assert ran == jobs


def test_small_work_needs_no_process(engine: InferenceEngine, ran: list[Any]) -> None:
    with serving(engine) as client:
        context = {"prompt": "Once", "max_tokens": 2}
        schema = {"json_schema": {"type": "object"}}
        for more in ({}, {"regex": "[a-z]+"}, schema, {"x": "y" * (HUGE - 1000)}):
            assert client.ask("/v1/completions", {**context, **more}).status in (200, 400)
        assert client.ask("/tokenize", {"content": "a" * (LONG - 1)}).status == 200
    assert ran == []


@pytest.mark.parametrize(
    "error", leading([OSError(errno.EMFILE, "x"), OSError(errno.ENOMEM, "x"), MemoryError()], 1)
)
def test_threads_do_the_work_where_no_process_can_be_started(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def refuse(*words: Any, **how: Any) -> Any:
        raise error

    monkeypatch.setattr("oxillama.apps.server.running.AT_ONCE", 0.001)
    monkeypatch.setattr(module.subprocess, "Popen", refuse)
    with serving(engine) as client:
        assert [found[0] for found in large_work(client)] == STATUSES


def test_a_grammar_that_hangs_in_a_process_is_an_error_of_its_request(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch, ran: list[Any]
) -> None:
    body = {"prompt": "a", "max_tokens": 1, "json_schema": {"type": "object", "properties": PROPERTIES}}
    with serving(engine, compile_seconds=0.05) as client:
        found = client.ask("/v1/completions", body)
        assert found.refusal("code") == (400, "invalid_grammar")
        assert found.error["message"].startswith("grammar: is not compiled after 0.05 s")
        plain = {"prompt": "a", "max_tokens": 1, "regex": "[a-z]+"}
        assert client.ask("/v1/completions", plain).status == 200
    assert "compiled" not in ran


def test_pools_end_their_processes() -> None:
    pools = Pools(1)

    async def run() -> int:
        CONTEXT.set(RequestContext(pools=pools))
        return await pools.parse.run(pools.processes.run, os.getpid, in_process=True)

    pid = asyncio.run(run())
    assert pools.processes.pids == [pid]
    pools.close()
    assert pools.processes.pids == [] and not is_alive(pid)


def test_the_memory_of_a_process_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(*args: object) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", no_file)
    assert process_main.memory() == 0


@pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="the system has no classes of scheduling")
def test_a_process_of_a_real_time_server_is_in_the_usual_class(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(os, "sched_setscheduler", lambda pid, policy, _: done.append(policy))
    monkeypatch.setattr(os, "nice", done.append)
    for policy in (os.SCHED_OTHER, os.SCHED_RR, os.SCHED_FIFO):
        monkeypatch.setattr(os, "sched_getscheduler", lambda pid, policy=policy: policy)
        process_main.give_way()
    assert done == [5, os.SCHED_OTHER, 5, os.SCHED_OTHER, 5]
