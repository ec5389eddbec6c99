"""From an open model file to the model and its pages, as the configuration wants them."""

from __future__ import annotations

from oxillama._kernels import Kernels
from oxillama.cache.kv_pool import KvCachePool, KvLayout
from oxillama.config import EngineConfig, available_cpus
from oxillama.formats import FORMATS, KV_TYPES
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, Spec
from oxillama.weights.loader import Weights
from oxillama.weights.packer import Progress


def load_weights(
    file: ModelFile, kernels: Kernels, config: EngineConfig, progress: Progress | None
) -> Weights:
    """The tensors of a file, as the configuration wants them."""
    quantize = None if config.quantize is None else FORMATS[config.quantize.upper()]
    return Weights(file, kernels, config.num_threads or available_cpus(), progress, quantize, config.compute)


def load_decoder(spec: Spec, weights: Weights, context_size: int, *, pack_now: bool) -> Decoder:
    """The model; otherwise each matrix is packed when it is first used."""
    model = Decoder(spec, weights, context_size)
    if pack_now:
        for linear in model.linears():
            linear.pack()
    return model


def new_pool(model: Decoder, config: EngineConfig) -> KvCachePool:
    """An empty pool of pages for a model."""
    shape = model.kv_shape(KV_TYPES[config.kv_type], config.page_size)
    layout = KvLayout(*model.kv_dims(), config.kv_type)
    return KvCachePool(shape, layout, config.page_size, config.kv_memory_limit)


def kv_heads(spec: Spec) -> tuple[int, ...]:
    """Heads whose keys and values each layer keeps; layers without any are left out."""
    if spec.latent is not None:
        return (1,) * len(spec.attending)
    return tuple(spec.layers[i].n_kv_heads for i in spec.attending)
