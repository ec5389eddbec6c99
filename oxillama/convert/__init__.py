"""Work: converts Hugging Face folders to GGUF files.

`families` says what a config.json comes to (with `decoders`, `encoders`, `options` and `rotation`),
`safetensors` reads weights, `vocabulary` translates the tokenizer; here they are checked against each other
and written, one tensor at a time.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oxillama._kernels import Kernels, best
from oxillama.atomic_file import replaced_file
from oxillama.config import checks
from oxillama.convert.config import Config, Plan, Wanted
from oxillama.convert.families import plan_of
from oxillama.convert.safetensors import Stored, read_json, read_tensors
from oxillama.convert.vocabulary import vocabulary_metadata
from oxillama.errors import LoadError, ModelFileError
from oxillama.formats import FORMATS, Format
from oxillama.gguf.header import DEFAULT_ALIGNMENT
from oxillama.gguf.model_file import ModelFile
from oxillama.gguf.writer import Tensor, header, pair, write_tensor
from oxillama.models.preflight import preflight
from oxillama.weights.file_types import FILE_TYPES, is_quantized
from oxillama.weights.requantize import check_range, quantized

TYPES = ("F32", "F16", "BF16", "Q8_0")
POOLINGS = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}


@dataclass(frozen=True)
class Conversion:
    """What was written: the architecture, tensors by format, bytes of the file, and names of the source that
    have no place in it."""

    architecture: str
    formats: dict[str, int]
    nbytes: int
    left_out: tuple[str, ...]


def convert(source: str | os.PathLike[str], target: str | os.PathLike[str], type: str = "F16") -> Conversion:
    """Writes the model of a Hugging Face folder as a GGUF file.

    Parameters
    ----------
    source : folder with config.json, model.safetensors (or shards and their index) and tokenizer.json (or
        BERT's vocab.txt).
    target : file to write, in place of one that is there; it appears when it is whole.
    type : format of the matrices, one of `TYPES`; `quantize_model` makes others of the result. Vectors, and
        tables of positions and types, are F32. Rows that Q8_0 has no blocks for are F16.

    Raises
    ------
    ConfigError : there is no such type.
    ModelFileError : a file cannot be read or written.
    LoadError : the architecture, an option, or a tensor is not one that is understood: it is named.
    GGUFError : a weight is too large for ``type``.
    TokenizerError : the same of the tokenizer.
    """
    if not isinstance(type, str) or type.upper() not in TYPES:
        expected = f"one of {', '.join(TYPES)} (quantize the result for others)"
        raise checks.refuse("type", expected, type)
    folder, kind = Path(source), type.upper()
    if not folder.is_dir():
        raise ModelFileError(f"{folder}: expected a folder with a config.json")
    config = Config(read_json(folder / "config.json"))
    tensors = read_tensors(folder)
    plan = plan_of(config, len(tensors))
    unread = config.unread()
    if unread:
        warnings.warn(f"config.json: {', '.join(unread)}: not known here, left out", stacklevel=2)
    found, left_out = matched(plan, tensors)
    metadata = model_metadata(folder, config, plan, kind)
    metadata |= vocabulary_metadata(folder, plan.n_vocab, config.get("eos_token_id"))
    pieces: list[tuple[str, Format, Wanted | None, Any]] = [
        (name, FORMATS["F32"], None, values) for name, values in plan.made.items()
    ]
    pieces += [(w.target, format_of(w, kind), w, found[w.target]) for w in plan.tensors]
    write(Path(target), plan.architecture, metadata, pieces, best())
    formats: dict[str, int] = {}
    for _, fmt, _, _ in pieces:
        formats[fmt.name] = formats.get(fmt.name, 0) + 1
    return Conversion(plan.architecture, formats, Path(target).stat().st_size, left_out)


def matched(plan: Plan, tensors: dict[str, Stored]) -> tuple[dict[str, list[Stored]], tuple[str, ...]]:
    """Tensors by GGUF name, and the names that carry no weight of the model.

    Raises LoadError for a tensor that is missing, has another shape than the config says, or is not known.
    """
    for prefix in plan.prefixes:
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    found: dict[str, list[Stored]] = {}
    for wanted in plan.tensors:
        for source in wanted.sources:
            tensor = tensors.get(source)
            if tensor is None:
                raise LoadError(f"{source}: expected a tensor that config.json asks for, got none")
            if tensor.shape != wanted.shape:
                raise LoadError(f"{source}: expected shape {list(wanted.shape)}, got {list(tensor.shape)}")
        found[wanted.target] = [tensors[source] for source in wanted.sources]
    rest = sorted(tensors.keys() - {source for wanted in plan.tensors for source in wanted.sources})
    surplus = [name for name in rest if not name.startswith(plan.ignored)] if plan.ignored else rest
    if surplus:
        raise LoadError(f"tensors: expected those of {plan.architecture} only, got {', '.join(surplus):.400}")
    return found, tuple(rest)


def model_metadata(folder: Path, config: Config, plan: Plan, kind: str) -> dict[str, Any]:
    """All pairs but the tokenizer's and the architecture, which the writer adds."""
    name = (
        str(config.values.get("_name_or_path") or "").rstrip("/").rpartition("/")[2] or folder.resolve().name
    )
    general = {"general.name": name, "general.file_type": FILE_TYPES[kind].id}
    own = {f"{plan.architecture}.{key}": value for key, value in plan.metadata.items()}
    if os.path.lexists(folder / "modules.json") and os.path.lexists(folder / "1_Pooling" / "config.json"):
        asked = read_json(folder / "1_Pooling" / "config.json")
        modes = [key for key, value in asked.items() if key.startswith("pooling_mode_") and value is True]
        if len(modes) != 1 or modes[0] not in POOLINGS:
            raise LoadError(f"1_Pooling/config.json: expected one of {', '.join(POOLINGS)}, got {modes}")
        own[f"{plan.architecture}.pooling_type"] = POOLINGS[modes[0]]
    return general | own


def format_of(wanted: Wanted, kind: str) -> Format:
    """A matrix is of the type asked for, all else F32."""
    if not is_quantized(wanted.target, len(wanted.stored)):
        return FORMATS["F32"]
    return FORMATS["F16"] if wanted.shape[-1] % FORMATS[kind].block_len else FORMATS[kind]


def reordered(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from two halves, which rotate with each other, to neighbours that do."""
    halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def write(
    target: Path,
    architecture: str,
    metadata: dict[str, Any],
    pieces: list[tuple[str, Format, Wanted | None, Any]],
    kernels: Kernels,
) -> None:
    """Writes the file, as a whole or not at all. Raises ModelFileError if it cannot be written."""
    pairs = [
        checked_pair(key, value) for key, value in {"general.architecture": architecture, **metadata}.items()
    ]
    tensors = [
        Tensor(name, fmt, (wanted.stored if wanted is not None else source.shape)[::-1])
        for name, fmt, wanted, source in pieces
    ]
    with replaced_file(target) as file:
        file.write(header(pairs, tensors))
        for tensor, (name, fmt, wanted, source) in zip(tensors, pieces, strict=True):
            write_tensor(file, tensor, [encoded(kernels, name, fmt, wanted, source)], DEFAULT_ALIGNMENT)
        file.flush()
        check_loadable(Path(file.name))


def checked_pair(key: str, value: Any) -> bytes:
    """An encoded key and value. Raises LoadError for text that JSON can hold and GGUF cannot."""
    try:
        return pair(key, value)
    except UnicodeEncodeError as error:
        raise LoadError(
            f"{key[:80]!r}: expected text without lone surrogates, got {error.object[:80]!r}"
        ) from None


def check_loadable(path: Path) -> None:
    """Raises LoadError for a file that would not load: numbers of a config that no model can have."""
    with ModelFile.open(path) as file:
        reasons = preflight(file).reasons
    if reasons:
        raise LoadError(f"config.json: expected a model that can be loaded, got: {reasons[0]}")


def encoded(kernels: Kernels, name: str, fmt: Format, wanted: Wanted | None, source: Any) -> np.ndarray:
    """A tensor's bytes as the file has them, uint8 (rows, bytes of a row)."""
    if wanted is None:
        return encoded_part(kernels, name, fmt, source)
    out = None
    for i, stored in enumerate(source):
        values = stored.values()
        values = reordered(values, wanted.heads) if wanted.heads else values
        values = values + np.float32(wanted.plus) if wanted.plus else values
        part = encoded_part(kernels, name, fmt, values)
        if len(source) == 1:
            return part
        if out is None:
            out = np.empty((len(source), *part.shape), np.uint8)
        out[i] = part
    assert out is not None
    return out.reshape(-1, out.shape[-1])


def encoded_part(kernels: Kernels, name: str, fmt: Format, values: np.ndarray) -> np.ndarray:
    check_range(name, values, fmt)
    rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]), np.float32)
    return quantized(kernels, rows, fmt, None)
