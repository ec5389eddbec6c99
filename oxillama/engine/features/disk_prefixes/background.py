"""A thread for what no step waits for: reading and writing files."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

from oxillama.base.faults import note
from oxillama.base.locks import ForkedOpen, waited

log: logging.Logger = logging.getLogger(__name__)

Job = Callable[[], object]


class Background:
    """Runs jobs one after another in a thread of its own, which starts with the first.

    A forked child begins without jobs, and with a thread of its own. When the interpreter exits, the jobs
    that wait are done first.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._starting = ForkedOpen()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._process = 0  # the process that started the thread
        _all.add(self)

    def submit(self, job: Job) -> None:
        """Has a job run after those before it. What it raises is logged."""
        with self._starting.lock:
            if self._process != os.getpid():
                self._jobs, self._process = SimpleQueue(), os.getpid()
                # a daemon, for nobody joins those before the exit handlers run, of which one waits for it
                threading.Thread(target=_run, args=(self._jobs,), name=self._name, daemon=True).start()
        self._jobs.put(job)

    def flush(self) -> None:
        """Waits until all jobs have run."""
        if self._process == os.getpid():
            done = threading.Event()
            self._jobs.put(done.set)
            waited(done.wait)

    def __del__(self) -> None:
        if self._process == os.getpid():
            self._jobs.put(None)  # the last


_all: weakref.WeakSet[Background] = weakref.WeakSet()


def _run(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            job()
        except Exception:
            note(log, logging.ERROR, "a job in the background failed", exc_info=True)
        del job  # a reference would keep the model alive while the thread waits


@atexit.register
def _flush_all() -> None:
    for background in list(_all):
        background.flush()
