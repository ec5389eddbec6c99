"""Writes the encoder of pictures or of sounds in a Hugging Face folder as a projector file (mmproj)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from oxillama._kernels import Kernels, best
from oxillama.apps.convert import gemma_towers, pictures, qwen_towers, sounds  # noqa: F401
from oxillama.apps.convert.config import Config
from oxillama.apps.convert.safetensors import (
    Stored,
    by_name,
    exists,
    needed,
    read_json,
    read_tensors,
    refuse_surplus,
)
from oxillama.apps.convert.tables import Part
from oxillama.apps.convert.towers import TOWERS, Metadata, Source, Tower, tower_name
from oxillama.apps.convert.writing import Conversion, Piece, encoded, reordered, usual_format, write
from oxillama.base.formats import FORMATS, Format
from oxillama.errors import LoadError
from oxillama.gguf.file_types import FILE_TYPES
from oxillama.gguf.writer import Tensor
from oxillama.models.media.encoder import MediaEncoder
from oxillama.models.media.facts import VISION

EMBEDDING = "embed_tokens.weight"
"""The usual name of the text model's embedding; Pixtral's file has one row of it."""

HALVED = (".patch_embd", ".patch_merger", ".input_projection", ".conv1d")
"""Parts of the names of tensors with 16 bits at least: kernels, and matrices that llama.cpp transposes."""


def convert_projector(folder: Path, target: Path, kind: str, overwrite: bool = True) -> Conversion:
    """Writes the projector file of a folder, with matrices of the format ``kind``.

    Raises:
        ModelFileError: a file cannot be read or written.
        LoadError: the encoder, an option, or a tensor is not supported; the message names it.
        GGUFError: a weight is too large for ``kind``.
    """
    config = Config(read_json(folder / "config.json"))
    stored = read_tensors(folder)
    towers = towers_of(config)
    metadata: dict[str, Any] = {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "general.name": folder.resolve().name,
        "general.file_type": FILE_TYPES[kind].id,
    }
    pieces: list[Piece] = []
    used: set[str] = set()
    for tower in towers:
        source = source_of(folder, config, tower)
        facts, made, names = read_tower(tower, source, stored, kind)
        pieces += made
        used |= names
        inner = f"{tower.modality}." if len(towers) > 1 else ""
        metadata[f"clip.has_{tower.modality}_encoder"] = True
        metadata[f"clip.{inner}projector_type"] = tower.projector
        metadata |= {f"clip.{key}": value for key, value in facts.items()}
        source.tower.warn_of_unread(stacklevel=4)
    left_out = tuple(sorted(stored.keys() - used))
    return write(target, metadata, pieces, left_out, check_loadable, overwrite=overwrite)


def read_tower(
    tower: Tower, source: Source, stored: dict[str, Stored], kind: str
) -> tuple[Metadata, list[Piece], set[str]]:
    """The facts of an encoder, its tensors, and their names in the source.

    Raises LoadError for a tensor that is missing, and for an unknown one of the encoder.
    """
    tensors = tensors_of(tower, stored)
    facts = tower.facts(source)
    n_layers = facts[f"{tower.modality}.block_count"]
    if n_layers > len(tensors):
        raise LoadError(
            f"config.json: {n_layers} layers are more than the {len(tensors)} tensors of the source"
        )
    check_swaps(tower, facts)
    heads = facts[f"{tower.modality}.attention.head_count"]
    kernels = best()
    pieces: list[Piece] = []
    used: set[str] = set()
    for part in tower.parts_of(source, n_layers):
        for kind_of in ("",) if part.bare else (".weight", ".bias") if part.bias else (".weight",):
            there, here = part.source + kind_of, part.target + kind_of
            pieces.append(piece_of(kernels, part, here, needed(tensors, there), source, heads, kind))
            used.add(there)
    n_all = source.tower.get("num_hidden_layers")
    beyond = tuple(tower.layer.format(i) for i in range(n_layers, n_all if type(n_all) is int else 0))
    ignored = (*tower.ignored.split(), *beyond, EMBEDDING)
    refuse_surplus(sorted(tensors.keys() - used), ignored, tower.projector)
    if EMBEDDING in tensors:
        used.add(EMBEDDING)
    return facts, pieces, {tensors[name].name for name in used}


def towers_of(config: Config) -> list[Tower]:
    """The encoders of a config. Raises LoadError for a class without an encoder."""
    names = config.get("architectures", [])
    if not isinstance(names, list) or len(names) != 1 or names[0] not in [*TOWERS]:
        known_names = ", ".join(sorted(TOWERS))
        raise LoadError(f"config.json: architectures: expected one of {known_names}, got {names!r:.80}")
    known = TOWERS[names[0]]
    if known[0].kinds:
        kind = config.table(known[0].config).get("model_type")
        kinds = {kind: tower for tower in known for kind in tower.kinds}
        if kind not in [*kinds]:
            where = f"{known[0].config}: model_type"
            raise LoadError(f"{where}: expected one of {', '.join(kinds)}, got {kind!r:.60}")
        return [kinds[kind]]
    found = [tower for tower in known if len(known) == 1 or config.has(tower.config)]
    if not found:
        raise LoadError("config.json: expected a vision_config or an audio_config, got none")
    return found


def source_of(folder: Path, config: Config, tower: Tower) -> Source:
    """The configs of a folder. Older folders have no text_config, but its keys in config.json."""
    text = config.table("text_config") if config.has("text_config") else config
    inner = config.table(tower.config)
    if not inner.values:
        raise LoadError(f"config.json: {tower.config}: expected the facts of an encoder, got none")
    media = media_config(folder)
    if tower.modality == "vision" and not media.values:
        raise LoadError(
            f"{folder}: expected a preprocessor_config.json or processor_config.json, "
            "which say how pixels are normalized"
        )
    return Source(config, inner, text, media, lambda name: token_id(folder, name))


def media_config(folder: Path) -> Config:
    """The facts of the preprocessor; empty if the folder has none."""
    older, newer = "preprocessor_config.json", "processor_config.json"
    if exists(folder / older) or not exists(folder / newer):
        return Config(read_json(folder / older) if exists(folder / older) else {}, older)
    return Config(read_json(folder / newer), newer).table("image_processor")


def token_id(folder: Path, name: str) -> int:
    """The id of an added token of tokenizer.json. Raises LoadError if there is no such token."""
    added = read_json(folder / "tokenizer.json").get("added_tokens", [])
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict) and token.get("content") == name and type(token.get("id")) is int:
            return int(token["id"])
    raise LoadError(f"tokenizer.json: added_tokens: expected {name!r}, which the encoder's rows need")


def tensors_of(tower: Tower, stored: dict[str, Stored]) -> dict[str, Stored]:
    """The tensors of the encoder by their usual names."""

    def usual(name: str) -> str:
        return EMBEDDING if name.endswith(f".{EMBEDDING}") else tower_name(name)

    roots = tuple(tower.roots.split())
    return by_name({name: stored[name] for name in stored if usual(name).startswith(roots)}, usual)


def check_swaps(tower: Tower, facts: dict[str, Any]) -> None:
    """Raises LoadError for sizes by which readers cannot tell up from down, which old files exchange."""
    sizes = [facts.get(f"vision.{key}") for key in ("embedding_length", "feed_forward_length")]
    if tower.modality == "vision" and VISION[tower.projector].swaps and sizes[0] == sizes[1]:
        raise LoadError(
            f"{tower.config}: intermediate_size: expected another number than hidden_size, "
            f"got {sizes[0]} twice"
        )


def piece_of(
    kernels: Kernels,
    part: Part,
    name: str,
    stored: Stored,
    source: Source,
    heads: int,
    kind: str,
) -> Piece:
    """A tensor to write. Shapes are checked when the file is loaded."""
    shape = stored.shape
    if part.rotates and (not shape or shape[0] % (2 * heads)):
        raise LoadError(f"{stored.name}: expected rows of {heads} heads of even width, got {list(shape)}")
    if part.change is not None:
        shape = part.change(np.broadcast_to(np.float32(0), shape), source).shape
    fmt = format_of(name, shape, kind)

    def chunks() -> Iterator[np.ndarray]:
        values = stored.values()
        values = values if part.change is None else part.change(values, source)
        values = reordered(values, heads) if part.rotates else values
        yield encoded(kernels, name, fmt, values)

    return Tensor(name, fmt, shape[::-1]), chunks()


def format_of(name: str, shape: tuple[int, ...], kind: str) -> Format:
    """The format of a tensor: ``kind`` for matrices, 16 bits for kernels, F32 for others."""
    if len(shape) < 2 or shape[-1] == 1:
        return FORMATS["F32"]
    if any(part in name for part in HALVED):
        return FORMATS["F32" if kind == "F32" else "F16"]
    return usual_format(name, shape, shape[-1], kind)


def check_loadable(path: Path) -> None:
    """Raises LoadError if the file cannot be loaded, or has a tensor that no encoder uses."""
    encoder = MediaEncoder(path, best(), 1)
    try:
        if encoder.unused:
            raise LoadError(
                f"tensors: expected those of the encoder only, got {', '.join(encoder.unused):.400}"
            )
    finally:
        encoder.file.close()
