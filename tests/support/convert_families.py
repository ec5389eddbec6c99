"""Random Hugging Face weights and configs of the families that are converted, and the reference of each.

The reference gets the source's own values, in GGUF's names, by what is written down here once more: what
the published modelling code does (where norms stand, which get 1 added, what is fused) is not taken from the
library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.apps.convert import convert
from oxillama.gguf.model_file import ModelFile
from oxillama.reference.decoder import ReferenceModel
from tests.support import huggingface as hf
from tests.support.tiny_models import Running
from tests.support.zoo import Model

TOKENS = [3, 77, 200, 5, 5, 301, 0, 42, 17, 260, 9, 31, 8, 120, 121, 122]
D, HEADS, KV, DIM, FF, LAYERS = 32, 4, 2, 8, 40, 4
WIDE = dict.fromkeys(("llama", "qwen3"), 12)
"""Widths of heads that are no share of the hidden state's."""
EXPERTS, WIDTH, SHARED = 6, 24, 20


def reference_model(model: Model, weights: Mapping[str, np.ndarray]) -> ReferenceModel:
    """The reference of a model with other weights than the zoo's."""
    file = model.file_of(weights)
    return ReferenceModel(ModelFile.open(file), kv_type="f32")


@dataclass
class Source:
    """Weights by Hugging Face's names, and what the reference is to have of them."""

    source: dict[str, np.ndarray] = field(default_factory=dict)
    reference: dict[str, np.ndarray] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(11))

    def matrix(self, name: str, target: str, *shape: int, bias: bool = False) -> None:
        values = (self.rng.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)
        self.put(f"{name}.weight", f"{target}.weight", values)
        if bias:
            values = (0.3 * self.rng.standard_normal(shape[0])).astype(np.float32)
            self.put(f"{name}.bias", f"{target}.bias", values)

    def norm(self, name: str, target: str, n: int, plus: float = 0.0, bias: bool = False) -> None:
        values = (1 - plus + 0.3 * self.rng.standard_normal(n)).astype(np.float32)
        self.put(f"{name}.weight", f"{target}.weight", values, plus)
        if bias:
            values = (0.3 * self.rng.standard_normal(n)).astype(np.float32)
            self.put(f"{name}.bias", f"{target}.bias", values)

    def experts(self, name: str, target: str, *shape: int) -> None:
        """The experts as one tensor each; the reference has them stacked."""
        values = (self.rng.standard_normal((EXPERTS, *shape)) * shape[-1] ** -0.5).astype(np.float32)
        self.reference[f"{target}.weight"] = values
        self.source |= {f"{name.format(e)}.weight": part for e, part in enumerate(values)}

    def put(self, name: str, target: str, values: np.ndarray, plus: float = 0.0) -> None:
        self.source[name] = values
        self.reference[target] = values.astype(np.float64) + plus


def weights_of(kind: str, n_layers: int = LAYERS, tied: bool = False) -> Source:
    """A model's, by the model_type of Hugging Face."""
    made = Source()
    plus = 1.0 if kind.startswith("gemma") else 0.0
    layer_norm, dim = kind == "starcoder2", WIDE.get(kind, DIM)
    made.matrix("model.embed_tokens", "token_embd", hf.N_VOCAB, D)
    made.source["model.embed_tokens.weight"] *= np.float32(3)
    made.reference["token_embd.weight"] *= 3
    for i in range(n_layers):
        there, here = f"model.layers.{i}", f"blk.{i}"

        def norm(name: str, target: str, n: int = D) -> None:
            made.norm(f"{there}.{name}", f"{here}.{target}", n, plus, layer_norm)  # noqa: B023

        if kind == "phi3":
            made.matrix(f"{there}.self_attn.qkv_proj", f"{here}.attn_qkv", (HEADS + 2 * KV) * dim, D)
        else:
            biased = kind in ("llama", "qwen2", "qwen2_moe", "starcoder2")
            for part, heads in (("q", HEADS), ("k", KV), ("v", KV)):
                made.matrix(
                    f"{there}.self_attn.{part}_proj", f"{here}.attn_{part}", heads * dim, D, bias=biased
                )
        biased = kind in ("llama", "starcoder2")
        made.matrix(f"{there}.self_attn.o_proj", f"{here}.attn_output", D, HEADS * dim, bias=biased)
        for part, heads in (("q", HEADS), ("k", KV)):
            if kind in ("qwen3", "qwen3_moe", "gemma3_text"):
                norm(f"self_attn.{part}_norm", f"attn_{part}_norm", dim)
            elif kind in ("olmo2", "olmo3", "olmoe"):
                norm(f"self_attn.{part}_norm", f"attn_{part}_norm", heads * dim)
        if kind in ("olmo2", "olmo3"):
            norm("post_attention_layernorm", "post_attention_norm")
            norm("post_feedforward_layernorm", "post_ffw_norm")
        else:
            norm("input_layernorm", "attn_norm")
            after = "post_attention_norm" if kind in ("gemma2", "gemma3_text") else "ffn_norm"
            norm("post_attention_layernorm", after)
            if kind in ("gemma2", "gemma3_text"):
                norm("pre_feedforward_layernorm", "ffn_norm")
                norm("post_feedforward_layernorm", "post_ffw_norm")
        feed(made, kind, there, here)
    made.norm("model.norm", "output_norm", D, plus, layer_norm)
    if not tied:
        made.matrix("lm_head", "output", hf.N_VOCAB, D)
    return made


def feed(made: Source, kind: str, there: str, here: str) -> None:
    """The feed-forward block of a layer."""
    if kind == "mixtral":
        made.matrix(f"{there}.block_sparse_moe.gate", f"{here}.ffn_gate_inp", EXPERTS, D)
        for name, part, shape in (("w1", "gate", (FF, D)), ("w2", "down", (D, FF)), ("w3", "up", (FF, D))):
            made.experts(f"{there}.block_sparse_moe.experts.{{}}.{name}", f"{here}.ffn_{part}_exps", *shape)
    elif kind in ("qwen2_moe", "qwen3_moe", "olmoe"):
        made.matrix(f"{there}.mlp.gate", f"{here}.ffn_gate_inp", EXPERTS, D)
        for part, shape in (("gate", (WIDTH, D)), ("up", (WIDTH, D)), ("down", (D, WIDTH))):
            made.experts(f"{there}.mlp.experts.{{}}.{part}_proj", f"{here}.ffn_{part}_exps", *shape)
        if kind == "qwen2_moe":
            for part, shape in (("gate", (SHARED, D)), ("up", (SHARED, D)), ("down", (D, SHARED))):
                made.matrix(f"{there}.mlp.shared_expert.{part}_proj", f"{here}.ffn_{part}_shexp", *shape)
            made.matrix(f"{there}.mlp.shared_expert_gate", f"{here}.ffn_gate_inp_shexp", 1, D)
            made.reference[f"{here}.ffn_gate_inp_shexp.weight"] = made.reference[
                f"{here}.ffn_gate_inp_shexp.weight"
            ][0]
    elif kind == "phi3":
        made.matrix(f"{there}.mlp.gate_up_proj", f"{here}.ffn_up", 2 * FF, D)
        made.matrix(f"{there}.mlp.down_proj", f"{here}.ffn_down", D, FF)
    elif kind == "starcoder2":
        made.matrix(f"{there}.mlp.c_fc", f"{here}.ffn_up", FF, D, bias=True)
        made.matrix(f"{there}.mlp.c_proj", f"{here}.ffn_down", D, FF, bias=True)
    else:
        for part, shape in (("gate", (FF, D)), ("up", (FF, D)), ("down", (D, FF))):
            made.matrix(f"{there}.mlp.{part}_proj", f"{here}.ffn_{part}", *shape)


NAMES = {
    "llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral", "mixtral": "Mixtral",
    "qwen2_moe": "Qwen2Moe", "qwen3_moe": "Qwen3Moe", "gemma": "Gemma", "gemma2": "Gemma2",
    "gemma3_text": "Gemma3", "phi3": "Phi3", "olmo2": "Olmo2", "olmo3": "Olmo3", "olmoe": "Olmoe",
    "starcoder2": "Starcoder2",
}  # fmt: skip
QWEN_EXPERTS = {"num_experts": EXPERTS, "num_experts_per_tok": 3, "moe_intermediate_size": WIDTH}
GEMMA_TANH = {"hidden_act": None, "hidden_activation": "gelu_pytorch_tanh"}
SPECIFIC: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": WIDE["llama"], "attention_bias": True},
    "qwen3": {"head_dim": WIDE["qwen3"]},
    "mixtral": {"num_local_experts": EXPERTS, "num_experts_per_tok": 3},
    "qwen2_moe": {
        **QWEN_EXPERTS, "shared_expert_intermediate_size": SHARED, "decoder_sparse_step": 1,
        "norm_topk_prob": False, "use_sliding_window": False, "sliding_window": 4, "mlp_only_layers": [],
        "attention_bias": True,  # which the model's code does not read
    },
    "qwen3_moe": {**QWEN_EXPERTS, "norm_topk_prob": True, "attention_bias": False},
    "gemma": {**GEMMA_TANH, "head_dim": DIM},
    "gemma2": {
        **GEMMA_TANH, "head_dim": DIM, "query_pre_attn_scalar": 5, "sliding_window": 6,
        "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {
        **GEMMA_TANH, "head_dim": DIM, "query_pre_attn_scalar": 5, "sliding_window": 6,
        "rope_local_base_freq": 50.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "olmoe": {"num_experts": EXPERTS, "num_experts_per_tok": 3, "intermediate_size": WIDTH},
    "olmo3": {"sliding_window": 6},
    "starcoder2": {
        "hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-3, "use_bias": True, "rms_norm_eps": None,
    },
}  # fmt: skip
TIED = ("gemma", "gemma2", "gemma3_text", "starcoder2")


def config_of(kind: str, **changes: Any) -> dict[str, Any]:
    """As published, for a model of a few numbers."""
    return {
        "architectures": [f"{NAMES[kind]}ForCausalLM"], "model_type": kind, **hf.SIZES,
        "num_hidden_layers": LAYERS, "vocab_size": hf.N_VOCAB, **SPECIFIC.get(kind, {}), **changes,
    }  # fmt: skip


ARCHITECTURES = {  # the reference's; Mixtral, whose halves rotate, is Qwen2 with experts
    "llama": "qwen2", "mistral": "qwen2", "mixtral": "qwen2moe", "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3", "olmo3": "olmo2",
}  # fmt: skip


def reference_of(
    kind: str, made: Source, windows: list[int] | None = None, n_rot: int = 0, **keys: Any
) -> np.ndarray:
    """Logits of TOKENS."""
    dim = WIDE.get(kind, DIM)
    widths = {"expert_ff": FF if kind == "mixtral" else WIDTH, "n_experts": EXPERTS, "n_used": 3}
    keys = {"expert_weights_norm": True, **keys} if kind == "mixtral" else keys
    kinds = {float: "f32", int: "u32", str: "str", bool: "bool", list: "[bool]"}
    model = Model(
        ARCHITECTURES.get(kind, kind),
        n_layers=LAYERS,
        key_dim=dim,
        value_dim=dim,
        n_rot=n_rot or dim,
        keys={key.replace("__", "."): (kinds[type(value)], value) for key, value in keys.items()},
        **widths,
    )
    reference = reference_model(model, made.reference)
    reference.windows = reference.windows if windows is None else windows
    return reference.logits(np.array(TOKENS))


def converted(folder: Path, config: dict[str, Any], made: Source, type: str = "F32", **options: Any) -> bytes:
    source = hf.write_folder(folder / "model", config, made.source, **options)
    convert(source, folder / "out.gguf", type)
    return (folder / "out.gguf").read_bytes()


def check(data: bytes, wanted: np.ndarray, tolerance: float = 3e-4) -> None:
    running = Running(data)
    assert running.weights.unused() == []
    found = running.logits(TOKENS)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() < tolerance * np.abs(wanted).max()


GEMMA2_KEYS: dict[str, Any] = {
    "attention__scale": 5**-0.5, "attention__sliding_window": 6, "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
}  # fmt: skip
GEMMA3_KEYS: dict[str, Any] = {
    "attention__scale": 5**-0.5, "attention__sliding_window": 6, "rope__freq_base_swa": 50.0,
    "rope__scaling__type": "linear", "rope__scaling__factor": 8.0,
}  # fmt: skip
OLMO3_KEYS: dict[str, Any] = {"attention__sliding_window": 6}
KEYS = {"gemma2": GEMMA2_KEYS, "gemma3_text": GEMMA3_KEYS, "olmo3": OLMO3_KEYS}
