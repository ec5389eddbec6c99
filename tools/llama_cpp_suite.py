"""Runs llama-cpp-python's own tests against `oxillama.compat.llama_cpp`.

    cd SDIST && python tools/llama_cpp_suite.py MODELS [PYTEST ARGUMENTS]

SDIST is the unpacked source distribution of llama-cpp-python, with ``tests`` and ``vendor``. Small models
replace the models of the Hugging Face Hub that the tests load: the story model, and llama.gguf, bert.gguf,
mamba.gguf and granitehybrid.gguf in the folder MODELS. The tests need the extra ``test`` and ``pip install
scipy``.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import huggingface_hub
import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from oxillama import demo
from oxillama.compat.llama_cpp import install

REPLACED = {
    "Qwen3.5-0.8B": "story",
    "stories15M": "llama",
    "bge-small": "bert",
    "mamba-130m": "mamba",
    "Falcon-H1": "granitehybrid",
}
"""By a part of the file name of a model that the tests load, the model that replaces it."""

CANNOT_APPLY = {
    "test_real_model": "calls the classes over the C interface",
    "test_real_llama": "expects the text of a model of the Hub",
    "test_real_llama_repeated_prompt_cache": "expects the text of a model of the Hub",
}
"""Tests that fail, and why. All other tests pass."""


class Report:
    """A pytest plugin that collects the names of failed tests."""

    def __init__(self) -> None:
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid.rpartition("::")[2])


def main() -> int:
    folder, *rest = sys.argv[1:]
    package = install()
    internals = types.ModuleType("llama_cpp._internals")  # imported by the tests, used by one
    sys.modules["llama_cpp._internals"] = package._internals = internals  # type: ignore[attr-defined]

    def downloaded(repo_id: str, filename: str) -> str:
        name = next(name for part, name in REPLACED.items() if part in filename)
        return str(demo.STORY if name == "story" else Path(folder, f"{name}.gguf").resolve())

    huggingface_hub.hf_hub_download = downloaded
    report = Report()
    quiet = ("--override-ini", "addopts=", "-p", "no:cacheprovider", "-q")
    pytest.main(["tests", "--rootdir", ".", *quiet, *rest], plugins=[report])
    others = report.failed - set(CANNOT_APPLY)
    print("Failed and not listed:", ", ".join(sorted(others)) or "none")
    return bool(others)


if __name__ == "__main__":
    sys.exit(main())
