"""Rows of a Ray dataset, answered by actors with an engine each."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

from ray.data import ActorPoolStrategy
from ray.data.block import BlockAccessor

from oxillama import EngineConfig
from oxillama.batch.engines import for_jobs
from oxillama.batch.plain import Settings
from oxillama.batch.rows import Rows
from oxillama.ray.columns import Columns
from oxillama.ray.loading import load
from oxillama.ray.sizing import as_assigned, fitted, resources

BATCH = 64
"""Rows of a batch. Ray Data has an actor work on four batches of a block at a time, and on one block: a
second one whose answers nobody takes yet would hold up the first."""


class Predictor:
    """A callable class for ``Dataset.map_batches``: an engine that answers the rows of its batches together.

    The answers follow from the rows, the model and the options, bit for bit; a row without a seed has the
    engine's, else 0. So it does not matter on which actor a row runs, or how often.

    Parameters
    ----------
    config : of the engine, or the model alone: a path on every machine, or a name of the hub.
    columns : of `Columns`: ``column``, ``kind``, ``options``, ``option_columns``, ``schema``, ``prefix``.

    Raises
    ------
    ConfigError : an option is unknown or outside its range.
    ModelFileError, GGUFError, LoadError, TokenizerError : the model cannot be loaded, and why.
    """

    def __init__(self, config: EngineConfig | str | os.PathLike[str], **columns: Any) -> None:
        self.columns: Columns = Columns(**columns)
        engine = load(as_assigned(for_jobs(as_config(config))))
        self._rows = Rows(engine, Settings(model_name="model"))

    async def __call__(self, batch: Any) -> AsyncIterator[Any]:
        """Answers a batch.

        Parameters
        ----------
        batch : of any format of Ray Data.

        Yields
        ------
        One Arrow table: the columns of the batch, those of the answers, and "error", which is null where
        there is none.
        """
        table = BlockAccessor.for_block(BlockAccessor.batch_to_block(batch)).to_arrow()
        rows = self.columns.rows(table)
        answers = await asyncio.gather(*(self._rows.answer(i, row) for i, row in enumerate(rows)))
        yield self.columns.extended(table, answers)


def as_config(config: EngineConfig | str | os.PathLike[str]) -> EngineConfig:
    """A configuration, or that of a model."""
    return config if isinstance(config, EngineConfig) else EngineConfig(model_path=config)


def predict(
    dataset: Any,
    config: EngineConfig | str | os.PathLike[str],
    *,
    concurrency: int | tuple[int, int] = 1,
    num_cpus: int | None = None,
    memory: int | None = None,
    per_machine: int = 1,
    batch_size: int = BATCH,
    remote_args: Mapping[str, Any] | None = None,
    **columns: Any,
) -> Any:
    """A dataset with the answers to the rows of another one: `Predictor`, with what it needs of the cluster.

    Parameters
    ----------
    dataset : a `ray.data.Dataset`.
    config, columns : as for `Predictor`.
    concurrency : actors; (a, b) for at least a and at most b.
    num_cpus, per_machine : as for `resources`.
    memory : bytes that an actor asks for; None for what is computed from the model's file. Give all three
        if the file is not on this machine.
    batch_size : rows of a batch.
    remote_args : further options of the actors for Ray.

    Raises
    ------
    ConfigError : an option is unknown or outside its range.
    ModelFileError, GGUFError, LoadError : the model cannot be loaded, and why.
    """
    Columns(**columns)  # what is wrong is said here, and not by an actor
    config = as_config(config)
    asked = {"num_cpus": num_cpus, "memory": memory}
    if memory is None or num_cpus is None:
        asked = {**resources(config, num_cpus=num_cpus, per_machine=per_machine), **given(asked)}
    if memory is None:
        config = fitted(config, asked)
    least, most = (concurrency, concurrency) if isinstance(concurrency, int) else concurrency
    return dataset.map_batches(
        Predictor,
        fn_constructor_args=[config],
        fn_constructor_kwargs=columns,
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(min_size=least, max_size=most),
        udf_modifying_row_count=False,
        **asked,
        **(remote_args or {}),
    )


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in values.items() if value is not None}
