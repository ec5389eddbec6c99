"""The tour leads along files and names that exist, and stays as short as the page says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import oxillama
from tests.support.paths import DOCS

PAGE = DOCS / "tour.md"
if not PAGE.is_file():
    pytest.skip("only the package was unpacked", allow_module_level=True)
TEXT = PAGE.read_text(encoding="utf-8")
PACKAGE = Path(oxillama.__file__).parent
ROW = re.compile(r"^\| \d+ \| `([^`]+)` \| (.+?) \| (\d+) \|", re.MULTILINE)
STOPS = [(path, re.findall(r"`([^`]+)`", names), int(n)) for path, names, n in ROW.findall(TEXT)]
"""For each stop its file, the names to read (none for the whole file), and the lines that the page says."""


def lines_of(path: str, names: list[str]) -> int:
    """Lines of a file, or of some classes, methods and functions of it."""
    source = (PACKAGE / path).read_text(encoding="utf-8")
    if not names:
        return len(source.splitlines())
    spans = python_spans(source) if path.endswith(".py") else cython_spans(source)
    return sum(spans[name] for name in names)


def python_spans(source: str) -> dict[str, int]:
    """Lines of each class, function and method, by name."""
    found: dict[str, int] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                found[prefix + child.name] = (child.end_lineno or first) - first + 1
                visit(child, f"{prefix}{child.name}.")

    visit(ast.parse(source), "")
    return found


def cython_spans(source: str) -> dict[str, int]:
    """Lines of each function, structure, class, and method, by name: up to the next line that is indented no
    further."""
    found, lines, owner = {}, source.splitlines(), ""
    for i, line in enumerate(lines):
        opening = re.match(r"( {0,4})(?:def|cdef|cpdef)\b[^=]*?(\w+)(?:\(|:$)", line)
        if opening is None:
            continue
        indent, name = len(opening[1]), opening[2]
        end = i + 1
        while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" " * (indent + 1))):
            end += 1
        n = len("\n".join(lines[i:end]).rstrip().splitlines())
        if indent == 0:
            owner = name if line.startswith("cdef class") else ""
        if indent == 0 or owner:
            found[f"{owner}.{name}" if indent else name] = n
    return found


def test_there_are_stops() -> None:
    assert len(STOPS) >= 15
    assert len(STOPS) == len(re.findall(r"^\| \d+ \|", TEXT, re.MULTILINE))
    headings = re.findall(r"^## \d+\. .*`([^`]+)`$", TEXT, re.MULTILINE)
    assert headings == [path for path, _, _ in STOPS]


@pytest.mark.parametrize(("path", "names", "told"), STOPS, ids=lambda value: str(value))
def test_the_page_is_right_about_a_stop(path: str, names: list[str], told: int) -> None:
    n = lines_of(path, names)
    assert told == pytest.approx(n, rel=0.2, abs=5), f"{path} has {n} lines on the tour"


def test_the_tour_can_be_read_in_a_day() -> None:
    assert sum(lines_of(path, names) for path, names, _ in STOPS) <= 3000


def test_lines_are_counted() -> None:
    python = "class A:\n    @p\n    def f(self):\n\n        return 1\n\n\ndef g(): ...\n"
    assert python_spans(python) == {"A": 5, "A.f": 4, "g": 1}
    cython = (
        "cdef struct S:\n    int x\n\n\n"
        "cdef inline int f(int a,\n                  int b) nogil:\n    return a\n\n\n"
        "cdef class C:\n    cdef int n\n\n    def g(self):\n        pass\n\n"
        "    cdef int h(self):\n        pass\n"
    )
    assert cython_spans(cython) == {"S": 2, "f": 3, "C": 8, "C.g": 2, "C.h": 2}
