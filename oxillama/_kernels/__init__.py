"""The compiled modules, and the choice of the best instruction-set target that the CPU can run.

The modules of every target have the same functions and classes, which give the same bits; `targets` lists
the targets of this build. ``OXILLAMA_TARGET`` overrides the choice.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

# Threads wait for each other some 200 times a token. libgomp would spin for milliseconds, which stalls
# everything when another process holds one of the cores; a few microseconds of spinning before sleep cost
# nothing measurable on a quiet machine. libgomp reads the variable once, when it is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "4000")

if importlib.util.find_spec("oxillama._kernels.machine.cpu") is None:
    raise ImportError(
        f"oxillama: the kernels are not built in {__path__[0]}; run `pip install -e .` in the source tree, "
        "or change to another folder to use an installed package"
    )

from oxillama._kernels import tuning
from oxillama._kernels.machine import cpu
from oxillama._kernels.packing import pack
from oxillama.base.targets import TARGETS, Target
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama._kernels.attention.attention import AttentionModule
    from oxillama._kernels.linear.linear import LinearModule
    from oxillama._kernels.machine.roofline import RooflineModule
    from oxillama._kernels.quantize.quantize import QuantizeModule
    from oxillama._kernels.recurrent.delta import DeltaModule
    from oxillama._kernels.recurrent.recurrent import RecurrentModule
    from oxillama._kernels.sampling.sampling import SamplingModule
    from oxillama._kernels.vector.routing import RoutingModule
    from oxillama._kernels.vector.vector import VectorModule

__all__ = ["Kernels", "best", "cpu", "load", "pack", "refusal", "targets"]


@dataclass(frozen=True, repr=False)
class Kernels:
    """The modules of one target.

    Attributes:
        target: name of the target in `oxillama.base.targets`.
        tile_tokens: tokens of the smallest products in tiles of AMX (`tile_tuning.tune`); None without them.
        unpacks_quick: whether unsigned 4-bit codes are unpacked once for many tokens
            (`tuning.tune_unpacking`).
        linear: `Linear`, packed matrices times activations.
        attention: `KvShape` and `PagedBatch`, attention over paged keys and values.
        quantize: `quantize`, from floats to the blocks of GGUF files.
        vector: norms, rotary embedding, activations, softmax.
        routing: the choice of experts.
        recurrent: convolutions, scans and shifts over the states of a `StateBatch`.
        delta: `delta_scan`, the gated delta rule over the states of a `StateBatch`.
        roofline: peak rates of the machine, for the benchmarks.
        sampling: `Program`, `Workspace`, `sample_rows`: choosing tokens.
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
    tile_tokens: tuple[int, ...] | None = None
    unpacks_quick: bool = True


@functools.cache
def targets() -> dict[str, str | None]:
    """The targets in `oxillama.base.targets`, best first, with None or why each cannot run here."""
    found: dict[str, str | None] = {}
    for target in TARGETS:
        missing = [f for f in target.features if not cpu.has(f)]
        modules = (f"oxillama._kernels.{path}_{name}" for path, name in target.modules().items())
        if any(importlib.util.find_spec(module) is None for module in modules):
            found[target.name] = "not built"
        else:
            found[target.name] = f"the CPU has no {', '.join(missing)}" if missing else None
    return found


def refusal(target: str) -> str | None:
    """Why a target cannot run in this process, or None. May ask for registers (`tile_refusal`)."""
    reason, (row,) = targets()[target], (each for each in TARGETS if each.name == target)
    return tile_refusal(row) if reason is None and "amx_tile" in row.features else reason


def tile_refusal(target: Target) -> str | None:
    """Why a target with the tile registers of AMX cannot use them, or would give other bits; None: it can.

    Asks the system for the registers, for which a process needs a permission. Only what uses the target
    should: with the permission, the system demands larger stacks for signals.
    """
    if error := cpu.ask_for_tiles():
        return f"this processor has AMX; the kernel refused: {os.strerror(error)}"
    from oxillama._kernels import tile_tuning  # on use: few processors have AMX

    if not tile_tuning.tiles_are_right(modules_of(target)["linear"]):
        return "this processor has AMX; its products have other bits than those of vectors"
    return None


def modules_of(target: Target) -> dict[str, Any]:
    """The modules of a target by name."""
    return {
        path.rpartition(".")[2]: importlib.import_module(f"oxillama._kernels.{path}_{name}")
        for path, name in target.modules().items()
    }


@functools.cache
def load(target: str) -> Kernels:
    """The kernels of a target. Raises ConfigError if the target is unknown, not built, or cannot run here."""
    if target not in targets():
        raise ConfigError(f"target: expected one of {', '.join(targets())}, got {target!r}")
    reason = refusal(target)
    if reason is not None:
        raise ConfigError(f"target {target}: {reason}")
    (row,) = (each for each in TARGETS if each.name == target)
    modules = modules_of(row)
    tiles = None
    if "amx_tile" in row.features:
        from oxillama._kernels import tile_tuning

        tiles = tile_tuning.tune(modules["linear"])
    unpacks = tuning.tune_unpacking(modules["linear"])
    return Kernels(target, **modules, tile_tokens=tiles, unpacks_quick=unpacks)


def best() -> Kernels:
    """The kernels of the target in ``OXILLAMA_TARGET``, or else of the first automatic target that can run.

    Raises ConfigError if the named target cannot run, or if no target of the build can.
    """
    wanted = os.environ.get("OXILLAMA_TARGET")
    automatic = (each.name for each in TARGETS if each.use == "automatic")
    found = wanted or next((name for name in automatic if name in targets() and refusal(name) is None), None)
    if found is None:
        reasons = ", ".join(f"{name}: {reason}" for name, reason in targets().items())
        raise ConfigError(
            f"target: expected one that this CPU runs, got {reasons}; install again on this CPU"
        )
    return load(found)
