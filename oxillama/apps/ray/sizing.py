"""Computes the resources of a replica from the model's file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray

from oxillama import EngineConfig
from oxillama.apps.ray.loading import as_config, local_path
from oxillama.base.config import checks
from oxillama.errors import ConfigError, LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.models.preflight import preflight

PROCESS_BYTES = 512 << 20
"""Memory of Python, Ray's worker, vocabulary and activations."""

TOKENS = 1024
"""Minimum room for keys and values of each sequence in tokens, without a given limit."""


@dataclass(frozen=True)
class Needs:
    """The memory that a model needs, in bytes.

    Attributes:
        weights: packed matrices, shared by processes on a machine that map a packed file.
        kv: limit of keys, values and recurrent states.
    """

    weights: int
    kv: int

    def memory(self, per_machine: int = 1) -> int:
        """The bytes of a replica, if ``per_machine`` replicas share the weights."""
        return -(-self.weights // per_machine) + self.kv + PROCESS_BYTES


def needs(config: EngineConfig) -> Needs:
    """The memory that the model of a configuration needs.

    Without a limit in the configuration, keys and values have room for a whole context, or for 1,024 tokens
    of each sequence, if that is more.

    Raises:
        ModelFileError, GGUFError: the file cannot be read.
        LoadError: the model cannot be loaded.
    """
    with ModelFile.open(local_path(config.model_path)) as file:
        found = preflight(file, config.offload_budget, config.offload_pinned)
    if found.reasons or found.spec is None:
        raise LoadError("; ".join(found.reasons))
    n_sequences = config.scheduler.max_sequences
    context = config.context_size or found.spec.context_length
    tokens = max(context, TOKENS * n_sequences)
    kv = found.kv_bytes[config.kv_type] * tokens + 2 * n_sequences * found.state_bytes
    return Needs(found.resident_bytes, config.kv_memory_limit or max(kv, 1 << 20))


def resources(
    config: EngineConfig | str | os.PathLike[str], *, num_cpus: int | None = None, per_machine: int = 1
) -> dict[str, Any]:
    """The resources of a replica for Ray: ``num_cpus`` and ``memory``, in bytes.

    Args:
        config: engine options, or just the model: a path, or a hub name.
        num_cpus: None: the engine's ``num_threads``, else the CPUs of the cluster's smallest machine divided
            by ``per_machine``.
        per_machine: number of replicas on a machine, which share one copy of the weights.

    Raises:
        ConfigError: a number is outside its range.
        ModelFileError, GGUFError, LoadError: the model cannot be loaded; says why.
    """
    config = as_config(config)
    per_machine = checks.integer("per_machine", per_machine, 1)
    if num_cpus is None:
        num_cpus = config.num_threads or max(1, smallest_machine() // per_machine)
    num_cpus = checks.integer("num_cpus", num_cpus, 1)
    return {"num_cpus": num_cpus, "memory": needs(config).memory(per_machine)}


def smallest_machine() -> int:
    """The CPUs of the cluster's smallest machine; of this machine if Ray is not running."""
    nodes = ray.nodes() if ray.is_initialized() else []
    counts = [int(node["Resources"].get("CPU", 0)) for node in nodes if node["Alive"]]
    return min((n for n in counts if n), default=os.cpu_count() or 1)


def check_room(asked: Mapping[str, Any]) -> None:
    """Raise ConfigError if no machine has the resources; Ray would wait forever."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, memory = asked["num_cpus"], asked["memory"]
    if not any(one.get("CPU", 0) >= cpus and one.get("memory", 0) >= memory for one in machines):
        found = (
            ", ".join(f"{one.get('CPU', 0):g} and {one.get('memory', 0):.0f}" for one in machines) or "none"
        )
        raise ConfigError(
            f"ray: expected a machine with {cpus} CPUs and {memory} bytes of memory, got {found}"
        )


def as_assigned(config: EngineConfig) -> EngineConfig:
    """The configuration in a Ray worker: by default, as many threads as assigned CPUs."""
    n = ray.get_runtime_context().get_assigned_resources().get("CPU", 0)
    return config if config.num_threads is not None or n < 1 else replace(config, num_threads=int(n))


def anywhere(model: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    """An absolute path, because workers have other working directories; names are unchanged."""
    return os.path.abspath(model) if model is not None and os.path.exists(model) else model


def fitted(config: EngineConfig, asked: dict[str, Any]) -> EngineConfig:
    """The configuration limited to the resources: threads, keys and values."""
    limit = config.kv_memory_limit or needs(config).kv
    config = replace(config, model_path=anywhere(config.model_path))
    return replace(config, num_threads=config.num_threads or asked["num_cpus"], kv_memory_limit=limit)


def sized(
    config: EngineConfig, num_cpus: int | None, memory: int | None, per_machine: int
) -> tuple[EngineConfig, dict[str, Any]]:
    """The configuration of a replica, and its resources: those given, or else as by `resources`.

    With ``memory`` the configuration is not limited to the resources.
    """
    asked: dict[str, Any] = {"num_cpus": num_cpus, "memory": memory}
    if None in asked.values():
        found = resources(config, num_cpus=num_cpus, per_machine=per_machine)
        asked = {name: found[name] if value is None else value for name, value in asked.items()}
    return fitted(config, asked) if memory is None else config, asked
