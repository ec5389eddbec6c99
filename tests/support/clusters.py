"""A small cluster of Ray on this machine, and the ends of its workers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

ACTOR_CPUS = 4
"""CPUs that the cluster says it has: actors, that is, and not threads."""


OPEN = {"RAY_AUTH_MODE": "disabled"}
"""Of the environment of all processes: the cluster listens to whoever is on this machine."""

PATIENT = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60"}
"""The same: a proxy of Ray Serve that a loaded machine starts slowly is not ended."""


@contextmanager
def cluster() -> Iterator[None]:
    """A cluster of one machine."""
    os.environ.update({**OPEN, **PATIENT})  # Ray would write a token to the home folder
    environment = {"PYTHONPATH": str(ROOT), **PATIENT}
    import ray

    ray.init(
        num_cpus=ACTOR_CPUS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": environment},
    )
    try:
        yield
    finally:
        ray.shutdown()


def workers(name: str, node: Any = None) -> list[int]:
    """Processes of a machine's actors whose name begins so; None for the first machine. They are children of
    its raylet."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the workers of a cluster are found in /proc")
    from ray._private import worker

    node = node or worker._global_node
    raylet = node.all_processes["raylet"][0].process.pid
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            title = (folder / "cmdline").read_bytes().decode("utf-8", "replace")
        except OSError:  # it has ended
            continue
        if parent == raylet and title.startswith(f"ray::{name}"):
            found.append(int(folder.name))
    return sorted(found)


def kill(pid: int) -> None:
    """Ends a process as a machine that fails does."""
    os.kill(pid, signal.SIGKILL)
