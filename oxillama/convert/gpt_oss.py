"""gpt-oss: experts in MXFP4, as they are published, or in floats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxillama.convert.config import Config, Packed
from oxillama.convert.decoders import Change, Decoder, Part, Sizes
from oxillama.convert.experts import GLM_BEFORE
from oxillama.convert.options import counts, windows
from oxillama.convert.parts import ATTENTION, biased, only
from oxillama.convert.rotation import Metadata, Tensors, rotation
from oxillama.errors import LoadError

BLOCK = 32
"""Values of a block, which share a scale."""

LARGEST_SCALE = 252
"""The exponent, plus 127, beyond which 6, the largest value, would be no float32."""


def gpt_oss(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Softmax over the chosen experts alone; their gates are cut off at 7."""
    counts(config, metadata, sizes, "num_local_experts", width="")
    metadata["expert_feed_forward_length"] = sizes["ff"]
    config.require(experts_per_token=metadata["expert_used_count"], swiglu_alpha=1.702)
    config.only("swiglu_limit", 7, 7.0)
    config.ignore("initial_context_length")  # rope_scaling says the same
    stored = config.table("quantization_config")
    packed = bool(stored.values)
    if packed:
        stored.only("quant_method", "mxfp4")
        stored.ignore("modules_to_not_convert")  # the names of the tensors say it
        if not stored.has("quant_method") or stored.unread():
            raise LoadError(
                f"{stored.name}: expected quant_method 'mxfp4' alone, got {', '.join(stored.values)}"
            )
    sizes.kinds["floats"], sizes.kinds["packed"] = (
        [not packed] * sizes["layers"],
        [packed] * sizes["layers"],
    )
    windows(config, metadata, [i % 2 == 0 for i in range(sizes["layers"])])
    return rotation(config, metadata, sizes["dim"], 150000.0)


# --- floats -----------------------------------------------------------------------------------------


def turns(which: int) -> Change:
    """Every second row, from row ``which``, of matrices that are stored transposed."""

    def change(values: np.ndarray, sizes: Sizes) -> np.ndarray:
        return transposed(values, sizes)[:, which::2]

    return change


def transposed(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    return np.swapaxes(values, 1, 2)


def every_second(which: int) -> Change:
    """Gates' biases, or those of the other matrix, which take turns."""

    def change(values: np.ndarray, sizes: Sizes) -> np.ndarray:
        return values[:, which::2]

    return change


GATE_UP = "mlp.experts.gate_up_proj"
DOWN = "mlp.experts.down_proj"
TARGETS = ("ffn_gate_exps", "ffn_up_exps")
FLOATS = only(
    "floats",
    (
        *(
            Part(
                GATE_UP, f"{target}.weight", "experts d ff+ff", bare=True, each=True,
                change=turns(which), becomes="experts ff d",
            )
            for which, target in enumerate(TARGETS)
        ),
        Part(
            DOWN, "ffn_down_exps.weight", "experts ff d", bare=True, each=True,
            change=transposed, becomes="experts d ff",
        ),
    ),
)  # fmt: skip
BIASES = (
    *(
        Part(
            f"{GATE_UP}_bias", f"{target}.bias", "experts ff+ff", bare=True,
            change=every_second(which), becomes="experts ff",
        )
        for which, target in enumerate(TARGETS)
    ),
    Part(f"{DOWN}_bias", "ffn_down_exps.bias", "experts d", bare=True),
)  # fmt: skip


# --- MXFP4 ------------------------------------------------------------------------------------------


def blocks(start: int, step: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Every ``step``-th row of a matrix of blocks, from row ``start``, as GGUF has them.

    In both a block is 32 codes of four bits and a scale. In the source neighbours share a byte, the first of
    them in its lower half; in GGUF values 16 apart do, and the scale comes first.
    """

    def packed(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """uint8 (rows, 17 n), of codes (all rows, n, 16) and scales (all rows, n)."""
        codes, scales = codes[start::step], scales[start::step]
        if scales.size and scales.max() > LARGEST_SCALE:
            raise LoadError(
                f"mlp.experts: scales: expected exponents up to {LARGEST_SCALE}, got {scales.max()}"
            )
        values = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:2], BLOCK)
        halves = values[..., : BLOCK // 2] | values[..., BLOCK // 2 :] << 4
        return np.concatenate([scales[..., None], halves], axis=-1).reshape(len(codes), -1)

    return packed


def mxfp4(config: Config, sizes: Sizes) -> list[Packed]:
    """The experts of all layers, where they are stored as blocks."""
    if not any(sizes.kinds["packed"]):
        return []
    n, d, ff = sizes["experts"], sizes["d"], sizes["ff"]
    for key, width in (("hidden_size", d), ("intermediate_size", ff)):
        if width % BLOCK:
            raise LoadError(f"{config.name}: {key}: expected a multiple of {BLOCK} for MXFP4, got {width}")
    found = []
    for i in range(sizes["layers"]):
        for source, target, rows, all_rows, cols, change in (
            (GATE_UP, "ffn_gate_exps", ff, 2 * ff, d, blocks(0, 2)),
            (GATE_UP, "ffn_up_exps", ff, 2 * ff, d, blocks(1, 2)),
            (DOWN, "ffn_down_exps", d, d, ff, blocks(0, 1)),
        ):
            name, shape = f"model.layers.{i}.{source}", (n, all_rows, cols // BLOCK)
            sources = {f"{name}_blocks": (*shape, BLOCK // 2), f"{name}_scales": shape}
            found.append(Packed(sources, f"blk.{i}.{target}.weight", "MXFP4", (n, rows, cols), change))
    return found


GPT_OSS = Decoder(
    "gpt-oss",
    (
        *biased(ATTENTION, "attention_bias"),
        *GLM_BEFORE,
        Part("self_attn.sinks", "attn_sinks.weight", "heads", bare=True),
        Part("mlp.router", "ffn_gate_inp", "experts d", "yes"),
        *FLOATS,
        *BIASES,
    ),
    gpt_oss,
    biased=True,
    defaults=(("head_dim", 64), ("num_key_value_heads", 8), ("sliding_window", 128), ("rms_norm_eps", 1e-5)),
    packed=mxfp4,
)
