"""What holds for all tests."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.spread import spread

# Several workers share the cores: a thread that waits for another spins less than the library's default.
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's

# Workers compile the same tests, and hundreds of processes that they start import the library: what was
# compiled is kept, whatever the environment says.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False

LONGEST = (
    "tests/test_sanitizers.py",
    "tests/apps/mcp/test_hostile.py",
    "tests/apps/server/test_page_in_browser.py",
    "tests/apps/server/test_socket_faults.py",
    "tests/base/test_distribution.py",
    "tests/reference/test_decoder.py",
    "tests/reference/test_adapters.py",
    "tests/reference/test_attention.py",
    "tests/models/test_real_files.py",
    "tests/apps/decisions/test_hostile.py",
    "tests/apps/server/test_slots.py",
    "tests/apps/cli/test_cli_faults.py",
    "tests/gguf/hub/test_faults.py",
    "tests/test_published_files.py",
    "tests/test_docs.py",
)
"""Files of which all tests, or the slow ones, take a minute or more."""

# Started in the background, a process may inherit that Ctrl-C is ignored, and so would the command lines the
# tests start and interrupt. With a handler here they get the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, so that a run can be repeated; HYPOTHESIS_PROFILE=explore looks for new ones.
# How long one takes says something about the machine, which may be emulated.
for name, is_repeatable in (("repeatable", True), ("explore", False)):
    settings.register_profile(
        name, derandomize=is_repeatable, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.hookimpl(optionalhook=True)  # pytest may run without xdist
def pytest_xdist_auto_num_workers() -> int | None:
    """One worker more than there are cores, because some tests wait for servers and processes."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return 1 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def pytest_collection() -> None:
    """Thousands of tests are made, and nearly nothing of them is garbage."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Selects cases in a run of all tests, and orders the files.

    Whole files go to the workers in this order: a long file at the end would keep one busy alone.
    """
    if [Path(each).resolve() for each in config.args] == [Path(__file__).parent]:
        spread(items)
    rank = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(rank)))


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: garbage is collected faster if it skips them."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(5_000, 10, 10)  # objects of a test die with it: fewer looks find as much


def pytest_unconfigure() -> None:
    """Engines that end with the interpreter log to streams that pytest has closed by then."""
    logging.raiseExceptions = False


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """An `InferenceEngine` of two threads over the story model, for files that have no other."""
    from oxillama import demo
    from oxillama.compat.engine import InferenceEngine

    with InferenceEngine.from_gguf(demo.STORY, num_threads=2) as made:
        yield made
