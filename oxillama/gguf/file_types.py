"""File types by name, and which tensors they quantize; their mixes are in `oxillama.apps.quantize.mixes`.

The file types' numbers and the tensors that are never quantized follow llama.cpp (src/llama-quant.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass

from oxillama.base.formats import FLOATS, FORMATS, W8A8, WRITABLE, Format
from oxillama.errors import ConfigError

UNWEIGHTED = (*FLOATS, "Q8_0", "TQ1_0", "TQ2_0", "Q2_0", "Q2_0_G128", "NVFP4")
"""Formats that are written the same way whatever the importance of a column."""

FALLBACK = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
FALLBACK |= {"TQ1_0": "Q4_0", "TQ2_0": "Q4_0", "Q2_0": "Q4_0", "Q2_0_G128": "Q2_0", "NVFP4": "Q4_0"}
FALLBACK |= {name: "IQ4_NL" for name in WRITABLE if name.startswith("IQ") and name != "IQ4_NL"}
"""The replacement if a row is no multiple of a block; F16 where there is none."""


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
    "IQ2_XXS": FileType(19, "IQ2_XXS"),
    "IQ2_XS": FileType(20, "IQ2_XS"),
    "IQ3_XS": FileType(22, "IQ3_S"),
    "IQ3_XXS": FileType(23, "IQ3_XXS"),
    "IQ1_S": FileType(24, "IQ1_S"),
    "IQ4_NL": FileType(25, "IQ4_NL"),
    "IQ3_S": FileType(26, "IQ3_S"),
    "IQ3_M": FileType(27, "IQ3_S"),
    "IQ2_S": FileType(28, "IQ2_XS"),
    "IQ2_M": FileType(29, "IQ2_S"),
    "IQ4_XS": FileType(30, "IQ4_XS"),
    "IQ1_M": FileType(31, "IQ1_M"),
    "TQ1_0": FileType(36, "TQ1_0"),
    "TQ2_0": FileType(37, "TQ2_0"),
    "Q2_0": FileType(41, "Q2_0"),
    "Q2_0_G128": FileType(41, "Q2_0_G128"),
    "NVFP4": FileType(39, "NVFP4"),
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
KEPT_NAMES = (
    *("position_embd.weight", "token_types.weight"),
    "mm.input_projection.weight",  # Gemma 3: mtmd transposes it, which fails with blocks
)

EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")


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


def is_rounded(name: str, fmt: Format, shape: tuple[int, ...]) -> bool:
    """Whether a ``compute`` of `ROUNDED` rounds a tensor of a linear layer; ``shape`` is in GGUF order."""
    return fmt.name not in FLOATS or (is_quantized(name, len(shape)) and shape[0] % W8A8.block_len == 0)


def fitting(fmt: Format, cols: int) -> Format:
    """The format itself, or its replacement in rows of ``cols`` columns."""
    while cols % fmt.block_len:
        fmt = FORMATS[FALLBACK.get(fmt.name, "F16")]
    return fmt
