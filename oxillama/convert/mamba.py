"""Hybrids of attention and Mamba-2: Granite 4, Falcon-H1 and Nemotron-H."""

from __future__ import annotations

import numpy as np

from oxillama.convert.config import Config
from oxillama.convert.decoders import Change, Decoder, Part, Sizes
from oxillama.convert.experts import GRANITE_EXPERTS
from oxillama.convert.hybrids import column, flat, key_heads, kinds_of
from oxillama.convert.options import granite_scales
from oxillama.convert.parts import ATTENTION, BEFORE, only
from oxillama.convert.rotation import Metadata, Tensors, rotation
from oxillama.errors import LoadError


def half(which: int) -> Change:
    """The first or the second half of the rows."""

    def change(values: np.ndarray, sizes: Sizes) -> np.ndarray:
        return np.split(values, 2)[which]

    return change


def granite_hybrid(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Granite 4: with experts and a shared one, or, in the small models, the shared one alone."""
    granite_scales(config, metadata)
    recurrent = kinds_of(config, sizes, ("mamba", "linear_attention"))
    key_heads(metadata, sizes, recurrent)
    heads, width = config.size("mamba_n_heads"), config.size("mamba_d_head")
    groups, state = config.size("mamba_n_groups", 1), config.size("mamba_d_state")
    sizes.update({"ssm_heads": heads, "inner": heads * width, "taps": config.size("mamba_d_conv", 4)})
    sizes.update({"groups": groups, "inner/groups": heads * width // groups})
    sizes["channels"] = sizes["inner"] + 2 * groups * state
    metadata.update(
        {
            "ssm.conv_kernel": sizes["taps"],
            "ssm.state_size": state,
            "ssm.group_count": groups,
            "ssm.time_step_rank": heads,
            "ssm.inner_size": sizes["inner"],
        }
    )
    config.only("mamba_conv_bias", True)
    config.only("mamba_proj_bias", False)
    for key in ("mamba_expand", "mamba_chunk_size", "time_step_limit", "time_step_min", "time_step_max",
                "time_step_floor", "normalization_function", "init_method"):  # fmt: skip
        config.get(key)  # the heads say it, or it changes nothing
    turns_ = config.get("position_embedding_type")
    config.only("position_embedding_type", "rope", "nope")
    metadata["rope.scaling.finetuned"] = turns_ == "rope"
    experts = config.get("num_local_experts", 0)
    if type(experts) is not int or experts < 0:
        raise LoadError(f"{config.name}: num_local_experts: expected an integer, got {experts!r:.60}")
    sizes["shared_ff"] = config.size("shared_intermediate_size")
    sizes.kinds["routed"] = [experts > 0] * sizes["layers"]
    sizes.kinds["dense"] = [experts == 0] * sizes["layers"]
    used = config.get("num_experts_per_tok")
    if experts:
        sizes["experts"] = metadata["expert_count"] = experts
        metadata["expert_used_count"] = Config({"num_experts_per_tok": used}).size("num_experts_per_tok")
        metadata["expert_shared_feed_forward_length"] = sizes["shared_ff"]
    else:
        metadata["feed_forward_length"] = sizes["shared_ff"]
    return rotation(config, metadata, sizes["dim"])


MAMBA2 = only(
    "recurrent",
    (
        Part("mamba.in_proj", "ssm_in", "inner+channels+ssm_heads d"),
        Part("mamba.conv1d", "ssm_conv1d", "channels one taps", change=flat, becomes="channels taps"),
        Part("mamba.conv1d.bias", "ssm_conv1d.bias", "channels", bare=True),
        Part("mamba.dt_bias", "ssm_dt.bias", "ssm_heads", bare=True),
        Part(
            "mamba.A_log", "ssm_a", "ssm_heads", bare=True, becomes="ssm_heads one",
            change=lambda values, sizes: -np.exp(values).reshape(-1, 1),
        ),
        Part("mamba.D", "ssm_d", "ssm_heads", bare=True, change=column, becomes="ssm_heads one"),
        Part(
            "mamba.norm", "ssm_norm", "inner", becomes="groups inner/groups",
            change=lambda values, sizes: values.reshape(sizes["groups"], -1),
        ),
        Part("mamba.out_proj", "ssm_out", "d inner"),
    ),
)  # fmt: skip


def granite_block(kind: str, ending: str) -> tuple[Part, ...]:
    """The block that every token uses."""
    source, shape = "shared_mlp.input_linear", "shared_ff+shared_ff d"
    return only(
        kind,
        (
            Part(source, f"ffn_gate{ending}", shape, change=half(0), becomes="shared_ff d"),
            Part(source, f"ffn_up{ending}", shape, change=half(1), becomes="shared_ff d"),
            Part("shared_mlp.output_linear", f"ffn_down{ending}", "d shared_ff"),
        ),
    )


GRANITE_HYBRID = Decoder(
    "granitehybrid",
    (
        *only("attending", ATTENTION),
        *MAMBA2,
        *BEFORE,
        *only("routed", GRANITE_EXPERTS),
        *granite_block("routed", "_shexp"),
        *granite_block("dense", ""),
    ),
    granite_hybrid,
    reordered=True,
)

MAMBA_DECODERS: dict[str, tuple[str, Decoder]] = {
    "GraniteMoeHybridForCausalLM": ("granitemoehybrid", GRANITE_HYBRID),
}
