"""The comparison of models: all processes of a job, or of an application, have the same one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import ray

from oxillama import EngineConfig
from oxillama.apps.batch.plain import Settings
from oxillama.apps.batch.rows import Rows
from oxillama.apps.ray.loading import as_config, facts_on, load
from oxillama.apps.ray.sizing import as_assigned
from oxillama.errors import ConfigError, ModelFileError, OxiLlamaError


def model_facts(
    config: EngineConfig | str | os.PathLike[str], asked: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What of a model and its options determines answers: hashes of files, and options.

    The files are read on this machine; on a machine of the cluster if this machine lacks one of them.

    Args:
        config: engine options, or just the model: a path on every machine, or a hub name.
        asked: the resources of the task that reads the files on another machine; None for one CPU.

    Raises:
        ConfigError, ModelFileError, GGUFError: a file cannot be read; says why.
    """
    config = as_config(config)
    try:
        return facts_on(config)
    except (ConfigError, ModelFileError):
        if not ray.is_initialized():
            raise
    task = ray.remote(facts_on).options(**(asked or {"num_cpus": 1}))
    found: dict[str, Any] = ray.get(task.remote(config))
    return found


class ActorRows:
    """The rows of an actor, whose engine is loaded when it starts.

    An error of loading is raised when rows are asked for, and so ends the run: an actor that ends when it
    starts is started again and again by Ray.

    Args:
        facts: of `model_facts`, with which the files of the machine are compared; None: no comparison.
    """

    def __init__(self, config: EngineConfig, settings: Settings, facts: Mapping[str, Any] | None) -> None:
        self._found: Rows | OxiLlamaError
        try:
            self._found = Rows(load(as_assigned(config), facts), settings)
        except OxiLlamaError as error:
            self._found = error

    @property
    def rows(self) -> Rows:
        """Raises OxiLlamaError if the engine could not be loaded."""
        if isinstance(self._found, OxiLlamaError):
            raise self._found
        return self._found
