"""Writes Hugging Face folders of random weights: config.json, safetensors, tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tests.support.tiny_file import tiny_vocabulary

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-3,
    "rope_theta": 100.0,
    "hidden_act": "silu",
}
N_VOCAB = 400


def safetensors(tensors: Mapping[str, np.ndarray], kind: str = "F32") -> bytes:
    header, parts, at = {}, [], 0
    for name, values in tensors.items():
        stored = kind
        floats = np.ascontiguousarray(values, np.float32)
        if values.dtype == np.uint8:
            stored, data = "U8", values.tobytes()
        elif kind == "BF16":
            data = (floats.view(np.uint32) >> 16).astype("<u2").tobytes()
        else:
            data = floats.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[kind]).tobytes()
        header[name] = {
            "dtype": stored,
            "shape": list(values.shape),
            "data_offsets": [at, at + len(data)],
        }
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def as_stored(values: np.ndarray, kind: str) -> np.ndarray:
    """float32: the values after a round trip through the kind."""
    floats = np.ascontiguousarray(values, np.float32)
    if kind == "BF16":
        return (floats.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return floats.astype(np.float16).astype(np.float32) if kind == "F16" else floats


def decoder_weights(config: Mapping[str, Any], *, qkv_biases: bool, norms: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    d, n_ff, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    kv, dim = config["num_key_value_heads"], config.get("head_dim", d // heads)
    found: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, cols: int, bias: bool = False) -> None:
        found[f"{name}.weight"] = rng.standard_normal((rows, cols)).astype(np.float32) * cols**-0.5
        if bias:
            found[f"{name}.bias"] = rng.standard_normal(rows).astype(np.float32) * np.float32(0.3)

    def norm(name: str, n: int) -> None:
        found[f"{name}.weight"] = (1 + 0.2 * rng.standard_normal(n)).astype(np.float32)

    matrix("model.embed_tokens", config["vocab_size"], d)
    for i in range(config["num_hidden_layers"]):
        block = f"model.layers.{i}"
        norm(f"{block}.input_layernorm", d)
        matrix(f"{block}.self_attn.q_proj", heads * dim, d, qkv_biases)
        matrix(f"{block}.self_attn.k_proj", kv * dim, d, qkv_biases)
        matrix(f"{block}.self_attn.v_proj", kv * dim, d, qkv_biases)
        matrix(f"{block}.self_attn.o_proj", d, heads * dim, bool(config.get("attention_bias")))
        if norms:
            norm(f"{block}.self_attn.q_norm", dim)
            norm(f"{block}.self_attn.k_norm", dim)
        norm(f"{block}.post_attention_layernorm", d)
        matrix(f"{block}.mlp.gate_proj", n_ff, d)
        matrix(f"{block}.mlp.up_proj", n_ff, d)
        matrix(f"{block}.mlp.down_proj", d, n_ff)
    norm("model.norm", d)
    if not config.get("tie_word_embeddings"):
        matrix("lm_head", config["vocab_size"], d)
    return found


def bert_weights(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    d, n_ff = config["hidden_size"], config["intermediate_size"]
    found: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, cols: int, bias: bool = True) -> None:
        found[f"{name}.weight"] = rng.standard_normal((rows, cols)).astype(np.float32) * cols**-0.5
        if bias:
            found[f"{name}.bias"] = rng.standard_normal(rows).astype(np.float32) * np.float32(0.3)

    def norm(name: str) -> None:
        found[f"{name}.weight"] = (1 + 0.2 * rng.standard_normal(d)).astype(np.float32)
        found[f"{name}.bias"] = (0.2 * rng.standard_normal(d)).astype(np.float32)

    matrix("embeddings.word_embeddings", config["vocab_size"], d, False)
    matrix("embeddings.position_embeddings", config["max_position_embeddings"], d, False)
    matrix("embeddings.token_type_embeddings", 2, d, False)
    norm("embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        block = f"encoder.layer.{i}"
        for name in ("query", "key", "value"):
            matrix(f"{block}.attention.self.{name}", d, d)
        matrix(f"{block}.attention.output.dense", d, d)
        norm(f"{block}.attention.output.LayerNorm")
        matrix(f"{block}.intermediate.dense", n_ff, d)
        matrix(f"{block}.output.dense", d, n_ff)
        norm(f"{block}.output.LayerNorm")
    return found


def byte_level_tokenizer(words: str | None = LLAMA3_WORDS, *, ignore_merges: bool = True) -> Tokenizer:
    """Of every byte, a few words and control tokens; a beginning is added. ``words`` None for GPT-2's cut."""
    tokens, _, merges = tiny_vocabulary()
    vocab = {token: id for id, token in enumerate(tokens[:-4])}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer: Any = Tokenizer(models.BPE(vocab, pairs, ignore_merges=ignore_merges))
    tokenizer.add_special_tokens(tokens[-4:])
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words is None)
    steps = [] if words is None else [pre_tokenizers.Split(Regex(words), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, by_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    begin = (tokens[-4], vocab.get(tokens[-4], len(tokens) - 4))
    tokenizer.post_processor = processors.TemplateProcessing(f"{begin[0]} $A", special_tokens=[begin])
    return tokenizer


def sentence_piece_tokenizer() -> Tokenizer:
    """Llama 2's kind: three special tokens, the bytes, letters, and what merges make of them."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["\u2581", *"abcdefghijklmnopqrstuvwxyz"]
    merges = [
        ("h", "e"),
        ("t", "he"),
        ("\u2581", "the"),
        ("\u2581", "he"),
        ("l", "l"),
        ("he", "ll"),
        ("i", "n"),
    ]
    tokens += [a + b for a, b in merges]
    tokenizer: Any = Tokenizer(
        models.BPE(
            {token: id for id, token in enumerate(tokens)},
            merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.add_special_tokens(tokens[:3])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "fox",
    "##es",
    "caf",
    "##e",
    "##s",
    ",",
    "!",
    "世",
]


def write_folder(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    *,
    kind: str = "F32",
    shards: int = 1,
    tokenizer: Tokenizer | str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """``tokenizer`` is an object, or the text of a vocab.txt; None for `byte_level_tokenizer`."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if isinstance(tokenizer, str):
        (folder / "vocab.txt").write_text(tokenizer, encoding="utf-8")
    else:
        made: Any = byte_level_tokenizer() if tokenizer is None else tokenizer
        (folder / "tokenizer.json").write_text(made.to_str(), encoding="utf-8")
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors(tensors, kind))
        return folder
    places = {name: f"model-{i % shards}.safetensors" for i, name in enumerate(tensors)}
    for shard in set(places.values()):
        part = {name: values for name, values in tensors.items() if places[name] == shard}
        (folder / shard).write_bytes(safetensors(part, kind))
    index = json.dumps({"metadata": {}, "weight_map": places})
    (folder / "model.safetensors.index.json").write_text(index)
    return folder
