"""Interrupts `MadeOnce` at every place: ``python -m tests.support.interrupts value|error``."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from oxillama import made_once
from oxillama.made_once import MadeOnce


def interrupted_at(n: int, call: Callable[[], object]) -> bool:
    """Calls something, and interrupts it at the n-th place of `MadeOnce`; False if it has not so many.

    A place is a line, or the end of a function. The lines of a ``with`` are left out: between them and the
    lock that they take or give back no interrupt comes.
    """
    places = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal places
        if frame.f_code.co_filename != made_once.__file__:
            return None
        line = linecache.getline(made_once.__file__, frame.f_lineno)
        if event == "return" or (event == "line" and not line.lstrip().startswith("with ")):
            places += 1
            if places == n:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except (KeyboardInterrupt, ZeroDivisionError):
        pass
    finally:
        sys.settrace(None)
    return places >= n


def main(what: str) -> None:
    """Raises AssertionError where an interrupt leaves something to wait for."""
    for n in range(1, 500):
        found = MadeOnce[int](1)
        found.get("other", lambda: 1)
        get = found.get
        is_interrupted = interrupted_at(n, lambda: get("key", lambda: 4 if what == "value" else 1 // 0))  # noqa: B023
        results: list[int] = []
        again = threading.Thread(target=lambda: results.append(get("key", lambda: 5)), daemon=True)  # noqa: B023
        again.start()
        again.join(30)
        assert results in ([4], [5]), f"place {n}: {results}"
        assert found.get("next", lambda: 6) == 6
        assert list(found._found) == ["next"], f"place {n}: {list(found._found)}"
        if not is_interrupted:
            break
    assert 20 < n < 400, n


if __name__ == "__main__":
    main(sys.argv[1])
