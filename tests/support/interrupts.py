"""Interrupts `SingleFlight` at every place: ``python -m tests.support.interrupts value|error``."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from oxillama.base.single_flight import SingleFlight

ADD = ctypes.pythonapi.Py_AddPendingCall
ADD.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
SEND = ctypes.cast(ctypes.pythonapi.PyErr_SetInterruptEx, ctypes.c_void_p)


class Places:
    """The places where CPython looks for signals, which it does not do between any two instructions.

    Pending calls are made there, too. Two of them count the places and add themselves again (Python 3.13 and
    later would forget a single one); at the last place comes one that sends the signal, which the next place
    sees.
    """

    def __init__(self) -> None:
        self._n_left = 0
        self._last: object = None
        self._counting = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._count)

    def _count(self, _: object) -> int:
        frame = sys._getframe(1)
        if self._last != (here := (frame, frame.f_lasti)):  # else it was added here
            self._last = here
            self._n_left -= 1
            if self._n_left == 0:
                ADD(SEND, signal.SIGINT)
        if self._n_left > 0:
            ADD(self._counting, None)
        return 0

    def interrupts(self, n: int, call: Callable[[], object]) -> bool:
        """Calls something, and interrupts it at the n-th place; False if it has not so many."""
        self._n_left = n
        try:
            ADD(self._counting, None)
            ADD(self._counting, None)
            with suppress(ZeroDivisionError):
                call()
            for _ in range(9):  # places, for what is pending
                pass
        except KeyboardInterrupt:
            return True
        self._n_left = 0
        return False


def main(what: str) -> None:
    """Raises AssertionError where an interrupt leaves something to wait for."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    places = Places()
    for n in range(1, 500):
        found = SingleFlight[int](1)
        found.get("other", lambda: 1)
        get = found.get
        is_interrupted = places.interrupts(n, lambda: get("key", lambda: 4 if what == "value" else 1 // 0))  # noqa: B023
        results: list[int] = []
        again = threading.Thread(target=lambda: results.append(get("key", lambda: 5)), daemon=True)  # noqa: B023
        again.start()
        again.join(30)
        assert results in ([4], [5]), f"place {n}: {results}"
        assert found.get("next", lambda: 6) == 6
        assert list(found._entries) == ["next"], f"place {n}: {list(found._entries)}"
        if not is_interrupted:
            break
    assert 10 < n < 400, n


if __name__ == "__main__":
    main(sys.argv[1])
