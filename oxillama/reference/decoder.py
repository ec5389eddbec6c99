"""The forward pass of a model: tokens in, logits out, one sequence at a time and all at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial

import numpy as np

from oxillama.gguf.model_file import ModelFile
from oxillama.reference import rwkv, streams
from oxillama.reference.adapters import Adapter
from oxillama.reference.attention import View, alibi_slopes, attend, distance_biases
from oxillama.reference.delta import gated_delta, kimi_delta
from oxillama.reference.experts import dense_and_experts, mixture_of_experts
from oxillama.reference.floats import F32, fma
from oxillama.reference.kv import Stored, store
from oxillama.reference.latent import LatentHeads
from oxillama.reference.layer_inputs import layer_input, layer_inputs
from oxillama.reference.recurrent import mamba, mamba2, plamo, short_conv
from oxillama.reference.rotation import Rotation, read_rotations
from oxillama.reference.rows import ACTIVATIONS, cut, gate, limited_gate, norm, soft_cap
from oxillama.reference.sizes import delta_layers, gate_cuts, head_widths, key_layers, read_windows
from oxillama.reference.source import Source, Unsupported
from oxillama.reference.xielu import read_xielu, xielu

Onto = np.ndarray | None
"""What the last product of a block is added to, before what adapters add; None for nothing."""
MIXERS: dict[str, Callable[[Source, str, np.ndarray, float, Onto], np.ndarray]] = {
    "mamba": mamba,
    "mamba2": mamba2,
    "plamo2": plamo,
    "shortconv": short_conv,
    "delta": gated_delta,
    "kda": kimi_delta,
    "rwkv6": lambda source, block, h, eps, onto: rwkv.time_mix_6(source, block, h, onto),
}
"""By `Facts.recurrent`; each takes the source, the layer's prefix, its input (n, d), the epsilon of norms,
and what its output is added to."""


class ReferenceModel:
    """A model that is run by the statements of this room alone.

    Parameters
    ----------
    file : an open model file.
    compute, kv_type : as in `EngineConfig`.
    adapters : in the order in which they are added.
    context : tokens that the model is run with, on which LongRoPE depends; None for those of the file.

    Raises
    ------
    Unsupported : something that the file needs has no statement here; the message names it.
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
        if self.facts.recurrent == "delta":
            self.kv_heads = [
                0 if each else n for each, n in zip(delta_layers(source, self.n_layers), self.kv_heads)
            ]
        width = self.n_embd // next(n for n in self.heads if n)
        self.key_dim: int = source.key("attention.key_length", width)
        self.value_dim: int = source.key("attention.value_length", width)
        by_width = self.n_layers == self.facts.layers_scaled_by_width
        usual = 1.0 if self.facts.distance_biases else 1 / math.sqrt(width if by_width else self.key_dim)
        usual = 1 / math.sqrt(self.value_dim) if self.facts.recurrent == "plamo2" else usual
        stated = source.key("attention.scale") or source.key("attention.output_scale")
        self.score_scale: float = stated or self.facts.score_scale or usual
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
        self.xielu = read_xielu(source, self.n_layers) if self.facts.activation == "xielu" else []
        self.rescale: int = source.key("rescale_every_n_layers", 0)
        self.first_values: np.ndarray | None = None  # of RWKV 7's first layer
        self.causal: bool = not self.facts.encoder and source.key("attention.causal", True)
        source.key("attention.causal")
        self.chunk_off: bool = self.facts.chunk > 0 and source.key("attention.sliding_window", 1) == 0
        self.windows: list[int] = read_windows(source, self.n_layers)
        self.key_dims: list[int] = head_widths(source, "key", self.key_dim, self.windows)
        self.value_dims: list[int] = head_widths(source, "value", self.value_dim, self.windows)
        self.key_layers: list[int] = key_layers(source, self.windows)
        self.shared: dict[int, Stored] = {}  # keys and values to which later layers attend, too
        self.cuts: list[float | None] = gate_cuts(source, self.n_layers)
        self.embedded: np.ndarray | None = None  # of the pass, for each layer
        self.rotations: list[Rotation] = read_rotations(source, self.key_dim, context)
        self.latent: LatentHeads | None = None
        if self.facts.latent:
            self.latent = LatentHeads(source, max(self.heads), self.key_dim, self.value_dim)
        self.n_vocab: int = source.shape("token_embd.weight")[1]
        run = self.hidden_states if self.facts.encoder else self.logits
        run(np.zeros(1, np.int64))  # so that each key and tensor is asked for
        source.check_used()

    # --- parts of a layer -----------------------------------------------------------------------------

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        """The norm called ``name``."""
        stored = name if self.source.has(name) else f"{name}.weight"
        weight = self.source.vector(stored) if self.facts.norm_weight else None
        bias = self.source.optional(f"{name}.bias")
        return norm(x, self.eps, weight, bias, self.facts.norm == "layer")

    def projections(self, i: int, h: np.ndarray) -> list[np.ndarray]:
        """q, k, v (n, heads, dim) before norms and rotation, and the gates beside q or (n, 0).

        A layer that attends to keys of an earlier one has none.
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
            both = np.hstack([source.linear(f"{block}.attn_{part}", h) for part in parts])
        if self.clamp:
            both = np.clip(both, -F32(self.clamp), F32(self.clamp))
        queries = both[:, :first].reshape(n, self.heads[i], -1)
        gates = np.ascontiguousarray(queries[:, :, dim:]).reshape(n, -1)
        keys = both[:, first : first + k].reshape(n, kv_heads, dim)
        values = both[:, first + k :].reshape(n, kv_heads, self.value_dims[i])
        return [np.ascontiguousarray(queries[:, :, :dim]), keys, values, gates]

    def normed_heads(self, name: str, x: np.ndarray) -> np.ndarray:
        """q or k (n, heads, dim) after its norm."""
        if self.facts.qk_norm == "unit":
            return norm(x, self.eps)
        if not x.shape[1] or ("qk_norm" in self.facts.optional and not self.source.has(f"{name}.weight")):
            return x
        weight, bias = self.source.vector(f"{name}.weight"), self.source.optional(f"{name}.bias")
        bias = None if name.rpartition(".")[2] in self.facts.unbiased else bias
        given = x.reshape(len(x), 1, -1) if self.facts.qk_norm == "row" else x
        return norm(given, self.eps, weight, bias, self.facts.norm == "layer").reshape(x.shape)

    def growth(self, n: int) -> np.ndarray | None:
        """float32 (n, 1, 1): 1 + rate ln(steps) by position, which multiplies queries; None for 1."""
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
        """One more score of each head; None for none."""
        if not self.facts.sinks:
            return None
        return self.source.optional(name) if "sinks" in self.facts.optional else self.source.vector(name)

    def biases(self, i: int) -> np.ndarray:
        """Of scores by distance; those of the first layer where a layer has no table of its own."""
        name = f"blk.{i}.attn_rel_b.weight"
        return distance_biases(
            self.source.vector(name if self.source.has(name) else "blk.0.attn_rel_b.weight")
        )

    def attention(self, i: int, h: np.ndarray, onto: Onto = None) -> np.ndarray:
        """The attention block of layer ``i``."""
        if self.latent is not None:
            grows = self.growth(len(h))
            rotation = self.rotations[0] if self.rotations else None
            return self.latent.attention(i, h, rotation, self.eps, self.kv_type, onto, grows)
        facts, block, window = self.facts, f"blk.{i}", self.windows[i]
        q, k, v, gates = self.projections(i, h)
        turns = facts.rope != "none" and not (facts.no_rope_every and (i + 1) % facts.no_rope_every == 0)
        turns = turns and (window > 0 or not facts.rope_on_windows_only)
        turns = turns or self.chunk_off
        turns = turns and self.source.key("rope.scaling.finetuned", True)
        turns = turns and bool(self.source.per_layer("attention.rope_pattern", self.n_layers, 1)[i])
        turns = turns and not (facts.fixed_window and any(self.windows) and i % 4 == 0)
        names = (f"{block}.attn_q_norm", f"{block}.attn_k_norm") if facts.qk_norm else ()
        if facts.qk_norm == "unit" and self.source.key("expert_count", 0) == 128:
            names = ()  # as llama.cpp has the largest Llama 4
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
        attended = attend(q, kv, self.score_scale, view).reshape(len(h), -1)
        attended = attended if self.value_scale == 1 else attended * F32(self.value_scale)
        name = f"{block}.attn_gate.weight"
        if facts.attn_gate and (self.source.has(name) or "attn_gate" not in facts.optional):
            shares = ACTIVATIONS["sigmoid"](self.source.linear(f"{block}.attn_gate", h))
            attended = (attended.reshape(*shares.shape, -1) * shares[..., None]).reshape(len(h), -1)
        if facts.gated_queries:
            attended = gate("sigmoid", gates, attended)
        return self.source.linear(f"{block}.attn_output", attended, onto=onto)

    def feed_forward(self, i: int, ending: str, h: np.ndarray, onto: Onto = None) -> np.ndarray:
        """The dense block of layer ``i`` (ending ""), or with the ending "_shexp" its shared expert."""
        block, source = f"blk.{i}", self.source
        up, name = source.linear(f"{block}.ffn_up{ending}", h), self.facts.activation
        if self.facts.distance_biases and not source.has(f"{block}.ffn_gate.weight"):
            name = "relu"  # of the first T5
        width = source.shape(f"{block}.ffn_down{ending}.weight")[0]
        gates, cut_at = None, self.cuts[i]
        if source.has(f"{block}.ffn_gate{ending}.weight"):
            gates = source.linear(f"{block}.ffn_gate{ending}", h)
        elif up.shape[1] == 2 * width:
            gates, up = up[:, :width], up[:, width:]
        if gates is not None:
            fed = limited_gate(name, gates if cut_at is None else cut(gates, cut_at), up, self.limits[i])
        else:
            fed = xielu(up, *self.xielu[i]) if name == "xielu" else ACTIVATIONS[name](up)
        divisors = source.optional(f"{block}.ffn.act.scales")
        fed = fed if divisors is None else fed / divisors
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
        """x plus the output of a block of layer ``i`` for h: as it is, or after a norm, or times a factor."""
        if h is not x and not post_norm and self.residual_scale == 1:
            return block(i, h, x)
        y = block(i, h, None)
        y = self.norm(f"blk.{i}.{post_norm}", y) if post_norm else y
        return x + y if self.residual_scale == 1 else fma(y, F32(self.residual_scale), x)

    def second_block(self, i: int, h: np.ndarray, onto: Onto, seen: np.ndarray | None = None) -> np.ndarray:
        """The feed-forward block of layer ``i`` for h. A router of experts reads ``seen``, else h."""
        if self.source.has(f"blk.{i}.ffn_gate_inp.weight"):
            out = np.zeros_like(h) if onto is None else onto
            if self.facts.dense_beside == "normed":
                return dense_and_experts(self.source, f"blk.{i}", h, self.eps, partial(self.feed_forward, i))
            shared = partial(self.feed_forward, i, "" if self.facts.dense_beside else "_shexp")
            return mixture_of_experts(self.source, f"blk.{i}", h, out, shared, h if seen is None else seen)
        if self.facts.recurrent.startswith("rwkv"):
            return rwkv.channel_mix(self.source, f"blk.{i}", h, onto)
        return self.feed_forward(i, "", h, onto)

    def mixer(self, i: int, h: np.ndarray, onto: Onto) -> np.ndarray:
        """The token mixer of layer ``i``."""
        block, recurrent = f"blk.{i}", self.facts.recurrent
        if self.facts.single_blocks and self.widths[i]:
            return self.second_block(i, h, onto)
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
        """Hidden states x (n, n_embd) behind the blocks of layer ``i``."""
        facts, block = self.facts, f"blk.{i}"
        parallel = facts.residual == "parallel" or (
            facts.residual == "stated" and self.source.key("use_parallel_residual", False)
        )
        ffn_norm, attn_norm = facts.ffn_norm, facts.attn_norm
        if facts.residual == "auto" and not self.source.has(f"{block}.{ffn_norm}.weight"):
            parallel, ffn_norm = True, ""
        if facts.residual == "post":
            return self.layer_with_last_norms(i, x)
        if "attn_norm" in facts.optional and i == 0 and not self.source.has(f"{block}.{attn_norm}.weight"):
            attn_norm = ""
        if parallel and self.source.has(f"{block}.attn_norm_2.weight"):
            attn_norm, ffn_norm = "attn_norm_2", attn_norm
        if facts.dense_beside == "normed" and self.source.has(f"{block}.ffn_gate_inp.weight"):
            ffn_norm = ""  # both blocks have their own
        given, h = x, self.norm(f"{block}.{attn_norm}", x) if attn_norm else x
        beside = h if not ffn_norm else self.norm(f"{block}.{ffn_norm}", x) if parallel else None
        x = self.add(self.mixer, i, h, x, facts.attn_post_norm)
        if not facts.feed_forward:
            return x
        if not parallel or beside is None:
            beside = self.norm(f"{block}.{ffn_norm}", x) if ffn_norm else x
        second = partial(self.second_block, seen=given) if facts.reads_layer else self.second_block
        post_norm = facts.ffn_post_norm
        if facts.ffn_post_norm_optional and self.source.has(f"{block}.{facts.ffn_post_norm_optional}.weight"):
            post_norm = facts.ffn_post_norm_optional
        return self.add(second, i, beside, x, post_norm)

    def layer_with_last_norms(self, i: int, x: np.ndarray) -> np.ndarray:
        """The same where norms follow the additions; a further one may follow that of the layer's input."""
        block, facts = f"blk.{i}", self.facts
        y = self.norm(f"{block}.{facts.attn_post_norm}", x + self.mixer(i, x, None))
        if self.source.has(f"{block}.attn_norm_2.weight"):
            y = self.norm(f"{block}.attn_norm_2", y + x)
        return self.norm(f"{block}.{facts.ffn_post_norm}", y + self.second_block(i, y, None))

    def whole_layer(self, i: int, x: np.ndarray) -> np.ndarray:
        """Hidden states, or streams of them, behind layer ``i`` and what follows its blocks."""
        source, block = self.source, f"blk.{i}"
        if self.facts.streams:
            blocks = (self.mixer, self.second_block, self.layer_input)
            return streams.streamed_layer(
                source, block, x, self.eps, *(partial(each, i, onto=None) for each in blocks)
            )
        x = self.layer(i, x)
        if self.embedded is not None:
            x = self.add(self.layer_input, i, x, x, "post_norm")
        scale = source.optional(f"{block}.layer_output_scale.weight") if self.facts.output_scale else None
        return x if scale is None else x * scale

    def layer_input(self, i: int, h: np.ndarray, onto: Onto) -> np.ndarray:
        """The term of layer ``i``'s own embeddings, which is normed before it is added to anything."""
        assert self.embedded is not None and onto is None
        return layer_input(self.source, f"blk.{i}", h, self.embedded[:, i])

    def hidden_states(self, tokens: np.ndarray) -> np.ndarray:
        """float32 (n, n_embd): behind the last norm."""
        source = self.source
        x = source.embeddings("token_embd.weight", tokens)
        if self.embedding_scale != 1:
            x = x * F32(self.embedding_scale)
        if self.facts.token_types and source.has("token_types.weight"):
            x = x + source.vector("token_types.weight").reshape(-1, self.n_embd)[0]
        if self.facts.positions:
            x = x + source.embeddings("position_embd.weight", np.arange(len(tokens)))
        if self.facts.embd_norm:
            x = self.norm("token_embd_norm", x)
        if source.key("embedding_length_per_layer_input", 0):
            self.embedded = layer_inputs(source, tokens, x, self.n_layers, self.eps)
        x = streams.begin(source, x) if self.facts.streams else x
        for i in range(self.n_layers):
            x = self.whole_layer(i, x)
            if self.rescale and (i + 1) % self.rescale == 0:
                x = x * F32(0.5)
        x = streams.end(source, x) if self.facts.streams else x
        return self.norm(self.facts.output_norm, x) if self.facts.output_norm else x

    def logits(self, tokens: np.ndarray, wanted: slice = slice(None)) -> np.ndarray:
        """float32 (wanted, vocab): logits after each of the ``wanted`` tokens of a sequence, ids (n,).

        Raises Unsupported for an encoder, which has none.
        """
        if self.facts.encoder:
            raise Unsupported(f"reference: {self.source.name}: expected a model with logits, got an encoder")
        x, at = self.hidden_states(np.asarray(tokens, np.int64))[wanted], np.arange(len(tokens))[wanted]
        name = "output" if self.source.has("output.weight") else "token_embd"
        out = self.source.linear(name, x, positions=at)
        if self.logit_scale != 1:
            out = out * F32(self.logit_scale)
        return soft_cap(out, self.final_soft_cap) if self.final_soft_cap else out
