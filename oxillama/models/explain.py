"""A model as formulas with shapes, from the facts and the layer objects that run it; no matrix is read.

``@`` multiplies rows by a transposed matrix of the file: ``h @ attn_q`` is float32 (tokens, rows of attn_q).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, read_spec
from oxillama.models.explain_blocks import Blocks, names
from oxillama.models.layers.gated_streams import GatedLayer, GatedMix
from oxillama.models.layers.hyper_connections import Connection
from oxillama.models.layers.idle import IdleLayer
from oxillama.models.layers.layer import Layer
from oxillama.models.layers.ngrams import NgramEmbedding
from oxillama.models.layers.residual_attention import BankedLayer, Mixed
from oxillama.models.preflight import UnpackedWeights
from oxillama.models.spec import Spec

COLUMN = 62  # where comments begin


def explain(file: ModelFile) -> str:
    """The formulas of an open model file, one a line. Raises LoadError, GGUFError as loading it would."""
    from oxillama._kernels import best

    spec = read_spec(file)
    return Explanation(Decoder(spec, UnpackedWeights(file, best())), frozenset(file.tensors)).text()


class Explanation:
    """The formulas of one model.

    Args:
        tensors: names of the file's tensors, by which a matrix has a bias or none.
    """

    def __init__(self, model: Decoder, tensors: frozenset[str]) -> None:
        self.model = model
        self.spec: Spec = model.spec
        self.blocks: Blocks = Blocks(model.spec, tensors)

    def text(self) -> str:
        """All lines."""
        spec, model = self.spec, self.model
        lines = [f"{spec.family.name}: {spec.n_layers} layers, hidden states (tokens, {spec.n_embd})", ""]
        assert model.inputs is not None
        x = "token_embd[ids]" + (f" * {spec.embedding_scale:g}" if spec.embedding_scale != 1 else "")
        x += " + token_types[0]" if model.inputs.type is not None else ""
        x += " + position_embd[positions]" if model.inputs.positions is not None else ""
        lines.append(f"x = {self.blocks.norm(model.inputs.norm, x)}  # (tokens, {spec.n_embd})")
        if model.inputs.of_layers is not None:
            rows = "rms_norm(x @ per_layer_model_proj)"
            if model.inputs.of_layers.table is not None:
                rows = f"({rows} + per_layer_token_embd[ids]) * sqrt(1/2)"
            lines.append(f"e = {rows}"
                         f"  # {spec.n_layers} x (tokens, {spec.layer_width})")  # fmt: skip
        if spec.switch is not None:
            tokens = ", ".join(map(str, spec.switch.activate))
            lines.append(f"adapter = of the last of the tokens {tokens} before; their mean after several")
        if spec.family.adds_embedding:
            lines.append("x0 = x")
        if model.streams is not None:
            lines.append({
                "altup": "x, 3 more streams = x, scaled(x @ altup_proj)",
                "connected": f"streams = {spec.connections and spec.connections.streams} copies of x",
                "gated": f"streams = {spec.connections and spec.connections.streams} copies of x",
                "banked": "bank = []",
            }[spec.family.streams])  # fmt: skip
        found = [self.layer(i) for i in range(spec.n_layers)]
        for same in dict.fromkeys(map(tuple, found)):
            numbers = [i for i, each in enumerate(found) if tuple(each) == same]
            word = "layer" if len(numbers) == 1 else "layers"
            lines += ["", f"{word} {ranges(numbers)}:", *(f"    {line}" for line in same)]
        lines.append("")
        if spec.family.streams == "gated":
            lines += gated(model.streams.mix) if model.streams else []
        elif spec.family.streams == "banked":
            lines += mixed(model.streams.head if model.streams else None)
        elif spec.connections is not None:
            lines += (
                connected(model.streams.head)
                if model.streams and model.streams.head
                else ["x = mean(streams)"]
            )
        elif model.streams is not None:
            lines.append("x = mean(x, scaled(streams @ altup_unembd_proj))")
        if model.output_norm is not None:
            lines.append(f"x = {self.blocks.norm(model.output_norm, 'x', spec.family.output_norm)}")
        if model.token_projection is not None:
            product = self.blocks.product("x", model.token_projection)
            lines.append(f"x = {product}  # (tokens, {model.token_projection.rows})")
        if model.output is not None:
            logits = self.blocks.product("x", model.output)
            logits = logits if spec.logit_scale == 1 else f"{logits} * {spec.logit_scale:g}"
            cap = spec.final_soft_cap
            logits = f"{cap:g} * tanh({logits} / {cap:g})" if cap else logits
            lines.append(f"logits = {logits}  # (tokens, {spec.n_vocab})")
            if spec.family.hidden_tokens:
                first, end = spec.family.hidden_tokens
                lines.append(f"logits[{first}:{end}] = the lowest float32")
        for head in (model.classifier, model.projection):
            for linear in head.linears() if head is not None else ():
                lines.append(f"pooled = {self.blocks.product('pooled', linear)}  # (texts, {linear.rows})")
        return "\n".join(map(aligned, lines)) + "\n"

    # --- a layer ------------------------------------------------------------------------------------

    def layer(self, i: int) -> list[str]:
        """The lines of one layer."""
        whole: Any = self.model.layers[i]
        if isinstance(whole, IdleLayer):
            return self.idle_layer(whole, i)
        layer: Layer = getattr(whole, "layer", whole)
        begins, ends = getattr(whole, "begins", ""), getattr(whole, "ends", "")
        scaled = f"{layer.residual_scale:g} * " if layer.residual_scale != 1 else ""
        lines = ["high, low = x, hrm.z_l_init"] if begins == "first" else []
        lines += ["x = high + low"] if begins else []
        streamed, connections = self.spec.family.streams == "altup", getattr(whole, "connections", ())
        if streamed:
            lines.append("c = tanh(norm(x) @ altup_router) @ altup_predict_coef")
            lines.append("predicted = streams + c @ streams; x = predicted[0]")
        if layer.keeps_input:
            lines.append("router_input = x")
        blocks = [(layer.mixer, layer.attn_norm, "attn_norm", layer.attn_post_norm, "attn_post_norm")]
        if layer.feed_forward is not None:
            blocks.append(
                (layer.feed_forward, layer.ffn_norm, "ffn_norm", layer.ffn_post_norm, "ffn_post_norm")
            )
        is_parallel = layer.residual == "parallel"
        mixes = whole.mixes if isinstance(whole, BankedLayer) else ()
        gates = whole.mixes if isinstance(whole, GatedLayer) else ()
        lines += self.ngrams(whole.ngrams) if gates and whole.ngrams is not None else []
        for number, (block, norm, name, after, after_name) in enumerate(blocks):
            if mixes:
                lines += mixed(mixes[number], "y")
            if gates:
                lines += gated(gates[number])
            if connections:
                lines += connected(connections[number])
            is_chained = layer.residual == "chained"
            if layer.residual == "post" or (is_chained and block is layer.mixer):
                lines.append("h = x")
            elif is_chained:
                lines.append("h = out")
            elif not (is_parallel and block is layer.feed_forward and norm is None):
                x = "x0" if is_parallel else "y" if mixes and mixes[number] else "x"
                lines.append(f"h = {self.blocks.norm(norm, x, name)}")
            lines += self.blocks.block(block, i)
            if streamed and block is layer.mixer:
                lines.append("out = (out + h + norm((h @ laurel_l) @ laurel_r)) * sqrt(1/2)")
            if layer.residual == "post":
                lines.append(f"x = {self.blocks.norm(after, 'x + out', after_name)}")
                if block is layer.mixer and layer.second_post_norm is not None:
                    lines.append(f"x = {self.blocks.norm(layer.second_post_norm, 'x + h', 'attn_norm_2')}")
            elif is_chained:
                lines += [f"out = {self.blocks.norm(after, 'out', after_name)}", "x = x + out"]
            elif mixes and whole.banks and block is layer.mixer:
                lines.append("bank, x = [*bank, x], out")
            elif gates:
                lines.append("streams = streams + 2 * sigmoid(w) * out")
            elif layer.residual == "normed":
                lines.append(f"x = {scaled}h + out")
            elif connections:
                lines.append(written(connections[number]))
            else:
                lines.append(f"x = x + {scaled}{self.blocks.norm(after, 'out', after_name)}")
        if is_parallel:
            lines.insert(0, "x0 = x  # the input of both blocks")
        if streamed:
            lines.append("c = tanh(norm(x) @ altup_router) @ altup_correct_coef")
            lines.append("streams = predicted + (1 + c) * (x - predicted[0])")
        if layer.layer_input is not None:
            of: Any = layer.layer_input
            inner = f"{of.activation}({self.blocks.product('x', of.gate)}) * e[layer]"
            outer = self.blocks.norm(
                layer.layer_input_norm, self.blocks.product(f"({inner})", of.projection), "post_norm"
            )
            lines.append(f"x = x + {outer}")
        if layer.scale != 1:
            lines.append(f"x = x * {layer.scale:g}")
        if layer.embedding_scale:
            lines.append(f"x = x + {layer.embedding_scale:g} * x0")
        if ends:
            name = self.spec.family.output_norm
            lines.append(
                f"{'' if ends == 'norm' else f'{ends} = '}x = {self.blocks.norm(whole.norm, 'x', name)}"
            )
        return lines

    def ngrams(self, block: NgramEmbedding) -> list[str]:
        """The lines of the embeddings of n-grams."""
        sizes = block.sizes
        return [
            f"e = per_layer_token_embd[hashes of 2 to {sizes.size} tokens]"
            f"  # {sizes.n_heads} rows of {sizes.width}",
            f"k, v = split(e @ {names(block.key_and_value)}); k, q = ple_norm(k), ple_norm(streams)",
            "v = sigmoid(root(sum(k * q) / sqrt(d))) * v  # root(x) = sign(x) * sqrt(max(abs(x), 1e-6))",
            "streams = streams + v + silu(causal_conv1d(ple_norm(v), ple_conv1d))"
            f"  # {sizes.size} tokens apart",
        ]

    def idle_layer(self, layer: IdleLayer, i: int) -> list[str]:
        """The lines of a layer without a token mixer."""
        if layer.feed_forward is None:
            return ["x = x"]
        return [
            f"h = {self.blocks.norm(layer.norm, 'x', 'ffn_norm')}",
            *self.blocks.block(layer.feed_forward, i),
            "x = x + out",
        ]


def connected(connection: Connection) -> list[str]:
    """The lines from streams to the input of a block."""
    n, epsilon = connection.sizes.streams, connection.sizes.epsilon
    return [
        f"c = rms_norm(streams) @ {names(connection.matrix)} * scale + base"
        f"  # {connection.matrix.rows} numbers",
        f"x = sum((sigmoid(c[:{n}]) + {epsilon:g}) * streams)",
    ]


def written(connection: Connection) -> str:
    """The line from the output of a block to streams."""
    n, sizes = connection.sizes.streams, connection.sizes
    mix = f"balanced(c[{2 * n}:], {sizes.rounds} rounds) @ " if sizes.rounds else ""
    return f"streams = {mix}streams + {sizes.magnitude:g} * sigmoid(c[{n}:{2 * n}]) * out"


def gated(mix: GatedMix) -> list[str]:
    """The lines from streams to the input of a block, through gates of low rank."""
    low = "low, w" if len(mix.first.sources) > 1 else "low"
    return [
        f"z = rms_norm(streams); {low} = split(z @ {names(mix.first)} / {mix.n})"
        f"  # (tokens, {mix.first.rows})",
        f"x = mean(z * sigmoid(silu(low) @ {names(mix.up)}))  # over {mix.n} streams",
    ]


def mixed(mix: Mixed | None, target: str = "x") -> list[str]:
    """The lines from a bank of hidden states to a weighted sum; none for an empty bank."""
    if mix is None:
        return []
    return [
        f"w = softmax(rms_norm([*bank, x]) @ {names(mix.score)})  # {mix.n_banked} states in the bank",
        f"{target} = sum(w * [*bank, x])",
    ]


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in order as ranges: "0-3, 5"."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def aligned(line: str) -> str:
    """A line with its comment in a column."""
    formula, mark, comment = line.partition("  # ")
    return f"{formula:<{COLUMN}}  # {comment}" if mark else line
