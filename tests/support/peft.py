"""Random LoRA adapters in folders as PEFT writes them, and base weights with them merged in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import huggingface as hf

CONFIG: dict[str, Any] = {  # as PEFT writes one, but for the base's name
    "alpha_pattern": {}, "auto_mapping": None, "base_model_name_or_path": "org/tiny-model", "bias": "none",
    "corda_config": None, "eva_config": None, "exclude_modules": None, "fan_in_fan_out": False,
    "inference_mode": True, "init_lora_weights": True, "layer_replication": None, "layers_pattern": None,
    "layers_to_transform": None, "loftq_config": {}, "lora_alpha": 6, "lora_bias": False, "lora_dropout": 0.1,
    "megatron_config": None, "megatron_core": "megatron.core", "modules_to_save": None, "peft_type": "LORA",
    "qalora_group_size": 16, "r": 4, "rank_pattern": {}, "revision": None, "target_modules": ["q_proj"],
    "target_parameters": None, "task_type": "CAUSAL_LM", "trainable_token_indices": None, "use_dora": False,
    "use_qalora": False, "use_rslora": False,
}  # fmt: skip


def adapter_config(**changes: Any) -> dict[str, Any]:
    return {**CONFIG, **changes}


def matrices_of(weights: Mapping[str, np.ndarray]) -> list[str]:
    """Modules that LoRA can adapt."""
    return [name.removesuffix(".weight") for name, values in weights.items() if values.ndim == 2]


def is_table(module: str) -> bool:
    return "embed" in module.rpartition(".")[2]


def adapter_of(
    weights: Mapping[str, np.ndarray],
    modules: Iterable[str],
    rank_of: Callable[[str], int] = lambda module: 4,
    prefix: str = "base_model.model.",
) -> dict[str, np.ndarray]:
    """Both matrices of each module, by PEFT's names; ``rank_of`` takes the module's name."""
    rng, found = np.random.default_rng(5), {}
    for module in modules:
        rows, cols = weights[f"{module}.weight"].shape
        rows, cols = (cols, rows) if is_table(module) else (rows, cols)
        names = ("lora_embedding_A", "lora_embedding_B") if is_table(module) else ("lora_A", "lora_B")
        end = "" if is_table(module) else ".weight"
        rank = rank_of(module)
        found[f"{prefix}{module}.{names[0]}{end}"] = rng.standard_normal((rank, cols)).astype(np.float32)
        found[f"{prefix}{module}.{names[1]}{end}"] = rng.standard_normal((rows, rank)).astype(np.float32)
    return found


def merged(
    weights: Mapping[str, np.ndarray],
    adapter: Mapping[str, np.ndarray],
    scale_of: Callable[[str, int], float],
    prefix: str = "base_model.model.",
) -> dict[str, np.ndarray]:
    """float32 weights with the adapter in them; ``scale_of`` takes a module and its rank."""
    found = dict(weights)
    for module in matrices_of(weights):
        if is_table(module):
            a = adapter.get(f"{prefix}{module}.lora_embedding_A")
            b = adapter.get(f"{prefix}{module}.lora_embedding_B")
        else:
            a = adapter.get(f"{prefix}{module}.lora_A.weight")
            b = adapter.get(f"{prefix}{module}.lora_B.weight")
        if a is None or b is None:
            continue
        delta = b.astype(np.float64) @ a.astype(np.float64) * scale_of(module, len(a))
        delta = delta.T if is_table(module) else delta
        found[f"{module}.weight"] = (weights[f"{module}.weight"] + delta).astype(np.float32)
    return found


def write_adapter(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], kind: str = "F32"
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(hf.safetensors(tensors, kind))
    return folder
