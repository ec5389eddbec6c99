"""LoRA adapters in llama.cpp's GGUF format (Hu et al., LoRA, 2021).

A tensor ``X.weight`` of the model gets the pair ``X.weight.lora_a`` (rank, cols) and ``X.weight.lora_b``
(rows, rank), with a leading dimension for experts. For the token embeddings, ``lora_a`` is (n_vocab, rank)
and ``lora_b`` is (n_embd, rank). The product is scaled by alpha / rank, or by 1 where alpha is 0 or missing,
as in llama.cpp.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from oxillama._kernels import pack
from oxillama.errors import LoadError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.gguf.model_file import ModelFile, TensorInfo

SUFFIXES = (".lora_a", ".lora_b")


@dataclass(frozen=True)
class FactorPair:
    """The two tensors of one tensor of the model, in GGUF order (columns first)."""

    a: TensorInfo
    b: TensorInfo

    @property
    def rank(self) -> int:
        """Columns of B."""
        return self.b.shape[0]


class LoadedLora:
    """An adapter's file. `load` makes it; engines share it.

    Attributes:
        path: of the file, or None for one from bytes.
        name: as the file says, else the file's name.
        architecture: of the models that it fits.
        alpha: scale of the products, times the rank; 0 for the rank itself.
        invocation_tokens: ids that activate it; empty for an adapter that is always active (activated LoRA:
            Greenewald et al., 2025).
        fingerprint: 32 bytes, a hash of the file's content and of ``everywhere``.
        pairs: by name of the model's tensor.
        everywhere: whether it also changes the matrices that llama.cpp multiplies without adapters.
    """

    def __init__(self, file: ModelFile, *, everywhere: bool = False) -> None:
        metadata = file.metadata
        found = metadata.get("general.type"), metadata.get("adapter.type")
        if found != ("adapter", "lora"):
            raise LoadError(f"adapter.type: expected a LoRA adapter, got {found[1]!r} of type {found[0]!r}")
        self.path: str | None = None if file.path is None else os.fspath(file.path)
        self.name: str = str(metadata.get("general.name") or (file.path.name if file.path else "adapter"))
        self.architecture: str = file.get("general.architecture", str)
        self.alpha: float = float(file.get("adapter.lora.alpha", float, 0.0))
        if not np.isfinite(self.alpha):
            raise LoadError(f"adapter.lora.alpha: expected a finite number, got {self.alpha}")
        self.invocation_tokens: list[int] = file.get("adapter.alora.invocation_tokens", list[int], [])
        self.everywhere: bool = everywhere
        content = ModelFingerprint.compute(file).content
        self.fingerprint: bytes = blake3(content + b"everywhere").digest() if everywhere else content
        self.pairs: dict[str, FactorPair] = paired(file.tensors)
        self._file = file

    @classmethod
    def load(cls, source: str | os.PathLike[str] | bytes, *, everywhere: bool = False) -> LoadedLora:
        """The adapter in a file, or in its bytes.

        Args:
            everywhere: change also the matrices that llama.cpp multiplies without adapters
                (`Family.unadapted`). By default they stay as they are, with a warning.

        Raises:
            ModelFileError, GGUFError: the file cannot be read, or is no GGUF file.
            LoadError: it holds no LoRA adapter, or tensors that are not of one.
        """
        file = ModelFile.open(source)
        try:
            return cls(file, everywhere=everywhere)
        except BaseException:
            file.close()
            raise

    def as_everywhere(self) -> LoadedLora:
        """A copy of the adapter, loaded with ``everywhere``."""
        return self if self.everywhere else LoadedLora(self._file, everywhere=True)

    def values(self, info: TensorInfo) -> np.ndarray:
        """A tensor of the adapter as float32, in the order of NumPy (columns last)."""
        out = np.empty(info.n_elements, np.float32)
        pack.dequantize(info.format.id, self._file.data(info.name), out)
        return out.reshape(info.shape[::-1])

    def factor(self, rank: int) -> float:
        """What the product of a pair is scaled by, but for the user's scale."""
        return self.alpha / rank if self.alpha else 1.0

    def __repr__(self) -> str:
        return f"LoadedLora({self.path or self.name!r})"


def paired(tensors: dict[str, TensorInfo]) -> dict[str, FactorPair]:
    """The pairs by name of the model's tensor. Raises LoadError for a tensor that is not half of one."""
    found = {}
    for name, info in tensors.items():
        if info.format.layout is None:
            raise LoadError(f"{name}: expected a format with kernels, got {info.format.name}")
        base, suffix = name[:-7], name[-7:]
        if suffix not in SUFFIXES or not base:
            what = ", for norms cannot be adapted" if re.search(r"norm(\.|$)", name) else ""
            raise LoadError(f"{name}: expected a name that ends in .lora_a or .lora_b{what}")
        other = base + SUFFIXES[suffix == ".lora_a"]
        if other not in tensors:
            raise LoadError(f"{name}: expected {other} beside it, got none")
        found[base] = FactorPair(*(tensors[base + part] for part in SUFFIXES))
    for base, pair in found.items():
        n = 2 if base == "token_embd.weight" else len(pair.a.shape)
        if len(pair.a.shape) != len(pair.b.shape) or not 2 <= n <= 3:
            raise LoadError(
                f"{pair.a.name}: expected 2 or 3 dimensions as in {pair.b.name}, got {pair.a.shape}"
            )
        rank = pair.a.shape[0 if base == "token_embd.weight" else 1]
        if rank != pair.rank or rank < 1:
            raise LoadError(f"{pair.b.name}: expected rank {rank}, as {pair.a.name} has, got {pair.rank}")
    return found
