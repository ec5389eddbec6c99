"""The Qwen family: Llama with the other rotary pairing, and biases or norms on q and k."""

from __future__ import annotations

from dataclasses import replace

from oxillama.models.families.llama import LLAMA
from oxillama.models.family import Routing
from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec

# The biases on q, k and v come with the tensors.
QWEN2 = LLAMA.variant("qwen2", rope="neox", routing=None)

QWEN2_MOE = QWEN2.variant(
    "qwen2moe", requires=("expert_count",),
    routing=Routing(
        options=("expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_weights_norm"),
        normalize=False, width="ff/used", shared_width="ff", shared_gate=True,
    ),
    output="own",
)  # fmt: skip


def rope_sections(spec: Spec, read: Reader) -> Spec:
    """Pairs of dimensions that rotate with different coordinates of a token. For text all coordinates are the
    position, and the fourth section does not rotate."""
    sections = read.sections("rope.dimension_sections")
    if not sum(sections):
        return spec
    return replace(spec, ropes=tuple(replace(rope, neox=True, sections=sections) for rope in spec.ropes))


def interleaved_sections(spec: Spec, read: Reader) -> Spec:
    """Pairs take the coordinates in turn; those that are left over for the fourth section do not rotate."""
    t, h, w, rest = (*read.sections("rope.dimension_sections"), 0, 0, 0, 0)[:4]
    total = t + h + w + rest
    if not total:
        return spec

    def turns(pair: int) -> bool:
        i = pair % total
        return (i % 3 == 1 and i < 3 * h) or (i % 3 == 2 and i < 3 * w) or (i % 3 == 0 and i < 3 * t)

    still = tuple(pair for pair in range(spec.ropes[0].n_rot // 2) if not turns(pair))
    return replace(spec, ropes=tuple(replace(rope, still=still) for rope in spec.ropes))


def without_epsilon(spec: Spec, read: Reader) -> Spec:
    """llama.cpp ignores the epsilon of this family. 1e-30 has the same effect, and avoids NaN for zeros."""
    return replace(rope_sections(spec, read), norm_eps=1e-30)


QWEN2_VL = QWEN2.variant("qwen2vl", options=("rope.dimension_sections",), adjust=without_epsilon)

QWEN3 = QWEN2.variant("qwen3", qk_norm="head", classifier="last")
# Among text tokens the interleaved sections of a vision model amount to a plain rotation. Images also give
# inputs to the first layers ("deep stack").
QWEN3_VL = QWEN3.variant(
    "qwen3vl", classifier="", options=("rope.dimension_sections",), adjust=interleaved_sections
)
QWEN3_MOE = QWEN3.variant(
    "qwen3moe", classifier="", requires=("expert_count",),
    routing=Routing(options=("expert_feed_forward_length",), width="ff/used"),
)  # fmt: skip

QWEN3_VL_MOE = QWEN3_MOE.variant(
    "qwen3vlmoe", options=("rope.dimension_sections",), adjust=interleaved_sections
)
