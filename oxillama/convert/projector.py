"""Writes the encoder of pictures or of sounds in a Hugging Face folder as a projector file (mmproj)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from oxillama._kernels import Kernels, best
from oxillama.convert.config import Config
from oxillama.convert.pictures import PICTURES
from oxillama.convert.safetensors import Stored, exists, read_json, read_tensors
from oxillama.convert.sounds import SOUNDS
from oxillama.convert.towers import Item, Metadata, Source, Tower, tower_name
from oxillama.convert.writing import Conversion, Piece, encoded, reordered, write
from oxillama.errors import LoadError
from oxillama.formats import FORMATS, Format
from oxillama.gguf.writer import Tensor
from oxillama.media.encoder import MediaEncoder
from oxillama.media.facts import VISION
from oxillama.weights.file_types import FILE_TYPES, is_quantized

EMBEDDING = "embed_tokens.weight"
"""The usual name of the text model's embedding, of which Pixtral's file has one row."""

HALVED = (".patch_embd", ".patch_merger", ".input_projection", ".conv1d")
"""Parts of the names of tensors that have 16 bits at least: kernels, and what llama.cpp transposes."""


def convert_projector(folder: Path, target: Path, kind: str, overwrite: bool = True) -> Conversion:
    """Writes the projector file of a folder, with matrices of the format ``kind``.

    Raises
    ------
    ModelFileError : a file cannot be read or written.
    LoadError : the architecture has no encoder that is supported; an option or a tensor is not; it is named.
    GGUFError : a weight is too large for ``kind``.
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
        unread = source.tower.unread()
        if unread:
            warnings.warn(f"{source.tower.name}: {', '.join(unread)}: unknown, left out", stacklevel=3)
    left_out = tuple(sorted(stored.keys() - used))
    return write(target, metadata, pieces, left_out, check_loadable, overwrite=overwrite)


def read_tower(
    tower: Tower, source: Source, stored: dict[str, Stored], kind: str
) -> tuple[Metadata, list[Piece], set[str]]:
    """The facts of an encoder, its tensors, and the names of those that were read, in the source.

    Raises LoadError for a tensor that is missing, or that belongs to the encoder and is not known.
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
    for item in tower.items_of(source, n_layers):
        for there, here in names_of(item):
            tensor = tensors.get(there)
            if tensor is None:
                raise LoadError(f"{there}: expected a tensor that config.json asks for, got none")
            used.add(there)
            pieces.append(piece_of(kernels, item, here, tensor, source, heads, kind))
    n_all = source.tower.get("num_hidden_layers")
    beyond = tuple(tower.layer.format(i) for i in range(n_layers, n_all if type(n_all) is int else 0))
    rest = tensors.keys() - used
    surplus = sorted(name for name in rest if not name.startswith((*tower.ignored, *beyond, EMBEDDING)))
    if surplus:
        raise LoadError(f"tensors: expected those of {tower.projector} only, got {', '.join(surplus):.400}")
    if EMBEDDING in tensors:
        used.add(EMBEDDING)  # the text model's, whether or not this encoder has a row of it
    return facts, pieces, {tensors[name].name for name in used}


def towers_of(config: Config) -> list[Tower]:
    """The encoders of a config. Raises LoadError for an architecture without one."""
    names = config.get("architectures", [])
    known: dict[str, Tower | Callable[[Config], list[Tower]]] = {**PICTURES, **SOUNDS}
    if not isinstance(names, list) or len(names) != 1 or names[0] not in [*known]:
        raise LoadError(f"config.json: architectures: expected one of {', '.join(known)}, got {names!r:.80}")
    found = known[names[0]]
    return [found] if isinstance(found, Tower) else found(config)


def source_of(folder: Path, config: Config, tower: Tower) -> Source:
    """The configs of a folder. A text model's keys stand outside in older ones."""
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
    """The facts of the preprocessor; empty where the folder has none."""
    if exists(folder / "preprocessor_config.json"):
        return Config(read_json(folder / "preprocessor_config.json"), "preprocessor_config.json")
    if exists(folder / "processor_config.json"):
        whole = Config(read_json(folder / "processor_config.json"), "processor_config.json")
        return whole.table("image_processor")
    return Config({}, "preprocessor_config.json")


def token_id(folder: Path, name: str) -> int:
    """The id of an added token of tokenizer.json. Raises LoadError for none."""
    added = read_json(folder / "tokenizer.json").get("added_tokens", [])
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict) and token.get("content") == name and type(token.get("id")) is int:
            return int(token["id"])
    raise LoadError(f"tokenizer.json: added_tokens: expected {name!r}, which the encoder's rows need")


def tensors_of(tower: Tower, stored: dict[str, Stored]) -> dict[str, Stored]:
    """The tensors of the encoder by their usual names."""
    found: dict[str, Stored] = {}
    for name, tensor in stored.items():
        usual = EMBEDDING if name.endswith(f".{EMBEDDING}") else tower_name(name)
        if not usual.startswith(tower.roots):
            continue
        if usual in found:
            raise LoadError(f"{name}: expected each tensor once, got {found[usual].name} too")
        found[usual] = tensor
    return found


def check_swaps(tower: Tower, facts: dict[str, Any]) -> None:
    """Raises LoadError for sizes in which readers take up for down, as old files name them."""
    sizes = [facts.get(f"vision.{key}") for key in ("embedding_length", "feed_forward_length")]
    if tower.modality == "vision" and VISION[tower.projector].swaps and sizes[0] == sizes[1]:
        raise LoadError(
            f"{tower.config}: intermediate_size: expected another number than hidden_size, "
            f"got {sizes[0]} twice"
        )


def names_of(item: Item) -> list[tuple[str, str]]:
    """Names in the source and in the target: of the weight, and of the bias."""
    kinds = [""] if item.bare else [".weight", ".bias"] if item.bias else [".weight"]
    return [(item.source + kind, item.target + kind) for kind in kinds]


def piece_of(
    kernels: Kernels,
    item: Item,
    name: str,
    stored: Stored,
    source: Source,
    heads: int,
    kind: str,
) -> Piece:
    """A tensor to write. Shapes are checked when the file is loaded."""
    shape = stored.shape
    if item.rotates and (not shape or shape[0] % (2 * heads)):
        raise LoadError(f"{stored.name}: expected rows of {heads} heads of even width, got {list(shape)}")
    if item.change is not None:
        shape = item.change(np.broadcast_to(np.float32(0), shape), source).shape
    fmt = format_of(name, shape, kind)

    def chunks() -> Iterator[np.ndarray]:
        values = stored.values()
        values = values if item.change is None else item.change(values, source)
        values = reordered(values, heads) if item.rotates else values
        yield encoded(kernels, name, fmt, values + np.float32(item.plus) if item.plus else values)

    return Tensor(name, fmt, shape[::-1]), chunks()


def format_of(name: str, shape: tuple[int, ...], kind: str) -> Format:
    """That of a tensor: the asked one for matrices, 16 bits for kernels, F32 for all others."""
    if len(shape) < 2 or shape[-1] == 1:
        return FORMATS["F32"]
    if any(part in name for part in HALVED):
        return FORMATS["F32" if kind == "F32" else "F16"]
    if not is_quantized(name, len(shape)):
        return FORMATS["F32"]
    return FORMATS["F16"] if shape[-1] % FORMATS[kind].block_len else FORMATS[kind]


def check_loadable(path: Path) -> None:
    """Raises LoadError for a file that would not load, or of which a tensor would not be used."""
    encoder = MediaEncoder(path, best(), 1)
    try:
        if encoder.unused:
            raise LoadError(
                f"tensors: expected those of the encoder only, got {', '.join(encoder.unused):.400}"
            )
    finally:
        encoder.file.close()
