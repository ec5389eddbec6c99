"""LoRA adapters (Hu et al., 2021): y += B (s A x), added to the products of a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from blake3 import blake3

from oxillama.errors import LoadError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.gguf.model_file import ModelFile
from oxillama.reference.blocks import dequantize
from oxillama.reference.floats import F32
from oxillama.reference.products import float_products

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"


@dataclass(frozen=True)
class Adapter:
    """An adapter's file, and how it applies.

    Attributes:
        file: an open file. For a tensor ``X`` of the model it has ``X.lora_a`` (rank, cols) and ``X.lora_b``
            (rows, rank), with a leading dimension for experts; for embeddings (n_vocab, rank) and (n_embd,
            rank).
        scale: the user's scale.
        start: position of the first token that the adapter applies to.
        everywhere: whether it also applies to the matrices of `Facts.unadapted`.
    """

    file: ModelFile
    scale: float = 1.0
    start: int = 0
    everywhere: bool = False
    _values: dict[str, np.ndarray] = field(default_factory=dict, compare=False)

    @property
    def names(self) -> set[str]:
        """The names of the model's tensors that the adapter changes."""
        return {
            name[: -len(".lora_a")] for name in self.file.tensors if name.endswith((".lora_a", ".lora_b"))
        }

    def check(self, architecture: str) -> None:
        """Raise LoadError unless the file is an adapter for the architecture, with complete tensor pairs."""
        found = tuple(self.file.metadata.get(key) for key in ("general.architecture", "adapter.type"))
        if found != (architecture, "lora"):
            raise LoadError(f"reference: adapter: expected ({architecture!r}, 'lora'), got {found}")
        wanted = {f"{name}.lora_{part}" for name in self.names for part in "ab"}
        odd = wanted ^ set(self.file.tensors)
        if odd:
            raise LoadError(f"reference: adapter: expected pairs of tensors, got one half of {min(odd)}")

    def values(self, name: str) -> np.ndarray:
        """A tensor of the adapter as float32."""
        if name not in self._values:
            info = self.file.tensors[name]
            data = self.file.data(name)
            self._values[name] = dequantize(info.format, data).reshape(info.shape[::-1])
        return self._values[name]

    def add(
        self, name: str, x: np.ndarray, y: np.ndarray, positions: np.ndarray, expert: int = -1
    ) -> np.ndarray:
        """y (n, rows) plus B (s A x) for those rows of x (n, cols) whose ``positions`` (n,) are in range."""
        rows = np.flatnonzero(positions >= self.start)
        if f"{name}.lora_a" not in self.file.tensors or not len(rows):
            return y
        a, b = (self.values(f"{name}.lora_{part}") for part in "ab")
        a, b = (a, b) if expert < 0 else (a[expert], b[expert])
        if (a.shape[1], b.shape) != (x.shape[1], (y.shape[1], len(a))):
            raise LoadError(f"reference: adapter: {name}: {a.shape} and {b.shape} do not fit the matrix")
        return self._added(float_products(a, x[rows]), b, y, rows)

    def add_to_embeddings(self, tokens: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Embeddings y (n, n_embd) of the ids ``tokens`` (n,) plus B (s a[token])."""
        rows = np.flatnonzero(np.arange(len(tokens)) >= self.start)
        if f"{EMBEDDING}.lora_a" not in self.file.tensors:
            return y
        table, b = (self.values(f"{EMBEDDING}.lora_{part}") for part in "ab")
        return self._added(table[tokens[rows]], b, y, rows)

    def _added(self, low: np.ndarray, b: np.ndarray, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """y + scale * (B ``low``), computed in double, then rounded.

        ``scale`` is the user's scale * alpha / rank, or the user's scale if alpha is 0 or missing.
        """
        alpha = self.file.get("adapter.lora.alpha", float, 0.0)
        scale = F32(self.scale * (alpha / b.shape[1] if alpha else 1.0))
        y = y.copy()
        y[rows] += float_products(b, low * scale)
        return y


def fingerprints(file: ModelFile) -> dict[str, bool]:
    """The fingerprints that receipts have for an adapter's file: fingerprint -> whether it is everywhere."""
    content = ModelFingerprint.compute(file).content
    return {content.hex(): False, blake3(content + b"everywhere").hexdigest(): True}


def invocation_start(file: ModelFile, prompt: Sequence[int]) -> int | None:
    """Position of the first token that an adapter applies to; None if its invocation does not occur.

    The position is 0, or for an activated adapter (Greenewald et al., 2025) the start of its last invocation.
    """
    wanted = file.get("adapter.alora.invocation_tokens", list[int], [])
    if not wanted:
        return 0
    starts = range(len(prompt) - len(wanted), -1, -1)
    return next((i for i in starts if list(prompt[i : i + len(wanted)]) == wanted), None)
