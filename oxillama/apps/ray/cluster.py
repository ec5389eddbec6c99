"""Answers the rows of ``oxillama batch --ray``: lines of a local file, run on a cluster."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from itertools import count, islice
from typing import Any

import pyarrow as pa
import ray
import ray.exceptions
from ray.data import ActorPoolStrategy, DataContext
from ray.data.exceptions import SystemException, UserCodeException

from oxillama import EngineConfig
from oxillama.apps.batch.engines import window_of
from oxillama.apps.batch.plain import Settings
from oxillama.apps.ray.comparing import ActorRows, model_facts
from oxillama.apps.ray.sizing import check_room, fitted, resources
from oxillama.errors import ConfigError, RequestFailed

CALLS = 4
"""Blocks that an actor works on at a time. Each block is one batch: a block's output queue would stop all
blocks of the actor when full, and with one batch it never is."""

BLOCKS = 1000
"""Number of blocks of equal size, after which the block size doubles."""

MOST_LINES = 1024
"""The maximum number of lines of a block; all of them run again if its actor dies."""

Lines = Iterator[tuple[int, bytes]]


class LinePredictor:
    """Answers lines: tables of "number" and "line" become tables of "answer".

    Args:
        facts: of the job, with which an actor compares its files whenever it starts.
    """

    def __init__(self, config: EngineConfig, settings: Settings, facts: Mapping[str, Any]) -> None:
        self._rows = ActorRows(config, settings, facts)

    async def __call__(self, batch: Any) -> AsyncIterator[Any]:
        rows = self._rows.rows
        lines = zip(batch["number"].to_pylist(), batch["line"].to_pylist())
        answers = await asyncio.gather(*(rows.line(number, line) for number, line in lines))
        yield pa.table({"answer": pa.array(answers, pa.large_binary())})


FAILURES = (ray.exceptions.RayError, UserCodeException, SystemException)
"""The errors of Ray Data for a failing actor."""

OWN = "oxillama.errors."
"""The beginning of a line of a traceback that has an error of the library."""


def last_line(error: Exception) -> str:
    """The message of an actor's exception, without the tracebacks of other processes and Ray's advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line.removeprefix(OWN) for line in lines if line.startswith(OWN)]
    return [*lines, *own][-1] if lines else type(error).__name__


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect to a cluster inside the block. Raises ConfigError without a cluster at the address.

    Without an address: the running cluster, or else a new one on this machine.
    """
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR")
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # failures are raised instead
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"ray: expected a cluster at {address}, got {error}"[:500]) from error
    try:
        with redirect_stdout(sys.stderr):  # Ray reports ended workers on stdout
            yield
    finally:
        ray.shutdown()


def actors_of(text: str | None, per_machine: int = 1) -> tuple[int, int]:
    """The minimum and maximum number of actors: "4" or "2:8"; None: ``per_machine`` on each machine.

    Raises ConfigError for other texts.
    """
    if text is None:
        return 1, max(1, per_machine * sum(node["Alive"] for node in ray.nodes()))
    least, _, most = text.partition(":")
    if not (least.isdecimal() and (most or least).isdecimal() and 0 < int(least) <= int(most or least)):
        raise ConfigError(f"actors: expected a number, or two as 2:8, got {text!r}")
    return int(least), int(most or least)


def tables(lines: Lines, least: int) -> Iterator[Any]:
    """Lines as tables of "number" and "line": small tables first, so that all actors have work, and larger
    ones later, so that a long file does not have too many.

    Args:
        least: number of lines of the first tables.
    """
    for n in count():
        size = min(max(1, least) << min(n // BLOCKS, 20), max(least, MOST_LINES))
        taken = list(islice(lines, size))
        if not taken:
            return
        numbers, texts = zip(*taken)
        columns = [pa.array(numbers, pa.int64()), pa.array(texts, pa.large_binary())]
        yield pa.table(columns, ["number", "line"])


def on_cluster(
    config: EngineConfig,
    settings: Settings,
    actors: tuple[int, int],
    per_machine: int = 1,
    facts: Mapping[str, Any] | None = None,
) -> Callable[[Lines], AsyncIterator[bytes]]:
    """Answers from a cluster's actors, for `oxillama.apps.batch.job.Job.run`.

    Args:
        config: its model must be at its path on every machine, or on the hub.
        actors: minimum and maximum number.
        per_machine: number of actors that share a machine.
        facts: of the job, from `model_facts`; None: facts of the files on this machine. An actor with other
            files ends the run.

    The lines are put into Ray's object store, which spills to disk if necessary.

    Raises:
        ConfigError: no machine has the resources of an actor.
        ModelFileError, GGUFError, LoadError: the model cannot be loaded; says why.

    Reading the answers raises RequestFailed if an actor fails, for example without the model on its machine.
    """
    asked = resources(config, per_machine=per_machine)
    check_room(asked)
    config = fitted(config, asked)
    known = model_facts(config, asked) if facts is None else facts

    async def answers(lines: Lines) -> AsyncIterator[bytes]:
        context = DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        blocks = [ray.put(table) for table in tables(lines, window_of(config) // CALLS)]
        if not blocks:
            return
        rows = ray.data.from_arrow_refs(blocks).map_batches(
            LinePredictor,
            fn_constructor_args=[config, settings, known],
            batch_size=None,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(
                min_size=actors[0], max_size=actors[1], max_concurrent_calls_per_actor=CALLS
            ),
            udf_modifying_row_count=False,
            **asked,
        )
        try:
            for batch in rows.iter_batches(batch_format="pyarrow", batch_size=None, prefetch_batches=0):
                for answer in batch["answer"].to_pylist():
                    yield answer
        except FAILURES as error:
            raise RequestFailed(f"ray: {last_line(error)}") from error

    return answers
