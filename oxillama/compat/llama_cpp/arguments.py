"""Arguments of `Llama` that do not reach the engine: ignored ones, and refused ones."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from oxillama.base.config import checks
from oxillama.errors import ConfigError

HARMLESS: dict[str, str] = {
    "n_gpu_layers": "the model runs on the CPU",
    "split_mode": "there is no GPU to split over",
    "main_gpu": "there is no GPU",
    "tensor_split": "there is no GPU to split over",
    "use_mmap": "weights are in memory, or in a shared packed file",
    "use_mlock": "weights are in memory",
    "n_ubatch": "`n_batch` alone sets the chunks of a prompt; the bits are the same for all",
    "n_threads_batch": "`n_threads` sets the threads of prompts, too; the bits are the same for all",
    "offload_kqv": "there is no GPU",
    "flash_attn": "there is one attention kernel, which is of that kind",
    "op_offload": "there is no GPU",
    "swa_full": "pages behind a window are freed; the bits are the same",
    "no_perf": "nothing is measured for it",
    "numa": "threads stay where the system puts them",
    "verbose": "nothing is printed",
    "logits_all": "log-probabilities need it no more; `scores` then has the logits of all tokens",
}
"""Arguments that are accepted with any value and ignored, and why they do not change the text."""

REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "kv_overrides": ((None,), "the metadata of the file decides"),
    "rope_scaling_type": ((-1, None), "the metadata of the file decides"),
    "attention_type": ((-1,), "the metadata of the file decides"),
    "yarn_ext_factor": ((-1.0,), "the metadata of the file decides"),
    "yarn_attn_factor": ((1.0,), "the metadata of the file decides"),
    "yarn_beta_fast": ((32.0,), "the metadata of the file decides"),
    "yarn_beta_slow": ((1.0,), "the metadata of the file decides"),
    "yarn_orig_ctx": ((0,), "the metadata of the file decides"),
    "lora_base": ((None, ""), "an adapter applies to the model as it is"),
}
"""Arguments that must keep one of these neutral values, and why."""

LEGACY = frozenset({"n_parts", "f16_kv", "low_vram", "mul_mat_q", "n_gqa", "rms_norm_eps"})
"""Arguments of former versions that some packages still pass."""


def refuse_changed(given: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first of `REFUSED` that does not have a neutral value."""
    for name, (accepted, why) in REFUSED.items():
        if given[name] not in accepted:
            raise ConfigError(
                f"{name}: expected {checks.shown(accepted[0])}, for {why}, got {checks.shown(given[name])}"
            )


def warn_of_others(others: Mapping[str, Any]) -> None:
    """Warn of unknown arguments, which `Llama` accepts and ignores.

    No warning for `LEGACY` arguments, nor for the value None.
    """
    for name, value in others.items():
        if name not in LEGACY and value is not None:
            warnings.warn(f"Llama: {name} is no argument, it has no effect", UserWarning, stacklevel=3)


def check_rope(metadata: Mapping[str, str], base: float, scale: float) -> None:
    """Raise ConfigError for RoPE parameters that differ from the file's; 0 means the file's.

    Args:
        metadata: the model's metadata as text.
        base, scale: ``rope_freq_base`` and ``rope_freq_scale``.
    """
    kind = metadata.get("general.architecture", "")
    own = float(metadata.get(f"{kind}.rope.freq_base", 10000.0))
    scaled = metadata.get(f"{kind}.rope.scaling.type", "linear") == "linear"
    factor = float(metadata.get(f"{kind}.rope.scaling.factor", 0) or 0) if scaled else 0.0
    for name, wanted, found in (("base", base, own), ("scale", scale, 1 / factor if factor else 1.0)):
        if wanted not in (0, found):
            raise ConfigError(f"rope_freq_{name}: expected 0 or {found:g}, the file's, got {wanted:g}")
