"""The base model of an adapter: its matrices by Hugging Face's names, and their places in GGUF.

The facts come from the config.json of a Hugging Face folder, or from a GGUF file of the base.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from oxillama.apps.convert.config import Config, Wanted
from oxillama.apps.convert.decoders import DECODERS, Decoder
from oxillama.apps.convert.families import plan_of
from oxillama.apps.convert.safetensors import Stored, exists, is_folder, read_json, read_tensors
from oxillama.errors import LoadError
from oxillama.gguf.model_file import ModelFile

MOST_PARTS = 100_000
"""Most layers, or experts of all layers, of a base without weights."""

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
TENSOR = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>[\w.]+)\.weight", re.ASCII)
ONE_ROW = "ffn_gate_inp_shexp"
"""A matrix of one row, which is a vector in GGUF."""
TABLES = (EMBEDDING, "position_embd.weight", "token_types.weight")


@dataclass(frozen=True)
class Place:
    """The place of a matrix of the base in GGUF.

    Attributes:
        target: name of the tensor.
        shape: (outputs, inputs) of a matrix, (rows, width) of a table.
        heads: number of heads whose rows are reordered (`reordered`); 0 for no reordering.
        expert, n_experts: index and number of stacked matrices; ``n_experts`` is 0 for a single matrix.
    """

    target: str
    shape: tuple[int, int]
    heads: int = 0
    expert: int = 0
    n_experts: int = 0

    @property
    def is_table(self) -> bool:
        return self.target in TABLES


@dataclass(frozen=True)
class Base:
    """The base of an adapter.

    Attributes:
        architecture: name in GGUF.
        places: places of matrices by the name of the module.
        label: file of the facts, for messages.
        renamed: beginnings of names in some adapters, and the usual ones.
        weights: tensors by their usual name, if the base is a folder with weights.
    """

    architecture: str
    places: dict[str, Place]
    label: str
    renamed: tuple[tuple[str, str], ...] = ()
    weights: dict[str, Stored] = field(default_factory=dict)


def base_of(path: Path) -> Base:
    """The base in a Hugging Face folder or a GGUF file.

    Raises:
        ModelFileError, GGUFError: the base cannot be read, or is malformed.
        LoadError: the architecture is not supported.
    """
    return folder_base(path) if is_folder(path) else file_base(path)


def folder_base(folder: Path) -> Base:
    """The base of a folder that has a config.json, and perhaps weights."""
    values = read_json(folder / "config.json")
    values.pop("quantization_config", None)  # the format of weights, which does not matter here
    plan = plan_of(Config(values), MOST_PARTS)
    names = ("model.safetensors", "model.safetensors.index.json")
    has_weights = any(exists(folder / name) for name in names)
    weights = read_tensors(folder) if has_weights else {}
    weights = {plan.usual_name(name): stored for name, stored in weights.items()}
    return Base(plan.architecture, places_of(plan.tensors), f"{folder}/config.json", plan.renamed, weights)


def places_of(tensors: list[Wanted]) -> dict[str, Place]:
    """The places of all matrices. An output that is a copy of the embedding has a place, too."""
    found: dict[str, Place] = {}
    for wanted in tensors:
        if len(wanted.shape) != 2 or wanted.change is not None or wanted.rows or wanted.factor != 1:
            continue  # its adapters would have to be changed, too
        n_experts = len(wanted.sources) if len(wanted.sources) > 1 else 0
        shape = (wanted.shape[0], wanted.shape[1])
        for expert, source in enumerate(wanted.sources):
            name = "lm_head" if wanted.target == OUTPUT else source.removesuffix(".weight")
            found[name] = Place(wanted.target, shape, wanted.heads, expert, n_experts)
    return found


def file_base(path: Path) -> Base:
    """The base of a GGUF file, by the names in the decoders of its architecture."""
    with ModelFile.open(path) as file:
        architecture, kind = file.get("general.architecture", str), file.get("general.type", str, "model")
        decoders = [decoder for decoder in DECODERS if decoder.architecture == architecture]
        if kind != "model" or not decoders:
            known = ", ".join(sorted({decoder.architecture for decoder in DECODERS}))
            raise LoadError(f"{path}: expected a model of {known}, got a {kind:.40} of {architecture!r:.40}")
        heads: dict[str, int | list[int]] = {}
        if any(decoder.reordered for decoder in decoders):
            heads["attn_q"] = file.get(f"{architecture}.attention.head_count", int)
            key = f"{architecture}.attention.head_count_kv"
            heads["attn_k"] = heads["attn_q"]
            if isinstance(file.metadata.get(key), np.ndarray):
                heads["attn_k"] = file.get(key, list[int])  # layer by layer
            elif key in file.metadata:
                heads["attn_k"] = file.get(key, int)
        modules, places = modules_of(decoders), {}
        for name, info in file.tensors.items():
            found = TENSOR.fullmatch(name)
            module = modules.get(found["part"]) if found else None
            shape = info.shape[::-1]
            if found is None or module is None or (len(shape) < 2 and found["part"] != ONE_ROW):
                continue
            matrix = (1, shape[0]) if len(shape) < 2 else (shape[-2], shape[-1])
            n_heads = heads.get(found["part"], 0)
            if isinstance(n_heads, list):
                i = int(found["layer"] or 0)
                n_heads = n_heads[i] if i < len(n_heads) else -1
            if n_heads and (n_heads < 0 or matrix[0] % (2 * n_heads)):
                raise LoadError(f"{path}: {name}: expected rows of {n_heads} heads, got {matrix[0]}")
            here = module.replace("{i}", found["layer"] or "")
            for expert in range(shape[0] if len(shape) == 3 else 1):
                place = Place(name, matrix, n_heads, expert, shape[0] if len(shape) == 3 else 0)
                places[here.replace("{e}", str(expert))] = place
    renamed = tuple(pair for decoder in decoders for pair in decoder.renamed)
    return Base(architecture, places, str(path), renamed)


def modules_of(decoders: list[Decoder]) -> dict[str, str]:
    """Names of modules by the part of a GGUF name that is the same in all layers.

    "{i}" in a name is the number of a layer, "{e}" the number of an expert.
    """
    found = {}
    for decoder in decoders:
        if decoder.has_head and not decoder.head.factor:
            found[decoder.head.target] = decoder.head.source
        layer = decoder.inside + decoder.layer.format("{i}")
        for beginning, parts in ((layer, decoder.parts), (decoder.inside, decoder.first + decoder.last)):
            for part in parts:
                if part.target and part.change is None and not (part.bare or part.rows or part.factor):
                    found[part.target] = beginning + part.source
    return found
