"""Answers the rows of a Ray dataset with actors, each of which has an engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

from ray.data import ActorPoolStrategy
from ray.data.block import BlockAccessor

from oxillama import EngineConfig
from oxillama.apps.batch.engines import for_jobs
from oxillama.apps.batch.plain import Settings
from oxillama.apps.ray.columns import Columns
from oxillama.apps.ray.comparing import ActorRows, model_facts
from oxillama.apps.ray.loading import as_config
from oxillama.apps.ray.sizing import sized

BATCH = 64
"""Rows of a batch. In Ray Data an actor works on four batches of one block at a time; a second block would
hold up the first while nobody takes its answers."""


class Predictor:
    """A callable class for ``Dataset.map_batches``: an engine that answers the rows of its batches together.

    The answers depend only on the rows, the model and the options, bit for bit; a row without a seed uses the
    engine's, else 0. So it does not matter on which actor a row runs, or how often.

    Args:
        config: engine options, or just the model: a path on every machine, or a hub name.
        facts: of `model_facts`, with which the files on the actor's machine are compared whenever it starts;
            None: nothing is compared.
        columns: fields of `Columns`: ``column``, ``kind``, ``options``, ``option_columns``, ``schema``,
            ``prefix``.

    Raises:
        ConfigError: an option is unknown or outside its range.

    A model that cannot be loaded, or is another one than the facts say, is an error of the first batch.
    """

    def __init__(
        self,
        config: EngineConfig | str | os.PathLike[str],
        facts: Mapping[str, Any] | None = None,
        **columns: Any,
    ) -> None:
        self.columns: Columns = Columns(**columns)
        settings = Settings(model_name="model")
        self._rows: ActorRows = ActorRows(for_jobs(as_config(config)), settings, facts)

    async def __call__(self, batch: Any) -> AsyncIterator[Any]:
        """Answer a batch.

        Args:
            batch: in any format of Ray Data.

        Yields:
            One Arrow table: the columns of the batch, the columns of the answers, and "error", null without
            an error.

        Raises:
            ModelFileError, GGUFError, LoadError, TokenizerError: the model cannot be loaded; says why.
        """
        table = BlockAccessor.for_block(BlockAccessor.batch_to_block(batch)).to_arrow()
        rows, answered = self.columns.rows(table), self._rows.rows
        answers = await asyncio.gather(*(answered.answer(i, row) for i, row in enumerate(rows)))
        yield self.columns.extended(table, answers)


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
    """Answer the rows of a dataset with `Predictor` actors; returns a new dataset.

    Args:
        dataset: a `ray.data.Dataset`.
        config: as for `Predictor`.
        columns: as for `Predictor`.
        concurrency: number of actors; (a, b): at least a and at most b.
        num_cpus: as for `resources`.
        per_machine: as for `resources`.
        memory: bytes reserved for an actor; None: computed from the model's file. Give all three if the file
            is not on this machine.
        batch_size: rows of a batch.
        remote_args: further Ray options of the actors.

    Raises:
        ConfigError: an option is unknown or outside its range.
        ModelFileError, GGUFError, LoadError: the model cannot be loaded; says why.
    """
    Columns(**columns)  # raises errors here, not in an actor
    config, asked = sized(as_config(config), num_cpus, memory, per_machine)
    least, most = (concurrency, concurrency) if isinstance(concurrency, int) else concurrency
    return dataset.map_batches(
        Predictor,
        fn_constructor_args=[config, model_facts(config, asked)],
        fn_constructor_kwargs=columns,
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(min_size=least, max_size=most),
        udf_modifying_row_count=False,
        **asked,
        **(remote_args or {}),
    )
