"""Loads engines in Ray's workers: a model by path or name, with one packed copy on each machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from oxillama import EngineConfig, InferenceEngine
from oxillama.apps.batch.facts import check_engine, check_files, model_facts
from oxillama.errors import ConfigError
from oxillama.gguf.hub.download import fetch
from oxillama.gguf.hub.names import hub_name


def as_config(config: EngineConfig | str | os.PathLike[str]) -> EngineConfig:
    """The configuration; made with defaults if only a model is given."""
    return config if isinstance(config, EngineConfig) else EngineConfig(model_path=config)


def local_path(model: str | os.PathLike[str] | None) -> str:
    """The path of a model on this machine; a hub model is downloaded to the cache first.

    Raises:
        ConfigError: no model is given.
        ModelFileError: the model cannot be downloaded.
    """
    if model is None:
        raise ConfigError("model: expected a path or a name of the hub, got None")
    path = os.fspath(model)
    name = None if os.path.exists(path) else hub_name(path)
    return os.path.abspath(path) if name is None else str(fetch(name))


def facts_on(config: EngineConfig) -> dict[str, Any]:
    """`model_facts` of the model on this machine, which is downloaded if it is one of the hub."""
    return model_facts(replace(config, model_path=local_path(config.model_path)))


def load(config: EngineConfig, facts: Mapping[str, Any] | None = None) -> InferenceEngine:
    """Load an engine. With ``packed="auto"`` the first process on a machine makes the packed file, if the
    model's folder is writable, and all others map it.

    Args:
        facts: of the job (`facts_on`), with which the files of this machine are compared, before they are
            loaded and then again.

    Raises:
        ModelFileError: a file is not the one of the job.
        OxiLlamaError: as `InferenceEngine`.
    """
    path = local_path(config.model_path)
    config = replace(config, model_path=path)
    if facts is None:
        return loaded(config, path)
    check_files(facts, config)
    engine = loaded(config, path)
    try:
        check_engine(facts, engine)
    except BaseException:
        engine.close()
        raise
    return engine


def loaded(config: EngineConfig, path: str) -> InferenceEngine:
    """An engine for the model at a path, with the packed file as for `load`."""
    if config.packed != "auto" or not os.access(Path(path).resolve().parent, os.W_OK):
        return InferenceEngine(config)
    with alone(path):
        return InferenceEngine(replace(config, packed="make"))


@contextmanager
def alone(path: str) -> Iterator[None]:
    """Hold a lock so that only one process at a time loads this file, if the system has locks."""
    with suppress(ImportError):
        import fcntl

        try:
            file = open(path, "rb")  # noqa: SIM115  # closed below
        except OSError:  # loading the file will report the error
            yield
            return
        with file:
            with suppress(OSError):  # without locks, two processes may both make the file
                fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            yield
        return
    yield
