"""From an open model file to the model and its pages, as the configuration wants them."""

from __future__ import annotations

from oxillama._kernels import Kernels
from oxillama.cache.kv_pool import KvCachePool, KvLayout
from oxillama.config import EngineConfig, available_cpus
from oxillama.formats import FORMATS, KV_TYPES
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, Spec
from oxillama.offload.pager import LayerPager
from oxillama.offload.pressure import MemoryPressureProbe
from oxillama.weights.loader import Weights
from oxillama.weights.packer import Packer, Progress


def load_weights(
    file: ModelFile, kernels: Kernels, config: EngineConfig, progress: Progress | None
) -> Weights:
    """The tensors of a file, as the configuration wants them."""
    quantize = None if config.quantize is None else FORMATS[config.quantize.upper()]
    return Weights(file, kernels, config.num_threads or available_cpus(), progress, quantize, config.compute)


def load_decoder(
    spec: Spec, weights: Weights, context_size: int, *, pack_now: bool, pager: LayerPager | None = None
) -> Decoder:
    """The model; otherwise each matrix is packed when it is first used.

    With a ``pager``, it brings the packed matrices. Raises ConfigError if its budget is too small.
    """
    if pager is not None:
        weights.store = pager
    model = Decoder(spec, weights, context_size)
    if pager is not None:
        pager.arrange(model.groups())
        if pack_now:
            pager.keep(weights.progress)
    elif pack_now:
        for linear in model.linears():
            linear.pack()
    return model


def new_pager(weights: Weights, config: EngineConfig) -> LayerPager | None:
    """What keeps the packed matrices within the configuration's budget; None where there is none."""
    if config.offload_budget is None:
        return None
    alone = Packer(weights.kernels, 1, lambda name, n_bytes: None)  # for threads that must not enter OpenMP
    together = Packer(weights.kernels, weights.packer.n_threads, alone.progress)
    probe = MemoryPressureProbe() if config.offload_probe else None
    return LayerPager(config.offload_budget, alone.pack, together.pack, config.offload_pinned, probe)


def new_pool(model: Decoder, config: EngineConfig) -> KvCachePool:
    """An empty pool of pages for a model."""
    shape = model.kv_shape(KV_TYPES[config.kv_type], config.page_size)
    layout = KvLayout(*model.kv_dims(), config.kv_type)
    return KvCachePool(shape, layout, config.page_size, config.kv_memory_limit)
