"""The kinds of streams of hidden states (`Family.streams`): how they begin and end, and their layers."""

from __future__ import annotations

from typing import Any

from oxillama.models.layers import gated_streams, hyper_connections, residual_attention, streams
from oxillama.models.spec import Spec
from oxillama.models.weights.loader import Weights

KINDS: dict[str, tuple[Any, Any]] = {
    "altup": (streams.Streams, streams.StreamedLayer),
    "connected": (hyper_connections.Streams, hyper_connections.ConnectedLayer),
    "gated": (gated_streams.Streams, gated_streams.GatedLayer),
    "banked": (residual_attention.Streams, residual_attention.BankedLayer),
}


def load_streams(spec: Spec, weights: Weights) -> Any:
    """The streams of a model."""
    return KINDS[spec.family.streams][0](spec, weights)


def load_streamed_layer(spec: Spec, i: int, weights: Weights, layer: Any) -> Any:
    """Layer ``i`` over streams, with the blocks and norms of an ordinary one."""
    return KINDS[spec.family.streams][1](spec, i, weights, layer)
