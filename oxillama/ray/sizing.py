"""What a replica of a model asks Ray for, computed from the model's file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray

from oxillama import EngineConfig
from oxillama.config import checks
from oxillama.errors import ConfigError, LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.models.preflight import preflight
from oxillama.ray.loading import local_path

PROCESS_BYTES = 512 << 20
"""Of Python, Ray's worker, the vocabulary, activations."""

TOKENS = 1024
"""Tokens for whose keys and values there is room for each sequence, where no limit is given."""


@dataclass(frozen=True)
class Needs:
    """Bytes of a model.

    Attributes
    ----------
    weights : packed matrices, which processes on a machine share if they map a packed file.
    kv : limit of keys, values and recurrent states.
    """

    weights: int
    kv: int

    def memory(self, per_machine: int = 1) -> int:
        """Bytes of a replica, if so many share the weights."""
        return -(-self.weights // per_machine) + self.kv + PROCESS_BYTES


def needs(config: EngineConfig) -> Needs:
    """What the model of a configuration needs.

    Without a limit of its own, its keys and values have room for a whole context, or for 1,024 tokens of each
    of its sequences, if that is more.

    Raises
    ------
    ModelFileError, GGUFError : the file cannot be read.
    LoadError : the model cannot be loaded.
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
    """What to ask Ray for, for each replica: ``num_cpus`` and ``memory``, in bytes.

    Parameters
    ----------
    config : of its engine, or the model alone: a path, or a name of the hub.
    num_cpus : None for the engine's ``num_threads``, else for those of the smallest machine of the cluster,
        divided by ``per_machine``.
    per_machine : replicas on a machine, which share one copy of the weights.

    Raises
    ------
    ConfigError : a number is outside its range.
    ModelFileError, GGUFError, LoadError : the model cannot be loaded, and why.
    """
    if not isinstance(config, EngineConfig):
        config = EngineConfig(model_path=config)
    per_machine = checks.integer("per_machine", per_machine, 1)
    if num_cpus is None:
        num_cpus = config.num_threads or max(1, smallest_machine() // per_machine)
    num_cpus = checks.integer("num_cpus", num_cpus, 1)
    return {"num_cpus": num_cpus, "memory": needs(config).memory(per_machine)}


def smallest_machine() -> int:
    """CPUs of the machine of the cluster that has the fewest; of this one if Ray does not run."""
    nodes = ray.nodes() if ray.is_initialized() else []
    counts = [int(node["Resources"].get("CPU", 0)) for node in nodes if node["Alive"]]
    return min((n for n in counts if n), default=os.cpu_count() or 1)


def check_room(asked: Mapping[str, Any]) -> None:
    """Raises ConfigError if no machine of the cluster has what is asked: Ray would wait for one."""
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
    """The same, in a worker of Ray, with as many threads as it was given CPUs, unless it says how many."""
    n = ray.get_runtime_context().get_assigned_resources().get("CPU", 0)
    return config if config.num_threads is not None or n < 1 else replace(config, num_threads=int(n))


def anywhere(model: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    """A path in full, since workers have other folders; a name as it is."""
    return os.path.abspath(model) if model is not None and os.path.exists(model) else model


def fitted(config: EngineConfig, asked: dict[str, Any]) -> EngineConfig:
    """The same, that takes no more than was asked for: threads, keys and values."""
    limit = config.kv_memory_limit or needs(config).kv
    config = replace(config, model_path=anywhere(config.model_path))
    return replace(config, num_threads=config.num_threads or asked["num_cpus"], kv_memory_limit=limit)
