"""From an open model file to the model and its pages, as the configuration wants them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from oxillama._kernels import Kernels
from oxillama.cache.kv_pool import KvCachePool, KvLayout
from oxillama.cache.memory_limit import MemoryLimit
from oxillama.cache.pool import CachePool
from oxillama.cache.recurrent_states import RecurrentStatePool
from oxillama.config import EngineConfig, available_cpus
from oxillama.formats import FORMATS, KV_TYPES
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, Spec
from oxillama.weights.loader import Weights
from oxillama.weights.packed_file import PackedFile
from oxillama.weights.packed_store import PackedStore
from oxillama.weights.packer import Packer, Progress
from oxillama.weights.panels import PanelStore, ResidentStore


def load_weights(
    file: ModelFile,
    kernels: Kernels,
    config: EngineConfig,
    progress: Progress | None,
    store: Callable[[Packer], PanelStore] = ResidentStore,
) -> Weights:
    """The tensors of a file, as the configuration wants them; ``store`` as for `Weights`."""
    quantize = None if config.quantize is None else FORMATS[config.quantize.upper()]
    n_threads = config.num_threads or available_cpus()
    return Weights(file, kernels, n_threads, progress, quantize, config.compute, store)


def panel_store(packed: PackedFile | None, config: EngineConfig) -> Callable[[Packer], PanelStore]:
    """Where the linear layers of a model get their panels: from its packed file, if it has one."""
    if packed is None:
        return ResidentStore
    return partial(PackedStore, packed, mapping=config.packed_access == "map")


def load_decoder(spec: Spec, weights: Weights, context_size: int, *, pack_now: bool) -> Decoder:
    """The model; otherwise each matrix is packed when it is first used."""
    model = Decoder(spec, weights, context_size)
    if pack_now:
        for linear in model.linears():
            linear.pack()
    return model


def new_pool(model: Decoder, config: EngineConfig) -> CachePool:
    """The empty memory of a model's sequences."""
    return cache_pool(model, config.kv_type, config.page_size, config.kv_memory_limit)


def cache_pool(model: Decoder, kv_type: str, page_size: int, max_bytes: int | None = None) -> CachePool:
    """Pools of pages for the groups of a model, and of its recurrent states, under one limit.

    Raises
    ------
    ConfigError : the limit is too low for any sequence.
    """
    limit = MemoryLimit(max_bytes)
    alone = len(model.page_groups) == 1 and not model.state_floats
    groups = [
        KvCachePool(
            shape,
            KvLayout(*group.sizes, kv_type),
            page_size,
            limit,
            layers=group.layers,
            reach=group.reach,
            alone=alone,
        )
        for group, shape in zip(model.page_groups, model.kv_shapes(KV_TYPES[kv_type], page_size))
    ]
    if not model.state_floats:
        return CachePool(groups)
    return CachePool(groups, RecurrentStatePool(limit, model.state_floats, model.record_floats))
