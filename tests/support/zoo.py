"""Small random models of every architecture, with whatever options files may have, as GGUF bytes.

What an architecture is comes from `architectures.py`. The same name gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        """The metadata by keys without the architecture's prefix."""
        facts = self.facts
        eps = "layer_norm_epsilon" if facts.norm == "layer" else "layer_norm_rms_epsilon"
        heads, lengths = "attention.head_count_kv", ("attention.key_length", "attention.value_length")
        dims = self.key_dim, self.value_dim
        found: dict[str, Any] = {
            "block_count": self.n_layers,
            "context_length": self.context,
            "embedding_length": self.n_embd,
            "feed_forward_length": self.n_ff,
            "attention.head_count": self.n_heads,
            heads: self.n_kv_heads,
            f"attention.{eps}": 1e-3,
            "vocab_size": self.n_vocab,
        }
        if self.key_dim != self.n_embd // self.n_heads:
            found |= zip(lengths, dims)
        tokens = {token.removesuffix("+b") for token in self.parts().split()}
        if facts.recurrent and "compressed" not in tokens:
            found |= self._recurrent_metadata()
        if facts.rotates:
            found |= {"rope.dimension_count": self.n_rot, "rope.freq_base": 100.0}
        if tokens & {"moe", "dense", "both"}:
            found |= {"expert_count": self.n_experts, "expert_used_count": self.n_used}
        if facts.keys.get("expert_feed_forward_length") != "@expert_ff":
            self.expert_ff = self.n_ff
        if self.latent:
            found |= {"attention.q_lora_rank": self.q_rank, "attention.kv_lora_rank": self.kv_rank}
            if self.old_latent:
                found |= {heads: self.n_heads, **dict(zip(lengths, dims))}
            else:
                found |= {} if facts.mixed else {heads: 1}
                found |= zip(lengths, (self.kv_rank + self.n_rot, self.kv_rank))
                found |= zip((f"{length}_mla" for length in lengths), dims)
        for key, value in facts.keys.items():
            if isinstance(value, str) and value.startswith("@"):
                name = value[1:]
                value = DERIVED[name](self) if name in DERIVED else getattr(self, name)
            found[key] = value
        if facts.encoder:
            found |= {"attention.causal": False, "pooling_type": 1}
        if self.heads_of_layers:
            of_layers = map(list, zip(*self.heads_of_layers))
            found |= zip(("attention.head_count", heads, "feed_forward_length"), of_layers)
        pairs = {key: of_kind(key, value) for key, value in (found | self.keys).items()}
        return {key: pair for key, pair in pairs.items() if pair is not None}

    @property
    def head_size(self) -> int:
        """RWKV: the largest size up to 16 that divides the width; version 7: 64 if 64 divides the width."""
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
    def n_blocks(self) -> int:
        """Layers that the file has, which may be fewer than those that run."""
        stack = self.metadata().get("hrm.layers_per_stack")
        return 2 * stack[1] if stack else self.n_layers

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

    def _recurrent_metadata(self) -> dict[str, Any]:
        a, mixed, tokens = self.architecture, self.facts.mixed, self.parts().split()
        second = mixed == "mamba2" or bool({"mamba2", "single"}.intersection(tokens))
        found: dict[str, Any] = {}
        if mixed in BY_INTERVAL:  # the file says which layers attend in other words
            return found
        if mixed:
            kv_heads = 1 if self.latent else self.n_kv_heads
            found["attention.head_count_kv"] = [kv_heads * self.attends(i) for i in range(self.n_layers)]
        elif "single" in tokens:
            found["feed_forward_length"] = [self.n_ff * (i % 3 == 1) for i in range(self.n_layers)]
            found["attention.head_count_kv"] = [self.n_kv_heads * (i % 3 == 2) for i in range(self.n_layers)]
        elif "o" not in tokens:
            found["attention.head_count"] = 0
            keys = ("head_count_kv", "key_length", "value_length")
            found |= dict.fromkeys(f"attention.{key}" for key in keys)
        if "rwkv" in a:
            ranks = {"decay": 5, "iclr": 6, "value_residual_mix": 3, "gate": 7}
            sixth = {"time_mix_extra_dim": 5, "time_decay_extra_dim": 6}
            seventh = {f"attention.{name}_lora_rank": rank for name, rank in ranks.items()}
            found |= {"wkv.head_size": self.head_size, **(seventh if a.endswith("rwkv7") else sixth)}
            return found | ({"rescale_every_n_layers": 2} if a == "rwkv6" else {})
        if mixed == "kda":
            return found
        if mixed == "shortconv":
            return found | {"shortconv.l_cache": 3}
        found |= {"ssm.conv_kernel": 4, "ssm.inner_size": 2 * self.n_embd, "ssm.state_size": 7}
        found["ssm.time_step_rank"] = 2 if second else 5
        return found | ({"ssm.group_count": 2} if second else {})

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
        """The tensors by their GGUF names, float32."""
        return Maker(self).all_tensors()

    def file(self, **replaced: np.ndarray | None) -> bytes:
        """The GGUF file, all F32; tensors can be replaced or, with None, left out."""
        return self.file_of(self.tensors() | replaced)

    def file_of(self, tensors: Mapping[str, np.ndarray | None]) -> bytes:
        """The same with these tensors, whatever the metadata say of them."""
        there = {name: values for name, values in tensors.items() if values is not None}
        return self._file([stored(name, values, "F32") for name, values in there.items()])

    def _file(self, tensors: list[ggufwriter.Tensor]) -> bytes:
        pairs: list[tuple[str, str, Any]] = [
            ("general.architecture", "str", self.architecture),
            ("tokenizer.ggml.model", "str", "no_vocab"),
        ]
        if self.facts.encoder:
            pairs.append(("tokenizer.ggml.token_type_count", "u32", 2))
        pairs += [(self.full_key(key), *pair) for key, pair in self.metadata().items()]
        return ggufwriter.write(pairs, tensors)


DERIVED: dict[str, Callable[[Model], Any]] = {
    "twice_ff": lambda m: 2 * m.n_ff,
    "half_width": lambda m: m.n_embd // 2,  # of a hidden state
    "half_dim": lambda m: max(2, m.key_dim // 4 * 2),  # half a head, even
    "alternating": lambda m: [i % 2 == 0 for i in range(m.n_layers)],
    "every_second": lambda m: [i % 2 == 1 for i in range(m.n_layers)],
    "all_but_thirds": lambda m: [i % 3 < 2 for i in range(m.n_layers)],
    "block_sizes": lambda m: [3 * (i > 1) for i in range(m.n_layers)],  # 0 in the first that attends
    "limits": lambda m: [0.5 * i for i in range(m.n_layers)],
    "tight_limits": lambda m: [0.5 + 0.25 * i for i in range(m.n_layers)],
    "n_shared": lambda m: max(0, m.n_layers - 3),  # layers that share keys and values
    "low_passes": lambda m: m.n_layers - 1,  # through the low one of two stacks of one layer
    "wide_key": lambda m: m.n_rot + 6,  # of a selector, of which a part rotates
    "slices": lambda m: next(n for n in (4, 3, 2, 1) if m.n_embd % n == 0),  # that are normed apart
    "local_rank": lambda m: m.kv_rank + 3,  # of latent attention in layers with a window
    "local_row": lambda m: m.kv_rank + 3 + m.n_rot,  # numbers of such a layer's cached row
    "local_key": lambda m: m.n_rot + 5,
    "half_group": lambda m: 2 - m.n_experts % 2,  # experts of a group
    "half_rwkv_heads": lambda m: half_if_even(m.n_embd // m.head_size),
    "sections": lambda m: [m.n_rot // 2 - m.n_rot // 6 * 2, m.n_rot // 6, m.n_rot // 6, 0],
}
"""Metadata that follow from the sizes of a model, by the word behind "@"."""


def half_if_even(n: int) -> int:
    return n // 2 if n % 2 == 0 else n


Shapes = dict[str, tuple[int, ...]]
"""By name; a name with "+b" has a bias beside it."""


class Maker:
    """Makes the tensors of a model, one after the other: their order is that of their random numbers.

    Attributes:
        made: float32, by GGUF name.
        block: before the names of the tensors that are being made.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.metadata = model.metadata()
        self.rng = np.random.default_rng(model.seed + 1)
        self.made: dict[str, np.ndarray] = {}
        self.block = ""
        self.extra = model.extra.split()

    def of(self, key: str, default: Any = 0) -> Any:
        """A value of the metadata."""
        return self.metadata.get(key, ("", default))[1]

    def add(self, name: str, *shape: int, bias: bool = False) -> None:
        """A matrix, or numbers near 1."""
        spread = shape[-1] ** -0.5 if len(shape) > 1 else 0.0
        values = self.rng.standard_normal(shape)
        self.bare(f"{name}.weight", values * spread if spread else 1 + 0.3 * values)
        if bias:
            size = shape[:-1] if len(shape) > 1 else shape
            self.bare(f"{name}.bias", 0.3 * self.rng.standard_normal(size))

    def add_all(self, shapes: Shapes) -> None:
        for name, shape in shapes.items():
            self.add(name.removesuffix("+b"), *shape, bias=name.endswith("+b"))

    def bare(self, name: str, values: np.ndarray) -> None:
        """A tensor of these values."""
        self.made[f"{self.block}{name}"] = values.astype(np.float32)

    def all_tensors(self) -> dict[str, np.ndarray]:
        model, d = self.model, self.model.n_embd
        self.add("token_embd", model.n_vocab, d)
        self.made["token_embd.weight"] *= np.float32(d**0.5 / 2)
        for token in (model.facts.beside if model.beside is None else model.beside).split():
            self.add_beside(token.removesuffix("+b"), token.endswith("+b"))
        for i in range(model.n_blocks):
            self.block = f"blk.{i}."
            self.add_layer(i)
        self.block = ""
        if model.architecture == "t5encoder":
            self.add("blk.0.attn_rel_b", self.of("attention.relative_buckets_count"), model.n_heads)
            made = self.made.items()
            return {f"enc.{n.replace('attn_output', 'attn_o')}" if n[:4] == "blk." else n: x for n, x in made}
        return self.made

    def add_beside(self, name: str, bias: bool) -> None:
        """Tensors beside the layers."""
        model, d, width = self.model, self.model.n_embd, self.of("embedding_length_per_layer_input")
        wide = model.n_layers * width
        of_layers = {"per_layer_model_proj": (wide, d), "per_layer_proj_norm": (width,)}
        ngrams = sum(self.of("ple.head_vocab_sizes", []))
        shapes: dict[str, Shapes] = {
            "position_embd": {name: (model.context, d)},
            "token_types": {name: (2, d)},
            "dense_2": {name: (3 * d, d)},  # behind the pooling of an encoder
            "dense_3": {name: (d, 3 * d)},
            "layer_inputs": {"per_layer_token_embd": (model.n_vocab, wide), **of_layers} if width else {},
            "layer_projection": of_layers,
            "narrow_output": {"output": (self.of("embedding_length_out"), d)},
            "ngram_table": {"per_layer_token_embd": (ngrams, width)} if self.of("ple.layers") else {},
            "streams": {"altup_proj": (3, d, d), "altup_unembd_proj": (3, d, d)},
        }
        if name in shapes:
            self.add_all(shapes[name])
        elif name.startswith("n:"):
            self.add(name[2:], d, bias=bias)
        elif name == "hc_head":
            self.add_connection("output_hc", 1)
        elif name == "gate_mix":
            self.add_gate_mix("output_hc", False)
        elif name == "z_l_init":
            self.bare("hrm.z_l_init", self.rng.standard_normal(d))
        elif name == "rope_freqs":
            self.bare("rope_freqs.weight", np.linspace(1, 3, model.n_rot // 2))
        elif name == "cls":  # the dense layer of a reranker
            self.add(name, d, d, bias=bias)
        elif name in ("cls1", "cls.output1", "cls.output2", "cls.output3"):  # one row for each label
            self.add(name[:-1], int(name[-1]), d, bias=bias)
        elif name == "factors":  # there for dimensions that rest, too
            n = (model.key_dim if model.architecture == "phimoe" else model.n_rot) // 2
            for length, most in (("long", 4), ("short", 2)):
                self.bare(f"rope_factors_{length}.weight", np.linspace(1, most, n))
        else:
            self.add(name, model.n_vocab, d, bias=bias)

    def add_layer(self, i: int) -> None:
        """The tensors of a layer, token by token of `Architecture.layer`."""
        model, facts, add, of = self.model, self.model.facts, self.add, self.of
        architecture, d, e = model.architecture, model.n_embd, model.n_experts
        heads, kv, ff = model.n_heads, model.n_kv_heads, model.n_ff
        if model.heads_of_layers:
            heads, kv, ff = model.heads_of_layers[i]
        key_dim, value_dim = model.dims_of(i, self.metadata)
        q, k, v = heads * key_dim, kv * key_dim, kv * value_dim
        matrices: Shapes = {
            "q": (2 * q if facts.gated else q, d), "k": (k, d), "v": (v, d), "qkv": (q + k + v, d),
            "o": (d, heads * value_dim), "gate": (ff, d), "up": (ff, d), "up2": (2 * ff, d), "down": (d, ff),
        }  # fmt: skip
        names = {"o": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "up2": "ffn_up", "down": "ffn_down"}
        names |= {short: f"attn_{short}" for short in ("q", "k", "v", "qkv")}
        shared = model.expert_ff * of("expert_shared_count", 1)
        if "expert_shared_feed_forward_length" in self.metadata:
            times = of("expert_shared_count") if architecture == "bailingmoe2" else 1
            shared = of("expert_shared_feed_forward_length") * times
        attends, routed = not facts.mixed or model.attends(i), model.routed(i, self.metadata)
        tokens = model.parts().split()
        shares = i >= model.n_layers - of("attention.shared_kv_layers")
        if architecture == "deci" and model.heads_of_layers:
            tokens = [token for token in tokens if deci_has(token, heads, kv, ff)]
            matrices["o"] = matrices["o"] if kv else (d, d)
        parts = {f"ffn_{part}": matrices[part] for part in FEED}
        of_q, wide_key, pool = (
            of(f"attention.indexer.{key}") for key in ("head_count", "key_length", "kpool")
        )
        has_own = of("attention.indexer.types", [True] * (i + 1))[i]
        plain_indexer = {"indexer.q_proj": (of_q * wide_key, d), "indexer.k_proj": (wide_key, d),
                         "indexer.q_norm": (wide_key,), "indexer.k_norm": (wide_key,)}  # fmt: skip
        of_layer, many = of("embedding_length_per_layer_input"), of("hyper_connection.count") * d
        chunks, chunk_width = e // of("experts_per_group", 1), of("expert_chunk_feed_forward_length")
        values = of("attention.value_expert_count") * routed
        of_values = {"attn_v_gate+b": (values, d), "attn_v_exps": (values, v, d)}
        if "no_v_bias" in tokens:
            of_values = {"attn_v_gate": (values, d), "attn_v_exps": (values, v, d)}
        shapes: dict[str, Shapes] = {
            "streams": {
                "altup_correct_coef": (4, 4), "altup_predict_coef": (16, 4), "altup_router": (4, d),
                "laurel_l": (5, d), "laurel_r": (d, 5), "altup_correct_scale": (d,),
                "altup_router_norm": (d,), "laurel_post_norm": (d,),
            },
            "shexp": {
                "ffn_gate_shexp": (shared, d), "ffn_up_shexp": (shared, d), "ffn_down_shexp": (d, shared),
            } if "dense" not in tokens or routed else {},
            "shexp2": {"ffn_up_shexp": (2 * shared, d), "ffn_down_shexp": (d, shared)},
            "attn_sub": {"attn_sub_norm": (heads * value_dim,)},
            "ffn_sub": {"ffn_sub_norm": (ff,)},
            "wide": dict.fromkeys(parts, (d, d)),
            "chunks": {
                "ffn_gate_chexps": (chunks, chunk_width, d), "ffn_up_chexps": (chunks, chunk_width, d),
                "ffn_down_chexps": (chunks, d, chunk_width),
            },
            "vis": {
                "vis_attn_qkv": matrices["qkv"], "vis_attn_output": matrices["o"],
                **{f"vis_{part}": matrices[part] for part in FEED},
            },
            "sinks": {"attn_sinks": (heads,)},
            "turned": {"attn_k_norm": (model.n_rot,)},
            "gates": {"attn_gate": (heads, d)} if attends else {},
            "gates2": {"attn_gate": (heads * model.value_dim, d)} if attends else {},
            "layer_input": {"inp_gate": (of_layer, d), "proj": (d, of_layer), "post_norm": (d,)}
            if of_layer else {},
            "indexer": {
                "indexer.attn_k": (64, d), "indexer.attn_q_b": (of_q * 64, model.q_rank),
                "indexer.proj": (of_q, d), "indexer.k_norm+b": (64,),
            } if has_own else {},
            "block_indexer": plain_indexer if routed else {},
            "mean_indexer": plain_indexer if attends else {},
            "pool_indexer": {
                "indexer.attn_k": (wide_key, d), "indexer.attn_q_b": (of_q * wide_key, model.q_rank),
                "indexer.proj": (of_q, d), "indexer.k_norm+b": (wide_key,),
                "indexer_compressor_gate": (wide_key, d), "indexer_compressor_ape": (pool, wide_key),
            } if attends and has_own else {},
            "ngrams": {
                "ple_key": (many, d), "ple_value": (d, d), "ple_norm_key": (many,), "ple_norm_query": (many,),
                "ple_norm_conv": (many,), "ple_conv1d": (many, of("ple.conv_kernel")),
            } if i in of("ple.layers", []) else {},
            "values": of_values if values else {"attn_v": (v, d)},
        }  # fmt: skip
        for token in tokens:
            name, bias = token.removesuffix("+b"), token.endswith("+b")
            if name == "mixed" and model.attends(i):
                if model.latent:
                    self.add_latent(i, heads)
                else:
                    self.add_all({names[part]: matrices[part] for part in facts.attention.split()})
            elif name in ("mixed", "mamba", "mamba2", "rwkv6", "rwkv7", "rwkv6qwen2", "arwkv7"):
                self.add_recurrent(facts.mixed or name, i)
            elif name == "dense" and not routed:  # a dense block or experts, by the layer
                for part in FEED[architecture in UNGATED :]:
                    add(names[part], *matrices[part], bias=architecture in UNGATED)
            elif name in ("moe", "dense"):
                self.add_experts(bias)
            elif name in ("k", "v") and shares:
                pass
            elif name in matrices:
                add(names[name], *matrices[name], bias=bias)
            elif name in shapes:
                self.add_all(shapes[name])
            elif name[:2] == "n:" or (name[:2] == "m:" and i > 0):
                add(name[2:], d, bias=bias)
            elif name[:2] == "h:" and attends and not ("attn_k" in name and shares):
                add(name[2:], key_dim)
                if architecture in ("gemma4", "gemma3n"):  # whose scores have no other scale
                    self.made[f"{self.block}{name[2:]}.weight"] *= np.float32(key_dim**-0.25)
            elif name[:2] == "b:":
                add(name[2:], d)
                self.made[f"{self.block}{name[2:]}"] = self.made.pop(f"{self.block}{name[2:]}.weight")
            elif name[:2] == "r:":
                add(name[2:], q if "_q_" in name else k, bias=bias)
            elif name[:2] == "e:" and attends:  # each head its own norm
                shape = heads if "_q_" in name else kv, model.key_dim
                add(name[2:], *shape)
                self.made[f"{self.block}{name[2:]}.weight"] += 1
                if bias:
                    self.bare(f"{name[2:]}.bias", 0.3 * self.rng.standard_normal(shape))
            elif name == "output_scale":
                self.bare("layer_output_scale.weight", self.rng.uniform(0.5, 1, 1))
            elif name == "both":
                self.add_all(dict.fromkeys(("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"), (d,)))
                self.add_experts(False)
                self.bare("ffn_gate_inp.scale", self.rng.uniform(0.5, 2, d))
                self.bare("ffn_down_exps.scale", self.rng.uniform(0.5, 2, e))
            elif name == "gain":
                self.bare("attn_q_norm.weight", self.rng.uniform(0.5, 2, (heads, 1)))
            elif name == "scales":
                for part in [part for part in self.made if part.startswith(self.block)]:
                    has = architecture == "bitnet" or "attn_output" in part or "ffn_down" in part
                    if has and self.made[part].ndim == 2 and "norm" not in part:
                        stem = part.removeprefix(self.block).removesuffix(".weight")
                        self.bare(f"{stem}.scale", self.rng.uniform(0.5, 1.5, 1))
            elif name == "hc":
                for part in ("attn", "ffn"):
                    sinkhorn = "hyper_connection.sinkhorn_iterations" in self.metadata
                    self.add_connection(f"hc_{part}", 3 if sinkhorn else 2)
            elif name == "switch":
                n, rank = 1 + of("adapters.count"), of("adapters.lora_rank")
                rows = {"attn_q": (q, d), "attn_k": (k, d), "attn_v": (v, d), "attn_output": matrices["o"]}
                for part, (outputs, inputs) in (rows | parts).items():
                    for kind, sides in (("lora_a", (n, rank, inputs)), ("lora_b", (n, outputs, rank))):
                        made = self.rng.standard_normal(sides).astype(np.float32) * np.float32(
                            sides[2] ** -0.5
                        )
                        made[0] = 0
                        self.bare(f"{part}.{kind}", made)
            elif name == "act":
                self.bare("ffn.act.scales", 1 + self.rng.random(ff))
            elif name in ("probs", "bare_probs"):
                if f"{self.block}ffn_gate_inp.weight" in self.made:
                    self.add_probabilities("exp_probs_b" if name == "bare_probs" else "exp_probs_b.bias")
            elif name == "shgate":
                self.bare("ffn_gate_inp_shexp.weight", self.rng.standard_normal(d))
            elif name == "mla":
                self.add_latent(i, heads)
            elif name == "gate_mix":
                for part in ("attn", "ffn"):
                    self.add_gate_mix(f"hc_{part}")
            elif name == "compressed":
                self.add_compressed(i)
            elif name == "hashed" and i < of("hash_layer_count"):
                chosen = [self.rng.permutation(e)[: model.n_used] for _ in range(model.n_vocab)]
                self.made[f"{self.block}ffn_gate_tid2eid.weight"] = np.array(chosen, np.int32)
            elif name == "hashed":
                self.add_probabilities()
            elif name == "single" and i % 3 == 0:
                self.add_recurrent("mamba2", i)
            elif name == "single" and i % 3 == 2:
                self.add_all({names[part]: matrices[part] for part in "qkvo"})
            elif name == "single" and "expert_count" not in self.metadata:
                self.add_all({"ffn_up": (ff, d), "ffn_down": (d, ff)})
            elif name == "single":
                self.add_ungated(i, shared)
                self.add_probabilities()

    def add_probabilities(self, name: str = "exp_probs_b.bias") -> None:
        """A number for each expert, which is added for the choice alone."""
        self.bare(name, 0.1 * self.rng.standard_normal(self.model.n_experts))

    def add_connection(self, name: str, parts: int) -> None:
        n = self.of("hyper_connection.count")
        numbers = sum([n, n, n * n][:parts])
        self.add(f"{name}_fn", numbers, n * self.model.n_embd)
        self.bare(f"{name}_base.weight", self.rng.standard_normal(numbers))
        self.bare(f"{name}_scale.weight", self.rng.uniform(0.5, 1.5, parts))

    def add_gate_mix(self, name: str, injects: bool = True) -> None:
        n, rank = (self.of(f"hyper_connection.{key}") for key in ("count", "low_rank"))
        many = n * self.model.n_embd
        shapes = {f"{name}_norm": (many,), f"{name}_down": (rank, many), f"{name}_up": (many, rank)}
        self.add_all(shapes | ({f"{name}_inject": (n, many)} if injects else {}))

    def add_compressed(self, i: int) -> None:
        d, dim, q, heads = self.model.n_embd, self.model.key_dim, self.model.q_rank, self.model.n_heads
        sizes, groups, rank = (
            self.of(f"attention.{key}")
            for key in ("compress_ratios", "output_group_count", "output_lora_rank")
        )
        size = sizes[i]
        self.add_all({
            "attn_q_a": (q, d), "attn_q_a_norm": (q,), "attn_q_b": (heads * dim, q), "attn_kv": (dim, d),
            "attn_kv_a_norm": (dim,), "attn_output_a": (groups * rank, heads * dim // groups),
            "attn_output_b": (d, groups * rank),
        })  # fmt: skip
        of_q, width = (self.of(f"attention.indexer.{key}") for key in ("head_count", "key_length"))
        for name, one in (("attn_compressor", dim), ("indexer_compressor", width)):
            if size == 4 or (size and name == "attn_compressor"):
                wide = one * (2 if size == 4 else 1)
                self.add_all({
                    f"{name}_kv": (wide, d), f"{name}_gate": (wide, d), f"{name}_ape": (size, wide),
                    f"{name}_norm": (one,),
                })  # fmt: skip
        if size == 4:
            self.add_all({"indexer.attn_q_b": (of_q * width, q), "indexer.proj": (of_q, d)})

    def add_ungated(self, i: int, shared: int) -> None:
        """Experts without gates, perhaps with a narrower input."""
        d, e, width = self.model.n_embd, self.model.n_experts, self.of("expert_feed_forward_length")
        width = width[i] if isinstance(width, list) else width
        latent = self.of("moe_latent_size")
        narrow = {"ffn_latent_down": (latent, d), "ffn_latent_up": (d, latent)} if latent else {}
        self.add_all({
            "ffn_gate_inp": (e, d), **narrow, "ffn_up_exps": (e, width, latent or d),
            "ffn_down_exps": (e, latent or d, width), "ffn_up_shexp": (shared, d),
            "ffn_down_shexp": (d, shared),
        })  # fmt: skip

    def add_experts(self, bias: bool) -> None:
        width, d, e, b = self.model.expert_ff, self.model.n_embd, self.model.n_experts, "+b" * bias
        self.add_all({f"ffn_gate_inp{b}": (e, d)})
        narrow = self.of("expert_latent_length")
        if narrow:
            self.add_all({"ffn_routed_down": (narrow, d), "ffn_routed_up": (d, narrow)})
            if "no_routed_norm" not in self.extra:
                self.add("ffn_routed_norm", narrow)
            d = narrow
        if self.model.architecture not in UNGATED:
            self.add_all({f"ffn_gate_exps{b}": (e, width, d)})
        self.add_all({f"ffn_up_exps{b}": (e, width, d), f"ffn_down_exps{b}": (e, d, width)})

    def add_latent(self, i: int, heads: int) -> None:
        model, d, ranked = self.model, self.model.n_embd, self.model.q_rank
        rank, key_dim, value_dim = model.kv_rank, model.key_dim, model.value_dim
        if "attention.kv_lora_rank_swa" in self.metadata and self.of("attention.sliding_window_pattern")[i]:
            rank, key_dim, value_dim = (
                self.of(f"attention.{key}_swa")
                for key in ("kv_lora_rank", "key_length_mla", "value_length_mla")
            )
        fixed = key_dim - model.n_rot
        if ranked:
            queries: Shapes = {"attn_q_a": (ranked, d), "attn_q_a_norm": (ranked,)}
            queries["attn_q_b"] = heads * key_dim, ranked
        else:
            queries = {"attn_q": (heads * key_dim, d)}
        values: Shapes = {"attn_k_b": (heads, rank, fixed), "attn_v_b": (heads, value_dim, rank)}
        if model.old_latent:
            values = {"attn_kv_b": (heads * (fixed + value_dim), rank)}
        compressed = {"attn_kv_a_mqa": (rank + model.n_rot, d), "attn_kv_a_norm": (rank,)}
        self.add_all(queries | compressed | values | {"attn_output": (d, heads * value_dim)})

    def add_recurrent(self, kind: str, i: int) -> None:
        model, d, rng, add_all, bare = self.model, self.model.n_embd, self.rng, self.add_all, self.bare
        taps, inner, n, rank, groups = (
            self.of(f"ssm.{key}", 1)
            for key in ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")
        )
        if kind == "mamba":
            add_all({
                "ssm_in": (2 * inner, d), "ssm_conv1d+b": (inner, taps), "ssm_x": (rank + 2 * n, inner),
                "ssm_dt+b": (inner, rank),
            })  # fmt: skip
            bare("ssm_a", -np.exp(rng.standard_normal((inner, n))))
            bare("ssm_d", rng.standard_normal(inner))
            self.add("ssm_out", d, inner)
            if model.architecture == "jamba":
                add_all({"ssm_dt_norm": (rank,), "ssm_b_norm": (n,), "ssm_c_norm": (n,)})
        elif kind == "mamba2":
            channels = inner + 2 * groups * n
            add_all({"ssm_in": (inner + channels + rank, d), "ssm_conv1d+b": (channels, taps)})
            bare("ssm_dt.bias", rng.standard_normal(rank))
            bare("ssm_a", -np.exp(rng.standard_normal((rank, 1))))
            bare("ssm_d", rng.standard_normal((rank, 1)))
            if "no_ssm_norm" not in self.extra:
                bare("ssm_norm.weight", 1 + 0.3 * rng.standard_normal((groups, inner // groups)))
            self.add("ssm_out", d, inner)
        elif kind == "plamo2":
            low = max(64, d // 16)
            add_all({
                "ssm_in": (2 * inner, d), "ssm_conv1d": (inner, taps), "ssm_x": (low + 2 * n, inner),
                "ssm_dt+b": (rank, low),
            })  # fmt: skip
            bare("ssm_a", -np.exp(rng.standard_normal(rank)))
            bare("ssm_d", rng.standard_normal(rank))
            for name, width in (("dt", low), ("b", n), ("c", n)):
                bare(f"ssm_{name}_norm", 1 + 0.3 * rng.standard_normal(width))
            self.add("ssm_out", d, inner)
        elif kind == "delta":
            self.add_delta(inner, n, rank, groups, taps)
        elif kind == "kda":
            self.add_kda(taps)
        elif kind == "lightning":
            wide = model.n_heads * model.key_dim
            add_all({"attn_qkv": (3 * wide, d), "attn_gate": (wide, d), "attn_norm_2": (wide,)})
            self.add("attn_output", d, wide)
        elif kind == "shortconv":
            add_all({
                "shortconv.conv": (d, 3), "shortconv.in_proj": (3 * d, d), "shortconv.out_proj": (d, d),
            })  # fmt: skip
        else:
            self.add_rwkv(kind, i)

    def add_delta(self, inner: int, dim: int, heads: int, keys: int, taps: int) -> None:
        model, d, channels = self.model, self.model.n_embd, inner + 2 * keys * dim
        rng = np.random.default_rng(model.seed + heads)
        first: Shapes = {"attn_qkv": (channels, d), "attn_gate": (inner, d)}
        if "by_key" in self.extra:  # as older files have them
            first = {"ssm_in": (channels + inner, d)}
        steps: Shapes = {"ssm_beta": (heads, d), "ssm_alpha": (heads, d)}
        if model.architecture == "qwen3next":
            steps = {"ssm_ba": (2 * heads, d)}
        self.add_all(first | steps | {"ssm_conv1d": (channels, taps)})
        self.bare("ssm_a", -np.exp(rng.standard_normal(heads)))
        self.bare("ssm_dt.bias", rng.standard_normal(heads))
        self.add_all({"ssm_norm": (dim,), "ssm_out": (d, inner)})

    def add_kda(self, taps: int) -> None:
        model, d, heads, rng = self.model, self.model.n_embd, self.model.n_heads, self.rng
        dim = self.of("kda.head_dim")
        wide = heads * dim
        for part in "qkv":
            self.add(f"attn_{part}", wide, d)
            self.bare(f"ssm_conv1d_{part}.weight", rng.standard_normal((1, wide, 1, taps)) / 2)
        whole = {"kimi-k3": "g", "bailingmoe3": "fg"}.get(model.architecture, "")
        for part in "fg":
            if part in whole:
                self.add(f"ssm_{part}{'_a' * (whole == 'fg')}", wide, d)
            else:
                self.add_all({f"ssm_{part}_a": (dim, d), f"ssm_{part}_b": (wide, dim)})
        self.add("ssm_beta", heads, d)
        decay = -np.exp(rng.standard_normal((1, 1, heads, 1)))
        if model.architecture == "bailingmoe3":
            decay = abs(decay).reshape(-1, 1)
        self.bare(
            "ssm_a", decay if whole == "fg" or model.architecture == "kimi-linear" else decay.reshape(-1)
        )
        self.bare("ssm_dt.bias", rng.standard_normal(wide))
        self.add_all({"ssm_norm": (dim,), "attn_output": (d, wide)})

    def add_rwkv(self, kind: str, i: int) -> None:
        model, d, ff, rng = self.model, self.model.n_embd, self.model.n_ff, self.rng
        size, sixth, in_qwen = model.head_size, kind in ("rwkv6", "rwkv6qwen2"), kind == "rwkv6qwen2"
        of_keys = self.of("attention.head_count_kv", d // size) * size
        for name, width in (("receptance", d), ("key", of_keys), ("value", of_keys), ("output", d)):
            self.add(f"time_mix_{name}", width, d, bias=in_qwen and name != "output")
        if not in_qwen and "no_time_mix_ln" not in self.extra:
            self.add("time_mix_ln", d, bias=True)
        for name in ("k", "r")[: {"rwkv6": 2, "rwkv7": 1}.get(kind, 0)]:
            self.bare(f"channel_mix_lerp_{name}.weight", rng.random((1, 1, d)))
        if kind in ("rwkv6", "rwkv7"):
            self.add_all({"channel_mix_key": (ff, d), "channel_mix_value": (d, ff)})
        if kind == "rwkv6":
            self.add("channel_mix_receptance", d, d)
        if sixth:
            self.add_all({"time_mix_gate": (d, d), "time_mix_w1": (25, d)})
            self.bare("time_mix_w2.weight", 0.3 * rng.standard_normal((5, d, 5)))
            self.bare("time_mix_lerp_x.weight", rng.random((1, 1, d)))
            self.bare("time_mix_lerp_fused.weight", rng.random((5, 1, 1, d)))
            if kind == "rwkv6":
                self.bare("time_mix_first.weight", rng.standard_normal((d // size, size)))
            self.add_all({
                "time_mix_decay": (d,), "time_mix_decay_w1": (6, d), "time_mix_decay_w2": (d, 6),
            })  # fmt: skip
            return
        gated = "no_gate" not in self.extra
        self.bare("time_mix_lerp_fused.weight", rng.random((5 + gated, 1, 1, d)))
        for name, rank in (("w", 5), ("a", 6), ("v", 3 if i else 6), ("g", 7))[: 3 + gated]:
            bias: Shapes = {f"time_mix_{name}0": (d,)} if name != "g" else {}
            self.add_all(bias | {f"time_mix_{name}1": (rank, d), f"time_mix_{name}2": (d, rank)})
        self.add_all(dict.fromkeys((f"time_mix_{name}" for name in ("k_k", "k_a", "r_k")), (d,)))


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
