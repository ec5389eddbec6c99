"""Sizes that differ between layers: windows, head widths, shared keys, cuts of gates."""

from __future__ import annotations

import math

import numpy as np

from oxillama.reference.source import Source, Unsupported


def recurrent_layers(source: Source, n_layers: int) -> list[bool]:
    """Whether each layer is recurrent: as listed in the file, or all but every n-th."""
    listed, every = (source.key(key) for key in ("attention.recurrent_layers", "full_attention_interval"))
    if listed is not None:
        return [bool(each) for each in listed[:n_layers]]
    every = every or source.facts.interval
    return [(i + 1) % every > 0 for i in range(n_layers)]


def read_windows(source: Source, n_layers: int) -> list[int]:
    """The window of each layer; 0: none."""
    facts = source.facts
    if facts.window_period is None:
        return [0] * n_layers
    window = source.key("attention.sliding_window", 0 if facts.fixed_window else facts.window)
    window = facts.window if facts.fixed_window and window else window
    window = facts.chunk or window
    pattern = source.key("attention.sliding_window_pattern", facts.window_period)
    if facts.listed_windows and not isinstance(pattern, (list, np.ndarray)):
        return [0] * n_layers
    if isinstance(pattern, (list, np.ndarray)):
        return [window if has else 0 for has in pattern[:n_layers]]
    full = 0 if facts.full_first else pattern - 1
    return [window if pattern == 0 or i % pattern != full else 0 for i in range(n_layers)]


def head_widths(source: Source, part: str, usual: int, windows: list[int]) -> list[int]:
    """The width of a "key" or a "value" of each layer; windowed layers may have another width."""
    local = source.key(f"attention.{part}_length_swa", usual)
    return [local if window else usual for window in windows]


def key_layers(source: Source, windows: list[int]) -> list[int]:
    """The layer whose keys and values each layer attends to, usually itself.

    The last layers (the file states how many) use the keys of the last earlier layer of their kind: with a
    window, or without. Their own matrices of k and v have no effect.
    """
    n, usual = len(windows), source.facts.own_kv
    own = n - source.key("attention.shared_kv_layers", max(0, n - usual) if usual else 0)
    last = {bool(window): i for i, window in enumerate(windows[:own])} if own > 0 else {}
    found = list(range(own))
    for i in range(max(own, 0), n):
        if bool(windows[i]) not in last:
            raise Unsupported(f"reference: {source.name}: layer {i} shares keys with none of its kind")
        found.append(last[bool(windows[i])])
        for name in ("attn_k", "attn_v", "attn_k_norm"):
            source.ignore(f"blk.{i}.{name}.")
    return found


def gate_cuts(source: Source, n_layers: int) -> list[float | None]:
    """Where the gates of each dense block are cut, in deviations above their mean (`rows.cut`); None: not."""
    first, usual = source.facts.cut_gates
    stated = source.key("activation_sparsity_scale", ())
    if len(stated):
        return [None if scale == -math.inf else float(scale) for scale in stated[:n_layers]]
    return [usual if i < first else None for i in range(n_layers)]
