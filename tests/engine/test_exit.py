"""The interpreter ends in any state, and Ctrl-C comes while a model is loaded: no hang, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from unittest.mock import Mock

import pytest

from oxillama import demo
from oxillama.base.locks import waited
from tests.support.spread import leading

BEGIN = """
import asyncio, atexit, os, sys, threading, time
from oxillama import AsyncEngine, EngineClosed, demo
from oxillama.compat.engine import InferenceEngine
engine = InferenceEngine.from_gguf(demo.DRAFT, num_threads=2)
long = dict(max_tokens=480, ignore_eos=True)
def stream(**more):
    return engine.stream("Once upon a time", **long, **more)
"""

STATES = {
    "nothing asked for yet": "",
    "texts, sessions and prefixes of several engines": """
unread = stream(window=1)
begun = stream()
next(begun)
runs = stream(window=None)
next(runs)
cycle = [stream()]
cycle.append(cycle)
del cycle
many = engine.stream_batch(["Once"] * 9, **long)
next(many[3])
session = engine.session()
session.prefill("Once")
text = session.stream(**long)
next(text)
pin = engine.prime_with_prefix("Once upon a time")
closed = InferenceEngine.from_gguf(demo.DRAFT)
closed.generate("Once", max_tokens=2)
closed.close()
""",
    "readers in daemon threads": """
def read(**more):
    try:
        for _ in range(1000):
            list(stream(**more))
    except EngineClosed:
        pass
for window in (1, 16, None):
    threading.Thread(target=read, kwargs=dict(window=window), daemon=True).start()
time.sleep(0.05)
""",
    "tasks and generators that were left": """
async def main():
    task = asyncio.ensure_future(AsyncEngine(engine).generate("Once", **long))
    async for piece in stream():
        break
asyncio.run(main())
loop = asyncio.new_event_loop()
async def begin():
    made = stream()
    await made.__anext__()
    return made
made = loop.run_until_complete(begin())
loop.close()
""",
    "an exit handler that asks for more, and a callback that exits": """
def ask():
    try:
        engine.generate("Once", max_tokens=2)
    except EngineClosed:
        pass
atexit.register(ask)
engine.generate("Once", callback=lambda text: sys.exit(0), **long)
""",
    "a forked child": """
made = stream()
next(made)
if os.fork():
    assert os.wait()[1] == 0
else:
    engine.generate("Once", max_tokens=2)
""",
    "an engine that another thread loads": """
def load():
    try:
        InferenceEngine.from_gguf(demo.STORY, progress=lambda *a: None)
    except EngineClosed:
        pass
threading.Thread(target=load, daemon=True).start()
""",
}


@pytest.mark.parametrize("state", leading(STATES, 3))
def test_the_interpreter_ends(state: str) -> None:
    if "os.fork" in STATES[state] and not hasattr(os, "fork"):
        pytest.skip("there is no fork here")
    program = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", BEGIN + STATES[state]]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="there is no such signal here")
def test_ctrl_c_while_a_model_is_loaded() -> None:
    """The next load succeeds, and no thread is left, whenever the interrupt comes."""
    program = f"""
import faulthandler, gc, signal, threading, random, time
from oxillama import demo
from oxillama.compat.engine import InferenceEngine
faulthandler.dump_traceback_later(50, exit=True)
def interrupt(*args):
    raise KeyboardInterrupt
def load():
    return InferenceEngine.from_gguf({str(demo.DRAFT)!r}, progress=lambda *a: None, num_threads=1)
load().generate("Once", max_tokens=4)
begin = time.perf_counter()
load().generate("Once", max_tokens=4)
span = time.perf_counter() - begin
signal.signal(signal.SIGALRM, interrupt)
draw, n = random.Random(1), 0
while n < 30:
    engine = None  # not under the timer: a Ctrl-C in a finalizer is lost
    try:
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-4, max(span, 1e-3)))
        try:
            engine = load()
            engine.generate("Once", max_tokens=4)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        n += 1
engine = None
assert InferenceEngine.from_gguf(demo.DRAFT).generate("Once", max_tokens=2)
gc.collect()
deadline = time.monotonic() + 20
while any(t.name == "oxillama" and t.is_alive() for t in threading.enumerate()):  # not: whose start failed
    assert time.monotonic() < deadline, threading.enumerate()
    time.sleep(0.01)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_an_interrupted_wait_raises_the_interrupt() -> None:
    """Also where Python's own lock makes another error of the interrupt."""

    def interrupted() -> None:
        lock = threading.Lock()
        with lock:  # as in `threading.Condition.wait`, which opens it and closes it again
            lock.release()
            raise KeyboardInterrupt

    with pytest.raises(RuntimeError, match="release unlocked lock"):
        interrupted()
    with pytest.raises(KeyboardInterrupt):
        waited(interrupted)


def test_a_wait_that_fails_raises_its_own_error() -> None:
    with pytest.raises(RuntimeError, match="can't start new thread"):
        waited(Mock(side_effect=RuntimeError("can't start new thread")))
