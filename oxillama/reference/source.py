"""A model file as the reference reads it: every key and every tensor is used, or the file is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from oxillama.errors import LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.reference.adapters import EMBEDDING, OUTPUT, Adapter
from oxillama.reference.blocks import dequantize
from oxillama.reference.facts import Facts
from oxillama.reference.families import FAMILIES
from oxillama.reference.products import Matrix, load_matrix
from oxillama.weights.file_types import is_rounded

HARMLESS = (
    "vocab_size",
    "context_length",
    "pooling_type",
    "block_count",
    "nextn_predict_layers",
    "rope.scaling.original_context_length",
    "tensor_data_layout",
)
"""Keys that decide no bit where nothing else is stated."""

OPTIONS = (
    "activation_sparsity_scale",
    "attention.clamp_kqv",
    "attention.indexer.types",
    "attention.key_length_swa",
    "attention.max_alibi_bias",
    "attention.rope_pattern",
    "attention.output_scale",
    "attention.scale",
    "attention.shared_kv_layers",
    "attention.temperature_length",
    "attention.temperature_scale",
    "attention.value_scale",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.value_length_swa",
    "attn_logit_softcapping",
    "embedding_length_per_layer_input",
    "embedding_scale",
    "expert_feed_forward_length",
    "expert_gating_func",
    "expert_shared_feed_forward_length",
    "expert_weights_norm",
    "expert_weights_scale",
    "final_logit_softcapping",
    "logit_scale",
    "rescale_every_n_layers",
    "residual_scale",
    "rope.dimension_sections",
    "rope.dimension_count_swa",
    "rope.freq_base_swa",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_log_multiplier",
    "ssm.dt_b_c_rms",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
)
"""Keys that count in some families only (`Facts.options`); in files of others they are refused."""


def plain_name(tensor: str) -> str:
    """A tensor's name without "blk.<i>." and ".weight"."""
    return re.sub(r"^blk\.\d+\.|\.weight$", "", tensor)


class Unsupported(LoadError):
    """The reference has no statement of what a file or a receipt needs; the message names it."""


class Source:
    """Keys and tensors of a file. What nobody has asked for is found by `check_used`.

    Attributes
    ----------
    n_layers : of the model; blocks behind them, which draft, have no effect on its logits.

    Parameters
    ----------
    file : an open model file.
    compute : as in `EngineConfig`.
    adapters : in the order in which they are added.

    Raises
    ------
    Unsupported : the architecture is not in `FAMILIES`, or the file holds no language model.
    LoadError : an adapter is none for the architecture.
    """

    def __init__(self, file: ModelFile, compute: str = "int8", adapters: Sequence[Adapter] = ()) -> None:
        self.file = file
        self.adapters: tuple[Adapter, ...] = tuple(adapters)
        self.compute = compute
        self.name: str = file.get("general.architecture", str)
        if file.get("general.type", str, "model") != "model" or self.name not in FAMILIES:
            known = ", ".join(sorted(FAMILIES))
            raise Unsupported(f"reference: general.architecture: expected one of {known}, got {self.name!r}")
        blocks, drafts = (
            file.get(f"{self.name}.{key}", int, 0) for key in ("block_count", "nextn_predict_layers")
        )
        self.n_layers: int = blocks - drafts
        self.facts: Facts = FAMILIES[self.name]
        self.facts = self.facts.but(**dict(self.facts.at_layers).get(self.n_layers, {}))
        self.used_keys: set[str] = {*HARMLESS, *self.facts.ignores}
        self.used_tensors: set[str] = set()
        for i in range(self.n_layers, blocks):
            self.ignore(f"blk.{i}.")
        self.multiplied: set[str] = {EMBEDDING}  # tensors that adapters can change
        for adapter in self.adapters:
            adapter.check(self.name)
        self._matrices: dict[tuple[str, int], Matrix] = {}

    def key(self, key: str, default: Any = None) -> Any:
        """The value of a key without its prefix; the default of an option that the family does not have."""
        if key in OPTIONS and key not in self.facts.options:
            return default
        self.used_keys.add(key)
        return self.file.metadata.get(f"{self.name}.{key}", default)

    def per_layer(self, key: str, n: int, default: Any = None) -> list[Any]:
        """A key that states one value, or one for each layer."""
        value = self.key(key, default)
        return list(value)[:n] if isinstance(value, (np.ndarray, list)) else [value] * n

    def stored(self, name: str) -> str:
        """The name that the file has for a tensor."""
        if not name.startswith("blk.") or not self.facts.block_prefix:
            return name
        for usual, other in self.facts.renamed:
            name = name.replace(f".{usual}.", f".{other}.")
        return self.facts.block_prefix + name

    def has(self, name: str) -> bool:
        return self.stored(name) in self.file.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Columns first, as in the file."""
        return self.file.tensors[self.stored(name)].shape

    def vector(self, name: str) -> np.ndarray:
        """A tensor as float32, columns last. Raises Unsupported if there is none."""
        self._take(name)
        info = self.file.tensors[self.stored(name)]
        return dequantize(info.format, self.file.data(info.name)).reshape(info.shape[::-1])

    def optional(self, name: str) -> np.ndarray | None:
        """A tensor as float32, None for none."""
        return self.vector(name) if self.has(name) else None

    def embeddings(self, name: str, ids: np.ndarray) -> np.ndarray:
        """float32 (n, cols): rows of a table."""
        self._take(name)
        info = self.file.tensors[name]
        rows = self.file.data(name).reshape(info.shape[1], -1)[ids]
        found = dequantize(info.format, rows).reshape(len(ids), info.shape[0])
        for adapter in self.adapters if name == EMBEDDING else ():
            found = adapter.add_to_embeddings(ids, found)
        return found

    def matrix(self, name: str, expert: int = -1) -> Matrix:
        """A matrix, or that of an expert in a tensor of all experts."""
        if (name, expert) not in self._matrices:
            self._take(name)
            info = self.file.tensors[self.stored(name)]
            shape = info.shape if expert < 0 else info.shape[:2]
            cols, rows = shape if len(shape) == 2 else (shape[0], 1)
            data = self.file.data(info.name)
            if expert >= 0:
                data = data.reshape(info.shape[2], -1)[expert]
            as_file = self.compute == "w8a8" and not is_rounded(info.name, info.format, info.shape)
            compute = "int8" if as_file else self.compute
            self._matrices[name, expert] = load_matrix(info.format, data, rows, cols, compute)
        return self._matrices[name, expert]

    def linear(
        self,
        name: str,
        x: np.ndarray,
        expert: int = -1,
        onto: np.ndarray | None = None,
        positions: np.ndarray | None = None,
    ) -> np.ndarray:
        """float32 (n, rows): x times the matrix called ``name``, its scale, plus its bias: those that it has.

        Parameters
        ----------
        onto : (n, rows) what that is added to, before what adapters add.
        positions : (n,) of the rows; None for 0 to n - 1.
        """
        out = self.matrix(f"{name}.weight", expert).times(x)
        bias, last = self.optional(f"{name}.bias"), name.rpartition(".")[2]
        self.used_tensors.add(self.stored(f"{name}.input_scale"))  # of activations of 4 bits
        scales = None if last in self.facts.unscaled else self.optional(f"{name}.scale")
        if scales is not None:
            out = out * scales[max(expert, 0)]
        if bias is not None and last not in self.facts.unbiased:
            out += bias if expert < 0 else bias[expert]
        out = out if onto is None else onto + out
        adapted = OUTPUT if f"{name}.weight" == EMBEDDING else self.stored(f"{name}.weight")
        self.multiplied.add(adapted)
        at = np.arange(len(x)) if positions is None else positions
        for adapter in self.adapters:
            if adapter.everywhere or plain_name(adapted) not in self.facts.unadapted:
                out = adapter.add(adapted, x, out, at, expert)
        return out

    def ignore(self, beginning: str) -> None:
        """Tensors whose names begin so have no effect."""
        self.used_tensors |= {name for name in self.file.tensors if name.startswith(beginning)}

    def _take(self, name: str) -> None:
        name = self.stored(name)
        if name not in self.file.tensors:
            raise Unsupported(f"reference: {self.name}: expected the tensor {name}, got none")
        if self.file.tensors[name].format.layout is None:
            raise Unsupported(f"reference: {name}: no statement of {self.file.tensors[name].format.name}")
        self.used_tensors.add(name)

    def check_used(self) -> None:
        """Raises Unsupported for a key or a tensor that was not used, or one that adapters alone know."""
        prefix = f"{self.name}."
        keys = {key[len(prefix) :] for key in self.file.metadata if key.startswith(prefix)}
        for what, unused in (
            ("the key", {prefix + key for key in keys - self.used_keys}),
            ("the tensor", set(self.file.tensors) - self.used_tensors),
        ):
            if unused:
                raise Unsupported(f"reference: {self.name}: no statement of {what} {min(unused)}")
        for adapter in self.adapters:
            unused = adapter.names - self.multiplied
            if not adapter.everywhere:
                unused = {name for name in unused if plain_name(name) not in self.facts.unadapted}
            if unused:
                raise Unsupported(f"reference: {self.name}: no statement of an adapter of {min(unused)}")
