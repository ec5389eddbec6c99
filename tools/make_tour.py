"""Writes `docs/tour.md`: the path of one call through the code, from a trace of that call.

`python tools/make_tour.py` traces the call and writes the page; with ``--check`` it only says whether the
page is out of date, and with ``--trace`` it prints the functions that are called as JSON. The texts of the
stops, and the kernels, which no trace of Python shows, are in `docs/tour.toml`.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "oxillama"
PAGE, SOURCE = ROOT / "docs" / "tour.md", ROOT / "docs" / "tour.toml"
MOST_FILES, MOST_LINES = 44, 3400
"""Limits of the tour, kernels included; to be lowered, never raised."""


class Call(NamedTuple):
    """A function that was called: its file below `oxillama/`, its name with its class, and its lines."""

    path: str
    name: str
    n_lines: int


class Span(NamedTuple):
    """A function of a file: its first and last line, and its name with that of its class."""

    first: int
    last: int
    name: str


# --- the trace --------------------------------------------------------------------------------------------


class Recorder:
    """Notes which functions of the library two threads call, in the order of their first calls.

    The caller's thread is recorded while ``is_on``; the engine thread from the command that adds the request
    until the end of the request has been published, because what comes before and after depends on timing.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.engine_is_on = False
        self.caller: dict[tuple[str, int], None] = {}
        self.engine: dict[tuple[str, int], None] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        place = code.co_filename, code.co_firstlineno
        if threading.current_thread() is threading.main_thread():
            if event == "call" and self.is_on:
                self.caller.setdefault(place)
        elif event == "call":
            self.engine_is_on = self.engine_is_on or (self.is_on and code.co_name == "_add")
            if self.engine_is_on:
                self.engine.setdefault(place)
        elif event == "return" and code.co_name == "publish_end":
            self.engine_is_on = False


def recorded() -> list[Call]:
    """Traces the call in this process: the functions of the library in the order of their first calls.

    Its engine has one thread for the kernels, so that nothing is tuned, and has answered another prompt, so
    that everything that is made at its first use is there.
    """
    from oxillama import InferenceEngine, demo
    from oxillama.engine import handle

    handle.LOST = 60.0  # on a slow machine, too, the caller waits once
    recorder = Recorder()
    threading.setprofile(recorder)  # for the engine thread
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1) as engine:
        engine.generate("It was late", temperature=0, max_tokens=4, salt="another prefix")
        sys.setprofile(recorder)
        recorder.is_on = True
        engine.generate("Once upon a time", temperature=0)
        recorder.is_on = False
        sys.setprofile(None)
    caller = list(functions_at(recorder.caller))
    # there the caller waits until the engine thread has done its part
    waits = [call.name for call in caller].index("Generation.result")
    return list(dict.fromkeys([*caller[:waits], *functions_at(recorder.engine), *caller[waits:]]))


def functions_at(places: dict[tuple[str, int], None]) -> Iterator[Call]:
    """The function or method of the library around each place; a nested function counts as the outer one."""
    spans: dict[Path, list[Span]] = {}
    for file, line in places:
        path = Path(file)
        if PACKAGE not in path.parents:
            continue
        if path not in spans:
            spans[path] = functions(path.read_text(encoding="utf-8"))
        for span in spans[path]:
            if span.first <= line <= span.last:
                yield Call(path.relative_to(PACKAGE).as_posix(), span.name, span.last - span.first + 1)


def functions(source: str) -> list[Span]:
    """The functions of a Python file and the methods of its classes."""
    found = []

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                found.append(Span(first, child.end_lineno or first, prefix + child.name))

    visit(ast.parse(source), "")
    return found


def traced() -> list[Call]:
    """`recorded` by another process, whose caches are empty and which nothing else traces."""
    command = [sys.executable, str(Path(__file__).resolve()), "--trace"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return [Call(*call) for call in found]


# --- the page ---------------------------------------------------------------------------------------------


class Stop(NamedTuple):
    """A file of the tour: what it is about, the lines of the functions to read, and its text."""

    path: str
    title: str
    functions: dict[str, int]
    text: str

    @property
    def n_lines(self) -> int:
        return sum(self.functions.values())


def stops_of(calls: list[Call], source: dict[str, Any]) -> list[Stop]:
    """The stops in order, kernels included. Raises ValueError unless the texts fit the calls."""
    texts, kernels = source["stop"], source["kernel"]
    found: dict[str, dict[str, int]] = {}
    for path, name, n_lines in calls:
        found.setdefault(path, {})[name] = n_lines
    for path in sorted({*found} ^ {*texts}):
        raise ValueError(f"docs/tour.toml: {path} {'has no text' if path in found else 'is not on the path'}")
    stops = []
    for path, name, _ in calls:
        entry = texts[path]
        if name != entry.get("begins", next(iter(found[path]))):
            continue
        sometimes = entry.get("sometimes", ())
        read = {name: n for name, n in found[path].items() if name not in sometimes}
        stops.append(Stop(path, entry["title"], read, entry["text"].strip()))
        for kernel, inner in kernels.items():
            if inner["after"] == path:
                spans = cython_spans((PACKAGE / kernel).read_text(encoding="utf-8"))
                read = {name: spans[name] for name in inner["read"]}
                stops.append(Stop(kernel, inner["title"], read, inner["text"].strip()))
    missing = {*texts, *kernels} - {stop.path for stop in stops}
    if missing:
        raise ValueError(f"docs/tour.toml: no call leads to {', '.join(sorted(missing))}")
    return stops


def page(stops: list[Stop]) -> str:
    """The text of `docs/tour.md`."""
    python = [stop for stop in stops if stop.path.endswith(".py")]
    counts = {
        "files": len(stops),
        "lines": sum(stop.n_lines for stop in stops),
        "python_files": len(python),
        "python_lines": sum(stop.n_lines for stop in python),
        "kernels": len(stops) - len(python),
        "most_files": MOST_FILES,
        "most_lines": MOST_LINES,
    }
    parts = [
        INTRODUCTION.format(**counts),
        "| stop | file | read | lines |\n|---|---|---|---|\n",
    ]
    for i, stop in enumerate(stops, 1):
        parts.append(f"| {i} | `{stop.path}` | {listed(stop.functions)} | {stop.n_lines} |\n")
    for i, stop in enumerate(stops, 1):
        parts.append(f"\n## {i}. {stop.title}: `{stop.path}`\n\n{stop.text}\n")
    return "".join(parts)


INTRODUCTION = """# A tour of the code: the path of a token

This tour follows one call, `engine.generate("Once upon a time", temperature=0)`, from the options to the
text. Each stop is a file of `oxillama/` with the functions that the call executes, and says what happens
there and why. Read those and skip the rest: {lines:,} lines in {files} files, comments and docstrings
included. {python_lines:,} lines in {python_files} files are Python, the others are {kernels} of the kernels.

`python tools/make_tour.py` makes this page. It traces the call with the demo model, in the thread of the
caller and in the engine thread. The engine has loaded the model and answered another prompt before, so what
is done once is not part of the path. Stops and functions have the order of their first calls; the texts, the
kernels, and the functions with which some stops begin are in `docs/tour.toml`. `tests/test_tour.py` traces
the call again, and fails if the page does not fit, or if the path is longer than {most_lines:,} lines or
{most_files} files.

"""


def listed(names: dict[str, int]) -> str:
    """Names of functions, those of a class together."""
    classes: dict[str, list[str]] = {}
    for name in names:
        owner, _, method = name.rpartition(".")
        classes.setdefault(owner, []).append(f"`{method}`")
    groups = [f"`{owner}`: {', '.join(of)}" if owner else ", ".join(of) for owner, of in classes.items()]
    return "; ".join(groups)


def rows(text: str) -> dict[str, tuple[set[str], int]]:
    """For each file in the table of a page, in order, the functions to read and their lines."""
    found = {}
    for path, cell, n in re.findall(r"^\| \d+ \| `([^`]+)` \| (.+?) \| (\d+) \|$", text, re.MULTILINE):
        names = set()
        for group in cell.split("; "):
            owner, colon, methods = group.rpartition("`: ")
            for name in re.findall(r"`([^`]+)`", methods):
                names.add(f"{owner.strip('`')}.{name}" if colon else name)
        found[path] = names, int(n)
    return found


def cython_spans(source: str) -> dict[str, int]:
    """Lines of each function, structure, class, and method of a Cython file, by name.

    They go up to the next line that is indented no further."""
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


def texts() -> dict[str, Any]:
    """What is written by hand: for each file its title and text."""
    found: dict[str, Any] = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
    return found


def main(arguments: list[str]) -> int:
    """Writes or checks the page, or prints the trace."""
    if "--trace" in arguments:
        sys.path.insert(0, str(ROOT))
        json.dump(recorded(), sys.stdout)
        return 0
    made = page(stops_of(traced(), texts()))
    if "--check" in arguments:
        is_stale = PAGE.read_text(encoding="utf-8") != made
        print("docs/tour.md is out of date" if is_stale else "docs/tour.md is up to date")
        return int(is_stale)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
