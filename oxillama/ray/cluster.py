"""The rows of ``oxillama batch --ray``: lines of a file on this machine, answered on a cluster."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from itertools import count, islice
from typing import Any

import pyarrow as pa
import ray
import ray.exceptions
from ray.data import ActorPoolStrategy, DataContext
from ray.data.exceptions import SystemException, UserCodeException

from oxillama import EngineConfig
from oxillama.batch.engines import window_of
from oxillama.batch.plain import Settings
from oxillama.batch.rows import Rows
from oxillama.errors import ConfigError, RequestFailed
from oxillama.ray.loading import load
from oxillama.ray.sizing import as_assigned, check_room, fitted, resources

CALLS = 4
"""Blocks that an actor works on at a time. Each is one batch: the queue behind the batches of a block, which
holds up all blocks of the actor when it is full, has at most one."""

BLOCKS = 1000
"""So many blocks have the same number of lines, the next ones twice as many."""

MOST_LINES = 1024
"""Lines of a block, which run again if its actor dies."""

Lines = Iterator[tuple[int, bytes]]


class LinePredictor:
    """Answers lines: tables of "number" and "line" become tables of "answer"."""

    def __init__(self, config: EngineConfig, settings: Settings) -> None:
        self._rows = Rows(load(as_assigned(config)), settings)

    async def __call__(self, batch: Any) -> AsyncIterator[Any]:
        lines = zip(batch["number"].to_pylist(), batch["line"].to_pylist())
        answers = await asyncio.gather(*(self._rows.line(number, line) for number, line in lines))
        yield pa.table({"answer": pa.array(answers, pa.large_binary())})


FAILURES = (ray.exceptions.RayError, UserCodeException, SystemException)
"""What Ray Data raises for an actor that fails, and not for one that ends."""


def last_line(error: Exception) -> str:
    """What an actor has raised, without the tracebacks of all processes between."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].removeprefix("oxillama.errors.") if lines else type(error).__name__


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """A cluster inside the block. Raises ConfigError if there is none at the address.

    Without an address it is the one that runs, else one of this machine.
    """
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR")
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what fails is raised
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"ray: expected a cluster at {address}, got {error}"[:500]) from error
    try:
        with redirect_stdout(sys.stderr):  # Ray says on stdout which workers have ended
            yield
    finally:
        ray.shutdown()


def actors_of(text: str | None, per_machine: int = 1) -> tuple[int, int]:
    """At least and at most so many actors: "4", "2:8"; None for ``per_machine`` on each machine.

    Raises ConfigError for other texts.
    """
    if text is None:
        return 1, max(1, per_machine * sum(node["Alive"] for node in ray.nodes()))
    least, _, most = text.partition(":")
    if not (least.isdecimal() and (most or least).isdecimal() and 0 < int(least) <= int(most or least)):
        raise ConfigError(f"actors: expected a number, or two as 2:8, got {text!r}")
    return int(least), int(most or least)


def tables(lines: Lines, least: int) -> Iterator[Any]:
    """Lines as tables of "number" and "line": small ones first, so that all actors have work, and larger ones
    later, so that a long file has not too many.

    Parameters
    ----------
    least : lines of the first ones.
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
    config: EngineConfig, settings: Settings, actors: tuple[int, int], per_machine: int = 1
) -> Callable[[Lines], AsyncIterator[bytes]]:
    """Answers of a cluster's actors, for `oxillama.batch.job.Job.run`.

    Parameters
    ----------
    config : whose model is at its path on every machine, or on the hub.
    actors : at least and at most so many.
    per_machine : actors that share a machine.

    The lines are put into Ray's object store, which moves them to the disk where they are many.

    Raises
    ------
    ConfigError : no machine has what an actor asks for.
    ModelFileError, GGUFError, LoadError : the model cannot be loaded, and why.

    Reading the answers raises RequestFailed if an actor fails, as it does if its machine has no such model.
    """
    asked = resources(config, per_machine=per_machine)
    check_room(asked)
    config = fitted(config, asked)

    async def answers(lines: Lines) -> AsyncIterator[bytes]:
        context = DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        blocks = [ray.put(table) for table in tables(lines, window_of(config) // CALLS)]
        if not blocks:
            return
        rows = ray.data.from_arrow_refs(blocks).map_batches(
            LinePredictor,
            fn_constructor_args=[config, settings],
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
