"""Beside llama.cpp, format by format: how far both are from exact arithmetic, and from each other.

    python tools/compare_formats.py [FORMAT ...]

makes a small random model wholly in each format, runs it token by token with both engines (float16 keys
and values), and prints mean KL divergences over the tokens: of each engine from the same model in float64
(tests/references/), and of this library from llama.cpp. If a block were misread, the last would be as large
as the entropy; if only the rounding of activations differs, it stays near the other two.

Needs the packages gguf and llama-cpp-python. llama.cpp multiplies no weights in Q8_1 and Q8_K.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.make_model import write_model
from benchmarks.peers import LlamaCpp, OxiLlama, Runner
from benchmarks.random_blocks import RANDOM_FORMATS
from benchmarks.shape import Shape
from oxillama.bench.run import fixed_tokens
from oxillama.gguf.model_file import ModelFile
from tests.references import formats, llama

SHAPE = Shape(n_embd=256, n_ff=512, n_layer=4, n_head=4, n_head_kv=2, n_vocab=1000, context=128)
SIZES = llama.Sizes(4, 4, 2, 64, 64, 64, neox=False)
NOT_IN_LLAMA_CPP = ("Q8_1", "Q8_K")
N_TOKENS = 64


def weights(path: Path) -> dict[str, np.ndarray]:
    """Every tensor in float64, taken apart by the twins."""
    found = {}
    with ModelFile.open(path) as file:
        for name, info in file.tensors.items():
            shape = info.shape[::-1]  # GGUF lists the columns first
            rows = file.data(name).reshape(int(np.prod(shape[:-1])), -1)
            found[name] = formats.weights(info.format.name, rows).reshape(shape)
    return found


def logits(engine: type[Runner], path: Path, tokens: list[int]) -> np.ndarray:
    """After each token, float64 (tokens, vocabulary)."""
    runner = engine(path, 1, SHAPE.context)
    runner.load()
    runner._clear()
    rows = [np.array(runner._forward([token]), np.float64) for token in tokens]
    runner.close()
    return np.stack(rows)


def divergence(reference: np.ndarray, found: np.ndarray) -> float:
    """Mean KL(reference || found) over the tokens, in nats."""
    p, q = (x - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)) - x.max(1, keepdims=True)
            for x in (reference, found))  # fmt: skip
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def main(names: list[str]) -> None:
    tokens = list(fixed_tokens(N_TOKENS, SHAPE.n_vocab))
    print("| format | KL(exact, oxillama) | KL(exact, llama.cpp) | KL(llama.cpp, oxillama) |")
    print("|---|---|---|---|")
    for name in names or RANDOM_FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.gguf")
            write_model(path, SHAPE, name, pure=True)
            exact = llama.forward(SIZES, weights(path), tokens)
            ours = logits(OxiLlama, path, tokens)
            line = f"| {name} | {divergence(exact, ours):.1e} | "
            if name in NOT_IN_LLAMA_CPP:
                print(line + "- | - |", flush=True)
                continue
            theirs = logits(LlamaCpp, path, tokens)
            print(line + f"{divergence(exact, theirs):.1e} | {divergence(theirs, ours):.1e} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
