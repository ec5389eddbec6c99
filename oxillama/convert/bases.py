"""The base model of an adapter: its matrices by Hugging Face's names, and their place in GGUF.

It comes from the config.json of a Hugging Face folder, or from a GGUF file of the base.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from oxillama.convert.config import Config, Wanted
from oxillama.convert.decoders import Decoder
from oxillama.convert.encoders import MATRICES, TABLES
from oxillama.convert.families import ALL_DECODERS, plan_of
from oxillama.convert.safetensors import Stored, exists, is_folder, read_json, read_tensors
from oxillama.errors import LoadError
from oxillama.gguf.model_file import ModelFile

MOST_PARTS = 100_000
"""Layers, or experts of all layers, of a base of which only the config is known."""

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
TENSOR = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>[\w.]+)\.weight", re.ASCII)
ONE_ROW = "ffn_gate_inp_shexp"
"""A matrix that GGUF has as a vector."""
TABLES_OF_GGUF = (EMBEDDING, *(f"{target}.weight" for target in TABLES.values()))


@dataclass(frozen=True)
class Place:
    """Where a matrix of the base lies in GGUF.

    Attributes
    ----------
    target : name of the tensor.
    shape : of the matrix, (outputs, inputs); of a table (rows, width).
    heads : above 0, its rows are reordered (`reordered`).
    expert, n_experts : which of how many stacked matrices it is; n_experts is 0 if they are not stacked.
    """

    target: str
    shape: tuple[int, int]
    heads: int = 0
    expert: int = 0
    n_experts: int = 0

    @property
    def is_table(self) -> bool:
        return self.target in TABLES_OF_GGUF


@dataclass(frozen=True)
class Base:
    """The base of an adapter.

    Attributes
    ----------
    architecture : its name in GGUF.
    places : by the name of the module.
    label : the file that they come from, for messages.
    renamed : prefixes of names in some adapters, and the usual ones.
    weights : tensors by their usual name, if the base is a folder with weights.
    """

    architecture: str
    places: dict[str, Place]
    label: str
    renamed: tuple[tuple[str, str], ...] = ()
    weights: dict[str, Stored] = field(default_factory=dict)


def base_of(path: Path) -> Base:
    """The base in a Hugging Face folder or a GGUF file.

    Raises
    ------
    ModelFileError, GGUFError : it cannot be read, or is malformed.
    LoadError : it is of an architecture that is not converted.
    """
    return folder_base(path) if is_folder(path) else file_base(path)


def folder_base(folder: Path) -> Base:
    """The base of a folder that has a config.json, and perhaps weights."""
    values = read_json(folder / "config.json")
    values.pop("quantization_config", None)  # how its weights are stored, in a copy that was trained with
    plan = plan_of(Config(values), MOST_PARTS)
    names = ("model.safetensors", "model.safetensors.index.json")
    has_weights = any(exists(folder / name) for name in names)
    weights = read_tensors(folder) if has_weights else {}
    weights = {plan.usual_name(name): stored for name, stored in weights.items()}
    return Base(plan.architecture, places_of(plan.tensors), f"{folder}/config.json", plan.renamed, weights)


def places_of(tensors: list[Wanted]) -> dict[str, Place]:
    """The places of all matrices. An output that is written as a copy of the embedding is a place too."""
    found: dict[str, Place] = {}
    for wanted in tensors:
        if len(wanted.shape) != 2 or wanted.change is not None or wanted.rows or wanted.factor != 1:
            continue  # an adapter of it would have to be changed
        n_experts = len(wanted.sources) if len(wanted.sources) > 1 else 0
        shape = (wanted.shape[0], wanted.shape[1])
        for expert, source in enumerate(wanted.sources):
            name = "lm_head" if wanted.target == OUTPUT else source.removesuffix(".weight")
            found[name] = Place(wanted.target, shape, wanted.heads, expert, n_experts)
    return found


def file_base(path: Path) -> Base:
    """The base of a GGUF file, by the names that the families of its architecture have."""
    with ModelFile.open(path) as file:
        architecture, kind = file.get("general.architecture", str), file.get("general.type", str, "model")
        families = [family for family in ALL_DECODERS if family.architecture == architecture]
        if kind != "model" or not (families or architecture == "bert"):
            known = ", ".join(sorted({family.architecture for family in ALL_DECODERS} | {"bert"}))
            raise LoadError(f"{path}: expected a model of {known}, got a {kind:.40} of {architecture!r:.40}")
        heads: dict[str, int | list[int]] = {}
        if any(family.reordered for family in families):
            heads["attn_q"] = file.get(f"{architecture}.attention.head_count", int)
            key = f"{architecture}.attention.head_count_kv"
            heads["attn_k"] = heads["attn_q"]
            if isinstance(file.metadata.get(key), np.ndarray):
                heads["attn_k"] = file.get(key, list[int])  # layer by layer
            elif key in file.metadata:
                heads["attn_k"] = file.get(key, int)
        modules, places = modules_of(families), {}
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
    renamed = tuple(pair for family in families for pair in family.renamed)
    renamed = (("bert.", ""),) if architecture == "bert" else renamed
    return Base(architecture, places, str(path), renamed)


def modules_of(families: list[Decoder]) -> dict[str, str]:
    """Names of modules by the part of a GGUF name that is the same in all layers.

    Without a family, those of BERT. "{i}" in a name stands for a layer, "{e}" for an expert.
    """
    if not families:
        found = {target: f"embeddings.{name}_embeddings" for name, target in TABLES.items()}
        return found | {target: f"encoder.layer.{{i}}.{name}" for name, (target, _) in MATRICES.items()}
    found = {}
    for family in families:
        if family.head is not None and not family.head.factor:
            found[family.head.target] = family.head.source
        inside = {
            f"{family.inside}layers.{{i}}.": family.parts,
            family.inside: (family.table, *family.others),
        }
        for beginning, parts in inside.items():
            for part in parts:
                if part.target and part.change is None and not (part.bare or part.rows or part.factor):
                    found[part.target] = beginning + part.source
    return found
