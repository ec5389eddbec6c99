"""A forked child generates, embeds, quantizes and attends like its parent; none waits for ever."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from oxillama import EngineClosed, SamplerConfig, demo, flash_attention_forward, quantize_model
from oxillama.compat.engine import InferenceEngine

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
GREEDY = SamplerConfig.greedy()
PROMPT = "Once upon a time"
ENGINE: list[InferenceEngine] = []


@pytest.fixture(scope="module", autouse=True)
def engine() -> InferenceEngine:
    """An engine that has run with two OpenMP threads, which no child has."""
    ENGINE[:] = [InferenceEngine.from_gguf(demo.STORY, num_threads=2)]
    ENGINE[0].generate("word " * 60, max_tokens=2)
    attend()
    return ENGINE[0]


def attend() -> float:
    q = np.ones((64, 8, 64), np.float32)
    return float(
        flash_attention_forward(q, q[:, :2], q[:, :2], num_heads=8, head_dim=64, num_threads=2).sum()
    )


def generate() -> str:
    return ENGINE[0].generate(PROMPT, sampler=GREEDY, max_tokens=12)


def of_a_new_engine() -> str:
    return InferenceEngine.from_gguf(demo.STORY, num_threads=2).generate(
        PROMPT, sampler=GREEDY, max_tokens=12
    )


def quantized(folder: Path) -> int:
    target = folder / f"{os.getpid()}.gguf"
    quantize_model(demo.STORY, target, "Q4_0", allow_requantize=True, num_threads=2)
    return target.stat().st_size


def fingerprinted() -> bytes:
    return ENGINE[0].kv_snapshot().fingerprint.digest


def child(work: Callable[..., object], *args: object) -> object:
    """What ``work`` returns in a forked child, within 60 seconds."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        return pool.submit(work, *args).result(60)


def test_a_child_generates() -> None:
    assert child(generate) == generate()
    assert child(of_a_new_engine) == generate()


def test_a_child_attends_and_quantizes(tmp_path: Path) -> None:
    assert child(attend) == attend()
    assert child(quantized, tmp_path) == quantized(tmp_path)


def test_a_child_hashes() -> None:
    assert child(fingerprinted) == fingerprinted()


def test_a_child_of_a_busy_parent() -> None:
    """The fork waits for the step that runs; the parent's stream goes on, and the child can start its own."""
    expected = ENGINE[0].generate(PROMPT, sampler=GREEDY, ignore_eos=True, max_tokens=300)
    stream = ENGINE[0].stream(PROMPT, sampler=GREEDY, ignore_eos=True, max_tokens=300, window=None)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(stream.result().text))
    reader.start()
    for _ in range(3):
        assert child(generate) == generate()
    reader.join(60)
    assert found == [expected]
    ENGINE[0].model.check_integrity()


def test_a_running_request_stays_with_the_parent() -> None:
    stream = ENGINE[0].stream(PROMPT, sampler=GREEDY, max_tokens=100, window=1)
    next(stream)
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            try:
                list(stream)
                os.write(write, b"text")
            except EngineClosed:
                os.write(write, b"refused")
        finally:
            os._exit(0)
    assert os.read(read, 10) == b"refused"
    os.wait()
    assert len(stream.result().tokens) > 20
    ENGINE[0].model.check_integrity()


@pytest.mark.skipif(sys.platform == "darwin", reason="fork is not safe with the system's libraries there")
def test_multiprocessing_with_fork() -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.apply(generate) == generate()


def test_multiprocessing_with_forkserver() -> None:
    """The server has loaded the kernels, and so OpenMP's library, before it forks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["oxillama._kernels"])
    with context.Pool(2) as pool:
        assert pool.apply_async(of_a_new_engine).get(60) == generate()
