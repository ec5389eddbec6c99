"""Tiny models that `transformers` makes of `newer_configs`, with weights that follow from their names.

So recorded numbers (``tools/record_transformers.py``) can be compared where there is no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import huggingface as hf
from tests.support.huggingface import Shapes, weights_of
from tests.support.newer_configs import CONFIGS
from tests.support.paths import DATA

RECORDED = DATA / "transformers.npz"
TOKENS: list[int] = np.random.default_rng(1).integers(0, hf.N_VOCAB, 40).tolist()
LAST = 3
"""Rows of logits that are recorded."""


def recorded(name: str, path: Path = RECORDED) -> tuple[dict[str, Any], Shapes, np.ndarray]:
    """The config, the shapes and the logits of a recorded model."""
    with np.load(path) as data:
        facts = json.loads(str(data[f"{name}.json"]))
        return facts["config"], {key: tuple(shape) for key, shape in facts["shapes"].items()}, data[name]


def write_model(folder: Path, config: Mapping[str, Any], shapes: Shapes) -> Path:
    """A folder with these tensors and a tokenizer."""
    return hf.write_folder(folder, config, weights_of(shapes))


def run_transformers(name: str, folder: Path) -> tuple[dict[str, Any], Shapes, np.ndarray]:
    """The config and the shapes that `transformers` saves, and its logits, float32 (40, vocab), or, of an
    encoder, its hidden states, float32 (40, n_embd).

    Raises:
        ModuleNotFoundError: torch or transformers is not installed.
        LookupError: this version of transformers does not have the architecture.
    """
    import torch
    import transformers

    values = dict(CONFIGS[name])
    kind = getattr(transformers, values.pop("architectures")[0], None)
    if kind is None:
        raise LookupError(CONFIGS[name]["architectures"][0])
    values.pop("model_type")
    kind(kind.config_class(**values)).float().save_pretrained(folder)
    shapes = stored_shapes(folder)
    (folder / "model.safetensors").write_bytes(hf.safetensors(weights_of(shapes)))
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        found = model(torch.tensor([TOKENS]))
    rows = found.logits if "logits" in found else found.last_hidden_state
    return json.loads((folder / "config.json").read_text()), shapes, rows[0].numpy()


def stored_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in a folder's model.safetensors."""
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
