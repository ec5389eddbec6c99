"""Loads the weights of a model: reads tensors from its file by name, and checks the shape of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from oxillama._kernels import Kernels, pack
from oxillama.base.formats import FLOATS, FORMATS, LONGEST_ROW, ROUNDED, W8A8, Format
from oxillama.base.lazy_import import lazy
from oxillama.errors import LoadError
from oxillama.gguf.extent import Extent
from oxillama.gguf.model_file import ModelFile, TensorInfo
from oxillama.models.weights.linear import Embedding, Linear, PanelStore, ResidentStore
from oxillama.models.weights.packer import MatrixPart, Packer, Progress, Source

is_rounded: Callable[..., bool] = lazy("oxillama.gguf.file_types:is_rounded")


class Weights:
    """The tensors of a model file, as arrays, linear layers and embeddings.

    Args:
        file: the open model file. Layers and embeddings read from it later, even when it is closed.
        kernels: the target that multiplies.
        n_threads: threads that pack.
        progress: called for each tensor that comes into memory.
        quantize: format that float matrices are quantized to, as by `quantize_model` with ``pure``: norms,
            routers and the like keep their format, and `file_types.FALLBACK` replaces a format that does not
            fit the rows. None: never.
        compute: "int8" multiplies quantized matrices with int8 activations; "f32" and "bf16" dequantize them
            to that format. Activations of BF16 matrices are rounded to bf16, but with "f32" these become F32;
            F32 and F16 matrices are multiplied in float32. "w8a8" and "w8a8-128" round all matrices to
            `formats.ROUNDED`, except float matrices that keep their format (as with ``quantize``), that have
            rows whose length is not a multiple of 32, or that are computed from several.
        store: makes the `PanelStore` from which linear layers get their packed matrices, given a `Packer`.

    All methods raise LoadError with the name of a tensor that is missing, has another shape, or has a format
    without kernels.
    """

    def __init__(
        self,
        file: ModelFile,
        kernels: Kernels,
        n_threads: int,
        progress: Progress | None = None,
        quantize: Format | None = None,
        compute: str = "int8",
        store: Callable[[Packer], PanelStore] = ResidentStore,
    ) -> None:
        self.file = file
        self.kernels = kernels
        self.progress: Progress = progress or (lambda name, n_bytes: None)
        self.quantize = quantize
        self.compute = compute
        self.taken: set[str] = set()
        self.ignored: set[str] = set()
        self.prefix: str = ""
        self.renamed: dict[str, str] = {}
        self.blocks: dict[str, str] = {}
        self.shared: dict[object, Linear] = {}
        self.packer: Packer = Packer(kernels, n_threads, self.progress)
        self.store: PanelStore = store(self.packer)

    def ignore(self, names: Iterable[str]) -> None:
        """Hides tensors: `has` is False for them from now on, and `unused` does not list them."""
        self.ignored.update(names)

    def name_layers(self, prefix: str, renamed: Mapping[str, str], blocks: Mapping[str, str] = {}) -> None:
        """How the file names tensors of layers from now on: with ``prefix`` before "blk.", and some words
        behind the layer's number ``renamed``; for some layers with another number (``blocks``)."""
        self.prefix = prefix
        self.renamed = dict(renamed)
        self.blocks = dict(blocks)

    def stored(self, name: str) -> str:
        """The file's name of a tensor."""
        if not name.startswith("blk.") or not (self.prefix or self.renamed or self.blocks):
            return name
        block, number, part, *rest = name.split(".")
        number = self.blocks.get(number, number)
        return self.prefix + ".".join([block, number, self.renamed.get(part, part), *rest])

    def has(self, name: str) -> bool:
        name = self.stored(name)
        return name in self.file.tensors and name not in self.ignored

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor in GGUF order (columns first), () for a tensor the file does not have."""
        return self.file.tensors[self.stored(name)].shape if self.has(name) else ()

    def unused(self) -> list[str]:
        """Tensors of the file that were never taken."""
        known = self.taken | self.ignored
        return [name for name in self.file.tensors if name not in known]

    def take(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """The directory entry of a tensor, whose shape must be ``shape`` (GGUF order: columns first)."""
        if not self.has(name):
            raise LoadError(f"{self.stored(name)}: expected a tensor of shape {shape}, got none")
        name = self.stored(name)
        info = self.file.tensors[name]
        if info.shape != shape:
            raise LoadError(f"{name}: expected shape {shape}, got {info.shape}")
        if info.format.layout is None:
            runnable = ", ".join(fmt.name for fmt in FORMATS.values() if fmt.layout)
            raise LoadError(f"{name}: expected a format with kernels ({runnable}), got {info.format.name}")
        self.taken.add(name)
        return info

    def linear_format(self, info: TensorInfo) -> Format:
        """Format of a matrix in memory."""
        rounded = ROUNDED.get(self.compute)
        if rounded is not None and is_rounded(info.name, info.format, info.shape):
            if rounded is W8A8 and info.shape[0] > LONGEST_ROW:
                raise LoadError(
                    f"{info.name}: expected rows of at most {LONGEST_ROW} for w8a8, got {info.shape[0]}"
                )
            return rounded
        exact = ("F32", "F16") if self.compute == "f32" else FLOATS  # BF16 rounds activations
        if self.compute in ("bf16", "f32") and info.format.name not in exact:
            return FORMATS[self.compute.upper()]
        return self._quantized_format(info)

    def _quantized_format(self, info: TensorInfo) -> Format:
        """Format of a tensor after `quantize`."""
        if self.quantize is None:
            return info.format
        from oxillama.gguf.file_types import fitting, is_quantized  # on use

        floats = info.format.name in FLOATS and is_quantized(info.name, len(info.shape))
        return fitting(self.quantize, info.shape[0]) if floats else info.format

    def _dequantized(self, info: TensorInfo) -> np.ndarray:
        """A tensor as float32, in the order of NumPy (columns last)."""
        self.refuse_scale(info.name.removesuffix(".weight"))
        out = np.empty(info.n_elements, np.float32)
        pack.dequantize(info.format.id, self.file.data(info.name), out)
        self.progress(info.name, info.nbytes)
        return out.reshape(info.shape[::-1])

    def vector(self, name: str, n: int) -> np.ndarray:
        """A tensor of one dimension as float32 (n,)."""
        return self._dequantized(self.take(name, (n,)))

    def matrix(self, name: str, rows: int, cols: int) -> np.ndarray:
        """A tensor of two dimensions as float32 (rows, cols)."""
        return self._dequantized(self.take(name, (cols, rows)))

    def array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A tensor as float32 of shape ``shape[::-1]``; ``shape`` is in GGUF order.

        The file may leave out trailing dimensions of 1.
        """
        stored = self.shape(name)
        same = stored and [*stored, *[1] * (len(shape) - len(stored))] == list(shape)
        return self._dequantized(self.take(name, stored if same else shape)).reshape(shape[::-1])

    def linear(
        self,
        names: Sequence[tuple[str, int]],
        cols: int,
        biases: Sequence[tuple[str, int]] | None = None,
        scaled: bool = False,
    ) -> Linear:
        """A linear layer of the matrices ``(name without suffix, rows)``.

        The biases are named by ``biases`` (as many rows in all), by default by ``names``; a bias that
        the file does not have is zero. Products are multiplied with the scale of a matrix, unless the caller
        does that (``scaled``). Layers with the same tensors (``blocks`` of `name_layers`) share the linear
        layer.
        """
        key = tuple((self.stored(name), rows) for name, rows in names) if self.blocks else ()
        if key in self.shared:
            return self.shared[key]
        sources = []
        for name, rows in names:  # check all shapes before anything is made of them
            flat = rows == 1 and self.shape(f"{name}.weight") == (cols,)  # one row may be a vector
            sources.append(self.source(name, (cols,) if flat else (cols, rows), rows, scaled=scaled))
        bias = None
        biases = names if biases is None else biases
        if any(self.has(f"{name}.bias") for name, _ in biases):
            parts = [
                self.vector(f"{name}.bias", rows) if self.has(f"{name}.bias") else np.zeros(rows, np.float32)
                for name, rows in biases
            ]
            bias = np.concatenate(parts)
        made = self.linear_of(sources, cols, bias)
        if key:
            self.shared[key] = made
        return made

    def source(
        self,
        name: str,
        shape: tuple[int, ...],
        rows: int,
        expert: int = 0,
        suffix: str = "weight",
        scaled: bool = False,
    ) -> Source:
        """The matrix in the tensor ``name``, without suffix, of this shape; ``scaled`` as in `linear`."""
        info = self.take(f"{name}.{suffix}", shape)
        blocks, scale = self.file.extent(info.name), 1.0 if scaled else self.scales(name, 1)[0]
        return Source(info, self.linear_format(info), blocks, info.nbytes, rows, expert, scale=scale)

    def linear_of(self, sources: list[Source], cols: int, bias: np.ndarray | None) -> Linear:
        """A linear layer of matrices."""
        return Linear(self.kernels, self.store.panels(sources, cols), sources, cols, bias)

    def scales(self, name: str, n: int) -> list[float]:
        """The factor of products with a matrix, or the factors for n experts.

        Files made from checkpoints in NVFP4 or FP8 have such scales. Their scales of inputs are not needed.
        """
        if self.has(f"{name}.input_scale"):
            self.taken.add(self.stored(f"{name}.input_scale"))
        return self.vector(f"{name}.scale", n).tolist() if self.has(f"{name}.scale") else [1.0] * n

    def refuse_scale(self, name: str) -> None:
        """Raises LoadError if the file has a scale for a tensor that is no matrix of a linear layer."""
        if self.has(f"{name}.scale"):
            raise LoadError(
                f"{name}.scale: expected scales of linear layers alone, got one of another tensor"
            )

    def linear_from(self, name: str, values: np.ndarray, part: MatrixPart | None = None) -> Linear:
        """A linear layer of a matrix computed from the tensor ``name``.

        ``values`` is float32 (rows, cols); it is held as F32 if the tensor is F32, else as F16. ``part`` says
        its place in the tensor, if it is a part of one.
        """
        exact = self.file.tensors[name].format.name == "F32"
        stored = np.ascontiguousarray(values, np.float32 if exact else np.float16)
        rows, cols = values.shape
        info = replace(self.file.tensors[name], format=FORMATS["F32" if exact else "F16"])
        blocks = Extent(stored.reshape(-1).view(np.uint8), 0, stored.nbytes)
        source = Source(info, info.format, blocks, 0, rows, part=part)
        return self.linear_of([source], cols, None)

    def embedding(self, name: str, rows: int, cols: int) -> Embedding:
        """A table whose rows are read from the file when they are looked up."""
        info = self.take(name, (cols, rows))
        self.refuse_scale(name.removesuffix(".weight"))
        self.progress(name, info.nbytes)
        fmt = self._quantized_format(info)
        requantize = None if fmt is info.format else fmt
        return Embedding(name, self.file.extent(name), info.format.id, cols, self.kernels, requantize)
