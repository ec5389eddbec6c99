"""Prints the tour of the code: the path of one call, from a trace of that call.

`python tools/make_tour.py` traces the call and prints a page in Markdown; the site has it as `tour.md`. With
``--trace`` it prints the functions that are called as JSON. Each file is described by its own docstring.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "oxillama"
MOST_FILES, MOST_LINES = 44, 3245
"""Limits of the tour, kernels included; to be lowered, never raised."""

KERNELS = {
    "_kernels/linear/linear.pyx": (
        "models/weights/linear.py",
        ("panels", "fill", "run", "multiply", "Linear.apply", "chunk_panels"),
    ),
    "_kernels/linear/tiles.pxd": (
        "models/weights/linear.py",
        ("Tile", "code_group", "add_group", "block_scale", "block_tile", "put", "put_panel", "block_tiles"),
    ),
    "_kernels/attention/attention.pyx": (
        "models/layers/attention.py",
        (
            *("Call", "Unit", "PagedBatch.store_row", "PagedBatch.find", "PagedBatch.share_out"),
            *("PagedBatch.run_unit", "PagedBatch.walk", "PagedBatch.merge"),
        ),
    ),
    "_kernels/sampling/sampling.pyx": ("engine/sampling/sampler.py", ("run", "choose", "sample_row")),
}
"""Kernels on the path, which no trace of Python shows: for each its caller, and the functions to read."""


class Call(NamedTuple):
    """A function that was called: its file below `oxillama/`, its name with its class, and its lines."""

    path: str
    name: str
    n_lines: int


class Span(NamedTuple):
    """A function of a file: its first and last line, and its name with the name of its class."""

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
    """A file of the tour: its docstring, and the functions to read with the number of their lines."""

    path: str
    text: str
    functions: dict[str, int]

    @property
    def n_lines(self) -> int:
        return sum(self.functions.values())


def stops_of(calls: list[Call], kernels: dict[str, tuple[str, tuple[str, ...]]] = KERNELS) -> list[Stop]:
    """The files in the order of their first calls, each followed by the ``kernels`` that it calls.

    Raises ValueError for a kernel whose caller is not on the path, KeyError for an unknown function.
    """
    found: dict[str, dict[str, int]] = {}
    for path, name, n_lines in calls:
        found.setdefault(path, {})[name] = n_lines
    for kernel, (caller, _) in kernels.items():
        if caller not in found:
            raise ValueError(f"no call leads to {kernel}: {caller} is not on the path")
    stops = []
    for path, read in found.items():
        stops.append(Stop(path, docstring(path), read))
        for kernel, (caller, names) in kernels.items():
            if caller == path:
                spans = cython_spans((PACKAGE / kernel).read_text(encoding="utf-8"))
                stops.append(Stop(kernel, docstring(kernel), {name: spans[name] for name in names}))
    return stops


def docstring(path: str) -> str:
    """The docstring of a Python or Cython file."""
    found = re.match(r'r?"""(.*?)"""', (PACKAGE / path).read_text(encoding="utf-8"), re.DOTALL)
    return found[1].strip() if found else ""


def page(stops: list[Stop]) -> str:
    """The tour in Markdown."""
    python = [stop for stop in stops if stop.path.endswith(".py")]
    parts = [
        INTRODUCTION.format(
            files=len(stops),
            lines=sum(stop.n_lines for stop in stops),
            python_files=len(python),
            python_lines=sum(stop.n_lines for stop in python),
            kernels=len(stops) - len(python),
        )
    ]
    for i, stop in enumerate(stops, 1):
        read = f"Read {listed(stop.functions)}: {stop.n_lines} lines."
        parts.append(f"\n## {i}. {stop.path}\n\n{stop.text}\n\n{read}\n")
    return "".join(parts)


INTRODUCTION = """# A tour of the code: the path of a token

This tour follows one call, `engine.generate("Once upon a time", temperature=0)`, from the options to the
text. Each stop is a file of `oxillama/`, with its docstring and the functions that the call executes. Read
those functions and skip the rest: {lines:,} lines in {files} files, comments and docstrings included.
{python_lines:,} lines in {python_files} files are Python, the others are {kernels} files of kernels.

`tools/make_tour.py` makes this page from a trace of the call with the demo model, in the thread of the caller
and in the engine thread. The engine has loaded the model and answered another prompt before, so work that is
done once is not part of the path. Files and functions come in the order of their first calls.
"""


def listed(names: dict[str, int]) -> str:
    """Names of functions, grouped by class."""
    classes: dict[str, list[str]] = {}
    for name in names:
        owner, _, method = name.rpartition(".")
        classes.setdefault(owner, []).append(f"`{method}`")
    groups = [f"`{owner}` ({', '.join(of)})" if owner else ", ".join(of) for owner, of in classes.items()]
    return ", ".join(groups)


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


def main(arguments: list[str]) -> int:
    """Prints the page, or the trace."""
    if "--trace" in arguments:
        sys.path.insert(0, str(ROOT))
        json.dump(recorded(), sys.stdout)
    else:
        print(page(stops_of(traced())), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
