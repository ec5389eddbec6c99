"""Writes Hugging Face folders of random weights: config.json, safetensors, tokenizer.json."""

from __future__ import annotations

import json
import zlib
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
    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-3, "rope_theta": 100.0,
    "hidden_act": "silu",
}  # fmt: skip
N_VOCAB = 400
LLAMA: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], **SIZES, "vocab_size": N_VOCAB}
BERT: dict[str, Any] = {
    "architectures": ["BertModel"], "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "layer_norm_eps": 1e-3, "vocab_size": 20,
    "hidden_act": "gelu", "type_vocab_size": 2,
}  # fmt: skip


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


Shapes = Mapping[str, tuple[int, ...]]


def weights_of(shapes: Shapes) -> dict[str, np.ndarray]:
    """Random values that depend on the names: vectors are small; norms, factors and the lengths of rows are
    about 1."""
    found = {}
    for name, shape in shapes.items():
        values = np.asarray(
            np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape), np.float32
        )
        if len(shape) > 1:
            values *= np.float32(shape[-1] ** -0.5)
        else:
            is_factor = ("norm" in name.lower() and name.endswith("weight")) or name.endswith(FACTORS)
            values = np.float32(0.2) * values + np.float32(is_factor)
        found[name] = values
    return found


FACTORS = ("scale", "scalar")


def decoder_weights(config: Mapping[str, Any], *, qkv_biases: bool = False) -> dict[str, np.ndarray]:
    """Weights of a Llama or a Qwen 2."""
    d, n_ff, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    kv, dim = config["num_key_value_heads"], config.get("head_dim", d // heads)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], d)}
    for i in range(config["num_hidden_layers"]):
        block = f"model.layers.{i}"
        attention = {"q": (heads * dim, d), "k": (kv * dim, d), "v": (kv * dim, d), "o": (d, heads * dim)}
        feed = {"gate": (n_ff, d), "up": (n_ff, d), "down": (d, n_ff)}
        shapes |= {f"{block}.self_attn.{x}_proj.weight": shape for x, shape in attention.items()}
        shapes |= {f"{block}.mlp.{name}_proj.weight": shape for name, shape in feed.items()}
        biased = ("qkv" if qkv_biases else "") + ("o" if config.get("attention_bias") else "")
        shapes |= {f"{block}.self_attn.{x}_proj.bias": attention[x][:1] for x in biased}
        shapes |= {f"{block}.{x}_layernorm.weight": (d,) for x in ("input", "post_attention")}
    shapes["model.norm.weight"] = (d,)
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (config["vocab_size"], d)
    return weights_of(shapes)


def bert_weights(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    d, n_ff = config["hidden_size"], config["intermediate_size"]
    rows = {"word": config["vocab_size"], "position": config["max_position_embeddings"], "token_type": 2}
    shapes: dict[str, tuple[int, ...]] = {
        f"embeddings.{name}_embeddings.weight": (n, d) for name, n in rows.items()
    }
    biased: dict[str, tuple[int, ...]] = {"embeddings.LayerNorm": (d,)}
    for i in range(config["num_hidden_layers"]):
        block = f"encoder.layer.{i}"
        biased |= {f"{block}.attention.self.{name}": (d, d) for name in ("query", "key", "value")}
        biased |= {f"{block}.attention.output.dense": (d, d), f"{block}.attention.output.LayerNorm": (d,)}
        biased |= {f"{block}.intermediate.dense": (n_ff, d), f"{block}.output.dense": (d, n_ff)}
        biased[f"{block}.output.LayerNorm"] = (d,)
    for name, shape in biased.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return weights_of(shapes)


def byte_level_tokenizer(words: str | None = LLAMA3_WORDS, *, ignore_merges: bool = True) -> Tokenizer:
    """A tokenizer of all bytes, a few words and control tokens, with a BOS; ``words`` None: GPT-2's cut."""
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
    pairs = ("h e", "t he", "\u2581 the", "\u2581 he", "l l", "he ll", "i n")
    merges = [(a, b) for a, b in map(str.split, pairs)]
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
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox", "##es", "caf", "##e", "##s"),
    *(",", "!", "世"),
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
