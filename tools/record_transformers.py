"""Records what `transformers` computes for the tiny models of tests/support/newer_configs.py.

Needs torch and transformers (2.13.0 and 5.23.0 were used):

    python tools/record_transformers.py            # all
    python tools/record_transformers.py NAME ...   # these, again

writes tests/data/transformers.npz. For each NAME it holds ``NAME`` float32 (3, vocab), the logits of the last
tokens, and ``NAME.json``, the config and the shapes of all tensors that `save_pretrained` writes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.newer_configs import CONFIGS
from tests.support.transformers_models import LAST, RECORDED, run_transformers


def main(names: list[str]) -> None:
    kept = {}
    if RECORDED.exists():
        with np.load(RECORDED) as old:
            kept = {key: old[key] for key in old if key.removesuffix(".json") in CONFIGS}
    for name in names or sorted(CONFIGS):
        with tempfile.TemporaryDirectory() as folder:
            config, shapes, logits = run_transformers(name, Path(folder))
        kept[name] = logits[-LAST:]
        kept[f"{name}.json"] = np.array(json.dumps({"config": config, "shapes": shapes}))
    np.savez_compressed(RECORDED, **{key: kept[key] for key in sorted(kept)})
    print(f"{RECORDED.name}: {len(kept) // 2} models, {RECORDED.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
