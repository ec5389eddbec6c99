"""Typed, checked reading of one architecture's metadata."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from oxillama.errors import GGUFError, LoadError
from oxillama.gguf.model_file import ModelFile

# Keys of features that are not implemented, with the values that leave the feature off.
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "activation_sparsity_scale": (),
    "altup.num_inputs": (0, 1),
    "attention.head_count_kv_swa": (),
    "attention.indexer.head_count": (0,),
    "attention.output_gate": (False,),
    "attention.relative_buckets_count": (0,),
    "attention.shared_kv_layers": (0,),
    "attention.value_scale": (0.0, 1.0),
    "deepstack_mapping": (),
    "expert_group_scale": (0.0, 1.0),
    "expert_latent_length": (0,),
    "swiglu_clamp_exp": (),
    "swiglu_clamp_shexp": (),
}


# Keys that are read for the families that name them in `options`, and ignored for others, because
# some converters write them for every model.
OPTIONS = frozenset(
    {
        "activation_sparsity_scale", "altup.active_idx", "altup.num_inputs", "attention.clamp_kqv",
        "attention.indexer.head_count", "attention.indexer.key_length", "attention.indexer.top_k",
        "attention.indexer.types", "attention.key_length_swa", "attention.max_alibi_bias",
        "attention.output_scale", "attention.relative_buckets_count", "attention.rope_pattern",
        "attention.scale", "attention.shared_kv_layers", "attention.sliding_window",
        "attention.sliding_window_pattern", "attention.temperature_length", "attention.temperature_scale",
        "attention.value_length_swa", "attention.value_scale", "attn_logit_softcapping",
        "embedding_length_per_layer_input", "embedding_scale", "expert_feed_forward_length",
        "expert_gating_func", "expert_group_scale", "expert_latent_length", "expert_shared_count",
        "expert_shared_feed_forward_length", "expert_weights_norm", "expert_weights_scale",
        "final_logit_softcapping", "interleave_moe_layer_step", "leading_dense_block_count", "logit_scale",
        "moe_every_n_layers", "rescale_every_n_layers", "residual_scale", "rope.dimension_count_swa",
        "rope.dimension_sections", "rope.freq_base_swa", "rope.scaling.finetuned",
        "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_log_multiplier",
        "router_logit_softcapping", "ssm.dt_b_c_rms", "swiglu_clamp_exp", "swiglu_clamp_shexp",
        "use_parallel_residual",
    },
)  # fmt: skip


EXPERT_OPTIONS = frozenset(
    key for key in OPTIONS if key.startswith("expert_") or "moe_" in key or key.startswith("leading_dense_")
)
"""The keys that only concern the choice and the inputs of experts."""


# The least and the largest value of each number that is no size. Files in use are far inside; values outside
# them come from damaged files and would overflow somewhere, or turn everything into zeros.
USUAL_RANGE = 1e-6, 1e6
RANGES: dict[str, tuple[float, float]] = {
    "attention.layer_norm_epsilon": (1e-30, 1.0),
    "attention.layer_norm_rms_epsilon": (1e-30, 1.0),
    "attention.max_alibi_bias": (1e-6, 1e3),
    "hyper_connection.epsilon": (1e-30, 1.0),
    "rope.freq_base": (1.0, 1e12),
    "rope.freq_base_swa": (1.0, 1e12),
    "rope.scaling.yarn_ext_factor": (1e-6, 1.0),
    "rope.scaling.yarn_log_multiplier": (1e-6, 1e2),
}

MAX_HEAD_DIM = 1 << 16
SIZES = dict.fromkeys(
    (
        "attention.indexer.key_length",
        "attention.key_length",
        "attention.key_length_swa",
        "attention.value_length",
        "attention.value_length_swa",
        "rope.dimension_count",
        "rope.dimension_count_swa",
    ),
    MAX_HEAD_DIM,
)
"""The largest value of each size that has another one than 2^31 - 1."""


class Reader:
    """Metadata under the prefix of an architecture, without those `OPTIONS` that are not in ``options``.

    ``known`` are keys that its files have without a meaning.

    All methods raise LoadError or GGUFError naming the full key where a value is of another kind, out of
    bounds, or missing without a default.
    """

    def __init__(
        self, file: ModelFile, prefix: str, options: Iterable[str] = (), known: Iterable[str] = ()
    ) -> None:
        self.file = file
        self.prefix = prefix
        self.ignored: frozenset[str] = OPTIONS.difference(options)
        self.untold: frozenset[str] = frozenset(known)

    def unread(self) -> tuple[str, ...]:
        """Full keys of the file that are ignored for its architecture, without those ``known`` to be."""
        return tuple(
            full
            for key in sorted(self.ignored - self.untold)
            if (full := f"{self.prefix}.{key}") in self.file.metadata
        )

    def has(self, key: str) -> bool:
        return key not in self.ignored and f"{self.prefix}.{key}" in self.file.metadata

    def get(self, key: str, kind: Any, default: Any) -> Any:
        """As `ModelFile.get`; an ignored key is absent. Without a default the key is required."""
        full = f"{self.prefix}.{key}"
        if key in self.ignored and default is not None:
            return default
        return self.file.get(full, kind) if default is None else self.file.get(full, kind, default)

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """An integer from ``least`` to 2^31 - 1, or to the limit in `SIZES`."""
        value: int = self.get(key, int, default)
        most = SIZES.get(key, 2**31 - 1)
        words = "2^31 - 1" if most == 2**31 - 1 else str(most)
        self.expect(least <= value <= most, key, f"an integer from {least} to {words}", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number in the range that `RANGES` has for the key."""
        value: float = self.get(key, float, default)
        least, most = RANGES.get(key, USUAL_RANGE)
        self.expect(least <= value <= most, key, f"a number from {least:g} to {most:g}", value)
        return value

    def amount(self, key: str, default: float = 0.0) -> float:
        """0, or a number in the range that `RANGES` has for the key."""
        value: float = self.get(key, float, default)
        least, most = RANGES.get(key, USUAL_RANGE)
        is_good = value == 0 or least <= value <= most
        self.expect(is_good, key, f"0 or a number from {least:g} to {most:g}", value)
        return value

    def factor(self, key: str, default: float = 1.0) -> float:
        """As `amount`, with ``default`` in place of 0."""
        return self.amount(key, default) or default

    def flag(self, key: str, default: bool = False) -> bool:
        value: bool = self.get(key, bool, default)
        return value

    def text(self, key: str, default: str = "") -> str:
        value: str = self.get(key, str, default)
        return value

    def per_layer(self, key: str, n_layers: int, default: int | None = None, least: int = 1) -> list[int]:
        """An integer for each layer, from an array or one integer for all layers."""
        if not self.is_array(key):
            return [self.size(key, default, least)] * n_layers
        are_flags = self.file.metadata[f"{self.prefix}.{key}"].dtype.kind == "b"
        values = [int(v) for v in self.get(key, list[bool] if are_flags else list[int], None)]
        are_enough = len(values) >= n_layers
        self.expect(are_enough, key, f"an integer for each of {n_layers} layers", len(values))
        wrong = next((v for v in values[:n_layers] if not least <= v < 2**31), None)
        self.expect(wrong is None, key, f"integers from {least} to 2^31 - 1", wrong)
        return values[:n_layers]

    def amounts(self, key: str, n_layers: int) -> list[float]:
        """An `amount` for each layer, from an array or one number for all layers; 0 where there is no key."""
        if not self.is_array(key):
            return [self.amount(key)] * n_layers
        values: list[float] = self.get(key, list[float], None)
        are_enough = len(values) >= n_layers
        self.expect(are_enough, key, f"a number for each of {n_layers} layers", len(values))
        least, most = RANGES.get(key, USUAL_RANGE)
        wrong = next((v for v in values[:n_layers] if v != 0 and not least <= v <= most), None)
        self.expect(wrong is None, key, f"0 or numbers from {least:g} to {most:g}", wrong)
        return values[:n_layers]

    def is_array(self, key: str) -> bool:
        return self.has(key) and isinstance(self.file.metadata[f"{self.prefix}.{key}"], np.ndarray)

    def sections(self, key: str) -> tuple[int, ...]:
        """Up to four integers >= 0, or () where the key is absent."""
        values: list[int] = self.get(key, list[int], [])
        is_good = len(values) <= 4 and all(0 <= v < 2**31 for v in values)
        self.expect(is_good, key, "up to four integers >= 0", f"{values!r:.60}")
        return tuple(values)

    def expect(self, good: object, key: str, wanted: str, got: object) -> None:
        """Raises LoadError unless something that a key states is ``good``."""
        if not good:
            raise LoadError(f"{self.prefix}.{key}: expected {wanted}, got {got}")

    def refuse(self, key: str, harmless: tuple[object, ...]) -> None:
        """Raises LoadError if the file states a key with another value than the ``harmless`` ones."""
        full = f"{self.prefix}.{key}"
        if full in self.file.metadata:
            value = self.file.metadata[full]
            try:
                asks = value not in harmless
            except ValueError as error:  # an array has no truth value
                raise GGUFError(f"expected a single value, got {value!r:.60}", key=full) from error
            if asks:
                expected = " or ".join([*map(repr, harmless), "no such key"])
                raise LoadError(f"{full}: expected {expected}, got {value!r:.60}")
