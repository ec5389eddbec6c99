"""The modules of Sentence Transformers that follow an encoder: a pooling, and matrices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from oxillama.apps.convert.config import Config, Wanted
from oxillama.apps.convert.safetensors import Stored, exists, read_file, read_json, read_text
from oxillama.errors import LoadError

POOLINGS = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}
NORMALIZE, TRANSFORMER, POOLING, DENSE = "Normalize", "Transformer", "Pooling", "Dense"
MATRICES = {"gemma-embedding": ("dense_2", "dense_3")}
"""Names in GGUF of the matrices after the pooling, by architecture."""


def modules_of(folder: Path) -> list[tuple[str, Path]]:
    """Kinds and folders of the modules in modules.json; an empty list without that file.

    Raises LoadError for a malformed file, or an unknown module.
    """
    path = folder / "modules.json"
    if not exists(path):
        return []
    try:
        listed: list[dict[str, Any]] = json.loads(read_text(path))
        if not isinstance(listed, list):
            raise TypeError
        entries = [(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in listed]
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise LoadError("modules.json: expected a list of types and paths, got something else") from error
    for kind, name in entries:
        if kind not in (TRANSFORMER, POOLING, NORMALIZE, DENSE):
            raise LoadError(f"modules.json: {kind:.60}: expected a Transformer, Pooling, Normalize or Dense")
        if name and (Path(name).name != name or name == ".." or not name.isprintable()):
            raise LoadError(f"modules.json: expected names of folders inside the model's, got {name!r:.80}")
    return [(kind, folder / name) for kind, name in entries]


def pooling_of(folder: Path) -> int | None:
    """GGUF's number for the pooling, None without pooling. Raises LoadError for an unknown pooling."""
    for _, path in [module for module in modules_of(folder) if module[0] == POOLING]:
        asked = read_json(path / "config.json")
        modes = [key for key, value in asked.items() if key.startswith("pooling_mode_") and value is True]
        if len(modes) != 1 or modes[0] not in POOLINGS:
            raise LoadError(f"{path.name}/config.json: expected one of {', '.join(POOLINGS)}, got {modes}")
        return POOLINGS[modes[0]]
    return None


def matrices_of(
    folder: Path, architecture: str, width: int
) -> tuple[dict[str, Any], list[tuple[Wanted, Stored]]]:
    """Metadata and tensors of the matrices that follow the pooling of vectors of a width.

    Raises LoadError for matrices that GGUF cannot express in this architecture.
    """
    paths = [path for kind, path in modules_of(folder) if kind == DENSE]
    names = MATRICES.get(architecture, ())
    if len(paths) > len(names):
        raise LoadError(
            f"modules.json: expected at most {len(names)} Dense of {architecture}, got {len(paths)}"
        )
    metadata: dict[str, Any] = {}
    found: list[tuple[Wanted, Stored]] = []
    for name, path in zip(names, paths):
        config = Config(read_json(path / "config.json"), f"{path.name}/config.json")
        config.require(in_features=width, bias=False, activation_function="torch.nn.modules.linear.Identity")
        shape = (config.size("out_features"), width)
        tensors = {tensor.name: tensor for tensor in read_file(path / "model.safetensors")}
        if tensors.keys() != {"linear.weight"} or tensors["linear.weight"].shape != shape:
            got = ", ".join(f"{key} {list(tensor.shape)}" for key, tensor in tensors.items())
            raise LoadError(f"{path.name}: expected linear.weight {list(shape)} alone, got {got:.200}")
        metadata |= {f"{name}_feat_in": width, f"{name}_feat_out": shape[0]}
        found.append((Wanted(("linear.weight",), f"{name}.weight", shape), tensors["linear.weight"]))
        width = shape[0]
    return metadata, found
