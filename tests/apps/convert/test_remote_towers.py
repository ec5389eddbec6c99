"""Encoders of folders whose classes `transformers` does not have, beside their formulas in NumPy.

MiniCPM-V (https://huggingface.co/openbmb/MiniCPM-V-2_6), Kimi-VL (arXiv:2504.07491) and Ultravox
(https://github.com/fixie-ai/ultravox).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama._kernels import best
from oxillama.apps.convert import convert
from oxillama.errors import LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.models.media.decode import Picture, Sound
from oxillama.models.media.encoder import MediaEncoder
from tests.support import huggingface as hf
from tests.support.sighted_configs import LLAMA, QWEN2
from tests.support.transformers_models import Shapes, weights_of

Weights = dict[str, np.ndarray]

WIDTH, N_FF, HEADS, PATCH = 16, 24, 2, 14
VISION = {
    "hidden_size": WIDTH, "intermediate_size": N_FF, "num_attention_heads": HEADS, "num_hidden_layers": 2,
    "patch_size": PATCH,
}  # fmt: skip
MEAN, STD = [0.5, 0.4, 0.3], [0.25, 0.5, 0.3]
MINICPM: dict[str, Any] = {
    **QWEN2, "architectures": ["MiniCPMV"], "model_type": "minicpmv", "version": 2.6, "hidden_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "image_size": 56, "query_num": 3,
    "drop_vision_last_layer": False, "patch_size": PATCH,
    "slice_config": {"max_slice_nums": 9}, "vision_config": {**VISION, "image_size": 980},
}  # fmt: skip
KIMI: dict[str, Any] = {
    "architectures": ["KimiVLForConditionalGeneration"], "model_type": "kimi_vl",
    "text_config": {"hidden_size": 20},
    "vision_config": {
        **VISION, "init_pos_emb_height": 8, "init_pos_emb_width": 8, "merge_kernel_size": [2, 2],
    },
}  # fmt: skip
ULTRAVOX: dict[str, Any] = {
    "architectures": ["UltravoxModel"], "model_type": "ultravox", "hidden_size": 12, "stack_factor": 8,
    "projector_act": "swiglu", "projector_ln_mid": True, "text_config": {**LLAMA, "hidden_size": 20},
    "audio_config": {
        "model_type": "whisper", "num_mel_bins": 16, "encoder_layers": 1, "d_model": WIDTH,
        "encoder_attention_heads": HEADS, "encoder_ffn_dim": N_FF, "max_source_positions": 1500,
    },
}  # fmt: skip


def with_biases(shapes: Shapes) -> Shapes:
    """The shapes of weights, and of a bias for each."""
    biases = {name.removesuffix("weight") + "bias": shape[:1] for name, shape in shapes.items()}
    return {**shapes, **biases}


def layers(prefix: str, matrices: Shapes, norms: tuple[str, ...]) -> Shapes:
    found = {f"{prefix}{i}.{name}.weight": shape for i in (0, 1) for name, shape in matrices.items()}
    return found | {f"{prefix}{i}.{name}.weight": (WIDTH,) for i in (0, 1) for name in norms}


E: int = MINICPM["hidden_size"]
MINICPM_SHAPES: Shapes = {
    **with_biases({
        "vpm.embeddings.patch_embedding.weight": (WIDTH, 3, PATCH, PATCH),
        "vpm.post_layernorm.weight": (WIDTH,),
        **layers(
            "vpm.encoder.layers.",
            {
                **{f"self_attn.{name}_proj": (WIDTH, WIDTH) for name in ("q", "k", "v", "out")},
                "mlp.fc1": (N_FF, WIDTH), "mlp.fc2": (WIDTH, N_FF),
            },
            ("layer_norm1", "layer_norm2"),
        ),
        "resampler.attn.out_proj.weight": (E, E),
        **{f"resampler.ln_{name}.weight": (E,) for name in ("q", "kv", "post")},
    }),
    "vpm.embeddings.position_embedding.weight": (4900, WIDTH), "resampler.kv_proj.weight": (E, WIDTH),
    "resampler.attn.in_proj_weight": (3 * E, E), "resampler.attn.in_proj_bias": (3 * E,),
    "resampler.query": (3, E), "resampler.proj": (E, E),
}  # fmt: skip
KIMI_SHAPES: Shapes = {
    **with_biases({
        "vision_tower.patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH),
        "vision_tower.encoder.final_layernorm.weight": (WIDTH,),
        **layers(
            "vision_tower.encoder.blocks.",
            {
                "wqkv": (3 * WIDTH, WIDTH), "wo": (WIDTH, WIDTH), "mlp.fc0": (N_FF, WIDTH),
                "mlp.fc1": (WIDTH, N_FF),
            },
            ("norm0", "norm1"),
        ),
        "multi_modal_projector.pre_norm.weight": (WIDTH,),
        "multi_modal_projector.linear_1.weight": (4 * WIDTH, 4 * WIDTH),
        "multi_modal_projector.linear_2.weight": (20, 4 * WIDTH),
    }),
    "vision_tower.patch_embed.pos_emb.weight": (8, 8, WIDTH),
}  # fmt: skip
WHISPER = "audio_tower.layers.0."
ULTRAVOX_SHAPES: Shapes = {
    **with_biases({
        "audio_tower.conv1.weight": (WIDTH, 16, 3), "audio_tower.conv2.weight": (WIDTH, WIDTH, 3),
        "audio_tower.layer_norm.weight": (WIDTH,), f"{WHISPER}fc1.weight": (N_FF, WIDTH),
        f"{WHISPER}fc2.weight": (WIDTH, N_FF),
        **{f"{WHISPER}{name}_layer_norm.weight": (WIDTH,) for name in ("self_attn", "final")},
        **{f"{WHISPER}self_attn.{name}_proj.weight": (WIDTH, WIDTH) for name in ("q", "v", "out")},
    }),
    f"{WHISPER}self_attn.k_proj.weight": (WIDTH, WIDTH), "audio_tower.embed_positions.weight": (1500, WIDTH),
    "multi_modal_projector.ln_pre.weight": (8 * WIDTH,), "multi_modal_projector.ln_mid.weight": (6,),
    "multi_modal_projector.linear_1.weight": (12, 8 * WIDTH),
    "multi_modal_projector.linear_2.weight": (20, 6),
}  # fmt: skip


def weights(shapes: Shapes) -> Weights:
    """Weights of these shapes; the queries differ enough to attend to different rows."""
    found = weights_of(shapes)
    return {name: values * (12 if "in_proj_weight" in name else 1) for name, values in found.items()}


def encoder_of(path: Path, config: dict[str, Any], shapes: Shapes) -> MediaEncoder:
    """The encoder of a folder with this config, after conversion."""
    hf.write_folder(path / "model", config, weights(shapes))
    kind = "norm" if "version" in config else "image"
    facts = {f"{kind}_mean": MEAN, f"{kind}_std": STD}
    (path / "model" / "preprocessor_config.json").write_text(json.dumps(facts))
    convert(path / "model", path / "mmproj.gguf", "F32", mmproj=True)
    return MediaEncoder(path / "mmproj.gguf", best(), 1)


# --- formulas in float64 ----------------------------------------------------------------------------


def normed(w: Weights, name: str, x: np.ndarray, eps: float) -> np.ndarray:
    """A layer norm of rows."""
    centred = x - x.mean(axis=1, keepdims=True)
    scale = w[f"{name}.weight"] / np.sqrt((centred**2).mean(axis=1, keepdims=True) + eps)
    rows: np.ndarray = centred * scale + w[f"{name}.bias"]
    return rows


def linear(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    rows: np.ndarray = x @ w[f"{name}.weight"].T + w[f"{name}.bias"]
    return rows


def gelu(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int) -> np.ndarray:
    """Softmax attention over all rows, float64 (rows of q, width)."""
    q, k, v = (x.reshape(len(x), heads, -1).transpose(1, 0, 2) for x in (q, k, v))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[2])
    shares = np.exp(scores - scores.max(axis=2, keepdims=True))
    shares /= shares.sum(axis=2, keepdims=True)
    return np.asarray((shares @ v).transpose(1, 0, 2).reshape(q.shape[1], -1))


def embedded(w: Weights, name: str, picture: Picture) -> np.ndarray:
    """A row for each patch."""
    pixels = (picture.pixels / 255 - MEAN) / STD
    rows, columns = (n // PATCH for n in pixels.shape[:2])
    patches = pixels.reshape(rows, PATCH, columns, PATCH, 3).transpose(0, 2, 4, 1, 3)
    kernel = w[f"{name}.weight"].reshape(WIDTH, -1)
    return np.asarray(patches.reshape(rows * columns, -1) @ kernel.T + w[f"{name}.bias"])


def minicpm_rows(w: Weights, picture: Picture) -> np.ndarray:
    n = picture.pixels.shape[0] // PATCH
    x = embedded(w, "vpm.embeddings.patch_embedding", picture)
    places = 70 * np.arange(n) // n
    x = x + w["vpm.embeddings.position_embedding.weight"][(70 * places[:, None] + places).ravel()]
    for i in (0, 1):
        at = f"vpm.encoder.layers.{i}."
        h = normed(w, f"{at}layer_norm1", x, 1e-6)
        q, k, v = (linear(w, f"{at}self_attn.{name}_proj", h) for name in "qkv")
        x = x + linear(w, f"{at}self_attn.out_proj", attend(q, k, v, HEADS))
        h = gelu(linear(w, f"{at}mlp.fc1", normed(w, f"{at}layer_norm2", x, 1e-6)))
        x = x + linear(w, f"{at}mlp.fc2", h)
    x = normed(w, "vpm.post_layernorm", x, 1e-6)
    values = normed(w, "resampler.ln_kv", x @ w["resampler.kv_proj.weight"].T, 1e-6)
    turns = 10000.0 ** (-np.arange(E // 4) / (E / 4))
    y, x_places = (part.ravel()[:, None] * turns for part in np.indices((n, n)))
    table = np.concatenate([np.sin(x_places), np.cos(x_places), np.sin(y), np.cos(y)], axis=1)
    queries = normed(w, "resampler.ln_q", w["resampler.query"].astype(float), 1e-6)
    matrices = np.split(w["resampler.attn.in_proj_weight"], 3)
    biases = np.split(w["resampler.attn.in_proj_bias"], 3)
    inputs = (queries, values + table, values)
    q, k, v = (x @ m.T + b for x, m, b in zip(inputs, matrices, biases, strict=True))
    rows = linear(w, "resampler.attn.out_proj", attend(q, k, v, E // 128))
    return np.asarray(normed(w, "resampler.ln_post", rows, 1e-6) @ w["resampler.proj"])


def turned(x: np.ndarray, side: int) -> np.ndarray:
    """Pairs of neighbours of each head rotate by the column, by the row, by the column, ..."""
    rows = x.reshape(len(x), HEADS, -1, 2)
    dim = 2 * rows.shape[2]
    speeds = 10000.0 ** (-np.arange(0, dim, 4) / dim)
    y, columns = (part.ravel()[:, None] * speeds for part in np.indices((side, side)))
    angles = np.stack([columns, y], axis=2).reshape(len(x), 1, -1)
    whole = (rows[..., 0] + 1j * rows[..., 1]) * np.exp(1j * angles)
    return np.stack([whole.real, whole.imag], axis=3).reshape(x.shape)


def kimi_rows(w: Weights, picture: Picture) -> np.ndarray:
    tower, last = "vision_tower.", "multi_modal_projector."
    x = embedded(w, f"{tower}patch_embed.proj", picture) + w[f"{tower}patch_embed.pos_emb.weight"].reshape(
        64, WIDTH
    )
    for i in (0, 1):
        at = f"{tower}encoder.blocks.{i}."
        q, k, v = np.split(linear(w, f"{at}wqkv", normed(w, f"{at}norm0", x, 1e-5)), 3, axis=1)
        x = x + linear(w, f"{at}wo", attend(turned(q, 8), turned(k, 8), v, HEADS))
        h = gelu(linear(w, f"{at}mlp.fc0", normed(w, f"{at}norm1", x, 1e-5)))
        x = x + linear(w, f"{at}mlp.fc1", h)
    x = normed(w, f"{last}pre_norm", normed(w, f"{tower}encoder.final_layernorm", x, 1e-5), 1e-5)
    x = x.reshape(4, 2, 4, 2, WIDTH).transpose(0, 2, 1, 3, 4).reshape(16, -1)
    return linear(w, f"{last}linear_2", gelu(linear(w, f"{last}linear_1", x)))


def ultravox_rows(w: Weights, whisper: np.ndarray) -> np.ndarray:
    """The projector alone, of the encoder's rows (joined by eights)."""

    def rms(name: str, x: np.ndarray) -> np.ndarray:
        rows: np.ndarray = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * w[f"{name}.weight"]
        return rows

    last = "multi_modal_projector."
    both = rms(f"{last}ln_pre", whisper.astype(float)) @ w[f"{last}linear_1.weight"].T
    x, gate = np.split(both, 2, axis=1)
    return rms(f"{last}ln_mid", x * gate / (1 + np.exp(-gate))) @ w[f"{last}linear_2.weight"].T


# --- tests ------------------------------------------------------------------------------------------

FOLDERS: dict[str, tuple[dict[str, Any], Shapes]] = {
    "minicpm": (MINICPM, MINICPM_SHAPES),
    "kimi": (KIMI, KIMI_SHAPES),
    "ultravox": (ULTRAVOX, ULTRAVOX_SHAPES),
}


def check_rows(found: np.ndarray, wanted: np.ndarray) -> None:
    """1 - cosine of each two rows is small; of other rows it is not."""
    a, b = found.astype(float), wanted.astype(float)
    a, b = (x / np.sqrt((x * x).sum(axis=1, keepdims=True)) for x in (a, b))
    assert a.shape == b.shape
    assert (1 - (a * b).sum(axis=1)).max() < 1e-5
    assert (1 - a @ b.T).max() > 1e-3


@pytest.mark.parametrize(
    ("name", "size", "formula"), [("minicpm", 56, minicpm_rows), ("kimi", 112, kimi_rows)]
)
def test_pictures(
    name: str, size: int, formula: Callable[[Weights, Picture], np.ndarray], tmp_path: Path
) -> None:
    config, shapes = FOLDERS[name]
    picture = Picture(np.random.default_rng(1).integers(0, 256, (size, size, 3)).astype(np.uint8))
    rows = encoder_of(tmp_path, config, shapes).encode(picture).rows
    check_rows(rows[0].values, formula(weights(shapes), picture))
    with ModelFile.open(tmp_path / "mmproj.gguf") as file:
        assert file.get("general.type", str) == "mmproj"


def test_sounds(tmp_path: Path) -> None:
    config, shapes = FOLDERS["ultravox"]
    encoder = encoder_of(tmp_path, config, shapes)
    sound = Sound(np.random.default_rng(1).uniform(-0.5, 0.5, 80_000).astype(np.float32))
    assert encoder.audio is not None
    steps = encoder.audio.encoder.steps(encoder.audio.pieces(sound.samples)[0])
    while True:
        try:
            next(steps)
        except StopIteration as done:
            whisper = done.value
            break
    assert whisper.shape == (188, 8 * WIDTH)  # 1500 rows by eights, and zeros behind the last
    check_rows(encoder.encode(sound).rows[0].values, ultravox_rows(weights(shapes), whisper))


@pytest.mark.parametrize(("version", "number"), [("2.5", 2), (2.6, 3), (4.5, 6)])
def test_versions_of_minicpm(version: Any, number: int, tmp_path: Path) -> None:
    encoder_of(tmp_path, {**MINICPM, "version": version}, MINICPM_SHAPES)
    with ModelFile.open(tmp_path / "mmproj.gguf") as file:
        assert file.get("clip.minicpmv_version", int) == number
        assert file.get("clip.minicpmv_query_num", int) == 3


@pytest.mark.parametrize(
    ("version", "text"),
    [(2.5, LLAMA), (2.6, QWEN2), (4.0, LLAMA), (4, LLAMA)],
    ids=["2.5", "2.6", "4.0", "4"],
)
def test_the_text_model_of_minicpm(version: float, text: dict[str, Any], tmp_path: Path) -> None:
    """Is that of its version: the same file as of a folder with the text model alone."""
    has_biases = text is QWEN2
    plain = {**text, "architectures": ["Qwen2ForCausalLM" if has_biases else "LlamaForCausalLM"]}
    tensors = hf.decoder_weights(plain, qkv_biases=has_biases)
    hf.write_folder(tmp_path / "plain", plain, tensors)
    towers = weights_of({"vpm.post_layernorm.weight": (WIDTH,), "resampler.query": (3, E)})
    inner = {f"llm.{name}": values for name, values in tensors.items()}
    whole = {**MINICPM, **plain, "architectures": ["MiniCPMV"], "model_type": "minicpmv", "version": version}
    hf.write_folder(tmp_path / "whole", whole, {**inner, **towers})
    for name in ("plain", "whole"):
        convert(tmp_path / name, tmp_path / f"{name}.gguf", "F32")
    with ModelFile.open(tmp_path / "plain.gguf") as one, ModelFile.open(tmp_path / "whole.gguf") as other:
        facts = [
            {k: str(v) for k, v in each.metadata.items() if k != "general.name"} for each in (one, other)
        ]
        assert facts[0] == facts[1]
        assert one.tensors.keys() == other.tensors.keys()
        for name in one.tensors:
            assert bytes(one.data(name)) == bytes(other.data(name))
    hf.write_folder(tmp_path / "whole", {**whole, "version": 7}, {**inner, **towers})
    with pytest.raises(LoadError, match=r"version: expected 2\.5, 4\.0, 4, 2\.6, 4\.5, got '7'"):
        convert(tmp_path / "whole", tmp_path / "out.gguf", "F32")


CHANGES: list[tuple[str, str, dict[str, Any], str]] = [
    ("minicpm", "", {"version": "3.0"}, r"version: expected one of 2\.5, 2\.6, 4\.0, 4, 4\.5, got 3\.0"),
    ("minicpm", "", {"drop_vision_last_layer": True}, "drop_vision_last_layer: True is not supported"),
    ("minicpm", "", {"query_num": 4}, "resampler.query: expected 4 queries"),
    ("minicpm", "vision_config", {"image_size": 448}, "image_size: 448 is not supported"),
    ("kimi", "vision_config", {"merge_kernel_size": [1, 1]}, r"merge_kernel_size: \[1, 1\] is not"),
    ("kimi", "vision_config", {"init_pos_emb_width": 9}, "init_pos_emb_width: expected 8 .*, got 9"),
    ("kimi", "vision_config", {"num_attention_heads": 8}, "wqkv: expected rows of 8 heads"),
    ("ultravox", "", {"projector_ln_mid": False}, "projector_ln_mid: False is not supported"),
    ("ultravox", "", {"projector_act": "gelu"}, "projector_act: 'gelu' is not supported"),
    ("ultravox", "", {"audio_config": None}, "audio_config: expected the facts of an encoder, got none"),
]


@pytest.mark.parametrize(("name", "inner", "changes", "text"), CHANGES)
def test_options_that_are_not_supported_are_named(
    name: str, inner: str, changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    config, shapes = FOLDERS[name]
    changed = config | ({inner: config[inner] | changes} if inner else changes)
    with pytest.raises(LoadError, match=text):
        encoder_of(tmp_path, changed, shapes)
    assert not (tmp_path / "mmproj.gguf").exists()
