"""The path of one call through the code stays as short as `tools/make_tour.py` says."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from tests.support.paths import ROOT

TOOL = ROOT / "tools" / "make_tour.py"
if not (TOOL.is_file() and (ROOT / "oxillama").is_dir()):
    pytest.skip("the tour leads along the sources of a checkout", allow_module_level=True)


@pytest.fixture(scope="module")
def tour() -> ModuleType:
    return import_module("tools.make_tour")


@pytest.fixture(scope="module")
def stops(tour: ModuleType) -> list[Any]:
    found: list[Any] = tour.stops_of(tour.traced())
    return found


def test_the_path_is_short_enough_to_be_read(tour: ModuleType, stops: list[Any]) -> None:
    assert 20 < len(stops) <= tour.MOST_FILES
    assert 1000 < sum(stop.n_lines for stop in stops) <= tour.MOST_LINES


def test_each_file_on_the_path_says_what_it_does(stops: list[Any]) -> None:
    assert [stop.path for stop in stops if len(stop.text.split()) < 4] == []


def test_the_page_has_each_stop_with_its_functions(tour: ModuleType, stops: list[Any]) -> None:
    text = tour.page(stops)
    parts = text.split("\n## ")
    assert f"lines in {len(stops)} files" in parts[0]
    for i, (stop, part) in enumerate(zip(stops, parts[1:], strict=True), 1):
        assert part.startswith(f"{i}. {stop.path}\n\n{stop.text}\n\nRead `")
        assert part.endswith(f": {stop.n_lines} lines.\n")
        assert all(f"`{name.rpartition('.')[2]}`" in part for name in stop.functions)


def test_stops_come_in_the_order_of_their_first_calls(tour: ModuleType) -> None:
    calls = [("errors.py", "f", 1), ("base/locks.py", "C.g", 2), ("errors.py", "h", 3)]
    kernel = {"_kernels/sampling/sampling.pyx": ("errors.py", ("choose",))}
    first, second, third = tour.stops_of([tour.Call(*each) for each in calls], kernel)
    assert (first.path, first.functions, first.n_lines) == ("errors.py", {"f": 1, "h": 3}, 4)
    assert second.path == "_kernels/sampling/sampling.pyx" and second.functions["choose"] > 10
    assert second.text.startswith("Chooses a token")
    assert (third.path, third.functions) == ("base/locks.py", {"C.g": 2})


@pytest.mark.parametrize(
    ("kernel", "error", "fault"),
    [
        (
            {"_kernels/sampling/sampling.pyx": ("base/locks.py", ("choose",))},
            ValueError,
            "base/locks.py is not on the path",
        ),
        ({"_kernels/sampling/sampling.pyx": ("errors.py", ("none",))}, KeyError, "none"),
        ({"_kernels/none.pyx": ("errors.py", ("f",))}, FileNotFoundError, "none.pyx"),
    ],
)
def test_kernels_that_do_not_exist_are_errors(
    tour: ModuleType, kernel: dict[str, Any], error: type[Exception], fault: str
) -> None:
    with pytest.raises(error, match=fault):
        tour.stops_of([tour.Call("errors.py", "f", 3)], kernel)


def test_lines_are_counted(tour: ModuleType) -> None:
    python = "class A:\n    @p\n    def f(self):\n\n        def h(): ...\n\n\ndef g(): ...\n"
    assert tour.functions(python) == [(2, 5, "A.f"), (8, 8, "g")]
    cython = (
        "cdef struct S:\n    int x\n\n\n"
        "cdef inline int f(int a,\n                  int b) nogil:\n    return a\n\n\n"
        "cdef class C:\n    cdef int n\n\n    def g(self):\n        pass\n\n"
        "    cdef int h(self):\n        pass\n"
    )
    assert tour.cython_spans(cython) == {"S": 2, "f": 3, "C": 8, "C.g": 2, "C.h": 2}
