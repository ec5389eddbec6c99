"""Threads that read ahead."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from oxillama.models.offload.reader import Reader
from tests.support.waiting import until


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("oxillama-reader")]


def test_lists_are_done_in_turns_and_in_order() -> None:
    reader, done = Reader(1), []
    lists = [[(lambda name=name: done.append(name)) for name in names] for names in ("abc", "d", "ef")]
    works = reader.start(*lists)
    for work, names in zip(works, ("abc", "d", "ef")):
        for number in range(len(names)):
            reader.wait(work, number)
        assert work.is_whole
    assert done == ["a", "d", "e", "b", "f", "c"]
    reader.close()


@pytest.mark.parametrize("n_threads", [1, 2])
def test_an_error_is_raised_to_who_waits_and_leaves_out_the_rest(n_threads: int) -> None:
    reader, ran, gate = Reader(n_threads), [], threading.Event()

    def fail() -> None:
        gate.wait()
        raise OSError("broken")

    (work,) = reader.start([fail, *[lambda: ran.append(1)] * (0 if n_threads > 1 else 3)])
    gate.set()
    with pytest.raises(OSError, match="broken"):
        reader.wait(work, 0)
    (other,) = reader.start([lambda: ran.append(2)])
    reader.wait(other, 0)
    assert ran == [2]
    assert not work.is_whole
    reader.close()


def test_stopped_work_is_left_out_and_running_tasks_are_waited_for() -> None:
    reader, started, gate, ran = Reader(1), threading.Event(), threading.Event(), []

    def slow() -> None:
        started.set()
        gate.wait()
        ran.append("slow")

    (work,) = reader.start([slow, lambda: ran.append("never")])
    started.wait()
    stopper = threading.Thread(target=reader.stop, args=(work,))
    stopper.start()
    until(lambda work=work: work._next == 2)
    assert stopper.is_alive()
    gate.set()
    stopper.join()
    assert ran == ["slow"]
    (other,) = reader.start([lambda: ran.append("after")])
    reader.wait(other, 0)
    assert ran == ["slow", "after"]
    reader.close()


def test_threads_end_with_their_reader_and_start_again() -> None:
    before = len(threads())
    reader = Reader(2)
    (work,) = reader.start([lambda: None])
    reader.wait(work, 0)
    assert len(threads()) == before + 2
    reader.close()
    assert len(threads()) == before
    (work,) = reader.start([lambda: None])
    reader.wait(work, 0)
    gone = weakref.ref(reader)
    del reader, work
    gc.collect()
    assert gone() is None
    until(lambda: len(threads()) == before)


def test_work_that_is_skipped_is_not_kept() -> None:
    """A thread that waits for its next work holds no memory of the last one."""
    reader, gate, began = Reader(1), threading.Event(), threading.Event()

    def first() -> None:
        began.set()
        gate.wait()

    (work,) = reader.start([first, lambda: None])
    assert began.wait(30)
    stopping = threading.Thread(target=reader.stop, args=(work,))
    stopping.start()
    until(lambda work=work: work._next == 2)
    gate.set()
    stopping.join()
    gone = weakref.ref(work)
    del work, stopping
    until(lambda: reader._queue.empty() and (gc.collect(), gone())[1] is None)
    reader.close()
