"""Records what `transformers` computes of a picture or a sound.

For the tiny models of tests/support/sighted_configs.py.

Needs torch and transformers (2.13.0 and 5.24.0 were used):

    python tools/record_transformers_media.py            # all
    python tools/record_transformers_media.py NAME ...   # these, again

writes tests/data/transformers_media.npz. For each NAME it holds ``NAME`` float32 (6, vocab), the logits of
three rows of the medium and of the last tokens, and ``NAME.json``, the config and the shapes of all tensors
that `save_pretrained` writes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from oxillama.convert import convert
from tests.support.sighted_configs import CONFIGS
from tests.support.sighted_models import RECORDED, make_model, places, run_transformers


def main(names: list[str]) -> None:
    kept = {}
    if RECORDED.exists():
        with np.load(RECORDED) as old:
            kept = {key: old[key] for key in old if key.removesuffix(".json") in CONFIGS}
    for name in names or sorted(CONFIGS):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            config, shapes = make_model(name, folder)
            convert(folder, folder / "mmproj.gguf", "F32", mmproj=True)
            found = run_transformers(name, folder, folder / "mmproj.gguf")
        kept[name] = found[places(len(found))]
        kept[f"{name}.json"] = np.array(json.dumps({"config": config, "shapes": shapes}))
    np.savez_compressed(RECORDED, **{key: kept[key] for key in sorted(kept)})
    print(f"{RECORDED.name}: {len(kept) // 2} models, {RECORDED.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
