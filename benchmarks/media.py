"""Chats with pictures over HTTP: the first token, a second question, and clients with a picture each.

A peer is a llama-server with the same files. Both servers get the same bodies in turn, and pictures that they
have not seen before.
"""

from __future__ import annotations

import argparse
import base64
import io
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import runs
from benchmarks.over_http import LLAMA, OURS
from benchmarks.server_peer import llama_server, post, served
from oxillama.apps.bench.report import Metric
from oxillama.errors import ConfigError

PATH = "/v1/chat/completions"
FIRST = Metric("first token behind a picture", "ms", False)
AGAIN = Metric("second question about it", "ms", False)
QUESTIONS = ("what is this", "who is there")
GRAIN = 16  # pixels along a side of a patch of one colour


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", type=Path, required=True, help="GGUF file of the text model")
    command.add_argument("--mmproj", type=Path, required=True, help="its projector file")
    command.add_argument("--peer", type=Path, metavar="LLAMA-SERVER", help="to compare with")
    runs.add_threads(command)
    command.add_argument("--picture", type=size, default=(1024, 768), metavar="WxH", help="default: 1024x768")
    runs.add_option(command, "--clients", 8, "at once, with a picture each; 0 leaves them out", type=int)
    runs.add_option(command, "--new", 32, "tokens of each")
    runs.add_option(command, "--context", 2048)
    what = "of our server; with 0 its threads decode pictures, at the priority of the rest (default: its own)"
    command.add_argument("--job-processes", type=int, metavar="N", help=what)
    runs.add_arguments(command, rounds=4)


def size(text: str) -> tuple[int, int]:
    """Parses a width and a height."""
    width, is_there, height = text.partition("x")
    if not is_there:
        raise argparse.ArgumentTypeError(f"expected WIDTHxHEIGHT, got {text!r}")
    return runs.positive(width), runs.positive(height)


def run(args: argparse.Namespace) -> int:
    """`media`: the figures of our server, and of the peer."""
    runs.check_models([args.model, args.mmproj])
    whole = runs.Run(args, "threads", "picture", "clients", "new", "context", "job_processes")
    metrics = [FIRST, AGAIN, *([together(args.clients)] if args.clients else [])]
    with ExitStack() as stack:
        projector = "--mmproj", str(args.mmproj)
        jobs = () if args.job_processes is None else ("--job-processes", str(args.job_processes))
        ours = served(args.model, args.threads, args.context, *projector, *jobs)
        ports = {OURS: stack.enter_context(ours).port}
        if args.peer is not None:
            slots = max(args.clients, 1)
            theirs = llama_server(args.peer, args.model, args.threads, slots, args.context, *projector)
            ports[LLAMA] = stack.enter_context(theirs).port
        turns = {name: partial(turn, port, itertools.count(), args) for name, port in ports.items()}
        found = whole.rows(turns, metrics, f"{whole.model}, {args.mmproj.stem}")
    return whole.finish(found)


def together(clients: int) -> Metric:
    """The tokens of all clients in a second."""
    return Metric(f"{clients} clients, a picture each", "tok/s", True)


def turn(port: int, seeds: Iterator[int], args: argparse.Namespace) -> dict[str, float]:
    """One turn of a server, by the names of the metrics."""
    seen = picture(*args.picture, next(seeds))
    found = {}
    for metric, question in zip((FIRST, AGAIN), QUESTIONS, strict=True):
        found[metric.name] = 1e3 * seconds(port, [body_of(seen, question, 1)])
    if args.clients:
        pictures = [picture(*args.picture, next(seeds)) for _ in range(args.clients)]
        spent = seconds(port, [body_of(each, QUESTIONS[0], args.new) for each in pictures])
        found[together(args.clients).name] = args.clients * args.new / spent
    return found


def picture(width: int, height: int, seed: int) -> bytes:
    """A PNG of random colours, the same for the same seed."""
    from PIL import Image

    grid = (-(-height // GRAIN), -(-width // GRAIN), 3)
    coarse = np.random.default_rng(seed).integers(0, 256, grid, dtype=np.uint8)
    held = io.BytesIO()
    Image.fromarray(coarse.repeat(GRAIN, 0).repeat(GRAIN, 1)[:height, :width]).save(held, "PNG")
    return held.getvalue()


def body_of(seen: bytes, question: str, new: int) -> str:
    """A chat of a picture and a question behind it, with an answer of so many tokens."""
    url = f"data:image/png;base64,{base64.b64encode(seen).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    messages = [{"role": "user", "content": content}]
    return json.dumps({"messages": messages, "max_tokens": new, "temperature": 0, "ignore_eos": True})


def seconds(port: int, bodies: Sequence[str]) -> float:
    """Until all have their answers. Raises ConfigError for one without as many tokens as were wanted."""
    start = time.perf_counter()
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(partial(ask, port), bodies))
    spent = time.perf_counter() - start
    for body, answer in zip(bodies, answers, strict=True):
        wanted = json.loads(body)["max_tokens"]
        found = answer.get("usage", {}).get("completion_tokens")
        if found != wanted:
            raise ConfigError(f"{PATH}: expected {wanted} tokens, got {found}: {answer!r:.300}")
    return spent


def ask(port: int, body: str) -> Any:
    """The answer to a chat."""
    with closing(post(port, PATH, body)) as connection:
        return json.loads(connection.getresponse().read())
