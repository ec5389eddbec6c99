"""Converted models compute what their Hugging Face weights say, and what is not understood is named."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama.apps.convert import convert
from oxillama.apps.convert.vocabulary import sentence_piece
from oxillama.compat.engine import InferenceEngine
from oxillama.errors import ConfigError, GGUFError, LoadError, ModelFileError, TokenizerError
from oxillama.gguf.model_file import ModelFile
from oxillama.text.chat.bridge import TokenizerBridge
from tests.support import huggingface as hf
from tests.support.command_line import error, output
from tests.support.convert_families import reference_model
from tests.support.tiny_models import Running
from tests.support.zoo import Model

NAMES = {  # of BERT in GGUF, for the reference
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}  # fmt: skip


def llama_config(**changes: Any) -> dict[str, Any]:
    return {**hf.LLAMA, **changes}


def llama_folder(
    folder: Path, config: dict[str, Any] | None = None, tensors: Any = None, **options: Any
) -> Path:
    config = config or llama_config()
    tensors = tensors or hf.decoder_weights(config)
    return hf.write_folder(folder, config, tensors, **options)


def converted(source: Path, kind: str = "F32") -> bytes:
    target = source.parent / "out.gguf"
    convert(source, target, kind)
    return target.read_bytes()


# --- numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_bert(tmp_path: Path, prefix: str) -> None:
    tensors = hf.bert_weights(hf.BERT)
    written = {prefix + name: values for name, values in tensors.items()}
    written["pooler.dense.weight"] = np.zeros((32, 32), np.float32)
    source = hf.write_folder(tmp_path / "model", hf.BERT, written, tokenizer="\n".join(hf.WORDS) + "\n")
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    listed = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in modules]
    (source / "modules.json").write_text(json.dumps(listed))
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    done = convert(source, tmp_path / "out.gguf", "F32")
    assert done.left_out == ("pooler.dense.weight",)
    data = (tmp_path / "out.gguf").read_bytes()
    ids = [2, 5, 6, 7, 8, 9, 3]
    weights = {}
    for name, values in tensors.items():
        found = re.fullmatch(r"(?:encoder\.layer\.(\d)\.)?(.+)\.(weight|bias)", name)
        assert found is not None
        start = f"blk.{found[1]}." if found[1] else ""
        weights[f"{start}{NAMES[found[2]]}.{found[3]}"] = values.astype(np.float64)
    wanted = reference_model(Model("bert", n_kv_heads=4, n_ff=48), weights).hidden_states(np.array(ids))
    states = Running(data).hidden_states([ids], 512)[0]
    assert np.abs(states - wanted).max() < 2e-4 * np.abs(wanted).max()
    engine = InferenceEngine()
    engine.load_model_from_bytes(data)
    embedding = engine.embed("The FOXES cafés")  # pooled by its first token
    assert np.array_equal(embedding, engine.hidden_states([2, 5, 6, 7, 8, 7, 3])[0])


# --- vocabularies -----------------------------------------------------------------------------------


def test_of_several_merges_that_make_a_token_the_first_gives_its_score() -> None:
    tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), *"abc", "ab", "bc", "abc"]
    document = {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "model": {"merges": ["a b", "ab c", "b c", "a bc"]},
    }
    found = sentence_piece(document, tokens, [1] * len(tokens))
    assert found["scores"][-3:] == [0, -2, -1]
    assert found["add_space_prefix"] is False


@pytest.mark.parametrize(
    "words, ignore_merges, pre",
    [
        (hf.LLAMA3_WORDS, True, "llama-bpe"),
        (hf.LLAMA3_WORDS, False, "smaug-bpe"),
        (hf.LLAMA3_WORDS.replace("{1,3}", ""), False, "qwen2"),
        (None, False, "gpt-2"),
    ],
)
def test_byte_level(tmp_path: Path, words: str | None, ignore_merges: bool, pre: str) -> None:
    tokenizer = hf.byte_level_tokenizer(words, ignore_merges=ignore_merges)
    data = converted(llama_folder(tmp_path / "model", tokenizer=tokenizer))
    with ModelFile.open(data) as file:
        assert file.get("tokenizer.ggml.pre", str) == pre
        bridge = TokenizerBridge.from_metadata(file.metadata)
    text = "once upon  a time\n\n12345 <|end|> wörld's 你好"
    assert bridge.encode(text, parse_special=True) == tokenizer.encode(text).ids
    assert bridge.n_vocab == hf.N_VOCAB


def test_sentence_piece(tmp_path: Path) -> None:
    tokenizer = hf.sentence_piece_tokenizer()
    data = converted(llama_folder(tmp_path / "model", tokenizer=tokenizer))
    with ModelFile.open(data) as file:
        bridge = TokenizerBridge.from_metadata(file.metadata)
    for text in ("the hell in  there", "thé 你 \n"):
        assert bridge.encode(text) == tokenizer.encode(text).ids
        assert bridge.decode(bridge.encode(text)) == text


def test_word_piece(tmp_path: Path) -> None:
    """A Hangul syllable falls into all its letters; a vowel sign that takes room stays."""
    words = [*hf.WORDS, "\u1112", "##\u1161", "##\u11ab", "\u0939", "##\u093f"]
    config = {**hf.BERT, "vocab_size": len(words) + 1}
    source = hf.write_folder(tmp_path / "model", config, hf.bert_weights(config), tokenizer="\n".join(words))
    with ModelFile.open(converted(source)) as file:
        bridge = TokenizerBridge.from_metadata(file.metadata)
    assert bridge.encode("한 हि CAFÉ,世 zz") == [2, 14, 15, 16, 17, 18, 8, 9, 11, 13, 1, 3]


def test_special_tokens_and_template(tmp_path: Path) -> None:
    settings = {
        "eos_token": {"content": "<|im_end|>"},
        "chat_template": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}],
    }
    data = converted(llama_folder(tmp_path / "model", settings=settings))
    with ModelFile.open(data) as file:
        bridge = TokenizerBridge.from_metadata(file.metadata)
        tokens = list(file.metadata["tokenizer.ggml.tokens"])
    assert bridge.vocab.special["eos"] == tokens.index("<|im_end|>")
    assert bridge.encode("a")[0] == tokens.index("<|begin|>")
    assert bridge.apply_chat_template([{"role": "user", "content": "x"}]) == "A"
    assert set(bridge.templates) == {"default", "tool_use"}


def test_a_template_of_its_own_file(tmp_path: Path) -> None:
    source = llama_folder(tmp_path / "model", settings={"chat_template": "A"})
    (source / "chat_template.jinja").write_text("C")
    with ModelFile.open(converted(source)) as file:
        assert file.get("tokenizer.chat_template", str) == "C"


def test_another_cut_is_an_error(tmp_path: Path) -> None:
    tokenizer: Any = hf.byte_level_tokenizer(r"\p{L}+|[^\p{L}]")
    with pytest.raises(TokenizerError, match=r"pre_tokenizer: expected one of"):
        converted(llama_folder(tmp_path / "model", tokenizer=tokenizer))


def test_a_vocabulary_that_encodes_otherwise_is_an_error(tmp_path: Path) -> None:
    """A token that is found only where it stands alone: GGUF has no word for that."""
    source = llama_folder(tmp_path / "model")
    document = json.loads((source / "tokenizer.json").read_text())
    added = {**document["added_tokens"][0], "id": 390, "content": "es", "special": False, "single_word": True}
    document["added_tokens"].append(added)
    (source / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: expected .* for .*, got"):
        converted(source)


# --- what is not understood -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, finding",
    [
        ({"architectures": ["FooForCausalLM"]}, "architectures: expected one of .*FooForCausalLM"),
        ({"architectures": None}, "architectures: expected one of"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "rope_scaling: 'spiral' is not supported"),
        ({"rope_scaling": {"rope_type": ["linear"]}}, "rope_scaling: .* is not supported"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0, "alpha": 8.0}}, "alpha of dynamic"),
        ({"rope_scaling": "linear"}, "rope_scaling: expected an object"),
        ({"model_type": "quantum"}, "model_type: 'quantum' is not supported"),
        ({"residual_multiplier": 0.22}, "residual_multiplier: 0.22 is not supported"),
        ({"num_experts": 8}, "num_experts: 8 is not supported"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "odd": 1}}, "odd of linear"),
        ({"rope_scaling": {"type": "linear"}}, "factor: expected a number"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers: 2147483647 are more than the 21 tensors"),
        ({"architectures": [["LlamaForCausalLM"]]}, "architectures: expected one of"),
        ({"num_attention_heads": 0}, "num_attention_heads: expected an integer from 1"),
        ({"hidden_size": 33}, "33 is not a multiple of 4 heads"),
        ({"intermediate_size": 41}, r"mlp.gate_proj.weight: expected shape \[41, 32\], got \[40, 32\]"),
        ({"num_hidden_layers": 3}, "model.layers.2.self_attn.q_proj.weight: expected a tensor that"),
        ({"num_hidden_layers": 1}, "tensors: expected those of llama only, got model.layers.1"),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, changes: dict[str, Any], finding: str) -> None:
    tensors = hf.decoder_weights(llama_config())
    source = llama_folder(tmp_path / "model", llama_config(**changes), tensors)
    with pytest.raises(LoadError, match=finding):
        convert(source, tmp_path / "out.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_sliding_windows(tmp_path: Path) -> None:
    data = converted(llama_folder(tmp_path / "model", llama_config(sliding_window=4)))
    with ModelFile.open(data) as file:
        assert file.get("llama.attention.sliding_window", int) == 4
    config = llama_config(architectures=["Qwen2ForCausalLM"], use_sliding_window=True)
    with pytest.raises(LoadError, match="use_sliding_window: True is not supported"):
        converted(llama_folder(tmp_path / "other", config))


def test_unknown_keys_are_told(tmp_path: Path) -> None:
    source = llama_folder(tmp_path / "model", llama_config(novel_option=3))
    with pytest.warns(UserWarning, match="novel_option"):
        converted(source)


def test_ordinary_keys_are_not(tmp_path: Path) -> None:
    config = llama_config(torch_dtype="bfloat16", use_cache=True, model_type="llama", pretraining_tp=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        converted(llama_folder(tmp_path / "model", config))


def test_weights_that_are_refused(tmp_path: Path) -> None:
    config = llama_config()
    tensors = hf.decoder_weights(config)
    tensors["model.norm.weight"][3] = np.inf
    with pytest.raises(LoadError, match=r"model.norm.weight: expected finite weights, got inf"):
        converted(llama_folder(tmp_path / "model", config, tensors))
    tensors["model.norm.weight"][3] = 1
    tensors["lm_head.weight"][0, 0] = 1e5
    with pytest.raises(GGUFError, match=r"output.weight: expected values .* for F16, got 100000"):
        converted(llama_folder(tmp_path / "model", config, tensors), "F16")


def test_broken_safetensors(tmp_path: Path) -> None:
    source = llama_folder(tmp_path / "model")
    path = source / "model.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    for data, finding in (
        (b"", "expected a header"),
        (whole[:20], "expected a header inside 20 bytes"),
        ((1 << 60).to_bytes(8, "little") + whole[8:], "expected a header inside"),
        (whole[:8] + b"x" * length + whole[8 + length :], "expected a JSON header"),
        (whole[:-1], "expected data inside the file"),
        ((2).to_bytes(8, "little") + b"[]", "expected a JSON header of an object"),
        ((9).to_bytes(8, "little") + b'{"a": {}}', "a: expected a dtype"),
    ):
        path.write_bytes(data)
        with pytest.raises(LoadError, match=finding):
            converted(source)
    path.unlink()
    with pytest.raises(ModelFileError, match=r"model\.safetensors: cannot be opened: No such file"):
        converted(source)


def test_broken_indices(tmp_path: Path) -> None:
    source = llama_folder(tmp_path / "model", shards=2)
    index = source / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    for changed, finding in (
        ({**places, "more": "model-0.safetensors"}, "model-0.safetensors: expected the tensor more"),
        (dict.fromkeys(places, "../model-0.safetensors"), "names of files beside it"),
        ({k: v for k, v in places.items() if k != "model.norm.weight"}, "got model.norm.weight"),
        ({**places, "more": 3}, "expected a weight_map"),
    ):
        index.write_text(json.dumps({"weight_map": changed}))
        with pytest.raises(LoadError, match=finding):
            converted(source)


def test_arguments(tmp_path: Path) -> None:
    source = llama_folder(tmp_path / "model")
    with pytest.raises(ConfigError, match="type: expected one of F32, F16, BF16, Q8_0"):
        convert(source, tmp_path / "out.gguf", "Q4_K_M")
    with pytest.raises(ModelFileError, match="expected a folder"):
        convert(tmp_path / "none", tmp_path / "out.gguf")
    with pytest.raises(ModelFileError, match="cannot be written"):
        convert(source, tmp_path / "none" / "out.gguf")


def test_command(tmp_path: Path) -> None:
    source, target = llama_folder(tmp_path / "model"), tmp_path / "out.gguf"
    told = output("convert", source, target, "--type", "bf16")
    assert told.startswith(f"wrote {target}: llama, ")
    assert "16 BF16" in told
    assert "supported" in output("info", target)
    assert "expected a folder" in error("convert", tmp_path / "none", target)
