"""Builds the kernels with gcc's address and undefined-behaviour sanitizers and runs tests under them.

Usage: ``python tools/sanitize.py [--folder FOLDER] [--targets TARGETS] [TESTS OR PYTEST OPTIONS...]``.

The build is in a copy of the checkout, so that the checkout's kernels do not change. A second run compiles
only what has changed. The first report of a sanitizer ends the run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".git", "build", "*.so", "*.c", "__pycache__", ".*_cache", "*.egg-info")
TESTS = ["tests/_kernels", "tests/engine", "tests/text/grammar"]


def copy(folder: Path) -> None:
    """Updates the sources in ``folder``, and keeps what was built there."""
    for part in ("tests", "benchmarks"):  # a deleted test must not run
        shutil.rmtree(folder / part, ignore_errors=True)
    shutil.copytree(CHECKOUT, folder, ignore=LEFT_OUT, dirs_exist_ok=True, copy_function=copy_changed)


def copy_changed(source: str, target: str) -> None:
    if not os.path.exists(target) or os.stat(source).st_mtime != os.stat(target).st_mtime:
        shutil.copy2(source, target)


def environment() -> dict[str, str]:
    """Environment variables that make Python load the sanitizers first, and allocate with malloc."""
    compiler = os.environ.get("CC", "gcc").split()[-1]
    library = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(library):
        raise SystemExit(f"CC: expected a gcc with libasan, got {compiler}")
    return {
        **os.environ,
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "oxillama-sanitize"))
    parser.add_argument("--targets", default="avx2 portable", help="see setup.py; default: %(default)s")
    parser.add_argument("--build-only", action="store_true")
    arguments, rest = parser.parse_known_args()
    copy(arguments.folder)
    build = {**os.environ, "OXILLAMA_DEBUG": "sanitize", "OXILLAMA_TARGETS": arguments.targets}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=arguments.folder, env=build, check=True)
    if arguments.build_only:
        return 0
    options = ("-p", "no:cacheprovider", "-n0", "--capture=sys")
    command = [sys.executable, "-m", "pytest", *options, *(rest or TESTS)]
    return subprocess.run(command, cwd=arguments.folder, env=environment()).returncode


if __name__ == "__main__":
    raise SystemExit(main())
