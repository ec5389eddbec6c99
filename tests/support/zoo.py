"""Small random models of every architecture, with whatever options files may have, as GGUF bytes.

What an architecture is comes from `architectures.py`. The same name gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import gguf
import numpy as np

from oxillama.base.formats import FORMATS
from tests.support import gguf_writer as ggufwriter
from tests.support.architectures import ARCHITECTURES, GROUPS, Architecture, rows, values_of

VOCAB = 48

ENCODERS = tuple(name for name, facts in ARCHITECTURES.items() if facts.encoder)
RECURRENT = tuple(name for name, facts in ARCHITECTURES.items() if facts.recurrent)
KINDS = {bool: "bool", int: "u32", float: "f32", str: "str"}


def of_kind(key: str, value: Any) -> tuple[str, Any] | None:
    """A value of metadata with its kind, unless it has one."""
    if value is None or isinstance(value, tuple):
        return value
    if not isinstance(value, list):
        return KINDS[type(value)], value
    return "[i32]" if key == "rope.dimension_sections" else f"[{KINDS[type(value[0])]}]", value


BY_INTERVAL = {"delta": 4, "lightning": 8}
"""Mixers of hybrids in which every so many layers one attends, where the file does not say."""
UNGATED = ("nomic-bert-moe",)  # their experts have no gate
FEED = ("gate", "up", "down")


@dataclass
class Model:
    """Sizes, and what differs from the usual file of an architecture.

    ``layer``, ``beside`` and ``extra`` name tensors, in the words of `Architecture`; ``keys`` are metadata to
    add, to change or, with None, to take away, by key without prefix: (kind, value), or a value of a usual
    kind.
    """

    architecture: str
    n_layers: int = 2
    n_embd: int = 32
    n_heads: int = 4
    n_kv_heads: int = 2
    key_dim: int = 8
    value_dim: int = 8
    n_rot: int = 8
    n_ff: int = 40
    n_experts: int = 4
    n_used: int = 2
    expert_ff: int = 24
    context: int = 256
    n_vocab: int = VOCAB
    layer: str | None = None
    beside: str | None = None
    extra: str = ""
    keys: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    q_rank: int = 20
    kv_rank: int = 16
    old_latent: bool = False
    heads_of_layers: tuple[tuple[int, int, int], ...] = ()  # query heads, key heads, width of each layer
    compared: bool = True  # with llama.cpp: it cannot load some sound files, and no scores are recorded

    def __post_init__(self) -> None:
        self.keys = {key: of_kind(key, value) for key, value in self.keys.items()}

    @property
    def facts(self) -> Architecture:
        return ARCHITECTURES[self.architecture]

    def metadata(self) -> dict[str, tuple[str, Any]]:
        """By key without prefix."""
        facts, u = self.facts, "u32"
        eps = "layer_norm_epsilon" if facts.norm == "layer" else "layer_norm_rms_epsilon"
        found: dict[str, tuple[str, Any] | None] = {
            "block_count": (u, self.n_layers),
            "context_length": (u, self.context),
            "embedding_length": (u, self.n_embd),
            "feed_forward_length": (u, self.n_ff),
            "attention.head_count": (u, self.n_heads),
            "attention.head_count_kv": (u, self.n_kv_heads),
            f"attention.{eps}": ("f32", 1e-3),
            "vocab_size": (u, self.n_vocab),
        }
        if self.key_dim != self.n_embd // self.n_heads:
            found["attention.key_length"] = (u, self.key_dim)
            found["attention.value_length"] = (u, self.value_dim)
        tokens = {token.removesuffix("+b") for token in self.parts().split()}
        hybrid = self.latent and bool(facts.mixed)
        if facts.recurrent and "compressed" not in tokens:
            found |= self._recurrent_metadata()
        if facts.rotates:
            found["rope.dimension_count"] = (u, self.n_rot)
            found["rope.freq_base"] = ("f32", 100.0)
        if tokens & {"moe", "dense", "both"}:
            found["expert_count"] = (u, self.n_experts)
            found["expert_used_count"] = (u, self.n_used)
        if facts.keys.get("expert_feed_forward_length") != "@expert_ff":
            self.expert_ff = self.n_ff
        if self.latent:
            found["attention.q_lora_rank"] = (u, self.q_rank)
            found["attention.kv_lora_rank"] = (u, self.kv_rank)
            if self.old_latent:
                found["attention.head_count_kv"] = (u, self.n_heads)
                found["attention.key_length"] = (u, self.key_dim)
                found["attention.value_length"] = (u, self.value_dim)
            else:
                if not hybrid:
                    found["attention.head_count_kv"] = (u, 1)
                found["attention.key_length"] = (u, self.kv_rank + self.n_rot)
                found["attention.value_length"] = (u, self.kv_rank)
                found["attention.key_length_mla"] = (u, self.key_dim)
                found["attention.value_length_mla"] = (u, self.value_dim)
        for key, value in facts.keys.items():
            of_model = isinstance(value, str) and value.startswith("@")
            found[key] = of_kind(key, getattr(self, value[1:]) if of_model else value)
        if facts.encoder:
            found["attention.causal"] = ("bool", False)
            found["pooling_type"] = (u, 1)
        if self.heads_of_layers:
            for at, key in enumerate(
                ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
            ):
                found[key] = ("[u32]", [sizes[at] for sizes in self.heads_of_layers])
        found |= self.keys
        return {key: pair for key, pair in found.items() if pair is not None}

    @property
    def head_size(self) -> int:
        """Of RWKV: the largest up to 16 that divides the width; 64 in version 7, if it fits, as published."""
        if self.architecture in ("rwkv7", "arwkv7") and self.n_embd % 64 == 0:
            return 64
        return max(n for n in range(1, 17) if self.n_embd % n == 0)

    @property
    def latent(self) -> bool:
        """Whether its attention is latent."""
        return "mla" in f"{self.parts()} {self.facts.attention}".split()

    def full_key(self, key: str) -> str:
        """A key of `metadata` as in the file: one that begins with a slash has no architecture before it."""
        return key[1:] if key[0] == "/" else f"{self.architecture}.{key}"

    @property
    def twice_ff(self) -> int:
        return 2 * self.n_ff

    @property
    def alternating(self) -> list[bool]:
        """Every second layer, from the first on."""
        return [i % 2 == 0 for i in range(self.n_layers)]

    @property
    def block_sizes(self) -> list[int]:
        """Tokens of the blocks of each layer, 0 in the first of those that attend."""
        return [3 * (i > 1) for i in range(self.n_layers)]

    @property
    def half_width(self) -> int:
        """Half a hidden state."""
        return self.n_embd // 2

    @property
    def wide_key(self) -> int:
        """Width of a selector's key, of which a part rotates."""
        return self.n_rot + 6

    @property
    def slices(self) -> int:
        """Slices of a hidden state that are normed apart."""
        return next(n for n in (4, 3, 2, 1) if self.n_embd % n == 0)

    @property
    def every_second(self) -> list[bool]:
        """Every second layer, from the second on."""
        return [i % 2 == 1 for i in range(self.n_layers)]

    @property
    def local_rank(self) -> int:
        """Of latent attention in layers with a window."""
        return self.kv_rank + 3

    @property
    def local_row(self) -> int:
        """Numbers of such a layer's cached row."""
        return self.local_rank + self.n_rot

    @property
    def local_key(self) -> int:
        """Width of such a layer's key."""
        return self.n_rot + 5

    @property
    def all_but_thirds(self) -> list[bool]:
        """All layers but every third."""
        return [i % 3 < 2 for i in range(self.n_layers)]

    @property
    def half_dim(self) -> int:
        """Half a head, even."""
        return max(2, self.key_dim // 4 * 2)

    @property
    def n_shared(self) -> int:
        """Layers that share keys and values: those behind the first three."""
        return max(0, self.n_layers - 3)

    @property
    def limits(self) -> list[float]:
        """A number for each layer, 0 for the first."""
        return [0.5 * i for i in range(self.n_layers)]

    @property
    def tight_limits(self) -> list[float]:
        """A number above 0 for each layer."""
        return [0.5 + 0.25 * i for i in range(self.n_layers)]

    @property
    def low_passes(self) -> int:
        """Passes through the low one of two stacks of one layer, in one cycle."""
        return self.n_layers - 1

    @property
    def half_group(self) -> int:
        """Experts of a group: 2, if their number is even."""
        return 2 - self.n_experts % 2

    @property
    def half_rwkv_heads(self) -> int:
        """Key heads: half of all heads, if their number is even."""
        heads = self.n_embd // self.head_size
        return heads // 2 if heads % 2 == 0 else heads

    @property
    def n_blocks(self) -> int:
        """Layers that the file has, which may be fewer than those that run."""
        stack = self.metadata().get("hrm.layers_per_stack")
        return 2 * stack[1] if stack else self.n_layers

    @property
    def sections(self) -> list[int]:
        """Pairs that rotate with time, height and width, and none beside them."""
        pairs = self.n_rot // 2
        return [pairs - pairs // 3 * 2, pairs // 3, pairs // 3, 0]

    def dims_of(self, i: int, metadata: dict[str, tuple[str, Any]]) -> tuple[int, int]:
        """Widths of a key and of a value in layer i."""
        windowed = metadata.get("attention.sliding_window_pattern", ("", 0))[1]
        if "attention.key_length_swa" not in metadata or not isinstance(windowed, list) or not windowed[i]:
            return self.key_dim, self.value_dim
        return metadata["attention.key_length_swa"][1], metadata["attention.value_length_swa"][1]

    def attends(self, i: int) -> bool:
        """Whether layer i of a hybrid has attention."""
        if self.facts.mixed not in BY_INTERVAL:
            return i % 2 == 1
        stated = self.metadata()
        recurrent, every = stated.get("attention.recurrent_layers"), stated.get("full_attention_interval")
        if recurrent is not None:
            return not recurrent[1][i]
        return (i + 1) % (every[1] if every else BY_INTERVAL[self.facts.mixed]) == 0

    def _recurrent_metadata(self) -> dict[str, tuple[str, Any] | None]:
        a, u = self.architecture, "u32"
        mixed, tokens = self.facts.mixed, self.parts().split()
        second = mixed == "mamba2" or bool({"mamba2", "single"}.intersection(tokens))
        found: dict[str, tuple[str, Any] | None] = {}
        if mixed in BY_INTERVAL:  # the file says which layers attend in other words
            return found
        if mixed:
            kv_heads = 1 if self.latent else self.n_kv_heads
            heads = [kv_heads if self.attends(i) else 0 for i in range(self.n_layers)]
            found["attention.head_count_kv"] = ("[u32]", heads)
        elif "single" in tokens:
            widths = [self.n_ff * (i % 3 == 1) for i in range(self.n_layers)]
            heads = [self.n_kv_heads * (i % 3 == 2) for i in range(self.n_layers)]
            found |= {"feed_forward_length": ("[u32]", widths), "attention.head_count_kv": ("[u32]", heads)}
        elif "o" not in tokens:
            found |= {"attention.head_count": (u, 0), "attention.head_count_kv": None}
            found |= {"attention.key_length": None, "attention.value_length": None}
        if "rwkv" in a:
            found["wkv.head_size"] = (u, self.head_size)
            ranks = {"decay": 5, "iclr": 6, "value_residual_mix": 3, "gate": 7}
            sixth = {"time_mix_extra_dim": (u, 5), "time_decay_extra_dim": (u, 6)}
            seventh = {f"attention.{name}_lora_rank": (u, rank) for name, rank in ranks.items()}
            found |= seventh if a.endswith("rwkv7") else sixth
            return found | ({"rescale_every_n_layers": (u, 2)} if a == "rwkv6" else {})
        if mixed == "kda":
            return found
        if mixed == "shortconv":
            return found | {"shortconv.l_cache": (u, 3)}
        found["ssm.conv_kernel"] = (u, 4)
        found["ssm.inner_size"] = (u, 2 * self.n_embd)
        found["ssm.state_size"] = (u, 7)
        found["ssm.time_step_rank"] = (u, 2 if second else 5)
        if second:
            found["ssm.group_count"] = (u, 2)
        return found

    def _add_recurrent(
        self,
        block: str,
        kind: str,
        metadata: dict[str, tuple[str, Any]],
        add: Callable[..., None],
        made: dict[str, np.ndarray],
        rng: np.random.Generator,
    ) -> None:
        d, ff = self.n_embd, self.n_ff
        taps, inner, n, rank, groups = (
            metadata.get(f"ssm.{key}", ("", 1))[1]
            for key in ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")
        )

        def bare(name: str, values: np.ndarray) -> None:
            made[f"{block}.{name}"] = values.astype(np.float32)

        if kind == "mamba":
            add(f"{block}.ssm_in", 2 * inner, d)
            add(f"{block}.ssm_conv1d", inner, taps, bias=True)
            add(f"{block}.ssm_x", rank + 2 * n, inner)
            add(f"{block}.ssm_dt", inner, rank, bias=True)
            bare("ssm_a", -np.exp(rng.standard_normal((inner, n))))
            bare("ssm_d", rng.standard_normal(inner))
            add(f"{block}.ssm_out", d, inner)
            if self.architecture == "jamba":
                for name, width in (("dt", rank), ("b", n), ("c", n)):
                    add(f"{block}.ssm_{name}_norm", width)
        elif kind == "mamba2":
            channels = inner + 2 * groups * n
            add(f"{block}.ssm_in", inner + channels + rank, d)
            add(f"{block}.ssm_conv1d", channels, taps, bias=True)
            bare("ssm_dt.bias", rng.standard_normal(rank))
            bare("ssm_a", -np.exp(rng.standard_normal((rank, 1))))
            bare("ssm_d", rng.standard_normal((rank, 1)))
            if "no_ssm_norm" not in self.extra.split():
                bare("ssm_norm.weight", 1 + 0.3 * rng.standard_normal((groups, inner // groups)))
            add(f"{block}.ssm_out", d, inner)
        elif kind == "plamo2":
            low = max(64, d // 16)
            add(f"{block}.ssm_in", 2 * inner, d)
            add(f"{block}.ssm_conv1d", inner, taps)
            add(f"{block}.ssm_x", low + 2 * n, inner)
            add(f"{block}.ssm_dt", rank, low, bias=True)
            bare("ssm_a", -np.exp(rng.standard_normal(rank)))
            bare("ssm_d", rng.standard_normal(rank))
            for name, width in (("dt", low), ("b", n), ("c", n)):
                bare(f"ssm_{name}_norm", 1 + 0.3 * rng.standard_normal(width))
            add(f"{block}.ssm_out", d, inner)
        elif kind == "delta":
            self._add_delta(block, inner, n, rank, groups, taps, add, bare)
        elif kind == "kda":
            dim = metadata["kda.head_dim"][1]
            wide = self.n_heads * dim
            for part in "qkv":
                add(f"{block}.attn_{part}", wide, d)
                bare(f"ssm_conv1d_{part}.weight", rng.standard_normal((1, wide, 1, taps)) / 2)
            whole = {"kimi-k3": "g", "bailingmoe3": "fg"}.get(self.architecture, "")
            for part in "fg":
                if part in whole:
                    add(f"{block}.ssm_{part}{'_a' * (whole == 'fg')}", wide, d)
                    continue
                add(f"{block}.ssm_{part}_a", dim, d)
                add(f"{block}.ssm_{part}_b", wide, dim)
            add(f"{block}.ssm_beta", self.n_heads, d)
            decay = -np.exp(rng.standard_normal((1, 1, self.n_heads, 1)))
            if self.architecture == "bailingmoe3":
                decay = abs(decay).reshape(-1, 1)
            bare("ssm_a", decay if whole == "fg" or self.architecture == "kimi-linear" else decay.reshape(-1))
            bare("ssm_dt.bias", rng.standard_normal(wide))
            add(f"{block}.ssm_norm", dim)
            add(f"{block}.attn_output", d, wide)
        elif kind == "lightning":
            wide = self.n_heads * self.key_dim
            add(f"{block}.attn_qkv", 3 * wide, d)
            add(f"{block}.attn_gate", wide, d)
            add(f"{block}.attn_norm_2", wide)
            add(f"{block}.attn_output", d, wide)
        elif kind == "shortconv":
            add(f"{block}.shortconv.conv", d, 3)
            add(f"{block}.shortconv.in_proj", 3 * d, d)
            add(f"{block}.shortconv.out_proj", d, d)
        else:
            of_keys = metadata.get("attention.head_count_kv", ("", d // self.head_size))[1] * self.head_size
            in_qwen = kind == "rwkv6qwen2"
            for name in ("receptance", "key", "value", "output"):
                rows = of_keys if name in ("key", "value") else d
                add(f"{block}.time_mix_{name}", rows, d, bias=in_qwen and name != "output")
            if not in_qwen and "no_time_mix_ln" not in self.extra.split():
                add(f"{block}.time_mix_ln", d, bias=True)
            for name in ("k", "r")[: {"rwkv6": 2, "rwkv7": 1}.get(kind, 0)]:
                bare(f"channel_mix_lerp_{name}.weight", rng.random((1, 1, d)))
            if kind in ("rwkv6", "rwkv7"):
                add(f"{block}.channel_mix_key", ff, d)
                add(f"{block}.channel_mix_value", d, ff)
            if kind == "rwkv6":
                add(f"{block}.channel_mix_receptance", d, d)
            if kind in ("rwkv6", "rwkv6qwen2"):
                add(f"{block}.time_mix_gate", d, d)
                add(f"{block}.time_mix_w1", 25, d)
                bare("time_mix_w2.weight", 0.3 * rng.standard_normal((5, d, 5)))
                bare("time_mix_lerp_x.weight", rng.random((1, 1, d)))
                bare("time_mix_lerp_fused.weight", rng.random((5, 1, 1, d)))
                if kind == "rwkv6":
                    bare("time_mix_first.weight", rng.standard_normal((d // self.head_size, self.head_size)))
                add(f"{block}.time_mix_decay", d)
                add(f"{block}.time_mix_decay_w1", 6, d)
                add(f"{block}.time_mix_decay_w2", d, 6)
                return
            gated = "no_gate" not in self.extra.split()
            bare("time_mix_lerp_fused.weight", rng.random((5 + gated, 1, 1, d)))
            ranks = (("w", 5), ("a", 6), ("v", 6 if block == "blk.0" else 3), ("g", 7))
            for name, rank in ranks[: 3 + gated]:
                if name != "g":
                    add(f"{block}.time_mix_{name}0", d)
                add(f"{block}.time_mix_{name}1", rank, d)
                add(f"{block}.time_mix_{name}2", d, rank)
            for name in ("k_k", "k_a", "r_k"):
                add(f"{block}.time_mix_{name}", d)

    def _add_delta(
        self,
        block: str,
        inner: int,
        dim: int,
        heads: int,
        keys: int,
        taps: int,
        add: Callable[..., None],
        bare: Callable[..., None],
    ) -> None:
        d, channels, rng = self.n_embd, inner + 2 * keys * dim, np.random.default_rng(self.seed + heads)
        if "by_key" in self.extra.split():  # as older files have them
            add(f"{block}.ssm_in", channels + inner, d)
        else:
            add(f"{block}.attn_qkv", channels, d)
            add(f"{block}.attn_gate", inner, d)
        if self.architecture == "qwen3next":
            add(f"{block}.ssm_ba", 2 * heads, d)
        else:
            add(f"{block}.ssm_beta", heads, d)
            add(f"{block}.ssm_alpha", heads, d)
        add(f"{block}.ssm_conv1d", channels, taps)
        bare("ssm_a", -np.exp(rng.standard_normal(heads)))
        bare("ssm_dt.bias", rng.standard_normal(heads))
        add(f"{block}.ssm_norm", dim)
        add(f"{block}.ssm_out", d, inner)

    def parts(self) -> str:
        return (self.layer or self.facts.layer) + " " + self.extra

    def routed(self, i: int, metadata: dict[str, tuple[str, Any]]) -> bool:
        """Whether layer i has experts where the architecture's layers differ."""
        every = metadata.get("moe_every_n_layers")
        if every is not None:
            return every[1] > 0 and i % every[1] == 1
        step: int = metadata.get("interleave_moe_layer_step", ("", 0))[1]
        dense: int = metadata.get("leading_dense_block_count", ("", int(not step)))[1]
        return i >= dense and (i + 1) % (step or 1) == 0

    def tensors(self) -> dict[str, np.ndarray]:
        """By GGUF name, float32."""
        metadata, rng, made = self.metadata(), np.random.default_rng(self.seed + 1), {}
        d = self.n_embd

        def add(name: str, *shape: int, bias: bool = False) -> None:
            spread = shape[-1] ** -0.5 if len(shape) > 1 else 0.0
            values = rng.standard_normal(shape) * spread if spread else 1 + 0.3 * rng.standard_normal(shape)
            made[f"{name}.weight"] = values.astype(np.float32)
            if bias:
                size = shape[:-1] if len(shape) > 1 else shape
                made[f"{name}.bias"] = (0.3 * rng.standard_normal(size)).astype(np.float32)

        add("token_embd", self.n_vocab, d)
        made["token_embd.weight"] *= np.float32(d**0.5 / 2)
        for token in (self.facts.beside if self.beside is None else self.beside).split():
            name, bias = token.removesuffix("+b"), token.endswith("+b")
            if name.startswith("n:"):
                add(name[2:], d, bias=bias)
            elif name == "position_embd":
                add(name, self.context, d)
            elif name == "token_types":
                add(name, 2, d)
            elif name in ("dense_2", "dense_3"):  # behind the pooling of an encoder
                add(name, *((3 * d, d) if name == "dense_2" else (d, 3 * d)))
            elif name == "layer_inputs":
                width = metadata["embedding_length_per_layer_input"][1]
                if width:
                    add("per_layer_token_embd", self.n_vocab, self.n_layers * width)
                    add("per_layer_model_proj", self.n_layers * width, d)
                    add("per_layer_proj_norm", width)
            elif name == "layer_projection":
                width = metadata["embedding_length_per_layer_input"][1]
                add("per_layer_model_proj", self.n_layers * width, d)
                add("per_layer_proj_norm", width)
            elif name == "narrow_output":
                add("output", metadata["embedding_length_out"][1], d)
            elif name == "hc_head":
                self._add_connection("output_hc", 1, metadata, add, made, rng)
            elif name == "gate_mix":
                self._add_gate_mix("output_hc", metadata, add, False)
            elif name == "ngram_table":
                if metadata.get("ple.layers", ("", []))[1]:
                    rows = sum(metadata["ple.head_vocab_sizes"][1])
                    add("per_layer_token_embd", rows, metadata["embedding_length_per_layer_input"][1])
            elif name == "z_l_init":
                made["hrm.z_l_init"] = rng.standard_normal(d).astype(np.float32)
            elif name == "streams":
                add("altup_proj", 3, d, d)
                add("altup_unembd_proj", 3, d, d)
            elif name == "rope_freqs":
                made["rope_freqs.weight"] = np.linspace(1, 3, self.n_rot // 2).astype(np.float32)
            elif name == "cls":  # of a reranker: the dense layer
                add(name, d, d, bias=bias)
            elif name in ("cls1", "cls.output1", "cls.output2", "cls.output3"):  # so many labels
                add(name[:-1], int(name[-1]), d, bias=bias)
            elif name == "factors":
                n = (
                    self.key_dim if self.architecture == "phimoe" else self.n_rot
                ) // 2  # there for dimensions that rest, too
                made["rope_factors_long.weight"] = np.linspace(1, 4, n).astype(np.float32)
                made["rope_factors_short.weight"] = np.linspace(1, 2, n).astype(np.float32)
            else:
                add(name, self.n_vocab, d, bias=bias)
        for i in range(self.n_blocks):
            self._add_layer(f"blk.{i}", i, metadata, add, made, rng)
        if self.architecture == "t5encoder":
            buckets = metadata["attention.relative_buckets_count"][1]
            add("blk.0.attn_rel_b", buckets, self.n_heads)
            names = {n: f"enc.{n.replace('attn_output', 'attn_o')}" if n[:4] == "blk." else n for n in made}
            return {names[name]: values for name, values in made.items()}
        return made

    def _add_layer(
        self,
        block: str,
        i: int,
        metadata: dict[str, tuple[str, Any]],
        add: Callable[..., None],
        made: dict[str, np.ndarray],
        rng: np.random.Generator,
    ) -> None:
        d, e, heads, kv, ff = self.n_embd, self.n_experts, self.n_heads, self.n_kv_heads, self.n_ff
        if self.heads_of_layers:
            heads, kv, ff = self.heads_of_layers[i]
        key_dim, value_dim = self.dims_of(i, metadata)
        q, k, v = heads * key_dim, kv * key_dim, kv * value_dim
        shapes: dict[str, tuple[int, ...]] = {
            "q": (2 * q if self.facts.gated else q, d),
            "k": (k, d),
            "v": (v, d),
            "qkv": (q + k + v, d),
            "o": (d, heads * value_dim),
            "gate": (ff, d),
            "up": (ff, d),
            "up2": (2 * ff, d),
            "down": (d, ff),
        }
        names = {"o": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "up2": "ffn_up", "down": "ffn_down"}
        names |= {short: f"attn_{short}" for short in ("q", "k", "v", "qkv")}
        shared = self.expert_ff * metadata.get("expert_shared_count", ("", 1))[1]
        stated = metadata.get("expert_shared_feed_forward_length")
        if stated is not None:
            times = metadata["expert_shared_count"][1] if self.architecture == "bailingmoe2" else 1
            shared = stated[1] * times
        hybrid = bool(self.facts.mixed)
        tokens = self.parts().split()
        shares = i >= self.n_layers - metadata.get("attention.shared_kv_layers", ("", 0))[1]
        if self.architecture == "deci" and self.heads_of_layers:
            tokens = [token for token in tokens if deci_has(token, heads, kv, ff)]
            shapes["o"] = shapes["o"] if kv else (d, d)
        for token in tokens:
            name, bias = token.removesuffix("+b"), token.endswith("+b")
            if name == "mixed" and self.attends(i):
                if self.latent:
                    self._add_latent(block, heads, d, add, i, metadata)
                    continue
                for part in self.facts.attention.split():
                    add(f"{block}.{names[part]}", *shapes[part])
            elif name in ("mixed", "mamba", "mamba2", "rwkv6", "rwkv7", "rwkv6qwen2", "arwkv7"):
                kind = self.facts.mixed or name
                self._add_recurrent(block, kind, metadata, add, made, rng)
            elif name == "dense":  # a dense block or experts, by the layer
                if not self.routed(i, metadata):
                    for part in FEED[self.architecture in UNGATED :]:
                        add(f"{block}.{names[part]}", *shapes[part], bias=self.architecture in UNGATED)
                    continue
                name = "moe"
            if name in ("k", "v") and shares:
                continue
            if name in shapes:
                add(f"{block}.{names[name]}", *shapes[name], bias=bias)
            elif name[:2] == "n:":
                add(f"{block}.{name[2:]}", d, bias=bias)
            elif name[:2] == "h:" and not (hybrid and not self.attends(i)):
                if "attn_k" not in name or not shares:
                    add(f"{block}.{name[2:]}", key_dim)
                    if self.architecture in ("gemma4", "gemma3n"):  # whose scores have no other scale
                        made[f"{block}.{name[2:]}.weight"] *= np.float32(key_dim**-0.25)
            elif name[:2] == "m:":
                if i > 0:
                    add(f"{block}.{name[2:]}", d)
            elif name[:2] == "b:":
                add(f"{block}.{name[2:]}", d)
                made[f"{block}.{name[2:]}"] = made.pop(f"{block}.{name[2:]}.weight")
            elif name in ("gates", "gates2") and not (hybrid and not self.attends(i)):
                add(f"{block}.attn_gate", heads * (1 if name == "gates" else self.value_dim), d)
            elif name == "output_scale":
                made[f"{block}.layer_output_scale.weight"] = rng.uniform(0.5, 1, 1).astype(np.float32)
            elif name == "layer_input" and metadata["embedding_length_per_layer_input"][1]:
                width = metadata["embedding_length_per_layer_input"][1]
                add(f"{block}.inp_gate", width, d)
                add(f"{block}.proj", d, width)
                add(f"{block}.post_norm", d)
            elif name == "streams":
                for part, shape in (
                    ("altup_correct_coef", (4, 4)),
                    ("altup_predict_coef", (16, 4)),
                    ("altup_router", (4, d)),
                    ("laurel_l", (5, d)),
                    ("laurel_r", (d, 5)),
                ):
                    add(f"{block}.{part}", *shape)
                for part in ("altup_correct_scale", "altup_router_norm", "laurel_post_norm"):
                    add(f"{block}.{part}", d)
            elif name == "both":
                for part in ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"):
                    add(f"{block}.{part}", d)
                self._add_experts(block, e, d, False, add)
                made[f"{block}.ffn_gate_inp.scale"] = rng.uniform(0.5, 2, d).astype(np.float32)
                made[f"{block}.ffn_down_exps.scale"] = rng.uniform(0.5, 2, e).astype(np.float32)
            elif name == "shexp2":
                add(f"{block}.ffn_up_shexp", 2 * shared, d)
                add(f"{block}.ffn_down_shexp", d, shared)
            elif name[:2] == "r:":
                add(f"{block}.{name[2:]}", q if "_q_" in name else k, bias=bias)
            elif name[:2] == "e:" and not (hybrid and not self.attends(i)):  # each head its own norm
                add(f"{block}.{name[2:]}", heads if "_q_" in name else kv, self.key_dim)
                made[f"{block}.{name[2:]}.weight"] += 1
                if bias:
                    shape = made[f"{block}.{name[2:]}.weight"].shape
                    made[f"{block}.{name[2:]}.bias"] = (0.3 * rng.standard_normal(shape)).astype(np.float32)
            elif name in ("attn_sub", "ffn_sub"):
                add(f"{block}.{name}_norm", heads * value_dim if name == "attn_sub" else ff)
            elif name == "gain":
                made[f"{block}.attn_q_norm.weight"] = rng.uniform(0.5, 2, (heads, 1)).astype(np.float32)
            elif name == "scales":
                for part in [part for part in made if part.startswith(f"{block}.")]:
                    has = self.architecture == "bitnet" or "attn_output" in part or "ffn_down" in part
                    if has and made[part].ndim == 2 and "norm" not in part:
                        stem = part.removesuffix(".weight")
                        made[f"{stem}.scale"] = rng.uniform(0.5, 1.5, 1).astype(np.float32)
            elif name == "hc":
                parts = 3 if "hyper_connection.sinkhorn_iterations" in metadata else 2
                for part in ("attn", "ffn"):
                    self._add_connection(f"{block}.hc_{part}", parts, metadata, add, made, rng)
            elif name == "wide":
                for part in FEED:
                    add(f"{block}.{names[part]}", d, d)
            elif name == "chunks":
                width, n = (
                    metadata[key][1] for key in ("expert_chunk_feed_forward_length", "experts_per_group")
                )
                add(f"{block}.ffn_gate_chexps", e // n, width, d)
                add(f"{block}.ffn_up_chexps", e // n, width, d)
                add(f"{block}.ffn_down_chexps", e // n, d, width)
            elif name == "switch":
                n, rank = 1 + metadata["adapters.count"][1], metadata["adapters.lora_rank"][1]
                rows = {"attn_q": (q, d), "attn_k": (k, d), "attn_v": (v, d), "attn_output": shapes["o"]}
                rows |= {names[part]: shapes[part] for part in FEED}
                for part, (outputs, inputs) in rows.items():
                    for kind, shape in (("lora_a", (n, rank, inputs)), ("lora_b", (n, outputs, rank))):
                        values = rng.standard_normal(shape).astype(np.float32) * np.float32(shape[2] ** -0.5)
                        values[0] = 0
                        made[f"{block}.{part}.{kind}"] = values
            elif name == "vis":
                for part in ("vis_attn_qkv", "vis_attn_output"):
                    add(f"{block}.{part}", *shapes[{"vis_attn_qkv": "qkv"}.get(part, "o")])
                for part in FEED:
                    add(f"{block}.vis_{part}", *shapes[part])
            elif name == "sinks":
                add(f"{block}.attn_sinks", heads)
            elif name == "act":
                made[f"{block}.ffn.act.scales"] = (1 + rng.random(ff)).astype(np.float32)
            elif name == "moe":
                self._add_experts(block, e, d, bias, add)
            elif name == "probs":
                if f"{block}.ffn_gate_inp.weight" in made:
                    made[f"{block}.exp_probs_b.bias"] = (0.1 * rng.standard_normal(e)).astype(np.float32)
            elif name == "shexp" and ("dense" not in tokens or self.routed(i, metadata)):
                for part, shape in (("gate", (shared, d)), ("up", (shared, d)), ("down", (d, shared))):
                    add(f"{block}.ffn_{part}_shexp", *shape)
            elif name == "shgate":
                made[f"{block}.ffn_gate_inp_shexp.weight"] = rng.standard_normal(d).astype(np.float32)
            elif name == "indexer" and metadata.get("attention.indexer.types", ("", [True] * (i + 1)))[1][i]:
                width, chosen = 64, metadata["attention.indexer.head_count"][1]
                add(f"{block}.indexer.attn_k", width, d)
                add(f"{block}.indexer.attn_q_b", chosen * width, self.q_rank)
                add(f"{block}.indexer.proj", chosen, d)
                add(f"{block}.indexer.k_norm", width, bias=True)
            elif name == "mla":
                self._add_latent(block, heads, d, add, i, metadata)
            elif name == "gate_mix":
                for part in ("attn", "ffn"):
                    self._add_gate_mix(f"{block}.hc_{part}", metadata, add)
            elif name == "ngrams":
                if i in metadata.get("ple.layers", ("", []))[1]:
                    many = metadata["hyper_connection.count"][1] * d
                    add(f"{block}.ple_key", many, d)
                    add(f"{block}.ple_value", d, d)
                    for part in ("key", "query", "conv"):
                        add(f"{block}.ple_norm_{part}", many)
                    add(f"{block}.ple_conv1d", many, metadata["ple.conv_kernel"][1])
            elif name == "mean_indexer":
                if self.attends(i):
                    width, of_q = (
                        metadata[f"attention.indexer.{k}"][1] for k in ("key_length", "head_count")
                    )
                    add(f"{block}.indexer.q_proj", of_q * width, d)
                    add(f"{block}.indexer.k_proj", width, d)
                    add(f"{block}.indexer.q_norm", width)
                    add(f"{block}.indexer.k_norm", width)
            elif name == "pool_indexer":
                if self.attends(i) and metadata.get("attention.indexer.types", ("", [True] * (i + 1)))[1][i]:
                    width, of_q, pool = (
                        metadata[f"attention.indexer.{k}"][1] for k in ("key_length", "head_count", "kpool")
                    )
                    add(f"{block}.indexer.attn_k", width, d)
                    add(f"{block}.indexer.attn_q_b", of_q * width, self.q_rank)
                    add(f"{block}.indexer.proj", of_q, d)
                    add(f"{block}.indexer.k_norm", width, bias=True)
                    add(f"{block}.indexer_compressor_gate", width, d)
                    add(f"{block}.indexer_compressor_ape", pool, width)
            elif name == "compressed":
                self._add_compressed(block, i, metadata, add)
            elif name == "hashed":
                if i < metadata["hash_layer_count"][1]:
                    experts = [rng.permutation(e)[: self.n_used] for _ in range(self.n_vocab)]
                    made[f"{block}.ffn_gate_tid2eid.weight"] = np.array(experts, np.int32)
                else:
                    made[f"{block}.exp_probs_b.bias"] = (0.1 * rng.standard_normal(e)).astype(np.float32)
            elif name == "block_indexer":
                if self.routed(i, metadata):
                    width, of_q = (
                        metadata[f"attention.indexer.{k}"][1] for k in ("key_length", "head_count")
                    )
                    add(f"{block}.indexer.q_proj", of_q * width, d)
                    add(f"{block}.indexer.k_proj", width, d)
                    add(f"{block}.indexer.q_norm", width)
                    add(f"{block}.indexer.k_norm", width)
            elif name == "values":
                if not self.routed(i, metadata) or not metadata["attention.value_expert_count"][1]:
                    add(f"{block}.attn_v", v, d)
                    continue
                many = metadata["attention.value_expert_count"][1]
                add(f"{block}.attn_v_gate", many, d, bias="no_v_bias" not in tokens)
                add(f"{block}.attn_v_exps", many, v, d)
            elif name == "turned":
                add(f"{block}.attn_k_norm", self.n_rot)
            elif name == "bare_probs" and f"{block}.ffn_gate_inp.weight" in made:
                made[f"{block}.exp_probs_b"] = (0.1 * rng.standard_normal(e)).astype(np.float32)
            elif name == "single" and i % 3 == 0:
                self._add_recurrent(block, "mamba2", metadata, add, made, rng)
            elif name == "single" and i % 3 == 2:
                for part in "qkvo":
                    add(f"{block}.{names[part]}", *shapes[part])
            elif name == "single" and "expert_count" not in metadata:
                add(f"{block}.ffn_up", ff, d)
                add(f"{block}.ffn_down", d, ff)
            elif name == "single":
                self._add_ungated(block, metadata, shared, add)
                made[f"{block}.exp_probs_b.bias"] = (0.1 * rng.standard_normal(e)).astype(np.float32)

    def _add_connection(
        self,
        name: str,
        parts: int,
        metadata: dict[str, tuple[str, Any]],
        add: Callable[..., None],
        made: dict[str, np.ndarray],
        rng: np.random.Generator,
    ) -> None:
        n = metadata["hyper_connection.count"][1]
        numbers = sum([n, n, n * n][:parts])
        add(f"{name}_fn", numbers, n * self.n_embd)
        made[f"{name}_base.weight"] = rng.standard_normal(numbers).astype(np.float32)
        made[f"{name}_scale.weight"] = rng.uniform(0.5, 1.5, parts).astype(np.float32)

    def _add_gate_mix(
        self, name: str, metadata: dict[str, tuple[str, Any]], add: Callable[..., None], injects: bool = True
    ) -> None:
        n, rank = (metadata[f"hyper_connection.{key}"][1] for key in ("count", "low_rank"))
        add(f"{name}_norm", n * self.n_embd)
        add(f"{name}_down", rank, n * self.n_embd)
        add(f"{name}_up", n * self.n_embd, rank)
        if injects:
            add(f"{name}_inject", n, n * self.n_embd)

    def _add_compressed(
        self, block: str, i: int, metadata: dict[str, tuple[str, Any]], add: Callable[..., None]
    ) -> None:
        d, dim, q = self.n_embd, self.key_dim, self.q_rank
        size, groups, rank = (
            metadata[f"attention.{key}"][1]
            for key in ("compress_ratios", "output_group_count", "output_lora_rank")
        )
        add(f"{block}.attn_q_a", q, d)
        add(f"{block}.attn_q_a_norm", q)
        add(f"{block}.attn_q_b", self.n_heads * dim, q)
        add(f"{block}.attn_kv", dim, d)
        add(f"{block}.attn_kv_a_norm", dim)
        add(f"{block}.attn_output_a", groups * rank, self.n_heads * dim // groups)
        add(f"{block}.attn_output_b", d, groups * rank)
        heads, width = (metadata[f"attention.indexer.{key}"][1] for key in ("head_count", "key_length"))
        for name, of in (("attn_compressor", dim), ("indexer_compressor", width)):
            if size[i] == 4 or (size[i] and of == dim and name == "attn_compressor"):
                wide = of * (2 if size[i] == 4 else 1)
                add(f"{block}.{name}_kv", wide, d)
                add(f"{block}.{name}_gate", wide, d)
                add(f"{block}.{name}_ape", size[i], wide)
                add(f"{block}.{name}_norm", of)
        if size[i] == 4:
            add(f"{block}.indexer.attn_q_b", heads * width, q)
            add(f"{block}.indexer.proj", heads, d)

    def _add_ungated(
        self, block: str, metadata: dict[str, tuple[str, Any]], shared: int, add: Callable[..., None]
    ) -> None:
        """Experts without gates, perhaps with a narrower input."""
        d, e, width = self.n_embd, self.n_experts, metadata["expert_feed_forward_length"][1]
        if isinstance(width, list):
            width = width[int(block.split(".")[1])]
        latent = metadata.get("moe_latent_size", ("", 0))[1]
        add(f"{block}.ffn_gate_inp", e, d)
        if latent:
            add(f"{block}.ffn_latent_down", latent, d)
            add(f"{block}.ffn_latent_up", d, latent)
        add(f"{block}.ffn_up_exps", e, width, latent or d)
        add(f"{block}.ffn_down_exps", e, latent or d, width)
        add(f"{block}.ffn_up_shexp", shared, d)
        add(f"{block}.ffn_down_shexp", d, shared)

    def _add_experts(self, block: str, e: int, d: int, bias: bool, add: Callable[..., None]) -> None:
        width = self.expert_ff
        add(f"{block}.ffn_gate_inp", e, d, bias=bias)
        narrow = self.metadata().get("expert_latent_length", ("", 0))[1]
        if narrow:
            add(f"{block}.ffn_routed_down", narrow, d)
            add(f"{block}.ffn_routed_up", d, narrow)
            if "no_routed_norm" not in self.extra.split():
                add(f"{block}.ffn_routed_norm", narrow)
            d = narrow
        if self.architecture not in UNGATED:
            add(f"{block}.ffn_gate_exps", e, width, d, bias=bias)
        add(f"{block}.ffn_up_exps", e, width, d, bias=bias)
        add(f"{block}.ffn_down_exps", e, d, width, bias=bias)

    def _add_latent(
        self,
        block: str,
        heads: int,
        d: int,
        add: Callable[..., None],
        i: int,
        metadata: dict[str, tuple[str, Any]],
    ) -> None:
        rank, key_dim, value_dim = self.kv_rank, self.key_dim, self.value_dim
        if "attention.kv_lora_rank_swa" in metadata and metadata["attention.sliding_window_pattern"][1][i]:
            rank, key_dim, value_dim = (
                metadata[f"attention.{key}_swa"][1]
                for key in ("kv_lora_rank", "key_length_mla", "value_length_mla")
            )
        fixed = key_dim - self.n_rot
        if self.q_rank:
            add(f"{block}.attn_q_a", self.q_rank, d)
            add(f"{block}.attn_q_a_norm", self.q_rank)
            add(f"{block}.attn_q_b", heads * key_dim, self.q_rank)
        else:
            add(f"{block}.attn_q", heads * key_dim, d)
        add(f"{block}.attn_kv_a_mqa", rank + self.n_rot, d)
        add(f"{block}.attn_kv_a_norm", rank)
        if self.old_latent:
            add(f"{block}.attn_kv_b", heads * (fixed + value_dim), rank)
        else:
            add(f"{block}.attn_k_b", heads, rank, fixed)
            add(f"{block}.attn_v_b", heads, value_dim, rank)
        add(f"{block}.attn_output", d, heads * value_dim)

    def file(self, **replaced: np.ndarray | None) -> bytes:
        """The GGUF file, all F32; tensors can be replaced or, with None, left out."""
        tensors = {name: values for name, values in (self.tensors() | replaced).items() if values is not None}
        return self._file([stored(name, values, "F32") for name, values in tensors.items()])

    def _file(self, tensors: list[ggufwriter.Tensor]) -> bytes:
        pairs: list[tuple[str, str, Any]] = [
            ("general.architecture", "str", self.architecture),
            ("tokenizer.ggml.model", "str", "no_vocab"),
        ]
        if self.facts.encoder:
            pairs.append(("tokenizer.ggml.token_type_count", "u32", 2))
        pairs += [(self.full_key(key), *pair) for key, pair in self.metadata().items()]
        return ggufwriter.write(pairs, tensors)


def deci_has(token: str, heads: int, kv: int, ff: int) -> bool:
    """Whether a layer of Deci with such heads and such a width has a tensor: a layer without key heads has
    one matrix instead of attention."""
    if "ffn" in token or token.removesuffix("+b") in FEED:
        return ff > 0
    return heads > 0 and (kv > 0 or token.removesuffix("+b") in ("n:attn_norm", "o"))


def stored(name: str, values: np.ndarray, kind: str) -> ggufwriter.Tensor:
    """A tensor in one of the formats that the gguf package can quantize to; integers stay integers."""
    if values.dtype == np.int32:
        return ggufwriter.Tensor(
            name, values.shape[::-1], FORMATS["I32"].file_id, values.astype("<i4").tobytes()
        )
    data = gguf.quants.quantize(np.ascontiguousarray(values, np.float32), gguf.GGMLQuantizationType[kind])
    return ggufwriter.Tensor(name, values.shape[::-1], FORMATS[kind].file_id, data.tobytes())


YARN = {key: of_kind(key, value) for key, value in GROUPS["yarn"].items()}

MODELS: dict[str, Model] = {
    name: Model(name, **({"seed": sum(name.encode())} | facts.sizes)) for name, facts in ARCHITECTURES.items()
}
"""One of each architecture."""


def variant(words: str) -> Model:
    """A model from an architecture and words (`values_of`): of attributes, and of metadata."""
    architecture, _, rest = words.partition(" ")
    given = values_of(rest)
    names = {each.name for each in fields(Model)} & given.keys()
    return Model(architecture, **{name: given.pop(name) for name in names}, keys=given)


SPECS = """
nemotron_h_moe-latent: nemotron_h_moe n_layers=5 n_experts=8 n_used=3 seed=184
    attention.layer_norm_rms_epsilon=None expert_weights_scale=1.5 expert_group_count=4
    expert_group_used_count=2 moe_latent_size=12 ssm.group_count=1
# experts used, and their width, by the layer; 0 where a layer has none
nemotron_h_moe-puzzle: nemotron_h_moe n_layers=8 n_experts=6 seed=205 feed_forward_length=[0,24,0,0,40,0,0,12]
    expert_feed_forward_length=[0,24,0,0,40,0,0,12] expert_used_count=[0,2,0,0,5,0,0,1] moe_latent_size=12
falcon-h1-plain: falcon-h1 n_rot=4 extra="no_ssm_norm" seed=185
qwen3next-by-key: qwen3next extra="by_key" seed=180
qwen3next-groups: qwen3next n_layers=4 n_rot=4 seed=181 full_attention_interval=None ssm.state_size=33
    ssm.group_count=1 ssm.time_step_rank=3 ssm.inner_size=99 ssm.conv_kernel=2
qwen35-layers: qwen35 n_layers=3 key_dim=12 value_dim=12 n_rot=12 beside="n:output_norm" seed=182
    attention.recurrent_layers=[True,True,False] rope.dimension_sections=[2,2,1,1]
kimi-scaled: kimi-linear n_layers=4 key_dim=20 value_dim=12 seed=183 q_rank=0 expert_weights_scale=2.4
    kda.head_dim=16
llama-mixtral: llama layer="n:attn_norm q k v o n:ffn_norm moe" seed=100
llama-rope_freqs: llama beside="n:output_norm rope_freqs" seed=101
llama-yarn: llama seed=102 +yarn
llama-linear-attn_factor: llama seed=103 rope.scaling.factor=3.0 rope.scaling.attn_factor=1.2
llama-biases: llama layer="n:attn_norm q+b k+b v+b o+b n:ffn_norm gate+b up+b down+b" seed=104
llama-arrays: llama n_layers=3 seed=105 heads_of_layers=((4,2,40),(8,4,24),(2,1,56)) compared=False
    attention.key_length=8 attention.value_length=8
llama-windows: llama seed=98 compared=False attention.sliding_window=6
mpt-norms: mpt n_kv_heads=4 layer="n:attn_norm qkv r:attn_q_norm+b r:attn_k_norm+b o n:ffn_norm up down"
    seed=97 compared=False
falcon-many-heads: falcon n_embd=142 n_heads=71 n_kv_heads=1 key_dim=2 value_dim=2 n_rot=2 seed=95
llama4-plain: llama4 n_layers=4 seed=96 compared=False attention.sliding_window=0
llama-wide: llama n_embd=96 n_heads=6 n_kv_heads=3 key_dim=16 value_dim=16 n_rot=16 seed=99
mistral3-sharp: mistral3 seed=106 +yarn rope.scaling.original_context_length=8 attention.temperature_scale=0.3
    rope.scaling.yarn_log_multiplier=0.7
llama4-one: llama4 n_layers=4 n_used=1 seed=108
granite-unturned: granite seed=109 rope.scaling.finetuned=False
granitemoe-shared: granitemoe layer="n:attn_norm q k v o n:ffn_norm moe shexp" seed=110
    expert_shared_feed_forward_length=20 attention.scale=0.4 residual_scale=0.7
minicpm-scales: minicpm seed=111 logit_scale=2.0 residual_scale=0.7 embedding_scale=2.0
minicpm-longrope: minicpm beside="n:output_norm factors" seed=112 rope.scaling.type="longrope"
    rope.scaling.original_context_length=64
grok-dense: grok layer="n:attn_norm q k v o n:attn_output_norm n:ffn_norm gate up down moe n:post_ffw_norm"
    seed=113 final_logit_softcapping=5.0 attention.output_scale=0.3 attn_logit_softcapping=4.0 logit_scale=0.8
    embedding_scale=3.0
qwen2vl-still: qwen2vl seed=115 rope.dimension_sections=[1,1,1,1]
qwen3-wide-heads: qwen3 key_dim=20 value_dim=20 n_rot=20 seed=116
qwen3-yarn: qwen3 seed=117 +yarn
gemma2-caps: gemma2 n_layers=4 seed=118 attn_logit_softcapping=2.0 final_logit_softcapping=3.0
gemma2-46: gemma2 n_layers=46 n_embd=24 n_ff=16 seed=119
gemma2-period: gemma2 n_layers=4 seed=120 attention.sliding_window_pattern=3
gemma3-array: gemma3 n_layers=4 seed=121 attention.sliding_window_pattern=[True,False,False,True]
    rope.scaling.factor=8.0 rope.freq_base_swa=50.0
gemma3-plain: gemma3 beside="n:output_norm output" seed=122 attention.sliding_window=None
phi2-split: phi2 n_rot=4 layer="n:attn_norm+b q+b k+b v+b o+b up+b down+b" seed=123
phi3-window: phi3 seed=124 attention.sliding_window=4 rope.scaling.original_context_length=64
    rope.scaling.attn_factor=1.19
command-r-plus: command-r n_layers=64 n_ff=16 extra="e:attn_q_norm e:attn_k_norm" seed=125
cohere2-unscaled: cohere2 n_layers=4 seed=126 attention.sliding_window_pattern=2
deepseek-scaled: deepseek n_layers=3 layer="n:attn_norm q k v o n:ffn_norm moe shexp" seed=127
    expert_weights_scale=1.7 leading_dense_block_count=None
deepseek2-v3: deepseek2 n_layers=3 key_dim=20 value_dim=12 n_experts=8 n_used=3 extra="probs" seed=128 +yarn
    expert_gating_func=2 expert_weights_norm=True expert_weights_scale=2.5 expert_group_count=4
    expert_group_used_count=2 rope.scaling.yarn_log_multiplier=0.07
deepseek2-old: deepseek2 n_layers=3 key_dim=20 value_dim=12 seed=129 old_latent=True +yarn
deepseek2-lite: deepseek2 n_layers=26 key_dim=20 value_dim=12 n_ff=16 expert_ff=8 seed=130 q_rank=0
    attention.q_lora_rank=None
deepseek2-sharp: deepseek2 n_layers=3 key_dim=20 value_dim=12 seed=131 attention.temperature_scale=0.3
    attention.temperature_length=4
minicpm3-factors: minicpm3 n_layers=3 key_dim=20 value_dim=12 beside="n:output_norm factors" seed=132
    old_latent=True rope.scaling.original_context_length=64
falcon-40b: falcon layer="n:attn_norm+b n:attn_norm_2+b qkv o up down" beside="n:output_norm+b" seed=133
bloom-odd: bloom n_embd=48 n_heads=6 n_kv_heads=6 seed=134
mpt-all: mpt n_kv_heads=4 layer="n:attn_norm+b qkv+b o+b n:ffn_norm+b up+b down+b act"
    beside="n:output_norm+b position_embd output" seed=135 attention.max_alibi_bias=None
    attention.clamp_kqv=0.8
mpt-alibi16: mpt n_heads=2 key_dim=16 value_dim=16 seed=136 attention.max_alibi_bias=16.0
gptneox-sequential: gptneox n_rot=4 seed=137 use_parallel_residual=False
stablelm-12b: stablelm n_rot=2 layer="n:attn_norm+b q k v o e:attn_q_norm e:attn_k_norm gate up down" seed=138
stablelm-biases: stablelm layer="n:attn_norm+b q+b k+b v+b o n:ffn_norm+b gate up down" seed=139
olmo-clamp: olmo beside="output" seed=140 attention.clamp_kqv=0.5
olmo2-windows: olmo2 n_layers=4 seed=141 +yarn attention.sliding_window=6
gpt-oss-yarn: gpt-oss n_layers=4 seed=142 +yarn
glm4-sections: glm4 seed=143 rope.dimension_sections=[2,1,1,0]
jina-fused: jina-bert-v2 n_kv_heads=4
    layer="q+b k+b v+b r:attn_q_norm+b r:attn_k_norm+b o+b n:attn_output_norm+b n:attn_norm_2+b up2+b
      down+b n:layer_output_norm+b"
    seed=144
jina-ungated: jina-bert-v2 layer="q+b k+b v+b o+b n:attn_output_norm+b up+b down+b n:layer_output_norm+b"
    seed=145
bert-cls: bert layer="q k v o n:attn_output_norm+b up down n:layer_output_norm+b" seed=146 pooling_type=2
bert-rank: bert beside="position_embd token_types n:token_embd_norm+b cls+b cls.output1+b" seed=174
    compared=False pooling_type=4
bert-rank-labels: bert beside="position_embd token_types n:token_embd_norm+b cls.output3+b" seed=175
    compared=False pooling_type=4 classifier.output_labels=["no","maybe","yes"]
jina-rank: jina-bert-v2 beside="token_types n:token_embd_norm+b cls1+b" seed=176 compared=False pooling_type=4
qwen3-rank: qwen3 beside="n:output_norm output cls.output2" seed=177 compared=False pooling_type=4
    classifier.output_labels=["yes","no"]
nomic-bert-plain: nomic-bert n_rot=4 seed=147 rope.freq_base=1000.0
nemotron-biases: nemotron n_rot=4 layer="n:attn_norm+b q+b k+b v+b o+b n:ffn_norm+b up+b down+b" seed=148
gpt2-untied: gpt2 beside="position_embd n:output_norm+b output" seed=149
orion-long: orion n_heads=8 n_kv_heads=8 key_dim=4 value_dim=4 n_rot=4 seed=150
phimoe-short: phimoe seed=151 rope.scaling.original_context_length=512
dbrx-experts: dbrx n_experts=7 n_used=4 seed=152
qwen3moe-many: qwen3moe n_experts=16 n_used=5 seed=153
deepseek2-linear: deepseek2 n_layers=3 key_dim=20 value_dim=12 seed=157 rope.scaling.factor=4.0
    rope.scaling.yarn_log_multiplier=0.07
gemma3-magnitude: gemma3 n_layers=3 seed=158 attention.sliding_window_pattern=2 rope.scaling.attn_factor=1.3
    rope.scaling.factor=2.0
glm4-text: glm4 seed=159 rope.dimension_sections=[0,2,2,0]
llama4-pattern: llama4 n_layers=4 seed=160 attention.sliding_window_pattern=[0,1,0,1] rope.freq_base_swa=20.0
gpt-oss-bases: gpt-oss n_layers=3 seed=161 attention.sliding_window_pattern=3 rope.freq_base_swa=20.0
    feed_forward_length=None
granitemoe-turned: granitemoe seed=162 rope.scaling.finetuned=False
granite-moe: granite layer="n:attn_norm q k v o n:ffn_norm moe" seed=163
granitehybrid-moe: granitehybrid layer="n:attn_norm mixed n:ffn_norm moe shexp" seed=164
    expert_shared_feed_forward_length=20 rope.scaling.finetuned=False logit_scale=None ssm.group_count=1
    ssm.time_step_rank=8 ssm.conv_kernel=3
# the base of windowed layers is for families that have another one there
olmo2-base: olmo2 n_layers=4 seed=165 attention.sliding_window=6 rope.freq_base_swa=20.0
lfm2-windows: lfm2 n_layers=4 seed=166 attention.sliding_window=5 attention.sliding_window_pattern=1
phimoe-partial: phimoe n_rot=4 seed=167
nomic-bert-moe-third: nomic-bert-moe n_layers=5 seed=168 moe_every_n_layers=3
bert-causal: bert seed=169 attention.causal=True
mamba-rms: mamba seed=170 ssm.dt_b_c_rms=True ssm.conv_kernel=2
mamba2-narrow: mamba2 seed=171 ssm.inner_size=48 ssm.time_step_rank=6 ssm.group_count=3
jamba-norms: jamba n_layers=4 seed=172 ssm.dt_b_c_rms=False ssm.state_size=16
rwkv6-unscaled: rwkv6 seed=173 rescale_every_n_layers=None
smollm3-eight: smollm3 n_layers=8 seed=154
starcoder-one-head: starcoder n_kv_heads=1 seed=155
chatglm-partial: chatglm n_rot=4 seed=156
baichuan-7b: baichuan n_layers=32 n_embd=16 key_dim=4 value_dim=4 n_rot=4 n_ff=12 seed=180
baichuan-13b: baichuan n_layers=40 n_embd=16 key_dim=4 value_dim=4 n_ff=12 seed=181
exaone4-64: exaone4 n_layers=64 n_embd=16 key_dim=4 value_dim=4 n_rot=4 n_ff=12 seed=182
    attention.sliding_window=6
openelm-layers: openelm n_layers=3 seed=183 heads_of_layers=((4,2,40),(8,4,24),(2,1,56))
    attention.key_length=8 attention.value_length=8
mimo2-layers: mimo2 n_layers=3 key_dim=12 n_rot=4 layer="n:attn_norm q k v o n:ffn_norm dense" seed=184
    heads_of_layers=((4,1,40),(4,2,40),(4,4,40)) feed_forward_length=40 rope.freq_base_swa=20.0
step35-layers: step35 n_layers=3 layer="n:attn_norm q k v o n:ffn_norm dense shexp" seed=185
    heads_of_layers=((4,2,40),(6,2,40),(8,2,40)) attention.key_length=8 attention.value_length=8
    feed_forward_length=40 rope.dimension_count_swa=8 rope.dimension_count=4 swiglu_clamp_exp=0.4
    swiglu_clamp_shexp=None
apertus-layers: apertus beside="n:output_norm output rope_freqs" seed=186 /xielu.alpha_p=[0.3,0.8]
    /xielu.alpha_n=[0.6,-0.2] /xielu.beta=[0.5,0.3] /xielu.eps=[-1e-06,-0.1]
smallthinker-full: smallthinker seed=187 attention.sliding_window=None
bailingmoe2-groups: bailingmoe2 n_experts=8 seed=188 expert_group_count=4 expert_group_used_count=2
    expert_shared_feed_forward_length=12 expert_shared_count=2
glm4moe-sections: glm4moe seed=200 rope.dimension_sections=[2,1,1,0]
glm4moe-biases: glm4moe n_rot=4 layer="n:attn_norm q+b k+b v+b o n:post_attention_norm shexp dense probs"
    seed=189 expert_gating_func=1 expert_weights_norm=None expert_weights_scale=None
granite_swa-dense: granite_swa layer="n:attn_norm q k v o sinks n:ffn_norm gate up down" seed=190
    attention.rope_pattern=None
mistral4-sharp: mistral4 n_layers=3 key_dim=20 value_dim=12 seed=191 +yarn attention.temperature_scale=0.3
    attention.temperature_length=4 rope.scaling.yarn_log_multiplier=0.1
qwen3vl-still: qwen3vl seed=192 rope.dimension_sections=[1,1,1,1]
modern-bert-silu: modern-bert n_layers=3 n_kv_heads=4 seed=193 hidden_activation="silu"
    rope.freq_base_swa=50.0 attention.sliding_window=5 attention.sliding_window_pattern=[False,True,True]
# not compared: its tokens' states, of which llama.cpp shows what the matrices make
gemma-embedding-dense: gemma-embedding beside="n:output_norm dense_2 dense_3" seed=198 compared=False
t5encoder-plain: t5encoder n_kv_heads=4 layer="n:attn_norm q k v o n:ffn_norm up down" seed=199
    attention.relative_buckets_count=32
gemma4-experts: gemma4 n_layers=4 key_dim=16 value_dim=16 n_rot=16
    layer="n:attn_norm q k v o h:attn_q_norm h:attn_k_norm n:post_attention_norm n:ffn_norm gate up down
      n:post_ffw_norm both output_scale"
    beside="n:output_norm output rope_freqs" seed=194 attention.shared_kv_layers=0
    embedding_length_per_layer_input=0 final_logit_softcapping=3.0 expert_feed_forward_length=40
    rope.freq_base_swa=50.0
gemma4-heads: gemma4 n_layers=6 key_dim=16 value_dim=16 n_rot=16 seed=195
    heads_of_layers=((4,2,40),(4,2,40),(4,1,40),(4,2,24),(4,2,24),(4,1,24))
gemma3n-deep: gemma3n n_layers=22 n_ff=24 seed=198 compared=False attention.shared_kv_layers=None
    embedding_length_per_layer_input=4 final_logit_softcapping=3.0 rope.freq_base_swa=50.0
maincoder-linear: maincoder key_dim=12 value_dim=12 n_rot=12 layer="n:attn_norm qkv+b o h:attn_q_norm
    h:attn_k_norm n:ffn_norm gate up down" beside="n:output_norm output" seed=210 rope.scaling.factor=3.0
mellum-yarn: mellum n_layers=6 n_experts=9 n_used=4 seed=211 +yarn attention.sliding_window_pattern=3
    rope.freq_base_swa=20.0
mellum-full: mellum n_layers=3 seed=212 +yarn attention.sliding_window=None
nanbeige-plain: nanbeige n_layers=3 n_rot=4 beside="n:output_norm" seed=213 num_loops=3
    skip_loop_final_norm=True
nanbeige-once: nanbeige layer="n:attn_norm qkv+b o n:ffn_norm gate up down" seed=214 num_loops=None
talkie-unscaled: talkie n_kv_heads=4 layer="qkv o gain gate up down output_scale" seed=215
maple-base: maple n_layers=4 n_experts=7 n_used=3 seed=216 swiglu_clamp_exp=0.8 rope.freq_base_swa=20.0
    attention.sliding_window_pattern=[True,False,True,True] rope.scaling.factor=2.0
hrm_text-cycles: hrm_text n_layers=12 n_kv_heads=4 beside="z_l_init" seed=217 hrm.layers_per_stack=2
    hrm.h_cycles=2 hrm.l_cycles=2 embedding_scale=None hrm.prefix_lm=True
bailingmoe-plain: bailingmoe n_experts=6 n_used=3 key_dim=12 value_dim=12 n_rot=12 seed=218
    expert_weights_norm=None expert_weights_scale=None expert_shared_count=1 leading_dense_block_count=1
grovemoe-chunks: grovemoe n_experts=12 n_used=4 beside="n:output_norm" seed=219 experts_per_group=3
    expert_chunk_feed_forward_length=8
graniteswitch-late: graniteswitch n_layers=3 beside="n:output_norm output" seed=220 embedding_scale=1.5
    attention.scale=0.3 adapters.count=3 adapters.lora_rank=4 adapters.token_ids_activate=[7,8,9]
    adapters.token_ids_substitute=[7,1,2] adapters.router_gain=4.0
pangu-plain: pangu-embedded layer="n:attn_norm q k v o+b n:ffn_norm gate up down" beside="n:output_norm
    rope_freqs" seed=221
plm-wide: plm n_layers=2 key_dim=24 value_dim=16 n_rot=12 kv_rank=24 n_kv_heads=4 q_rank=0 old_latent=True
    seed=222
arctic-many: arctic n_layers=3 n_experts=9 n_used=4 layer="n:attn_norm qkv+b o n:ffn_norm wide n:ffn_norm_exps
    moe" beside="n:output_norm" seed=223
deci-layers: deci n_layers=6 layer="n:attn_norm q k v o+b n:ffn_norm gate up down" seed=224
    heads_of_layers=((4,2,40),(4,1,24),(0,0,32),(4,0,40),(4,4,0),(2,1,16)) attention.key_length=8
    attention.value_length=8
bitnet-unscaled: bitnet n_layers=3 layer="n:attn_norm q k v attn_sub o n:ffn_norm gate up ffn_sub down"
    seed=225
jais-odd: jais n_embd=48 n_heads=6 n_kv_heads=6 seed=226
jais-still: jais n_kv_heads=4 seed=227 attention.max_alibi_bias=None
refact-one-head: refact n_kv_heads=1 layer="n:attn_norm qkv o+b n:ffn_norm gate+b up+b down+b"
    beside="n:output_norm" seed=228
plamo-fused: plamo n_heads=8 n_kv_heads=1 key_dim=4 value_dim=4 n_rot=4 layer="n:attn_norm qkv+b o gate up
    down" seed=229
rwkv6qwen2-all-heads: rwkv6qwen2 beside="n:output_norm+b output" seed=230 attention.head_count_kv=None
arwkv7-plain: arwkv7 n_embd=64 extra="no_gate no_time_mix_ln" seed=231
chameleon-swin: chameleon compared=False n_vocab=8300 layer="n:attn_norm qkv o e:attn_q_norm e:attn_k_norm
    n:ffn_norm gate up down" beside="n:output_norm output" seed=232 swin_norm=True
hunyuan_vl-scaled: hunyuan_vl seed=238 +yarn rope.scaling.alpha=0.5
hunyuan_vl-text: hunyuan_vl beside="n:output_norm output" seed=233 rope.dimension_sections=None
    rope.scaling.alpha=None
deepseek2-ocr-scaled: deepseek2-ocr n_layers=3 n_kv_heads=4 seed=239 rope.scaling.factor=4.0
    rope.scaling.attn_factor=1.2
deepseek2-ocr-sigmoid: deepseek2-ocr n_layers=3 n_kv_heads=4 n_experts=8 n_used=3 extra="probs" seed=234
    expert_gating_func=2 expert_weights_norm=True expert_weights_scale=2.5 rope.dimension_count=64
cogvlm-pictures: cogvlm n_kv_heads=4 n_layers=3 beside="n:output_norm rope_freqs" seed=235
gemma-embedding2-period: gemma-embedding2 compared=False n_layers=7 seed=236
    attention.sliding_window_pattern=3 attention.sliding_window=5 rope.freq_base_swa=50.0
    embedding_length_out=40 attention.key_length_swa=8 attention.value_length_swa=8 rope.dimension_count_swa=8
    rope.scaling.factor=2.0 rope.scaling.attn_factor=1.2
llama-embed-experts: llama-embed layer="n:attn_norm qkv+b o n:ffn_norm moe" beside="n:output_norm output"
    seed=237
laguna-elements: laguna n_layers=5 n_rot=4 compared=False seed=240 +yarn expert_shared_feed_forward_length=20
    layer="n:attn_norm q k v o gates2 h:attn_q_norm h:attn_k_norm n:ffn_norm shexp dense probs"
    rope.freq_base_swa=50.0 attention.sliding_window_pattern=[True,False,True,True,False]
    heads_of_layers=((4,2,40),(6,2,40),(4,1,40),(2,2,40),(4,2,40)) attention.key_length=8
    attention.value_length=8
hy_v4-plain: hy_v4 n_layers=2 key_dim=20 value_dim=12 compared=False seed=243 attention.indexer.top_k=None
    attention.indexer.head_count=None attention.indexer.key_length=None attention.indexer.types=None
    layer="hc n:attn_norm mla sinks gates2 n:ffn_norm shexp dense" hyper_connection.count=5
    swiglu_clamp_exp=[0.3,0.4] rope.scaling.factor=2.0
hy_v3-fused: hy_v3 n_layers=3 n_experts=7 n_used=3 compared=False seed=244 layer="n:attn_norm qkv o
    h:attn_q_norm
    h:attn_k_norm n:ffn_norm shexp dense" beside="n:output_norm" expert_shared_feed_forward_length=12
    expert_gating_func=1 expert_weights_norm=None
cohere2moe-rms: cohere2moe n_layers=5 compared=False seed=245 layer="n:attn_norm qkv o dense"
    expert_shared_count=None
    beside="n:output_norm output" attention.layer_norm_rms_epsilon=0.01 attention.layer_norm_epsilon=None
    attention.sliding_window_pattern=[True,False,True,True,False] leading_dense_block_count=2 logit_scale=None
cohere2moe-period: cohere2moe n_layers=6 compared=False seed=246 attention.sliding_window_pattern=3
    expert_shared_count=2 expert_gating_func=1 rope.freq_base_swa=7.0 attention.layer_norm_rms_epsilon=0.0
dots3note-heads: dots3note n_layers=4 key_dim=20 value_dim=12 compared=False seed=247 beside="n:output_norm"
    heads_of_layers=((4,1,40),(6,1,40),(2,1,40),(3,1,40))
    attention.sliding_window_pattern=[False,True,True,False]
    attention.indexer.types=None +yarn
minimax-01-layers: minimax-01 n_layers=3 n_rot=4 n_experts=7 n_used=3 n_heads=6 n_embd=48 compared=False
    seed=248
    beside="n:output_norm" attention.recurrent_layers=[True,False,True] residual_scale=2.5
minimax-01-eight: minimax-01 n_layers=9 compared=False seed=249 full_attention_interval=None
muse-glimmer-bases: muse-glimmer n_layers=5 n_rot=4 compared=False seed=250 layer="n:attn_norm qkv o gates2
    h:attn_q_norm h:attn_k_norm n:post_attention_norm n:ffn_norm gate up down n:post_ffw_norm" logit_scale=1.7
    attention.sliding_window_pattern=[True,False,True,True,False] rope.freq_base_swa=50.0
    final_logit_softcapping=0.0 +yarn
k2-horizon-all: k2-horizon n_layers=3 compared=False seed=251 extra="no_v_bias" beside="n:output_norm" +yarn
    leading_dense_block_count=0 attention.value_expert_used_count=3 expert_weights_norm=None
    expert_gating_func=1
    expert_shared_feed_forward_length=12 rope.scaling.yarn_beta_fast=8.0 attention.group_norm_groups=2
k2-horizon-dense: k2-horizon compared=False seed=252 layer="n:attn_norm qkv o n:ffn_norm gate up down"
    attention.value_expert_count=0 expert_weights_norm=None expert_weights_scale=None
    attention.group_norm_groups=None
minimax-m3-many: minimax-m3 n_layers=3 n_heads=6 n_kv_heads=3 n_embd=48 n_rot=8 compared=False seed=253
    leading_dense_block_count=0 attention.indexer.local_blocks=2 attention.indexer.block_size=5
    attention.indexer.key_length=9 n_experts=7 n_used=3 expert_gating_func=1 expert_shared_count=2
minimax-m3-far: minimax-m3 compared=False seed=254 attention.indexer.local_blocks=0 attention.indexer.top_k=2
kimi-k3-plain: kimi-k3 n_layers=5 key_dim=20 value_dim=12 q_rank=0 compared=False seed=255
    extra="no_routed_norm"
    layer="n:attn_norm mixed n:ffn_norm shexp dense probs" beside="n:output_norm output" attn_res.block_size=0
    kda.gate_lower_bound=None activation.situ_linear_beta=0.0 attention.q_lora_rank=None
kimi-k3-wide: kimi-k3 n_layers=7 key_dim=20 value_dim=12 compared=False seed=256 attn_res.block_size=3
    expert_latent_length=None expert_shared_count=2
bailingmoe3-sections: bailingmoe3 n_layers=4 key_dim=20 value_dim=12 q_rank=0 compared=False seed=257
    beside="n:output_norm" rope.dimension_sections=[2,1,1,0] swiglu_clamp_exp=0.4 swiglu_clamp_shexp=None
    expert_shared_feed_forward_length=12 kda.safe_gate=None attention.q_lora_rank=None kda.head_dim=16
glm5-next-all: glm5-next n_layers=5 key_dim=20 value_dim=12 n_rot=0 compared=False seed=258
    attention.indexer.types=None attention.layer_norm_epsilon=0.01 attention.indexer.kpool=2
    attention.indexer.top_k=6 swiglu_clamp_shexp=0.4 kda.gate_lower_bound=None expert_gating_func=1
    attention.indexer.kpool_select_tail=True
qwen4exp-plain: qwen4exp n_layers=3 compared=False seed=259 ple.layers=None ple.ngram_size=None
    ple.heads_per_ngram=None ple.conv_kernel=None ple.eos_token_id=None ple.layer_multipliers=None
    ple.head_vocab_sizes=None ple.head_offsets=None embedding_length_per_layer_input=None
    attention.recurrent_layers=[False,True,False] full_attention_interval=None
    attention.compress_ratios=[4,0,4]
    attention.indexer.top_k=10 beside="gate_mix" n_rot=8 rope.dimension_sections=[2,1,1,0]
deepseek4-yarn: deepseek4 n_layers=4 n_kv_heads=1 n_rot=8 compared=False seed=260 +yarn
    rope.scaling.attn_factor=1.3 hash_layer_count=0 attention.compress_ratios=[0,4,4,0]
    expert_weights_norm=None
    swiglu_clamp_exp=[0.5,0.4,0.3,0.0] swiglu_clamp_shexp=0.7 attention.output_group_count=4
laguna-full: laguna compared=False seed=241 beside="n:output_norm" attention.sliding_window=None
    expert_gating_func=1 expert_shared_count=None
spark2_5-layers: spark2_5 n_layers=3 compared=False seed=242 layer="n:attn_norm q k v o gates n:ffn_norm gate
    up
    down" heads_of_layers=((4,2,40),(6,3,24),(2,1,40)) attention.key_length=8 attention.value_length=8
    rope.freq_base_swa=50.0 rope.scaling.factor=2.0
gemma3n-gates: gemma3n n_layers=3 seed=197 compared=False activation_sparsity_scale=[0.5,0.0,-1e999]
    attention.sliding_window_pattern=[True,False,True] attention.shared_kv_layers=1
"""
"""A model on each line, and on the indented lines below it."""
VARIANTS = {name: variant(words) for name, words in rows(SPECS)}
"""Options that files of an architecture may have."""
