"""A layer: its token mixer, its feed-forward block, their norms, and the residual additions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from oxillama._kernels import Kernels
from oxillama.frozen import frozen
from oxillama.models.layers.attention import Attention
from oxillama.models.layers.feed_forward import FeedForward
from oxillama.models.layers.norm import Norm, load_norm
from oxillama.models.spec import Spec
from oxillama.models.workspace import Step
from oxillama.on_use import on_use
from oxillama.weights.linear import Linear, MatrixGroup
from oxillama.weights.loader import Weights


class Block(Protocol):
    """A token mixer or a feed-forward block."""

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that. ``h`` and ``out`` never overlap."""

    def linears(self) -> list[Linear]:
        """Its linear layers, in the order of their use."""


@frozen()
class Layer:
    """Two blocks, their norms (None for none), and the residual additions.

    "sequential": x += mixer(norm(x)), then x += feed_forward(norm(x)).
    "parallel": x += mixer(norm(x)) + feed_forward(norm(x)), with one norm where the second is None.
    "post": x = norm(x + mixer(x)), then x = norm(x + feed_forward(x)).

    A norm after a block is applied to its output before the addition, or ("post") to the sum;
    ``second_post_norm`` is applied to the sum of that and the layer's input. A router may read the layer's
    input, which ``keeps_input`` then puts into the buffer "router_input".
    ``layer_input`` adds the layer's own embedding behind both blocks.
    """

    kernels: Kernels
    residual: str
    residual_scale: float
    mixer: Block
    feed_forward: Block | None
    attn_norm: Norm | None
    ffn_norm: Norm | None
    attn_post_norm: Norm | None
    ffn_post_norm: Norm | None
    second_post_norm: Norm | None = None
    scale: float = 1.0
    keeps_input: bool = False
    layer_input: Block | None = None
    layer_input_norm: Norm | None = None

    @functools.cached_property
    def is_plain(self) -> bool:
        """Whether x += mixer(norm(x)), then x += feed_forward(norm(x)) is all of it, as in most families."""
        parts = (self.attn_post_norm, self.ffn_post_norm, self.layer_input, self.keeps_input or None)
        needed = (self.attn_norm, self.ffn_norm, self.feed_forward)
        is_scaled = self.residual_scale != 1 or self.scale != 1
        has_all = all(part is not None for part in needed) and not any(part is not None for part in parts)
        return self.residual == "sequential" and has_all and not is_scaled

    def blocks(self) -> list[Block]:
        """Its blocks, in order."""
        return [block for block in (self.mixer, self.feed_forward, self.layer_input) if block is not None]

    def with_blocks(self, wrap: Callable[[Block], Block]) -> Layer:
        """A copy whose blocks are what ``wrap`` makes of them."""
        feed_forward = self.feed_forward and wrap(self.feed_forward)
        layer_input = self.layer_input and wrap(self.layer_input)
        return replace(self, mixer=wrap(self.mixer), feed_forward=feed_forward, layer_input=layer_input)

    def linears(self) -> list[Linear]:
        return [matrix for block in self.blocks() for matrix in block.linears()]

    def run(self, x: np.ndarray, step: Step) -> None:
        """Applies the layer to hidden states x (n, d), in place."""
        if self.is_plain:
            assert self.attn_norm is not None and self.ffn_norm is not None and self.feed_forward is not None
            n, d = x.shape
            h = step.work.rows["h", n, d]
            self.mixer.run(self.attn_norm.apply(x, h, step.n_threads), x, step, True)
            self.feed_forward.run(self.ffn_norm.apply(x, h, step.n_threads), x, step, True)
            return
        if self.residual == "post":
            self._run_post(x, step)
            return
        if self.keeps_input:
            step.work.rows.like("router_input", x)[:] = x
        h = self._input(x, self.attn_norm, "h", step)
        if self.feed_forward is None:
            self._add(self.mixer, h, x, self.attn_post_norm, step)
        elif self.residual == "parallel":
            h2 = h if self.ffn_norm is None else self._input(x, self.ffn_norm, "h2", step)
            self._add(self.mixer, h, x, self.attn_post_norm, step)
            self._add(self.feed_forward, h2, x, self.ffn_post_norm, step)
        else:
            self._add(self.mixer, h, x, self.attn_post_norm, step)
            self._add(
                self.feed_forward, self._input(x, self.ffn_norm, "h", step), x, self.ffn_post_norm, step
            )
        if self.layer_input is not None:
            self._add(self.layer_input, x, x, self.layer_input_norm, step)
        if self.scale != 1:
            x *= np.float32(self.scale)

    def _input(self, x: np.ndarray, norm: Norm | None, buffer: str, step: Step) -> np.ndarray:
        """The input of a block: hidden states after its norm."""
        if norm is None:
            return x
        return norm.apply(x, step.work.rows.like(buffer, x), step.n_threads)

    def _add(self, block: Block, h: np.ndarray, x: np.ndarray, norm: Norm | None, step: Step) -> None:
        """x += the block's output for h, scaled or after a norm."""
        if h is not x and norm is None and self.residual_scale == 1:
            block.run(h, x, step, True)
            return
        y = step.work.rows.like("y", x)
        block.run(h, y, step, False)
        if norm is not None and self.residual_scale == 1:
            norm.add(y, x, step.n_threads)
            return
        if norm is not None:
            norm.apply(y, y, step.n_threads)
        self.kernels.vector.add_scaled(x, y, self.residual_scale, step.n_threads)

    def _run_post(self, x: np.ndarray, step: Step) -> None:
        given = x.copy() if self.second_post_norm else None
        for block, norm in zip(self.blocks(), (self.attn_post_norm, self.ffn_post_norm)):
            y = step.work.rows.like("y", x)
            block.run(x, y, step, False)
            x += y
            if norm is not None:
                norm.apply(x, x, step.n_threads)
            if block is self.mixer and self.second_post_norm is not None:
                x += given
                self.second_post_norm.apply(x, x, step.n_threads)


class AnyLayer(Protocol):
    """A `Layer`, or a layer over several streams of hidden states."""

    def blocks(self) -> list[Block]:
        """Its blocks, in order."""

    def linears(self) -> list[Linear]:
        """Its linear layers, in the order of their use."""

    def run(self, x: np.ndarray, step: Step) -> None:
        """Applies the layer to hidden states x (n, d), in place."""

    def with_blocks(self, wrap: Callable[[Block], Block]) -> AnyLayer:
        """A copy whose blocks are what ``wrap`` makes of them."""


def matrix_groups(name: str, layer: AnyLayer) -> list[MatrixGroup]:
    """The linear layers of a layer: those that every pass uses, and the experts apart from them."""
    experts = [each for block in layer.blocks() for each in getattr(block, "routed_experts", ())]
    members = {linear for each in experts for member in each.members for linear in member}
    used = [linear for linear in layer.linears() if linear not in members]
    return [MatrixGroup(name, used), *(MatrixGroup(name, [], each) for each in experts)]


HERE = "oxillama.models.layers"
load_normed_experts: Callable[..., Any] = on_use(f"{HERE}.experts:DenseAndExperts")
load_experts: Callable[..., Any] = on_use(f"{HERE}.experts:MixtureOfExperts")
load_layer_input: Callable[..., Any] = on_use(f"{HERE}.layer_input:LayerInput")
load_streamed_layer: Callable[..., Any] = on_use(f"{HERE}.streams:StreamedLayer")

MIXERS: dict[str, Callable[[Spec, int, Weights], Block]] = {
    "attention": Attention,
    "mla": on_use(f"{HERE}.latent_attention:LatentAttention"),
    "mamba": on_use(f"{HERE}.ssm:Mamba"),
    "mamba2": on_use(f"{HERE}.ssm:Mamba2"),
    "shortconv": on_use(f"{HERE}.ssm:ShortConv"),
    "rwkv6": on_use(f"{HERE}.rwkv:TimeMix6"),
    "rwkv7": on_use(f"{HERE}.rwkv:TimeMix7"),
    "delta": on_use(f"{HERE}.delta:GatedDelta"),
    "kda": on_use(f"{HERE}.delta:KimiDelta"),
    "attention+mamba2": on_use(f"{HERE}.ssm:AttentionBesideMamba2"),
    "plamo2": on_use(f"{HERE}.ssm:PlamoMamba"),
}


def dense(spec: Spec, i: int, weights: Weights) -> Block:
    """The feed-forward block of layer ``i``, with or without experts."""
    if normed_beside(spec, i):
        block: Block = load_normed_experts(spec, i, weights)
        return block
    if spec.layers[i].experts:
        experts: Block = load_experts(spec, i, weights)
        return experts
    return FeedForward(spec, i, weights, spec.layers[i].n_ff)


def normed_beside(spec: Spec, i: int) -> bool:
    """Whether layer ``i`` has a dense block and experts that norm their own inputs."""
    routing = spec.family.routing
    return spec.layers[i].experts > 0 and routing is not None and routing.beside_dense == "normed"


FEED_FORWARDS: dict[str, Callable[[Spec, int, Weights], Block]] = {
    "dense": dense,
    "rwkv6": on_use(f"{HERE}.rwkv:ChannelMix6"),
    "rwkv7": on_use(f"{HERE}.rwkv:ChannelMix7"),
}


def load_layer(spec: Spec, i: int, weights: Weights) -> AnyLayer:
    """Layer ``i``."""
    layer = load_plain_layer(spec, i, weights)
    return load_streamed_layer(spec, i, weights, layer) if spec.family.streams else layer


def load_plain_layer(spec: Spec, i: int, weights: Weights) -> Layer:
    """Layer ``i`` over one stream of hidden states."""
    mixer = MIXERS.get(spec.layers[i].mixer, dense)  # "feed_forward": the layer's only block
    family, block = spec.family, f"blk.{i}"

    def norm(*names: str) -> Norm | None:
        """The norm of the first name that the file has; None for no names. Raises LoadError."""
        if not any(names):
            return None
        there = [n for n in names if weights.has(f"{block}.{n}.weight") or weights.has(f"{block}.{n}")]
        found = there[0] if there else names[-1]
        if not there and i == 0 and found in family.optional_norms:
            return None
        return load_norm(spec, weights, f"{block}.{found}")

    residual, ffn_norm, attn_norm = family.residual, family.ffn_norm, family.attn_norm
    if residual == "auto":  # a layer without ffn_norm is parallel
        residual = "sequential" if weights.has(f"{block}.{ffn_norm}.weight") else "parallel"
        ffn_norm = ffn_norm if residual == "sequential" else ""
    if residual == "parallel" and weights.has(f"{block}.attn_norm_2.weight"):
        attn_norm, ffn_norm = "attn_norm_2", attn_norm
    scale, name = spec.layers[i].scale, f"{block}.layer_output_scale.weight"
    if family.output_scale and weights.has(name):
        scale *= float(weights.vector(name, 1)[0])
    second = residual == "post" and weights.has(f"{block}.attn_norm_2.weight")
    return Layer(
        kernels=weights.kernels,
        residual=residual,
        residual_scale=spec.residual_scale,
        attn_norm=norm(attn_norm),
        mixer=mixer(spec, i, weights),
        attn_post_norm=norm(*family.attn_post_norm),
        ffn_norm=None if normed_beside(spec, i) else norm(ffn_norm),
        feed_forward=FEED_FORWARDS[family.feed_forward](spec, i, weights) if family.feed_forward else None,
        ffn_post_norm=norm(*family.ffn_post_norm),
        second_post_norm=norm("attn_norm_2") if second else None,
        scale=scale,
        layer_input=load_layer_input(spec, i, weights) if spec.layer_width else None,
        layer_input_norm=norm("post_norm") if spec.layer_width else None,
        keeps_input=spec.layers[i].experts > 0
        and family.routing is not None
        and family.routing.reads == "layer",
    )
