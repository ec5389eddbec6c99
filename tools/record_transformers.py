"""Records what `transformers` computes for the tiny models of tests/support.

Needs torch and transformers (2.13.0 and 5.24.0 were used):

    python tools/record_transformers.py            # all models
    python tools/record_transformers.py NAME ...   # these models, again

writes two files to tests/data: transformers.npz with the models of tests/support/newer_configs.py, and
transformers_media.npz with the models of sighted_configs.py, which read a picture or a sound. For each NAME a
file holds

NAME      : logits of the last tokens, float32 (3, vocab). In transformers_media.npz, float32 (6, vocab):
    logits of three rows of the medium and of the last tokens.
NAME.json : the config, and the shapes of all tensors that `save_pretrained` writes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from oxillama.apps.convert import convert
from tests.support import newer_configs, sighted_configs, sighted_models, transformers_models

Found = tuple[dict[str, Any], Any, np.ndarray]
"""The config of a model, the shapes of its tensors, and its logits."""


def text_model(name: str, folder: Path) -> Found:
    config, shapes, logits = transformers_models.run_transformers(name, folder)
    return config, shapes, logits[-transformers_models.LAST :]


def media_model(name: str, folder: Path) -> Found:
    config, shapes = sighted_models.make_model(name, folder)
    convert(folder, folder / "mmproj.gguf", "F32", mmproj=True)
    logits = sighted_models.run_transformers(name, folder, folder / "mmproj.gguf")
    return config, shapes, logits[sighted_models.places(len(logits))]


RECORDS = (
    (transformers_models.RECORDED, newer_configs.CONFIGS, text_model),
    (sighted_models.RECORDED, sighted_configs.CONFIGS, media_model),
)


def main(names: list[str]) -> None:
    unknown = set(names).difference(*(configs for _, configs, _ in RECORDS))
    if unknown:
        raise SystemExit(f"expected names of models in tests/support, got {sorted(unknown)}")
    for path, configs, run in RECORDS:
        chosen = sorted(name for name in configs if not names or name in names)
        kept: dict[str, Any] = {}
        if path.exists():
            with np.load(path) as old:
                kept = {key: old[key] for key in old if key.removesuffix(".json") in configs}
        for name in chosen:
            with tempfile.TemporaryDirectory() as folder:
                config, shapes, kept[name] = run(name, Path(folder))
            kept[f"{name}.json"] = np.array(json.dumps({"config": config, "shapes": shapes}))
        if chosen:
            np.savez_compressed(path, **{key: kept[key] for key in sorted(kept)})
        print(f"{path.name}: {len(kept) // 2} models, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
