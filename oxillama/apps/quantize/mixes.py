"""The mix of formats of each file type: a base format, and exceptions for the most sensitive tensors.

Exceptions are the output matrix, attention values, the feed-forward down projection, and first and last
layers. The rules equal llama.cpp's (src/llama-quant.cpp), so that a file type means the same mix; the tests
compare with recorded choices of its quantizer for models of many shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from oxillama.base.formats import FORMATS
from oxillama.gguf.file_types import EMBEDDINGS, FILE_TYPES

LOWEST = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
"""File types of up to 2.7 bits, with their own rules for every role."""

NEEDS_IMPORTANCE = ("Q2_K_S", "IQ3_XS", "IQ3_XXS", *LOWEST)
"""File types that lose much quality without an importance matrix: llama.cpp refuses to write them."""

EMBEDDING = dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS"), "Q2_K")
EMBEDDING |= dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), "IQ3_S") | dict.fromkeys(("TQ1_0", "TQ2_0"), "Q4_K")
EMBEDDING |= dict.fromkeys(("Q2_0", "Q2_0_G128"), "Q4_K")
"""Formats of an embedding that is not also the output matrix, if different from the base format."""

ATTENTION_OUTPUT = {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_XXS": "IQ3_S", "IQ3_M": "Q4_K"}
"""Formats of the attention output matrix, if different from the base format."""

BETTER_OUTPUT_OF_8_EXPERTS = (
    "Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ3_XXS", "IQ3_XS", "IQ3_S", "IQ3_M", "IQ4_NL", "IQ4_XS",
)  # fmt: skip
"""File types whose attention output matrix is Q5_K in models with 8 experts."""

Role = Literal["output", "embedding", "qkv", "kv_b", "v", "k", "q", "attn_output", "up", "gate", "down", ""]
ROLES: tuple[tuple[str, Role], ...] = (
    ("attn_qkv.weight", "qkv"),
    ("attn_kv_b.weight", "kv_b"),
    ("attn_v.weight", "v"),
    ("attn_k.weight", "k"),
    ("attn_q.weight", "q"),
    ("attn_output.weight", "attn_output"),
    ("ffn_up", "up"),
    ("ffn_gate", "gate"),
    ("ffn_down", "down"),
)
VALUES: tuple[Role, ...] = ("v", "qkv", "kv_b")
"""Tensors with attention values, which are the most sensitive."""


@dataclass(frozen=True)
class ModelFacts:
    """Facts that the rules depend on, besides tensor names and shapes.

    Attributes:
        architecture: ``general.architecture``.
        n_layers: number of blocks of the model.
        n_heads, n_kv_heads: of its first attention layer.
        n_experts: 0 without experts.
        tied: whether the embedding is also the output matrix.
        has_importance: whether an importance matrix is used.
    """

    architecture: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    n_experts: int
    tied: bool
    has_importance: bool

    @property
    def grouped(self) -> bool:
        """Whether four or more query heads share a value head, so that values take little memory."""
        return self.n_kv_heads > 0 and self.n_heads // self.n_kv_heads >= 4

    @property
    def is_70b(self) -> bool:
        """Whether the shape is Llama 2 70B's."""
        return self.architecture == "llama" and self.n_layers == 80 and self.n_heads != self.n_kv_heads


def role_of(name: str) -> Role:
    """The role of a tensor in the model, as far as the rules need it."""
    if name == "output.weight":
        return "output"
    if name in EMBEDDINGS:
        return "embedding"
    return next((role for part, role in ROLES if part in name), "")


def layer_of(name: str) -> int:
    """The block number of a tensor; -1 without a block."""
    found = re.match(r"blk\.(\d+)\.", name)
    return int(found[1]) if found else -1


def indices(names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Each tensor with a role: its index among the tensors of its kind by layer, and their total number.

    Tensors that hold attention values are one kind.
    """
    kinds: dict[Role, list[str]] = {}
    for name in sorted(names, key=lambda name: (layer_of(name), name)):
        role = role_of(name)
        kinds.setdefault("v" if role in VALUES else role, []).append(name)
    return {name: (i, len(kind)) for kind in kinds.values() for i, name in enumerate(kind)}


def _more_bits(i: int, n: int) -> bool:
    """Whether layer ``i`` of ``n`` gets more bits: the first and last eighth, and every third between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def mixed(file_type: str, name: str, cols: int, index: tuple[int, int], facts: ModelFacts) -> str:
    """The format of a tensor in a file type, without regard to whether the row length fits.

    Args:
        file_type: a key of `FILE_TYPES`.
        name, cols: name and columns of a tensor for which `is_quantized` holds.
        index: its entry in `indices`.
    """
    base = FILE_TYPES[file_type].base
    role = role_of(name)
    if role == "output" or (role == "embedding" and facts.tied):
        if facts.architecture == "falcon" or cols % FORMATS[base].block_len:
            return "Q8_0"
        if file_type in ("IQ3_XXS", *LOWEST):
            return "Q5_K"
        return base if base == "Q8_0" else "Q6_K"
    if role == "embedding":
        return EMBEDDING.get(file_type, base) if name == "token_embd.weight" else base
    if file_type in LOWEST:
        return _lowest(file_type, role, index, facts)
    if role in VALUES:
        return _values(file_type, index, facts)
    if role == "k" and facts.n_experts == 8:
        return "Q8_0"
    if role in ("q", "k"):
        return {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(file_type, base)
    if role in ("up", "gate", "down"):
        # the experts of a layer may be separate tensors, so the layer is taken from the name
        i = layer_of(name) if facts.n_experts > 1 else index[0]
        if role == "down":
            return _down(file_type, i, facts)
        n = facts.n_layers
        return "IQ3_XXS" if file_type == "IQ3_XS" and n // 8 <= i < 7 * n // 8 else base
    if role == "attn_output":
        return _attn_output(file_type, facts)
    return base


def _lowest(file_type: str, role: str, index: tuple[int, int], facts: ModelFacts) -> str:
    base = FILE_TYPES[file_type].base
    better = "IQ3_S" if file_type in ("IQ2_S", "IQ2_M") else "Q2_K"
    if role in VALUES:
        return "Q4_K" if facts.grouped or facts.n_experts >= 4 else better
    if role == "k" and facts.n_experts == 8:
        return "Q4_K"
    if role == "down" and index[0] < index[1] // 8:
        return better
    if role == "attn_output":
        if facts.n_experts == 8:
            return "Q5_K"
        return "IQ2_XXS" if base in ("IQ1_S", "IQ1_M") else "IQ3_S" if better == "IQ3_S" else base
    return base


def _values(file_type: str, index: tuple[int, int], facts: ModelFacts) -> str:
    base = FILE_TYPES[file_type].base
    i, n = index
    found = base
    if file_type == "Q2_K":
        found = "Q4_K" if facts.grouped else "Q3_K"
    elif file_type in ("Q2_K_S", "IQ3_XXS", "IQ3_XS", "IQ3_S") and facts.grouped:
        found = "Q4_K"
    elif file_type == "IQ3_XXS" and not facts.has_importance:
        found = "IQ3_S"
    elif file_type == "IQ3_M":
        found = "Q4_K"
    elif file_type in ("IQ4_NL", "IQ4_XS") and facts.grouped:
        found = "Q5_K"
    elif file_type == "Q3_K_M":
        found = "Q5_K" if i < 2 else "Q4_K"
    elif file_type == "Q3_K_L":
        found = "Q5_K"
    elif file_type in ("Q4_K_M", "Q5_K_M") and _more_bits(i, n):
        found = "Q6_K"
    elif file_type == "Q4_K_S" and i < 4:
        found = "Q5_K"
    if facts.is_70b and found in ("Q3_K", "Q4_K"):
        found = "Q5_K"
    return "Q8_0" if facts.n_experts == 8 else found


def _down(file_type: str, i: int, facts: ModelFacts) -> str:
    base, n = FILE_TYPES[file_type].base, facts.n_layers
    falcon = facts.architecture == "falcon"
    if file_type == "Q2_K":
        return "Q3_K"
    if file_type == "Q2_K_S" and i < n // 8:
        return "Q4_K"
    if file_type == "IQ3_XXS" and not facts.has_importance:
        return "Q4_K" if i < n // 8 else "Q3_K"
    if file_type in ("IQ4_NL", "IQ4_XS") and not facts.has_importance and i < n // 8:
        return "Q5_K"
    if file_type == "IQ3_M" and (i < n // 8 or (facts.n_experts == 8 and _more_bits(i, n))):
        return "Q4_K"
    if file_type == "Q3_K_M":
        if i < n // 16:
            return "Q5_K"
        return "Q4_K" if not falcon or _more_bits(i, n) else "Q3_K"
    if file_type == "Q3_K_L":
        return "Q4_K" if falcon else "Q5_K"
    if file_type == "Q4_K_M" and falcon:
        return "Q6_K" if i < n // 16 else "Q5_K" if _more_bits(i, n) else "Q4_K"
    if file_type in ("Q4_K_M", "Q5_K_M") and _more_bits(i, n):
        return "Q6_K"
    if file_type == "Q4_K_S" and not falcon and i < n // 8:
        return "Q5_K"
    if file_type in ("Q4_0", "Q5_0") and facts.has_importance and i < n // 8:
        return "Q4_1" if file_type == "Q4_0" else "Q5_1"
    return base


def _attn_output(file_type: str, facts: ModelFacts) -> str:
    base = FILE_TYPES[file_type].base
    if facts.architecture == "falcon":
        return "Q4_K" if file_type == "Q3_K_L" else base
    if facts.n_experts == 8:
        return "Q5_K" if file_type in BETTER_OUTPUT_OF_8_EXPERTS else base
    return ATTENTION_OUTPUT.get(file_type, base)
