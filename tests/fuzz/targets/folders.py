"""Hugging Face folders: config.json, weights and their index, the tokenizer; converted, then loaded.

And folders of LoRA adapters, converted with the config of a base.
"""

from __future__ import annotations

import copy
import functools
import json
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from oxillama import InferenceEngine
from oxillama.apps.convert import convert
from oxillama.base.config import EngineConfig
from oxillama.errors import PromptError
from oxillama.gguf.model_file import ModelFile
from tests.fuzz.harness import Target
from tests.fuzz.mutate import (
    INTEGERS,
    built,
    edited,
    edits,
    hostile,
    mutated,
    paths,
    replaced,
    skipping,
    words,
)
from tests.support import huggingface as hf
from tests.support.convert_families import NAMES, TIED, config_of, weights_of
from tests.support.peft import CONFIG, adapter_of, matrices_of

SETTINGS = {
    "bos_token": "<|begin|>",
    "eos_token": {"content": "<|end|>"},
    "add_bos_token": True,
    "chat_template": "{{ messages }}",
}
CONFIG_KEYS = words(
    "architectures model_type hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim max_position_embeddings rms_norm_eps rope_theta rope_scaling hidden_act "
    "vocab_size tie_word_embeddings attention_bias mlp_bias sliding_window layer_types num_experts "
    "num_local_experts num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size "
    "norm_topk_prob decoder_sparse_step mlp_only_layers partial_rotary_factor use_sliding_window "
    "max_window_layers attn_logit_softcapping final_logit_softcapping query_pre_attn_scalar rope_parameters "
    "original_max_position_embeddings torch_dtype quantization_config eos_token_id position_embedding_type "
    "type_vocab_size clip_qkv logits_scaling residual_multiplier"
)
CONFIG_VALUES: list[Any] = [
    0, 1, 2, 3, 4, 5, 8, 16, 31, 32, 64, 400, 401, -1, 2**31, 10**12, 0.5, 1e-5, "gelu", "silu", "linear",
    "llama3", "yarn",
    "longrope", "dynamic", {"type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0},
    ["full_attention"],
    {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
    "original_max_position_embeddings": 64},
    {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}, ["sliding_attention",
    "full_attention"] * 2,
]  # fmt: skip


@functools.cache
def base_of(name: str) -> tuple[dict[str, Any], dict[str, Any], bytes, Any]:
    """config.json, the header of the weights, their bytes, tokenizer.json (or vocab.txt)."""
    tokenizer: Any = json.loads(hf.byte_level_tokenizer().to_str())
    if name == "llama":
        config, tensors = hf.LLAMA, hf.decoder_weights(hf.LLAMA)
    elif name == "bert":
        config, tensors, tokenizer = hf.BERT, hf.bert_weights(hf.BERT), "\n".join(hf.WORDS)
    else:
        config, tensors = config_of(name), weights_of(name, tied=name in TIED).source
    return config, *apart(tensors), tokenizer


def apart(tensors: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file of F16, and its bytes."""
    data = hf.safetensors(tensors, "F16")
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header: dict[str, Any], data: bytes, value: Any) -> bytes:
    """The file after the changes of an input to its header, the header's length and its end."""
    header = dict(header)
    for name, entry in value.get("header", []):
        header[name] = built(entry)
        if entry is None:
            del header[name]
    text = json.dumps(header).encode()
    length = int(value.get("length", len(text))) % 2**64
    raw = length.to_bytes(8, "little") + text + data
    return raw[: int(value["cut"])] if "cut" in value else raw


FILES = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")


class FolderTarget(Target):
    name = "safetensors"
    per_run = 60

    def seeds(self) -> list[Any]:
        return [
            {"base": name, "config": base_of(name)[0], "settings": SETTINGS}
            for name in dict.fromkeys(("llama", "bert", *NAMES))
        ]

    def mutate(self, value: Any, rng: Random) -> Any:
        new = copy.deepcopy(value)
        _, header, _, tokenizer = base_of(value["base"])
        for _ in range(rng.choice([1, 1, 2, 3])):
            what = rng.random()
            if rng.random() < 0.2:
                new.setdefault("edits", {})[rng.choice(FILES)] = edits(rng)
            elif what < 0.5:
                config = mutated(new["config"], rng, keys=CONFIG_KEYS, values=CONFIG_VALUES, times=2)
                new["config"] = config
            elif what < 0.6:
                new["settings"] = mutated(new.get("settings") or SETTINGS, rng, keys=list(SETTINGS), times=2)
            elif what < 0.85:
                name = rng.choice(list(header))
                entry = rng.choice(
                    [None, mutated(header[name], rng, values=["F32", "BF16", "I8", "F8_E4M3", *INTEGERS])]
                )
                new.setdefault("header", []).append([name if rng.random() < 0.9 else "x", entry])
            elif what < 0.9:
                new[rng.choice(["length", "cut"])] = rng.choice([0, 1, 7, 8, 9, 100, 2**63, -1, *INTEGERS])
            elif what < 0.94:
                new["index"] = rng.choice([{}, {"weight_map": {}}, {"weight_map": {"x": "../y"}},
                {"weight_map": []}, 3,
                    {"weight_map": dict.fromkeys(header, "model.safetensors")},
                    {"weight_map": {"x": "model.safetensors"}}])  # fmt: skip
            elif isinstance(tokenizer, dict):
                path = rng.choice([p for p in paths(tokenizer) if p and (len(p) <= 2 or rng.random() < 0.05)])
                new.setdefault("tokenizer", []).append([list(path), hostile(rng)])
            else:
                new["vocab"] = rng.choice(["", "\n", "a\na\n", tokenizer + "\n\n", tokenizer + "\nx", "\x80"])
        return new

    def run(self, value: Any) -> None:
        folder = Path("model")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with skipping():
            self._write(folder, value)
            for name, changes in value.get("edits", {}).items():
                if name in FILES and (folder / name).exists():
                    (folder / name).write_bytes(edited((folder / name).read_bytes(), changes))
        convert(folder, "out.gguf", ("F32", "F16", "Q8_0", "BF16")[len(repr(value)) % 4])
        config = EngineConfig(model_path="out.gguf", num_threads=1)
        with InferenceEngine(config) as engine, suppress(PromptError):
            engine.generate([1, 2, 3], max_tokens=1) if engine.model.spec.causal else engine.embed([1, 2, 3])

    def _write(self, folder: Path, value: Any) -> None:
        _, header, data, tokenizer = base_of(value["base"])
        (folder / "model.safetensors").write_bytes(joined(header, data, value))
        (folder / "config.json").write_text(json.dumps(built(value["config"])))
        if value.get("settings") is not None:
            (folder / "tokenizer_config.json").write_text(json.dumps(built(value["settings"])))
        if "index" in value:
            (folder / "model.safetensors.index.json").write_text(json.dumps(value["index"]))
        if isinstance(tokenizer, str):
            (folder / "vocab.txt").write_text(value.get("vocab", tokenizer), encoding="utf-8")
            return
        changes = value.get("tokenizer", [])
        tokenizer = copy.deepcopy(tokenizer) if changes else tokenizer
        for path, new in changes:
            tokenizer = replaced(tokenizer, tuple(path), built(new))
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


PATTERNS: list[Any] = [
    {}, {"q_proj": 2}, {"q_proj": 4}, {".*": 4}, {r"layers\.[0-9]+\..*": 4}, {"(a+)+$": 3}, {"(": 1}, {"": 4},
    {"(?=x)": 2}, {"(.*)*(.*)*": 4}, {"\ud800": 1}, {"x{99999}": 3}, {"(((((x|y){99}){99}){99}){99}){99}": 3},
]  # fmt: skip
ADAPTER_VALUES: list[Any] = [
    0, 1, 2, 3, 4, 8, -1, 2**31, 0.5, 1e300, True, False, None, "none", "all", "pissa", "LORA", "eva", [],
    [1, 2, 3], ["lm_head"], *PATTERNS, "/dev/zero", "\0", "base",
]  # fmt: skip


@functools.cache
def adapter_tensors(name: str) -> tuple[dict[str, Any], bytes]:
    """The header of an adapter of all matrices, and its bytes."""
    weights = hf.decoder_weights(hf.LLAMA) if name == "llama" else None
    weights = weights or weights_of(name, tied=name in TIED).source
    return apart(adapter_of(weights, matrices_of(weights)))


class PeftTarget(Target):
    name = "peft"
    per_run = 100

    def seeds(self) -> list[Any]:
        bases = ("llama", "qwen3_moe", "phi3", "gemma", "mixtral")
        return [{"base": name, "config": base_of(name)[0], "adapter": CONFIG} for name in bases]

    def mutate(self, value: Any, rng: Random) -> Any:
        new = copy.deepcopy(value)
        header, _ = adapter_tensors(value["base"])
        for _ in range(rng.choice([1, 1, 2, 3])):
            what = rng.random()
            if what < 0.5:
                keys = [*CONFIG, "alora_invocation_tokens", "init_lora_weights", "use_bdlora", "novel"]
                new["adapter"] = mutated(new["adapter"], rng, keys=keys, values=ADAPTER_VALUES, times=2)
            elif what < 0.7:
                new["config"] = mutated(new["config"], rng, keys=CONFIG_KEYS, values=CONFIG_VALUES, times=2)
            elif what < 0.95:
                name = rng.choice(list(header))
                entry = rng.choice([None, mutated(header[name], rng, values=["F32", "I8", *INTEGERS])])
                other = name.replace(rng.choice(["lora_A", "base_model.model.", "0", ".weight"]), "")
                new.setdefault("header", []).append([rng.choice([name, name, other, "x"]), entry])
            else:
                new["cut"] = rng.choice([0, 7, 8, 9, 100, *INTEGERS])
        return new

    def run(self, value: Any) -> None:
        base, adapter = Path("base"), Path("lora")
        for folder in (base, adapter):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        with skipping():
            tensors = joined(*adapter_tensors(value["base"]), value)
            (adapter / "adapter_model.safetensors").write_bytes(tensors)
            (adapter / "adapter_config.json").write_text(json.dumps(built(value["adapter"])))
            (base / "config.json").write_text(json.dumps(built(value["config"])))
        convert(adapter, "out.gguf", ("F32", "F16", "BF16")[len(repr(value)) % 3], base)
        with ModelFile.open("out.gguf") as file:
            for name in file.tensors:
                file.data(name)
