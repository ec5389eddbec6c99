"""Shapes of encoders of pictures, for projector files of random weights (`benchmarks.make_model`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.shapes import Tensor
from oxillama.base.formats import FORMATS


@dataclass(frozen=True)
class VisionShape:
    """An encoder of pictures.

    Attributes:
        projector: its ``clip.projector_type``.
        side: pixels along a side of a square tile, or of the table's grid.
        merge: patches along a side of a token.
        n_out: width of the text model.
        n_layer: blocks.
        deep: blocks whose rows layers of the text model take, too.
    """

    projector: str
    side: int
    patch: int
    d: int
    n_ff: int
    n_head: int
    n_layer: int
    merge: int
    n_out: int
    deep: tuple[int, ...] = ()


VISION_SHAPES = {
    "gemma3-4b-vision": VisionShape("gemma3", 896, 14, 1152, 4304, 16, 27, 4, 2560),
    "qwen3vl-4b-vision": VisionShape("qwen3vl_merger", 768, 16, 1024, 4096, 16, 24, 2, 2560, (5, 11, 17)),
    "smolvlm2-500m-vision": VisionShape("idefics3", 512, 16, 768, 3072, 12, 12, 4, 960),
}
"""Of Gemma 3 4B (SigLIP), Qwen3-VL 4B and SmolVLM2 500M, by their published configs."""

MATRICES = {
    "gemma3": {"mm.input_projection": ("d", "out")},  # stored the other way round
    "qwen3vl_merger": {"mm.0": ("block", "block"), "mm.2": ("out", "block")},
    "idefics3": {"mm.model.fc": ("out", "block")},
}
"""Matrices behind the blocks, by names of widths: of a row, of a block of rows, and of the text model."""


def vision_metadata(shape: VisionShape) -> dict[str, Any]:
    """Keys behind "clip."."""
    key = "spatial_merge_size" if shape.projector == "qwen3vl_merger" else "projector.scale_factor"
    sizes = {
        **{"image_size": shape.side, "patch_size": shape.patch, "embedding_length": shape.d},
        **{"feed_forward_length": shape.n_ff, "block_count": shape.n_layer, key: shape.merge},
        **{"attention.head_count": shape.n_head, "projection_dim": shape.n_out},
        **{"attention.layer_norm_epsilon": 1e-6, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]},
    }
    if shape.projector == "idefics3":
        sizes["preproc_image_size"] = 4 * shape.side
    return {
        **{"has_vision_encoder": True, "projector_type": shape.projector, "use_gelu": True},
        **{f"vision.{name}": value for name, value in sizes.items()},
    }


def vision_tensors(shape: VisionShape, format: str) -> Iterator[Tensor]:
    """The tensors, with matrices of a format; rows that are no whole blocks of it are F16."""
    sizes = {"d": shape.d, "out": shape.n_out, "block": shape.d * shape.merge**2}

    def matrix(name: str, n_out: int, n_in: int) -> Iterator[Tensor]:
        kind = "F16" if n_in % FORMATS[format].block_len else format
        yield Tensor(f"{name}.weight", (n_out, n_in), kind)
        yield Tensor(f"{name}.bias", (n_out,), "F32", 0.0)

    def norm(name: str, width: int = shape.d) -> Iterator[Tensor]:
        yield Tensor(f"{name}.weight", (width,), "F32")
        yield Tensor(f"{name}.bias", (width,), "F32", 0.0)

    is_qwen = shape.projector == "qwen3vl_merger"
    kernel = "F32" if format == "F32" else "F16"
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1")[: 1 + is_qwen]:
        yield Tensor(name, (shape.d, 3, shape.patch, shape.patch), kernel)
    yield Tensor("v.patch_embd.bias", (shape.d,), "F32", 0.0)
    yield Tensor("v.position_embd.weight", ((shape.side // shape.patch) ** 2, shape.d), "F32")
    for i in range(shape.n_layer):
        block = f"v.blk.{i}"
        yield from norm(f"{block}.ln1")
        for part in (f"{block}.attn_qkv",) if is_qwen else (f"{block}.attn_{kind}" for kind in "qkv"):
            yield from matrix(part, (3 if is_qwen else 1) * shape.d, shape.d)
        yield from matrix(f"{block}.attn_out", shape.d, shape.d)
        yield from norm(f"{block}.ln2")
        yield from matrix(f"{block}.ffn_up", shape.n_ff, shape.d)
        yield from matrix(f"{block}.ffn_down", shape.d, shape.n_ff)
    yield from norm("v.post_ln")
    for i in (layer for layer in shape.deep if layer < shape.n_layer):
        yield from norm(f"v.deepstack.{i}.norm", sizes["block"])
        yield from matrix(f"v.deepstack.{i}.fc1", sizes["block"], sizes["block"])
        yield from matrix(f"v.deepstack.{i}.fc2", shape.n_out, sizes["block"])
    if shape.projector == "gemma3":
        yield Tensor("mm.soft_emb_norm.weight", (shape.d,), "F32")
    for name, (rows, cols) in MATRICES[shape.projector].items():
        parts = [*matrix(name, sizes[rows], sizes[cols])]
        yield from parts if is_qwen else parts[:1]
