"""What each architecture computes, stated apart from the tables in `oxillama.models.families`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Facts:
    """Facts of an architecture. Names of tensors are given without "blk.<i>." and ".weight".

    Attributes
    ----------
    rope : pairs that rotate: "norm" (2i, 2i + 1), "neox" (i, i + n_rot / 2), "none".
    no_rope_every : every n-th layer does not rotate; 0 for none.
    norm : "rms" or "layer".
    norm_weight : norms have weights. Biases of norms, and of matrices, are used where the file has them.
    residual : "sequential", "parallel" (both blocks read the layer's input), or "auto" ("parallel" in a file
        without the second norm).
    attn_norm, ffn_norm : norms before the blocks, "" for none.
    attn_post_norm, ffn_post_norm : norms of the blocks' outputs, "" for none.
    qk_norm : norms of q and k: "", "head", "heads" (a weight for each head), "row" (all heads at once).
    qk_norm_last : they come behind the rotation. qk_norm_optional : used if the file has them.
    activation : by its name in `rows.ACTIVATIONS`.
    embedding_scale : factor of embeddings, 0 for sqrt(n_embd). logit_divides : the stated factor divides.
    layers_scaled_by_width : scores of the model with so many layers are divided by sqrt(n_embd / heads),
        those of the others by sqrt(key_dim).
    soft_cap, final_soft_cap : of scores and of logits, unless the file states one.
    window, window_period : default window; n where the last layer of n has none, 0 where all have it, None
        for no windows.
    local_base : rotary base of windowed layers; 0 for that of the others.
    rope_on_windows_only : layers without a window do not rotate.
    alibi : largest slope exponent of linear biases, 0 without.
    positions : learned position embeddings. embd_norm : a norm of the embeddings. sinks : of attention.
    gating, normalize : of experts; gating None: the family has no experts.
    shared_gate : the shared expert's output is multiplied by a sigmoid.
    recurrent : token mixer of layers without key heads (`recurrent.MIXERS`), "" where all attend.
    attends : some layers have key heads.
    gated_queries : the rows of q hold a head's query, then a gate, whose sigmoid multiplies what is attended.
    interleaved : value heads take the key heads in turn, and sections of a rotation take the pairs in turn.
    feed_forward : layers have a second block.
    output_norm : name of the last norm.
    options : those of `source.OPTIONS` that count. ignores : metadata keys that have no effect.
    """

    rope: str = "norm"
    no_rope_every: int = 0
    norm: str = "rms"
    norm_weight: bool = True
    residual: str = "sequential"
    attn_norm: str = "attn_norm"
    ffn_norm: str = "ffn_norm"
    attn_post_norm: str = ""
    ffn_post_norm: str = ""
    qk_norm: str = ""
    qk_norm_last: bool = False
    qk_norm_optional: bool = False
    activation: str = "silu"
    embedding_scale: float = 1.0
    logit_divides: bool = False
    layers_scaled_by_width: int = 0
    soft_cap: float = 0.0
    final_soft_cap: float = 0.0
    window: int = 0
    window_period: int | None = None
    local_base: float = 0.0
    rope_on_windows_only: bool = False
    alibi: float = 0.0
    positions: bool = False
    embd_norm: bool = False
    sinks: bool = False
    gating: str | None = None
    normalize: bool = True
    shared_gate: bool = False
    recurrent: str = ""
    attends: bool = True
    gated_queries: bool = False
    interleaved: bool = False
    feed_forward: bool = True
    output_norm: str = "output_norm"
    options: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()

    def but(self, **differences: Any) -> Facts:
        """These facts with differences."""
        return replace(self, **differences)


WINDOW, PATTERN, LOCAL = (
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.freq_base_swa",
)
EXPERT_WIDTH, SHARED_WIDTH = "expert_feed_forward_length", "expert_shared_feed_forward_length"
SCALES = ("embedding_scale", "residual_scale", "logit_scale", "attention.scale")
CLAMP = ("attention.clamp_kqv",)

PLAIN = Facts()
LLAMA = PLAIN.but(gating="softmax", window_period=0, options=(WINDOW, PATTERN))
NEOX = PLAIN.but(rope="neox")
QWEN3 = NEOX.but(qk_norm="head")
GEMMA = NEOX.but(activation="gelu", embedding_scale=0.0)
GEMMA2 = GEMMA.but(
    attn_post_norm="post_attention_norm",
    ffn_post_norm="post_ffw_norm",
    window=4096,
    window_period=2,
    soft_cap=50.0,
    final_soft_cap=30.0,
    layers_scaled_by_width=46,
    options=(WINDOW, PATTERN, LOCAL, "attention.scale", "attn_logit_softcapping", "final_logit_softcapping"),
)
GPT = PLAIN.but(rope="none", norm="layer", activation="gelu")
ROTATING = GPT.but(rope="neox")
GRANITE = PLAIN.but(gating="softmax", logit_divides=True, options=(*SCALES, SHARED_WIDTH))

COMMAND_R = GPT.but(
    rope="norm", activation="silu", residual="parallel", ffn_norm="", options=("logit_scale",)
)
QWEN3_NEXT = QWEN3.but(
    ffn_norm="post_attention_norm",
    recurrent="delta",
    gated_queries=True,
    gating="softmax",
    shared_gate=True,
    options=(EXPERT_WIDTH, SHARED_WIDTH),
)
MAMBA = PLAIN.but(
    rope="none",
    ffn_norm="",
    recurrent="mamba",
    attends=False,
    feed_forward=False,
    options=("ssm.dt_b_c_rms",),
)
RWKV = PLAIN.but(
    rope="none",
    norm="layer",
    embd_norm=True,
    ffn_norm="attn_norm_2",
    recurrent="rwkv6",
    attends=False,
    options=("rescale_every_n_layers",),
)

FAMILIES: dict[str, Facts] = {
    "llama": LLAMA,
    "internlm2": PLAIN,
    "smollm3": PLAIN.but(no_rope_every=4),
    "exaone": NEOX,
    "arcee": PLAIN.but(activation="relu_squared"),
    "xverse": PLAIN,
    "granite": GRANITE.but(gating=None),
    "granitemoe": GRANITE,
    "qwen2": NEOX,
    "qwen2moe": NEOX.but(
        gating="softmax",
        normalize=False,
        shared_gate=True,
        options=(EXPERT_WIDTH, SHARED_WIDTH, "expert_weights_norm"),
    ),
    "qwen3": QWEN3,
    "qwen3moe": QWEN3.but(gating="softmax", options=(EXPERT_WIDTH,)),
    "qwen3next": QWEN3_NEXT,
    "qwen35": QWEN3_NEXT.but(interleaved=True, gating=None, options=()),
    "qwen35moe": QWEN3_NEXT.but(interleaved=True),
    "hunyuan-dense": QWEN3.but(qk_norm_last=True),
    "seed_oss": NEOX.but(ffn_norm="post_attention_norm"),
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3": GEMMA2.but(
        qk_norm="head",
        window=0,
        window_period=6,
        local_base=10000.0,
        soft_cap=0.0,
        final_soft_cap=0.0,
        layers_scaled_by_width=62,
        options=(WINDOW, PATTERN, LOCAL, "attention.scale", "final_logit_softcapping"),
    ),
    "phi2": ROTATING.but(residual="parallel", ffn_norm=""),
    "command-r": COMMAND_R,
    "cohere2": COMMAND_R.but(
        window_period=4, rope_on_windows_only=True, options=("logit_scale", WINDOW, PATTERN)
    ),
    "gpt2": GPT.but(positions=True),
    "starcoder": GPT.but(positions=True),
    "starcoder2": ROTATING.but(window_period=0, options=(WINDOW,)),
    "falcon": ROTATING.but(residual="parallel", ffn_norm=""),
    "bloom": GPT.but(embd_norm=True, alibi=8.0),
    "mpt": GPT.but(qk_norm="row", qk_norm_optional=True, options=(*CLAMP, "attention.max_alibi_bias")),
    "nemotron": ROTATING.but(activation="relu_squared"),
    "orion": ROTATING.but(activation="silu"),
    "stablelm": ROTATING.but(activation="silu", residual="auto", qk_norm="heads", qk_norm_optional=True),
    "gpt-oss": NEOX.but(
        ffn_norm="post_attention_norm",
        sinks=True,
        window_period=2,
        activation="silu_clamped",
        gating="chosen",
        normalize=False,
        options=(WINDOW, PATTERN, LOCAL, EXPERT_WIDTH),
    ),
    "olmo": PLAIN.but(norm="layer", norm_weight=False, options=CLAMP),
    "olmoe": NEOX.but(
        qk_norm="row", gating="softmax", normalize=False, options=(*CLAMP, "expert_weights_norm")
    ),
    "chatglm": PLAIN,
    "glm4": PLAIN.but(attn_post_norm="post_attention_norm", ffn_post_norm="post_ffw_norm"),
    "rwkv6": RWKV,
    "rwkv7": RWKV.but(recurrent="rwkv7", options=()),
    "mamba": MAMBA,
    "mamba2": MAMBA.but(recurrent="mamba2", options=()),
    "jamba": PLAIN.but(rope="none", recurrent="mamba", gating="softmax", normalize=False),
    "granitehybrid": GRANITE.but(recurrent="mamba2"),
    "lfm2": QWEN3.but(
        recurrent="shortconv", output_norm="token_embd_norm", window_period=0, options=(WINDOW,)
    ),
    "dbrx": NEOX.but(norm="layer", ffn_norm="attn_output_norm", gating="softmax", options=CLAMP),
}
"""Facts by ``general.architecture``."""
