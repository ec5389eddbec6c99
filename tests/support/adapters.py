"""Random LoRA adapters as GGUF bytes, and the weights that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from oxillama import LoadedLora, demo
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder
from oxillama.models.weights.packer import MatrixPart
from tests.support import gguf_writer
from tests.support.zoo import stored

Pair = tuple[np.ndarray, np.ndarray]
"""A (rank, cols) and B (rows, rank), each with a leading dimension for experts; of the token embeddings a
(n_vocab, rank) and B (n_embd, rank)."""


def random_pair(name: str, values: np.ndarray, rank: int, rng: np.random.Generator) -> Pair:
    """A pair for a tensor of the model, float32 (..., rows, cols)."""
    *experts, rows, cols = values.shape
    std = float(values.std()) or 0.1  # the product is about as large as the matrix
    if name == "token_embd.weight":
        a, b = rng.standard_normal((rows, rank)), rng.standard_normal((cols, rank)) * std
    else:
        a, b = rng.standard_normal((*experts, rank, cols)), rng.standard_normal((*experts, rows, rank)) * std
    return a.astype(np.float32), (b * rank**-0.5).astype(np.float32)


def adapter_file(
    architecture: str,
    pairs: Mapping[str, Pair],
    alpha: float | None = 8.0,
    kind: str = "F32",
    **metadata: Any,
) -> bytes:
    """An adapter in llama.cpp's format; without alpha for None. ``metadata`` by the last part of its key."""
    values: list[tuple[str, str, Any]] = [
        ("general.type", "str", "adapter"),
        ("general.architecture", "str", architecture),
        ("adapter.type", "str", "lora"),
    ]
    values += [] if alpha is None else [("adapter.lora.alpha", "f32", alpha)]
    if "invocation_tokens" in metadata:
        tokens = np.array(metadata["invocation_tokens"], np.uint32)
        values.append(("adapter.alora.invocation_tokens", "[u32]", tokens))
    tensors = []
    for name, pair in pairs.items():
        for part, factor in zip("ab", pair):
            tensors.append(stored(f"{name}.lora_{part}", factor, kind))
    return gguf_writer.write(values, tensors)


def merged(name: str, values: np.ndarray, pair: Pair, factor: float) -> np.ndarray:
    """A tensor of the model with the adapter added, computed in float64."""
    a, b = (part.astype(np.float64) for part in pair)
    delta = a @ b.T if name == "token_embd.weight" else b @ a
    found: np.ndarray = (values + factor * delta.reshape(values.shape)).astype(np.float32)
    return found


def adapter_of(file: ModelFile, model: Decoder, rank: int, seed: int) -> bytes:
    """A random adapter for the embeddings and every matrix of a model."""
    rng = np.random.default_rng(seed)
    sources = [source for linear in model.linears() for source in linear.sources]
    names = {"token_embd.weight", *(s.info.name for s in sources if s.part == MatrixPart(slice(None)))}
    pairs = {}
    for name in sorted(names):
        values = rng.normal(0, 0.1, file.tensors[name].shape[::-1])
        pairs[name] = random_pair(name, np.atleast_2d(values), rank, rng)
    return adapter_file(model.spec.family.name, pairs, alpha=float(rank))


def activated_adapter(path: Path, invocation_tokens: list[int]) -> Path:
    """Writes the adapter of the demo with tokens that activate it."""
    lora = LoadedLora.load(demo.PIRATE)
    pairs = {name: (lora.values(pair.a), lora.values(pair.b)) for name, pair in lora.pairs.items()}
    path.write_bytes(adapter_file("llama", pairs, lora.alpha, invocation_tokens=invocation_tokens))
    return path
