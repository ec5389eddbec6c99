"""What holds for all tests."""

import gc
import logging
import os
import signal

from hypothesis import HealthCheck, settings

# Several workers share the cores: a thread that waits for another spins less than the library's default.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

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


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: garbage is collected faster if it skips them."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Engines that end with the interpreter log to streams that pytest has closed by then."""
    logging.raiseExceptions = False
