"""Folders as they are published: keys that classes rename, blocks of MXFP4, modules behind an encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama.apps.convert import convert
from oxillama.errors import LoadError
from oxillama.gguf.model_file import ModelFile
from tests.apps.convert.test_transformers import check
from tests.support import huggingface as hf
from tests.support.kernels import dequantized
from tests.support.tiny_models import Running
from tests.support.transformers_models import TOKENS, recorded, weights_of, write_model

Config = dict[str, Any]


def gemma4(config: Config) -> Config:
    """As Google's folders have it: the sizes of layers without windows stand beside those of others."""
    sizes = config["per_layer_config"]["2"]
    found = {key: value for key, value in config.items() if key != "per_layer_config"}
    found["global_head_dim"] = sizes["head_dim"]
    if "num_key_value_heads" in sizes:
        found["num_global_key_value_heads"] = sizes["num_key_value_heads"]
    return found


def nemotron(config: Config) -> Config:
    letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
    pattern = "".join(letters[kind] for kind in config["layers_block_type"])
    found = {key: value for key, value in config.items() if key not in ("layers_block_type", "head_dim")}
    found["attention_head_dim"] = config["head_dim"]
    return found | {"hybrid_override_pattern": pattern, "num_hidden_layers": len(pattern)}


def kimi(config: Config) -> Config:
    kinds = config["layer_types"]
    inner = {
        "full_attn_layers": [i + 1 for i, kind in enumerate(kinds) if kind == "full_attention"],
        "kda_layers": [i + 1 for i, kind in enumerate(kinds) if kind == "linear_attention"],
        "head_dim": config["linear_head_dim"],
        "num_heads": config["linear_num_heads"],
        "short_conv_kernel_size": config["linear_conv_kernel_dim"],
    }
    moved = {"layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim"}
    found = {key: value for key, value in config.items() if key not in moved}
    found |= {"use_grouped_topk": True, "rope_theta": 10000.0}  # one group, no layer
    return found | {"linear_attn_config": inner, "first_k_dense_replace": 1, "mla_use_nope": True}


def older_rope(config: Config) -> Config:
    """The rotation before `transformers` 5: scaling and base stand apart."""
    text = dict(config.get("text_config", config))
    rope = text.pop("rope_parameters")
    text |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    return config | {"text_config": text} if "text_config" in config else text


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("gemma4", gemma4), ("gemma4-moe", gemma4), ("nemotron_h", nemotron), ("nemotron_h-moe", nemotron),
        ("kimi_linear", kimi), ("gpt_oss", older_rope), ("qwen3_vl", older_rope), ("apertus", older_rope),
    ],
)  # fmt: skip
def test_keys_as_published(name: str, published: Any, tmp_path: Path) -> None:
    """The published spelling of the keys gives the same file."""
    config, shapes, wanted = recorded(name)
    check(write_model(tmp_path / "model", published(config), shapes), tmp_path / "out.gguf", wanted)


def test_sections_of_the_rotation(tmp_path: Path) -> None:
    """The file has the sections for both places in which a config may state them."""
    config, shapes, _ = recorded("qwen3_vl")
    for i, changed in enumerate((config, older_rope(config))):
        convert(write_model(tmp_path / f"model{i}", changed, shapes), tmp_path / "out.gguf", "F32")
        with ModelFile.open(tmp_path / "out.gguf") as file:
            assert file.get("qwen3vl.rope.dimension_sections", list[int]) == [2, 1, 1, 0]


def test_names_of_older_folders(tmp_path: Path) -> None:
    """Older folders begin the names of the text model with ``language_model.model.``."""
    config, shapes, wanted = recorded("gemma4-towers")
    older = {
        name.replace("model.language_model.", "language_model.model."): values
        for name, values in weights_of(shapes).items()
    }
    check(hf.write_folder(tmp_path / "model", config, older), tmp_path / "out.gguf", wanted)


def test_the_same_tensor_under_two_names(tmp_path: Path) -> None:
    config, shapes, _ = recorded("gemma4-towers")
    weights = weights_of(shapes)
    weights["language_model.model.norm.weight"] = weights["model.language_model.norm.weight"]
    folder = hf.write_folder(tmp_path / "model", config, weights)
    with pytest.raises(LoadError, match=r"norm\.weight: expected each tensor once, got .*norm\.weight too"):
        convert(folder, tmp_path / "out.gguf", "F32")


def test_keys_that_contradict_each_other(tmp_path: Path) -> None:
    config, shapes, _ = recorded("gemma4-towers")
    folder = write_model(tmp_path / "model", config | {"sliding_window": 7}, shapes)
    with pytest.raises(LoadError, match="sliding_window: expected what text_config says, too, got 7 and 6"):
        convert(folder, tmp_path / "out.gguf", "F32")


def test_fewer_embeddings_of_layers_than_words(tmp_path: Path) -> None:
    """Words beyond the table have the first row, as the class looks them up."""
    config, shapes, _ = recorded("gemma3n")
    name = "model.embed_tokens_per_layer.weight"
    n_less = hf.N_VOCAB - 10
    weights = weights_of(shapes)
    weights[name] = weights[name][:n_less]
    folder = hf.write_folder(tmp_path / "model", config | {"vocab_size_per_layer_input": n_less}, weights)
    convert(folder, tmp_path / "out.gguf", "F32")
    with ModelFile.open(tmp_path / "out.gguf") as file:
        table = file.data("per_layer_token_embd.weight").view(np.float32).reshape(hf.N_VOCAB, -1)
    assert np.array_equal(table[:n_less], weights[name])
    assert np.array_equal(table[n_less:], np.tile(weights[name][:1], (10, 1)))


# --- MXFP4 ------------------------------------------------------------------------------------------

CODES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""Values of four bits in the OCP's microscaling formats."""


def numbers(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """float32 (experts, rows, columns): neighbours share a byte, the first in its lower half."""
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], 32)
    values = np.ldexp(CODES[codes], scales.astype(np.int32)[..., None] - 127)
    return values.reshape(*blocks.shape[:2], -1)


def packed_model() -> tuple[Config, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A config, and the tensors with experts as blocks, and with the floats that these stand for."""
    config, shapes, _ = recorded("gpt_oss")
    rng = np.random.default_rng(3)
    floats = weights_of(shapes)
    packed = dict(floats)
    for name, shape in shapes.items():
        if ".experts." not in name or not name.endswith("_proj"):
            continue
        experts, cols, rows = shape  # transposed
        blocks = rng.integers(0, 256, (experts, rows, cols // 32, 16)).astype(np.uint8)
        scales = rng.integers(120, 126, (experts, rows, cols // 32)).astype(np.uint8)
        floats[name] = numbers(blocks, scales).swapaxes(1, 2)
        del packed[name]
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return config, packed, floats


QUANTIZED = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_mxfp4(kind: str, tmp_path: Path) -> None:
    """Blocks stay blocks, whatever the type, and stand for the same numbers."""
    config, packed, floats = packed_model()
    source = hf.write_folder(tmp_path / "packed", config | QUANTIZED, packed)
    done = convert(source, tmp_path / "packed.gguf", kind)
    assert done.formats["MXFP4"] == 3 * config["num_hidden_layers"]
    with ModelFile.open(tmp_path / "packed.gguf") as file:
        assert file.get("general.file_type", int) == 38
        for i in range(config["num_hidden_layers"]):
            gate_up, down = (
                floats[f"model.layers.{i}.mlp.experts.{name}_proj"] for name in ("gate_up", "down")
            )
            rows = {"gate": gate_up[..., ::2], "up": gate_up[..., 1::2], "down": down}
            for name, wanted in rows.items():
                data = file.data(f"blk.{i}.ffn_{name}_exps.weight")
                found = dequantized("MXFP4", data.reshape(-1, 17))
                assert np.array_equal(found, wanted.swapaxes(1, 2).reshape(found.shape)), (i, name)


def test_logits_of_mxfp4(tmp_path: Path) -> None:
    config, packed, floats = packed_model()
    convert(hf.write_folder(tmp_path / "a", config | QUANTIZED, packed), tmp_path / "a.gguf", "F32")
    convert(hf.write_folder(tmp_path / "b", config, floats), tmp_path / "b.gguf", "F32")
    found = Running((tmp_path / "a.gguf").read_bytes(), compute="f32").logits(TOKENS)
    wanted = Running((tmp_path / "b.gguf").read_bytes()).logits(TOKENS)
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_mxfp4_that_cannot_be(tmp_path: Path) -> None:
    config, packed, _ = packed_model()
    name = "model.layers.2.mlp.experts.down_proj"

    def refused(text: str, changes: Config, tensors: dict[str, np.ndarray | None]) -> None:
        made = {key: values for key, values in (packed | tensors).items() if values is not None}
        folder = hf.write_folder(tmp_path / "model", config | QUANTIZED | changes, made)
        with pytest.raises(LoadError, match=text):
            convert(folder, tmp_path / "out.gguf")

    scales = packed[f"{name}_scales"].copy()
    scales[1, 2, 0] = 253
    refused("scales: expected exponents up to 252, got 253", {}, {f"{name}_scales": scales})
    refused(f"{name}_scales: expected a tensor that config.json asks for", {}, {f"{name}_scales": None})
    halves = packed[f"{name}_blocks"].astype(np.float32)
    refused(f"{name}_blocks: expected bytes .U8., got F32", {}, {f"{name}_blocks": halves})
    refused("quant_method: 'fp8' is not supported", {"quantization_config": {"quant_method": "fp8"}}, {})
    refused("experts.gate_up_proj: expected a tensor", {"quantization_config": None}, {})
    refused("swiglu_limit: 5.0 is not supported", {"swiglu_limit": 5.0}, {})


# --- Sentence Transformers --------------------------------------------------------------------------


def embedding_folder(folder: Path, dense: Config, modules: list[str], width: int = 48) -> np.ndarray:
    """EmbeddingGemma's modules beside a tiny model. Returns the first matrix, float32 (width, 32)."""
    config, shapes, _ = recorded("gemma_embedding")
    write_model(folder, config, shapes)
    listed = [
        {"type": f"sentence_transformers.models.{kind}", "path": f"{i}_{kind}" if i else ""}
        for i, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    matrix: np.ndarray = np.random.default_rng(4).standard_normal((width, 32)).astype(np.float32)
    for entry in listed[1:]:
        (folder / entry["path"]).mkdir()
        kind = entry["type"].rpartition(".")[2]
        contents = {"pooling_mode_mean_tokens": True} if kind == "Pooling" else dense
        (folder / entry["path"] / "config.json").write_text(json.dumps(contents))
        if kind == "Dense":
            data = hf.safetensors({"linear.weight": matrix})
            (folder / entry["path"] / "model.safetensors").write_bytes(data)
    return matrix


DENSE: Config = {
    "in_features": 32, "out_features": 48, "bias": False,
    "activation_function": "torch.nn.modules.linear.Identity",
}  # fmt: skip


def test_matrices_behind_the_pooling(tmp_path: Path) -> None:
    matrix = embedding_folder(tmp_path / "model", DENSE, ["Transformer", "Pooling", "Dense", "Normalize"])
    convert(tmp_path / "model", tmp_path / "out.gguf", "F32")
    with ModelFile.open(tmp_path / "out.gguf") as file:
        assert file.get("gemma-embedding.pooling_type", int) == 1
        assert file.get("gemma-embedding.dense_2_feat_out", int) == 48
    running = Running((tmp_path / "out.gguf").read_bytes())
    pooled = np.ones((1, 32), np.float32)
    assert running.model.projection is not None
    np.testing.assert_allclose(running.model.projection.run(pooled, 1), pooled @ matrix.T, rtol=1e-5)


@pytest.mark.parametrize(
    ("modules", "dense", "text"),
    [
        (["Transformer", "LSTM"], {}, "LSTM: expected a Transformer, Pooling, Normalize or Dense"),
        (["Transformer", *3 * ["Dense"]], {}, "expected at most 2 Dense of gemma-embedding, got 3"),
        (["Transformer", "Dense"], {"bias": True}, "bias: True is not supported"),
        (["Transformer", "Dense"], {"activation_function": "torch.nn.modules.activation.Tanh"},
         "'torch.*Tanh' is"),
        (["Transformer", "Dense"], {"in_features": 40}, "in_features: 40 is not supported"),
        (["Transformer", "Dense"], {"out_features": 40}, r"expected linear.weight \[40, 32\] alone, got"),
    ],
)  # fmt: skip
def test_modules_that_have_no_word_in_gguf(
    modules: list[str], dense: Config, text: str, tmp_path: Path
) -> None:
    embedding_folder(tmp_path / "model", DENSE | dense, modules)
    with pytest.raises(LoadError, match=text):
        convert(tmp_path / "model", tmp_path / "out.gguf", "F32")


@pytest.mark.parametrize(
    "contents", ["{}", "[1]", '[{"type": "a.Pooling"}]', '[{"type": "a.Dense", "path": "../x"}]']
)
def test_strange_lists_of_modules(contents: str, tmp_path: Path) -> None:
    config, shapes, _ = recorded("gemma_embedding")
    folder = write_model(tmp_path / "model", config, shapes)
    (folder / "modules.json").write_text(contents)
    with pytest.raises(LoadError, match=r"modules\.json: expected"):
        convert(folder, tmp_path / "out.gguf", "F32")


# --- keys that are left out -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key", "message"),
    [
        ("gemma3n", "num_kv_shared_layers", "num_kv_shared_layers: expected an integer from 0 to 5, got 15"),
        ("granitemoehybrid", "mamba_n_groups",
         r"in_proj\.weight: expected shape \[148, 32\], got \[164, 32\]"),
    ],
)  # fmt: skip
def test_values_of_keys_that_are_left_out(name: str, key: str, message: str, tmp_path: Path) -> None:
    """A missing key has the default of the config class, which does not fit a tiny model."""
    config, shapes, _ = recorded(name)
    text = config.get("text_config", config)
    del text[key]
    with pytest.raises(LoadError, match=message):
        convert(write_model(tmp_path / "model", config, shapes), tmp_path / "out.gguf", "F32")
