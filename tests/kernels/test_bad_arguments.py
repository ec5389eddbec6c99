"""Whatever a kernel is given ends in an exception: it checks its arguments in the build that is shipped."""

from __future__ import annotations

import subprocess
import sys

import pytest

from oxillama.targets import PER_TARGET
from tests.support.kernel_calls import OF_TARGET, check_complete
from tests.support.kernels import PRESENT
from tests.support.paths import ROOT


@pytest.mark.parametrize("target", PRESENT)
def test_wrong_arguments_of_every_kernel_are_refused(target: str) -> None:
    """In a process of its own, which a crash may end."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.support.kernel_calls", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.stdout == "\n", f"taken, though wrong:\n{done.stdout}"
    assert done.returncode == 0, f"ended in a crash after:\n{done.stderr[-2000:]}"


def test_every_callable_is_called() -> None:
    assert set(OF_TARGET) == set(PER_TARGET)
    assert check_complete(PRESENT[0]) == []
