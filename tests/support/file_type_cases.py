"""Models whose file types llama.cpp was asked about, as `tools/record_file_types.py` has recorded it.

Each is small in every way but its number of layers: the rules look at names, shapes and a few numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxillama.base.formats import WRITABLE
from tests.support import gguf_writer as ggufwriter

COLS, ROWS = 256, 8

LETTERS: dict[str, str] = dict(zip(WRITABLE, "fhb4a5e8PQRSTuvwxyzijnkt2gN", strict=True))
"""A letter for each format, so that a model's formats are a word."""

OURS_ALONE = ("Q2_0_G128", "NVFP4")
"""File types that llama.cpp's quantizer does not have."""


def pure_type(name: str) -> str:
    """The file type that gives every matrix a format when it is pure: that of the type IQ2_S is IQ2_XS."""
    return "IQ2_M" if name == "IQ2_S" else name


@dataclass(frozen=True)
class Case:
    """A model: its architecture, layers, heads, experts; without an output matrix if it is tied."""

    architecture: str = "llama"
    n_layers: int = 17
    n_heads: int = 8
    n_kv_heads: int = 2
    n_experts: int = 0
    tied: bool = False
    fused: bool = False
    narrow: bool = False

    def matrices(self) -> dict[str, tuple[int, ...]]:
        """Shapes by name, in GGUF order; rows of 32 in some matrices of a narrow one, and of 48."""
        experts = (self.n_experts,) if self.n_experts else ()
        ending = "_exps" if self.n_experts else ""
        down = 32 if self.narrow else COLS
        found: dict[str, tuple[int, ...]] = {"token_embd.weight": (COLS, 16)}
        for i in range(self.n_layers):
            block = f"blk.{i}."
            for name in ["attn_qkv"] if self.fused else ["attn_q", "attn_k", "attn_v"]:
                found[f"{block}{name}.weight"] = (COLS, ROWS)
            found[f"{block}attn_output.weight"] = (48 if self.narrow else COLS, ROWS)
            found[f"{block}attn_norm.weight"] = (COLS,)
            if self.n_experts:
                found[f"{block}ffn_gate_inp.weight"] = (COLS, self.n_experts)
            if self.architecture != "falcon":
                found[f"{block}ffn_gate{ending}.weight"] = (COLS, ROWS, *experts)
            found[f"{block}ffn_up{ending}.weight"] = (COLS, ROWS, *experts)
            found[f"{block}ffn_down{ending}.weight"] = (down, ROWS, *experts)
        if not self.tied:
            found["output.weight"] = (COLS, 16)
        return found

    def file(self) -> bytes:
        """A GGUF file of zeros in F32."""
        a = self.architecture
        metadata = [
            ("general.architecture", "str", a),
            (f"{a}.block_count", "u32", self.n_layers),
            (f"{a}.context_length", "u32", 64),
            (f"{a}.embedding_length", "u32", COLS),
            (f"{a}.feed_forward_length", "u32", COLS),
            (f"{a}.attention.head_count", "u32", self.n_heads),
            (f"{a}.attention.head_count_kv", "u32", self.n_kv_heads),
            (f"{a}.attention.layer_norm_rms_epsilon", "f32", 1e-5),
            (f"{a}.attention.layer_norm_epsilon", "f32", 1e-5),
            (f"{a}.rope.dimension_count", "u32", COLS // self.n_heads),
            ("tokenizer.ggml.model", "str", "no_vocab"),
            (f"{a}.vocab_size", "u32", 16),
        ]
        if self.n_experts:
            metadata += [
                (f"{a}.expert_count", "u32", self.n_experts),
                (f"{a}.expert_used_count", "u32", 2),
            ]
        tensors = [
            ggufwriter.Tensor(name, shape, 0, np.zeros(shape, np.float32).tobytes())
            for name, shape in self.matrices().items()
        ]
        return ggufwriter.write(metadata, tensors)


CASES: dict[str, Case] = {
    "grouped": Case(),
    "one head a value": Case(n_layers=9, n_kv_heads=8),
    "tied": Case(n_layers=5, tied=True),
    "fused": Case(n_layers=8, fused=True, architecture="qwen"),
    "falcon": Case(architecture="falcon", n_layers=32, n_kv_heads=1, fused=True),
    "eight experts": Case(n_layers=10, n_experts=8),
    "four experts": Case(n_layers=10, n_experts=4),
    "80 layers": Case(n_layers=80),
    "narrow": Case(n_layers=4, narrow=True),
}
