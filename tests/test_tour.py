"""The tour leads along the functions that the call executes, and stays as short as it says."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.support.paths import DOCS, ROOT

TOOL, PAGE = ROOT / "tools" / "make_tour.py", DOCS / "tour.md"
if not (TOOL.is_file() and PAGE.is_file() and (ROOT / "oxillama").is_dir()):
    pytest.skip("the tour leads along the sources of a checkout", allow_module_level=True)
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tour() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("make_tour", TOOL)
    assert spec is not None and spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def stops(tour: ModuleType) -> list[Any]:
    found: list[Any] = tour.stops_of(tour.traced(), tour.texts())
    return found


def test_the_stops_are_the_files_on_the_path(tour: ModuleType, stops: list[Any]) -> None:
    assert list(tour.rows(TEXT)) == [stop.path for stop in stops], "run tools/make_tour.py"


def test_the_functions_to_read_are_executed(tour: ModuleType, stops: list[Any]) -> None:
    shown = tour.rows(TEXT)
    for stop in stops:
        names, n_lines = shown[stop.path]
        assert names == set(stop.functions), f"{stop.path}: run tools/make_tour.py"
        assert n_lines == pytest.approx(stop.n_lines, rel=0.2, abs=5), stop.path


def test_the_texts_are_those_of_the_source(tour: ModuleType, stops: list[Any]) -> None:
    made = tour.page(stops)
    assert TEXT[TEXT.index("\n## 1.") :] == made[made.index("\n## 1.") :], "run tools/make_tour.py"


def test_the_path_is_short_enough_to_be_read(tour: ModuleType, stops: list[Any]) -> None:
    n_lines = sum(stop.n_lines for stop in stops)
    assert n_lines <= tour.MOST_LINES
    assert len(stops) <= tour.MOST_FILES
    told = re.search(r"([\d,]+) lines in (\d+) files", TEXT)
    assert told is not None and int(told[2]) == len(stops)
    assert int(told[1].replace(",", "")) == pytest.approx(n_lines, rel=0.05)


def call(tour: ModuleType, path: str, name: str) -> Any:
    return tour.Call(path, name, 3)


ENTRY = {"title": "A", "text": "B."}
KERNEL = {"_kernels/sampling/sampling.pyx": {**ENTRY, "after": "b.py", "read": ["choose"]}}


@pytest.mark.parametrize(
    ("stop", "kernel", "fault"),
    [
        ({"a.py": ENTRY}, {}, "b.py has no text"),
        ({"a.py": ENTRY, "b.py": ENTRY, "c.py": ENTRY}, {}, "c.py is not on the path"),
        ({"a.py": ENTRY, "b.py": {**ENTRY, "begins": "h"}}, {}, "no call leads to b.py"),
        (
            {"a.py": ENTRY, "b.py": ENTRY},
            {"_kernels/none.pyx": {**ENTRY, "after": "c.py", "read": []}},
            "no call leads to _kernels/none.pyx",
        ),
    ],
)
def test_texts_that_do_not_fit_are_errors(
    tour: ModuleType, stop: dict[str, Any], kernel: dict[str, Any], fault: str
) -> None:
    calls = [call(tour, "a.py", "f"), call(tour, "b.py", "g")]
    with pytest.raises(ValueError, match=re.escape(fault)):
        tour.stops_of(calls, {"stop": stop, "kernel": kernel})


def test_a_kernel_that_does_not_exist_is_an_error(tour: ModuleType) -> None:
    kernel = {"_kernels/none.pyx": {**ENTRY, "after": "a.py", "read": ["f"]}}
    with pytest.raises(FileNotFoundError):
        tour.stops_of([call(tour, "a.py", "f")], {"stop": {"a.py": ENTRY}, "kernel": kernel})
    named = {"_kernels/sampling/sampling.pyx": {**ENTRY, "after": "a.py", "read": ["none"]}}
    with pytest.raises(KeyError):
        tour.stops_of([call(tour, "a.py", "f")], {"stop": {"a.py": ENTRY}, "kernel": named})


def test_a_page_has_what_it_is_made_of(tour: ModuleType) -> None:
    calls = [
        call(tour, "a.py", "A.f"),
        call(tour, "b.py", "g"),
        call(tour, "a.py", "h"),
        call(tour, "a.py", "A.i"),
    ]
    source = {
        "stop": {"a.py": {**ENTRY, "begins": "h"}, "b.py": {**ENTRY, "sometimes": ["g"]}},
        "kernel": KERNEL,
    }
    stops = tour.stops_of([*calls, call(tour, "b.py", "j")], source)
    n_lines = stops[1].n_lines
    assert tour.rows(tour.page(stops)) == {
        "b.py": ({"j"}, 3),
        "_kernels/sampling/sampling.pyx": ({"choose"}, n_lines),
        "a.py": ({"A.f", "A.i", "h"}, 9),
    }


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
