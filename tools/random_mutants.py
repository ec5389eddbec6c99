"""Puts random faults into copies of the checkout and reports which of them the fast tests notice.

    python tools/random_mutants.py [--n 60] [--seed S] [--minutes M] [--jobs J] [--only PATTERN ...] [--list]
    python tools/random_mutants.py --kernels [NAME ...]

A fault changes one place of one Python module of oxillama/: an operator, a comparison, a number by one, `and`
for `or`, a condition negated, True for False, or a statement left out. The lines are drawn at random, then a
fault of each line. A copy has one fault at a time. The test files nearest to the fault (see `Tests.nearest`)
run until the first failure. A fault is

noticed   : a test fails, crashes or hangs.
survived  : at most `FILES` files pass: the first `FIRST` whole, the others with one case of each test.
undecided : the tests take more than `--budget` seconds. The fault does not count.
skipped   : all tests are skipped, perhaps because a package is missing. The fault does not count.
unsound   : the test that failed fails without the fault, too. The fault counts as not noticed.

`--kernels` tries the faults of `tools/kernel_mutants.toml` instead. They change the source of a kernel, which
is compiled again for the portable target; the tests run without the kernels of other targets.

The exit code is 1 if fewer than `--goal` percent of the faults that count are noticed, or if fewer than half
count.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import inspect
import math
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from random import Random, randrange

import pytest

ROOT = Path(__file__).resolve().parents[1]
KERNEL, KERNEL_FAULTS = "kernel", "tools/kernel_mutants.toml"
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "venv")
NOT_DRAWN = ("oxillama/_kernels/*", "oxillama/base/version.py")  # run when the kernels are built
NAMES, ONE_CASE = "FAULT_NAMES", "ONE_CASE"  # environment variables for the plugin
FIRST, FILES = 3, 10  # test files of the first run of pytest, and of both runs
NO_TESTS = 5  # pytest's exit code if no test is selected
HANG = 15  # seconds after which pytest ends a test as hanging
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


# --- faults -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """Bytes `start` to `end` of a file become `new`; `names` are the class and the function around them."""

    file: str
    line: int
    kind: str
    start: int
    end: int
    old: str
    new: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        old, new = (re.sub(r"\s+", " ", text).strip() for text in (self.old, self.new))
        return f"{self.file}:{self.line} {self.kind}: {old[:90]}  ->  {new[:90]}"

    def within(self, data: bytes) -> bytes:
        """The bytes of the file with this fault."""
        return data[: self.start] + self.new.encode() + data[self.end :]


class Finder(ast.NodeVisitor):
    """The faults that a module can be given."""

    def __init__(self, file: str, data: bytes) -> None:
        self.file, self.data = file, data
        self.found: list[Fault] = []
        self.names: tuple[str, ...] = ()
        self.starts = [0]
        for line in data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def add(self, node: ast.expr | ast.stmt, kind: str, new: str) -> None:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        old = self.data[start:end].decode()
        lines = "\n" * old.count("\n")
        new = f"({new}{lines})" if isinstance(node, ast.expr) else new + lines
        self.found.append(Fault(self.file, node.lineno, kind, start, end, old, new, self.names))

    def changed(self, node: ast.expr, kind: str, **fields: object) -> None:
        values = {name: getattr(node, name) for name in node._fields}
        new = type(node)(**{**values, **fields})
        self.add(node, kind, ast.unparse(ast.fix_missing_locations(new)))

    def negated(self, test: ast.expr) -> None:
        self.add(test, "condition negated", f"not ({ast.unparse(test)})")

    def visit_Compare(self, node: ast.Compare) -> None:
        for i, op in enumerate(node.ops):
            self.changed(node, "comparison", ops=[*node.ops[:i], FLIPPED[type(op)](), *node.ops[i + 1 :]])
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
        """Nothing: before Python 3.12 positions inside an f-string are not positions of the file."""

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
        """Nothing: an assertion is true in a program without faults."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """Nothing: an annotation has no effect."""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Not the decorators: an option of `dataclass` such as frozen=True does not change correct code."""
        self.inside(node.name, node.body)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.decorator_list, node.args):  # not `returns`, an annotation
            self.visit(part)
        self.inside(node.name, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def inside(self, name: str, body: Iterable[ast.stmt]) -> None:
        outside, self.names = self.names, (*self.names, name)
        for part in body:
            self.visit(part)
        self.names = outside

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, DELETED) and has_effect(node):
            self.add(node, "left out", "pass")
        super().generic_visit(node)


def has_effect(node: ast.AST) -> bool:
    """Whether a test can notice that a statement is missing."""
    value = getattr(node, "value", None)
    if isinstance(node, ast.Expr):  # not a docstring or "..."
        return not isinstance(value, ast.Constant)
    if isinstance(node, ast.Return):  # a "return" or "return None" may be the last statement
        return not (value is None or (isinstance(value, ast.Constant) and value.value is None))
    if isinstance(node, ast.Raise):  # the body of an abstract method
        return "NotImplementedError" not in ast.unparse(node)
    if isinstance(node, ast.Assign):
        target = ast.unparse(node.targets[0])
        is_type = target[0].isupper() and not target.isupper() and isinstance(value, ast.Subscript)
        return not is_type and target not in ("__all__", "__slots__")  # "Tokens = Sequence[int]" is a type
    return True


def faults_of(root: Path, patterns: Sequence[str] = ("*",)) -> list[Fault]:
    """The faults of the modules whose paths fit a pattern, in the order of paths and lines."""
    found: list[Fault] = []
    for path in sorted((root / "oxillama").rglob("*.py")):
        file = path.relative_to(root).as_posix()
        is_drawn = any(fnmatchcase(file, pattern) for pattern in patterns)
        if is_drawn and not any(fnmatchcase(file, pattern) for pattern in NOT_DRAWN):
            finder = Finder(file, path.read_bytes())
            finder.visit(ast.parse(finder.data))
            found += sorted(finder.found, key=lambda fault: (fault.start, fault.new))
    return found


def drawn(root: Path, faults: Sequence[Fault], seed: int) -> Iterator[Fault]:
    """One fault of each line, in a random order of lines: first its kind is drawn, then the fault."""
    rng = Random(seed)
    lines: dict[tuple[str, int], list[Fault]] = {}
    for fault in faults:
        lines.setdefault((fault.file, fault.line), []).append(fault)
    places = sorted(lines)
    rng.shuffle(places)
    for place in places:
        kind = rng.choice(sorted({fault.kind for fault in lines[place]}))
        fault = rng.choice([fault for fault in lines[place] if fault.kind == kind])
        with contextlib.suppress(SyntaxError):  # a nonlocal name needs an assignment that "pass" takes away
            compile(fault.within((root / fault.file).read_bytes()), fault.file, "exec")
            yield fault


# --- tests ------------------------------------------------------------------------------------------


class Tests:
    """Finds the files of tests that are near a module by their names, folders and imports."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules = {self._name(path): path for path in sorted((root / "oxillama").rglob("*.py"))}
        self.tests = sorted((root / "tests").rglob("test_*.py"))

    def nearest(self, fault: Fault) -> list[str]:
        """At most `FILES` paths, the most likely to notice a fault first.

        A file of tests gets 4 points if its name contains the module's name, 2 for each folder that the paths
        below oxillama/ and tests/ have in common, 2 if its text contains the name of the function or class
        with the fault, 3 if it imports the module, 2 or 1 if one or two imports are in between.
        """
        path = self.root / fault.file
        name = self._name(path)
        stem = name.rpartition(".")[2].strip("_")
        names = [each for each in fault.names if not each.startswith("__")]
        folders = path.relative_to(self.root / "oxillama").with_suffix("").parts
        importing = [{name}]
        for _ in range(2):
            importing.append(
                {other for other, its in self.modules.items() if importing[-1] & self.imported(its)}
            )
        points = {}
        for test in self.tests:
            there = test.relative_to(self.root / "tests").parent.parts
            n = 4 * (stem in test.stem.split("_", 1)[1])
            n += 2 * next((i for i, (a, b) in enumerate(zip(folders, there)) if a != b), len(there))
            n += 2 * any(each in self.words(test) for each in names)
            n += next((3 - i for i, modules in enumerate(importing) if modules & self.imported(test)), 0)
            if n:
                points[test.relative_to(self.root).as_posix()] = (-n, test.stat().st_size)
        return sorted(points, key=lambda test: points[test])[:FILES]

    def _name(self, path: Path) -> str:
        parts = path.relative_to(self.root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @functools.cache  # noqa: B019
    def words(self, path: Path) -> frozenset[str]:
        return frozenset(re.findall(r"\w+", path.read_text(encoding="utf-8")))

    @functools.cache  # noqa: B019
    def imported(self, path: Path) -> frozenset[str]:
        """The modules that a file imports, or from which it imports a name."""
        found = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found |= {self._origin(node.module, alias.name) for alias in node.names}
        return frozenset(name for name in found if name.startswith("oxillama"))

    @functools.cache  # noqa: B019
    def _origin(self, module: str, name: str) -> str:
        """The module that defines a name of a package, as far as the package's `__init__` shows it."""
        if f"{module}.{name}" in self.modules:
            return f"{module}.{name}"
        path = self.modules.get(module)
        if path is not None and path.name == "__init__.py":
            text = path.read_text(encoding="utf-8")
            for source in (r"from ([\w.]+) import (?:\([^)]*|[^\n]*)", r'"([\w.]+)": [^\n]*'):
                for match in re.finditer(source, text):
                    if re.search(rf"\b{re.escape(name)}\b", match[0]) and match[1] in self.modules:
                        return match[1]
        return module


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Sorts the tests of each file, in pytest, which loads this module as a plugin.

    First come the tests whose source has a name of the function or class with the fault, then the others,
    with one case of each parametrized test. All other cases follow, or are left out if `ONE_CASE` is set.
    """
    names, tests = set(os.environ[NAMES].split()), set()
    files: dict[Path, int] = {}
    places: dict[pytest.Item, tuple[int, int]] = {}
    for item in items:
        test = item.nodeid.partition("[")[0]
        source = inspect.getsource(item.function) if isinstance(item, pytest.Function) else ""
        rank = 2 if test in tests else int(names.isdisjoint(re.findall(r"\w+", source)))
        places[item] = (files.setdefault(item.path, len(files)), rank)
        tests.add(test)
    items.sort(key=lambda item: places[item])
    if os.environ[ONE_CASE]:
        config.hook.pytest_deselected(items=[item for item in items if places[item][1] == 2])
        items[:] = [item for item in items if places[item][1] < 2]


# --- trials -----------------------------------------------------------------------------------------


@dataclass
class Verdict:
    fault: Fault
    kind: str = "survived"
    seconds: float = 0.0
    test: str = ""

    def __str__(self) -> str:
        return f"{self.kind:9} {self.seconds:5.1f} s  {self.fault}  {self.test}"


class Checkout:
    """A copy of a checkout, in which tests run."""

    def __init__(self, root: Path, copy: Path) -> None:
        shutil.copytree(root, copy, ignore=LEFT_OUT)
        self.path = copy
        self.run("-m", "compileall", "-q", "oxillama", "tests")

    def run(self, *arguments: str, seconds: float | None = None, **variables: str) -> tuple[int, str]:
        """Exit code and output of Python with these arguments. Raises TimeoutExpired."""
        with subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.path,
            env={**os.environ, "PYTHONPATH": str(self.path), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # a process group, where the system has process groups
        ) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
                return process.returncode, output
            finally:
                process.kill()
                if os.name == "posix":  # the processes that tests have started
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)

    def test(
        self, tests: Sequence[str], *more: str, names: Sequence[str] = (), one_case: bool = False,
        seconds: float | None = None,
    ) -> tuple[int, str]:  # fmt: skip
        """Exit code and output of fast tests, with pytest's options ``more``. Raises TimeoutExpired."""
        plain = ("-v", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", "-m", "not slow")
        hang = ("-o", f"faulthandler_timeout={HANG}", "-o", "faulthandler_exit_on_timeout=true")
        options = (*plain, *hang, "-p", Path(__file__).stem, "-rfE", "--tb=no", f"--rootdir={self.path}")
        path = f"{self.path}{os.pathsep}{Path(__file__).parent}"
        variables = {NAMES: " ".join(names), ONE_CASE: one_case * "1", "PYTHONDONTWRITEBYTECODE": "1"}
        command = ("-m", "pytest", *options, *more, *tests)
        return self.run(*command, seconds=seconds, PYTHONPATH=path, **variables)

    def build(self) -> None:
        """Compiles the kernels of the portable target. Raises SystemExit."""
        code, output = self.run("setup.py", "-q", "build_ext", "--inplace", OXILLAMA_TARGETS="portable")
        if code:
            sys.exit(f"the kernels do not compile:\n{output[-3000:]}")

    def judge(self, fault: Fault, tests: Sequence[str], budget: float) -> Verdict:
        """Puts a fault in, runs its tests until one fails, takes the fault out."""
        path, start = self.path / fault.file, time.monotonic()
        data, times = path.read_bytes(), path.stat()
        verdict = Verdict(fault, test=f"({len(tests)} files of tests)")
        outputs = ""
        try:
            path.write_bytes(fault.within(data))
            if fault.kind == KERNEL:
                self.build()
                start = time.monotonic()
            for part, one_case in ((tests[:FIRST], False), (tests[FIRST:], True)):
                if not part:
                    continue
                left = max(1.0, budget - (time.monotonic() - start))
                code, output = self.test(part, "-x", names=fault.names, one_case=one_case, seconds=left)
                outputs += output
                if code not in (0, NO_TESTS):
                    verdict.kind, verdict.test = "noticed", (*failed(output), f"exit code {code}")[0]
                    break
            if tests and verdict.kind == "survived" and " passed" not in outputs:
                verdict.kind = "skipped"
        except subprocess.TimeoutExpired:
            verdict.kind = "undecided"
        finally:
            path.write_bytes(data)
            if fault.kind != KERNEL:  # Python's compiled file is valid again; a kernel must be compiled again
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        verdict.seconds = time.monotonic() - start
        return verdict


def failed(output: str) -> list[str]:
    """The tests in pytest's summary, without parameters; the last test that began if there is no summary."""
    begun = re.findall(r"^(tests/\S+?::[^\s[]+)", output, re.MULTILINE)
    return re.findall(r"^(?:FAILED|ERROR) ([^\s[]+)", output, re.MULTILINE) or begun[-1:]


def try_all(
    root: Path, faults: Sequence[Fault], budget: float = 60.0, minutes: float = math.inf, jobs: int = 1
) -> list[Verdict]:
    """Tries faults in as many copies as jobs; none is begun after the minutes. Raises SystemExit if pytest
    fails without a fault, because every fault would count as noticed."""
    tests, end = Tests(root), time.monotonic() + 60 * minutes
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        free: queue.Queue[Checkout] = queue.Queue()
        for job in range(jobs):
            free.put(Checkout(root, Path(folder, f"checkout-{job}")))
        for near in (tests.nearest(fault)[:1] for fault in faults[:1]):
            code, output = free.queue[0].test(near, "--collect-only") if near else (0, "")
            if code not in (0, NO_TESTS):
                sys.exit(f"pytest fails without a fault:\n{output[-2000:]}")

        def judge(fault: Fault) -> Verdict | None:
            checkout = free.get()
            try:
                late = time.monotonic() > end
                return None if late else checkout.judge(fault, tests.nearest(fault), budget)
            finally:
                free.put(checkout)

        def failing(names: list[str]) -> list[str]:
            checkout = free.get()
            try:
                code, output = checkout.test(names) if names else (0, "")
                return failed(output) if code else []
            finally:
                free.put(checkout)

        for verdict in filter(None, pool.map(judge, faults)):
            print(verdict, flush=True)
            verdicts.append(verdict)
        noticed = sorted({each.test for each in verdicts if each.test.startswith("tests/")})
        wrong = set().union(*pool.map(failing, (noticed[job::jobs] for job in range(jobs))))
    for verdict in verdicts:
        if verdict.test in wrong:
            verdict.kind = "unsound"
    return verdicts


def kernel_faults(root: Path, names: Sequence[str]) -> list[tuple[Fault, list[str]]]:
    """The faults of the list, by names, or all, with their tests. Raises SystemExit for a stale entry."""
    entries = tomllib.loads((root / KERNEL_FAULTS).read_text(encoding="utf-8"))["mutant"]
    found, stale = [], set(names) - {entry["name"] for entry in entries}
    for entry in (entry for entry in entries if not names or entry["name"] in names):
        file, old = f"oxillama/_kernels/{entry['file']}", entry["old"].encode()
        data = (root / file).read_bytes() if (root / file).exists() else b""
        tests = []
        for test in entry["tests"]:
            name, colons, function = test.partition("::")
            for path in (root / "tests").rglob(name):
                if not function or f"def {function.partition('[')[0]}(" in path.read_text(encoding="utf-8"):
                    tests.append(f"{path.relative_to(root).as_posix()}{colons}{function}")
        if data.count(old) != 1 or len(tests) != len(entry["tests"]):
            stale.add(entry["name"])
            continue
        start = data.index(old)
        place = (file, data[:start].count(b"\n") + 1, KERNEL, start, start + len(old))
        found.append((Fault(*place, entry["old"], entry["new"], (entry["name"],)), tests))
    if stale:
        sys.exit(f"{KERNEL_FAULTS}: expected one place in the file, and the tests, of {sorted(stale)}")
    return found


def try_kernels(root: Path, chosen: Sequence[tuple[Fault, list[str]]]) -> list[Verdict]:
    """Tries faults of kernels. Raises SystemExit if the tests fail without a fault."""
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        checkout = Checkout(root, Path(folder, "checkout"))
        checkout.build()
        kernels = checkout.path / "oxillama/_kernels"
        for portable in kernels.rglob("*_portable.*"):  # results of other targets would show any difference
            for path in portable.parent.glob(portable.name.replace("_portable.", "_*.")):
                if path != portable and path.suffix in (".so", ".pyd"):
                    path.unlink()
        code, output = checkout.test(sorted({test for _, tests in chosen for test in tests}))
        if code:
            sys.exit(f"the tests fail without a fault:\n{output[-3000:]}")
        for fault, tests in chosen:
            verdicts.append(checkout.judge(fault, tests, 600.0))
            print(fault.names[0], verdicts[-1], flush=True)
    return verdicts


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description="Which random faults do the fast tests not notice?")
    parser.add_argument("--n", type=int, default=60, help="faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the draw (default: another one each time)")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for the tests of one fault")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no fault is begun after them")
    parser.add_argument("--jobs", type=int, default=1, help="faults that are tried at the same time")
    parser.add_argument("--goal", type=float, default=90.0, help="percent that have to be noticed")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="files: oxillama/gguf/*")
    parser.add_argument("--list", action="store_true", help="print the faults and run nothing")
    parser.add_argument("--kernels", nargs="*", metavar="NAME", help=f"the faults of {KERNEL_FAULTS}")
    options = parser.parse_args(arguments)
    seed = randrange(10**6) if options.seed is None else options.seed
    kernels = None if options.kernels is None else kernel_faults(root, options.kernels)
    if kernels is None:
        print(f"seed {seed}", flush=True)
        faults = list(islice(drawn(root, faults_of(root, options.only), seed), options.n))
    else:
        faults = [fault for fault, _ in kernels]
    if options.list:
        print(*faults, sep="\n")
        return 0
    if kernels is None:
        verdicts = try_all(root, faults, options.budget, options.minutes, options.jobs)
    else:
        verdicts = try_kernels(root, kernels)
    counts = Counter(verdict.kind for verdict in verdicts)
    n = counts["noticed"] + counts["survived"] + counts["unsound"]
    print(f"{counts['noticed']} of {n} noticed; {counts['undecided']} undecided, {counts['skipped']} skipped")
    for verdict in verdicts:
        if verdict.kind != "noticed":
            print(f"  {verdict}")
    return int(100 * counts["noticed"] < options.goal * n or 2 * n < len(faults))


if __name__ == "__main__":
    sys.exit(main())
