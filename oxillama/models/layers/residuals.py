"""Residual additions that only some architectures have: a `Layer` changes hidden states x (n, d) in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oxillama.models.workspace import Step

if TYPE_CHECKING:
    from oxillama.models.layers.layer import Layer


def run_normed(layer: Layer, x: np.ndarray, step: Step) -> None:
    """x = mixer(y) + a y with y = norm(x), then the same with the feed-forward block (MiniMax-01)."""
    for block, norm in zip(layer.blocks(), (layer.attn_norm, layer.ffn_norm)):
        assert norm is not None
        h = norm.apply(x, step.work.rows.like("h", x), step.n_threads)
        block.run(h, x, step, False)
        layer.kernels.vector.add_scaled(x, h, layer.residual_scale, step.n_threads)


def run_post(layer: Layer, x: np.ndarray, step: Step) -> None:
    """x = norm(x + mixer(x)), then x = norm(x + feed_forward(x))."""
    given = x.copy() if layer.second_post_norm else None
    for block, norm in zip(layer.blocks(), (layer.attn_post_norm, layer.ffn_post_norm)):
        y = step.work.rows.like("y", x)
        block.run(x, y, step, False)
        x += y
        if norm is not None:
            norm.apply(x, x, step.n_threads)
        if block is layer.mixer and layer.second_post_norm is not None:
            x += given
            layer.second_post_norm.apply(x, x, step.n_threads)


def run_chained(layer: Layer, h: np.ndarray, x: np.ndarray, step: Step) -> None:
    """y = norm(mixer(h)), x += y + norm(feed_forward(y))."""
    assert layer.feed_forward is not None and layer.attn_post_norm and layer.ffn_post_norm
    y, fed = step.work.rows.like("h", x), step.work.rows.like("y", x)
    layer.mixer.run(h, y, step, False)
    layer.attn_post_norm.apply(y, y, step.n_threads)
    layer.feed_forward.run(y, fed, step, False)
    x += y
    layer.ffn_post_norm.add(fed, x, step.n_threads)
