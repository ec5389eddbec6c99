"""Threads that read panels into memory while the engine thread computes.

They hold references to their work and not to the pager, so they end when the pager is dropped. They never
enter OpenMP: each packs alone, and a forked child simply starts its own.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

Task = Callable[[], object]


class Work:
    """Tasks for one piece of memory, run in order by any thread, and their result.

    Args:
        tasks: what to do. They are independent of each other.

    Attributes:
        error: the exception of a task, after which the others are skipped; None without an error.
    """

    def __init__(self, tasks: list[Task]) -> None:
        self.error: BaseException | None = None
        self._tasks = tasks
        self._done = [False] * len(tasks)
        self._n_running = 0
        self._next = 0

    @property
    def is_whole(self) -> bool:
        """Whether all tasks are done."""
        return all(self._done)


class Reader:
    """Runs `Work` in threads of its own, in the order in which it was submitted.

    Args:
        n_threads: how many. They start with the first work.
    """

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self.forget()
        _readers.add(self)

    def forget(self) -> None:
        """Drops threads and work: they belong to the parent of this process, or have ended."""
        self._changed = threading.Condition()
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._finalizer = weakref.finalize(self, _end, self._queue, self.n_threads)
        self._finalizer.atexit = False  # `_end_all` does it

    def start(self, *lists: list[Task]) -> list[Work]:
        """Submits lists of tasks: the first tasks of all lists run first, then the second ones, and so on."""
        works = [Work(tasks) for tasks in lists]
        if not self._threads:
            for i in range(self.n_threads):
                arguments = (self._queue, self._changed)
                thread = threading.Thread(
                    target=_run, args=arguments, name=f"oxillama-reader-{i}", daemon=True
                )
                thread.start()
                self._threads.append(thread)
        for number in range(max(map(len, lists), default=0)):
            for work, tasks in zip(works, lists):
                if number < len(tasks):
                    self._queue.put(work)
        return works

    def wait(self, work: Work, number: int) -> None:
        """Returns when a task is done. Raises the exception of a task."""
        with self._changed:
            while not work._done[number] and work.error is None:
                self._changed.wait()
        if not work._done[number] and work.error is not None:
            raise work.error

    def stop(self, work: Work) -> None:
        """Skips the tasks that have not begun, and returns when the others are done."""
        with self._changed:
            work._next = len(work._tasks)
            while work._n_running:
                self._changed.wait()
            work._tasks.clear()  # they refer to the memory, and the queue may still have the work

    def close(self) -> None:
        """Ends the threads after their tasks. Work that is submitted later starts new ones."""
        threads = self._threads
        self._finalizer.detach()  # calling it does nothing once the interpreter exits
        _end(self._queue, self.n_threads)
        for thread in threads:
            thread.join()
        self.forget()


def _run(queue: SimpleQueue[Work | None], changed: threading.Condition) -> None:
    """Does one task for each entry of the queue, up to the first None."""
    while True:
        work = queue.get()
        if work is None:
            return
        with changed:
            number = work._next
            is_skipped = number >= len(work._tasks)
            if not is_skipped:
                work._next += 1
                work._n_running += 1
        if is_skipped:
            del work  # drop the reference, as below
            continue
        error: BaseException | None = None
        try:
            work._tasks[number]()
        except BaseException as raised:
            error = raised
        with changed:
            work._n_running -= 1
            work._tasks[number] = _nothing  # who waits may drop the memory
            if error is None:
                work._done[number] = True
            else:
                work.error = work.error or error
                work._next = len(work._tasks)
            changed.notify_all()
        del work, error  # this thread keeps no memory alive while it waits


def _nothing() -> None:
    """The place of a task that is done."""


def _end(queue: SimpleQueue[Work | None], n_threads: int) -> None:
    for _ in range(n_threads):
        queue.put(None)


_readers: weakref.WeakSet[Reader] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for reader in list(_readers):
        reader.close()
