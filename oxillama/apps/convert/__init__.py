"""Converts Hugging Face folders to GGUF files: models, encoders of pictures and sounds, LoRA adapters.

`families` makes a plan from a config.json, `safetensors` reads weights, `vocabulary` converts the tokenizer;
this module checks these against each other and writes them, one tensor at a time (`writing`). `projector`
writes encoders. `adapters` writes the pairs of matrices of an adapter, with facts of its base from `bases`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from oxillama._kernels import Kernels, best
from oxillama.apps.convert.adapters import ADAPTER_TYPES, convert_adapter
from oxillama.apps.convert.config import Config, Packed, Plan, Wanted
from oxillama.apps.convert.families import plan_of
from oxillama.apps.convert.safetensors import (
    Stored,
    by_name,
    exists,
    is_folder,
    needed,
    read_json,
    read_tensors,
    refuse_surplus,
)
from oxillama.apps.convert.sentences import matrices_of, pooling_of
from oxillama.apps.convert.vocabulary import vocabulary_metadata
from oxillama.apps.convert.writing import Conversion, Piece, encoded, reordered, usual_format, write
from oxillama.base.config import checks
from oxillama.base.formats import FORMATS, Format
from oxillama.errors import LoadError, ModelFileError
from oxillama.gguf.file_types import FILE_TYPES
from oxillama.gguf.model_file import ModelFile
from oxillama.gguf.writer import Tensor
from oxillama.models.preflight import preflight

TYPES = ("F32", "F16", "BF16", "Q8_0")
CHUNK = 1 << 26
"""Bytes of a matrix that are read at once."""
MOSTLY_MXFP4 = 38
"""GGUF's number for files whose experts are MXFP4."""


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    type: str | None = None,
    base: str | os.PathLike[str] | None = None,
    *,
    mmproj: bool = False,
    overwrite: bool = True,
) -> Conversion:
    """Writes the model or the adapter in a Hugging Face folder, or a model's encoders, as a GGUF file.

    Args:
        source: folder of a model, with config.json, model.safetensors (or shards and their index) and
            tokenizer.json (or BERT's vocab.txt); or of a LoRA adapter, with PEFT's adapter_config.json and
            adapter_model.safetensors.
        target: file to write, which replaces an existing one when it is complete.
        type: format of a model's matrices, one of `TYPES` (default F16), or of an adapter's, one of
            `ADAPTER_TYPES` (default F32); `quantize_model` makes other formats from the result. Vectors, and
            tables of positions and types, are F32. Rows whose length is no multiple of Q8_0's blocks are F16.
        base: model of an adapter: a Hugging Face folder (its config.json is enough) or a GGUF file. Not
            needed if adapter_config.json names an existing folder.
        mmproj: writes the model's encoder of pictures or sounds, not its text model; the folder must also
            have a preprocessor_config.json or processor_config.json.
        overwrite: False to raise an error, and keep the target, if it exists when the file is complete.

    Raises:
        ConfigError: there is no such type; ``base`` is given with a model, or ``mmproj`` with an adapter.
        ModelFileError: a file cannot be read or written.
        LoadError: the architecture, an option, or a tensor is not supported; the message names it.
        GGUFError: a weight is too large for ``type``; the file of the base is malformed.
        TokenizerError: the tokenizer, or an option of it, is not supported.
    """
    folder = Path(source)
    if not is_folder(folder):
        raise ModelFileError(f"{folder}: expected a folder with a config.json or an adapter_config.json")
    is_adapter = exists(folder / "adapter_config.json")
    kind = checked_type(type, ADAPTER_TYPES if is_adapter else TYPES, "F32" if is_adapter else "F16")
    if is_adapter:
        if mmproj:
            raise checks.refuse("mmproj", "False for a folder with an adapter_config.json", mmproj)
        base_path = None if base is None else Path(base)
        return convert_adapter(folder, Path(target), kind, base_path, overwrite)
    if base is not None:
        raise checks.refuse("base", "None where the folder has no adapter_config.json", base)
    if mmproj:
        from oxillama.apps.convert.projector import convert_projector

        return convert_projector(folder, Path(target), kind, overwrite)
    return convert_model(folder, Path(target), kind, overwrite)


def checked_type(type: str | None, types: tuple[str, ...], usual: str) -> str:
    """``type`` in capitals, ``usual`` for None. Raises ConfigError if it is not one of ``types``."""
    kind = type.upper() if isinstance(type, str) else usual if type is None else type
    if not isinstance(kind, str) or kind not in types:
        others = " (quantize the result for others)" if types == TYPES else ""
        raise checks.refuse("type", f"one of {', '.join(types)}{others}", type)
    return kind


def convert_model(folder: Path, target: Path, kind: str, overwrite: bool = True) -> Conversion:
    """`convert` for a model."""
    config = Config(read_json(folder / "config.json"))
    tensors = read_tensors(folder)
    plan = plan_of(config, len(tensors))
    config.warn_of_unread(stacklevel=4)
    found, left_out = matched(plan, tensors)
    metadata = {"general.architecture": plan.architecture, **model_metadata(folder, config, plan, kind)}
    beyond, matrices = matrices_of(folder, plan.architecture, plan.metadata["embedding_length"])
    metadata |= {f"{plan.architecture}.{key}": value for key, value in beyond.items()}
    for wanted, stored in matrices:
        plan.tensors.append(wanted)
        found[wanted.target] = [stored]
    metadata |= {key: [float(stored.values().item()) for stored in found[key]] for key in plan.numbers}
    metadata |= vocabulary_metadata(folder, plan.n_vocab, config.get("eos_token_id"), plan.architecture)
    kernels, f32 = best(), FORMATS["F32"]
    pieces: list[Piece] = [
        (Tensor(name, f32, values.shape[::-1]), [encoded(kernels, name, f32, values)])
        for name, values in plan.made.items()
    ]
    for wanted in plan.tensors:
        fmt = usual_format(wanted.target, wanted.stored, wanted.shape[-1], kind)
        chunks = parts_of(kernels, fmt, wanted, found[wanted.target])
        pieces.append((Tensor(wanted.target, fmt, wanted.stored[::-1]), chunks))
    for packed in plan.packed:
        tensor = Tensor(packed.target, FORMATS[packed.format], packed.shape[::-1])
        pieces.append((tensor, blocks_of(packed, found[packed.target])))
    return write(target, metadata, pieces, left_out, check_loadable, overwrite=overwrite)


def matched(plan: Plan, tensors: dict[str, Stored]) -> tuple[dict[str, list[Stored]], tuple[str, ...]]:
    """The sources of each tensor by GGUF name, and the names that are left out.

    Raises LoadError for a tensor that is missing, has another shape than the config says, or is unknown.
    """
    named = by_name(tensors, plan.usual_name)
    number: tuple[int, ...] = ()
    asked: list[tuple[str, dict[str, tuple[int, ...]]]] = [
        *((wanted.target, dict.fromkeys(wanted.sources, wanted.shape)) for wanted in plan.tensors),
        *((packed.target, packed.sources) for packed in plan.packed),
        *((key, dict.fromkeys(sources, number)) for key, sources in plan.numbers.items()),
    ]
    others = {
        wanted.target: (wanted.shape[:-2] + wanted.shape[:-3:-1],) for wanted in plan.tensors if wanted.either
    }
    others |= dict.fromkeys(plan.numbers, ((1,),))
    found: dict[str, list[Stored]] = {}
    for target, shapes in asked:
        for source, shape in shapes.items():
            stored = needed(named, source)
            if stored.shape != shape and stored.shape not in others.get(target, ()):
                raise LoadError(f"{source}: expected shape {list(shape)}, got {list(stored.shape)}")
        found[target] = [named[source] for source in shapes]
    rest = sorted(named.keys() - {source for _, shapes in asked for source in shapes})
    refuse_surplus(rest, plan.ignored, plan.architecture)
    return found, tuple(rest)


def model_metadata(folder: Path, config: Config, plan: Plan, kind: str) -> dict[str, Any]:
    """All pairs except for the architecture and the tokenizer."""
    origin = str(config.values.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    file_type = MOSTLY_MXFP4 if plan.packed else FILE_TYPES[kind].id
    general = {"general.name": origin or folder.resolve().name, "general.file_type": file_type}
    pooling = pooling_of(folder)
    own = plan.metadata | ({} if pooling is None else {"pooling_type": pooling})
    return general | {f"{plan.architecture}.{key}": value for key, value in own.items()}


def parts_of(kernels: Kernels, fmt: Format, wanted: Wanted, sources: list[Stored]) -> Iterator[np.ndarray]:
    """The bytes of a tensor in chunks of about `CHUNK` bytes, or of a source."""
    for stored in sources:
        whole = wanted.heads > 0 or (wanted.change is not None and not wanted.each) or len(stored.shape) < 2
        for piece in [stored] if whole else stored.pieces(1 if wanted.each else CHUNK):
            values = piece.values()
            values = values.swapaxes(-1, -2) if values.shape[1:] != wanted.shape[1:] else values
            values = reordered(values, wanted.heads) if wanted.heads else values
            values = values + np.float32(wanted.plus) if wanted.plus else values
            values = values * np.float32(wanted.factor) if wanted.factor != 1 else values
            values = wanted.change(values) if wanted.change else values
            yield encoded(kernels, wanted.target, fmt, values)
        missing = wanted.rows - stored.shape[0] if stored.shape else 0
        if missing > 0:
            first = encoded(kernels, wanted.target, fmt, stored.piece(0, 1).values())
            for _ in range(missing):
                yield first


def blocks_of(packed: Packed, sources: list[Stored]) -> Iterator[np.ndarray]:
    """The bytes of a tensor that keeps its format, for one index of the first dimension at a time."""
    for i in range(packed.shape[0]):
        yield packed.blocks(*(stored.piece(i, 1).raw()[0] for stored in sources))


def check_loadable(path: Path) -> None:
    """Raises LoadError if the file cannot be loaded, because of impossible numbers in a config."""
    with ModelFile.open(path) as file:
        reasons = preflight(file).reasons
    if reasons:
        raise LoadError(f"config.json: expected a model that can be loaded, got: {reasons[0]}")
