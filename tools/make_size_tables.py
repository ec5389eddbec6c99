"""Writes the tables of `docs/choose-a-model.md`: memory of published models by `oxillama info`.

    python tools/make_size_tables.py          # writes the tables
    python tools/make_size_tables.py --check  # exit code 1 if a table would change

The sizes follow from the headers of GGUF files, which are made from the dimensions in the models'
``config.json``; no weights are needed.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np

from benchmarks import layers
from benchmarks.make_model import _add_metadata, gguf_package
from benchmarks.shape import Experts, Shape
from benchmarks.shapes import tensors
from oxillama.apps.cli.facts import describe
from oxillama.gguf.model_file import ModelFile

PAGE = ROOT / "docs" / "choose-a-model.md"
BEGIN, END = "<!-- tables: tools/make_size_tables.py -->\n", "<!-- end of tables -->\n"

layers.LAYERS.setdefault("qwen3", layers.LAYERS["qwen3moe"])


def qwen3(n_embd: int, n_ff: int, n_layer: int, n_head: int, tied: bool) -> Shape:
    sizes = (n_embd, n_ff, n_layer, n_head, 8, 151936)
    return Shape(*sizes, tied=tied, rope_theta=1e6, context=40960, family="qwen3", head_dim=128)


MODELS = {
    "Qwen3 0.6B": qwen3(1024, 3072, 28, 16, tied=True),
    "Qwen3 1.7B": qwen3(2048, 6144, 28, 16, tied=True),
    "Qwen3 4B": qwen3(2560, 9728, 36, 32, tied=True),
    "Llama 3.1 8B": Shape(4096, 14336, 32, 32, 8, 128256, rope_theta=5e5, context=131072),
    "Qwen3 8B": qwen3(4096, 12288, 36, 32, tied=False),
    "Qwen3 14B": qwen3(5120, 17408, 40, 40, tied=False),
    "Qwen3 30B-A3B": Shape(
        2048, 6144, 48, 32, 4, 151936, rope_theta=1e6, context=40960, family="qwen3moe", head_dim=128,
        experts=Experts(128, 8, 768),
    ),
    "Qwen3 32B": qwen3(5120, 25600, 64, 64, tied=False),
    "Llama 3.3 70B": Shape(8192, 28672, 80, 64, 8, 128256, rope_theta=5e5, context=131072),
}  # fmt: skip
TYPES = ("Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0")
MEMORIES = (8, 16, 32, 64)
"""Sizes of a machine's memory, GiB."""
RESERVE = 2
"""GiB that the system and other programs use."""
CONTEXT = 8192
RATES = (20, 50, 100, 300)
"""GB that a memory reads in a second."""
GIB = 1 << 30


def facts_of(shape: Shape, mix: str, folder: Path) -> dict[str, Any]:
    """The facts that ``oxillama info --json`` prints for a file of a shape and a type."""
    path = folder / "model.gguf"
    gguf, plan = gguf_package(), list(tensors(shape, mix))
    writer = gguf.GGUFWriter(path, shape.family)
    small = replace(shape, n_vocab=512)  # a whole vocabulary takes seconds to write, and changes no size
    _add_metadata(writer, small, mix, 0, pairs=False)
    for tensor in plan:
        kind = gguf.GGMLQuantizationType[tensor.format]
        writer.add_tensor_info(tensor.name, tensor.dims, np.dtype(np.float16), tensor.nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    size = path.stat().st_size + sum(tensor.nbytes + 64 for tensor in plan)
    with path.open("ab") as file:
        file.truncate(size)  # the data are a hole in a sparse file
    with ModelFile.open(path) as opened:
        facts = describe(opened)
    assert facts["supported"], facts["missing"]
    return facts


def sizes() -> dict[str, dict[str, tuple[float, float]]]:
    """GiB of packed weights and GiB of keys and values of `CONTEXT` tokens in f16, by model and type."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in MODELS.items():
            for mix in TYPES:
                memory = facts_of(shape, mix, Path(folder))["memory"]
                found.setdefault(name, {})[mix] = (
                    memory["weights"] / GIB,
                    CONTEXT * memory["kv_per_token"]["f16"] / GIB,
                )
    return found


def read_for_a_token(shape: Shape, mix: str) -> float:
    """GB of weights that decoding a token reads: no table of embeddings, and of experts those chosen."""
    total = 0.0
    for tensor in tensors(shape, mix):
        if tensor.name == "token_embd.weight" and not shape.tied:
            continue
        chosen = shape.experts.used / shape.experts.count if shape.experts and "_exps" in tensor.name else 1
        total += tensor.nbytes * chosen
    return total / 1e9


def tables() -> str:
    found = sizes()
    lines = ["| model | " + " | ".join(TYPES) + f" | keys and values of {CONTEXT:,} tokens, f16 |"]
    lines.append("|---" * (len(TYPES) + 2) + "|")
    for name, of in found.items():
        weights = " | ".join(f"{of[mix][0]:.1f} GiB" for mix in TYPES)
        lines.append(f"| {name} | {weights} | {of[TYPES[0]][1]:.2f} GiB |")
    lines += ["", f"| model | {' | '.join(f'{memory} GB' for memory in MEMORIES)} |", "|---|---|---|---|---|"]
    for name, of in found.items():
        best = []
        for memory in MEMORIES:
            fitting = [mix for mix in TYPES if sum(of[mix]) <= memory - RESERVE]
            best.append(fitting[-1] if fitting else "")
        lines.append(f"| {name} | {' | '.join(best)} |")
    rates = " | ".join(f"{rate} GB/s" for rate in RATES)
    lines += ["", f"| tokens/s at most, Q4_K_M | a token reads | {rates} |", "|---|---|---|---|---|---|"]
    for name, shape in MODELS.items():
        read = read_for_a_token(shape, "Q4_K_M")
        speeds = " | ".join(f"{float(f'{rate / read:.2g}'):g}" for rate in RATES)
        lines.append(f"| {name} | {read:.1f} GB | {speeds} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The text of the page with new tables."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        return int(text != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
