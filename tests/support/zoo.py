"""Small random models of every architecture, with whatever options files may have, as GGUF bytes.

What an architecture is comes from `architectures.py`. The same name gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gguf
import numpy as np

from oxillama.formats import FORMATS
from tests.support import gguf_writer as ggufwriter
from tests.support.architectures import ARCHITECTURES, LATENT, Architecture

VOCAB = 48

ENCODERS = tuple(name for name, facts in ARCHITECTURES.items() if facts.encoder)
RECURRENT = tuple(name for name, facts in ARCHITECTURES.items() if facts.recurrent)
UNGATED = ("nomic-bert-moe",)  # their experts have no gate
FEED = ("gate", "up", "down")


@dataclass
class Model:
    """Sizes, and what differs from the usual file of an architecture.

    ``layer``, ``beside`` and ``extra`` name tensors, in the words of `Architecture`; ``keys`` are metadata
    (key without prefix: (kind, value)) to add, to change or, with None, to take away.
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
    layer: str | None = None
    beside: str | None = None
    extra: str = ""
    keys: dict[str, tuple[str, Any] | None] = field(default_factory=dict)
    seed: int = 0
    q_rank: int = 20
    kv_rank: int = 16
    old_latent: bool = False
    heads_of_layers: tuple[tuple[int, int, int], ...] = ()  # query heads, key heads, width of each layer
    compared: bool = True  # with llama.cpp: it cannot load some sound files, and no scores are recorded

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
            "vocab_size": (u, VOCAB),
        }
        if self.key_dim != self.n_embd // self.n_heads:
            found["attention.key_length"] = (u, self.key_dim)
            found["attention.value_length"] = (u, self.value_dim)
        tokens = {token.removesuffix("+b") for token in self.parts().split()}
        hybrid = self.latent and bool(facts.mixed)
        if facts.recurrent:
            found |= self._recurrent_metadata()
        if facts.rope != "none":
            found["rope.dimension_count"] = (u, self.n_rot)
            found["rope.freq_base"] = ("f32", 100.0)
        if tokens & {"moe", "dense", "both"}:
            found["expert_count"] = (u, self.n_experts)
            found["expert_used_count"] = (u, self.n_used)
        if facts.keys.get("expert_feed_forward_length", ("", ""))[1] != "=expert_ff":
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
        for key, (kind, value) in facts.keys.items():
            of_model = isinstance(value, str) and value.startswith("=")
            found[key] = (kind, getattr(self, value[1:]) if of_model else value)
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
        if self.architecture == "rwkv7" and self.n_embd % 64 == 0:
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
        if self.facts.mixed != "delta":
            return i % 2 == 1
        stated = self.facts.keys | self.keys
        recurrent, every = stated.get("attention.recurrent_layers"), stated.get("full_attention_interval")
        if recurrent is not None:
            return not recurrent[1][i]
        return (i + 1) % (every[1] if every else 4) == 0

    def _recurrent_metadata(self) -> dict[str, tuple[str, Any] | None]:
        a, u = self.architecture, "u32"
        mixed, tokens = self.facts.mixed, self.parts().split()
        second = mixed == "mamba2" or bool({"mamba2", "single"}.intersection(tokens))
        found: dict[str, tuple[str, Any] | None] = {}
        if mixed == "delta":  # the file says which layers attend in other words
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
        if a.startswith("rwkv"):
            found["wkv.head_size"] = (u, self.head_size)
            ranks = {"decay": 5, "iclr": 6, "value_residual_mix": 3, "gate": 7}
            sixth = {"time_mix_extra_dim": (u, 5), "time_decay_extra_dim": (u, 6)}
            seventh = {f"attention.{name}_lora_rank": (u, rank) for name, rank in ranks.items()}
            return found | (sixth | {"rescale_every_n_layers": (u, 2)} if a == "rwkv6" else seventh)
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
            add(f"{block}.ssm_f_a", dim, d)
            add(f"{block}.ssm_f_b", wide, dim)
            add(f"{block}.ssm_g_a", dim, d)
            add(f"{block}.ssm_g_b", wide, dim)
            add(f"{block}.ssm_beta", self.n_heads, d)
            bare("ssm_a", -np.exp(rng.standard_normal((1, 1, self.n_heads, 1))))
            bare("ssm_dt.bias", rng.standard_normal(wide))
            add(f"{block}.ssm_norm", dim)
            add(f"{block}.attn_output", d, wide)
        elif kind == "shortconv":
            add(f"{block}.shortconv.conv", d, 3)
            add(f"{block}.shortconv.in_proj", 3 * d, d)
            add(f"{block}.shortconv.out_proj", d, d)
        else:
            for name in ("receptance", "key", "value", "output"):
                add(f"{block}.time_mix_{name}", d, d)
            add(f"{block}.time_mix_ln", d, bias=True)
            for name in ("k", "r")[: 2 if kind == "rwkv6" else 1]:
                bare(f"channel_mix_lerp_{name}.weight", rng.random((1, 1, d)))
            add(f"{block}.channel_mix_key", ff, d)
            add(f"{block}.channel_mix_value", d, ff)
            if kind == "rwkv6":
                add(f"{block}.channel_mix_receptance", d, d)
                add(f"{block}.time_mix_gate", d, d)
                add(f"{block}.time_mix_w1", 25, d)
                bare("time_mix_w2.weight", 0.3 * rng.standard_normal((5, d, 5)))
                bare("time_mix_lerp_x.weight", rng.random((1, 1, d)))
                bare("time_mix_lerp_fused.weight", rng.random((5, 1, 1, d)))
                bare("time_mix_first.weight", rng.standard_normal((d // self.head_size, self.head_size)))
                add(f"{block}.time_mix_decay", d)
                add(f"{block}.time_mix_decay_w1", 6, d)
                add(f"{block}.time_mix_decay_w2", d, 6)
                return
            bare("time_mix_lerp_fused.weight", rng.random((6, 1, 1, d)))
            for name, rank in (("w", 5), ("a", 6), ("v", 6 if block == "blk.0" else 3), ("g", 7)):
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

        add("token_embd", VOCAB, d)
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
                    add("per_layer_token_embd", VOCAB, self.n_layers * width)
                    add("per_layer_model_proj", self.n_layers * width, d)
                    add("per_layer_proj_norm", width)
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
                add(name, VOCAB, d, bias=bias)
        for i in range(self.n_layers):
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
        for token in tokens:
            name, bias = token.removesuffix("+b"), token.endswith("+b")
            if name == "mixed" and self.attends(i):
                if self.latent:
                    self._add_latent(block, heads, d, add)
                    continue
                for part in self.facts.attention.split():
                    add(f"{block}.{names[part]}", *shapes[part])
            elif name in ("mixed", "mamba", "mamba2", "rwkv6", "rwkv7"):
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
            elif name in ("gates", "gates2"):
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
                self._add_latent(block, heads, d, add)
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
        if self.architecture not in UNGATED:
            add(f"{block}.ffn_gate_exps", e, width, d, bias=bias)
        add(f"{block}.ffn_up_exps", e, width, d, bias=bias)
        add(f"{block}.ffn_down_exps", e, d, width, bias=bias)

    def _add_latent(self, block: str, heads: int, d: int, add: Callable[..., None]) -> None:
        fixed, rank = self.key_dim - self.n_rot, self.kv_rank
        if self.q_rank:
            add(f"{block}.attn_q_a", self.q_rank, d)
            add(f"{block}.attn_q_a_norm", self.q_rank)
            add(f"{block}.attn_q_b", heads * self.key_dim, self.q_rank)
        else:
            add(f"{block}.attn_q", heads * self.key_dim, d)
        add(f"{block}.attn_kv_a_mqa", rank + self.n_rot, d)
        add(f"{block}.attn_kv_a_norm", rank)
        if self.old_latent:
            add(f"{block}.attn_kv_b", heads * (fixed + self.value_dim), rank)
        else:
            add(f"{block}.attn_k_b", heads, rank, fixed)
            add(f"{block}.attn_v_b", heads, self.value_dim, rank)
        add(f"{block}.attn_output", d, heads * self.value_dim)

    def file(self, **replaced: np.ndarray | None) -> bytes:
        """The GGUF file, all F32; tensors can be replaced or, with None, left out."""
        tensors = {name: values for name, values in (self.tensors() | replaced).items() if values is not None}
        return self._file([stored(name, values, "F32") for name, values in tensors.items()])

    def quantized(self, formats: Sequence[str], vectors: str = "F32") -> tuple[bytes, dict[str, np.ndarray]]:
        """The file with ``formats`` dealt to the matrices whose rows fit (the others are F16), and what its
        tensors hold then."""
        tensors, held = [], {}
        for i, (name, values) in enumerate(self.tensors().items()):
            kind = vectors
            if values.ndim > 1:
                fits = values.shape[-1] % FORMATS[formats[i % len(formats)]].block_len == 0
                kind = formats[i % len(formats)] if fits else "F16"
            tensors.append(stored(name, values, kind))
            quantization = gguf.GGMLQuantizationType[kind]
            held[name] = gguf.quants.dequantize(gguf.quants.quantize(values, quantization), quantization)
        return self._file(tensors), held

    def _file(self, tensors: list[ggufwriter.Tensor]) -> bytes:
        pairs: list[tuple[str, str, Any]] = [
            ("general.architecture", "str", self.architecture),
            ("tokenizer.ggml.model", "str", "no_vocab"),
        ]
        if self.facts.encoder:
            pairs.append(("tokenizer.ggml.token_type_count", "u32", 2))
        pairs += [(self.full_key(key), *pair) for key, pair in self.metadata().items()]
        return ggufwriter.write(pairs, tensors)


def stored(name: str, values: np.ndarray, kind: str) -> ggufwriter.Tensor:
    """A tensor in one of the formats that the gguf package can quantize to."""
    data = gguf.quants.quantize(np.ascontiguousarray(values, np.float32), gguf.GGMLQuantizationType[kind])
    return ggufwriter.Tensor(name, values.shape[::-1], FORMATS[kind].file_id, data.tobytes())


YARN = {
    "rope.scaling.type": ("str", "yarn"),
    "rope.scaling.factor": ("f32", 4.0),
    "rope.scaling.original_context_length": ("u32", 32),
}

MODELS: dict[str, Model] = {
    name: Model(name, **({"seed": sum(name.encode())} | facts.sizes)) for name, facts in ARCHITECTURES.items()
}
"""One of each architecture."""

VARIANTS: dict[str, Model] = {
    "nemotron_h_moe-latent": Model(
        "nemotron_h_moe",
        n_layers=5,
        n_experts=8,
        n_used=3,
        keys={
            "attention.layer_norm_rms_epsilon": None,
            "expert_weights_scale": ("f32", 1.5),
            "expert_group_count": ("u32", 4),
            "expert_group_used_count": ("u32", 2),
            "moe_latent_size": ("u32", 12),
            "ssm.group_count": ("u32", 1),
        },
        seed=184,
    ),
    "nemotron_h_moe-puzzle": Model(  # experts used, and their width, by the layer; 0 where a layer has none
        "nemotron_h_moe",
        n_layers=8,
        n_experts=6,
        keys={
            "feed_forward_length": ("[u32]", [0, 24, 0, 0, 40, 0, 0, 12]),
            "expert_feed_forward_length": ("[u32]", [0, 24, 0, 0, 40, 0, 0, 12]),
            "expert_used_count": ("[u32]", [0, 2, 0, 0, 5, 0, 0, 1]),
            "moe_latent_size": ("u32", 12),
        },
        seed=205,
    ),
    "falcon-h1-plain": Model("falcon-h1", extra="no_ssm_norm", n_rot=4, seed=185),
    "qwen3next-by-key": Model("qwen3next", extra="by_key", seed=180),
    "qwen3next-groups": Model(
        "qwen3next",
        n_layers=4,
        n_rot=4,
        keys={
            "full_attention_interval": None,
            "ssm.state_size": ("u32", 33),
            "ssm.group_count": ("u32", 1),
            "ssm.time_step_rank": ("u32", 3),
            "ssm.inner_size": ("u32", 99),
            "ssm.conv_kernel": ("u32", 2),
        },
        seed=181,
    ),
    "qwen35-layers": Model(
        "qwen35",
        n_layers=3,
        beside="n:output_norm",
        keys={
            "attention.recurrent_layers": ("[bool]", [True, True, False]),
            "rope.dimension_sections": ("[i32]", [2, 2, 1, 1]),
        },
        key_dim=12,
        value_dim=12,
        n_rot=12,
        seed=182,
    ),
    "kimi-scaled": Model(
        "kimi-linear",
        q_rank=0,
        keys={"expert_weights_scale": ("f32", 2.4), "kda.head_dim": ("u32", 16)},
        seed=183,
        **(LATENT | {"n_layers": 4}),  # type: ignore[arg-type]
    ),
    "llama-mixtral": Model("llama", layer="n:attn_norm q k v o n:ffn_norm moe", seed=100),
    "llama-rope_freqs": Model("llama", beside="n:output_norm rope_freqs", seed=101),
    "llama-yarn": Model("llama", keys=dict(YARN), seed=102),
    "llama-linear-attn_factor": Model(
        "llama",
        keys={"rope.scaling.factor": ("f32", 3.0), "rope.scaling.attn_factor": ("f32", 1.2)},
        seed=103,
    ),
    "llama-biases": Model(
        "llama", layer="n:attn_norm q+b k+b v+b o+b n:ffn_norm gate+b up+b down+b", seed=104
    ),
    "llama-arrays": Model(
        "llama",
        n_layers=3,
        heads_of_layers=((4, 2, 40), (8, 4, 24), (2, 1, 56)),
        compared=False,
        seed=105,
        keys={"attention.key_length": ("u32", 8), "attention.value_length": ("u32", 8)},
    ),
    "llama-windows": Model("llama", keys={"attention.sliding_window": ("u32", 6)}, compared=False, seed=98),
    "mpt-norms": Model(
        "mpt",
        n_kv_heads=4,
        layer="n:attn_norm qkv r:attn_q_norm+b r:attn_k_norm+b o n:ffn_norm up down",
        compared=False,
        seed=97,
    ),
    "falcon-many-heads": Model(
        "falcon", n_heads=71, n_kv_heads=1, n_embd=71 * 2, key_dim=2, value_dim=2, n_rot=2, seed=95
    ),
    "llama4-plain": Model(
        "llama4", n_layers=4, keys={"attention.sliding_window": ("u32", 0)}, compared=False, seed=96
    ),
    "llama-wide": Model(
        "llama", n_embd=96, n_heads=6, n_kv_heads=3, key_dim=16, value_dim=16, n_rot=16, seed=99
    ),
    "mistral3-sharp": Model(
        "mistral3",
        keys=YARN
        | {
            "attention.temperature_scale": ("f32", 0.3),
            "rope.scaling.original_context_length": ("u32", 8),
            "rope.scaling.yarn_log_multiplier": ("f32", 0.7),
        },
        seed=106,
    ),
    "llama4-one": Model("llama4", n_layers=4, n_used=1, seed=108),
    "granite-unturned": Model("granite", keys={"rope.scaling.finetuned": ("bool", False)}, seed=109),
    "granitemoe-shared": Model(
        "granitemoe",
        layer="n:attn_norm q k v o n:ffn_norm moe shexp",
        keys={
            "expert_shared_feed_forward_length": ("u32", 20),
            "attention.scale": ("f32", 0.4),
            "residual_scale": ("f32", 0.7),
        },
        seed=110,
    ),
    "minicpm-scales": Model(
        "minicpm",
        keys={"logit_scale": ("f32", 2.0), "residual_scale": ("f32", 0.7), "embedding_scale": ("f32", 2.0)},
        seed=111,
    ),
    "minicpm-longrope": Model(
        "minicpm",
        beside="n:output_norm factors",
        keys={
            "rope.scaling.type": ("str", "longrope"),
            "rope.scaling.original_context_length": ("u32", 64),
        },
        seed=112,
    ),
    "grok-dense": Model(
        "grok",
        layer="n:attn_norm q k v o n:attn_output_norm n:ffn_norm gate up down moe n:post_ffw_norm",
        keys={
            "final_logit_softcapping": ("f32", 5.0),
            "attention.output_scale": ("f32", 0.3),
            "attn_logit_softcapping": ("f32", 4.0),
            "logit_scale": ("f32", 0.8),
            "embedding_scale": ("f32", 3.0),
        },
        seed=113,
    ),
    "qwen2vl-still": Model(
        "qwen2vl",
        n_rot=8,
        keys={"rope.dimension_sections": ("[i32]", [1, 1, 1, 1])},
        seed=115,
    ),
    "qwen3-wide-heads": Model("qwen3", key_dim=20, value_dim=20, n_rot=20, seed=116),
    "qwen3-yarn": Model("qwen3", keys=dict(YARN), seed=117),
    "gemma2-caps": Model(
        "gemma2",
        n_layers=4,
        keys={"attn_logit_softcapping": ("f32", 2.0), "final_logit_softcapping": ("f32", 3.0)},
        seed=118,
    ),
    "gemma2-46": Model("gemma2", n_layers=46, n_embd=24, n_ff=16, key_dim=8, seed=119),
    "gemma2-period": Model(
        "gemma2", n_layers=4, keys={"attention.sliding_window_pattern": ("u32", 3)}, seed=120
    ),
    "gemma3-array": Model(
        "gemma3",
        n_layers=4,
        keys={
            "attention.sliding_window_pattern": ("[bool]", [True, False, False, True]),
            "rope.scaling.factor": ("f32", 8.0),
            "rope.freq_base_swa": ("f32", 50.0),
        },
        seed=121,
    ),
    "gemma3-plain": Model(
        "gemma3", keys={"attention.sliding_window": None}, beside="n:output_norm output", seed=122
    ),
    "phi2-split": Model("phi2", layer="n:attn_norm+b q+b k+b v+b o+b up+b down+b", n_rot=4, seed=123),
    "phi3-window": Model(
        "phi3",
        keys={
            "attention.sliding_window": ("u32", 4),
            "rope.scaling.original_context_length": ("u32", 64),
            "rope.scaling.attn_factor": ("f32", 1.19),
        },
        seed=124,
    ),
    "command-r-plus": Model("command-r", n_layers=64, n_ff=16, extra="e:attn_q_norm e:attn_k_norm", seed=125),
    "cohere2-unscaled": Model(
        "cohere2", n_layers=4, keys={"attention.sliding_window_pattern": ("u32", 2)}, seed=126
    ),
    "deepseek-scaled": Model(
        "deepseek",
        n_layers=3,
        keys={"expert_weights_scale": ("f32", 1.7), "leading_dense_block_count": None},
        layer="n:attn_norm q k v o n:ffn_norm moe shexp",
        seed=127,
    ),
    "deepseek2-v3": Model(
        "deepseek2",
        n_experts=8,
        n_used=3,
        extra="probs",
        keys=YARN
        | {
            "expert_gating_func": ("u32", 2),
            "expert_weights_norm": ("bool", True),
            "expert_weights_scale": ("f32", 2.5),
            "expert_group_count": ("u32", 4),
            "expert_group_used_count": ("u32", 2),
            "rope.scaling.yarn_log_multiplier": ("f32", 0.07),
        },
        seed=128,
        **LATENT,  # type: ignore[arg-type]
    ),
    "deepseek2-old": Model(
        "deepseek2",
        old_latent=True,
        keys=dict(YARN),
        seed=129,
        **LATENT,  # type: ignore[arg-type]
    ),
    "deepseek2-lite": Model(
        "deepseek2",
        q_rank=0,
        keys={"attention.q_lora_rank": None},
        seed=130,
        n_ff=16,
        expert_ff=8,
        **(LATENT | {"n_layers": 26}),  # type: ignore[arg-type]
    ),
    "deepseek2-sharp": Model(
        "deepseek2",
        keys={"attention.temperature_scale": ("f32", 0.3), "attention.temperature_length": ("u32", 4)},
        seed=131,
        **LATENT,  # type: ignore[arg-type]
    ),
    "minicpm3-factors": Model(
        "minicpm3",
        old_latent=True,
        beside="n:output_norm factors",
        keys={"rope.scaling.original_context_length": ("u32", 64)},
        seed=132,
        **LATENT,  # type: ignore[arg-type]
    ),
    "falcon-40b": Model(
        "falcon", layer="n:attn_norm+b n:attn_norm_2+b qkv o up down", beside="n:output_norm+b", seed=133
    ),
    "bloom-odd": Model("bloom", n_heads=6, n_kv_heads=6, n_embd=48, seed=134),
    "mpt-all": Model(
        "mpt",
        n_kv_heads=4,
        layer="n:attn_norm+b qkv+b o+b n:ffn_norm+b up+b down+b act",
        beside="n:output_norm+b position_embd output",
        keys={"attention.max_alibi_bias": None, "attention.clamp_kqv": ("f32", 0.8)},
        seed=135,
    ),
    "mpt-alibi16": Model(
        "mpt", keys={"attention.max_alibi_bias": ("f32", 16.0)}, n_heads=2, key_dim=16, value_dim=16, seed=136
    ),
    "gptneox-sequential": Model(
        "gptneox", n_rot=4, keys={"use_parallel_residual": ("bool", False)}, seed=137
    ),
    "stablelm-12b": Model(
        "stablelm", layer="n:attn_norm+b q k v o e:attn_q_norm e:attn_k_norm gate up down", n_rot=2, seed=138
    ),
    "stablelm-biases": Model(
        "stablelm", layer="n:attn_norm+b q+b k+b v+b o n:ffn_norm+b gate up down", seed=139
    ),
    "olmo-clamp": Model("olmo", beside="output", keys={"attention.clamp_kqv": ("f32", 0.5)}, seed=140),
    "olmo2-windows": Model(
        "olmo2", n_layers=4, keys=YARN | {"attention.sliding_window": ("u32", 6)}, seed=141
    ),
    "gpt-oss-yarn": Model("gpt-oss", n_layers=4, keys=dict(YARN), seed=142),
    "glm4-sections": Model(
        "glm4", keys={"rope.dimension_sections": ("[i32]", [2, 1, 1, 0])}, n_rot=8, seed=143
    ),
    "jina-fused": Model(
        "jina-bert-v2",
        n_kv_heads=4,
        layer="q+b k+b v+b r:attn_q_norm+b r:attn_k_norm+b o+b n:attn_output_norm+b n:attn_norm_2+b up2+b"
        " down+b n:layer_output_norm+b",
        seed=144,
    ),
    "jina-ungated": Model(
        "jina-bert-v2",
        layer="q+b k+b v+b o+b n:attn_output_norm+b up+b down+b n:layer_output_norm+b",
        seed=145,
    ),
    "bert-cls": Model(
        "bert",
        layer="q k v o n:attn_output_norm+b up down n:layer_output_norm+b",
        keys={"pooling_type": ("u32", 2)},
        seed=146,
    ),
    "bert-rank": Model(
        "bert",
        beside=f"{ARCHITECTURES['bert'].beside} cls+b cls.output1+b",
        keys={"pooling_type": ("u32", 4)},
        compared=False,
        seed=174,
    ),
    "bert-rank-labels": Model(
        "bert",
        beside=f"{ARCHITECTURES['bert'].beside} cls.output3+b",
        keys={"pooling_type": ("u32", 4), "classifier.output_labels": ("[str]", ["no", "maybe", "yes"])},
        compared=False,
        seed=175,
    ),
    "jina-rank": Model(
        "jina-bert-v2",
        beside=f"{ARCHITECTURES['jina-bert-v2'].beside} cls1+b",
        keys={"pooling_type": ("u32", 4)},
        compared=False,
        seed=176,
    ),
    "qwen3-rank": Model(
        "qwen3",
        beside="n:output_norm output cls.output2",
        keys={"pooling_type": ("u32", 4), "classifier.output_labels": ("[str]", ["yes", "no"])},
        compared=False,
        seed=177,
    ),
    "nomic-bert-plain": Model("nomic-bert", keys={"rope.freq_base": ("f32", 1000.0)}, n_rot=4, seed=147),
    "nemotron-biases": Model(
        "nemotron", layer="n:attn_norm+b q+b k+b v+b o+b n:ffn_norm+b up+b down+b", n_rot=4, seed=148
    ),
    "gpt2-untied": Model("gpt2", beside="position_embd n:output_norm+b output", seed=149),
    "orion-long": Model("orion", n_heads=8, n_kv_heads=8, key_dim=4, value_dim=4, n_rot=4, seed=150),
    "phimoe-short": Model("phimoe", keys={"rope.scaling.original_context_length": ("u32", 512)}, seed=151),
    "dbrx-experts": Model("dbrx", n_experts=7, n_used=4, seed=152),
    "qwen3moe-many": Model("qwen3moe", n_experts=16, n_used=5, seed=153),
    "deepseek2-linear": Model(
        "deepseek2",
        keys={
            "rope.scaling.factor": ("f32", 4.0),
            "rope.scaling.yarn_log_multiplier": ("f32", 0.07),
        },
        seed=157,
        **LATENT,  # type: ignore[arg-type]
    ),
    "gemma3-magnitude": Model(
        "gemma3",
        n_layers=3,
        keys={
            "attention.sliding_window_pattern": ("u32", 2),
            "rope.scaling.attn_factor": ("f32", 1.3),
            "rope.scaling.factor": ("f32", 2.0),
        },
        seed=158,
    ),
    "glm4-text": Model("glm4", keys={"rope.dimension_sections": ("[i32]", [0, 2, 2, 0])}, seed=159),
    "llama4-pattern": Model(
        "llama4",
        n_layers=4,
        keys={
            "attention.sliding_window_pattern": ("[u32]", [0, 1, 0, 1]),
            "rope.freq_base_swa": ("f32", 20.0),
        },
        seed=160,
    ),
    "gpt-oss-bases": Model(
        "gpt-oss",
        n_layers=3,
        keys={
            "attention.sliding_window_pattern": ("u32", 3),
            "rope.freq_base_swa": ("f32", 20.0),
            "feed_forward_length": None,
        },
        seed=161,
    ),
    "granitemoe-turned": Model("granitemoe", keys={"rope.scaling.finetuned": ("bool", False)}, seed=162),
    "granite-moe": Model("granite", layer="n:attn_norm q k v o n:ffn_norm moe", seed=163),
    "granitehybrid-moe": Model(
        "granitehybrid",
        layer="n:attn_norm mixed n:ffn_norm moe shexp",
        keys={
            "expert_shared_feed_forward_length": ("u32", 20),
            "rope.scaling.finetuned": ("bool", False),
            "logit_scale": None,
            "ssm.group_count": ("u32", 1),
            "ssm.time_step_rank": ("u32", 8),
            "ssm.conv_kernel": ("u32", 3),
        },
        seed=164,
    ),
    "olmo2-base": Model(  # the base of windowed layers is for families that have another one there
        "olmo2",
        n_layers=4,
        keys={"attention.sliding_window": ("u32", 6), "rope.freq_base_swa": ("f32", 20.0)},
        seed=165,
    ),
    "lfm2-windows": Model(
        "lfm2",
        n_layers=4,
        keys={"attention.sliding_window": ("u32", 5), "attention.sliding_window_pattern": ("u32", 1)},
        seed=166,
    ),
    "phimoe-partial": Model("phimoe", n_rot=4, seed=167),
    "nomic-bert-moe-third": Model(
        "nomic-bert-moe", n_layers=5, keys={"moe_every_n_layers": ("u32", 3)}, seed=168
    ),
    "bert-causal": Model("bert", keys={"attention.causal": ("bool", True)}, seed=169),
    "mamba-rms": Model(
        "mamba", keys={"ssm.dt_b_c_rms": ("bool", True), "ssm.conv_kernel": ("u32", 2)}, seed=170
    ),
    "mamba2-narrow": Model(
        "mamba2",
        keys={
            "ssm.inner_size": ("u32", 48),
            "ssm.time_step_rank": ("u32", 6),
            "ssm.group_count": ("u32", 3),
        },
        seed=171,
    ),
    "jamba-norms": Model(
        "jamba", n_layers=4, keys={"ssm.dt_b_c_rms": ("bool", False), "ssm.state_size": ("u32", 16)}, seed=172
    ),
    "rwkv6-unscaled": Model("rwkv6", keys={"rescale_every_n_layers": None}, seed=173),
    "smollm3-eight": Model("smollm3", n_layers=8, seed=154),
    "starcoder-one-head": Model("starcoder", n_kv_heads=1, seed=155),
    "chatglm-partial": Model("chatglm", n_rot=4, seed=156),
    "baichuan-7b": Model(
        "baichuan", n_layers=32, n_embd=16, n_ff=12, key_dim=4, value_dim=4, n_rot=4, seed=180
    ),
    "baichuan-13b": Model("baichuan", n_layers=40, n_embd=16, n_ff=12, key_dim=4, value_dim=4, seed=181),
    "exaone4-64": Model(
        "exaone4",
        n_layers=64,
        n_embd=16,
        n_ff=12,
        key_dim=4,
        value_dim=4,
        n_rot=4,
        keys={"attention.sliding_window": ("u32", 6)},
        seed=182,
    ),
    "openelm-layers": Model(
        "openelm",
        n_layers=3,
        heads_of_layers=((4, 2, 40), (8, 4, 24), (2, 1, 56)),
        keys={"attention.key_length": ("u32", 8), "attention.value_length": ("u32", 8)},
        seed=183,
    ),
    "mimo2-layers": Model(
        "mimo2",
        n_layers=3,
        key_dim=12,
        n_rot=4,
        heads_of_layers=((4, 1, 40), (4, 2, 40), (4, 4, 40)),
        keys={"feed_forward_length": ("u32", 40), "rope.freq_base_swa": ("f32", 20.0)},
        layer="n:attn_norm q k v o n:ffn_norm dense",
        seed=184,
    ),
    "step35-layers": Model(
        "step35",
        n_layers=3,
        heads_of_layers=((4, 2, 40), (6, 2, 40), (8, 2, 40)),
        keys={
            "attention.key_length": ("u32", 8),
            "attention.value_length": ("u32", 8),
            "feed_forward_length": ("u32", 40),
            "rope.dimension_count_swa": ("u32", 8),
            "rope.dimension_count": ("u32", 4),
            "swiglu_clamp_exp": ("f32", 0.4),
            "swiglu_clamp_shexp": None,
        },
        layer="n:attn_norm q k v o n:ffn_norm dense shexp",
        seed=185,
    ),
    "apertus-layers": Model(
        "apertus",
        keys={
            "/xielu.alpha_p": ("[f32]", [0.3, 0.8]),
            "/xielu.alpha_n": ("[f32]", [0.6, -0.2]),
            "/xielu.beta": ("[f32]", [0.5, 0.3]),
            "/xielu.eps": ("[f32]", [-1e-6, -0.1]),
        },
        beside="n:output_norm output rope_freqs",
        seed=186,
    ),
    "smallthinker-full": Model("smallthinker", keys={"attention.sliding_window": None}, seed=187),
    "bailingmoe2-groups": Model(
        "bailingmoe2",
        n_experts=8,
        keys={
            "expert_group_count": ("u32", 4),
            "expert_group_used_count": ("u32", 2),
            "expert_shared_feed_forward_length": ("u32", 12),
            "expert_shared_count": ("u32", 2),
        },
        seed=188,
    ),
    "glm4moe-sections": Model("glm4moe", keys={"rope.dimension_sections": ("[i32]", [2, 1, 1, 0])}, seed=200),
    "glm4moe-biases": Model(
        "glm4moe",
        layer="n:attn_norm q+b k+b v+b o n:post_attention_norm shexp dense probs",
        n_rot=4,
        keys={"expert_gating_func": ("u32", 1), "expert_weights_norm": None, "expert_weights_scale": None},
        seed=189,
    ),
    "granite_swa-dense": Model(
        "granite_swa",
        layer="n:attn_norm q k v o sinks n:ffn_norm gate up down",
        seed=190,
        keys={"attention.rope_pattern": None},
    ),
    "mistral4-sharp": Model(
        "mistral4",
        keys=YARN
        | {
            "attention.temperature_scale": ("f32", 0.3),
            "attention.temperature_length": ("u32", 4),
            "rope.scaling.yarn_log_multiplier": ("f32", 0.1),
        },
        seed=191,
        **LATENT,
    ),
    "qwen3vl-still": Model(
        "qwen3vl", n_rot=8, keys={"rope.dimension_sections": ("[i32]", [1, 1, 1, 1])}, seed=192
    ),
    "modern-bert-silu": Model(
        "modern-bert",
        n_layers=3,
        n_kv_heads=4,
        keys={
            "hidden_activation": ("str", "silu"),
            "rope.freq_base_swa": ("f32", 50.0),
            "attention.sliding_window": ("u32", 5),
            "attention.sliding_window_pattern": ("[bool]", [False, True, True]),
        },
        seed=193,
    ),
    "gemma-embedding-dense": Model(
        "gemma-embedding",
        n_layers=2,
        beside="n:output_norm dense_2 dense_3",
        compared=False,  # its tokens' states, of which llama.cpp shows what the matrices make
        seed=198,
    ),
    "t5encoder-plain": Model(
        "t5encoder",
        n_kv_heads=4,
        layer="n:attn_norm q k v o n:ffn_norm up down",
        keys={"attention.relative_buckets_count": ("u32", 32)},
        seed=199,
    ),
    "gemma4-experts": Model(
        "gemma4",
        n_layers=4,
        key_dim=16,
        value_dim=16,
        n_rot=16,
        layer="n:attn_norm q k v o h:attn_q_norm h:attn_k_norm n:post_attention_norm n:ffn_norm gate up down"
        " n:post_ffw_norm both output_scale",
        beside="n:output_norm output rope_freqs",
        keys={
            "attention.shared_kv_layers": ("u32", 0),
            "embedding_length_per_layer_input": ("u32", 0),
            "final_logit_softcapping": ("f32", 3.0),
            "expert_feed_forward_length": ("u32", 40),
            "rope.freq_base_swa": ("f32", 50.0),
        },
        seed=194,
    ),
    "gemma4-heads": Model(
        "gemma4",
        n_layers=6,
        key_dim=16,
        value_dim=16,
        n_rot=16,
        heads_of_layers=((4, 2, 40), (4, 2, 40), (4, 1, 40), (4, 2, 24), (4, 2, 24), (4, 1, 24)),
        seed=195,
    ),
    "gemma3n-deep": Model(
        "gemma3n",
        n_layers=22,
        n_ff=24,
        keys={
            "attention.shared_kv_layers": None,
            "embedding_length_per_layer_input": ("u32", 4),
            "final_logit_softcapping": ("f32", 3.0),
            "rope.freq_base_swa": ("f32", 50.0),
        },
        compared=False,
        seed=198,
    ),
    "gemma3n-gates": Model(
        "gemma3n",
        n_layers=3,
        keys={
            "activation_sparsity_scale": ("[f32]", [0.5, 0.0, float("-inf")]),
            "attention.sliding_window_pattern": ("[bool]", [True, False, True]),
            "attention.shared_kv_layers": ("u32", 1),
        },
        compared=False,
        seed=197,
    ),
}
"""Options that files of an architecture may have."""
