"""Kernels: the only compiled floor, and the choice of the best instruction-set target the CPU can run.

The modules of a target hold the same functions and classes and give the same bits; `targets` names
those that were built and can run here. ``OXILLAMA_TARGET`` overrides the choice.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

# Threads wait for each other some 200 times a token. libgomp would spin for milliseconds, which stalls
# everything when another process holds one of the cores; at a few microseconds, then sleeping, a quiet
# machine loses nothing measurable. It is read once, when the library is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "4000")

if importlib.util.find_spec("oxillama._kernels.machine.cpu") is None:
    raise ImportError(
        f"oxillama: the kernels are not built in {__path__[0]}; run `pip install -e .` in the source tree, "
        "or change to another folder to use an installed package"
    )

from oxillama._kernels.machine import cpu
from oxillama._kernels.packing import pack
from oxillama.errors import ConfigError
from oxillama.frozen import frozen
from oxillama.targets import PER_TARGET, TARGETS

if TYPE_CHECKING:
    from oxillama._kernels.attention.signatures import AttentionModule
    from oxillama._kernels.linear.signatures import LinearModule
    from oxillama._kernels.machine.signatures import RooflineModule
    from oxillama._kernels.quantize.signatures import QuantizeModule
    from oxillama._kernels.recurrent.signatures import DeltaModule, RecurrentModule
    from oxillama._kernels.sampling.signatures import SamplingModule
    from oxillama._kernels.vector.signatures import RoutingModule, VectorModule

__all__ = ["Kernels", "best", "cpu", "load", "pack", "targets"]


@frozen()
class Kernels:
    """The modules of one target.

    Attributes
    ----------
    target : its name in `oxillama.targets`.
    linear : `Linear`, packed matrices times activations.
    attention : `KvShape` and `PagedBatch`, attention over paged keys and values.
    quantize : `quantize`, from floats to the blocks of files.
    vector : norms, rotary embedding, activations, softmax.
    routing : the choice of experts.
    recurrent : convolutions, scans and shifts over the states of a `StateBatch`.
    delta : `delta_scan`, the gated delta rule over such states.
    roofline : peak rates of the machine, for the benchmarks.
    sampling : `Program`, `Workspace`, `sample_rows`: choosing tokens.
    """

    target: str
    linear: LinearModule
    attention: AttentionModule
    quantize: QuantizeModule
    vector: VectorModule
    routing: RoutingModule
    recurrent: RecurrentModule
    delta: DeltaModule
    roofline: RooflineModule
    sampling: SamplingModule


@functools.cache
def targets() -> dict[str, str | None]:
    """Every target of this build, best first, with None or the reason why it cannot run here."""
    found: dict[str, str | None] = {}
    for target in TARGETS:
        missing = [f for f in target.features if not cpu.has(f)]
        if importlib.util.find_spec(f"oxillama._kernels.{PER_TARGET[0]}_{target.name}") is None:
            found[target.name] = "not built"
        else:
            found[target.name] = f"the CPU has no {', '.join(missing)}" if missing else None
    return found


@functools.cache
def load(target: str) -> Kernels:
    """The kernels of a target. Raises ConfigError if it is unknown, was not built, or cannot run here."""
    if target not in targets():
        raise ConfigError(f"target: expected one of {', '.join(targets())}, got {target!r}")
    reason = targets()[target]
    if reason is not None:
        raise ConfigError(f"target {target}: {reason}")
    modules: dict[str, Any] = {
        path.rpartition(".")[2]: importlib.import_module(f"oxillama._kernels.{path}_{target}")
        for path in PER_TARGET
    }
    return Kernels(target, **modules)


def best() -> Kernels:
    """The kernels to use: those ``OXILLAMA_TARGET`` names, or the first target that can run.

    Raises ConfigError if the one that is named cannot run, or none of the build can.
    """
    wanted = os.environ.get("OXILLAMA_TARGET")
    found = wanted or next((name for name, reason in targets().items() if reason is None), None)
    if found is None:
        reasons = ", ".join(f"{name}: {reason}" for name, reason in targets().items())
        raise ConfigError(
            f"target: expected one that this CPU runs, got {reasons}; install again on this CPU"
        )
    return load(found)
