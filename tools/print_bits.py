"""Prints a hash of the kernels' results: equal on every machine, with every target and compiler.

    OXILLAMA_TARGET=avx2 python tools/print_bits.py

runs the demo model over a fixed text with each type of keys and values, and with rounded rows, multiplies
fixed activations with a random matrix in each format, and hashes the bits of the results. `-v` prints a hash
for each part, to find the part in which two builds differ.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from oxillama import demo
from oxillama._kernels import best
from oxillama.base.formats import KV_TYPES, ROUNDED
from oxillama.compat.engine import InferenceEngine
from tests.support.kernels import MULTIPLIED, apply, linear, matrix
from tests.support.tiny_models import Running

N_TOKENS = 100
ROWS, COLS = 48, 512


def activations() -> np.ndarray:
    """float32 (9, COLS), computed from integers: the result depends on no generator or math library."""
    steps = np.arange(9 * COLS, dtype=np.uint32) * np.uint32(2654435761)
    return ((steps >> 8).astype(np.float32) / np.float32(1 << 23) - np.float32(1)).reshape(9, COLS)


def parts() -> Iterator[tuple[str, np.ndarray]]:
    """Name and result of each part."""
    target = best().target
    for name in MULTIPLIED:
        layer = linear(target, [(name, matrix(name, ROWS, COLS))], COLS)
        yield name, apply(layer, activations(), n_threads=2)
    text = demo.HELDOUT.read_text(encoding="utf-8")
    tokens = InferenceEngine.from_gguf(demo.STORY).tokenizer.encode(text)[:N_TOKENS]
    for kv_type in KV_TYPES:
        yield f"logits, {kv_type}", Running(demo.STORY.read_bytes(), target, 2, kv_type).logits(tokens, 33)
    for compute in ROUNDED:
        rounded = Running(demo.STORY.read_bytes(), target, 2, compute=compute)
        yield f"logits, {compute}", rounded.logits(tokens, 33)


def main() -> None:
    whole = hashlib.sha256()
    for name, values in parts():
        assert not np.isnan(values).any(), name
        whole.update(values.tobytes())
        if "-v" in sys.argv[1:]:
            print(hashlib.sha256(values.tobytes()).hexdigest()[:16], name)
    print(whole.hexdigest())


if __name__ == "__main__":
    main()
