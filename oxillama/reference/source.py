"""Reads a model file for the reference: a file with an unused key or tensor is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from oxillama.base.formats import ROUNDED
from oxillama.errors import LoadError
from oxillama.gguf.file_types import is_rounded
from oxillama.gguf.model_file import ModelFile
from oxillama.reference.adapters import EMBEDDING, OUTPUT, Adapter
from oxillama.reference.blocks import dequantize
from oxillama.reference.facts import Facts
from oxillama.reference.families import FAMILIES
from oxillama.reference.products import Matrix, load_matrix

HARMLESS = (
    "vocab_size",
    "context_length",
    "pooling_type",
    "block_count",
    "nextn_predict_layers",
    "rope.scaling.original_context_length",
    "tensor_data_layout",
)
"""Metadata keys that do not affect the bits."""

OPTIONS = (
    "activation_sparsity_scale", "attention.clamp_kqv", "attention.indexer.types", "attention.key_length_swa",
    "attention.max_alibi_bias", "attention.rope_pattern", "attention.output_scale", "attention.scale",
    "attention.shared_kv_layers", "attention.temperature_length", "attention.temperature_scale",
    "attention.value_scale", "attention.sliding_window", "attention.sliding_window_pattern",
    "attention.value_length_swa", "attn_logit_softcapping", "embedding_length_per_layer_input",
    "embedding_scale", "expert_feed_forward_length", "expert_gating_func", "expert_group_scale",
    "expert_latent_length", "expert_shared_feed_forward_length", "expert_weights_norm",
    "expert_weights_scale", "final_logit_softcapping", "hidden_activation", "logit_scale",
    "rescale_every_n_layers", "residual_scale", "rope.dimension_sections", "rope.dimension_count_swa",
    "rope.freq_base_swa", "rope.scaling.finetuned", "rope.scaling.yarn_log_multiplier", "ssm.dt_b_c_rms",
    "swiglu_clamp_exp", "swiglu_clamp_shexp",
)  # fmt: skip
"""Metadata keys that count only in some families (`Facts.options`), and are refused in others."""


After = Callable[[str, np.ndarray, np.ndarray], np.ndarray]
"""Changes the product of a matrix, given its name, its input and the product."""


def plain_name(tensor: str) -> str:
    """A tensor's name without "blk.<i>." and ".weight"."""
    return re.sub(r"^blk\.\d+\.|\.weight$", "", tensor)


class Unsupported(LoadError):
    """The reference does not implement something that a file or a receipt needs; the message names it."""


class Source:
    """Metadata and tensors of a file. `check_used` finds those that were never asked for.

    Attributes:
        n_layers: number of layers; MTP layers after them have no effect on logits.

    Args:
        file: an open model file.
        compute: as in `EngineConfig`.
        adapters: in the order in which they are added.

    Raises:
        Unsupported: the architecture is not in `FAMILIES`, or the file has no language model.
        LoadError: an adapter is not for the architecture.
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
        head = 0  # blocks of a decision head
        if file.get(f"{self.name}.decision.type", str, "") in ("laya", "lfm2-d1-omni"):
            head = file.get(f"{self.name}.decision.block_count", int)
        self.n_layers: int = blocks - drafts - head
        self.facts: Facts = FAMILIES[self.name]
        self.facts = self.facts.but(**dict(self.facts.at_layers).get(self.n_layers, {}))
        self.used_keys: set[str] = {*HARMLESS, *self.facts.ignores}
        self.used_tensors: set[str] = set()
        for i in range(self.n_layers + head, blocks):
            self.ignore(f"blk.{i}.")
        self.skipped: set[str] = {
            name
            for name in file.tensors
            if any(fnmatchcase(re.sub(r"^blk\.\d+\.", "", name), each) for each in self.facts.skips)
        }
        self.used_tensors |= self.skipped
        self.after: After | None = None
        self.multiplied: set[str] = {EMBEDDING}  # tensors that adapters can change
        for adapter in self.adapters:
            adapter.check(self.name)
        self.tokens: np.ndarray = np.zeros(0, np.int64)  # the tokens of the present pass
        self._matrices: dict[tuple[str, int], Matrix] = {}

    def key(self, key: str, default: Any = None) -> Any:
        """The value of a metadata key without its prefix; the default for an option not in the family."""
        if key in OPTIONS and key not in self.facts.options:
            return default
        self.used_keys.add(key)
        return self.file.metadata.get(f"{self.name}.{key}", default)

    def per_layer(self, key: str, n: int, default: Any = None) -> list[Any]:
        """The values of a key that states one value, or one for each layer."""
        value = self.key(key, default)
        return list(value)[:n] if isinstance(value, (np.ndarray, list)) else [value] * n

    def stored(self, name: str) -> str:
        """The file's name of a tensor."""
        if not name.startswith("blk."):
            return name
        for usual, other in self.facts.renamed:
            name = name.replace(f".{usual}.", f".{other}.")
        return self.facts.block_prefix + name

    def has(self, name: str) -> bool:
        return self.stored(name) in self.file.tensors and self.stored(name) not in self.skipped

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, columns first as in the file."""
        return self.file.tensors[self.stored(name)].shape

    def vector(self, name: str) -> np.ndarray:
        """A tensor as float32, columns last. Raises Unsupported if it is missing."""
        self._take(name)
        info = self.file.tensors[self.stored(name)]
        return dequantize(info.format, self.file.data(info.name)).reshape(info.shape[::-1])

    def optional(self, name: str) -> np.ndarray | None:
        """A tensor as float32; None if it is missing."""
        return self.vector(name) if self.has(name) else None

    def embeddings(self, name: str, ids: np.ndarray) -> np.ndarray:
        """float32 (n, cols): the rows ``ids`` of a table."""
        self._take(name)
        info = self.file.tensors[name]
        rows = self.file.data(name).reshape(info.shape[1], -1)[ids]
        found = dequantize(info.format, rows).reshape(len(ids), info.shape[0])
        for adapter in self.adapters if name == EMBEDDING else ():
            found = adapter.add_to_embeddings(ids, found)
        return found

    def matrix(self, name: str, expert: int = -1) -> Matrix:
        """A matrix, or one expert's matrix in a tensor of all experts."""
        if (name, expert) not in self._matrices:
            self._take(name)
            info = self.file.tensors[self.stored(name)]
            shape = info.shape if expert < 0 else info.shape[:2]
            cols, rows = shape if len(shape) == 2 else (shape[0], 1)
            data = self.file.data(info.name)
            if expert >= 0:
                data = data.reshape(info.shape[2], -1)[expert]
            as_file = self.compute in ROUNDED and not is_rounded(info.name, info.format, info.shape)
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
        bare: bool = False,
    ) -> np.ndarray:
        """float32 (n, rows): x times the matrix ``name``, with its scale and bias if present.

        Args:
            onto: (n, rows), a term to add before adapters add theirs.
            positions: (n,) positions of the rows; None: 0 to n - 1.
            bare: without its scale and its bias.
        """
        out = self.matrix(f"{name}.weight", expert).times(x)
        bias, last = self.optional(f"{name}.bias"), name.rpartition(".")[2]
        self.used_tensors.add(self.stored(f"{name}.input_scale"))  # only for 4-bit activations
        scales = None if last in self.facts.unscaled else self.optional(f"{name}.scale")
        if scales is not None and not bare:
            out = out * scales[max(expert, 0)]
        if bias is not None and not bare and last not in self.facts.unbiased:
            out += bias if expert < 0 else bias[expert]
        out = out if onto is None else onto + out
        at = np.arange(len(x)) if positions is None else positions
        out = self.adapted(f"{name}.weight", x, out, at, expert)
        return out if self.after is None else self.after(name, x, out)

    def row_groups(self, name: str, parts: np.ndarray) -> np.ndarray:
        """float32 (n, rows): each part (n, cols) of ``parts`` times its own group of rows of a matrix."""
        count, n = len(parts), parts.shape[1]
        whole = self.linear(name, parts.reshape(count * n, -1), positions=np.tile(np.arange(n), count))
        by_group = whole.reshape(count, n, count, -1)
        return np.concatenate([by_group[i, :, i] for i in range(count)], axis=1)

    def adapted(
        self, name: str, x: np.ndarray, out: np.ndarray, at: np.ndarray | None = None, expert: int = -1
    ) -> np.ndarray:
        """out, the product of x and the matrix ``name``, after the adapters; ``at``: positions of its
        rows."""
        adapted = OUTPUT if name == EMBEDDING else self.stored(name)
        self.multiplied.add(adapted)
        at = np.arange(len(x)) if at is None else at
        for adapter in self.adapters:
            if adapter.everywhere or plain_name(adapted) not in self.facts.unadapted:
                out = adapter.add(adapted, x, out, at, expert)
        return out

    def ignore(self, beginning: str) -> None:
        """Ignore tensors whose names begin with ``beginning``."""
        self.used_tensors |= {name for name in self.file.tensors if name.startswith(beginning)}

    def _take(self, name: str) -> None:
        name = self.stored(name)
        if name not in self.file.tensors:
            raise Unsupported(f"reference: {self.name}: expected the tensor {name}, got none")
        if self.file.tensors[name].format.layout is None:
            raise Unsupported(f"reference: {name}: no statement of {self.file.tensors[name].format.name}")
        self.used_tensors.add(name)

    def check_used(self) -> None:
        """Raise Unsupported for an unused key or tensor, or for an adapter's tensor that nothing used."""
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
