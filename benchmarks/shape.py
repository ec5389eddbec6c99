"""What a shape of a model is made of: the dimensions of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Experts:
    """A routed feed-forward block: ``shared`` of its experts see every token, and the ``dense`` first layers
    have none but a plain block as wide as the shape's ``n_ff``."""

    count: int
    used: int
    n_ff: int
    shared: int = 0
    dense: int = 0


@dataclass(frozen=True)
class Latent:
    """Compressed keys and values: their rank, and a head's rotated and plain parts and its values."""

    rank: int
    rotated: int
    plain: int
    value: int


@dataclass(frozen=True)
class Delta:
    """Heads of the delta rule, of keys and of values, and their width; one layer of ``every`` attends."""

    keys: int
    heads: int
    dim: int
    every: int

    @property
    def channels(self) -> int:
        """The channels of q, k and v together."""
        return (2 * self.keys + self.heads) * self.dim


@dataclass(frozen=True)
class Windows:
    """Layers with windows of ``size`` tokens; one of ``every`` sees all, with heads as wide as the shape's.

    ``dim`` is the width of heads in windowed layers, ``full_kv`` the key heads of the others; 0 for those
    of the shape. The last ``shared`` layers have no keys and values of their own.
    """

    size: int
    every: int
    dim: int = 0
    full_kv: int = 0
    shared: int = 0


@dataclass(frozen=True)
class Shape:
    """Dimensions of a model; ``tied`` shares the embedding with the output.

    ``head_dim`` 0 stands for n_embd / n_head.
    """

    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_vocab: int
    tied: bool = False
    rope_theta: float = 10000.0
    context: int = 4096
    family: str = "llama"
    head_dim: int = 0
    experts: Experts | None = None
    latent: Latent | None = None
    delta: Delta | None = None
    windows: Windows | None = None
    layer_width: int = 0  # width of the embedding of each layer
    controls: tuple[str, ...] = ()  # names of control tokens
    n_state: int = 0  # of a Mamba model, of n_head heads (of Mamba: ranks of dt) and twice n_embd wide within
    keys: Mapping[str, Any] = field(
        default_factory=dict
    )  # further metadata; a function is called with the shape

    def key(self, name: str) -> Any:
        """A value of the further metadata."""
        value = self.keys[name]
        return value(self) if callable(value) else value

    @property
    def n_streams(self) -> int:
        """Width of all residual streams together."""
        return int(self.key("hyper_connection.count")) * self.n_embd

    @property
    def key_dim(self) -> int:
        """Width of a head."""
        return self.head_dim or self.n_embd // self.n_head

    @property
    def n_q(self) -> int:
        """Rows of a query projection."""
        return self.key_dim * self.n_head

    @property
    def n_kv(self) -> int:
        """Rows of a key or value projection."""
        return self.key_dim * self.n_head_kv

    def attends_afar(self, layer: int) -> bool:
        """Whether a layer has no window."""
        return self.windows is None or (layer + 1) % self.windows.every == 0

    def dim_of(self, layer: int) -> int:
        """Width of a layer's heads."""
        return (
            self.key_dim
            if self.windows is None or self.attends_afar(layer)
            else self.windows.dim or self.key_dim
        )

    def kv_heads_of(self, layer: int) -> int:
        """Key heads of a layer."""
        full = self.windows.full_kv if self.windows is not None and self.attends_afar(layer) else 0
        return full or self.n_head_kv

    @property
    def n_own_kv(self) -> int:
        """Layers with keys and values of their own; all of them where too few are left to share with."""
        if self.windows is None or self.n_layer - self.windows.shared < self.windows.every:
            return self.n_layer
        return self.n_layer - self.windows.shared

    def ff_of(self, layer: int) -> int:
        """Width of a layer's feed-forward block: twice as much where the layer has no keys of its own."""
        return self.n_ff if layer < self.n_own_kv else 2 * self.n_ff
