"""What each tensor of a quantized file becomes: the file types users know, and the rules behind them.

A file type is a base format and exceptions for the most sensitive tensors: the output matrix, attention
values, the feed-forward down projection, first and last layers. The rules, the file types' numbers and the
tensors that are never quantized are those of llama.cpp (src/llama-quant.cpp), so that a type means one mix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from oxillama.errors import ConfigError
from oxillama.formats import FLOATS, FORMATS, WRITABLE, Format

UNWEIGHTED = (*FLOATS, "Q8_0")
"""Formats that are written the same way whatever the importance of a column."""

FALLBACK = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""The replacement if a row is no multiple of 256; if it is no multiple of 32 either, F16 is used."""


@dataclass(frozen=True)
class FileType:
    """A mix of formats: the number in ``general.file_type`` and the format of most tensors."""

    id: int
    base: str


FILE_TYPES: dict[str, FileType] = {
    "F32": FileType(0, "F32"),
    "F16": FileType(1, "F16"),
    "BF16": FileType(32, "BF16"),
    "Q4_0": FileType(2, "Q4_0"),
    "Q4_1": FileType(3, "Q4_1"),
    "Q5_0": FileType(8, "Q5_0"),
    "Q5_1": FileType(9, "Q5_1"),
    "Q8_0": FileType(7, "Q8_0"),
    "Q2_K": FileType(10, "Q2_K"),
    "Q2_K_S": FileType(21, "Q2_K"),
    "Q3_K_S": FileType(11, "Q3_K"),
    "Q3_K_M": FileType(12, "Q3_K"),
    "Q3_K_L": FileType(13, "Q3_K"),
    "Q4_K_S": FileType(14, "Q4_K"),
    "Q4_K_M": FileType(15, "Q4_K"),
    "Q5_K_S": FileType(16, "Q5_K"),
    "Q5_K_M": FileType(17, "Q5_K"),
    "Q6_K": FileType(18, "Q6_K"),
}
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}

# Parts of the names of matrices that stay as they are: small, or read element by element.
KEPT = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel",
    "per_layer_model_proj", "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight",
    "indexer.q_proj.weight", "time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight",
    "time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight",
    "time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight",
    "time_mix_g2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight", "attn_rel_b.weight", ".position_embd", "sam.pos_embd", "sam.neck.",
    "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger", "a.rvq.codebook", "mm.a.code_embd",
)  # fmt: skip
KEPT_NAMES = ("position_embd.weight", "token_types.weight")

EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")

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
"""Tensors that hold attention values, which suffer most."""


@dataclass(frozen=True)
class ModelFacts:
    """The facts that the rules depend on, besides names and shapes.

    Attributes
    ----------
    architecture : ``general.architecture``.
    n_layers : blocks of the model.
    n_heads, n_kv_heads : of its (first) attention layer.
    n_experts : 0 where it has none.
    tied : whether there is no output matrix but the embedding.
    has_importance : whether an importance matrix is used.
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
        """The shape of Llama 2 70B."""
        return self.architecture == "llama" and self.n_layers == 80 and self.n_heads != self.n_kv_heads


def named_type(name: str) -> tuple[str, FileType]:
    """The file type of a name, in any case. Raises ConfigError for one that cannot be written."""
    spelled = ALIASES.get(name.upper(), name.upper())
    if spelled not in FILE_TYPES:
        known = ", ".join((*FILE_TYPES, *ALIASES))
        raise ConfigError(f"type: expected one of {known}, got {name!r}")
    return spelled, FILE_TYPES[spelled]


def named_format(name: str, option: str) -> Format:
    """The format of a name, in any case. Raises ConfigError, naming ``option``, unless it can be written."""
    if not isinstance(name, str) or name.upper() not in WRITABLE:
        raise ConfigError(f"{option}: expected one of {', '.join(WRITABLE)}, got {name!r}")
    return FORMATS[name.upper()]


def is_quantized(name: str, n_dims: int) -> bool:
    """Whether a quantizer converts a tensor: not vectors, norms, routers and other small tensors."""
    wanted = n_dims >= 2 and name.endswith("weight") and name not in KEPT_NAMES
    return wanted and not any(part in name for part in KEPT)


def fitting(fmt: Format, cols: int) -> Format:
    """The format itself, or its replacement in rows of ``cols`` columns."""
    if cols % fmt.block_len:
        fmt = FORMATS[FALLBACK.get(fmt.name, "F16")]
    return fmt if cols % fmt.block_len == 0 else FORMATS["F16"]


def role_of(name: str) -> Role:
    """What a tensor does in the model, as far as the rules care."""
    if name == "output.weight":
        return "output"
    if name in EMBEDDINGS:
        return "embedding"
    return next((role for part, role in ROLES if part in name), "")


def layer_of(name: str) -> int:
    """The number of the block a tensor belongs to, -1 for none."""
    found = re.match(r"blk\.(\d+)\.", name)
    return int(found[1]) if found else -1


def indices(names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """For each tensor with a role: how many of its kind are in earlier layers, and how many there are in all.

    Tensors that hold attention values are one kind.
    """
    kinds: dict[Role, list[str]] = {}
    for name in sorted(names, key=lambda name: (layer_of(name), name)):
        role = role_of(name)
        kinds.setdefault("v" if role in VALUES else role, []).append(name)
    return {name: (i, len(kind)) for kind in kinds.values() for i, name in enumerate(kind)}


def _more_bits(i: int, n: int) -> bool:
    """The first and last eighth of the layers, and every third between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def mixed(file_type: str, name: str, cols: int, index: tuple[int, int], facts: ModelFacts) -> str:
    """The format that a file type has for a tensor, whether or not it fits the row length.

    Parameters
    ----------
    file_type : a key of `FILE_TYPES`.
    name, cols : of a tensor for which `is_quantized` holds.
    index : its entry in `indices`.
    """
    base = FILE_TYPES[file_type].base
    role = role_of(name)
    if role == "output" or (role == "embedding" and facts.tied):
        if facts.architecture == "falcon" or cols % FORMATS[base].block_len:
            return "Q8_0"
        return base if base == "Q8_0" else "Q6_K"
    if role in VALUES:
        return _values(file_type, role, index, facts)
    if role == "k" and facts.n_experts == 8:
        return "Q8_0"
    if role == "down":
        # the experts of a layer may be tensors of their own: only the name tells the layer
        i = layer_of(name) if facts.n_experts > 1 else index[0]
        return _down(file_type, i, facts)
    if role == "attn_output":
        return _attn_output(file_type, facts)
    return base


def _values(file_type: str, role: Role, index: tuple[int, int], facts: ModelFacts) -> str:
    base = FILE_TYPES[file_type].base
    i, n = index
    found = base
    if file_type == "Q2_K":
        found = "Q4_K" if facts.grouped else "Q3_K"
    elif file_type == "Q2_K_S" and facts.grouped:
        found = "Q4_K"
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
        return "Q5_K" if file_type in ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M") else base
    return {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(file_type, base)
