"""Tiny projector files with random tensors, and the shared reference files of pictures and sounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from oxillama import InferenceEngine
from tests.support import gguf_writer as ggufwriter
from tests.support.paths import SHARED as SHARED_FOLDER

SHARED = SHARED_FOLDER / "parity-vision"
PAIRS = sorted(path.parent.name for path in SHARED.glob("*/mmproj.gguf"))
WIDTH = 64
"""Of the text model of a tiny projector."""

PROJECTORS = ("mlp", "gemma3", "qwen2vl_merger")
"""Kinds of rows: as any token, that see each other, with positions of a grid."""
TEXT = "the little fox <__media__> said hello"

KEYS: dict[str, tuple[str, Any]] = {
    "general.architecture": ("str", "clip"), "clip.has_vision_encoder": ("bool", True),
    "clip.projector_type": ("str", "mlp"), "clip.vision.image_size": ("u32", 28),
    "clip.vision.patch_size": ("u32", 7), "clip.vision.embedding_length": ("u32", 24),
    "clip.vision.feed_forward_length": ("u32", 40), "clip.vision.projection_dim": ("u32", WIDTH),
    "clip.vision.block_count": ("u32", 2), "clip.vision.attention.head_count": ("u32", 2),
    "clip.vision.attention.layer_norm_epsilon": ("f32", 1e-5),
    "clip.vision.image_mean": ("[f32]", [0.5, 0.4, 0.3]),
    "clip.vision.image_std": ("[f32]", [0.25, 0.5, 0.3]),
}  # fmt: skip


def tensors(projector: str) -> dict[str, tuple[int, ...]]:
    """Shapes in NumPy's order, by name."""
    found: dict[str, tuple[int, ...]] = {"v.patch_embd.weight": (24, 3, 7, 7)}
    for i in range(2):
        block = f"v.blk.{i}"
        found |= {f"{block}.{name}.weight": (24,) for name in ("ln1", "ln2")}
        found |= {f"{block}.attn_{name}.weight": (24, 24) for name in ("q", "k", "v", "out")}
        found |= {f"{block}.ffn_up.weight": (40, 24), f"{block}.ffn_down.weight": (24, 40)}
    found["v.post_ln.weight"] = (24,)
    if projector == "mlp":
        return found | {
            "v.position_embd.weight": (16, 24),
            "mm.0.weight": (32, 24),
            "mm.2.weight": (WIDTH, 32),
        }
    if projector == "gemma3":
        return found | {
            "v.position_embd.weight": (16, 24),
            "mm.soft_emb_norm.weight": (24,),
            "mm.input_projection.weight": (24, WIDTH),
        }
    assert projector == "qwen2vl_merger"
    found["v.patch_embd.weight.1"] = found["v.patch_embd.weight"]
    return found | {"mm.0.weight": (96, 96), "mm.2.weight": (WIDTH, 96)}


def projector_file(
    projector: str = "mlp",
    *,
    keys: Mapping[str, tuple[str, Any] | None] | None = None,
    shapes: Mapping[str, tuple[int, ...] | None] | None = None,
    seed: int = 0,
) -> bytes:
    """A projector file; ``keys`` and ``shapes`` replace others, None leaves one out."""
    rng = np.random.default_rng(seed)
    merge = {"clip.vision.projector.scale_factor": ("u32", 2)} if projector == "gemma3" else {}
    stated = {**KEYS, "clip.projector_type": ("str", projector), **merge, **(keys or {})}
    wanted = {**tensors(projector), **(shapes or {})}
    made = []
    for name, shape in wanted.items():
        if shape is None:
            continue
        spread = 1.0 if len(shape) == 1 else float(np.prod(shape[1:])) ** -0.5
        values = rng.standard_normal(shape).astype(np.float32) * np.float32(spread)
        made.append(ggufwriter.Tensor(name, shape[::-1], 0, values.tobytes()))
    return ggufwriter.write([(key, *value) for key, value in stated.items() if value is not None], made)


def picture(width: int = 28, height: int = 28, seed: int = 0) -> np.ndarray:
    """uint8 (height, width, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


def opened(folder: Path, kind: str, **config: Any) -> InferenceEngine:
    """The model of a projector in a folder of `tests/models/media/conftest.py`."""
    return InferenceEngine.from_gguf(folder / kind / "text.gguf", num_threads=1, **config)


def prompt(engine: InferenceEngine, *seeds: int, text: str = TEXT) -> Any:
    """A prompt with a picture for each seed."""
    return engine.model.feature("media").prompt(text, [picture(56, 28, seed) for seed in seeds])


def started(engine: InferenceEngine, given: Any, **options: Any) -> Any:
    """The generation of a greedy text that keeps its logits."""
    return engine.stream(given, keep_logits=True, **{"temperature": 0, "max_tokens": 6, **options})


def logits_of(generation: Any) -> np.ndarray:
    """float32 (tokens, vocab), when the text is complete."""
    generation.result()
    return np.stack(generation.logits)


def bits(engine: InferenceEngine, given: Any, **options: Any) -> np.ndarray:
    """float32 (tokens, vocab): the logits of a greedy text."""
    return logits_of(started(engine, given, **options))


def reference(name: str) -> dict[str, Any]:
    """The cases of a shared pair."""
    found: dict[str, Any] = json.loads((SHARED / name / "ref.json").read_text())
    return found


def media_path(name: str) -> Path:
    """A shared picture or sound."""
    return SHARED / name
