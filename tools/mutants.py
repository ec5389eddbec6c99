"""Puts faults into a copy of the checkout, one at a time, and says which of them the tests do not notice.

    python tools/mutants.py [--list] [--fast] [--timeout SECONDS] [NAME ...]

A NAME is a mutant, a file of the list without ``.toml``, or a pattern (``cache-*``); none means all. The
list is ``tools/mutants/*.toml``, whose entries are tables ``[[mutant]]``:

name : unique; says the fault.
file : the source, from the checkout's root.
old, new : the text that is replaced, which must occur exactly once, and what takes its place.
tests : the files or tests, as pytest takes them, that should fail; they run in the order of their names.
rebuild : true for a source of the kernels: they are compiled again, for `target` only, and the tests run
    without the other targets, whose results would give any difference away.
target : "portable" if not given.
equivalent : why no test can notice it; such a mutant is listed but not run.

A fault is killed if its tests fail, crash or hang. Its fast tests run first; if they pass, those that are
marked as slow run too, unless ``--fast`` is given. ``--list --fast`` names the entries without a fast test.
Exits with 1 if a fault survives, or the list is stale: a text occurs not once, a fault does not compile, or
the tests fail without any fault.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAST, SLOW = "not slow", "slow"  # pytest's -m; the tests that are selected do not depend on pyproject.toml
NO_TESTS = 5  # pytest's exit code where none is selected
SLOW_TIMES = 10  # as long as fast tests may the slow ones of a mutant take
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "dist", "venv")


class StaleList(Exception):
    """The list does not fit the checkout."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One entry of the list; `group` is the file that it stands in."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    rebuild: bool = False
    target: str = "portable"
    equivalent: str = ""
    group: str = ""

    def check(self, root: Path) -> None:
        """Raises StaleList if the text that it replaces does not occur exactly once."""
        path = root / self.file
        n = path.read_text(encoding="utf-8").count(self.old) if path.is_file() and self.old else 0
        if n != 1 or self.old == self.new:
            raise StaleList(
                f"{self.name}: expected its text once in {self.file}, and another one, got it {n} times"
            )


def read_list(folder: Path, names: Sequence[str] = ()) -> list[Mutant]:
    """The mutants with these names, or all. Raises StaleList for a malformed entry or an unknown name."""
    found: list[Mutant] = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", []):
            try:
                found.append(Mutant(**{**entry, "tests": tuple(sorted(entry["tests"]))}, group=path.stem))
            except (TypeError, KeyError) as error:
                raise StaleList(f"{path.name}: {entry.get('name')}: {error}") from None
    twice = [name for name, n in Counter(mutant.name for mutant in found).items() if n > 1]
    unknown = [name for name in names if not any(is_named(mutant, [name]) for mutant in found)]
    if twice or unknown:
        raise StaleList(f"names: expected known and different ones, got {', '.join(twice + unknown)}")
    return [mutant for mutant in found if not names or is_named(mutant, names)]


def is_named(mutant: Mutant, names: Iterable[str]) -> bool:
    return any(mutant.group == name or fnmatchcase(mutant.name, name) for name in names)


class Checkout:
    """A copy of a checkout, in which tests run; only the fast ones if `fast`."""

    def __init__(self, root: Path, copy: Path, timeout: float, fast: bool) -> None:
        shutil.copytree(root, copy, ignore=LEFT_OUT)
        self.path = copy
        self.timeouts = {FAST: timeout} if fast else {FAST: timeout, SLOW: SLOW_TIMES * timeout}

    def run(
        self, arguments: Sequence[str], timeout: float | None = None, **variables: str
    ) -> tuple[int, str]:
        """Exit code and output of Python with these arguments; 1 and a note if it takes too long."""
        env = {**os.environ, "PYTHONPATH": str(self.path), **variables}
        with subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.path,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # a process group of its own, where there are such
        ) as process:
            try:
                output, _ = process.communicate(timeout=timeout)
                return process.returncode, output
            except subprocess.TimeoutExpired:
                return 1, "hangs"
            finally:
                process.kill()
                if os.name == "posix":  # what a test has started, too
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)

    def test(self, tests: Iterable[str], limited: bool, **variables: str) -> tuple[int, str]:
        """Exit code and output of the fast or the slow tests, whichever fail first; 0 and "" if all pass.

        Too long a time is a failure if `limited`.
        """
        for marked, timeout in self.timeouts.items():
            plain = ("-p", "no:cacheprovider", "-o", "addopts=")
            arguments = ["-m", "pytest", "-x", "-q", *plain, "-m", marked, *tests]
            code, output = self.run(arguments, timeout if limited else None, **variables)
            if code not in (0, NO_TESTS):
                return code, output
        return 0, ""

    def build(self, target: str) -> tuple[int, str]:
        return self.run(["setup.py", "-q", "build_ext", "--inplace"], OXILLAMA_TARGETS=target)

    def check_tests(self, mutants: Iterable[Mutant]) -> None:
        """Raises StaleList if their tests fail without any fault."""
        code, output = self.test(sorted({test for mutant in mutants for test in mutant.tests}), limited=False)
        if code:
            raise StaleList(f"tests: expected them to pass without a fault, got\n{output[-3000:]}")

    def keep_target(self, target: str) -> None:
        """Builds the kernels of one target and removes the others."""
        from oxillama.targets import TARGETS

        code, output = self.build(target)
        if code:
            raise StaleList(f"kernels: expected them to compile without a fault, got\n{output[-3000:]}")
        for other in {row.name for row in TARGETS} - {target}:
            for path in (self.path / "oxillama" / "_kernels").rglob(f"*_{other}.*"):
                if path.suffix in (".so", ".pyd"):
                    path.unlink()

    def is_killed(self, mutant: Mutant) -> bool:
        """Puts a fault in, runs its tests, takes it out. Raises StaleList if it does not compile."""
        path = self.path / mutant.file
        text, times = path.read_bytes(), path.stat()
        try:
            path.write_bytes(text.replace(mutant.old.encode(), mutant.new.encode()))
            if mutant.rebuild:
                code, output = self.build(mutant.target)
                if code:
                    raise StaleList(f"{mutant.name}: expected it to compile, got\n{output[-3000:]}")
            return self.test(mutant.tests, limited=True, PYTHONDONTWRITEBYTECODE="1")[0] != 0
        finally:
            path.write_bytes(text)
            if not mutant.rebuild:  # what was compiled of the source counts again; kernels have to be rebuilt
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def without_fast_tests(root: Path, mutants: Sequence[Mutant]) -> list[str]:
    """The names of those whose tests are all marked as slow. Raises StaleList if the tests are not found."""
    files = sorted({test.partition("::")[0] for mutant in mutants for test in mutant.tests})
    arguments = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", "-m", FAST]
    done = subprocess.run(
        # without the options of pyproject.toml: a test a line
        [*arguments, "-o", "addopts=", "-q", *files],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode not in (0, NO_TESTS):
        raise StaleList(f"tests: expected them to be found, got\n{done.stdout[-3000:]}")
    fast = [line for line in done.stdout.splitlines() if "::" in line]

    @functools.cache
    def is_fast(test: str) -> bool:  # a file, a class, a test, or one parametrization of a test
        return any(re.match(re.escape(test) + r"($|::|\[)", line) for line in fast)

    return [mutant.name for mutant in mutants if not any(map(is_fast, mutant.tests))]


def run(root: Path, mutants: Sequence[Mutant], timeout: float, fast: bool) -> list[str]:
    """Prints what becomes of each mutant; returns the names of those that survive. Raises StaleList."""
    survivors = []
    key = lambda mutant: mutant.target if mutant.rebuild else ""  # noqa: E731
    for target, group in groupby(sorted(mutants, key=key), key=key):
        chosen = list(group)
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            checkout = Checkout(root, Path(folder, "checkout"), timeout, fast)
            if target:
                checkout.keep_target(target)
            checkout.check_tests(chosen)
            for mutant in chosen:
                start = time.perf_counter()
                killed = checkout.is_killed(mutant)
                verdict = "killed  " if killed else "SURVIVED"
                print(f"{verdict} {time.perf_counter() - start:5.1f} s  {mutant.name}", flush=True)
                survivors += [] if killed else [mutant.name]
    return survivors


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description="Which faults do the tests not notice?")
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants, files of the list, or patterns")
    parser.add_argument("--list", action="store_true", help="check the list and print it; run nothing")
    parser.add_argument("--fast", action="store_true", help="without the tests that are marked as slow")
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        help=f"seconds for the fast tests of one mutant, {SLOW_TIMES} times as many for its slow ones",
    )
    options = parser.parse_args(arguments)
    try:
        mutants = read_list(root / "tools" / "mutants", options.names)
        for mutant in mutants:
            mutant.check(root)
            if options.list and not options.fast:
                note = f"equivalent: {mutant.equivalent}" if mutant.equivalent else " ".join(mutant.tests)
                print(f"{mutant.name}  ({mutant.file})  {note}")
        chosen = [mutant for mutant in mutants if not mutant.equivalent]
        if options.list and options.fast:
            slow = without_fast_tests(root, chosen)
            print(f"{len(chosen) - len(slow)} of {len(chosen)} have fast tests", *slow, sep="\n  only slow: ")
        survivors = [] if options.list else run(root, chosen, options.timeout, options.fast)
    except StaleList as error:
        print(f"the list is stale: {error}", file=sys.stderr)
        return 1
    if not options.list:
        n = len(chosen)
        print(
            f"{n - len(survivors)} of {n} killed, {len(mutants) - n} equivalent",
            *survivors,
            sep="\n  survived: ",
        )
    return int(bool(survivors))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
