"""A model with an adapter computes what the model with merged weights computes, in every architecture."""

from __future__ import annotations

import re

import numpy as np
import pytest

from oxillama import LoadedLora
from oxillama.gguf.model_file import ModelFile
from oxillama.models import read_spec
from tests.support.adapters import adapter_file, merged, random_pair
from tests.support.kernels import PRESENT, same_bits
from tests.support.spread import few
from tests.support.tiny_models import Running, divergence, tokens_of
from tests.support.zoo import ENCODERS, MODELS, VARIANTS, VOCAB, Model

EVERY = MODELS | VARIANTS
RANK, ALPHA, SCALE = 3, 6.0, 0.7
UNADAPTED = re.compile(
    r".*norm.*|position_embd|token_types|.*conv1d?(_[qkv])?|.*shortconv\.conv|.*ssm_(a|d|dt_norm)|.*lerp.*|.*time_mix_(w2|first|"
    r"decay|w0|a0|v0|g0|k_k|k_a|r_k|ln.*)|.*attn_(k|v)_b|cls.*|.*rope.*|.*sinks|.*attn_rel_b|.*exp_probs_b|.*scales|.*\.bias|"
    r".*_ape|.*tid2eid"
)
"""Tensors of two and more dimensions that no product with a matrix uses."""


def adaptable(model: Model) -> dict[str, np.ndarray]:
    """Tensors that an adapter can change."""
    tensors, ignored = model.tensors(), read_spec(ModelFile.open(model.file())).ignored
    matrices = [n for n, values in tensors.items() if values.ndim >= 2 and n.endswith(".weight")]
    names = [n for n in matrices if n != "per_layer_token_embd.weight"]  # a second table of embeddings
    used = [n for n in names if n not in ignored]
    found = {n: tensors[n] for n in used if not UNADAPTED.fullmatch(n.removesuffix(".weight"))}
    if "output.weight" not in tensors:  # an adapter of tied embeddings changes the input alone
        found.pop("token_embd.weight", None)
    return found


@pytest.mark.parametrize("name", few(EVERY))
def test_adapters_equal_merged_weights(name: str) -> None:
    model = EVERY[name]
    rng = np.random.default_rng(model.seed)
    tensors = adaptable(model)
    pairs = {n: random_pair(n, values, RANK, rng) for n, values in tensors.items()}
    lora = LoadedLora.load(adapter_file(model.architecture, pairs, ALPHA), everywhere=True)
    scales = {  # scales for products with the matrix of the model alone
        f"{n.removesuffix('.scale')}.weight": float(values[0])
        for n, values in model.tensors().items()
        if n.endswith(".scale") and values.shape == (1,)
    }
    whole = model.file(
        **{
            n: merged(n, values, pairs[n], SCALE * ALPHA / RANK / scales.get(n, 1.0))
            for n, values in tensors.items()
        }
    )
    tokens, adapters = tokens_of(20, VOCAB, seed=model.seed), [(lora, SCALE, 0)]
    plain, wanted = (Running(data).outputs(tokens) for data in (model.file(), whole))
    found = Running(model.file(), adapters=adapters).outputs(tokens)
    for i, target in enumerate(PRESENT[1:]):
        again = Running(model.file(), target, n_threads=2, page_size=32 << i, adapters=adapters)
        assert same_bits(again.outputs(tokens), found)
    if model.architecture in ENCODERS:
        assert np.abs(found - wanted).max() < 1e-3 * np.abs(wanted).max()
        assert np.abs(found - plain).max() > 0.1 * np.abs(plain).max()
    else:
        assert divergence(wanted, found) < 1e-5
        assert divergence(plain, found) > 1e-3
