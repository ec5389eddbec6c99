"""Models that run the same layers several times: Nanbeige's loops, and the two stacks of HRM-Text."""

from __future__ import annotations

from dataclasses import replace

from oxillama.models.families.llama import FACTORS, LLAMA
from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec

MOST_LAYERS = 512
"""Layers that may run in all, as in llama.cpp."""


def looped_layers(spec: Spec, read: Reader) -> Spec:
    """All layers run ``num_loops`` times, each time with keys of their own."""
    n, loops = spec.n_layers, read.size("num_loops", 1)
    read.expect(n * loops <= MOST_LAYERS, "num_loops", f"at most {MOST_LAYERS // n} for {n} layers", loops)
    normed = not read.flag("skip_loop_final_norm", False)
    layers = tuple(
        replace(layer, block=i, ends="norm" if normed and i == n - 1 and loop < loops - 1 else "")
        for loop in range(loops)
        for i, layer in enumerate(spec.layers)
    )
    return replace(spec, layers=layers) if loops > 1 else spec


NANBEIGE = LLAMA.variant("nanbeige", routing=None, refuses=FACTORS[1:], adjust=looped_layers)


def two_stacks(spec: Spec, read: Reader) -> Spec:
    """Cycles of passes through the low stack, then one through the high stack."""
    size, high, low = (read.size(f"hrm.{key}") for key in ("layers_per_stack", "h_cycles", "l_cycles"))
    n = size * high * (low + 1)
    read.expect(n == spec.n_layers, "block_count", f"{n} layers of all passes", spec.n_layers)
    layers = []
    for i, layer in enumerate(spec.layers):
        number, place = divmod(i, size)
        of_high = number % (low + 1) == low
        begins = "" if place else "pass" if i else "first"
        ends = "" if place < size - 1 else "high" if of_high else "low"
        layers.append(replace(layer, block=place + size * of_high, begins=begins, ends=ends))
    return replace(spec, layers=tuple(layers))


HRM_TEXT = LLAMA.variant(
    "hrm_text", options=("embedding_scale",), requires=("hrm.h_cycles",), refuses=FACTORS, rope="neox",
    norm_weight=False, attn_gate="elements", output_norm="", routing=None, adjust=two_stacks,
)  # fmt: skip
