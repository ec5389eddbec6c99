"""Writes the published test vectors of `oxillama.reference.vectors`: the models' files and ``vectors.json``.

The reference computes the expected bits. Run this only for a new contract version or for new cases: the files
of models and the bits of old cases must not change.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from oxillama.reference import CONTRACT, vectors
from tests.support.zoo import MODELS

FORMATS = {
    "gemma2": ("Q4_0", "F16", "Q5_1"),
    "gpt-oss": ("MXFP4", "Q8_0"),
    "llama": ("Q8_0", "Q4_1", "BF16"),
    "qwen3moe": ("Q5_0", "Q5_1", "F16"),
}
"""Formats that a model's matrices get in turn."""
LAYERS = {"qwen3moe": 1}
"""Numbers of layers other than 2."""


def write_models() -> None:
    """Writes the models' files that do not exist yet."""
    vectors.FOLDER.mkdir(exist_ok=True)
    for name, formats in FORMATS.items():
        path = vectors.FOLDER / f"{name}.gguf"
        sizes = {"n_layers": LAYERS.get(name, 2), "n_embd": 32, "n_ff": 32, "expert_ff": 32, "n_experts": 3}
        model = replace(MODELS[name], **sizes)
        if not path.exists():
            path.write_bytes(model.quantized(formats)[0])


def main() -> None:
    write_models()
    found = {}
    with np.errstate(all="ignore"):
        for name, case in vectors.cases().items():
            expected = vectors.Expected.of(vectors.OPERATIONS[case.operation](case))
            found[name] = {"sha256": expected.sha256, "first": expected.first}
    lines = [f"    {json.dumps(name)}: {json.dumps(expected)}" for name, expected in found.items()]
    head = f'{{\n  "contract": {CONTRACT},\n  "cases": {{\n'
    (vectors.FOLDER / "vectors.json").write_text(head + ",\n".join(lines) + "\n  }\n}\n")
    print(f"{len(found)} cases")


if __name__ == "__main__":
    main()
