"""Hashes of panels as packed files hold them. ``python -m tests.support.panels`` records them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from blake3 import blake3

from oxillama import pack_model
from oxillama.base.formats import FORMATS
from oxillama.models.weights.packed_file import PANELS_VERSION, PackedFile
from tests.support.kernels import NAMES, matrix, packed
from tests.support.paths import ROOT
from tests.support.zoo import MODELS, VARIANTS

PATH = ROOT / "tests" / "data" / "panels.json"


def current_hashes() -> dict[str, Any]:
    """The hashes of the panels of each format, and of each model's matrices and panels."""
    formats = {}
    for name in NAMES:
        cols = 2 * max(32, FORMATS[name].block_len)
        formats[name] = blake3(packed(name, matrix(name, 40, cols), cols)[2].data).hexdigest()[:16]
    models = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, model in (MODELS | VARIANTS).items():
            source = Path(folder, "m.gguf")
            source.write_bytes(model.file())
            with PackedFile(pack_model(source)) as file:
                directory = json.dumps(list(file.matrices.values())).encode()
                models[name] = blake3(directory + file.panels.read().tobytes()).hexdigest()[:16]
    return {"version": PANELS_VERSION, "formats": formats, "models": models}


def recorded_hashes() -> dict[str, Any]:
    """As they were recorded."""
    found: dict[str, Any] = json.loads(PATH.read_text())
    return found


if __name__ == "__main__":
    PATH.write_text(json.dumps(current_hashes(), indent=1) + "\n")
