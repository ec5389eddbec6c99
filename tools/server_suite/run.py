"""Runs llama-server's own test suite against `oxillama serve`.

    python tools/server_suite/run.py LLAMA_CPP [PYTEST ARGUMENTS]

LLAMA_CPP is a checkout of llama.cpp, or ``vendor/llama.cpp`` of the unpacked sdist of llama-cpp-python. Its
tests are copied to a folder outside of the checkout and run there with `shim.py` in place of llama-server;
`changes.toml` lists changes and known failures. The suite needs the extras ``test`` and ``server``, and
``pip install openai requests wget filelock``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from oxillama import demo
from tools.server_suite import models

QUIET = ("-p", "no:hypothesispytest")
"""Switches off a plugin that the suite does not need."""

DOWNLOADS = {
    "moe_shakespeare15M.gguf": demo.PIRATE,
    "stories15M-q4_0.gguf": demo.DRAFT,
}
"""Files that the suite would download, and the files that replace them."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=Path, metavar="LLAMA_CPP")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "server-suite", help="(default: build/server-suite)"
    )
    args, rest = parser.parse_known_args()
    tests = prepare(args.source.resolve(), args.folder.resolve())
    if not any(word.startswith("unit/") for word in rest):
        files = tomllib.loads((HERE / "changes.toml").read_text(encoding="utf-8"))["files"]
        rest = [*rest, *(f"unit/{name}" for name in files)]
    shim = args.folder.resolve() / "llama-server"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "shim.py"} "$@"\n', encoding="utf-8")
    shim.chmod(0o755)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {
        **os.environ,
        "LLAMA_SERVER_BIN_PATH": str(shim),
        "SUITE_MODELS": str(args.folder.resolve() / "replaced-models"),
        "PYTHONPATH": path,
    }
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tools.server_suite.plugin",
        *QUIET,
        "-m",
        "not slow",
        *rest,
    ]
    return subprocess.run(words, cwd=tests, env=environment).returncode


def prepare(source: Path, folder: Path) -> Path:
    """Fills the folder in which the suite runs; returns the path of the suite's copy."""
    tests = folder / "tools" / "server" / "tests"
    shutil.rmtree(tests, ignore_errors=True)
    shutil.copytree(source / "tools" / "server" / "tests", tests)
    for entry in tomllib.loads((HERE / "changes.toml").read_text(encoding="utf-8"))["replaced"]:
        path = tests / "unit" / entry["file"]
        text = path.read_text(encoding="utf-8")
        n = text.count(entry["old"])
        assert n == entry.get("times", 1), f"{entry['file']}: {entry['old']} occurs {n} times"
        path.write_text(text.replace(entry["old"], entry["new"]), encoding="utf-8")
    link = folder / "models"
    if not link.exists():
        link.symlink_to(source / "models")
    picture = Path("tools", "mtmd", "test-1.jpeg")  # a copy: --media-path does not follow links
    (folder / picture).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / picture, folder / picture)
    (tests / "tmp").mkdir(exist_ok=True)
    for name, path in DOWNLOADS.items():
        shutil.copy(path, tests / "tmp" / name)
    made = folder / "replaced-models"
    shutil.rmtree(made, ignore_errors=True)
    models.make_all(made, models.texts_of(tests / "unit"))
    return tests


if __name__ == "__main__":
    sys.exit(main())
