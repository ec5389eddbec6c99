"""Low-rank adapters that tokens of the text choose (Granite Switch)."""

from __future__ import annotations

import numpy as np

from oxillama.reference.attention import attend
from oxillama.reference.floats import F32
from oxillama.reference.kv import store
from oxillama.reference.source import Source

PARTS = {"attn_qkv": ("attn_q", "attn_k", "attn_v")}


class Switches:
    """The adapters of a file.

    Attributes:
        slots: (n,) number of each row's adapter from 1 on; 0: none.
    """

    def __init__(self, source: Source, kv_type: str) -> None:
        self.source = source
        self.kv_type = kv_type
        self.slots: np.ndarray = np.zeros(1, int)
        source.key("adapters.count")
        source.key("adapters.lora_rank")
        source.after = self.add

    def substituted(self, tokens: np.ndarray) -> np.ndarray:
        """The tokens to embed. Sets ``slots``: the mean of the adapters that tokens up to a row name."""
        source, found = self.source, tokens.copy()
        names, others = (source.key(f"adapters.token_ids_{kind}") for kind in ("activate", "substitute"))
        gain = source.key("adapters.router_gain", 15.0)
        keys, values = np.full(len(tokens), -gain, F32), np.zeros(len(tokens), F32)
        for i, (token, other) in enumerate(zip(names, others)):
            here = tokens == token
            keys[here], values[here], found[here] = gain, i + 1, other
        kv = store(keys.reshape(-1, 1, 1), values.reshape(-1, 1, 1), self.kv_type)
        means = attend(np.ones((len(tokens), 1, 1), F32), kv, 1.0).reshape(-1)
        self.slots = np.floor(np.clip(means, 0, len(names)) + F32(0.5)).astype(int)
        return found

    def add(self, name: str, x: np.ndarray, out: np.ndarray) -> np.ndarray:
        """The product ``out`` of a matrix for x, plus B A x of each row's adapter."""
        block, _, last = name.rpartition(".")
        first, source = 0, self.source
        out = out.copy()
        for part in PARTS.get(last, (last,)):
            full = f"{block}.{part}"
            if not source.has(f"{full}.lora_a"):
                continue
            source.used_tensors |= {f"{full}.lora_a", f"{full}.lora_b"}
            rows = source.shape(f"{full}.lora_b")[1]
            for slot in set(self.slots.tolist()) - {0}:
                at = self.slots == slot
                low = source.matrix(f"{full}.lora_a", slot).times(np.ascontiguousarray(x[at]))
                out[at, first : first + rows] += source.matrix(f"{full}.lora_b", slot).times(low)
            first += rows
        return out
