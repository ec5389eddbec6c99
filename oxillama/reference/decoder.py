"""The forward pass of a model: tokens to logits, for one whole sequence at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np

from oxillama.gguf.model_file import ModelFile
from oxillama.reference import compressed, connections, decisions, gated_streams, rwkv, streams
from oxillama.reference.adapters import Adapter
from oxillama.reference.attention import View, alibi_slopes, attend, distance_biases, output_gate
from oxillama.reference.banked import banked_layers
from oxillama.reference.blocks_of_tokens import mean_lists
from oxillama.reference.candidates import Candidates, in_order
from oxillama.reference.delta import gated_delta, kimi_delta
from oxillama.reference.experts import (
    chunk_experts,
    dense_and_experts,
    gated,
    mixture_of_experts,
    value_experts,
)
from oxillama.reference.floats import F32, fma
from oxillama.reference.kv import Stored, store
from oxillama.reference.latent import LatentHeads, score_gain
from oxillama.reference.layer_inputs import layer_input, layer_inputs
from oxillama.reference.recurrent import lightning, mamba, mamba2, plamo, short_conv
from oxillama.reference.rotation import Rotation, read_rotations
from oxillama.reference.rows import ACTIVATIONS, cut, gate, norm, soft_cap, softmax
from oxillama.reference.sizes import gate_cuts, head_widths, key_layers, read_windows, recurrent_layers
from oxillama.reference.source import Source, Unsupported
from oxillama.reference.sparse import attend_by_head, attend_to_lists, head_blocks
from oxillama.reference.stacks import looped, two_stacks
from oxillama.reference.switch import Switches
from oxillama.reference.xielu import read_xielu, xielu

Onto = np.ndarray | None
"""The term to which a block adds its last product, before adapters add theirs; None: none."""
MIXERS: dict[str, Callable[[Source, str, np.ndarray, float, Onto], np.ndarray]] = {
    "mamba": mamba,
    "mamba2": mamba2,
    "plamo2": plamo,
    "shortconv": short_conv,
    "delta": gated_delta,
    "kda": kimi_delta,
    "lightning": lightning,
    "rwkv6": lambda source, block, h, eps, onto: rwkv.time_mix_6(source, block, h, onto),
}
"""Mixers by `Facts.recurrent`; arguments: the source, the layer's prefix, the input (n, d), the norms'
epsilon, and the term to which the output is added."""


class ReferenceModel:
    """A model that runs with the code of this package only.

    Args:
        file: an open model file.
        compute, kv_type: as in `EngineConfig`.
        adapters: in the order in which they are added.
        context: context size in tokens, which LongRoPE depends on; None: the file's.

    Raises:
        Unsupported: the file needs something that is not implemented here; the message names it.
    """

    def __init__(
        self,
        file: ModelFile,
        compute: str = "int8",
        kv_type: str = "f16",
        adapters: Sequence[Adapter] = (),
        context: int | None = None,
    ) -> None:
        self.source: Source = Source(file, compute, adapters)
        self.kv_type = kv_type
        source, self.facts = self.source, self.source.facts
        self.n_layers: int = source.n_layers
        self.n_embd: int = source.key("embedding_length")
        if self.facts.norm == "stated":
            has_rms = bool(source.key("attention.layer_norm_rms_epsilon", 0))
            source.key("attention.layer_norm_epsilon")
            self.facts = source.facts = self.facts.but(norm="rms" if has_rms else "layer")
        kind = "" if self.facts.norm == "layer" else "rms_"
        stated = source.key(f"attention.layer_norm_{kind}epsilon")
        if self.facts.any_eps:
            other = source.key("attention.layer_norm_epsilon")
            stated = other if stated is None else stated
        self.eps: float = self.facts.eps or stated
        self.widths: list[int] = source.per_layer("feed_forward_length", self.n_layers, 0)
        source.key("expert_feed_forward_length")
        source.key("expert_shared_feed_forward_length")
        self.heads: list[int] = source.per_layer("attention.head_count", self.n_layers, 1)
        self.kv_heads: list[int] = source.per_layer("attention.head_count_kv", self.n_layers, self.heads[0])
        if not self.facts.attends:
            self.heads, self.kv_heads = [1] * self.n_layers, [0] * self.n_layers
        if self.facts.interval:
            self.kv_heads = [
                0 if each else n for each, n in zip(recurrent_layers(source, self.n_layers), self.kv_heads)
            ]
        width = self.n_embd // next(n for n in self.heads if n)
        self.key_dim: int = source.key("attention.key_length", width)
        self.value_dim: int = source.key("attention.value_length", width)
        by_width = self.n_layers == self.facts.layers_scaled_by_width
        usual = 1.0 if self.facts.distance_biases else 1 / math.sqrt(width if by_width else self.key_dim)
        usual = 1 / self.key_dim if self.facts.scaled_by_width else usual
        usual = 1 / math.sqrt(self.value_dim) if self.facts.recurrent == "plamo2" else usual
        stated = source.key("attention.scale") or source.key("attention.output_scale")
        self.score_scale: float = stated or self.facts.score_scale or usual
        if self.facts.gain_on_scores and not self.facts.latent:
            self.score_scale *= score_gain(source) ** 2
        self.value_scale: float = source.key("attention.value_scale") or 1.0
        source.key("attention.relative_buckets_count")
        self.soft_cap: float = source.key("attn_logit_softcapping", self.facts.soft_cap)
        self.final_soft_cap: float = source.key("final_logit_softcapping", self.facts.final_soft_cap)
        self.clamp: float = source.key("attention.clamp_kqv", 0.0)
        self.alibi: float = source.key("attention.max_alibi_bias", self.facts.alibi)
        self.embedding_scale: float = (
            source.key("embedding_scale") or self.facts.embedding_scale or math.sqrt(self.n_embd)
        )
        depth = self.facts.residual_depth
        usual = depth / math.sqrt(self.n_layers) if depth else 1.0
        self.residual_scale: float = source.key("residual_scale") or usual
        scale, divides = source.key("logit_scale") or self.facts.logit_scale, self.facts.logit_divides
        if not scale and self.facts.logit_width:
            scale, other = self.facts.logit_width / self.n_embd, self.n_embd / self.facts.logit_width
            self.logit_scale: float = other if divides else scale
        else:
            self.logit_scale = 1.0 / (scale or 1.0) if divides else scale or 1.0
        self.limits: list[float] = source.per_layer("swiglu_clamp_shexp", self.n_layers, 0.0)
        if self.facts.copies_limits and source.key("swiglu_clamp_shexp") is None:
            self.limits = source.per_layer("swiglu_clamp_exp", self.n_layers, 0.0)
        self.activation: str = source.key("hidden_activation", self.facts.activation)
        self.decides: str = source.key("decision.type", "")
        if self.decides and self.activation == "gelu":
            self.activation = "gelu_erf"  # in encoders, the only ones of them with GELU
        self.xielu = read_xielu(source, self.n_layers) if self.facts.activation == "xielu" else []
        self.rescale: int = source.key("rescale_every_n_layers", 0)
        self.first_values: np.ndarray | None = None  # the values of RWKV 7's first layer
        self.causal: bool = not self.facts.encoder and source.key("attention.causal", True)
        for key in ("attention.causal", "attention.value_expert_count", "attention.value_expert_used_count"):
            source.key(key)
        self.chunk_off: bool = self.facts.chunk > 0 and source.key("attention.sliding_window", 1) == 0
        self.windows: list[int] = read_windows(source, self.n_layers)
        self.key_dims: list[int] = head_widths(source, "key", self.key_dim, self.windows)
        self.value_dims: list[int] = head_widths(source, "value", self.value_dim, self.windows)
        self.key_layers: list[int] = key_layers(source, self.windows)
        self.shared: dict[int, Stored] = {}  # keys and values that later layers attend to, too
        self.cuts: list[float | None] = gate_cuts(source, self.n_layers)
        self.embedded: np.ndarray | None = None  # embeddings of each layer, in this pass
        self.block_sizes: list[int] = []
        if self.facts.blocked:
            self.block_sizes = source.per_layer("attention.compress_ratios", self.n_layers, 0)
            for i in range(self.n_layers):
                if not self.block_sizes[i]:
                    source.ignore(f"blk.{i}.indexer.")
        self.rotations: list[Rotation] = read_rotations(source, self.key_dim, context)
        self.latent: LatentHeads | None = None
        if self.facts.latent:
            self.latent = LatentHeads(source, self.heads, self.key_dim, self.windows)
        self.switches: Switches | None = Switches(source, kv_type) if self.facts.switched else None
        self.first_input: np.ndarray | None = None  # later layers add this input again
        self.n_vocab: int = source.shape("token_embd.weight")[1]
        run = self.hidden_states if self.facts.encoder else self.logits
        run(np.zeros(1, np.int64))  # a trial run, which asks for each key and tensor
        if self.facts.classifier and (source.has("cls.weight") or source.has("cls.output.weight")):
            self.scores(np.zeros(1, np.int64))
        if self.decides in decisions.HEADS:
            self.decision_scores(np.zeros(1, np.int64), decisions.TRIALS[decisions.HEADS[self.decides]])
        decisions.use_keys(source)
        source.check_used()

    # --- parts of a layer -----------------------------------------------------------------------------

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        """Apply the norm called ``name``."""
        stored = name if self.source.has(name) else f"{name}.weight"
        weight = self.source.vector(stored) if self.facts.norm_weight else None
        bias = self.source.optional(f"{name}.bias")
        if self.facts.grouped_norms and weight is not None:
            shape = len(x), self.source.key("attention.group_norm_groups", 1), -1
            return norm(x.reshape(shape), self.eps, weight.reshape(shape[1:])).reshape(x.shape)
        post = self.facts.attn_post_norm, self.facts.ffn_post_norm
        if self.facts.post_norm_eps and name.rpartition(".")[2] in post:
            return norm(x, self.facts.post_norm_eps, weight)
        return norm(x, self.eps, weight, bias, self.facts.norm == "layer")

    def projections(self, i: int, h: np.ndarray) -> list[np.ndarray]:
        """q, k, v (n, heads, dim) before norms and rotation, and the gates stored with q, or (n, 0).

        A layer that attends to an earlier layer's keys has no k and v of its own.
        """
        block, source, n, facts = f"blk.{i}", self.source, len(h), self.facts
        dim, kv_heads = self.key_dims[i], self.kv_heads[i] if self.key_layers[i] == i else 0
        q, k = self.heads[i] * dim, kv_heads * dim
        first = 2 * q if facts.gated_queries else q
        if source.has(f"{block}.attn_qkv.weight"):
            both = source.linear(f"{block}.attn_qkv", h)
        else:
            parts = "qkv" if kv_heads else "q"
            if facts.v_is_k and not source.has(f"{block}.attn_v.weight"):
                parts = parts.replace("v", "k")
            made = source.has(f"{block}.attn_v_exps.weight")
            each = [source.linear(f"{block}.attn_{part}", h) for part in parts[: 2 if made else 3]]
            both = np.hstack([*each, *([value_experts(source, block, h)] if made else [])])
        if self.clamp:
            both = np.clip(both, -F32(self.clamp), F32(self.clamp))
        queries = both[:, :first].reshape(n, self.heads[i], -1)
        gates = np.ascontiguousarray(queries[:, :, dim:]).reshape(n, -1)
        keys = both[:, first : first + k].reshape(n, kv_heads, dim)
        values = both[:, first + k :].reshape(n, kv_heads, self.value_dims[i])
        return [np.ascontiguousarray(queries[:, :, :dim]), keys, values, gates]

    def normed_heads(self, name: str, x: np.ndarray) -> np.ndarray:
        """q or k (n, heads, dim) after its norm."""
        if self.facts.qk_norm == "unit" or (self.facts.qk_norm == "gain" and "attn_k" in name):
            return norm(x, self.eps)
        if not x.shape[1] or ("qk_norm" in self.facts.optional and not self.source.has(f"{name}.weight")):
            return x
        weight, bias = self.source.vector(f"{name}.weight"), self.source.optional(f"{name}.bias")
        bias = None if name.rpartition(".")[2] in self.facts.unbiased else bias
        given = x.reshape(len(x), 1, -1) if self.facts.qk_norm == "row" else x
        own = self.facts.qk_norm == "layer"
        weight = weight.reshape(x.shape[1:]) if self.facts.qk_norm == "heads" else weight
        eps, centred = 1e-5 if own else self.eps, own or self.facts.norm == "layer"
        return norm(given, eps, weight, bias, centred).reshape(x.shape)

    def growth(self, n: int) -> np.ndarray | None:
        """float32 (n, 1, 1): factors of queries by position, 1 + rate * ln(steps); None: 1."""
        rate = self.facts.still_grow or self.source.key("attention.temperature_scale", 0.0)
        original = self.source.key("rope.scaling.original_context_length", 0) or self.source.key(
            "context_length"
        )
        length = self.facts.chunk or self.source.key("attention.temperature_length", original)
        if not rate:
            return None
        steps = (np.arange(n) + (1 if self.facts.chunk else 0)) // length + 1
        factors = {step: 1.0 + rate * float(Decimal(step).ln()) for step in set(steps.tolist())}
        return np.array([factors[step] for step in steps.tolist()], F32)[:, None, None]

    def sinks(self, name: str) -> np.ndarray | None:
        """An additional score for each head, or None."""
        if not self.facts.sinks:
            return None
        return self.source.optional(name) if "sinks" in self.facts.optional else self.source.vector(name)

    def biases(self, i: int) -> np.ndarray:
        """Score biases by distance; a layer without its own table uses the first layer's."""
        name = f"blk.{i}.attn_rel_b.weight"
        return distance_biases(
            self.source.vector(name if self.source.has(name) else "blk.0.attn_rel_b.weight")
        )

    def attention(self, i: int, h: np.ndarray, onto: Onto = None) -> np.ndarray:
        """The attention block of layer ``i``."""
        if self.facts.compressed:
            return compressed.attention(
                self.source, f"blk.{i}", h, self.rotations, self.eps, self.kv_type, onto
            )
        if self.latent is not None:
            grows = self.growth(len(h))
            rotation = self.rotations[1 if self.windows[i] else 0] if self.rotations else None
            return self.latent.attention(i, h, rotation, self.eps, self.kv_type, onto, grows)
        facts, block, window = self.facts, f"blk.{i}", self.windows[i]
        dense = self.source.key("leading_dense_block_count", 0)
        q, k, v, gates = self.projections(i, h)
        turns = facts.rope != "none" and not (facts.no_rope_every and (i + 1) % facts.no_rope_every == 0)
        turns = turns and (window > 0 or not facts.rope_on_windows_only)
        turns = turns or (facts.dense_turn and i < dense)
        turns = turns or self.chunk_off
        turns = turns and self.source.key("rope.scaling.finetuned", True)
        turns = turns and bool(self.source.per_layer("attention.rope_pattern", self.n_layers, 1)[i])
        turns = turns and not (facts.fixed_window and any(self.windows) and i % 4 == 0)
        names = (f"{block}.attn_q_norm", f"{block}.attn_k_norm") if facts.qk_norm else ()
        if facts.qk_norm == "unit" and self.source.key("expert_count", 0) == 128:
            names = ()  # in the largest Llama 4, as in llama.cpp
        if names and not facts.qk_norm_last:
            q, k = (self.normed_heads(name, x) for name, x in zip(names, (q, k)))
        if facts.v_norm and v.shape[1]:
            v = norm(v, self.eps)
        if turns:
            q, k = self.rotations[1 if window else 0].apply(q, k)
        if names and facts.qk_norm_last and turns:
            q, k = (self.normed_heads(name, x) for name, x in zip(names, (q, k)))
        if not facts.still_grow or not (turns or self.chunk_off):
            grows = self.growth(len(h))
            q = q if grows is None else q * grows
        chunk = facts.chunk if window and not self.chunk_off else 0
        view = View(
            causal=self.causal,
            chunk=chunk,
            window=0 if facts.chunk else window // 2 + 1 if window and facts.centred_windows else window,
            soft_cap=self.soft_cap,
            sinks=self.sinks(f"{block}.attn_sinks.weight"),
            biases=self.biases(i) if facts.distance_biases else None,
            slopes=alibi_slopes(self.heads[i], self.alibi) if self.alibi else None,
        )
        kv = store(k, v, self.kv_type) if self.key_layers[i] == i else self.shared[self.key_layers[i]]
        if i in self.key_layers[i + 1 :]:
            self.shared[i] = kv
        if facts.sparse and i >= dense:
            lists = head_blocks(self.source, block, h, self.rotations[0], self.eps, self.kv_type)
            attended = attend_by_head(q, k, v, self.score_scale, lists, self.kv_type)
        elif facts.blocked and self.block_sizes[i]:
            rotation = self.rotations[0] if turns else None
            seen = mean_lists(self.source, block, h, self.block_sizes[i], rotation, self.eps, self.kv_type)
            attended = attend_to_lists(q, kv, self.score_scale, seen, view)
        else:
            attended = attend(q, kv, self.score_scale, view)
        attended = attended.reshape(len(h), -1)
        attended = attended if self.value_scale == 1 else attended * F32(self.value_scale)
        name = f"{block}.attn_gate.weight"
        if facts.attn_gate and (self.source.has(name) or "attn_gate" not in facts.optional):
            attended = output_gate(self.source, block, h, attended)
        if facts.gated_queries:
            attended = gate("sigmoid", gates, attended)
        attended = self.norm(f"{block}.attn_sub_norm", attended) if facts.sub_norms else attended
        return self.source.linear(f"{block}.attn_output", attended, onto=onto)

    def feed_forward(self, i: int, ending: str, h: np.ndarray, onto: Onto = None) -> np.ndarray:
        """The dense block of layer ``i``; with the ending "_shexp", its shared expert."""
        block, source = f"blk.{i}", self.source
        up, name = source.linear(f"{block}.ffn_up{ending}", h), self.activation
        if self.facts.distance_biases and not source.has(f"{block}.ffn_gate.weight"):
            name = "relu"  # the first version of T5 has no gate
        width = source.shape(f"{block}.ffn_down{ending}.weight")[0]
        gates, cut_at = None, self.cuts[i]
        if source.has(f"{block}.ffn_gate{ending}.weight"):
            gates = source.linear(f"{block}.ffn_gate{ending}", h)
        elif up.shape[1] == 2 * width:
            gates, up = up[:, :width], up[:, width:]
        if gates is not None:
            gates = gates if cut_at is None else cut(gates, cut_at)
            fed = gated(source, gates, up, self.limits[i], self.facts.limits_gates, name)
        else:
            fed = xielu(up, *self.xielu[i]) if name == "xielu" else ACTIVATIONS[name](up)
        divisors = source.optional(f"{block}.ffn.act.scales")
        fed = fed if divisors is None else fed / divisors
        fed = self.norm(f"{block}.ffn_sub_norm", fed) if self.facts.sub_norms else fed
        return source.linear(f"{block}.ffn_down{ending}", fed, onto=onto)

    # --- the pass -------------------------------------------------------------------------------------

    def add(
        self,
        block: Callable[[int, np.ndarray, Onto], np.ndarray],
        i: int,
        h: np.ndarray,
        x: np.ndarray,
        post_norm: str,
    ) -> np.ndarray:
        """x plus the output of a block of layer ``i`` for h; the output may be normed or scaled first."""
        if h is not x and not post_norm and self.residual_scale == 1:
            return block(i, h, x)
        y = block(i, h, None)
        y = self.norm(f"blk.{i}.{post_norm}", y) if post_norm else y
        return x + y if self.residual_scale == 1 else fma(y, F32(self.residual_scale), x)

    def second_block(self, i: int, h: np.ndarray, onto: Onto, seen: np.ndarray | None = None) -> np.ndarray:
        """The feed-forward block of layer ``i`` for h. The router of experts reads ``seen``, or else h."""
        if self.source.has(f"blk.{i}.ffn_gate_inp.weight"):
            out = np.zeros_like(h) if onto is None else onto
            if self.facts.dense_beside == "normed":
                return dense_and_experts(self.source, f"blk.{i}", h, self.eps, partial(self.feed_forward, i))
            if self.facts.dense_beside == "input":
                assert seen is not None
                out, h = self.feed_forward(i, "", h, onto), self.norm(f"blk.{i}.ffn_norm_exps", seen)
                seen = None
            shared = partial(self.feed_forward, i, "" if self.facts.dense_beside else "_shexp")
            if self.facts.chunks:
                y = mixture_of_experts(self.source, f"blk.{i}", h, np.zeros_like(h), shared, h)
                return chunk_experts(self.source, f"blk.{i}", h, y, y if onto is None else onto + y)
            return mixture_of_experts(self.source, f"blk.{i}", h, out, shared, h if seen is None else seen)
        if self.facts.recurrent.startswith("rwkv") and not self.facts.dense_second:
            return rwkv.channel_mix(self.source, f"blk.{i}", h, onto)
        return self.feed_forward(i, "", h, onto)

    def mixer(self, i: int, h: np.ndarray, onto: Onto) -> np.ndarray:
        """The token mixer of layer ``i``."""
        block, recurrent = f"blk.{i}", self.facts.recurrent
        if self.facts.single_blocks and self.widths[i]:
            return self.second_block(i, h, onto)
        if self.facts.idle_layers and not self.kv_heads[i]:
            return self.source.linear(f"{block}.attn_output", h, onto=onto, bare=True)
        if self.facts.beside:
            return MIXERS[recurrent](self.source, block, h, self.eps, self.attention(i, h, onto))
        if self.kv_heads[i] > 0 or not recurrent:
            return self.attention(i, h, onto)
        if recurrent == "rwkv7":
            y, values = rwkv.time_mix_7(self.source, block, h, self.first_values if i else None, onto)
            self.first_values = self.first_values if i else values
            return y
        return MIXERS[recurrent](self.source, block, h, self.eps, onto)

    def layer(self, i: int, x: np.ndarray) -> np.ndarray:
        """Hidden states x (n, n_embd) after the blocks of layer ``i``."""
        facts, block = self.facts, f"blk.{i}"
        parallel = facts.residual == "parallel" or (
            facts.residual == "stated" and self.source.key("use_parallel_residual", False)
        )
        ffn_norm, attn_norm = facts.ffn_norm, facts.attn_norm
        if facts.residual == "auto" and not self.source.has(f"{block}.{ffn_norm}.weight"):
            parallel, ffn_norm = True, ""
        if facts.residual == "post":
            return self.layer_with_last_norms(i, x)
        if facts.residual == "normed":
            for name, run in ((facts.attn_norm, self.mixer), (ffn_norm, self.second_block)):
                h = self.norm(f"{block}.{name}", x)
                x = fma(h, F32(self.residual_scale), run(i, h, None))
            return x
        if facts.swin and self.source.key("swin_norm", False):
            y = self.norm(f"{block}.attn_norm", self.mixer(i, x, None))
            fed: np.ndarray = self.norm(f"{block}.ffn_norm", self.second_block(i, y, None))
            found: np.ndarray = x + y + fed
            return found
        if facts.idle_layers and not (self.widths[i] and self.heads[i]):
            return self.idle_layer(i, x)
        if "attn_norm" in facts.optional and i == 0 and not self.source.has(f"{block}.{attn_norm}.weight"):
            attn_norm = ""
        if parallel and self.source.has(f"{block}.attn_norm_2.weight"):
            attn_norm, ffn_norm = "attn_norm_2", attn_norm
        if facts.dense_beside == "normed" and self.source.has(f"{block}.ffn_gate_inp.weight"):
            ffn_norm = ""  # both blocks have their own norm
        given, h = x, self.norm(f"{block}.{attn_norm}", x) if attn_norm else x
        beside = h if not ffn_norm else self.norm(f"{block}.{ffn_norm}", x) if parallel else None
        x = self.add(self.mixer, i, h, x, facts.attn_post_norm)
        if not facts.feed_forward:
            return x
        if not parallel or beside is None:
            beside = self.norm(f"{block}.{ffn_norm}", x) if ffn_norm else x
        has_input = facts.reads_layer or facts.dense_beside == "input"
        second = partial(self.second_block, seen=given) if has_input else self.second_block
        post_norm = facts.ffn_post_norm
        if facts.ffn_post_norm_optional and self.source.has(f"{block}.{facts.ffn_post_norm_optional}.weight"):
            post_norm = facts.ffn_post_norm_optional
        return self.add(second, i, beside, x, post_norm)

    def idle_layer(self, i: int, x: np.ndarray) -> np.ndarray:
        """`layer` without a mixer; without a width it has no effect."""
        self.source.ignore(f"blk.{i}.attn_")
        if not self.widths[i]:
            self.source.ignore(f"blk.{i}.")
            return x
        return self.feed_forward(i, "", self.norm(f"blk.{i}.ffn_norm", x), x)

    def layer_with_last_norms(self, i: int, x: np.ndarray) -> np.ndarray:
        """`layer` where norms follow the additions; another norm may follow the layer's input norm."""
        block, facts = f"blk.{i}", self.facts
        y = self.norm(f"{block}.{facts.attn_post_norm}", x + self.mixer(i, x, None))
        if self.source.has(f"{block}.attn_norm_2.weight"):
            y = self.norm(f"{block}.attn_norm_2", y + x)
        return self.norm(f"{block}.{facts.ffn_post_norm}", y + self.second_block(i, y, None))

    def whole_layer(self, i: int, x: np.ndarray) -> np.ndarray:
        """Hidden states, or streams of them, after layer ``i`` and everything that follows its blocks."""
        source, block = self.source, f"blk.{i}"
        blocks = [partial(each, i, onto=None) for each in (self.mixer, self.second_block, self.layer_input)]
        if self.facts.streams == "connected":
            return connections.connected_layer(source, block, x, self.eps, *blocks[:2])
        if self.facts.streams == "gated":
            return gated_streams.gated_layer(source, block, x, self.eps, source.tokens, *blocks[:2])
        if self.facts.streams == "altup":
            return streams.streamed_layer(source, block, x, self.eps, *blocks)
        x = self.layer(i, x)
        if self.embedded is not None:
            x = self.add(self.layer_input, i, x, x, "post_norm")
        if self.first_input is not None:
            return fma(self.first_input, source.vector(f"{block}.layer_output_scale.weight"), x)
        scale = source.optional(f"{block}.layer_output_scale.weight") if self.facts.output_scale else None
        return x if scale is None else x * scale

    def layer_input(self, i: int, h: np.ndarray, onto: Onto) -> np.ndarray:
        """The term of layer ``i``'s own embeddings, normed before it is added."""
        assert self.embedded is not None and onto is None
        return layer_input(self.source, f"blk.{i}", h, self.embedded[:, i])

    def hidden_states(self, tokens: np.ndarray) -> np.ndarray:
        """float32 (n, n_embd): the hidden states after the last norm."""
        source = self.source
        source.tokens = tokens
        embedded = tokens if self.switches is None else self.switches.substituted(tokens)
        x = source.embeddings("token_embd.weight", embedded)
        if self.embedding_scale != 1:
            x = x * F32(self.embedding_scale)
        if self.facts.token_types and source.has("token_types.weight"):
            x = x + source.vector("token_types.weight").reshape(-1, self.n_embd)[0]
        name, is_optional = "position_embd.weight", "positions" in self.facts.optional
        if self.facts.positions and (source.has(name) or not is_optional):
            x = x + source.embeddings(name, np.arange(len(tokens)))
        if self.facts.plain_embd_norm:
            x = norm(x, self.eps)
        if self.facts.embd_norm:
            x = self.norm("token_embd_norm", x)
        width = source.key("embedding_length_per_layer_input", 0)
        if width and self.facts.streams != "gated":
            self.embedded = layer_inputs(source, tokens, x, self.n_layers, self.eps)
        self.first_input = x if self.facts.adds_embedding else None
        if self.facts.streams == "banked" and source.key("attn_res.block_size"):
            x = banked_layers(source, x, self.eps, self.mixer, self.second_block)
            return self.norm(self.facts.output_norm, x)
        connected = self.facts.streams in ("connected", "gated")
        streamed = self.facts.streams not in ("", "banked")
        if streamed:
            x = (connections if connected else streams).begin(source, x)
        if self.facts.stacks == "hrm":
            return two_stacks(source, x, self.whole_layer, partial(self.norm, "hrm"))
        if self.facts.stacks == "loops":
            x = looped(source, x, self.whole_layer, partial(self.norm, self.facts.output_norm))
        for i in () if self.facts.stacks else range(self.n_layers):
            x = self.whole_layer(i, x)
            if self.rescale and (i + 1) % self.rescale == 0:
                x = x * F32(0.5)
        if streamed:
            if self.facts.streams == "gated":
                x, _ = gated_streams.read(source, "output_hc", x, self.eps)
            else:
                x = connections.end(source, x, self.eps) if connected else streams.end(source, x)
        x = self.norm(self.facts.output_norm, x) if self.facts.output_norm else x
        source.key("embedding_length_out")
        return source.linear("output", x) if self.facts.projects_states else x

    def logits(self, tokens: np.ndarray, wanted: slice = slice(None)) -> np.ndarray:
        """float32 (wanted, vocab): logits after each of the ``wanted`` tokens of a sequence, ids (n,).

        Raises Unsupported for an encoder, which has no logits.
        """
        if self.facts.encoder:
            raise Unsupported(f"reference: {self.source.name}: expected a model with logits, got an encoder")
        x, at = self.hidden_states(np.asarray(tokens, np.int64))[wanted], np.arange(len(tokens))[wanted]
        name = "output" if self.source.has("output.weight") else "token_embd"
        out = self.source.linear(name, x, positions=at)
        if self.logit_scale != 1:
            out = out * F32(self.logit_scale)
        out = soft_cap(out, self.final_soft_cap) if self.final_soft_cap else out
        if self.facts.hidden_tokens:
            out[:, slice(*self.facts.hidden_tokens)] = np.finfo(F32).min
        return out

    def scores(self, tokens: np.ndarray) -> np.ndarray:
        """float32 (labels,): what the head of a reranker makes of a sequence, ids (n,).

        The head is W_out tanh(W h + b) + b_out, or one of its two layers. Scores of the last token's hidden
        state become probabilities.
        """
        states, source = self.hidden_states(np.asarray(tokens, np.int64)), self.source
        is_last = self.facts.classifier == "last"
        x = states[-1:] if is_last else states[:1]
        source.key("classifier.output_labels")
        if source.has("cls.weight"):
            x = ACTIVATIONS["tanh"](source.linear("cls", x))
        if source.has("cls.output.weight"):
            x = source.linear("cls.output", x)
        found: np.ndarray = softmax(x[0]) if is_last else x[0]
        return found

    def decision_scores(self, tokens: np.ndarray, places: Mapping[str, Any]) -> np.ndarray:
        """float32 (options,): raw scores of the options of a prompt, ids (n,).

        Args:
            places: arguments of the function in `decisions.HEADS`; without one ``labels``, the tokens of each
                option, or ``forced``, the tokens of one text of which the prompt ends with all but the last,
                and ``n_vocab``, the number of tokens that have a probability.
        """
        tokens = np.asarray(tokens, np.int64)
        head = decisions.HEADS.get(self.decides)
        if head is not None:
            return head(self.source, self.hidden_states(tokens), **places)
        if "forced" in places:
            forced, n_vocab = places["forced"], places["n_vocab"]
            rows = self.logits(tokens, slice(len(tokens) - len(forced), None))[:, :n_vocab]
            return np.array([in_order([Candidates(row).logprob(id) for row, id in zip(rows, forced)])], F32)
        logits = self.logits(tokens, slice(len(tokens) - 1, None))[0]
        return np.array([logits[group].max() for group in places["labels"]], F32)
