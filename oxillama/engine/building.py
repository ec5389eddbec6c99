"""From an open model file to the parts of an engine, as the configuration wants them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from oxillama._kernels import Kernels
from oxillama.base.config import EngineConfig, available_cpus
from oxillama.base.formats import FORMATS
from oxillama.engine import features
from oxillama.engine.cache.kv_pool import cache_pool
from oxillama.engine.cache.pages import CachePool
from oxillama.engine.protocols import WeightStore
from oxillama.engine.runner import Runner
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, Spec
from oxillama.models.weights.linear import ResidentStore
from oxillama.models.weights.loader import Weights
from oxillama.models.weights.packer import Packer, Progress

PACKED_SUFFIX = ".packed"
"""Ends the names of packed files."""


class EngineFactory:
    """Makes the parts of an engine whose model runs in one process."""

    def spec(self, spec: Spec, file: ModelFile) -> Spec:
        """The specification of the layers that are run in this process: all of them."""
        return spec

    def pool(self, model: Decoder, config: EngineConfig) -> CachePool:
        """The memory of the sequences."""
        return new_pool(model, config)

    def runner(self, model: Decoder, pool: CachePool, n_threads: int) -> Runner:
        """The runner of the batches."""
        return Runner(model, pool, n_threads)

    def unused(self, tensors: list[str]) -> list[str]:
        """The tensors among ``tensors`` that no process uses."""
        return tensors

    def close(self) -> None:
        """Ends what it has started."""


def packed_file(file: ModelFile, config: EngineConfig) -> tuple[Any, str]:
    """The packed file that a model is loaded with, or None; and why one that is there was not taken, or "".

    Raises as `oxillama.engine.features.packed_files.open_packed`.
    """
    if config.packed == "off" or (config.packed == "auto" and not _may_be_packed(file)):
        return None, ""
    found: tuple[Any, str] = features.load("packing")(file, config)
    return found


def _may_be_packed(file: ModelFile) -> bool:
    """Whether there is a packed file beside a model."""
    path = file.path
    try:
        names = [] if path is None else os.listdir(path.parent)
    except OSError:  # the folder may not be listed
        return False
    return path is not None and any(
        name.startswith(path.name) and name.endswith(PACKED_SUFFIX) for name in names
    )


def load_weights(
    file: ModelFile,
    kernels: Kernels,
    config: EngineConfig,
    progress: Progress | None,
    store: Callable[[Packer], WeightStore] = ResidentStore,
) -> Weights:
    """The tensors of a file, as the configuration wants them; ``store`` as for `Weights`."""
    quantize = None if config.quantize is None else FORMATS[config.quantize.upper()]
    n_threads = config.num_threads or available_cpus()
    return Weights(file, kernels, n_threads, progress, quantize, config.compute, store)


def weight_store(packed: Any, config: EngineConfig) -> Callable[[Packer], WeightStore]:
    """Makes what brings the panels of a model's linear layers: from its packed file, if it has one.

    Under a budget, panels come and go. Raises ConfigError if ``numa`` cannot be honoured.
    """
    if config.offload_budget is not None:
        return partial(features.load("offload"), packed, config)
    if config.numa == "split":
        return features.load("split weights")(packed)  # type: ignore[no-any-return]
    if packed is None:
        return ResidentStore
    from oxillama.models.weights.packed_store import PackedStore  # on use: few models are packed

    return partial(PackedStore, packed, mapping=config.packed_access == "map")


def load_decoder(spec: Spec, weights: Weights, context_size: int, *, pack_now: bool) -> Decoder:
    """The model; unless ``pack_now`` each matrix is packed when it is first used.

    Raises ConfigError if the budget of its weight store is too small for it.
    """
    model = Decoder(spec, weights, context_size)
    model.store.arrange(model.groups())
    if pack_now:
        model.store.preload(model.linears(), weights.progress)
    return model


def new_pool(model: Decoder, config: EngineConfig) -> CachePool:
    """The empty memory of a model's sequences."""
    pool = cache_pool(model, config.kv_type, config.page_size, config.kv_memory_limit)
    if config.numa == "split":
        place = features.load("interleaved pages")()
        for group in pool.groups:
            group.place = place
    return pool


def matrix_bytes(model: Decoder) -> int:
    """Bytes of all matrices in memory, packed or not yet."""
    return sum(source.packed_bytes(m.cols) for m in model.linears() for source in m.sources)
