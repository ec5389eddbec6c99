"""Ctrl-C at random moments: the reader gets it, the engine serves on, and no page is lost.

``OXILLAMA_INTERRUPTS=20000 pytest tests/engine/test_interrupts.py`` for a longer run.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import threading

import pytest

from oxillama import SamplerConfig, demo
from oxillama.compat.engine import InferenceEngine
from tests.support.waiting import idle, until

N = int(os.environ.get("OXILLAMA_INTERRUPTS", "300"))
GREEDY = SamplerConfig.greedy()
PROMPTS = ["Once upon a time", "The old toad", "In the garden"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there is no timer that interrupts here")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # lost in a finalizer
def test_random_interrupts_leave_the_engine_as_it_was() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    expected = engine.generate_batch(PROMPTS, sampler=GREEDY, max_tokens=12)
    draw, interrupts = random.Random(1), 0

    def read_some() -> None:
        with engine.stream(PROMPTS[1], sampler=GREEDY, max_tokens=50) as stream:
            for _, _ in zip(range(5), stream):
                pass

    def session() -> None:
        with engine.session() as hand:
            hand.prefill(PROMPTS[2])
            hand.generate(sampler=GREEDY, max_tokens=4)

    calls = [
        lambda: engine.generate(PROMPTS[0], sampler=GREEDY, max_tokens=12),
        read_some,
        lambda: engine.generate_batch(PROMPTS, sampler=GREEDY, max_tokens=6),
        lambda: engine.embed_batch(PROMPTS),
        lambda: engine.logits(PROMPTS[0]),
        session,
    ]

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    faulthandler.dump_traceback_later(600 + N, exit=True, file=sys.__stderr__)  # a hang says where
    try:
        while interrupts < N:
            call = draw.choice(calls)
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 0.02))
                try:
                    call()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        faulthandler.cancel_dump_traceback_later()
    assert engine.generate_batch(PROMPTS, sampler=GREEDY, max_tokens=12) == expected
    idle(engine)
    until(lambda: not engine.model.loop.held)
    engine.model.check_integrity()
    engine.model.call(engine.model.prefix_cache.clear)
    assert engine.model.pool.n_used == 0
    assert len([t for t in threading.enumerate() if t.name == "oxillama"]) >= 1
