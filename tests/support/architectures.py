"""What the files of each architecture hold and how it computes, stated once more, apart from the library.

From published facts: `zoo.py` makes files of it, `tests/references/transformer.py` runs them in float64. One
entry is enough for a plain architecture; what only one architecture does is in the reference, by its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Facts of an architecture.

    Attributes
    ----------
    layer : tensors of a layer: norms (n:name; h: of heads, r: of rows, e: of each head), matrices; "+b" is a
        bias. "moe" is a router with its experts, "dense" a dense block or those, by the layer, "shexp" the
        shared expert of layers with experts, "probs" the bias of their choice, "mixed" attention or the
        recurrent mixer, by the layer, "single" Mamba-2, a feed-forward block or attention, in turn. b: is a
        norm without the suffix ".weight", m: one that the first layer lacks; "gates" are those of attended
        values, a head or ("gates2") an element each.
    beside : tensors beside the embeddings and the layers.
    sizes : of its model in `zoo.MODELS`, where they are not the usual ones.
    keys : metadata beside the usual ones, (kind, value) by key without prefix; the value "=n_ff" is that
        attribute of the model.
    mixed : recurrent mixer of those layers of a hybrid that do not attend: every second.
    attention : tensors of those that do.
    gated : the rows of q hold a head's query, then its gate.
    rope : pairs that rotate, "norm" or "neox"; "none".
    rope_on_windows : layers without a window do not rotate.
    no_rope_every : every n-th layer does not rotate.
    norm, activation, residual : "rms" or "layer"; a kernel's name; "sequential", "parallel" or "post".
    second_norm, post_norms : names of the norm before the second block, and of those after both, if present.
    last_norm : name of the norm before the output matrix.
    norm_after_rope : q and k are normed after the rotation.
    windows : the file's window counts: n where one layer of n has none, 0 for windows on all layers.
    full_layer : which of n, "last" or "first".
    centred : windows reach as far ahead as back, half of their width.
    window : default window.
    local_base : rotary base of windowed layers: None for that of the others whatever the file says, 0 for
        that of the others unless the file has one.
    plain_windows : windowed layers rotate without scaling.
    gating, normalize : of experts, unless the file says.
    embedding_scale : 0 for sqrt(n_embd).
    optional : parts of names of tensors that a file may leave out, beside biases and the like.
    tied : the output matrix is always the embedding table.
    """

    layer: str
    beside: str = "n:output_norm output"
    sizes: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, tuple[str, Any]] = field(default_factory=dict)
    mixed: str = ""
    attention: str = "q k v o"
    gated: bool = False
    rope: str = "norm"
    rope_on_windows: bool = False
    no_rope_every: int = 0
    norm: str = "rms"
    activation: str = "silu"
    residual: str = "sequential"
    second_norm: str = "ffn_norm"
    post_norms: tuple[str, str] = ("post_attention_norm", "post_ffw_norm")
    last_norm: str = "output_norm"
    norm_after_rope: bool = False
    windows: int | None = None
    full_layer: str = "last"
    centred: bool = False
    window: int = 0
    local_base: float | None = None
    plain_windows: bool = False
    gating: str = "softmax"
    normalize: bool = False
    embedding_scale: float = 1.0
    optional: tuple[str, ...] = ()
    tied: bool = False
    encoder: bool = False

    @property
    def recurrent(self) -> bool:
        """Some layers are recurrent."""
        return bool(self.mixed) or any(kind in self.layer for kind in ("mamba", "rwkv", "single"))


# Parts of layers. The order of tensors is that of their random numbers.
QKVO, FFN = "q k v o", "gate up down"
DENSE = f"n:attn_norm {QKVO} n:ffn_norm {FFN}"
HEADS = f"n:attn_norm {QKVO} h:attn_q_norm h:attn_k_norm n:ffn_norm"
GPT = "n:attn_norm+b qkv+b o+b n:ffn_norm+b up+b down+b"
ENDS_BIASED = "n:output_norm+b output"
WIDTH = {"expert_feed_forward_length": ("u32", "=expert_ff")}
WINDOW = {"attention.sliding_window": ("u32", 6)}
DELTA = {
    "full_attention_interval": ("u32", 2),
    "ssm.conv_kernel": ("u32", 4),
    "ssm.state_size": ("u32", 6),
    "ssm.group_count": ("u32", 2),
    "ssm.time_step_rank": ("u32", 4),
    "ssm.inner_size": ("u32", 24),
}
MANY_HEADS = {"n_kv_heads": 4}
STATED = WIDTH | {
    "expert_shared_count": ("u32", 1),
    "leading_dense_block_count": ("u32", 1),
    "expert_weights_norm": ("bool", True),
    "expert_weights_scale": ("f32", 1.7),
}
SIGMOID = {"expert_gating_func": ("u32", 2)}
SHARED_WIDTH = {"expert_shared_feed_forward_length": ("u32", 20)}
WINDOWED = WINDOW | {"attention.sliding_window_pattern": ("[bool]", "=alternating")}
INDEXER = {
    "attention.indexer.head_count": ("u32", 8),  # so that few scores are all zeros, and equal
    "attention.indexer.key_length": ("u32", 64),
    "attention.indexer.top_k": ("u32", 9),
}
EPSILON = {"attention.layer_norm_epsilon": ("f32", 0.1)}
NEMOTRON: dict[str, Any] = {"rope": "none", "activation": "relu_squared"}
LATENT = {"key_dim": 20, "value_dim": 12, "n_rot": 8, "n_layers": 3}


def arch(layer: str, **facts: Any) -> Architecture:
    return Architecture(layer=layer, **facts)


def gpt(layer: str, **facts: Any) -> Architecture:
    usual = {"rope": "neox", "norm": "layer", "activation": "gelu", "beside": ENDS_BIASED}
    return Architecture(layer=layer, **(usual | facts))


def encoder(layer: str, **facts: Any) -> Architecture:
    usual = {"rope": "neox", "norm": "layer", "activation": "gelu", "encoder": True, "residual": "post"}
    return Architecture(layer=layer, **(usual | {"beside": "token_types n:token_embd_norm+b"} | facts))


ARCHITECTURES: dict[str, Architecture] = {
    "llama": arch(DENSE, windows=0, normalize=True),
    "mistral3": arch(DENSE, normalize=True),
    "llama4": arch(
        "n:attn_norm q k v o n:ffn_norm shexp dense",
        keys=WIDTH | {"interleave_moe_layer_step": ("u32", 2)},
        sizes={"n_layers": 4},
        no_rope_every=4,
        norm_after_rope=True,
        windows=4,
        window=8192,
        local_base=0,
        gating="sigmoid",
    ),
    "smollm3": arch(DENSE, sizes={"n_layers": 4}, no_rope_every=4),
    "internlm2": arch(DENSE),
    "exaone": arch(DENSE, rope="neox"),
    "granite": arch(
        DENSE, keys={"logit_scale": ("f32", 4.0), "residual_scale": ("f32", 0.5)}, normalize=True
    ),
    "granitemoe": arch(
        "n:attn_norm q k v o n:ffn_norm moe",
        keys={"logit_scale": ("f32", 4.0), "embedding_scale": ("f32", 1.5)},
        normalize=True,
    ),
    "minicpm": arch(DENSE, embedding_scale=12.0),
    "dbrx": arch(
        "n:attn_norm qkv o n:attn_output_norm moe",
        keys={"attention.clamp_kqv": ("f32", 1.0)},
        rope="neox",
        norm="layer",
        second_norm="attn_output_norm",
        normalize=True,
    ),
    "grok": arch(
        "n:attn_norm q k v o n:attn_output_norm n:ffn_norm moe n:layer_output_norm",
        rope="neox",
        activation="gelu",
        post_norms=("attn_output_norm", "layer_output_norm"),
        normalize=True,
        embedding_scale=78.38367176906169,
    ),
    "qwen2": arch("n:attn_norm q+b k+b v+b o n:ffn_norm gate up down", rope="neox"),
    "qwen2moe": arch(
        "n:attn_norm q+b k+b v+b o n:ffn_norm moe shexp shgate",
        keys=WIDTH | {"expert_shared_feed_forward_length": ("u32", 20)},
        sizes={"n_experts": 6, "n_used": 3, "seed": 70},
        rope="neox",
    ),
    "qwen2vl": arch(
        "n:attn_norm q+b k+b v+b o n:ffn_norm gate up down",
        keys={"rope.dimension_sections": ("[i32]", [1, 1, 1, 0])},
        rope="neox",
    ),
    "qwen3": arch(f"{HEADS} {FFN}", rope="neox"),
    "qwen3moe": arch(f"{HEADS} moe", keys=WIDTH, rope="neox", normalize=True),
    "gemma": arch(
        DENSE, beside="n:output_norm", rope="neox", activation="gelu", embedding_scale=0, tied=True
    ),
    "gemma2": arch(
        "n:attn_norm q k v o n:post_attention_norm n:ffn_norm gate up down n:post_ffw_norm",
        beside="n:output_norm",
        keys=WINDOW,
        rope="neox",
        activation="gelu",
        windows=2,
        window=4096,
        local_base=0,
        embedding_scale=0,
        tied=True,
    ),
    "gemma3": arch(
        "n:attn_norm q k v o h:attn_q_norm h:attn_k_norm n:post_attention_norm n:ffn_norm gate up down"
        " n:post_ffw_norm",
        beside="n:output_norm",
        sizes={"n_layers": 6},
        keys=WINDOW,
        rope="neox",
        activation="gelu",
        windows=6,
        local_base=10000.0,
        plain_windows=True,
        embedding_scale=0,
    ),
    "phi2": gpt(
        "n:attn_norm+b qkv+b o+b up+b down+b", beside="n:output_norm+b output+b", residual="parallel"
    ),
    "phi3": arch(
        "n:attn_norm qkv o n:ffn_norm up2 down",
        beside="n:output_norm output factors",
        keys={"rope.scaling.original_context_length": ("u32", 512)},
        rope="neox",
    ),
    "phimoe": arch(
        "n:attn_norm+b q+b k+b v+b o+b n:ffn_norm+b moe",
        beside="n:output_norm+b output+b factors",
        keys={"rope.scaling.original_context_length": ("u32", 64)},
        rope="neox",
        normalize=True,
    ),
    "command-r": arch(
        "n:attn_norm q k v o gate up down",
        beside="n:output_norm",
        keys={"logit_scale": ("f32", 0.25)},
        norm="layer",
        residual="parallel",
        tied=True,
    ),
    "cohere2": arch(
        "n:attn_norm q k v o gate up down",
        beside="n:output_norm",
        sizes={"n_layers": 4},
        keys=WINDOW | {"logit_scale": ("f32", 0.25)},
        rope_on_windows=True,
        norm="layer",
        residual="parallel",
        windows=4,
        tied=True,
    ),
    "deepseek": arch(
        "n:attn_norm q k v o n:ffn_norm shexp dense",
        keys=WIDTH | {"leading_dense_block_count": ("u32", 1), "expert_shared_count": ("u32", 2)},
    ),
    "deepseek2": arch(
        "n:attn_norm mla n:ffn_norm shexp dense",
        keys=WIDTH | {"leading_dense_block_count": ("u32", 1), "expert_shared_count": ("u32", 2)},
        sizes=LATENT | {"seed": 71},
    ),
    "minicpm3": arch(
        "n:attn_norm mla n:ffn_norm gate up down",
        sizes=LATENT | {"old_latent": True, "seed": 72},
        rope="neox",
        embedding_scale=12.0,
    ),
    "gpt2": gpt(GPT, beside="position_embd n:output_norm+b", rope="none"),
    "starcoder": gpt(GPT, beside="position_embd n:output_norm+b output", rope="none"),
    "starcoder2": gpt("n:attn_norm+b q+b k+b v+b o+b n:ffn_norm+b up+b down+b"),
    "falcon": gpt("n:attn_norm+b qkv o up down", residual="parallel"),
    "bloom": gpt(GPT, beside="n:token_embd_norm+b n:output_norm+b", rope="none"),
    "mpt": gpt(
        "n:attn_norm qkv o n:ffn_norm up down",
        beside="n:output_norm",
        keys={"attention.max_alibi_bias": ("f32", 8.0)},
        rope="none",
        optional=("ffn_norm.weight",),
    ),
    "gptneox": gpt(GPT, keys={"use_parallel_residual": ("bool", True)}),
    "stablelm": gpt(
        "n:attn_norm+b q k v o n:ffn_norm+b gate up down", activation="silu", optional=("ffn_norm.weight",)
    ),
    "nemotron": gpt("n:attn_norm+b q k v o n:ffn_norm+b up down", activation="relu_squared"),
    "orion": gpt("n:attn_norm+b q k v o n:ffn_norm+b gate up down", activation="silu"),
    "gpt-oss": arch(
        "n:attn_norm q+b k+b v+b o+b sinks n:post_attention_norm moe+b",
        keys=WIDTH | WINDOW,
        rope="neox",
        activation="silu_clamped",
        second_norm="post_attention_norm",
        windows=2,
        local_base=0,
        gating="chosen",
    ),
    "olmo": arch("q k v o gate up down", beside="", norm="layer"),
    "olmo2": arch(
        "q k v o r:attn_q_norm r:attn_k_norm n:post_attention_norm gate up down n:post_ffw_norm",
        rope="neox",
        windows=4,
        plain_windows=True,
    ),
    "olmoe": arch(
        "n:attn_norm q k v o r:attn_q_norm r:attn_k_norm n:ffn_norm moe",
        sizes={"n_kv_heads": 4, "n_experts": 6, "n_used": 3, "seed": 73},
        rope="neox",
    ),
    "chatglm": arch("n:attn_norm qkv+b o n:ffn_norm up2 down"),
    "glm4": arch("n:attn_norm q k v o n:post_attention_norm n:ffn_norm up2 down n:post_ffw_norm"),
    "bert": encoder(
        "q+b k+b v+b o+b n:attn_output_norm+b up+b down+b n:layer_output_norm+b",
        beside="position_embd token_types n:token_embd_norm+b",
        rope="none",
    ),
    "nomic-bert": encoder("qkv o n:attn_output_norm+b gate up down n:layer_output_norm+b", activation="silu"),
    "nomic-bert-moe": encoder(
        "qkv+b o+b n:attn_output_norm+b dense n:layer_output_norm+b",
        keys={"moe_every_n_layers": ("u32", 2)},
    ),
    "jina-bert-v2": encoder(
        "q+b k+b v+b o+b n:attn_output_norm+b gate up down+b n:layer_output_norm+b",
        rope="none",
        optional=("ffn_gate",),
    ),
    "mamba": arch("n:attn_norm mamba", rope="none"),
    "mamba2": arch("n:attn_norm mamba2", rope="none"),
    "jamba": arch("n:attn_norm mixed n:ffn_norm dense", mixed="mamba", rope="none"),
    "granitehybrid": arch(
        "n:attn_norm mixed n:ffn_norm gate up down",
        mixed="mamba2",
        keys={
            "logit_scale": ("f32", 4.0),
            "residual_scale": ("f32", 0.5),
            "attention.scale": ("f32", 0.4),
        },
        normalize=True,
    ),
    "lfm2": arch(
        "n:attn_norm mixed h:attn_q_norm h:attn_k_norm n:ffn_norm gate up down",
        beside="n:token_embd_norm",
        mixed="shortconv",
        rope="neox",
        last_norm="token_embd_norm",
        windows=0,
    ),
    "qwen3next": arch(
        "n:attn_norm mixed h:attn_q_norm h:attn_k_norm n:post_attention_norm moe shexp shgate",
        keys=WIDTH | DELTA | {"expert_shared_feed_forward_length": ("u32", 20)},
        mixed="delta",
        gated=True,
        rope="neox",
        second_norm="post_attention_norm",
        normalize=True,
    ),
    "qwen35": arch(
        "n:attn_norm mixed h:attn_q_norm h:attn_k_norm n:post_attention_norm gate up down",
        keys=DELTA | {"rope.dimension_sections": ("[i32]", [2, 1, 1, 0])},
        mixed="delta",
        gated=True,
        rope="neox",
        second_norm="post_attention_norm",
    ),
    "qwen35moe": arch(
        "n:attn_norm mixed h:attn_q_norm h:attn_k_norm n:post_attention_norm moe shexp shgate",
        keys=WIDTH
        | DELTA
        | {"expert_shared_feed_forward_length": ("u32", 20), "feed_forward_length": ("u32", 0)}
        | {"rope.dimension_sections": ("[i32]", [2, 1, 1, 0])},
        mixed="delta",
        gated=True,
        rope="neox",
        second_norm="post_attention_norm",
        normalize=True,
    ),
    "kimi-linear": arch(
        "n:attn_norm mixed n:ffn_norm shexp dense probs",
        sizes=LATENT | {"q_rank": 0, "seed": 75},
        keys=WIDTH
        | {
            "leading_dense_block_count": ("u32", 1),
            "expert_shared_count": ("u32", 2),
            "expert_gating_func": ("u32", 2),
            "kda.head_dim": ("u32", 6),
            "ssm.conv_kernel": ("u32", 4),
            "rope.dimension_count": ("u32", "=n_rot"),
        },
        mixed="kda",
        attention="mla",
        rope="none",
        normalize=True,
    ),
    "nemotron_h": arch("n:attn_norm single", keys=EPSILON, sizes={"n_layers": 3}, **NEMOTRON),
    "nemotron_h_moe": arch(
        "n:attn_norm single",
        keys=EPSILON
        | WIDTH
        | {"expert_count": ("u32", "=n_experts"), "expert_used_count": ("u32", "=n_used")}
        | {"expert_shared_feed_forward_length": ("u32", 20), "expert_weights_norm": ("bool", True)},
        sizes={"n_layers": 3, "n_experts": 6},
        gating="sigmoid",
        **NEMOTRON,
    ),
    "falcon-h1": arch(
        "n:attn_norm q k v o mamba2 b:ffn_norm gate up down", rope="neox", optional=("ssm_norm",)
    ),
    "plamo2": arch(
        "n:attn_norm mixed e:attn_q_norm e:attn_k_norm b:post_attention_norm n:ffn_norm up2 down"
        " b:post_ffw_norm",
        keys={"ssm.group_count": ("u32", 0), "ssm.time_step_rank": ("u32", 2)},
        mixed="plamo2",
        attention="qkv o",
        rope="neox",
    ),
    "rwkv6": arch(
        "n:attn_norm+b rwkv6 n:attn_norm_2+b",
        beside="n:token_embd_norm+b n:output_norm+b output",
        rope="none",
        norm="layer",
        second_norm="attn_norm_2",
    ),
    "rwkv7": arch(
        "n:attn_norm+b rwkv7 n:attn_norm_2+b",
        beside="n:token_embd_norm+b n:output_norm+b output",
        sizes={"n_embd": 64, "seed": 74},
        rope="none",
        norm="layer",
        second_norm="attn_norm_2",
    ),
    # Llama with differences
    "xverse": arch(DENSE),
    "arcee": arch(f"n:attn_norm {QKVO} n:ffn_norm up down", activation="relu_squared"),
    "ernie4_5": arch(DENSE),
    "paddleocr": arch(  # numbers of llama.cpp are those of pairs with a projector file (tests/media)
        DENSE,
        keys={"rope.dimension_sections": ("[i32]", [1, 1, 1, 0])},
        rope="neox",
        sizes={"compared": False},
    ),
    "seed_oss": arch(
        "n:attn_norm q+b k+b v+b o n:post_attention_norm gate up down",
        rope="neox",
        second_norm="post_attention_norm",
    ),
    "baichuan": arch(DENSE, rope="none"),
    "qwen": arch(
        "n:attn_norm qkv+b o n:ffn_norm gate up down",
        sizes=MANY_HEADS,
        keys={"feed_forward_length": ("u32", "=twice_ff")},
        rope="neox",
    ),
    "codeshell": gpt(GPT, optional=("token_embd",)),
    "jais2": gpt("n:attn_norm+b q+b k+b v+b o+b n:ffn_norm+b up+b down+b", activation="relu_squared"),
    "hunyuan-dense": arch(
        f"{HEADS} {FFN}", keys={"rope.scaling.alpha": ("f32", 9.0)}, rope="neox", norm_after_rope=True
    ),
    "exaone4": arch(
        f"{QKVO} h:attn_q_norm h:attn_k_norm n:post_attention_norm {FFN} n:post_ffw_norm",
        beside="n:output_norm rope_freqs",
        rope="neox",
    ),
    "openelm": arch(
        "n:attn_norm qkv o h:attn_q_norm h:attn_k_norm n:ffn_norm gate up down",
        beside="n:output_norm",
        rope="neox",
        tied=True,
    ),
    "plamo3": arch(
        "n:attn_norm qkv o h:attn_q_norm h:attn_k_norm b:post_attention_norm n:ffn_norm up2 down"
        " b:post_ffw_norm",
        sizes={"n_layers": 8},
        keys=WINDOW,
        rope="neox",
        windows=8,
        local_base=10000.0,
        plain_windows=True,
    ),
    "apertus": arch(
        f"{HEADS} up down",
        beside="n:output_norm output rope_freqs",
        keys={
            "/xielu.alpha_p": ("f32", -0.3),
            "/xielu.alpha_n": ("f32", 0.6),
            "/xielu.beta": ("f32", 0.5),
            "/xielu.eps": ("f32", -1e-6),
        },
        rope="neox",
        activation="xielu",
    ),
    # with experts
    "ernie4_5-moe": arch(
        f"n:attn_norm {QKVO} n:ffn_norm shexp dense probs",
        keys=WIDTH
        | SHARED_WIDTH
        | {"leading_dense_block_count": ("u32", 1), "interleave_moe_layer_step": ("u32", 1)},
        normalize=True,
    ),
    "hunyuan-moe": arch(
        f"{HEADS} moe shexp",
        keys=SHARED_WIDTH | {"expert_feed_forward_length": ("u32", 7), "expert_shared_count": ("u32", 1)},
        rope="neox",
        norm_after_rope=True,
        normalize=True,
    ),
    "dots1": arch(
        f"{HEADS} shexp dense probs",
        sizes=MANY_HEADS,
        keys=STATED | SIGMOID | {"expert_shared_count": ("u32", 2)},
        rope="neox",
    ),
    "glm4moe": arch(
        f"n:attn_norm {QKVO} h:attn_q_norm h:attn_k_norm n:post_attention_norm shexp dense probs",
        keys=STATED,
        rope="neox",
        second_norm="post_attention_norm",
        gating="sigmoid",
        optional=("attn_q_norm", "attn_k_norm"),
    ),
    "minimax-m2": arch(
        f"n:attn_norm {QKVO} r:attn_q_norm r:attn_k_norm n:ffn_norm moe probs",
        keys=SIGMOID | {"expert_feed_forward_length": ("u32", "=n_ff")},
        rope="neox",
        normalize=True,
    ),
    "bailingmoe2": arch(
        "n:attn_norm qkv o h:attn_q_norm h:attn_k_norm n:ffn_norm shexp dense probs",
        keys=STATED | SIGMOID,
        rope="neox",
    ),
    "exaone-moe": arch(
        f"{HEADS} shexp dense probs",
        beside="n:output_norm output rope_freqs",
        sizes={"n_layers": 4},
        keys=STATED | SIGMOID | SHARED_WIDTH | WINDOW,
        rope="neox",
        rope_on_windows=True,
        windows=4,
    ),
    "smallthinker": arch(
        DENSE.replace(FFN, "moe"),
        sizes={"n_layers": 5},
        keys=WIDTH | WINDOW | SIGMOID,
        rope="neox",
        activation="relu",
        windows=4,
        full_layer="first",
        local_base=0,
        normalize=True,
    ),
    "afmoe": arch(
        f"n:attn_norm {QKVO} gates2 h:attn_q_norm h:attn_k_norm n:post_attention_norm n:ffn_norm shexp dense"
        " probs n:post_ffw_norm",
        sizes={"n_layers": 5},
        keys=STATED | WINDOW,
        rope="neox",
        no_rope_every=4,
        windows=4,
        local_base=0,
        gating="sigmoid",
        embedding_scale=0,
    ),
    "granite_swa": arch(
        f"n:attn_norm {QKVO} sinks n:ffn_norm moe shexp2",
        keys=WINDOWED
        | SHARED_WIDTH
        | {
            "logit_scale": ("f32", 4.0),
            "residual_scale": ("f32", 0.5),
            "embedding_scale": ("f32", 1.5),
            "attention.scale": ("f32", 0.2),
            "attention.rope_pattern": ("[bool]", "=alternating"),
        },
        windows=0,
        normalize=True,
    ),
    "mimo2": arch(
        f"n:attn_norm {QKVO} sinks n:ffn_norm dense probs",
        sizes={"key_dim": 12, "n_rot": 4},
        optional=("attn_sinks",),
        keys=WIDTH | WINDOWED | {"attention.value_scale": ("f32", 0.7)},
        rope="neox",
        windows=0,
        local_base=10000.0,
        plain_windows=True,
        gating="sigmoid",
        normalize=True,
    ),
    "step35": arch(
        f"n:attn_norm {QKVO} gates h:attn_q_norm h:attn_k_norm n:ffn_norm shexp dense probs",
        beside="n:output_norm output rope_freqs",
        sizes={"n_layers": 3},
        optional=("attn_gate", "attn_q_norm", "attn_k_norm"),
        keys=WIDTH
        | WINDOWED
        | SHARED_WIDTH
        | {
            "expert_weights_norm": ("bool", True),
            "swiglu_clamp_exp": ("[f32]", "=limits"),
            "swiglu_clamp_shexp": ("[f32]", "=limits"),
        },
        rope="neox",
        windows=0,
        local_base=10000.0,
        plain_windows=True,
        gating="sigmoid",
    ),
    "lfm2moe": arch(
        "n:attn_norm mixed h:attn_q_norm h:attn_k_norm n:ffn_norm dense probs",
        beside="n:token_embd_norm",
        sizes={"n_layers": 3},
        keys=WIDTH | SIGMOID | {"leading_dense_block_count": ("u32", 1)},
        mixed="shortconv",
        rope="neox",
        last_norm="token_embd_norm",
        normalize=True,
    ),
    "mistral4": arch(
        "n:attn_norm mla n:ffn_norm shexp dense",
        keys=WIDTH | {"leading_dense_block_count": ("u32", 1), "expert_shared_count": ("u32", 2)},
        sizes=LATENT,
    ),
    "qwen3vl": arch(f"{HEADS} {FFN}", keys={"rope.dimension_sections": ("[i32]", "=sections")}, rope="neox"),
    "qwen3vlmoe": arch(
        f"{HEADS} moe",
        keys=WIDTH | {"rope.dimension_sections": ("[i32]", "=sections")},
        rope="neox",
        normalize=True,
    ),
    # encoders
    "jina-bert-v3": encoder("qkv+b o+b n:attn_output_norm+b up+b down+b n:layer_output_norm+b"),
    "neo-bert": arch(
        "n:attn_norm qkv o n:ffn_norm up2 down",
        beside="n:enc.output_norm",
        last_norm="enc.output_norm",
        encoder=True,
    ),
    "eurobert": arch(DENSE, beside="n:output_norm", rope="neox", encoder=True),
    "modern-bert": arch(
        "m:attn_norm qkv o n:ffn_norm up2 down",
        beside="n:token_embd_norm n:output_norm",
        sizes={"n_layers": 4, "n_kv_heads": 4},
        keys=WINDOW,
        rope="neox",
        norm="layer",
        activation="gelu",
        windows=3,
        full_layer="first",
        centred=True,
        local_base=10000.0,
        plain_windows=True,
        encoder=True,
    ),
    "gemma-embedding": arch(
        f"n:attn_norm {QKVO} h:attn_q_norm h:attn_k_norm n:post_attention_norm n:ffn_norm {FFN}"
        " n:post_ffw_norm",
        beside="n:output_norm",
        sizes={"n_layers": 6},
        keys=WINDOW,
        rope="neox",
        activation="gelu",
        windows=6,
        centred=True,
        local_base=10000.0,
        plain_windows=True,
        embedding_scale=0,
        encoder=True,
    ),
    "t5encoder": arch(
        DENSE,
        beside="n:enc.output_norm",
        sizes={"n_kv_heads": 4},
        keys={
            "attention.relative_buckets_count": ("u32", 16),
            "attention.key_length": ("u32", "=key_dim"),
            "attention.value_length": ("u32", "=value_dim"),
        },
        rope="none",
        activation="gelu",
        last_norm="enc.output_norm",
        encoder=True,
    ),
    "deepseek32": arch(
        "n:attn_norm mla indexer n:ffn_norm shexp dense probs",
        keys=STATED | SIGMOID | INDEXER,
        sizes=LATENT,
    ),
    "glm-dsa": arch(
        "n:attn_norm mla indexer n:ffn_norm shexp dense probs",
        keys=STATED | INDEXER | {"attention.indexer.types": ("[bool]", [True, False, True])},
        sizes=LATENT,
        gating="sigmoid",
    ),
    # more
    "gemma4": arch(
        f"n:attn_norm {QKVO} h:attn_q_norm h:attn_k_norm n:post_attention_norm n:ffn_norm {FFN}"
        " n:post_ffw_norm layer_input output_scale",
        beside="n:output_norm layer_inputs rope_freqs",
        sizes={"n_layers": 6},
        keys=WINDOW
        | {
            "attention.sliding_window_pattern": ("[bool]", "=all_but_thirds"),
            "attention.key_length": ("u32", "=key_dim"),
            "attention.value_length": ("u32", "=value_dim"),
            "attention.key_length_swa": ("u32", "=half_dim"),
            "attention.value_length_swa": ("u32", "=half_dim"),
            "attention.shared_kv_layers": ("u32", "=n_shared"),
            "embedding_length_per_layer_input": ("u32", 6),
            "rope.dimension_count_swa": ("u32", "=half_dim"),
        },
        rope="neox",
        activation="gelu",
        windows=0,
        local_base=10000.0,
        plain_windows=True,
        normalize=True,
        embedding_scale=0,
        optional=("layer_output_scale",),
    ),
    "gemma3n": arch(
        f"n:attn_norm {QKVO} h:attn_q_norm h:attn_k_norm n:post_attention_norm n:ffn_norm {FFN}"
        " n:post_ffw_norm layer_input streams",
        beside="n:output_norm layer_inputs streams",
        sizes={"n_layers": 5, "compared": False},
        keys=WINDOW
        | {
            "altup.active_idx": ("u32", 0),
            "altup.num_inputs": ("u32", 4),
            "attention.shared_kv_layers": ("u32", 0),
            "embedding_length_per_layer_input": ("u32", 6),
        },
        rope="neox",
        activation="gelu",
        windows=5,
        local_base=10000.0,
        plain_windows=True,
        embedding_scale=0,
    ),
}
