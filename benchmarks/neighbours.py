"""What clients do to each other: a client of a server while eight others do what costs the server most.

A turn lasts some seconds. In each, a client asks for `/health` again and again, another one for short
streams. In the first turn of a round they are alone; in the others eight clients in a process of their own
compile grammars, send prompts that cannot fit, send bodies of 15 MB, or ask for answers of 45 MB.

Of each turn the table has the worst answer of `/health`, the worst wait for the first token of a stream, and
the time between two tokens. Waits are also given in steps: a step is the time between two tokens of the turn
in which nobody else asks.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import runs
from benchmarks.server_peer import post, served
from oxillama.apps.bench.report import Metric, Samples, align, rows

CLIENTS = 8
ALONE = "nobody"
PROBE_SECONDS = 0.02
"""Between two looks at `/health`."""

BEHIND = 10
"""How far the eight clients are behind the server in priority: elsewhere they run on other machines."""

NEW = 24
"""Tokens of a stream."""

BODY = 15 << 20
ANSWER_TEXT = "\u2603" * 600_000
"""A text of which `/tokenize` answers with about 45 MB: a snowman is three tokens of bytes."""

METRICS = (
    Metric("health, worst", "ms", False),
    Metric("health, median", "ms", False),
    Metric("first token, worst", "ms", False),
    Metric("between tokens, mean", "ms", False),
    Metric("requests of the others", "/s", True),
)
MOST_HEALTH, MOST_STEPS, MOST_GAP = 50.0, 3.0, 1.5
"""Milliseconds, steps and times that others may cost a client."""

Request = tuple[str, bytes]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    runs.add_option(parser, "--threads", 1)
    runs.add_option(parser, "--seconds", 4.0, "of a turn", type=float)
    parser.add_argument("--only", choices=ATTACKS, nargs="+", default=list(ATTACKS), help="(default: all)")
    runs.add_arguments(parser, rounds=5)


def run(args: argparse.Namespace) -> int:
    """`neighbours`: prints what others cost a client; 1 if they cost more than they may."""
    whole = runs.Run(args, "threads", "seconds")
    with served(args.model, args.threads) as server:
        subjects = {name: partial(turn, server.port, name, args.seconds) for name in (ALONE, *args.only)}
        samples = whole.alternate(subjects)
    lines, is_good = verdicts(samples)
    whole.finish(rows(whole.model, samples, METRICS))
    print()
    print(align(lines))
    return int(not is_good)


def verdicts(samples: Samples) -> tuple[list[list[str]], bool]:
    """A line for each kind of others, with what they cost: medians over the rounds; whether all is allowed.

    The line of nobody has the noise: the worst round beside the median one.
    """
    head = ["others", "health, ms more", "first token, steps more", "between tokens, times"]
    lines, is_good = [head], True
    for name, by_metric in samples.items():
        values = costs(by_metric, samples[ALONE])
        middle = [max(each) if name == ALONE else statistics.median(each) for each in values]
        limits = (MOST_HEALTH, MOST_STEPS, MOST_GAP)
        is_good = is_good and (name == ALONE or all(x <= most for x, most in zip(middle, limits)))
        lines.append([f"{name} (noise)" if name == ALONE else name, *(f"{x:.2f}" for x in middle)])
    return lines, is_good


def costs(by_metric: dict[str, list[float]], alone: dict[str, list[float]]) -> list[list[float]]:
    """For each round the costs in milliseconds, steps and times, beside the median of those alone."""
    health, first, step = (
        statistics.median(alone[metric.name]) for metric in (METRICS[0], METRICS[2], METRICS[3])
    )
    return [
        [each - health for each in by_metric[METRICS[0].name]],
        [(each - first) / step for each in by_metric[METRICS[2].name]],
        [each / step for each in by_metric[METRICS[3].name]],
    ]


def turn(port: int, name: str, seconds: float) -> dict[str, float]:
    """Samples of a turn."""
    with attacked(port, name) as count:
        time.sleep(0.3 if name != ALONE else 0.0)
        before, end = count(), time.monotonic() + seconds
        health: list[float] = []
        watching = threading.Thread(target=watch, args=(port, end, health))
        watching.start()
        firsts, gaps = streams(port, end)
        watching.join()
        n = count() - before
    values = (max(health), statistics.median(health), max(firsts), statistics.mean(gaps), n / seconds)
    scales = (1000, 1000, 1000, 1000, 1)
    return {metric.name: value * scale for metric, value, scale in zip(METRICS, values, scales)}


def watch(port: int, end: float, found: list[float]) -> None:
    """Asks for `/health` until a time; adds the seconds of each answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    while time.monotonic() < end:
        began = time.perf_counter()
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        found.append(time.perf_counter() - began)
        time.sleep(PROBE_SECONDS)
    connection.close()


def streams(port: int, end: float) -> tuple[list[float], list[float]]:
    """Reads short streams until a time: seconds to each first token, and between any two tokens."""
    firsts, gaps = [], []
    body = {"prompt": [5, 6, 7], "max_tokens": NEW, "stream": True, "temperature": 0, "ignore_eos": True}
    while not firsts or time.monotonic() < end:
        last = time.perf_counter()
        began, n = last, 0
        with closing(post(port, "/v1/completions", body)) as connection:
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            for line in answer:
                if line.startswith(b"data: {"):
                    now = time.perf_counter()
                    n += 1
                    if n == 1:
                        firsts.append(now - began)
                        began = now
                    last = now
        gaps.append((last - began) / max(1, n - 1))
    return firsts, gaps


# --- the others ---------------------------------------------------------------------------------------


def grammars(client: int, n: int) -> Request:
    """A schema that takes seconds to compile, and that nobody has sent before."""
    properties = {f"p{i}": {"enum": [f"v{j}{i}" for j in range(8)]} for i in range(1500)}
    properties[f"c{client}_{n}"] = {"pattern": f"^([a-z]{{1,40}}{client}{n}[0-9]*)+$"}
    body = {"prompt": "a", "max_tokens": 1, "json_schema": {"type": "object", "properties": properties}}
    return "/v1/completions", json.dumps(body).encode()


def prompts(client: int, n: int) -> Request:
    """Texts and token ids that cannot fit."""
    prompt = ["ab " * 340_000, [7] * 1_000_000, "\u2603" * 30_000, ["x" * 200_000] * 5][n % 4]
    return "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 1}).encode()


def bodies(client: int, n: int) -> Request:
    """Bodies of 15 MB: a text, numbers, objects, many fields, text with escapes."""
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: {"prompt": "x" * BODY},
        lambda: {"prompt": "a", "max_tokens": 1, "metadata": [1.5] * (BODY // 5)},
        lambda: {"messages": [{"role": "user", "content": "x" * 40}] * (BODY // 78)},
        lambda: {"prompt": "a", "logit_bias": {f"{i}": 1 for i in range(BODY // 12)}},
        lambda: {"prompt": "\n\u00e9" * (BODY // 8)},
    )
    path = "/v1/chat/completions" if n % 5 == 2 else "/v1/completions"
    return path, json.dumps(kinds[n % 5]()).encode()


def answers(client: int, n: int) -> Request:
    """Requests whose answers have 45 MB."""
    body = {"content": ANSWER_TEXT + "a" * client, "with_pieces": True}
    return "/tokenize", json.dumps(body).encode()


ATTACKS: dict[str, Callable[[int, int], Request]] = {
    "grammars": grammars,
    "prompts": prompts,
    "bodies": bodies,
    "answers": answers,
}


@contextmanager
def attacked(port: int, name: str) -> Iterator[Callable[[], int]]:
    """Has clients in a process of their own do what a name says; the number of their requests so far."""
    if name == ALONE:
        yield lambda: 0
        return
    context = multiprocessing.get_context("spawn")
    count, ready = context.Value("i", 0), context.Event()
    process = context.Process(target=attack, args=(port, name, count, ready, os.getpid()), daemon=True)
    process.start()
    try:
        ready.wait()
        yield lambda: int(count.value)
    finally:
        process.kill()
        process.join()
        settle(port)


def attack(port: int, name: str, count: Any, ready: Any, parent: int) -> None:
    """Sends requests without end, from as many threads as there are clients."""
    if hasattr(os, "nice"):
        os.nice(BEHIND)
    make = ATTACKS[name]
    shared = [make(0, n) for n in range(5)] if name == "bodies" else []
    n_kinds = 1 if name == "answers" else 12
    made = [shared or [make(client, n) for n in range(n_kinds)] for client in range(CLIENTS)]

    def ask(client: int) -> None:
        n = client
        while os.getppid() == parent:
            path, body = made[client][n % len(made[client])]
            if name == "grammars":  # nobody has sent it
                body = body.replace(b"[0-9]*", b"[0-9]{0,%d}" % (n + 50 + os.getpid() % 1000))
            connection = http.client.HTTPConnection("127.0.0.1", port)
            try:
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                while answer.read(1 << 20):
                    pass
            except OSError:
                pass  # a body that was refused in the middle
            finally:
                connection.close()
            with count.get_lock():
                count.value += 1
            n += 1

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    ready.set()
    for thread in threads:
        thread.join()


def settle(port: int) -> None:
    """Waits until the server does no work for those who have gone: until three texts in a row are quick."""
    deadline, n_quick, least = time.monotonic() + 60, 0, float("inf")
    while n_quick < 3 and time.monotonic() < deadline:
        began = time.perf_counter()
        streams(port, 0)
        seconds = time.perf_counter() - began
        least = min(least, seconds)
        n_quick = n_quick + 1 if seconds < 1.3 * least + 0.005 else 0
        time.sleep(0.1)
