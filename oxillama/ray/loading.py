"""Engines in Ray's workers: a model by its path or name, and one packed copy of it on each machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from oxillama import EngineConfig, InferenceEngine
from oxillama.errors import ConfigError
from oxillama.hub.download import fetch
from oxillama.hub.names import hub_name


def local_path(model: str | os.PathLike[str] | None) -> str:
    """The path of a model on this machine; one of the hub is brought into the cache first.

    Raises
    ------
    ConfigError : there is no model.
    ModelFileError : it cannot be fetched.
    """
    if model is None:
        raise ConfigError("model: expected a path or a name of the hub, got None")
    path = os.fspath(model)
    name = None if os.path.exists(path) else hub_name(path)
    return os.path.abspath(path) if name is None else str(fetch(name))


def load(config: EngineConfig) -> InferenceEngine:
    """An engine. With ``packed="auto"`` the first process on a machine makes the packed file, if the model's
    folder can be written to, and all others map it. Raises as `InferenceEngine`."""
    path = local_path(config.model_path)
    config = replace(config, model_path=path)
    if config.packed != "auto" or not os.access(Path(path).resolve().parent, os.W_OK):
        return InferenceEngine(config)
    with alone(path):
        return InferenceEngine(replace(config, packed="make"))


@contextmanager
def alone(path: str) -> Iterator[None]:
    """Keeps other processes that load this file waiting, where the system has locks."""
    with suppress(ImportError):
        import fcntl

        try:
            file = open(path, "rb")  # noqa: SIM115  # closed below
        except OSError:  # whoever loads it says what is wrong
            yield
            return
        with file:
            with suppress(
                OSError
            ):  # a file system without locks: two may make the same file, one after the other
                fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            yield
        return
    yield
