"""The formulas of token mixers and feed-forward blocks, for `explain`: from their input h to their output."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from oxillama.models.explain_recurrent import RECURRENT
from oxillama.models.layers.attention import Attention
from oxillama.models.layers.block_selector import BlockAttention
from oxillama.models.layers.chunk_experts import ChunkedExperts
from oxillama.models.layers.compressed_attention import CompressedAttention
from oxillama.models.layers.delta import KimiDelta
from oxillama.models.layers.experts import DenseAndExperts, DenseAndExpertsOfInput, MixtureOfExperts
from oxillama.models.layers.feed_forward import FeedForward
from oxillama.models.layers.head_norm import GroupNorm, HeadNorm
from oxillama.models.layers.idle import LinearMixer
from oxillama.models.layers.latent_attention import LatentAttention
from oxillama.models.layers.norm import Norm
from oxillama.models.layers.output_gate import OutputGate
from oxillama.models.layers.rwkv import ChannelMix
from oxillama.models.layers.sparse_attention import SparseAttention
from oxillama.models.sizes import Selector
from oxillama.models.spec import LayerSpec, Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.packer import Source


class Blocks:
    """The formulas of the blocks of one model.

    Args:
        tensors: names of the file's tensors, by which a matrix has a bias or none.
    """

    def __init__(self, spec: Spec, tensors: frozenset[str]) -> None:
        self.spec = spec
        self.tensors = tensors

    def block(self, block: Any, i: int) -> list[str]:
        """The lines of a token mixer or a feed-forward block, from ``h`` to ``out``."""
        layer = self.spec.layers[i]
        explained: dict[type, Callable[[Any, LayerSpec], list[str]]] = {
            CompressedAttention: self.compressed_attention,
            Attention: self.attention, LatentAttention: self.latent_attention, FeedForward: self.feed_forward,
            ChunkedExperts: self.chunked_experts, DenseAndExpertsOfInput: self.dense_and_experts_of_input,
            LinearMixer: self.linear_mixer, MixtureOfExperts: self.experts, DenseAndExperts:
            self.dense_and_experts, ChannelMix: self.channel_mix,
        }  # fmt: skip
        for kind, explainer in explained.items():
            if isinstance(block, kind):
                return explainer(block, layer)
        beside = self.attention(block.attention, layer) if hasattr(block, "attention") else []
        first, low = getattr(block, "first", None), getattr(block, "low", {})
        sizes = vars(self.spec.recurrent) | {
            "first": names(first) if isinstance(first, Linear) else "",
            "low": ", ".join(f"{names(each.first)} @ {names(each.second)}" for each in low.values()),
        }
        if isinstance(block, KimiDelta):
            f, g = (
                f"{part} @ {names(wide)}" if wide else part
                for part, wide in (("f", block.steps), ("g", block.gates))
            )
            least, sizes["gate"] = block.rule.least, g
            bounded = f"{least:g} * sigmoid(({f} + bias) * abs(ssm_a))"
            sizes["decay"] = bounded if least else f"softplus({f} + bias) * ssm_a"
        lines = [line.format(**sizes) for line in RECURRENT[layer.mixer.rpartition("+")[2]]]
        return [*beside, "attended = out", *lines, "out = attended + out"] if beside else lines

    def attention(self, block: Attention, layer: LayerSpec) -> list[str]:
        """The lines of attention."""
        spec, heads, kv_heads = self.spec, layer.n_heads, block.kv_heads
        shapes = {"q": f"{heads} heads of {layer.key_dim}"}
        if kv_heads:
            shapes |= {"k": f"{kv_heads} of {layer.key_dim}", "v": f"{kv_heads} of {layer.value_dim}"}
        parts, sources = list(shapes), block.attn_qkv.sources
        parts = parts[:2] if block.value_experts else parts
        lines = []
        if len(sources) == len(parts):
            for part, source in zip(parts, sources):
                target, product = part, self.times("h", source)
                if part == "q" and block.gated_queries:
                    target, product = "q, gates", f"split({product})"
                lines.append(f"{target} = {product}  # {shapes[part]}")
        else:
            lines.append(f"{', '.join(parts)} = split({self.product('h', block.attn_qkv)})"
                         f"  # {', '.join(shapes.values())}")  # fmt: skip
        if block.value_experts is not None:
            values, experts = block.value_experts, names(block.value_experts.experts.members[0])
            sizes = values.sizes
            parts.append("v")
            lines.append(f"w = top{values.n_used}({sizes.gating}({self.product('h', values.router)}))"
                         f"  # {values.n_used} of {sizes.n_experts} experts")  # fmt: skip
            lines.append(f"v = sum(w * silu(h @ {experts}))  # {shapes['v']}")
        target = ", ".join(parts)
        if spec.clamp:
            lines.append(f"{target} = clip({target}, -{spec.clamp:g}, {spec.clamp:g})")
        lines += [self.head_norm(norm, layer) for norm in block.norms]
        if layer.rope is not None:
            rope = spec.ropes[layer.rope]
            pairs = f"(i, i + {rope.n_rot // 2})" if rope.neox else "(2i, 2i + 1)"
            scaling = "" if rope.factor == 1 else f", {rope.kind} scaling by {rope.factor:g}"
            both = ", ".join(parts[:2])
            note = f"{rope.n_rot} dimensions, pairs {pairs}, base {rope.base:g}{scaling}"
            lines.append(f"{both} = rope({both})  # {note}")
            lines += [self.head_norm(norm, layer) for norm in block.rotated_norms]
        if layer.scaled_queries and spec.temperature is not None:
            lines.append("q = q * temperature(position)")
        if layer.kv_from is not None:
            lines.append(f"k, v = those of layer {layer.kv_from}")
        if isinstance(block, BlockAttention):
            product = names(block.selector.keys_and_queries)
            lines.append(f"chosen = {self.top(block.selector.sizes)} of sum(relu(q2 @ mean(k2)))"
                         f"  # k2, q2 = h @ {product}, normed and rotated")  # fmt: skip
        if isinstance(block, SparseAttention):
            lines.append(f"chosen = {self.top(block.sizes)} by max(q2 @ k2), each key head its own"
                         f"  # q2, k2 = rms_norm(h @ {names(block.indexer)})")  # fmt: skip
        lines.append(self.softmax("q @ k", "v", layer, kv_heads or layer.n_kv_heads, block.options))
        if block.attn_gate is not None:
            lines.append(self.output_gate(block.attn_gate))
        if block.gated_queries:
            lines.append("a = a * sigmoid(gates)")
        if spec.value_scale != 1:
            lines.append(f"a = a * {spec.value_scale:g}")
        if block.sub_norm is not None:
            lines.append(f"a = {self.norm(block.sub_norm, 'a', 'attn_sub_norm')}")
        return [*lines, f"out = {self.product('a', block.attn_output)}  # (tokens, {block.attn_output.rows})"]

    def output_gate(self, gate: OutputGate) -> str:
        """The line of a gate of attended values."""
        name = {"softplus2": "log2(1 + 2^g), g ="}.get(gate.activation, gate.activation)
        return f"a = a * {name}({self.product('h', gate.matrix)})"

    def softmax(self, scores: str, values: str, layer: LayerSpec, kv_heads: int, options: Any) -> str:
        """The line from scores to attended values."""
        spec = self.spec
        scores = f"{scores} * {spec.score_scale:.4g}"
        scores = f"{options.softcap:g} * tanh({scores} / {options.softcap:g})" if options.softcap else scores
        scores += " - slopes * distance" if options.slopes is not None else ""
        scores += " + attn_rel_b[distance]" if options.biases is not None else ""
        scores += ", attn_sinks" if options.sinks is not None else ""
        seen = "all positions" if not options.causal else "positions up to its own"
        seen = f"the last {options.window} positions" if options.window else seen
        seen = f"positions since the last multiple of {options.chunk}" if options.chunk else seen
        seen = "the positions that the selector chose" if layer.selected_by is not None else seen
        shared = (
            f", {layer.n_heads // kv_heads} query heads to a key head" if kv_heads != layer.n_heads else ""
        )
        return f"a = softmax({scores}) @ {values}  # a token sees {seen}{shared}"

    def latent_attention(self, block: LatentAttention, layer: LayerSpec) -> list[str]:
        latent, d = block.latent, block.rope_dim
        lines = [f"q, c, k_rope = split({self.product('h', block.first)})  # c: (tokens, {latent.kv_rank})"]
        if block.attn_q_b is not None:
            lines.append(f"q = {self.product('rms_norm(q, attn_q_a_norm)', block.attn_q_b)}")
        lines.append(f"c = rms_norm(c, attn_kv_a_norm)  # q: {block.heads} heads of {latent.key_dim}")
        if self.spec.family.qk_norm:
            lines.append("k_rope = rms_norm(k_rope, attn_k_norm)")
        if block.selector is not None:
            one, two = block.selector.queries, block.selector.key_and_weights
            lines.append(f"chosen = {self.top(block.selector.sizes)} of sum(weights * relu(q2 @ k2))"
                         f"  # q2 = q_a @ {names(one)}; k2, weights = h @ {names(two)}")  # fmt: skip
        if block.rope is not None:
            lines.append(f"q[..., -{d}:], k_rope = rope(q[..., -{d}:]), rope(k_rope)")
        keys, values = block.attn_k_b.members[0], block.attn_v_b.members[0]
        q = f"[q[..., :-{d}] @ {names(keys)}, q[..., -{d}:]]" if d else f"q @ {names(keys)}"
        lines.append(f"q = {q}  # {block.heads} heads of {latent.kv_rank + d}")
        lines.append(self.softmax("q @ [c, k_rope]", "c", layer, 1, block.options))
        lines.append(f"a = a @ {names(values)}  # {block.heads} heads of {latent.value_dim}")
        lines += [self.output_gate(block.attn_gate)] if block.attn_gate else []
        return [*lines, f"out = {self.product('a', block.attn_output)}  # (tokens, {block.attn_output.rows})"]

    def top(self, sizes: Selector) -> str:
        """What a selector chooses."""
        return f"top {sizes.n_chosen}" + (f" blocks of {sizes.block}" if sizes.block > 1 else "")

    def compressed_attention(self, block: CompressedAttention, layer: LayerSpec) -> list[str]:
        heads, dim, sizes, d = block.heads, block.dim, block.sizes, self.spec.ropes[block.rope].n_rot
        lines = [
            f"q, k, ... = split(h @ {names(block.first)})  # the rest for the compressors",
            f"q = rms_norm(rms_norm(q, attn_q_a_norm) @ {names(block.attn_q_b)})",
            f"k = rms_norm(k, attn_kv_a_norm)  # {heads} heads of {dim}, one key, which is the value",
            f"q[..., -{d}:], k[..., -{d}:] = rope(q[..., -{d}:]), rope(k[..., -{d}:])",
        ]
        seen = f"the last {block.window} positions"
        if block.compressor is not None:
            lines.append(
                f"c = rope(rms_norm(sum(softmax(gate + ape) * kv)))  # of blocks of {block.size} tokens"
            )
            seen += " and " + ("all complete blocks" if block.selector is None else "the chosen blocks")
        if block.selector is not None:
            lines.append(f"chosen = {self.top(block.selector.sizes)} of sum(weights * relu(q2 @ c2))"
                         f"  # q2 = q_a @ {names(block.selector.queries)}")  # fmt: skip
        scores = f"q @ [c, k] * {block.scale:.4g}, attn_sinks"
        lines.append(f"a = softmax({scores}) @ [c, k]  # a token sees {seen}")
        groups = names(block.attn_output_a.members[0])
        lines.append(
            f"a = rope_back(a[..., -{d}:]) @ {groups}"
            f"  # {sizes.groups} groups of heads, {sizes.rank} rows each"
        )
        return [
            *lines,
            f"out = {self.product('a', block.attn_output_b)}  # (tokens, {block.attn_output_b.rows})",
        ]

    def fed(self, h: str, first: Linear, gated: bool, activation: Any) -> str:
        """The activated hidden values of a feed-forward block or an expert."""
        name = {"Activation": activation.name, "XieluActivation": "xielu"}.get(type(activation).__name__)
        name = name or f"{re.sub('Gate$', '', type(activation).__name__).lower()}_{activation.name}"
        each = [f"{h} @ {name}" for name in dict.fromkeys(map(stem, first.sources))]
        adapted = switched(h, first).split(" + ")[1:]  # each part has one term
        each = [" + ".join((product, *adapted[i : i + 1])) for i, product in enumerate(each)]
        if not gated:
            return f"{name}({each[0]})"
        if len(each) == 1:
            return f"gated({name}, {each[0]})"
        return f"{name}({each[0]}) * ({each[1]})"

    def feed_forward(self, block: FeedForward, layer: LayerSpec) -> list[str]:
        fed = self.fed("h", block.first, block.gated, block.activation)
        fed = f"{fed} / ffn.act.scales" if block.divisors is not None else fed
        fed = self.norm(block.sub_norm, fed, "ffn_sub_norm")
        return [f"f = {fed}  # (tokens, {block.width})", f"out = {self.product('f', block.down)}"]

    def channel_mix(self, block: ChannelMix, layer: LayerSpec) -> list[str]:
        out = f"relu((h + d * lerp) @ {names(block.key)})^2 @ {names(block.value)}"
        gate = f" * sigmoid((h + d * lerp) @ {names(block.receptance)})" if block.receptance else ""
        return ["d = previous(h) - h", f"out = {out}{gate}  # (tokens, {block.key.rows}) between"]

    def experts(self, block: MixtureOfExperts, layer: LayerSpec) -> list[str]:
        sizes, first, down = block.sizes, block.first.members[0], block.down.members[0]
        reads = "router_input" if block.router_has_input else "h"
        chosen = f"{sizes.gating}({self.product(reads, block.router)})"
        notes = [f"{block.n_used} of {sizes.n_experts} experts"]
        notes += ["chosen with a bias"] if block.bias is not None else []
        notes += [f"of {sizes.groups_used} of {sizes.groups} groups"] if sizes.groups > 1 else []
        notes += ["normalized"] if sizes.normalize else []
        notes += [f"times {sizes.scale:g}"] if sizes.scale != 1 else []
        lines = [f"w = top{block.n_used}({chosen})  # {', '.join(notes)}"]
        h = "h"
        if block.latent is not None:
            h = "l"
            lines.append(f"l = {self.product('h', block.latent[0])}  # (tokens, {block.latent[0].rows})")
        gated = first.rows == 2 * down.cols
        if block.scales_input:
            out = f"sum({self.fed(f'(w * {h})', first, gated, block.activation)} @ {names(down)})"
        else:
            out = f"sum(w * ({self.fed(h, first, gated, block.activation)}) @ {names(down)})"
        lines.append(f"out = {out}  # (tokens, {down.cols}) in each expert")
        if block.latent is not None:
            normed = self.norm(block.latent_norm, "out", "ffn_routed_norm")
            lines.append(f"out = {self.product(normed, block.latent[1])}")
        if block.shared is not None:
            lines += [
                line.replace("out = ", "shared = ", 1) for line in self.feed_forward(block.shared, layer)
            ]
            gate = f"sigmoid({self.product('h', block.shared_gate)}) * " if block.shared_gate else ""
            lines.append(f"out = out + {gate}shared")
        return lines if block.scale == 1 else [*lines, f"out = out * {block.scale:.4g}"]

    def linear_mixer(self, block: LinearMixer, layer: LayerSpec) -> list[str]:
        return [f"out = h @ {names(block.matrix)}  # instead of attention"]

    def chunked_experts(self, block: ChunkedExperts, layer: LayerSpec) -> list[str]:
        first, down, sizes = block.chunk_first.members[0], block.chunk_down.members[0], block.sizes
        chunks = (
            f"w{block.chunks.n_used} * ({self.fed('out', first, True, block.activation)}) @ {names(down)}"
        )
        note = f"{block.chunks.n_used} of {block.n_chunks} chunk experts, one for {block.group} experts"
        return [*self.experts(block, layer), f"out = out + {sizes.chunk_scale:g} * sum({chunks})  # {note}"]

    def dense_and_experts_of_input(self, block: DenseAndExpertsOfInput, layer: LayerSpec) -> list[str]:
        return [*self.feed_forward(block.dense, layer), "dense = out",
                f"h = {self.norm(block.norm, 'router_input', 'ffn_norm_exps')}",
                *self.experts(block.experts, layer), "out = dense + out"]  # fmt: skip

    def dense_and_experts(self, block: DenseAndExperts, layer: LayerSpec) -> list[str]:
        dense = self.feed_forward(block.dense, layer)
        return ["h = norm(x, ffn_norm)", *dense, "dense = norm(out, post_ffw_norm_1)",
                "router_input = rms_norm(x, ffn_gate_inp.scale)", "h = norm(x, pre_ffw_norm_2)",
                *self.experts(block.experts, layer), "out = dense + norm(out, post_ffw_norm_2)"]  # fmt: skip

    def product(self, x: str, linear: Linear) -> str:
        """``x @ matrix + bias``; with several matrices, one below the other."""
        stems = [source.info.name.removesuffix(".weight") for source in linear.sources]
        has_bias = any(f"{each}.bias" in self.tensors for each in stems)
        return f"{x} @ {names(linear)}" + (" + bias" if has_bias else "") + switched(x, linear)

    def times(self, x: str, source: Source) -> str:
        """``x @ matrix + bias`` for one matrix."""
        has_bias = source.info.name.removesuffix(".weight") + ".bias" in self.tensors
        return f"{x} @ {stem(source)}" + (" + bias" if has_bias else "")

    def norm(self, norm: Norm | None, x: str, name: str = "") -> str:
        """A norm of x; x itself for None."""
        if norm is None:
            return x
        kind = getattr(norm.kernel, "__name__", "rms_norm")
        kind = f"{kind}_of_{self.spec.norm_groups}_slices" if isinstance(norm, GroupNorm) else kind
        return f"{kind}({x}, {name or 'token_embd_norm'})" if norm.weight is not None else f"{kind}({x})"

    def head_norm(self, norm: HeadNorm, layer: LayerSpec) -> str:
        """A norm of the heads of q, of k, of both, or of v."""
        heads, dim = norm.shape
        kind = "layer_norm" if norm.centred else "rms_norm"
        part = "q" if norm.column == 0 else "k" if norm.column == layer.n_heads * layer.key_dim else "v"
        if part == "q" and heads * dim > layer.n_heads * layer.key_dim:
            part = "q, k"
        weight = "" if norm.weight is None else f", attn_{part}_norm"
        return f"{part} = {kind}({part}{weight})  # {heads} of {dim}"


def stem(source: Source) -> str:
    """The name of a matrix without its block and suffix: "attn_q" of "blk.3.attn_q.weight"."""
    return re.sub(r"^(enc\.)?blk\.\d+\.", "", source.info.name).removesuffix(".weight")


def switched(x: str, linear: Any) -> str:
    """The terms of the adapters that tokens choose, " + ..."; "" without."""
    terms = []
    for _, a, b in getattr(linear, "switched", ()):
        down, up = (stem(each.members[0].sources[0]) for each in (a, b))
        terms.append(f" + {x} @ {down}[adapter] @ {up}[adapter]")
    return "".join(terms)


def names(linear: Linear | None) -> str:
    """The matrices of a linear layer, stacked by rows if there are several."""
    stems = list(dict.fromkeys(map(stem, linear.sources if linear else ())))
    return stems[0] if len(stems) == 1 else f"[{', '.join(stems)}]"
