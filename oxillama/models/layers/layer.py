"""A layer: its token mixer, its feed-forward block, their norms, and the residual additions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from oxillama._kernels import Kernels
from oxillama.base.lazy_import import lazy
from oxillama.errors import LoadError
from oxillama.models.layers.attention import Attention
from oxillama.models.layers.feed_forward import FeedForward
from oxillama.models.layers.norm import Norm, load_norm
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Linear, MatrixGroup
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step


class Block(Protocol):
    """A token mixer or a feed-forward block."""

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that. ``h`` and ``out`` never overlap."""

    def linears(self) -> list[Linear]:
        """Its linear layers, in the order of their use."""


@dataclass(frozen=True, repr=False)
class Layer:
    """Two blocks, their norms (None where a norm is absent), and the residual additions.

    "sequential": x += mixer(norm(x)), then x += feed_forward(norm(x)).
    "parallel": x += mixer(norm(x)) + feed_forward(norm(x)), with one norm for both if there is one.
    "post": x = norm(x + mixer(x)), then x = norm(x + feed_forward(x)).
    "chained": y = norm(mixer(x)), x += y + norm(feed_forward(y)).
    "normed": y = norm(x), x = mixer(y) + a y, then the same with feed_forward; a is the ``residual_scale``.

    A norm after a block is applied to its output before the addition, or ("post") to the sum;
    ``second_post_norm`` is applied to the sum of that and the layer's input. A router may read the layer's
    input, which ``keeps_input`` then puts into the buffer "router_input".
    ``embedding_scale`` is the factor with which the buffer "embedded" is added behind both blocks.
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
    embedding_scale: float = 0.0
    layer_input: Block | None = None
    layer_input_norm: Norm | None = None

    @functools.cached_property
    def is_plain(self) -> bool:
        """Whether the layer is just x += mixer(norm(x)), then x += feed_forward(norm(x))."""
        parts = (self.attn_post_norm, self.ffn_post_norm, self.layer_input, self.keeps_input or None)
        needed = (self.attn_norm, self.ffn_norm, self.feed_forward)
        is_scaled = self.residual_scale != 1 or self.scale != 1 or self.embedding_scale != 0
        has_all = all(part is not None for part in needed) and not any(part is not None for part in parts)
        return self.residual == "sequential" and has_all and not is_scaled

    def blocks(self) -> list[Block]:
        """Its blocks, in order."""
        return [block for block in (self.mixer, self.feed_forward, self.layer_input) if block is not None]

    def with_blocks(self, wrap: Callable[[Block], Block]) -> Layer:
        """A copy whose blocks are replaced by ``wrap(block)``."""
        feed_forward = self.feed_forward and wrap(self.feed_forward)
        layer_input = self.layer_input and wrap(self.layer_input)
        return replace(self, mixer=wrap(self.mixer), feed_forward=feed_forward, layer_input=layer_input)

    def linears(self) -> list[Linear]:
        found = [matrix for block in self.blocks() for matrix in block.linears()]
        return [each for matrix in found for each in getattr(matrix, "members", (matrix,))]

    def run(self, x: np.ndarray, step: Step) -> None:
        """Applies the layer to hidden states x (n, d), in place."""
        if self.is_plain:
            assert self.attn_norm is not None and self.ffn_norm is not None and self.feed_forward is not None
            n, d = x.shape
            h = step.work.rows["h", n, d]
            self.mixer.run(self.attn_norm.apply(x, h, step.n_threads), x, step, True)
            self.feed_forward.run(self.ffn_norm.apply(x, h, step.n_threads), x, step, True)
            return
        if self.residual in ("post", "normed"):
            (run_post if self.residual == "post" else run_normed)(self, x, step)
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
        elif self.residual == "chained":
            run_chained(self, h, x, step)
        else:
            self._add(self.mixer, h, x, self.attn_post_norm, step)
            self._add(
                self.feed_forward, self._input(x, self.ffn_norm, "h", step), x, self.ffn_post_norm, step
            )
        if self.layer_input is not None:
            self._add(self.layer_input, x, x, self.layer_input_norm, step)
        if self.scale != 1:
            x *= np.float32(self.scale)
        if self.embedding_scale:
            embedded = step.work.rows.like("embedded", x)
            self.kernels.vector.add_scaled(x, embedded, self.embedding_scale, step.n_threads)

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


class AnyLayer(Protocol):
    """A `Layer`, or a layer over several streams of hidden states."""

    def blocks(self) -> list[Block]:
        """Its blocks, in order."""

    def linears(self) -> list[Linear]:
        """Its linear layers, in the order of their use."""

    def run(self, x: np.ndarray, step: Step) -> None:
        """Applies the layer to hidden states x (n, d), in place."""

    def with_blocks(self, wrap: Callable[[Block], Block]) -> AnyLayer:
        """A copy whose blocks are replaced by ``wrap(block)``."""


def matrix_groups(name: str, layer: AnyLayer) -> list[MatrixGroup]:
    """The linear layers of a layer: those that every pass uses, and the experts apart from them."""
    experts = [each for block in layer.blocks() for each in getattr(block, "routed_experts", ())]
    members = {linear for each in experts for member in each.members for linear in member}
    used = [linear for linear in layer.linears() if linear not in members]
    return [MatrixGroup(name, used), *(MatrixGroup(name, [], each) for each in experts)]


HERE = "oxillama.models.layers"
load_normed_experts: Callable[..., Block] = lazy(f"{HERE}.experts:DenseAndExperts")
load_experts: Callable[..., Block] = lazy(f"{HERE}.experts:MixtureOfExperts")
load_layer_input: Callable[..., Block] = lazy(f"{HERE}.layer_input:LayerInput")
load_experts_of_input: Callable[..., Block] = lazy(f"{HERE}.experts:DenseAndExpertsOfInput")
load_chunked_experts: Callable[..., Block] = lazy(f"{HERE}.chunk_experts:ChunkedExperts")
run_post, run_normed, run_chained = (
    lazy(f"{HERE}.residuals:run_{kind}") for kind in ("post", "normed", "chained")
)
load_idle_layer: Callable[..., AnyLayer] = lazy(f"{HERE}.idle:IdleLayer")
with_switches: Callable[..., AnyLayer] = lazy(f"{HERE}.switch:with_switches")
load_stacked_layer: Callable[..., AnyLayer] = lazy(f"{HERE}.stacks:StackedLayer")
load_streamed_layer: Callable[..., AnyLayer] = lazy(f"{HERE}.stream_kinds:load_streamed_layer")

MIXERS: dict[str, Callable[[Spec, int, Weights], Block]] = {
    "attention": Attention,
    "block": lazy(f"{HERE}.block_attention:BlockAttention"),
    "mla": lazy(f"{HERE}.latent_attention:LatentAttention"),
    "sparse": lazy(f"{HERE}.sparse_attention:SparseAttention"),
    "pooled": lazy(f"{HERE}.block_selector:PooledLatentAttention"),
    "compressed": lazy(f"{HERE}.compressed_attention:CompressedAttention"),
    "blocked": lazy(f"{HERE}.block_selector:BlockAttention"),
    "linear": lazy(f"{HERE}.idle:LinearMixer"),
    "mamba": lazy(f"{HERE}.ssm:Mamba"),
    "mamba2": lazy(f"{HERE}.ssm:Mamba2"),
    "shortconv": lazy(f"{HERE}.ssm:ShortConv"),
    "rwkv6": lazy(f"{HERE}.rwkv:TimeMix6"),
    "rwkv6qwen2": lazy(f"{HERE}.rwkv:GatedTimeMix6"),
    "rwkv7": lazy(f"{HERE}.rwkv:TimeMix7"),
    "delta": lazy(f"{HERE}.delta:GatedDelta"),
    "kda": lazy(f"{HERE}.delta:KimiDelta"),
    "attention+mamba2": lazy(f"{HERE}.ssm:AttentionBesideMamba2"),
    "plamo2": lazy(f"{HERE}.ssm:PlamoMamba"),
    "lightning": lazy(f"{HERE}.lightning:LightningAttention"),
}


def dense(spec: Spec, i: int, weights: Weights) -> Block:
    """The feed-forward block of layer ``i``, with or without experts."""
    if normed_beside(spec, i):
        return load_normed_experts(spec, i, weights)
    if spec.layers[i].experts:
        routing = spec.family.routing
        load = load_experts_of_input if routing and routing.beside_dense == "input" else load_experts
        return (load_chunked_experts if routing and routing.chunks else load)(spec, i, weights)
    return FeedForward(spec, i, weights, spec.layers[i].n_ff)


def normed_beside(spec: Spec, i: int) -> bool:
    """Whether layer ``i`` has a dense block and experts that norm their own inputs."""
    routing = spec.family.routing
    return spec.layers[i].experts > 0 and routing is not None and routing.beside_dense == "normed"


FEED_FORWARDS: dict[str, Callable[[Spec, int, Weights], Block]] = {
    "dense": dense,
    "rwkv6": lazy(f"{HERE}.rwkv:ChannelMix6"),
    "rwkv7": lazy(f"{HERE}.rwkv:ChannelMix7"),
}


def load_layer(spec: Spec, i: int, weights: Weights) -> AnyLayer:
    """Layer ``i``."""
    if spec.layers[i].mixer == "":
        return load_idle_layer(spec, i, weights)
    layer = load_plain_layer(spec, i, weights)
    if spec.switch is not None:
        return with_switches(spec, i, weights, layer)
    if spec.layers[i].begins or spec.layers[i].ends:
        return load_stacked_layer(spec, i, weights, layer)
    return load_streamed_layer(spec, i, weights, layer) if spec.family.streams else layer


def load_plain_layer(spec: Spec, i: int, weights: Weights) -> Layer:
    """Layer ``i`` over one stream of hidden states."""
    mixer = MIXERS.get(spec.layers[i].mixer, dense)  # "feed_forward": the layer's only block
    family, block = spec.family, f"blk.{i}"
    for needed in (f"{block}.{name}" for name in family.needs):
        if not weights.has(needed):
            raise LoadError(f"{needed}: expected a tensor of this name, got none")

    def norm(*names: str) -> Norm | None:
        """The norm of the first name that the file has; None without names. Raises LoadError."""
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
        and (family.routing.reads == "layer" or family.routing.beside_dense == "input"),
        embedding_scale=float(weights.vector(name, 1)[0]) if family.adds_embedding else 0.0,
    )
