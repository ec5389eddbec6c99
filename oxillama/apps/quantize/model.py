"""Writes a smaller model file: `quantize_model` plans the format of every tensor, then converts one by one.

Other tensors are copied bit for bit. So are the metadata, except the file type, the quantization version, and
the keys of split files. Memory is bounded by a few chunks of rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oxillama import _kernels
from oxillama.apps.quantize import mixes
from oxillama.apps.quantize.imatrix import ImportanceMatrix
from oxillama.apps.quantize.mixes import ModelFacts
from oxillama.base.atomic_file import replaced_file
from oxillama.base.config.engine import available_cpus
from oxillama.base.formats import FLOATS, FORMATS, Format
from oxillama.errors import ConfigError, GGUFError, LoadError, ModelFileError
from oxillama.gguf import file_types, writer
from oxillama.gguf.file_types import FILE_TYPES, UNWEIGHTED
from oxillama.gguf.model_file import ModelFile, TensorInfo
from oxillama.models.weights.requantize import converted

QUANTIZATION_VERSION = 2
"""The version of the block formats, for ``general.quantization_version``."""

COPIED_BYTES = 1 << 22
"""Bytes of a tensor that are copied at a time."""

SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")

Progress = Callable[[str, int], None]
"""Called with the name of a converted tensor and its size in the source in bytes."""


@dataclass(frozen=True)
class Planned:
    """The plan for a tensor.

    Attributes:
        source: its entry in the source file.
        format: its format in the new file.
        wanted: the intended format; ``format`` is a replacement if the rows do not fit it.
        weighted: whether the importance matrix is used: it has an entry, and the format supports weights.
    """

    source: TensorInfo
    format: Format
    wanted: Format
    weighted: bool

    @property
    def changes(self) -> bool:
        """Whether the tensor is converted, not copied."""
        return self.format is not self.source.format

    @property
    def nbytes(self) -> int:
        """The size of its data in the new file in bytes."""
        return self.format.nbytes(self.source.n_elements)


@dataclass(frozen=True)
class Quantization:
    """The result of `quantize_model`, or its plan.

    Attributes:
        file_type: the full name of the type, e.g. "Q4_K_M".
        tensors: in file order.
    """

    file_type: str
    tensors: tuple[Planned, ...]

    @property
    def source_bytes(self) -> int:
        """The size of all tensors in the source in bytes."""
        return sum(tensor.source.nbytes for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """The size of all tensors in the new file in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        """The mean number of bits of a weight in the new file."""
        return 8 * self.nbytes / sum(tensor.source.n_elements for tensor in self.tensors)


def quantize_model(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None,
    type: str,
    *,
    imatrix: str | os.PathLike[str] | ImportanceMatrix | None = None,
    pure: bool = False,
    output_tensor_type: str | None = None,
    token_embedding_type: str | None = None,
    tensor_types: Sequence[tuple[str, str]] = (),
    leave_output_tensor: bool = False,
    allow_requantize: bool = False,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> Quantization:
    """Write a model in another file type.

    Args:
        source: GGUF file (the first file of a split model).
        target: file to write, which replaces an existing one; None: only return the plan.
        type: a file type of `file_types.FILE_TYPES` or its alias, e.g. "Q4_K_M", in any case.
        imatrix: importance matrix, or a file with one.
        pure: whether to use the type's base format for every matrix.
        output_tensor_type: format of the output matrix.
        token_embedding_type: format of the embedding.
        tensor_types: (regular expression, format) pairs for matrices whose names match; the first match
            counts.
        leave_output_tensor: do not quantize the output matrix.
        allow_requantize: allow matrices that are already quantized, which costs quality.
        num_threads: None: the CPUs that this process may use.
        progress: called for each tensor.

    Raises:
        ConfigError: an option is invalid, or not supported for this model.
        ModelFileError: a file cannot be read or written.
        GGUFError: a file is malformed, or a weight is not finite or too large for the format.
        LoadError: there are no matrices, or a matrix has an unreadable format.
    """
    file_type, _ = file_types.named_type(type)
    named = file_types.named_format
    output = None if output_tensor_type is None else named(output_tensor_type, "output_tensor_type")
    embedding = None if token_embedding_type is None else named(token_embedding_type, "token_embedding_type")
    overrides = [(_pattern(p), named(t, "tensor_types")) for p, t in tensor_types]
    threads = available_cpus() if num_threads is None else num_threads
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 1024:
        raise ConfigError(f"num_threads: expected an integer from 1 to 1024, got {num_threads!r}")
    if leave_output_tensor and output is not None:
        raise ConfigError("leave_output_tensor: expected no output_tensor_type beside it, got one")
    if imatrix is not None and not isinstance(imatrix, ImportanceMatrix):
        imatrix = ImportanceMatrix.read(imatrix)
    with ModelFile.open(source) as file:
        planner = _Planner(file, file_type, imatrix, pure, output, embedding, overrides, leave_output_tensor)
        plan = Quantization(file_type, planner.plan())
        _check_sources(plan, allow_requantize)
        if target is not None:
            path = Path(os.fsdecode(target))
            if any(_is_same(path, shard) for shard in file.paths):
                raise ConfigError(f"target: expected another file than the source, got {path}")
            _write(file, plan, path, imatrix, threads, progress or (lambda name, n_bytes: None))
    return plan


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # missing, or not a valid path
        return False
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be written: {error.strerror or error}") from error


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(f"tensor_types: expected a regular expression, got {text!r}: {error}") from error


@dataclass
class _Planner:
    """Chooses the format of every tensor of a file."""

    file: ModelFile
    file_type: str
    imatrix: ImportanceMatrix | None
    pure: bool
    output: Format | None
    embedding: Format | None
    overrides: list[tuple[re.Pattern[str], Format]]
    leave_output: bool

    def __post_init__(self) -> None:
        self.matrices = [
            name
            for name, info in self.file.tensors.items()
            if file_types.is_quantized(name, len(info.shape))
            and not (self.leave_output and name == "output.weight")
            and not info.format.name.startswith("I")
        ]
        self.base = FORMATS[FILE_TYPES[self.file_type].base]
        is_mixed = not self.pure and self.base.name not in FLOATS
        self.facts = model_facts(self.file, self.imatrix is not None) if is_mixed else None
        self.indices = mixes.indices(self.matrices)

    def plan(self) -> tuple[Planned, ...]:
        if not self.matrices:
            raise LoadError(f"{self.file.path}: expected matrices to quantize, got none")
        if self.leave_output and "output.weight" not in self.file.tensors:
            raise ConfigError(
                "leave_output_tensor: expected a file with output.weight, got one with a tied embedding"
            )
        for pattern, _ in self.overrides:
            if not any(pattern.search(name) for name in self.matrices):
                raise ConfigError(f"tensor_types: expected part of a matrix name, got {pattern.pattern!r}")
        if self.output is not None and not self._has("output.weight") and not self._tied():
            raise ConfigError("output_tensor_type: expected an output matrix to quantize, got none")
        if self.embedding is not None and not self._has(*file_types.EMBEDDINGS):
            raise ConfigError("token_embedding_type: expected an embedding to quantize, got none")
        matrices = set(self.matrices)
        plan = tuple(
            self._planned(info)
            if name in matrices
            else Planned(info, info.format, info.format, weighted=False)
            for name, info in self.file.tensors.items()
        )
        if self.imatrix is not None and not self._has(*self.imatrix.entries):
            raise ConfigError("imatrix: expected entries of matrices of this model, got none")
        return plan

    def _has(self, *names: str) -> bool:
        return any(name in self.matrices for name in names)

    def _tied(self) -> bool:
        return "output.weight" not in self.file.tensors and self._has("token_embd.weight")

    def _planned(self, info: TensorInfo) -> Planned:
        named = self._named_format(info.name)
        wanted = named or self._mixed(info)
        found = file_types.fitting(wanted, info.shape[0])
        if named is not None and found is not named:
            wanted_rows = f"rows of a multiple of {named.block_len} for {named.name}"
            raise ConfigError(f"{info.name}: expected {wanted_rows}, got {info.shape[0]}")
        weighted = self.imatrix is not None and found.name not in UNWEIGHTED and self._is_weighted(info)
        return Planned(info, found, wanted, weighted)

    def _named_format(self, name: str) -> Format | None:
        """The format that the options set for a matrix; patterns have the lowest priority."""
        if self.embedding is not None and name in file_types.EMBEDDINGS:
            return self.embedding
        if self.output is not None and (
            name == "output.weight" or (self._tied() and name == "token_embd.weight")
        ):
            return self.output
        return next((fmt for pattern, fmt in self.overrides if pattern.search(name)), None)

    def _mixed(self, info: TensorInfo) -> Format:
        if self.facts is None:
            return self.base
        index = self.indices[info.name]
        return FORMATS[mixes.mixed(self.file_type, info.name, info.shape[0], index, self.facts)]

    def _is_weighted(self, info: TensorInfo) -> bool:
        assert self.imatrix is not None
        entry = self.imatrix.entries.get(info.name)
        if entry is None:
            return False
        if importance_of(entry_shape(info), self.imatrix, info.name) is None:
            if info.name in file_types.EMBEDDINGS:  # some tools record the lookup's input, too
                return False
            cols, matrices = entry_shape(info)
            found = f"got {entry.sums.shape[0]} x {entry.sums.shape[1]}"
            raise ConfigError(f"imatrix: {info.name}: expected {matrices} x {cols} numbers, {found}")
        return True


def entry_shape(info: TensorInfo) -> tuple[int, int]:
    """The number of columns, and of stacked matrices."""
    return info.shape[0], info.n_elements // (info.shape[0] * info.shape[1])


def importance_of(shape: tuple[int, int], imatrix: ImportanceMatrix, name: str) -> np.ndarray | None:
    """float32 (matrices, cols); None without an entry, or if its shape differs."""
    entry = imatrix.entries.get(name)
    return None if entry is None else entry.weights(*shape)


def model_facts(file: ModelFile, has_importance: bool) -> ModelFacts:
    """The facts for the mixes. Raises GGUFError for a metadata key of the wrong type."""
    architecture = file.get("general.architecture", str)

    def first(key: str, default: int) -> int:
        """An integer, or the largest of one integer per layer."""
        full = f"{architecture}.{key}"
        per_layer = isinstance(file.metadata.get(full), np.ndarray)
        value = max(file.get(full, list[int]), default=-1) if per_layer else file.get(full, int, default)
        if value < 0:
            raise GGUFError(f"expected an integer >= 0, got {value!r:.40}", key=f"{architecture}.{key}")
        return value

    n_heads = first("attention.head_count", 0)
    return ModelFacts(
        architecture,
        first("block_count", 0),
        n_heads,
        first("attention.head_count_kv", n_heads),
        first("expert_count", 0),
        tied="output.weight" not in file.tensors,
        has_importance=has_importance,
    )


def _check_sources(plan: Quantization, allow_requantize: bool) -> None:
    """Raise unless every matrix to be converted is readable, and allowed."""
    for tensor in plan.tensors:
        source = tensor.source
        if not tensor.changes:
            continue
        if source.format.layout is None:
            readable = ", ".join(fmt.name for fmt in FORMATS.values() if fmt.layout)
            raise LoadError(f"{source.name}: expected one of {readable}, got {source.format.name}")
        if source.format.name not in FLOATS and not allow_requantize:
            raise ConfigError(
                f"allow_requantize: {source.name} is {source.format.name} already; quantizing it again to "
                f"{tensor.format.name} costs quality and has to be allowed"
            )


def _write(
    file: ModelFile,
    plan: Quantization,
    path: Path,
    imatrix: ImportanceMatrix | None,
    n_threads: int,
    progress: Progress,
) -> None:
    tensors = [writer.Tensor(t.source.name, t.format, t.source.shape) for t in plan.tensors]
    head = writer.header(_pairs(file, plan.file_type, imatrix), tensors, file.alignment)
    with replaced_file(path) as out:
        out.write(head)
        for tensor, planned in zip(tensors, plan.tensors, strict=True):
            chunks = _chunks(file, planned, imatrix, n_threads)
            writer.write_tensor(out, tensor, chunks, file.alignment)
            progress(tensor.name, planned.source.nbytes)


def _pairs(file: ModelFile, file_type: str, imatrix: ImportanceMatrix | None) -> list[writer.Data]:
    """The source's metadata with the changes of the quantization."""
    pairs: dict[str, writer.Data] = dict(file.raw_metadata())
    for key in SPLIT_KEYS:
        pairs.pop(key, None)
    changed: dict[str, int | str] = {
        "general.file_type": FILE_TYPES[file_type].id,
        "general.quantization_version": QUANTIZATION_VERSION,
    }
    if imatrix is not None:  # the keys of llama.cpp's tool (tools/quantize)
        changed["quantize.imatrix.entries_count"] = len(imatrix.entries)
        changed["quantize.imatrix.chunks_count"] = imatrix.chunk_count
        if imatrix.datasets:
            changed["quantize.imatrix.dataset"] = imatrix.datasets[0]
    return list((pairs | {key: writer.pair(key, value) for key, value in changed.items()}).values())


def _chunks(
    file: ModelFile, planned: Planned, imatrix: ImportanceMatrix | None, n_threads: int
) -> Iterator[np.ndarray]:
    """Yield the data of a tensor in the new file."""
    source, data = planned.source, file.extent(planned.source.name)
    if not planned.changes:
        for start in range(0, data.nbytes, COPIED_BYTES):
            yield data.read(start, min(COPIED_BYTES, data.nbytes - start))
        return
    cols, matrices = entry_shape(source)
    weights = importance_of((cols, matrices), imatrix, source.name) if imatrix and planned.weighted else None
    kernels = _kernels.best()
    parts = matrices if weights is not None else 1
    for i in range(parts):
        row = None if weights is None else weights[i]
        blocks = data.part(i * (data.nbytes // parts), data.nbytes // parts)
        yield from converted(
            kernels, source.name, source.format, blocks, cols, planned.format, row, n_threads
        )
