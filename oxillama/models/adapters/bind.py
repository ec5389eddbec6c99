"""From the file of an adapter to the products that it adds to a model's matrices."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama._kernels import Kernels, pack
from oxillama._kernels.memory import aligned_empty
from oxillama.base.formats import FORMATS, LAYOUTS
from oxillama.errors import LoadError
from oxillama.gguf.model_file import TensorInfo
from oxillama.models import Decoder
from oxillama.models.adapters.lora import FactorPair, LoadedLora
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.low_rank import Adapter, EmbeddingDelta
from oxillama.models.weights.packer import Source

EMBEDDING = "token_embd.weight"
ONE_EXPERT = re.compile(r"(blk\.\d+\.ffn_(?:up|gate|down))\.(\d+)\.weight")
"""Name of an expert's own tensor, in older files."""
IN_LAYER = re.compile(r".*?blk\.\d+\.")
"""What stands before the name of a matrix within its layer."""


@dataclass(frozen=True)
class Factors:
    """A pair as it applies to one matrix: A (rank, cols), B (rows, rank), both float32.

    Attributes:
        row: where the matrix begins among the rows of its `Linear`.
        factor: scale of the product, but for the user's.
    """

    a: np.ndarray
    b: np.ndarray
    row: int
    factor: float


def bind(lora: LoadedLora, model: Decoder) -> Adapter:
    """The adapter for a model.

    Raises:
        LoadError: it is for another architecture; the model has no such tensor, or one of another shape, or
            one that is not used as a matrix.
        ModelFileError: its file cannot be read.
    """
    wanted = model.spec.family.name
    if lora.architecture != wanted:
        raise LoadError(
            f"general.architecture: expected {wanted}, the model's, got {lora.architecture} in {lora.name}"
        )
    return _Binding(lora, model).run()


class _Binding:
    """The work of `bind`."""

    def __init__(self, lora: LoadedLora, model: Decoder) -> None:
        self.lora, self.model = lora, model
        self.kernels: Kernels = model.kernels
        self.used: set[str] = set()
        self.seen: set[str] = set()
        self.skipped: set[str] = set()
        self._values: dict[str, np.ndarray] = {}  # tensors of incomplete pairs, by name

    def run(self) -> Adapter:
        """The products of all matrices and of the embeddings."""
        factors: dict[object, Any] = {}
        for linear in self.model.linears():
            parts = list(self._parts(linear))
            if parts:
                factors[linear] = self._low_rank(linear, parts)
        embedding = self._embedding()
        if self.skipped:
            names = ", ".join(sorted(self.skipped))
            how = "LoadedLora.load(path, everywhere=True) does"
            warnings.warn(f"{self.lora.name}: does not change {names}, as in llama.cpp; {how}", stacklevel=2)
        unused = ", ".join(sorted(self.lora.pairs.keys() & set(self.model.spec.ignored)))
        if unused:
            warnings.warn(f"{self.lora.name}: changes {unused}, which the model does not use", stacklevel=2)
        for name in self.lora.pairs:
            if name not in self.used and name not in self.model.spec.ignored:
                reason = "cannot be adapted" if name in self.seen else "is no matrix of the model"
                raise LoadError(f"{name}: {reason}, and {self.lora.name} adapts it")
        return Adapter(factors, embedding)

    def _parts(self, linear: Linear) -> Iterator[Factors]:
        """What the adapter adds to each matrix of a layer."""
        row = 0
        for source in linear.sources:
            name, expert = self._name_of(source, linear)
            self.seen.add(source.info.name)
            pair = self.lora.pairs.get(name)
            if pair is not None and source.part is not None:
                self._check_shapes(name, pair, source)
                self.used.add(name)
                matrix = IN_LAYER.sub("", name).removesuffix(".weight")
                if matrix in self.model.spec.family.unadapted and not self.lora.everywhere:
                    self.skipped.add(matrix)
                    row += source.rows
                    continue
                a, b = self._matrix(pair.a, expert), self._matrix(pair.b, expert)[source.part.rows]
                if source.part.transposed:
                    a, b = b.T, a.T
                yield Factors(a, b, row, self.lora.factor(pair.rank))
            row += source.rows

    def _name_of(self, source: Source, linear: Linear) -> tuple[str, int | None]:
        """The name that the adapter has for a matrix, and the expert in a pair of tensors of all experts."""
        name = source.info.name
        if linear is self.model.output and "output.weight" in self.lora.pairs:
            return "output.weight", None  # also where the embeddings are the output matrix
        if name == EMBEDDING:
            return "", None  # a pair of this name is for the input alone, as in PEFT
        found = ONE_EXPERT.fullmatch(name)
        if found and name not in self.lora.pairs:
            return f"{found[1]}_exps.weight", int(found[2])
        return name, source.expert if len(source.info.shape) == 3 else None

    def _check_shapes(self, name: str, pair: FactorPair, source: Source) -> None:
        """Raises LoadError unless the pair has the shapes that the tensor asks for."""
        shape = source.info.shape
        cols, rows, *experts = (*shape, 1) if len(shape) == 1 else shape
        if ONE_EXPERT.fullmatch(source.info.name) and name != source.info.name:
            members = {s.info.name for linear in self.model.linears() for s in linear.sources}
            stem = name.removesuffix("_exps.weight")
            experts = [sum(m.startswith(f"{stem}.") and bool(ONE_EXPERT.fullmatch(m)) for m in members)]
        check_pair(pair, (cols, pair.rank, *experts), (pair.rank, rows, *experts))

    def _matrix(self, info: TensorInfo, expert: int | None) -> np.ndarray:
        """float32 (rows, cols): a tensor of the adapter, or the matrix of an expert in it."""
        if info.name not in self._values:
            if len(self._values) >= 8:  # the matrices of a layer's experts come one after the other
                self._values.clear()
            self._values[info.name] = self.lora.values(info)
        values = self._values[info.name]
        return values if expert is None else values[expert]

    def _low_rank(self, linear: Linear, parts: list[Factors]) -> Any:
        """The kernels' `LowRank` of a layer."""
        column, packed = 0, []
        for part in parts:
            packed.append((self._linear(part.b), column, part.row))
            column += len(part.a)
        factors = np.concatenate([np.full(len(part.a), part.factor) for part in parts])
        a = self._linear(np.concatenate([part.a for part in parts]))
        return self.kernels.linear.LowRank(a, packed, factors)

    def _linear(self, values: np.ndarray) -> Any:
        """The kernels' `Linear` of float32 (rows, cols), exact: as halves where they are."""
        rows, cols = values.shape
        values = np.ascontiguousarray(values)
        name, stored = "F32", values
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if np.array_equal(half.astype(np.float32), values):
            name, stored = "F16", half
        fmt = FORMATS[name]
        panels = aligned_empty(pack.packed_bytes(fmt.id, rows, cols))
        pack.pack(fmt.id, stored.reshape(-1).view(np.uint8), rows, cols, panels, 1)
        return self.kernels.linear.Linear([(LAYOUTS[fmt.layout or ""].id, rows, panels)], cols, None)

    def _embedding(self) -> EmbeddingDelta | None:
        """What is added to the token embeddings."""
        pair = self.lora.pairs.get(EMBEDDING)
        if pair is None:
            return None
        spec = self.model.spec
        check_pair(pair, (pair.rank, spec.n_vocab), (pair.rank, spec.n_embd))
        self.used.add(EMBEDDING)
        table, b = self._matrix(pair.a, None), self._matrix(pair.b, None)
        return EmbeddingDelta(table, self._linear(b), self.lora.factor(pair.rank))


def check_pair(pair: FactorPair, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Raises LoadError unless the tensors of a pair have these shapes."""
    for info, expected in ((pair.a, a), (pair.b, b)):
        if info.shape != expected:
            raise LoadError(f"{info.name}: expected shape {expected}, got {info.shape}")
