"""The weight store of a model under a budget."""

from __future__ import annotations

from typing import Any

from oxillama.base.config import EngineConfig
from oxillama.models.offload.pager import LayerPager
from oxillama.models.offload.pressure import MemoryPressureProbe
from oxillama.models.weights.packer import Packer


def new_pager(packed: Any, config: EngineConfig, packer: Packer) -> LayerPager:
    """Keeps the packed matrices within the configuration's budget.

    ``packed`` : the model's `PackedFile`; None without one.
    """
    assert config.offload_budget is not None
    # without progress of every read: one for threads that must not enter OpenMP, and one for the engine's
    alone, together = (Packer(packer.kernels, n, lambda name, size: None) for n in (1, packer.n_threads))
    return LayerPager(
        config.offload_budget,
        alone.pack,
        together.pack,
        config.offload_pinned,
        MemoryPressureProbe() if config.offload_probe else None,
        None if packed is None else packed.finder(),
        config.offload_access,
    )
