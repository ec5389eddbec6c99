"""Converted pairs of a text model and a projector file have the logits that `transformers` computes.

Of a picture or a sound, on tiny models of random weights.

Its numbers are recorded; where torch and transformers are installed, the slow test computes them again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama._kernels import best
from oxillama.apps.convert import convert
from oxillama.errors import ConfigError, LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.models.media.decode import Sound
from oxillama.models.media.encoder import MediaEncoder
from tests.support.sighted_configs import CONFIGS
from tests.support.sighted_models import (
    make_model,
    medium,
    our_logits,
    places,
    recorded,
    run_transformers,
    weights_of,
    write_model,
)
from tests.support.spread import each
from tests.support.tiny_models import divergence

BARS = {"gemma4": 1e-4}
"""Of the KL divergence of some models."""
BAR = 1e-5
"""Of the others: `gelu` of the error function is that of tanh in files."""


def folder_of(name: str, path: Path, **changes: Any) -> Path:
    """The folder of a recorded model, with another config."""
    config, shapes, _ = recorded(name)
    return write_model(path, config | changes, shapes)


def check(folder: Path, name: str, wanted: np.ndarray, other: np.ndarray | None = None) -> None:
    """A folder's pair has the ``wanted`` logits at `places`, and others of another medium."""
    pair = folder / "text.gguf", folder / "mmproj.gguf"
    convert(folder, pair[0], "F32")
    convert(folder, pair[1], "F32", mmproj=True)
    found = our_logits(*pair, medium(name))
    at = places(len(found))
    bar = BARS.get(name, BAR)
    assert divergence(wanted, found[at]) < bar
    assert divergence(wanted, our_logits(*pair, medium(name, 1))[at]) > 4 * bar


def cosines(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """1 - cosine of each two rows."""
    a, b = one.astype(float), two.astype(float)
    found: np.ndarray = 1 - (a * b).sum(axis=1) / np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
    return found


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_recorded_logits(name: str, tmp_path: Path) -> None:
    check(folder_of(name, tmp_path / "model"), name, recorded(name)[2])


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_what_transformers_computes(name: str, tmp_path: Path) -> None:
    """The installed version of transformers computes the same embeddings."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    try:
        make_model(name, tmp_path / "model")
    except LookupError as error:
        pytest.skip(f"this version of transformers has no {error}")
    convert(tmp_path / "model", tmp_path / "mmproj.gguf", "F32", mmproj=True)
    found = run_transformers(name, tmp_path / "model", tmp_path / "mmproj.gguf")
    check(tmp_path / "model", name, found[places(len(found))])


@pytest.mark.parametrize("name", each(sorted(CONFIGS), 4))
def test_every_tensor_counts(name: str, tmp_path: Path) -> None:
    """The error names a missing tensor, or a tensor too many."""
    config, shapes, _ = recorded(name)
    folder = write_model(tmp_path / "model", config, shapes)
    left_out = convert(folder, tmp_path / "mmproj.gguf", "F32", mmproj=True).left_out
    used = [key for key in sorted(shapes) if key not in left_out and "embed_tokens" not in key]
    assert used
    for i in {0, len(used) // 3, len(used) // 2, len(used) - 1}:
        less = {key: shape for key, shape in shapes.items() if key != used[i]}
        folder = write_model(tmp_path / f"less{i}", config, less)
        with pytest.raises(LoadError, match=r"expected a tensor that config\.json asks for, got none"):
            convert(folder, tmp_path / "out.gguf", "F32", mmproj=True)
    extra = next(key for key in used if key.endswith("weight")).removesuffix("weight") + "more"
    folder = write_model(tmp_path / "more", config, {**shapes, extra: (3,)})
    with pytest.raises(LoadError, match=r"tensors: expected those of .* only, got .*more"):
        convert(folder, tmp_path / "out.gguf", "F32", mmproj=True)


@pytest.mark.parametrize(("kind", "most"), [("F16", 1e-5), ("Q8_0", 3e-3)])
@pytest.mark.parametrize("name", ["gemma3", "qwen3_vl", "mistral3"])
def test_types(name: str, kind: str, most: float, tmp_path: Path) -> None:
    """Matrices have the asked type, kernels 16 bits, vectors and tables F32."""
    folder = folder_of(name, tmp_path / "model")
    rows = []
    for each_kind in ("F32", kind):
        path = tmp_path / f"{each_kind}.gguf"
        convert(folder, path, each_kind, mmproj=True)
        rows.append(MediaEncoder(path, best(), 1).encode(medium(name)).rows[0].values)
    assert 0 < cosines(*rows).max() < most
    with ModelFile.open(tmp_path / f"{kind}.gguf") as file:
        formats = {key: tensor.format.name for key, tensor in file.tensors.items()}
    assert formats["v.blk.0.ffn_up.weight"] == kind
    assert formats["v.patch_embd.weight"] == "F16"
    assert formats["v.blk.0.ln1.weight"] == "F32"


CHANGES: list[tuple[str, str, dict[str, Any], str]] = [
    ("gemma3", "vision_config", {"hidden_act": "relu"}, "hidden_act: expected one of gelu_pytorch_tanh"),
    ("gemma3", "vision_config", {"num_attention_heads": 3}, "32 is not a multiple of 3 heads"),
    ("gemma3", "vision_config", {"num_channels": 1}, "num_channels: 1 is not supported"),
    ("gemma3", "vision_config", {"num_hidden_layers": 3}, "layers.2.* expected a tensor that config"),
    ("gemma3", "vision_config", {"num_hidden_layers": 1},
     r"expected those of gemma3 only, got .*layers\.1\."),
    ("gemma3", "vision_config", {"num_hidden_layers": 10**6}, "1000000 layers are more than"),
    ("gemma3", "vision_config", {"intermediate_size": 32}, "intermediate_size: expected another number"),
    ("gemma3", "vision_config", {"image_size": 40}, "mm_tokens_per_image: 2 do not divide 5"),
    ("gemma3", "", {"mm_tokens_per_image": 5}, "mm_tokens_per_image: expected the square of a number"),
    ("gemma3", "", {"architectures": ["LlamaForCausalLM"]}, "architectures: expected one of Gemma3For"),
    ("gemma3", "", {"vision_config": {}}, "vision_config: expected the facts of an encoder, got none"),
    ("llava", "", {"vision_feature_layer": -1}, "vision_feature_layer: expected -2 to -3, got -1"),
    ("llava", "", {"vision_feature_select_strategy": "full"},
     "vision_feature_select_strategy: 'full' is not"),
    ("llava", "vision_config", {"model_type": "x"}, "model_type: expected one of clip_vision_model"),
    ("internvl", "vision_config", {"use_qk_norm": True}, "use_qk_norm: True is not supported"),
    ("internvl", "", {"downsample_ratio": 0.3}, "downsample_ratio: expected 1 / n, got 0.3"),
    ("pixtral", "vision_config", {"rope_theta": 5.0}, "rope_theta: 5.0 is not supported"),
    ("qwen2_5_vl", "vision_config", {"window_size": 56}, "window_size: 56 is not supported"),
    ("qwen2_5_vl", "vision_config", {"fullatt_block_indexes": [0, 2]}, "expected every n-th layer, got"),
    ("qwen3_vl", "vision_config", {"deepstack_visual_indexes": [1, 0]}, "expected layers in order, got"),
    ("qwen3_vl", "vision_config", {"temporal_patch_size": 1}, "temporal_patch_size: 1 is not supported"),
    ("glm4v", "vision_config", {"attention_bias": True}, "attention_bias: True is not supported"),
    ("gemma4", "vision_config", {"global_head_dim": 8}, "global_head_dim: 8 is not supported"),
    ("gemma4_sound", "audio_config", {"conv_kernel_size": 7}, "conv_kernel_size: 7 is not supported"),
    ("gemma4_sound", "audio_config", {"subsampling_conv_channels": [8]}, "channels: expected two numbers"),
    ("gemma4_unified", "audio_config", {"rms_norm_eps": 1e-5}, "rms_norm_eps: 1e-05 is not supported"),
    ("gemma4_unified", "audio_config", {"hidden_size": 32}, "hidden_size: 32 is not supported"),
    ("gemma4_unified", "vision_config", {"output_proj_dims": 32}, "output_proj_dims: 32 is not supported"),
    ("gemma4_unified", "vision_config", {"patch_size": 8}, "patches: expected rows of 768 numbers, got 192"),
    ("gemma4", "", {"vision_config": None}, "expected a vision_config or an audio_config, got none"),
    ("voxtral", "audio_config", {"intermediate_size": 48}, "expected a multiple of 16 by a divisor of 1500"),
    ("voxtral", "", {"projector_hidden_act": "relu"}, "projector_hidden_act: 'relu' is not supported"),
    ("qwen2_audio", "audio_config", {"max_source_positions": 100}, "max_source_positions: 100 is not"),
    ("llama4", "text_config", {"attention_chunk_size": 64}, "attention_chunk_size: 64 is not supported"),
    ("llama4", "text_config", {"floor_scale": 4}, "floor_scale: 4 is not supported"),
    ("llama4", "text_config", {"attn_temperature_tuning": False}, "temperature_tuning: False is not support"),
    ("llama4", "text_config", {"use_qk_norm": False}, "use_qk_norm: False is not supported"),
    ("llama4", "text_config", {"no_rope_layers": [1, 1, 1, 1]}, "no_rope_layers: .* is not supported"),
    ("llama4", "text_config", {"layer_types": ["full_attention"] * 4}, "layer_types: .* is not supported"),
    ("llama4", "text_config", {"moe_layers": [0, 1, 2, 3]}, "moe_layers: .* is not supported"),
]  # fmt: skip
"""Changes of the text model concern the conversion of that, others the projector's."""


@pytest.mark.parametrize(("name", "inner", "changes", "text"), CHANGES)
def test_options_that_are_not_supported_are_named(
    name: str, inner: str, changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    config, shapes, _ = recorded(name)
    changed = config | ({inner: config[inner] | changes} if inner else changes)
    folder = write_model(tmp_path / "model", changed, shapes)
    with pytest.raises(LoadError, match=text):
        convert(folder, tmp_path / "out.gguf", "F32", mmproj=inner != "text_config")
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("gemma3", {"projector.scale_factor": 2, "image_size": 32, "projection_dim": 32}),
        ("idefics3", {"projector.scale_factor": 2, "preproc_image_size": 32}),
        ("internvl", {"preproc_min_tiles": 1, "preproc_max_tiles": 4}),
        ("qwen2_5_vl", {"n_wa_pattern": 2}),
        ("qwen3_vl", {"image_size": 48, "spatial_merge_size": 2}),
        ("lfm2_vl", {"image_size": 32, "projector.scale_factor": 2}),
        ("paddleocr_vl", {"image_min_pixels": 256, "image_max_pixels": 4096}),
    ],
)
def test_facts_that_few_pictures_show(name: str, wanted: dict[str, int], tmp_path: Path) -> None:
    convert(folder_of(name, tmp_path / "model"), tmp_path / "out.gguf", "F32", mmproj=True)
    with ModelFile.open(tmp_path / "out.gguf") as file:
        assert {key: file.get(f"clip.vision.{key}", int) for key in wanted} == wanted


def test_the_scales_of_gemma4s_sounds(tmp_path: Path) -> None:
    """GGUF has softplus(w) of the class's w; that of the tiny model changes little else."""
    _, shapes, _ = recorded("gemma4_sound")
    convert(folder_of("gemma4_sound", tmp_path / "model"), tmp_path / "out.gguf", "F32", mmproj=True)
    stored = weights_of(shapes)["model.audio_tower.layers.1.self_attn.per_dim_scale"]
    with ModelFile.open(tmp_path / "out.gguf") as file:
        found = np.frombuffer(file.data("a.blk.1.per_dim_scale.weight"), np.float32)
    np.testing.assert_allclose(found, np.log1p(np.exp(stored)), rtol=1e-6)


def test_gemma4_unified_has_frames_of_samples(tmp_path: Path) -> None:
    """A norm without weight and one matrix, for the samples of a sound as they are."""
    _, shapes, _ = recorded("gemma4_unified")
    convert(folder_of("gemma4_unified", tmp_path / "model"), tmp_path / "out.gguf", "F32", mmproj=True)
    encoder = MediaEncoder(tmp_path / "out.gguf", best(), 1)
    assert encoder.vision is not None and encoder.audio is not None and encoder.unused == []
    samples = np.random.default_rng(3).normal(0, 0.1, 48 * 5 - 11).astype(np.float32)
    found = encoder.encode(Sound(samples))
    assert found.texts == [["<|audio>"], ["<audio|>"]]
    frames = np.concatenate([samples, np.zeros(11, np.float32)]).reshape(5, 48).astype(np.float64)
    normed = frames / np.sqrt((frames * frames).mean(axis=1, keepdims=True) + 1e-6)
    wanted = normed @ weights_of(shapes)["model.embed_audio.embedding_projection.weight"].T
    assert cosines(found.rows[0].values, wanted).max() < 1e-5
    np.testing.assert_allclose(found.rows[0].values, wanted, rtol=1e-2, atol=1e-2 * np.abs(wanted).max())
    many = np.tile(samples, 500)  # more frames than one step takes
    rows = encoder.encode(Sound(many)).rows[0].values
    assert len(rows) == -(-len(many) // 48)
    at = len(rows) - 2
    alone = encoder.encode(Sound(many[48 * at :])).rows[0].values
    assert (alone == rows[at:]).all()


def test_the_layer_that_llava_reads(tmp_path: Path) -> None:
    """Layers behind it are not written; the one before them is, for readers leave the last one out."""
    folder = folder_of("llava", tmp_path / "model", vision_feature_layer=-3)
    done = convert(folder, tmp_path / "out.gguf", "F32", mmproj=True)
    assert any("layers.2." in name for name in done.left_out)
    with ModelFile.open(tmp_path / "out.gguf") as file:
        assert file.get("clip.vision.block_count", int) == 2


def test_llava_takes_the_rows_of_patches(tmp_path: Path) -> None:
    """Its last patch counts, and its class row is none of its rows."""
    folder = folder_of("llava", tmp_path / "model")
    convert(folder, tmp_path / "out.gguf", "F32", mmproj=True)
    encoder = MediaEncoder(tmp_path / "out.gguf", best(), 1)
    assert encoder.vision is not None
    assert encoder.vision.facts.drops_class_row
    rows = encoder.encode(medium("llava")).rows[0].values
    encoder.vision.merger.drops_last = False  # type: ignore[attr-defined]
    others = encoder.encode(medium("llava")).rows[0].values
    assert (rows[1:] == others[:-1]).all()
    assert not (rows[0] == others[-1]).all()


def test_facts_of_the_preprocessor(tmp_path: Path) -> None:
    """The facts are in preprocessor_config.json, or in newer folders in processor_config.json."""
    folder = folder_of("gemma3", tmp_path / "model")
    facts = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(LoadError, match=r"expected a preprocessor_config\.json or processor_config\.json"):
        convert(folder, tmp_path / "out.gguf", mmproj=True)
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": facts}))
    convert(folder, tmp_path / "out.gguf", mmproj=True)
    with ModelFile.open(tmp_path / "out.gguf") as file:
        assert file.get("clip.vision.image_mean", list[float]) == pytest.approx(facts["image_mean"])
    facts["image_mean"] = [0.5, "x", 0.5]
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": facts}))
    with pytest.raises(LoadError, match="image_mean: expected three numbers, got"):
        convert(folder, tmp_path / "out.gguf", mmproj=True)


def test_the_row_behind_a_line(tmp_path: Path) -> None:
    """The row at the end of a line is the embedding of a token that the tokenizer must have."""
    folder = folder_of("pixtral", tmp_path / "model")
    convert(folder, tmp_path / "out.gguf", "F32", mmproj=True)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    token = next(entry["id"] for entry in tokenizer["added_tokens"] if entry["content"] == "[IMG_BREAK]")
    _, shapes, _ = recorded("pixtral")
    name = "language_model.model.embed_tokens.weight"
    wanted = weights_of({name: shapes[name]})[name][token]
    with ModelFile.open(tmp_path / "out.gguf") as file:
        assert np.array_equal(file.data("v.token_embd.img_break").view(np.float32).reshape(-1), wanted)
    tokenizer["added_tokens"] = []
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(LoadError, match=r"added_tokens: expected '\[IMG_BREAK\]'"):
        convert(folder, tmp_path / "out.gguf", "F32", mmproj=True)


def test_adapters_have_no_projector(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="mmproj: expected False for a folder with an adapter_config"):
        convert(tmp_path, tmp_path / "out.gguf", mmproj=True)
