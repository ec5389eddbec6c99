"""Weights in memory: the tensors of a file packed into panels, ready for the kernels.

Everything is checked when a model is loaded, but a matrix is packed when it is first multiplied with (or by
`Matrices.pack`): a file opens at once, and what is never used, an expert say, is never read. Matrices of
floats can be quantized as they are packed: what runs then is what a quantized file holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oxillama._kernels import Kernels, pack
from oxillama._kernels.memory import ALIGNMENT, aligned_empty
from oxillama.errors import LoadError
from oxillama.formats import FORMATS, LAYOUTS, Format
from oxillama.gguf.model_file import ModelFile, TensorInfo
from oxillama.weights.file_types import FLOATS, fitting, is_quantized
from oxillama.weights.requantize import converted, quantized

PIECE = 64 << 20  # bytes of memory that small matrices share

Loaded = Callable[[str, int], None]
"""Told the name and the file bytes of each tensor once it is in memory."""

Observer = Callable[[TensorInfo, int, np.ndarray], None]
"""Told a matrix (its tensor; its expert, 0 if there is but one) and the float32 (n, cols) it multiplies."""


class Weights:
    """Takes tensors out of a model file by name, checking each against the shape that is expected.

    Parameters
    ----------
    file : the open model file; it must stay open while embeddings are looked up in it.
    kernels : the target whose `Linear` the matrices become.
    n_threads : threads that pack.
    loaded : told of every tensor taken, for a progress bar.
    quantize : format that matrices of floats are quantized to as `quantize_model` does with ``pure``: norms,
        routers and the like stay as they are, rows that do not fit get `file_types.FALLBACK`. None: never.
    compute : "int8" multiplies codes with int8 activations; "f32" and "bf16" hold what codes stand for as
        such numbers and multiply in float32. Matrices of floats are multiplied as they are, either way.

    All methods raise LoadError naming the tensor when it is missing, has another shape, or a format
    without kernels.
    """

    def __init__(
        self,
        file: ModelFile,
        kernels: Kernels,
        n_threads: int,
        loaded: Loaded | None = None,
        quantize: Format | None = None,
        compute: str = "int8",
    ) -> None:
        self.file = file
        self.kernels = kernels
        self.n_threads = n_threads
        self.loaded = loaded or (lambda name, n_bytes: None)
        self.quantize = quantize
        self.compute = compute
        self.taken: set[str] = set()
        self._piece = aligned_empty(0)

    def memory(self, n_bytes: int) -> np.ndarray:
        """Memory for packed panels, uint8 (n_bytes,), aligned to 64 bytes.

        Small matrices lie one behind another in large pieces: only those does the system back with large
        pages, and without them a token that reads many small matrices waits for page tables.
        """
        n_padded = -(-n_bytes // ALIGNMENT) * ALIGNMENT
        if n_padded > PIECE // 4:
            return aligned_empty(n_bytes)
        if n_padded > len(self._piece):
            self._piece = aligned_empty(PIECE)
        memory, self._piece = self._piece[:n_bytes], self._piece[n_padded:]
        return memory

    def has(self, name: str) -> bool:
        return name in self.file.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor in GGUF order (columns first), () where the file has none of that name."""
        return self.file.tensors[name].shape if self.has(name) else ()

    def unused(self) -> list[str]:
        """Tensors of the file that nothing has asked for."""
        return [name for name in self.file.tensors if name not in self.taken]

    def _info(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """The directory entry of a tensor that must have this shape, in GGUF order (columns first)."""
        if name not in self.file.tensors:
            raise LoadError(f"{name}: the file has no such tensor, the model needs it")
        info = self.file.tensors[name]
        if info.shape != shape:
            raise LoadError(f"{name}: needs the shape {shape}, the file has {info.shape}")
        if info.format.layout is None:
            runnable = ", ".join(fmt.name for fmt in FORMATS.values() if fmt.layout)
            raise LoadError(f"{name}: format {info.format.name} has no kernels; there are: {runnable}")
        self.taken.add(name)
        return info

    def _format(self, info: TensorInfo) -> Format:
        """What a matrix is held in."""
        if self.compute != "int8" and info.format.name not in FLOATS:
            return FORMATS[self.compute.upper()]
        return self._quantized(info)

    def _quantized(self, info: TensorInfo) -> Format:
        """The same, as far as `quantize` goes."""
        floats = info.format.name in FLOATS and is_quantized(info.name, len(info.shape))
        return info.format if self.quantize is None or not floats else fitting(self.quantize, info.shape[0])

    def vector(self, name: str, n: int) -> np.ndarray:
        """A one-dimensional tensor as float32 (n,)."""
        info = self._info(name, (n,))
        out = np.empty(n, np.float32)
        pack.dequantize(info.format.id, self.file.data(name), out)
        self.loaded(name, info.nbytes)
        return out

    def table(self, name: str, rows: int, cols: int) -> np.ndarray:
        """A two-dimensional tensor as float32 (rows, cols)."""
        info = self._info(name, (cols, rows))
        out = np.empty((rows, cols), np.float32)
        pack.dequantize(info.format.id, self.file.data(name), out)
        self.loaded(name, info.nbytes)
        return out

    def array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A tensor of any dimensions, given in GGUF order, as float32 in NumPy's.

        Dimensions of 1 at the end may be left out in the file.
        """
        stored = self.shape(name)
        same = stored and [*stored, *[1] * (len(shape) - len(stored))] == list(shape)
        info = self._info(name, stored if same else shape)
        out = np.empty(int(np.prod(info.shape)), np.float32)
        pack.dequantize(info.format.id, self.file.data(name), out)
        self.loaded(name, info.nbytes)
        return out.reshape(shape[::-1])

    def linear(
        self,
        names: Sequence[tuple[str, int]],
        cols: int,
        biases: Sequence[tuple[str, int]] | None = None,
    ) -> Matrices:
        """The matrices ``(name without suffix, rows)`` that share an input, with any biases they have, or
        those of ``biases`` (of as many rows in all)."""
        sources = []
        for name, rows in names:  # all shapes are right before anything is made from them
            flat = rows == 1 and self.shape(f"{name}.weight") == (cols,)  # one row may be a vector
            info = self._info(f"{name}.weight", (cols,) if flat else (cols, rows))
            sources.append(Source(info, self._format(info), self.file.data(info.name), info.nbytes, rows))
            self._refuse_scale(name)
        bias = None
        biases = biases or names
        if any(self.has(f"{name}.bias") for name, _ in biases):
            parts = [
                self.vector(f"{name}.bias", rows) if self.has(f"{name}.bias") else np.zeros(rows, np.float32)
                for name, rows in biases
            ]
            bias = np.concatenate(parts)
        return self._matrices(sources, cols, bias)

    def _matrices(self, sources: list[Source], cols: int, bias: np.ndarray | None) -> Matrices:
        return Matrices(self, sources, cols, bias)

    def _refuse_scale(self, name: str) -> None:
        """Raises LoadError where the file says by another tensor that a whole matrix is to be scaled."""
        if self.has(f"{name}.scale"):
            raise LoadError(f"{name}.scale: scales of whole tensors are not supported")

    def stack(self, names: Sequence[tuple[str, int]], cols: int, n_experts: int) -> MatrixStack:
        """Such matrices for each expert: its slices of stacked (n_experts, rows, cols) tensors, and of their
        (n_experts, rows) biases."""
        slices: list[list[Source]] = [[] for _ in range(n_experts)]
        biases = []
        for name, rows in names:
            if self.has(f"{name.removesuffix('_exps')}.0.weight"):  # older files have one for each expert
                for expert, found in enumerate(slices):
                    info = self._info(f"{name.removesuffix('_exps')}.{expert}.weight", (cols, rows))
                    blocks = self.file.data(info.name)
                    found.append(Source(info, self._format(info), blocks, info.nbytes, rows, expert))
            else:
                info = self._info(f"{name}.weight", (cols, rows, n_experts))
                for expert, blocks in enumerate(self.file.data(info.name).reshape(n_experts, -1)):
                    part = Source(info, self._format(info), blocks, info.nbytes // n_experts, rows, expert)
                    slices[expert].append(part)
            self._refuse_scale(name)
            if self.has(f"{name}.bias"):
                biases.append(self.table(f"{name}.bias", n_experts, rows))
            else:
                biases.append(np.zeros((n_experts, rows), np.float32))
        has_bias = any(self.has(f"{name}.bias") for name, _ in names)
        bias = np.hstack(biases) if has_bias else None
        members = [
            self._matrices(sources, cols, None if bias is None else np.ascontiguousarray(bias[expert]))
            for expert, sources in enumerate(slices)
        ]
        return MatrixStack(self.kernels, members)

    def dense(self, name: str, values: np.ndarray) -> Matrices:
        """A matrix made of the tensor ``name``: float32 (rows, cols), held as F32 if the tensor is F32, else
        as F16."""
        exact = self.file.tensors[name].format.name == "F32"
        stored = np.ascontiguousarray(values, np.float32 if exact else np.float16)
        rows, cols = values.shape
        info = replace(self.file.tensors[name], format=FORMATS["F32" if exact else "F16"])
        source = Source(info, info.format, stored.reshape(-1).view(np.uint8), 0, rows)
        return self._matrices([source], cols, None)

    def embedding(self, name: str, rows: int, cols: int) -> Embedding:
        """A table whose rows are looked up in the file itself: only the pages touched are read."""
        info = self._info(name, (cols, rows))
        self.loaded(name, info.nbytes)
        fmt = self._quantized(info)
        requantize = None if fmt is info.format else fmt
        return Embedding(
            self.file.data(name).reshape(rows, -1), info.format.id, cols, self.kernels, requantize
        )


@dataclass(frozen=True)
class Source:
    """Where a matrix comes from: its tensor, its blocks in the file (one expert's, of a stacked tensor)."""

    info: TensorInfo
    format: Format  # that it is held in
    blocks: np.ndarray  # uint8, the rows as the file holds them
    nbytes: int
    rows: int
    expert: int = 0

    def packed_bytes(self, cols: int) -> int:
        """What it takes in memory."""
        return pack.packed_bytes(self.format.id, self.rows, cols)


class Matrices:
    """Matrices that share an input: a `Linear` of the kernels whose panels are packed when they are needed.

    Attributes
    ----------
    rows, cols : of all matrices together, stacked by rows.
    sources : where they come from.
    observer : told what each is multiplied with, or None.
    """

    def __init__(self, weights: Weights, sources: list[Source], cols: int, bias: np.ndarray | None) -> None:
        self._weights = weights
        self.sources = sources
        self.observer: Observer | None = None
        self._pending = [(source, weights.memory(source.packed_bytes(cols))) for source in sources]
        parts = [
            (LAYOUTS[source.format.layout or ""].id, source.rows, data) for source, data in self._pending
        ]
        self._linear = weights.kernels.linear.Linear(parts, cols, bias)
        self.rows: int = self._linear.rows
        self.cols = cols
        self.scratch_bytes: Callable[[int], int] = self._linear.scratch_bytes

    def apply(
        self, x: np.ndarray, out: np.ndarray, scratch: np.ndarray, n_threads: int, accumulate: bool = False
    ) -> None:
        """As `Linear.apply`: out (n, rows) = x (n, cols) W^T + bias, or out + that."""
        self.prepare(x)
        self._linear.apply(x, out, scratch, n_threads, accumulate)

    def prepare(self, x: np.ndarray) -> Any:
        """The kernels' `Linear`, packed, after telling the observer of x (n, cols)."""
        if self._pending:
            self.pack()
        if self.observer is not None:
            for source in self.sources:
                self.observer(source.info, source.expert, x)
        return self._linear

    def pack(self) -> None:
        """Packs what is not packed yet, and gives the file's pages back to the system."""
        weights = self._weights
        while self._pending:
            source, data = self._pending[0]
            info = source.info
            if source.format is info.format:
                pack.pack(info.format.id, source.blocks, source.rows, self.cols, data, weights.n_threads)
            else:
                self._pack_quantized(source, data)
            weights.file.release(info.name)
            weights.loaded(info.name, source.nbytes)
            del self._pending[0]

    def _pack_quantized(self, source: Source, data: np.ndarray) -> None:
        """Packs the matrix in another format than the file's, some panels at a time."""
        weights, info, fmt, start = self._weights, source.info, source.format, 0
        n = weights.n_threads
        for rows in converted(
            weights.kernels, info.name, info.format, source.blocks, self.cols, fmt, n_threads=n
        ):
            panels = data[start : start + pack.packed_bytes(fmt.id, len(rows), self.cols)]
            pack.pack(fmt.id, rows.reshape(-1), len(rows), self.cols, panels, n)
            start += len(panels)


class MatrixStack:
    """Matrices of one shape, of which the rows of a batch take different ones: those of experts, or of heads.

    Attributes
    ----------
    members : by the number of the expert or head.
    rows, cols : of each.
    """

    def __init__(self, kernels: Kernels, members: list[Matrices]) -> None:
        self.kernels = kernels
        self.members = members
        self.rows, self.cols = members[0].rows, members[0].cols

    def apply(
        self,
        numbers: list[int],
        counts: np.ndarray,
        x: np.ndarray,
        rows: np.ndarray | None,
        out: np.ndarray,
        scratch: np.ndarray,
        n_threads: int,
    ) -> None:
        """As the kernels' `apply_groups`: out[i] = x[rows[i]] W^T + bias, with the matrices ``numbers[0]``
        for the first ``counts[0]`` of these rows, and so on."""
        linears, start = [], 0
        for number, count in zip(numbers, counts.tolist()):
            member, span = self.members[number], slice(start, start + count)
            if member.observer is None:
                linears.append(member.prepare(x))
            else:
                linears.append(member.prepare(x[span] if rows is None else x[rows[span]]))
            start += count
        self.kernels.linear.apply_groups(linears, counts, x, rows, out, scratch, n_threads)


class Embedding:
    """Rows of a table, dequantized when asked for; quantized to another format first, if there is one."""

    def __init__(
        self, rows: np.ndarray, format_id: int, cols: int, kernels: Kernels, requantize: Format | None = None
    ) -> None:
        self.rows = rows  # (vocab, bytes of a row)
        self.format_id = format_id
        self.cols = cols
        self.kernels = kernels
        self.requantize = requantize

    def lookup(self, ids: np.ndarray, out: np.ndarray) -> None:
        """out (n, cols) float32 = the rows of ``ids`` (n,)."""
        pack.dequantize(self.format_id, self.rows[ids].reshape(-1), out)
        if self.requantize is not None and len(ids):
            blocks = quantized(self.kernels, out, self.requantize, None)
            pack.dequantize(self.requantize.id, blocks.reshape(-1), out)
