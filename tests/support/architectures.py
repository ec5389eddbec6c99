"""What the files of each architecture hold, from published facts and apart from the library.

`zoo.py` makes files of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

SIZES = {
    *("n_layers", "n_embd", "n_heads", "n_kv_heads", "key_dim", "value_dim", "n_rot", "n_ff", "n_experts"),
    *("n_used", "expert_ff", "n_vocab", "seed", "q_rank", "kv_rank", "old_latent", "compared"),
}
"""Attributes of `zoo.Model` that rows give."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Facts of an architecture.

    Attributes:
        layer: tensors of a layer: norms (n:name; h: of heads, r: of rows, e: of each head), matrices; "+b" is
            a bias. "moe" is a router with its experts, "dense" a dense block or those, by the layer, "shexp"
            the shared expert of layers with experts, "probs" the bias of their choice, "mixed" attention or
            the recurrent mixer, by the layer, "single" Mamba-2, a feed-forward block or attention, in turn.
            b: is a norm without the suffix ".weight", m: one that the first layer lacks; "gates" are those of
            attended values, a head or ("gates2") an element each. "attn_sub" and "ffn_sub" are norms within
            blocks, "scales" are factors of products, "gain" a factor of each head of q, "wide" a dense block
            as wide as the hidden state, "hc" and "hc_head" the matrices of hyper-connections,
            "block_indexer", "pool_indexer" and "mean_indexer" selectors of blocks, "gate_mix" gates of
            streams, "ngrams" embeddings of n-grams and "ngram_table" their table, "compressed" DeepSeek-V4's
            attention and "hashed" its choice of experts, "values" a matrix or experts of values, "turned" the
            norm of rotated latent keys, "chunks" experts of groups of experts, "switch" adapters that tokens
            choose.
        beside: tensors beside the embeddings and the layers.
        sizes: of its model in `zoo.MODELS`, where they are not the usual ones.
        keys: metadata beside the usual ones, by key without prefix: a value, or (kind, value) where the value
            does not tell its kind; the value "@n_ff" is that attribute of the model.
        mixed: recurrent mixer of those layers of a hybrid that do not attend: every second.
        attention: tensors of those that do.
        gated: the rows of q hold a head's query, then its gate.
        rotates: q and k are rotated.
        norm: "rms" or "layer".
        optional: parts of names of tensors that a file may leave out, beside biases and the like.
    """

    layer: str
    beside: str = "n:output_norm output"
    sizes: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    mixed: str = ""
    attention: str = "q k v o"
    gated: bool = False
    rotates: bool = True
    norm: str = "rms"
    optional: tuple[str, ...] = ()
    encoder: bool = False

    @property
    def recurrent(self) -> bool:
        """Some layers are recurrent."""
        kinds = ("mamba", "rwkv", "single", "compressed")
        return bool(self.mixed) or any(kind in self.layer for kind in kinds)


# Parts of layers. The order of tensors is that of their random numbers.
QKVO, FFN = "q k v o", "gate up down"
DENSE = f"n:attn_norm {QKVO} n:ffn_norm {FFN}"
HEADS = f"n:attn_norm {QKVO} h:attn_q_norm h:attn_k_norm n:ffn_norm"
GPT = "n:attn_norm+b qkv+b o+b n:ffn_norm+b up+b down+b"

WORD = re.compile(r'(\S+?)=("[^"]*"|\S+)|\+(\w+)')


def rows(text: str) -> Iterator[tuple[str, str]]:
    """The name and the words of each row: a line "name: words", and the indented lines below it."""
    for row in re.findall(r"^\w.*(?:\n .*)*", text, re.MULTILINE):
        name, _, words = " ".join(row.split()).partition(": ")
        yield name, words


def values_of(words: str) -> dict[str, Any]:
    """The values of words: ``name=value``, a literal or an "@" before an attribute, and ``+group``."""
    found: dict[str, Any] = {}
    for name, value, group in WORD.findall(words):
        found |= GROUPS[group] if group else {name: value if value[0] == "@" else ast.literal_eval(value)}
    return found


def architecture(words: str) -> Architecture:
    """An architecture from the tensors of a layer, in quotes, and words: its facts, sizes and metadata."""
    layer, _, rest = words[1:].partition('"')
    given = values_of(rest)
    names = {each.name for each in fields(Architecture)}
    facts = {name: given.pop(name) for name in names & given.keys()}
    facts["optional"] = tuple(facts.get("optional", "").split())
    sizes = {name: given.pop(name) for name in SIZES & given.keys()}
    return Architecture(layer=layer, sizes=sizes, keys=given, **facts)


GROUPS: dict[str, dict[str, Any]] = {}
"""Values by the name of a group; a group may have those of an earlier one."""
for _name, _words in rows("""
gpt: norm="layer" beside="n:output_norm+b output"
encoder: norm="layer" encoder=True beside="token_types n:token_embd_norm+b"
yarn: rope.scaling.type="yarn" rope.scaling.factor=4.0 rope.scaling.original_context_length=32
many_heads: n_kv_heads=4
latent: key_dim=20 value_dim=12 n_rot=8 n_layers=3
width: expert_feed_forward_length=@expert_ff
shared_width: expert_shared_feed_forward_length=20
stated: +width expert_shared_count=1 leading_dense_block_count=1 expert_weights_norm=True
    expert_weights_scale=1.7
sigmoid: expert_gating_func=2
window: attention.sliding_window=6
windowed: +window attention.sliding_window_pattern=@alternating
indexer: attention.indexer.head_count=8 attention.indexer.key_length=64 attention.indexer.top_k=9
hyper: hyper_connection.count=3 hyper_connection.epsilon=0.01
delta: full_attention_interval=2 ssm.conv_kernel=4 ssm.state_size=6 ssm.group_count=2 ssm.time_step_rank=4
    ssm.inner_size=24
kda: kda.head_dim=6 kda.gate_lower_bound=-5.0 ssm.conv_kernel=4 rope.dimension_count=@n_rot
epsilon: attention.layer_norm_epsilon=0.1
"""):
    GROUPS[_name] = values_of(_words)

ROWS = f"""
llama: "{DENSE}"
mistral3: "{DENSE}"
llama4: "n:attn_norm q k v o n:ffn_norm shexp dense" +width interleave_moe_layer_step=2 n_layers=4
smollm3: "{DENSE}" n_layers=4
internlm2: "{DENSE}"
exaone: "{DENSE}"
granite: "{DENSE}" logit_scale=4.0 residual_scale=0.5
granitemoe: "n:attn_norm q k v o n:ffn_norm moe" logit_scale=4.0 embedding_scale=1.5
minicpm: "{DENSE}"
dbrx: "n:attn_norm qkv o n:attn_output_norm moe" attention.clamp_kqv=1.0 norm="layer"
grok: "n:attn_norm q k v o n:attn_output_norm n:ffn_norm moe n:layer_output_norm"
qwen2: "n:attn_norm q+b k+b v+b o n:ffn_norm gate up down"
qwen2moe: "n:attn_norm q+b k+b v+b o n:ffn_norm moe shexp shgate" +width
    expert_shared_feed_forward_length=20 n_experts=6 n_used=3 seed=70
qwen2vl: "n:attn_norm q+b k+b v+b o n:ffn_norm gate up down" rope.dimension_sections=[1,1,1,0]
qwen3: "{HEADS} {FFN}"
qwen3moe: "{HEADS} moe" +width
gemma: "{DENSE}" beside="n:output_norm"
gemma2: "n:attn_norm q k v o n:post_attention_norm n:ffn_norm gate up down n:post_ffw_norm"
    beside="n:output_norm" +window
gemma3: "n:attn_norm q k v o h:attn_q_norm h:attn_k_norm n:post_attention_norm n:ffn_norm gate up down
    n:post_ffw_norm" beside="n:output_norm" n_layers=6 +window
phi2: "n:attn_norm+b qkv+b o+b up+b down+b" +gpt beside="n:output_norm+b output+b"
phi3: "n:attn_norm qkv o n:ffn_norm up2 down" beside="n:output_norm output factors"
    rope.scaling.original_context_length=512
phimoe: "n:attn_norm+b q+b k+b v+b o+b n:ffn_norm+b moe" beside="n:output_norm+b output+b factors"
    rope.scaling.original_context_length=64
command-r: "n:attn_norm q k v o gate up down" beside="n:output_norm" logit_scale=0.25 norm="layer"
cohere2: "n:attn_norm q k v o gate up down" beside="n:output_norm" n_layers=4 +window logit_scale=0.25
    norm="layer"
deepseek: "n:attn_norm q k v o n:ffn_norm shexp dense" +width leading_dense_block_count=1
    expert_shared_count=2
deepseek2: "n:attn_norm mla n:ffn_norm shexp dense" +width leading_dense_block_count=1 expert_shared_count=2
    +latent seed=71
minicpm3: "n:attn_norm mla n:ffn_norm gate up down" +latent old_latent=True seed=72
gpt2: "{GPT}" +gpt beside="position_embd n:output_norm+b" rotates=False
starcoder: "{GPT}" +gpt beside="position_embd n:output_norm+b output" rotates=False
starcoder2: "n:attn_norm+b q+b k+b v+b o+b n:ffn_norm+b up+b down+b" +gpt
falcon: "n:attn_norm+b qkv o up down" +gpt
bloom: "{GPT}" +gpt beside="n:token_embd_norm+b n:output_norm+b" rotates=False
mpt: "n:attn_norm qkv o n:ffn_norm up down" +gpt beside="n:output_norm" attention.max_alibi_bias=8.0
    rotates=False optional="ffn_norm.weight"
gptneox: "{GPT}" +gpt use_parallel_residual=True
stablelm: "n:attn_norm+b q k v o n:ffn_norm+b gate up down" +gpt optional="ffn_norm.weight"
nemotron: "n:attn_norm+b q k v o n:ffn_norm+b up down" +gpt
orion: "n:attn_norm+b q k v o n:ffn_norm+b gate up down" +gpt
gpt-oss: "n:attn_norm q+b k+b v+b o+b sinks n:post_attention_norm moe+b" +width +window
olmo: "q k v o gate up down" beside="" norm="layer"
olmo2: "q k v o r:attn_q_norm r:attn_k_norm n:post_attention_norm gate up down n:post_ffw_norm"
olmoe: "n:attn_norm q k v o r:attn_q_norm r:attn_k_norm n:ffn_norm moe" n_kv_heads=4 n_experts=6 n_used=3
    seed=73
chatglm: "n:attn_norm qkv+b o n:ffn_norm up2 down"
glm4: "n:attn_norm q k v o n:post_attention_norm n:ffn_norm up2 down n:post_ffw_norm"
bert: "q+b k+b v+b o+b n:attn_output_norm+b up+b down+b n:layer_output_norm+b" +encoder
    beside="position_embd token_types n:token_embd_norm+b" rotates=False
nomic-bert: "qkv o n:attn_output_norm+b gate up down n:layer_output_norm+b" +encoder
nomic-bert-moe: "qkv+b o+b n:attn_output_norm+b dense n:layer_output_norm+b" +encoder moe_every_n_layers=2
jina-bert-v2: "q+b k+b v+b o+b n:attn_output_norm+b gate up down+b n:layer_output_norm+b" +encoder
    rotates=False optional="ffn_gate"
mamba: "n:attn_norm mamba" rotates=False
mamba2: "n:attn_norm mamba2" rotates=False
jamba: "n:attn_norm mixed n:ffn_norm dense" mixed="mamba" rotates=False
granitehybrid: "n:attn_norm mixed n:ffn_norm gate up down" mixed="mamba2" logit_scale=4.0 residual_scale=0.5
    attention.scale=0.4
lfm2: "n:attn_norm mixed h:attn_q_norm h:attn_k_norm n:ffn_norm gate up down" beside="n:token_embd_norm"
    mixed="shortconv"
qwen3next: "n:attn_norm mixed h:attn_q_norm h:attn_k_norm n:post_attention_norm moe shexp shgate" +width
    +delta expert_shared_feed_forward_length=20 mixed="delta" gated=True
qwen35: "n:attn_norm mixed h:attn_q_norm h:attn_k_norm n:post_attention_norm gate up down" +delta
    rope.dimension_sections=[2,1,1,0] mixed="delta" gated=True
# llama-cpp-python does not know it
clef: "n:attn_norm mixed h:attn_q_norm h:attn_k_norm n:post_attention_norm gate up down" +delta
    rope.dimension_sections=[2,1,1,0] compared=False mixed="delta" gated=True
qwen35moe: "n:attn_norm mixed h:attn_q_norm h:attn_k_norm n:post_attention_norm moe shexp shgate" +width
    +delta expert_shared_feed_forward_length=20 feed_forward_length=0 rope.dimension_sections=[2,1,1,0]
    mixed="delta" gated=True
kimi-linear: "n:attn_norm mixed n:ffn_norm shexp dense probs" +latent q_rank=0 seed=75 +width
    leading_dense_block_count=1 expert_shared_count=2 expert_gating_func=2 kda.head_dim=6 ssm.conv_kernel=4
    rope.dimension_count=@n_rot mixed="kda" attention="mla" rotates=False
nemotron_h: "n:attn_norm single" +epsilon n_layers=3 rotates=False
nemotron_h_moe: "n:attn_norm single" +epsilon +width expert_count=@n_experts expert_used_count=@n_used
    expert_shared_feed_forward_length=20 expert_weights_norm=True n_layers=3 n_experts=6 rotates=False
falcon-h1: "n:attn_norm q k v o mamba2 b:ffn_norm gate up down" optional="ssm_norm"
plamo2: "n:attn_norm mixed e:attn_q_norm e:attn_k_norm b:post_attention_norm n:ffn_norm up2 down
    b:post_ffw_norm" ssm.group_count=0 ssm.time_step_rank=2 mixed="plamo2" attention="qkv o"
rwkv6: "n:attn_norm+b rwkv6 n:attn_norm_2+b" beside="n:token_embd_norm+b n:output_norm+b output"
    rotates=False norm="layer"
rwkv7: "n:attn_norm+b rwkv7 n:attn_norm_2+b" beside="n:token_embd_norm+b n:output_norm+b output" n_embd=64
    seed=74 rotates=False norm="layer"
# Llama with differences
xverse: "{DENSE}"
arcee: "n:attn_norm {QKVO} n:ffn_norm up down"
ernie4_5: "{DENSE}"
# numbers of llama.cpp are those of pairs with a projector file (tests/models/media)
paddleocr: "{DENSE}" rope.dimension_sections=[1,1,1,0] compared=False
seed_oss: "n:attn_norm q+b k+b v+b o n:post_attention_norm gate up down"
baichuan: "{DENSE}" rotates=False
qwen: "n:attn_norm qkv+b o n:ffn_norm gate up down" +many_heads feed_forward_length=@twice_ff
codeshell: "{GPT}" +gpt optional="token_embd"
jais2: "n:attn_norm+b q+b k+b v+b o+b n:ffn_norm+b up+b down+b" +gpt
hunyuan-dense: "{HEADS} {FFN}" rope.scaling.alpha=9.0
exaone4: "{QKVO} h:attn_q_norm h:attn_k_norm n:post_attention_norm {FFN} n:post_ffw_norm"
    beside="n:output_norm rope_freqs"
openelm: "n:attn_norm qkv o h:attn_q_norm h:attn_k_norm n:ffn_norm gate up down" beside="n:output_norm"
plamo3: "n:attn_norm qkv o h:attn_q_norm h:attn_k_norm b:post_attention_norm n:ffn_norm up2 down
    b:post_ffw_norm" n_layers=8 +window
apertus: "{HEADS} up down" beside="n:output_norm output rope_freqs" /xielu.alpha_p=-0.3 /xielu.alpha_n=0.6
    /xielu.beta=0.5 /xielu.eps=-1e-06
# with experts
ernie4_5-moe: "n:attn_norm {QKVO} n:ffn_norm shexp dense probs" +width +shared_width
    leading_dense_block_count=1 interleave_moe_layer_step=1
hunyuan-moe: "{HEADS} moe shexp" +shared_width expert_feed_forward_length=7 expert_shared_count=1
dots1: "{HEADS} shexp dense probs" +many_heads +stated +sigmoid expert_shared_count=2
glm4moe: "n:attn_norm {QKVO} h:attn_q_norm h:attn_k_norm n:post_attention_norm shexp dense probs" +stated
    optional="attn_q_norm attn_k_norm"
minimax-m2: "n:attn_norm {QKVO} r:attn_q_norm r:attn_k_norm n:ffn_norm moe probs" +sigmoid
    expert_feed_forward_length=@n_ff
bailingmoe2: "n:attn_norm qkv o h:attn_q_norm h:attn_k_norm n:ffn_norm shexp dense probs" +stated +sigmoid
exaone-moe: "{HEADS} shexp dense probs" beside="n:output_norm output rope_freqs" n_layers=4 +stated +sigmoid
    +shared_width +window
smallthinker: "n:attn_norm {QKVO} n:ffn_norm moe" n_layers=5 +width +window +sigmoid
afmoe: "n:attn_norm {QKVO} gates2 h:attn_q_norm h:attn_k_norm n:post_attention_norm n:ffn_norm shexp dense
    probs n:post_ffw_norm" n_layers=5 +stated +window
granite_swa: "n:attn_norm {QKVO} sinks n:ffn_norm moe shexp2" +windowed +shared_width logit_scale=4.0
    residual_scale=0.5 embedding_scale=1.5 attention.scale=0.2 attention.rope_pattern=@alternating
mimo2: "n:attn_norm {QKVO} sinks n:ffn_norm dense probs" key_dim=12 n_rot=4 optional="attn_sinks" +width
    +windowed attention.value_scale=0.7
step35: "n:attn_norm {QKVO} gates h:attn_q_norm h:attn_k_norm n:ffn_norm shexp dense probs"
    beside="n:output_norm output rope_freqs" n_layers=3 optional="attn_gate attn_q_norm attn_k_norm" +width
    +windowed +shared_width expert_weights_norm=True swiglu_clamp_exp=@limits swiglu_clamp_shexp=@limits
lfm2moe: "n:attn_norm mixed h:attn_q_norm h:attn_k_norm n:ffn_norm dense probs" beside="n:token_embd_norm"
    n_layers=3 +width +sigmoid leading_dense_block_count=1 mixed="shortconv"
mistral4: "n:attn_norm mla n:ffn_norm shexp dense" +width leading_dense_block_count=1 expert_shared_count=2
    +latent
qwen3vl: "{HEADS} {FFN}" rope.dimension_sections=@sections
qwen3vlmoe: "{HEADS} moe" +width rope.dimension_sections=@sections
# encoders
jina-bert-v3: "qkv+b o+b n:attn_output_norm+b up+b down+b n:layer_output_norm+b" +encoder
neo-bert: "n:attn_norm qkv o n:ffn_norm up2 down" beside="n:enc.output_norm" encoder=True
eurobert: "{DENSE}" beside="n:output_norm" encoder=True
modern-bert: "m:attn_norm qkv o n:ffn_norm up2 down" beside="n:token_embd_norm n:output_norm" n_layers=4
    n_kv_heads=4 +window norm="layer" encoder=True
gemma-embedding: "n:attn_norm {QKVO} h:attn_q_norm h:attn_k_norm n:post_attention_norm n:ffn_norm {FFN}
    n:post_ffw_norm" beside="n:output_norm" n_layers=6 +window encoder=True
t5encoder: "{DENSE}" beside="n:enc.output_norm" n_kv_heads=4 attention.relative_buckets_count=16
    attention.key_length=@key_dim attention.value_length=@value_dim rotates=False encoder=True
deepseek32: "n:attn_norm mla indexer n:ffn_norm shexp dense probs" +stated +sigmoid +indexer +latent
glm-dsa: "n:attn_norm mla indexer n:ffn_norm shexp dense probs" +stated +indexer
    attention.indexer.types=[True,False,True] +latent
# more
gemma4: "n:attn_norm {QKVO} h:attn_q_norm h:attn_k_norm n:post_attention_norm n:ffn_norm {FFN}
    n:post_ffw_norm layer_input output_scale" beside="n:output_norm layer_inputs rope_freqs" n_layers=6
    +window attention.sliding_window_pattern=@all_but_thirds attention.key_length=@key_dim
    attention.value_length=@value_dim attention.key_length_swa=@half_dim
    attention.value_length_swa=@half_dim attention.shared_kv_layers=@n_shared
    embedding_length_per_layer_input=6 rope.dimension_count_swa=@half_dim optional="layer_output_scale"
gemma3n: "n:attn_norm {QKVO} h:attn_q_norm h:attn_k_norm n:post_attention_norm n:ffn_norm {FFN}
    n:post_ffw_norm layer_input streams" beside="n:output_norm layer_inputs streams" n_layers=5
    compared=False +window altup.active_idx=0 altup.num_inputs=4 attention.shared_kv_layers=0
    embedding_length_per_layer_input=6
# still more
maincoder: "{HEADS} {FFN}" beside="n:output_norm"
mellum: "{HEADS} moe" n_layers=4 +width +window
nanbeige: "{DENSE}" beside="n:output_norm output rope_freqs" num_loops=2
talkie: "q k v o gain gate up down output_scale scales" beside="output" logit_scale=0.5 optional=".scale"
maple: "{HEADS} moe" n_rot=4 +width +windowed swiglu_clamp_exp=@tight_limits
hrm_text: "q k v o gates2 gate up down" beside="output z_l_init" n_layers=3 hrm.layers_per_stack=1
    hrm.h_cycles=1 hrm.l_cycles=@low_passes embedding_scale=1.5
bailingmoe: "n:attn_norm {QKVO} n:ffn_norm moe shexp" +width expert_shared_count=2 expert_weights_norm=True
    expert_weights_scale=1.7
grovemoe: "{HEADS} moe chunks" +width experts_per_group=@half_group expert_chunk_feed_forward_length=12
    expert_group_scale=0.7
graniteswitch: "n:attn_norm qkv o n:ffn_norm gate up down switch" beside="n:output_norm" logit_scale=4.0
    residual_scale=0.5 adapters.count=2 adapters.lora_rank=3 adapters.token_ids_activate=("[i32]",[3,40])
    adapters.token_ids_substitute=("[i32]",[5,41])
pangu-embedded: "n:attn_norm q+b k+b v+b o+b n:ffn_norm gate up down"
plm: "n:attn_norm mla n:ffn_norm up down" beside="n:output_norm" +latent old_latent=True q_rank=0
arctic: "n:attn_norm q k v o n:ffn_norm wide n:ffn_norm_exps moe"
deci: "{DENSE}" beside="n:output_norm output rope_freqs"
bitnet: "n:attn_norm q k v attn_sub o n:ffn_norm gate up ffn_sub down scales" beside="n:output_norm"
    optional=".scale"
jais: "n:attn_norm+b qkv+b o+b n:ffn_norm+b gate+b up+b down+b" +gpt attention.max_alibi_bias=8.0
    rotates=False
refact: "{DENSE}" rotates=False
plamo: "n:attn_norm q k v o gate up down"
rwkv6qwen2: "n:attn_norm rwkv6qwen2 n:ffn_norm gate up down" beside="n:output_norm output"
    token_shift_count=1 attention.head_count_kv=@half_rwkv_heads rotates=False
arwkv7: "n:attn_norm arwkv7 n:ffn_norm gate up down" n_embd=64 token_shift_count=1 rotates=False
    optional="time_mix_g1 time_mix_ln"
# lowest float32 numbers, which float16 does not hold
chameleon: "n:attn_norm q k v o e:attn_q_norm+b e:attn_k_norm+b n:ffn_norm gate up down" n_vocab=8200
    compared=False beside="n:output_norm" optional="norm.bias"
hunyuan_vl: "{HEADS} {FFN}" beside="n:output_norm" rope.scaling.alpha=9.0 rope.dimension_sections=[1,1,1,1]
deepseek2-ocr: "n:attn_norm q k v o n:ffn_norm shexp dense" +many_heads +width leading_dense_block_count=1
    expert_shared_count=2 rope.freq_base=10000.0
cogvlm: "n:attn_norm qkv o n:ffn_norm gate up down vis" +many_heads optional="vis_"
# llama-cpp-python does not know it
gemma-embedding2: "n:attn_norm {QKVO} h:attn_q_norm h:attn_k_norm n:post_attention_norm n:ffn_norm {FFN}
    n:post_ffw_norm layer_input output_scale" beside="n:output_norm layer_projection narrow_output"
    n_layers=6 compared=False +window attention.key_length=@key_dim attention.value_length=@value_dim
    attention.key_length_swa=@half_dim attention.value_length_swa=@half_dim
    attention.sliding_window_pattern=@all_but_thirds embedding_length_per_layer_input=6
    embedding_length_out=20 rope.dimension_count_swa=@half_dim encoder=True optional="layer_output_scale"
# llama-cpp-python does not know the following ones
laguna: "{HEADS} gates shexp dense probs" n_layers=4 n_rot=4 compared=False +stated +window
    rope.dimension_count_swa=@half_dim
spark2_5: "n:attn_norm qkv o gates n:ffn_norm gate up down" compared=False +windowed
    rope.dimension_count_swa=@half_dim
hy_v4: "hc n:attn_norm mla sinks gates2 indexer n:ffn_norm shexp dense probs" beside="n:output_norm output
    hc_head" +latent compared=False +stated +sigmoid +indexer +hyper
    attention.indexer.types=[True,False,True,True,False] hyper_connection.magnitude=1.7 swiglu_clamp_exp=0.6
hy_v3: "{HEADS} shexp dense bare_probs" compared=False +stated
cohere2moe: "n:attn_norm q k v o shexp dense" beside="n:output_norm" n_layers=4 compared=False +stated
    +window logit_scale=0.25 norm="layer"
dots3note: "n:attn_norm mla turned gates indexer n:ffn_norm shexp dense probs" +latent compared=False
    +stated +sigmoid +indexer +window attention.sliding_window_pattern=@every_second
    attention.indexer.types=@alternating attention.kv_lora_rank_swa=@local_rank
    attention.key_length_swa=@local_row attention.value_length_swa=@local_rank
    attention.key_length_mla_swa=@local_key attention.value_length_mla_swa=10 rope.freq_base_swa=50.0
minimax-01: "n:attn_norm mixed n:ffn_norm moe" compared=False residual_scale=0.7 full_attention_interval=2
    mixed="lightning"
muse-glimmer: "n:attn_norm q k v o gates2 h:attn_q_norm h:attn_k_norm n:post_attention_norm n:ffn_norm gate
    up down n:post_ffw_norm" n_layers=4 compared=False +window logit_scale=0.6
k2-horizon: "n:attn_norm q k values o gates2 r:attn_q_norm r:attn_k_norm n:ffn_norm shexp dense probs"
    n_layers=3 n_rot=4 compared=False +stated attention.group_norm_groups=@slices
    attention.value_expert_count=5 attention.value_expert_used_count=2 optional="attn_gate attn_q_norm
    attn_k_norm"
minimax-m3: "{HEADS} shexp dense probs block_indexer" n_rot=4 compared=False +stated +sigmoid
    attention.indexer.head_count=@n_kv_heads attention.indexer.key_length=@wide_key
    attention.indexer.top_k=3 attention.indexer.block_size=3 attention.indexer.local_blocks=1
kimi-k3: "n:attn_res_score n:ffn_res_score n:attn_norm mixed gates2 n:ffn_norm shexp dense probs"
    beside="n:output_norm output n:output_res_score" +latent n_layers=4 compared=False +stated +sigmoid +kda
    attn_res.block_size=2 activation.situ_beta=1.5 activation.situ_linear_beta=2.0 expert_latent_length=12
    mixed="kda" attention="mla" rotates=False optional="attn_gate ffn_routed_norm"
bailingmoe3: "n:attn_norm mixed gates n:ffn_norm shexp dense probs" +latent compared=False +stated +sigmoid
    +kda kda.safe_gate=True swiglu_clamp_exp=@limits swiglu_clamp_shexp=@tight_limits mixed="kda"
    attention="mla"
glm5-next: "hc n:attn_norm mixed pool_indexer n:ffn_norm shexp dense probs" +latent n_layers=4 n_rot=0
    compared=False +stated +kda +hyper attention.indexer.head_count=8 attention.indexer.key_length=10
    attention.indexer.top_k=9 attention.indexer.kpool=3
    attention.indexer.types=[False,True,False,True,False,False] attention.layer_norm_epsilon=0.3
    hyper_connection.count=4 hyper_connection.sinkhorn_iterations=3 swiglu_clamp_exp=0.6 mixed="kda"
    attention="mla" rotates=False
qwen4exp: "ngrams gate_mix mixed h:attn_q_norm h:attn_k_norm mean_indexer moe shexp shgate" beside="output
    gate_mix ngram_table" n_layers=4 n_rot=4 compared=False +width +shared_width +delta
    feed_forward_length=0 rope.dimension_sections=[2,1,1,0] hyper_connection.count=3
    hyper_connection.low_rank=6 attention.compress_ratios=@block_sizes attention.indexer.head_count=8
    attention.indexer.key_length=@wide_key attention.indexer.top_k=9 ple.layers=[2] ple.ngram_size=3
    ple.heads_per_ngram=1 ple.conv_kernel=3 ple.eos_token_id=9
    ple.layer_multipliers=("[u64]",[20461361936281,11400714819323,9650029242287])
    ple.head_vocab_sizes=("[u64]",[31,37]) ple.head_offsets=("[u64]",[0,31])
    embedding_length_per_layer_input=@half_width mixed="delta" gated=True
deepseek4: "hc n:attn_norm compressed sinks n:ffn_norm moe shexp hashed" beside="n:output_norm output
    hc_head" n_layers=3 n_kv_heads=1 n_rot=4 compared=False +width +window +hyper attention.head_count_kv=1
    attention.q_lora_rank=@q_rank attention.output_group_count=2 attention.output_lora_rank=5
    attention.compress_rope_freq_base=1000.0 attention.compress_ratios=[4,0,128,4,4]
    attention.indexer.head_count=8 attention.indexer.key_length=@wide_key attention.indexer.top_k=3
    expert_shared_count=1 expert_weights_norm=True expert_weights_scale=1.7 expert_gating_func=4
    hash_layer_count=1 hyper_connection.count=4 hyper_connection.sinkhorn_iterations=3 swiglu_clamp_exp=0.6
llama-embed: "{DENSE}" beside="n:output_norm rope_freqs" encoder=True
"""
ARCHITECTURES = {name: architecture(words) for name, words in rows(ROWS)}
ARCHITECTURES["glm5next"] = ARCHITECTURES["glm5-next"]
