"""The public API under random use, right and wrong, by one thread and by several.

``OXILLAMA_RANDOM_CALLS=10000 pytest tests/engine/test_random_use.py`` for a longer run; ``OXILLAMA_SEED`` for
another one.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import sys
import threading
import traceback
from collections import Counter

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.support.random_use import References, World
from tests.support.waiting import until

CALLS = int(os.environ.get("OXILLAMA_RANDOM_CALLS", "300"))
SEED = int(os.environ.get("OXILLAMA_SEED", "1"))
HANG = 60
"""Seconds after which a call counts as hung."""


def threads() -> int:
    return len([thread for thread in threading.enumerate() if thread.name == "oxillama"])


def threads_left() -> int:
    """The threads after a garbage collection; a busy thread may keep others alive until it is idle."""
    gc.collect()
    return threads()


def check_threads(most: int) -> None:
    """The others end. Fails with what they do: one that does nothing has leaked, another one is slow."""
    try:
        until(lambda: threads_left() <= most)
    except AssertionError:
        frames = sys._current_frames()
        doing = [
            "".join(traceback.format_stack(frames[thread.ident]))
            for thread in threading.enumerate()
            if thread.name == "oxillama" and thread.ident in frames
        ]
        raise AssertionError(f"{len(doing)} threads, of {most}:\n" + "\n".join(doing)) from None


@pytest.fixture(scope="module")
def references() -> References:
    return References()


def test_one_thread(references: References) -> None:
    before = threads()
    called: Counter[str] = Counter()
    totals: Counter[str] = Counter()

    class Use(RuleBasedStateMachine):
        """Calls of one thread; hypothesis shortens what fails."""

        def __init__(self) -> None:
            super().__init__()
            self.world = World(random.Random(SEED), references)

        @rule(seed=st.integers(0, 2**32))
        def call(self, seed: int) -> None:
            faulthandler.dump_traceback_later(HANG, exit=True, file=sys.__stderr__)
            self.world.draw.seed(seed)
            called[self.world.act()] += 1

        @invariant()
        def holds(self) -> None:
            self.world.check()
            if self.world.n_calls % 10 == 9:
                self.world.check_plain()

        def teardown(self) -> None:
            self.world.finish()
            totals.update(refused=self.world.n_refused, texts=self.world.n_texts)
            faulthandler.cancel_dump_traceback_later()

    steps = 50
    run_state_machine_as_test(
        Use,
        settings=settings(
            max_examples=max(1, CALLS // 2 // steps), stateful_step_count=steps, derandomize=SEED == 1,
            deadline=None, database=None,
        ),
    )  # fmt: skip
    print(f"{called.total()} calls, {dict(totals)}, {dict(called)}")
    assert totals["texts"]
    check_threads(before + len(references._engines))


def test_several_threads_on_the_same_engines(references: References) -> None:
    before = threads()
    done: list[World] = []
    raised: list[BaseException] = []
    first = World(random.Random(SEED), references)
    for _ in range(2):
        first.do_open()

    def use(seed: int) -> None:
        world = World(random.Random(seed), references, engines=list(first.engines), can_close=False)
        try:
            for _ in range(CALLS // 2 // 4):
                faulthandler.dump_traceback_later(HANG, exit=True, file=sys.__stderr__)
                world.act()
            for stream in world.streams:
                stream.generation.close()
            for hand in world.hands:
                hand.session.close()
            for pin in world.pins:
                pin.release()
            done.append(world)
        except BaseException as error:
            raised.append(error)
            raise

    workers = [threading.Thread(target=use, args=(1000 * SEED + i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    faulthandler.cancel_dump_traceback_later()
    assert not raised
    n = sum(world.n_calls for world in done)
    print(f"{n} calls, {sum(w.n_refused for w in done)} refused, {sum(w.n_texts for w in done)} texts")
    gc.collect()
    first.check()
    first.check_plain()
    first.finish()
    done.clear()
    check_threads(before + len(references._engines))
