"""Kernels and engine under gcc's address and undefined-behaviour sanitizers: a part.

It builds the kernels and takes eleven minutes on two cores that have much else to do.

``python tools/sanitize.py`` runs all of it, in a quarter of an hour.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TOOL = ROOT / "tools" / "sanitize.py"
PART = [
    "tests/_kernels/test_bad_arguments.py",
    "tests/_kernels/test_low_rank.py",
    "tests/_kernels/test_recurrent.py",
    "tests/engine/cache",
    "tests/engine/sampling/test_sampler_garbage.py",
    "tests/engine/test_same_bits.py",
    "tests/models/adapters/test_engine_adapters.py",
    "tests/sessions/test_session.py",
]
"""Every kernel with every argument wrong, and batches of all kinds of models through the engine."""


def has_sanitizers() -> bool:
    """Whether the compiler is a gcc for x86 with libasan."""
    compiler = os.environ.get("CC", "gcc").split()[-1]
    if platform.machine() not in ("x86_64", "AMD64") or shutil.which(compiler) is None:
        return False
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True)
    return os.path.isabs(found.stdout.strip())


@pytest.mark.slow
@pytest.mark.skipif(not TOOL.is_file(), reason="only the package was unpacked")
@pytest.mark.skipif(not has_sanitizers(), reason="there is no gcc with libasan for x86 here")
@pytest.mark.skipif(find_spec("Cython") is None, reason="Cython is not installed, which builds the kernels")
def test_a_part_under_the_sanitizers(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOL), "--folder", str(tmp_path / "checkout"), *PART]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    assert " passed" in done.stdout
