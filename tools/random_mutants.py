"""Puts random faults into a copy of the checkout, and says which of them the fast tests notice.

    python tools/random_mutants.py [--n 300] [--seed 1] [--minutes M] [--list] [--only PATTERN] [--log FILE]

A fault changes one place of one module of oxillama/: an operator, a comparison, a number by one, `and` for
`or`, a condition negated, True for False, or a statement left out. The numbers of all lines stay. One fault
is tried at a time.

The fast tests of a room run once without a fault, and each test's calls of functions are recorded. For a
fault in a function those tests run that call the function, first those in files that are named after its
module or import it, of these the shortest; for one outside functions, those that call any function of the
module. If no test calls it (calls in processes that tests start are not
recorded), the other tests of the room run, and the tests elsewhere that import the module. `--elsewhere` runs
these in any case. A fault that no test notices survives; one whose tests take more than `--budget` seconds is
"undecided", and counts neither way.
Tests that failed are run again without any fault at the end: those that fail then, too, noticed nothing.

`tools/random_mutants.toml` has the equivalent faults, which no test can notice, each with the reason; they
are drawn, listed and not run. An entry's `where`, if it has one, is in the text of the fault's first line.
The exit code is 1 if fewer than `--goal` percent are noticed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import json
import os
import re
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any

import pytest
from mutants import FAST, NO_TESTS, ROOT, Checkout, StaleList

FIRST = 60  # of the tests that call a function, the shortest, run before the others
USAGE = 4  # pytest's exit code for arguments that it cannot use
HANG = 40  # seconds after which one test hangs
NOT_DRAWN = ("oxillama/_kernels/generate.py", "oxillama/_version.py")  # run when the kernels are built
FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.BitXor: ast.BitOr,
}  # fmt: skip
DELETED = (ast.Assign, ast.AugAssign, ast.Return, ast.Raise, ast.Delete, ast.Break, ast.Continue, ast.Expr)


@dataclass(frozen=True)
class Fault:
    """Bytes `start` to `end` of a file are replaced."""

    file: str
    line: int
    kind: str
    start: int
    end: int
    old: str
    new: str
    function: int  # the line at which its function begins; 0 outside functions
    where: str = ""  # the text of its first line

    def __str__(self) -> str:
        old, new = (re.sub(r"\s+", " ", text).strip() for text in (self.old, self.new))
        return f"{self.file}:{self.line} {self.kind}: {old[:90]}  ->  {new[:90]}"

    def within(self, data: bytes) -> bytes:
        """The file with this fault."""
        return data[: self.start] + self.new.encode() + data[self.end :]

    def is_of(self, entry: dict[str, str]) -> bool:
        """Whether an entry of the list of equivalent faults is this one, on whatever line."""
        squeezed = (re.sub(r"\s+", " ", text).strip() for text in (self.old, self.new))
        is_there = entry.get("where", "") in self.where
        return is_there and (self.file, *squeezed) == (entry["file"], entry["old"], entry["new"])


class Finder(ast.NodeVisitor):
    """The faults that a module can be given."""

    def __init__(self, file: str, data: bytes) -> None:
        self.file, self.data = file, data
        self.found: list[Fault] = []
        self.function = 0
        self.starts = [0]
        for line in data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def add(self, node: ast.expr | ast.stmt, kind: str, new: str) -> None:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        old = self.data[start:end].decode()
        if isinstance(node, ast.expr):
            new = f"({new}" + "\n" * old.count("\n") + ")"
        else:
            new += "\n" * old.count("\n")
        where = self.data[self.starts[node.lineno - 1] : self.starts[node.lineno]].decode()
        self.found.append(Fault(self.file, node.lineno, kind, start, end, old, new, self.function, where))

    def changed(self, node: ast.expr, kind: str, **fields: object) -> None:
        values = {name: getattr(node, name) for name in node._fields}
        new = type(node)(**{**values, **fields})
        self.add(node, kind, ast.unparse(ast.fix_missing_locations(new)))

    def negated(self, test: ast.expr) -> None:
        self.add(test, "condition negated", f"not ({ast.unparse(test)})")

    def visit_Compare(self, node: ast.Compare) -> None:
        for i, op in enumerate(node.ops):
            ops = [*node.ops[:i], FLIPPED[type(op)](), *node.ops[i + 1 :]]
            self.changed(node, "comparison", ops=ops)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.changed(node, "and/or", op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_text = any(
            isinstance(side, ast.JoinedStr)
            or (isinstance(side, ast.Constant) and isinstance(side.value, str))
            for side in (node.left, node.right)
        )
        if type(node.op) in OPERATORS and not is_text:
            self.changed(node, "operator", op=OPERATORS[type(node.op)]())
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node, "constant", repr(not node.value))
        elif isinstance(node.value, (int, float)):
            self.add(node, "constant", repr(node.value + 1))
            self.add(node, "constant", repr(node.value - 1))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Positions inside are not those of the file in older versions of Python."""

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.negated(node.test)
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self.negated(node.test)
        for part in (*node.body, *node.orelse):
            self.visit(part)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.negated(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self.negated(test)
        self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        """States what holds anyway."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """An annotation is no behaviour."""

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.decorator_list, node.args):  # what it returns is an annotation
            self.visit(part)
        outside = self.function
        self.function = min([node.lineno, *(part.lineno for part in node.decorator_list)])
        for part in node.body:
            self.visit(part)
        self.function = outside

    visit_AsyncFunctionDef = visit_FunctionDef

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, DELETED):
            value = getattr(node, "value", None)
            is_docstring = isinstance(node, ast.Expr) and isinstance(value, ast.Constant)
            is_none = isinstance(node, ast.Return) and (
                value is None or (isinstance(value, ast.Constant) and value.value is None)
            )
            is_name = isinstance(node, ast.Assign) and "__all__" in ast.unparse(node.targets[0])
            if not (is_docstring or is_none or is_name):
                self.add(node, "left out", "pass")
        super().generic_visit(node)


def faults_of(root: Path) -> list[Fault]:
    """All faults, in the order of files and lines."""
    found: list[Fault] = []
    for path in sorted((root / "oxillama").rglob("*.py")):
        file = path.relative_to(root).as_posix()
        if file not in NOT_DRAWN:
            finder = Finder(file, path.read_bytes())
            finder.visit(ast.parse(finder.data))
            found += sorted(finder.found, key=lambda fault: (fault.start, fault.new))
    return found


def drawn(root: Path, faults: Sequence[Fault], seed: int) -> Iterator[Fault]:
    """The faults in a random order: a line that has any, a kind, a fault; each line once."""
    rng = Random(seed)
    lines: dict[tuple[str, int], list[Fault]] = {}
    for fault in faults:
        lines.setdefault((fault.file, fault.line), []).append(fault)
    places = sorted(lines)
    rng.shuffle(places)
    for place in places:
        kind = rng.choice(sorted({fault.kind for fault in lines[place]}))
        fault = rng.choice([fault for fault in lines[place] if fault.kind == kind])
        with contextlib.suppress(SyntaxError):  # a "pass" takes the binding of a nonlocal name away
            compile(fault.within((root / fault.file).read_bytes()), fault.file, "exec")
            yield fault


class Users:
    """Which modules and tests import which modules, by their texts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules = {self._name(path): path for path in sorted((root / "oxillama").rglob("*.py"))}
        self.tests = sorted((root / "tests").rglob("test_*.py"))

    def _name(self, path: Path) -> str:
        parts = path.relative_to(self.root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @functools.cache  # noqa: B019
    def imported(self, path: Path) -> frozenset[str]:
        """The modules whose names or contents a file imports; of contents, the module that they come from."""
        found = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found |= {self._origin(node.module, alias.name) for alias in node.names}
        return frozenset(name for name in found if name.startswith("oxillama"))

    @functools.cache  # noqa: B019
    def _origin(self, module: str, name: str) -> str:
        if f"{module}.{name}" in self.modules:
            return f"{module}.{name}"
        path = self.modules.get(module)
        if path is not None and path.name == "__init__.py":
            text = path.read_text(encoding="utf-8")
            for source in (
                "from ([a-z_.]+) import [^\n]*",
                r"from ([a-z_.]+) import \([^)]*",
                '"([a-z_.]+)": [^\n]*',
            ):
                for match in re.finditer(source, text):
                    if re.search(rf"\b{re.escape(name)}\b", match[0]) and match[1] in self.modules:
                        return match[1]
        return module

    def rooms_of(self, file: str) -> list[str]:
        """The folder of the tests of a module's room, if there is any."""
        folder = f"tests/{file.split('/')[1].removesuffix('.py')}"
        return [folder] if (self.root / folder).is_dir() else []

    def is_near(self, test: str, file: str) -> bool:
        """Whether a file of tests is named after a module, or imports it."""
        path = self.root / file
        stem = (path.parent if path.stem == "__init__" else path.with_suffix("")).name.strip("_")
        return stem in Path(test).stem or self._name(path) in self.imported(self.root / test)

    def tests_beside(self, file: str) -> list[str]:
        """The tests of other rooms that import a module, then those of the modules that import it."""
        name = self._name(self.root / file)
        direct = [path for path in self.tests if name in self.imported(path)]
        users = {other.split(".")[1] for other, path in self.modules.items() if name in self.imported(path)}
        beside = [path for path in self.tests if path.relative_to(self.root / "tests").parts[0] in users]
        names = [path.relative_to(self.root).as_posix() for path in dict.fromkeys([*direct, *beside])]
        return [
            name for name in names if not name.startswith(tuple(f"{room}/" for room in self.rooms_of(file)))
        ]


# --- in pytest --------------------------------------------------------------------------------------


class CallRecorder:
    """A plugin that notes each test's seconds and calls, as [[file, line of the function], ...]."""

    def __init__(self, out: Path) -> None:
        self.out, self.tests, self.failed = out, {}, []
        self.codes: set[CodeType] = set()
        sys.settrace(self._called)
        threading.settrace(self._called)

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        self.codes.add(frame.f_code)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.codes, start = set(), time.perf_counter()
        sys.settrace(self._called)  # again: a RecursionError in it ends the tracing
        result = yield
        calls = sorted(
            {
                (code.co_filename.rpartition("/oxillama/")[2], code.co_firstlineno)
                for code in list(self.codes)
                if "/oxillama/" in code.co_filename
            }
        )
        self.tests[item.nodeid] = [time.perf_counter() - start, calls]
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        passed = {name: what for name, what in self.tests.items() if name not in self.failed}
        self.out.write_text(json.dumps(passed), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest, which loads this file as a plugin."""
    config.pluginmanager.register(CallRecorder(Path(os.environ["RECORDED_CALLS"])))


# --- beside it --------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """What became of a fault: "noticed", "survived", "undecided", "equivalent"; "unsound" if what noticed
    it fails without it, too."""

    fault: Fault
    kind: str
    seconds: float = 0.0
    test: str = ""

    def __str__(self) -> str:
        return f"{self.kind:10} {self.seconds:5.1f} s  {self.fault}  {self.test}"


def failed(output: str) -> list[str]:
    """The tests that pytest's summary names, without their parameters."""
    return re.findall(r"^(?:FAILED|ERROR) ([^\s[]+)", output, re.MULTILINE)


class Trial(Checkout):
    """A copy of the checkout in which one fault at a time is tried."""

    def __init__(self, root: Path, folder: Path, budget: float, users: Users, kept: Path) -> None:
        super().__init__(root, folder / "checkout", budget, fast=True)
        self.folder, self.budget, self.users, self.kept = folder, budget, users, kept
        self.elsewhere = False
        self.recorded: dict[str, dict[str, Any]] = {}

    def pytest(
        self, tests: Sequence[str], seconds: float | None, *more: str, **variables: str
    ) -> tuple[int, str]:
        options = [
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "-o",
            "addopts=",
            "-m",
            FAST,
            "-rfE",
            "--tb=no",
        ]
        hang = ["-o", f"faulthandler_timeout={HANG}", "-o", "faulthandler_exit_on_timeout=true"]
        listed = self.folder / "tests"
        listed.write_text("\n".join(tests), encoding="utf-8")
        return self.run(
            ["-m", "pytest", "-q", f"--rootdir={self.path}", *options, *hang, *more, f"@{listed}"],
            seconds,
            **variables,
        )

    def calls(self, room: str) -> dict[str, Any]:
        """Of each test of a folder that passes: its seconds, and the functions that it calls."""
        out = self.kept / f"{room.replace('/', '-')}.json"
        if not out.exists():
            path = f"{self.path}{os.pathsep}{Path(__file__).parent}"
            hang = ["-o", "faulthandler_timeout=600"]
            variables = {"RECORDED_CALLS": str(out.absolute()), "PYTHONPATH": path}
            output = self.pytest([room], None, "-p", Path(__file__).stem, *hang, **variables)[1]
            if not out.exists():
                raise StaleList(f"tests of {room}: expected them to run, got\n{output[-3000:]}")
        if room not in self.recorded:
            self.recorded[room] = json.loads(out.read_text(encoding="utf-8"))
        return self.recorded[room]

    def tests_of(self, fault: Fault) -> tuple[list[str], list[str]]:
        """The tests that call the function of a fault, and others that may notice it."""
        file, line = fault.file.removeprefix("oxillama/"), fault.function
        own = [self.calls(room) for room in self.users.rooms_of(fault.file)]
        known = {name: what for tests in self.recorded.values() for name, what in tests.items()}
        callers = [
            (seconds, name)
            for name, (seconds, calls) in known.items()
            if any(called == file and line in (0, start) for called, start in calls)
        ]
        near = {
            test: self.users.is_near(test, fault.file) for test in {n.partition("::")[0] for _, n in callers}
        }
        first = [
            name for _, name in sorted(callers, key=lambda each: (not near[each[1].partition("::")[0]], each))
        ]
        rest = [name for tests in own for name in tests if name not in set(first)]
        return first, [*rest, *self.users.tests_beside(fault.file)]

    def judge(self, fault: Fault) -> Verdict:
        first, others = self.tests_of(fault)
        path, start = self.path / fault.file, time.perf_counter()
        data = path.read_bytes()
        verdict = Verdict(fault, "survived", test=f"({len(first)} tests call it)")
        try:
            path.write_bytes(fault.within(data))
            for tests in (first[:FIRST], first[FIRST:], others if self.elsewhere or not first else []):
                left = self.budget - (time.perf_counter() - start)
                if not tests:
                    continue
                code, output = self.pytest(tests, max(1.0, left), "-x", PYTHONDONTWRITEBYTECODE="1")
                if output == "hangs":
                    verdict.kind = "undecided"
                    break
                if code == USAGE and not re.search(r"\d errors? in ", output):  # no test ran
                    raise StaleList(f"{fault}: expected its tests to run, got\n{output[-3000:]}")
                if code not in (0, NO_TESTS):
                    verdict.kind, verdict.test = "noticed", (*failed(output), f"exit code {code}")[0]
                    break
        finally:
            path.write_bytes(data)
        verdict.seconds = time.perf_counter() - start
        return verdict

    def unsound(self, tests: Sequence[str]) -> set[str]:
        """Those that fail without any fault."""
        known = sorted({test for test in tests if "::" in test})
        return set(failed(self.pytest(known, None)[1])) if known else set()


def equivalents(root: Path) -> list[dict[str, str]]:
    path = root / "tools" / "random_mutants.toml"
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", []) if path.exists() else []
    wanted = {"file", "old", "new", "why"}
    assert all(entry.keys() - {"where"} == wanted for entry in entries), "file, old, new, why, perhaps where"
    return list(entries)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description="Which random faults do the fast tests not notice?")
    parser.add_argument("--n", type=int, default=300, help="faults that are tried")
    parser.add_argument("--skip", type=int, default=0, help="faults of the order that are left out before")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for the tests of one fault")
    parser.add_argument("--minutes", type=float, help="no fault is begun after them")
    parser.add_argument("--goal", type=float, default=92.0, help="percent that have to be noticed")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="files: oxillama/cache/*")
    parser.add_argument("--list", action="store_true", help="print the faults and run nothing")
    parser.add_argument("--calls", type=Path, help="a folder that keeps the recorded calls for the next time")
    parser.add_argument("--elsewhere", action="store_true", help="tests of other rooms, too, for every fault")
    parser.add_argument("--record", action="store_true", help="record the calls of all rooms and try nothing")
    parser.add_argument("--log", type=Path, help="a file that the verdicts are written to, too")
    options = parser.parse_args(arguments)
    known, users = equivalents(root), Users(root)
    faults = [
        fault
        for fault in faults_of(root)
        if any(fnmatchcase(fault.file, pattern) for pattern in options.only)
    ]
    chosen = list(islice(drawn(root, faults, options.seed), options.skip, options.skip + options.n))
    if options.list:
        print(*chosen, sep="\n")
        return 0
    verdicts: list[Verdict] = []
    end = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trial = Trial(root, Path(folder), options.budget, users, options.calls or Path(folder))
        trial.elsewhere = options.elsewhere
        if options.record:
            for room in sorted({room for fault in faults for room in users.rooms_of(fault.file)}):
                print(f"{room}: {len(trial.calls(room))} tests pass", flush=True)
            return 0
        for fault in chosen:
            if time.monotonic() > end:
                break
            reasons = [entry["why"] for entry in known if fault.is_of(entry)]
            verdict = Verdict(fault, "equivalent", test=reasons[0]) if reasons else trial.judge(fault)
            verdicts.append(verdict)
            print(verdict, flush=True)
            if options.log:
                with options.log.open("a", encoding="utf-8") as log:
                    print(verdict, file=log)
        failing = trial.unsound([verdict.test for verdict in verdicts if verdict.kind == "noticed"])
    for verdict in verdicts:
        if verdict.kind == "noticed" and verdict.test in failing:
            verdict.kind = "unsound"
    counts = Counter(verdict.kind for verdict in verdicts)
    n = counts["noticed"] + counts["survived"] + counts["unsound"]
    others = f"{counts['equivalent']} equivalent, {counts['undecided']} undecided"
    print(f"seed {options.seed}: {counts['noticed']} of {n} noticed, {others}")
    for verdict in verdicts:
        if verdict.kind != "noticed":
            print(f"  {verdict.kind}: {verdict.fault} {verdict.test}")
    return int(100 * counts["noticed"] < options.goal * n)


if __name__ == "__main__":
    sys.exit(main())
