"""Random models of the llama family for tests, small enough to run in milliseconds, and a way to run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Listed
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from oxillama._kernels import load
from oxillama.base.formats import FORMATS
from oxillama.engine.cache.kv_pool import cache_pool
from oxillama.engine.runner import Runner
from oxillama.engine.sequence import Sequence
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, read_spec
from oxillama.models.adapters.bind import bind
from oxillama.models.adapters.lora import LoadedLora
from oxillama.models.adapters.stack import Adaptation, Applied
from oxillama.models.weights.linear import PanelStore, ResidentStore
from oxillama.models.weights.loader import Weights
from oxillama.models.weights.packer import Packer
from oxillama.reference.decoder import ReferenceModel
from tests.support import gguf_writer as ggufwriter
from tests.support.kernels import PRESENT, matrix, normal

Rows = tuple[str, np.ndarray]
"""A matrix or vector: format name, uint8 (rows, bytes of a row)."""


@dataclass(frozen=True)
class Tiny:
    """A model to make. ``formats`` are dealt to its matrices in turn; ``metadata`` adds, changes (key: (kind,
    value)) or, with None, takes away keys."""

    architecture: str = "llama"
    n_layers: int = 2
    n_embd: int = 48
    n_ff: int = 80
    n_vocab: int = 50
    n_heads: int = 4
    n_kv_heads: int = 2
    key_dim: int = 24
    value_dim: int = 16
    n_rot: int = 16
    rope_freqs: bool = False
    tied: bool = False
    fused: bool = False
    biases: bool = False
    n_experts: int = 0  # llama4's: on every second layer, half as wide, one of them shared
    formats: tuple[str, ...] = ("F32",)
    norm_format: str = "F32"
    seed: int = 0
    metadata: dict[str, tuple[str, Any] | None] = field(default_factory=dict)

    def but(self, **changes: Any) -> Tiny:
        """The same, but for what is named."""
        return replace(self, **changes)

    @cached_property
    def tensors(self) -> dict[str, Rows]:
        """The tensors by their GGUF names."""
        made: dict[str, Rows] = {}

        def add(name: str, rows: int, cols: int) -> None:
            fmt = self.formats[len(made) % len(self.formats)]
            made[f"{name}.weight"] = (fmt, matrix(fmt, rows, cols, seed=1000 * self.seed + len(made)))
            if self.biases and name.rpartition(".")[2] not in ("token_embd", "output"):
                add_vector(f"{name}.bias", 0.1 * normal(rows, seed=len(made)), "F32")

        def add_vector(name: str, values: np.ndarray, fmt: str) -> None:
            stored = values.astype("<f2" if fmt == "F16" else "<f4")
            made[name] = (fmt, stored.view(np.uint8)[None])

        q, k = self.n_heads * self.key_dim, self.n_kv_heads * self.key_dim
        v = self.n_kv_heads * self.value_dim
        add("token_embd", self.n_vocab, self.n_embd)
        for i in range(self.n_layers):
            for norm in ("attn_norm", "ffn_norm"):
                values = 1 + 0.2 * normal(self.n_embd, seed=len(made))
                add_vector(f"blk.{i}.{norm}.weight", values, self.norm_format)
            if self.fused:
                add(f"blk.{i}.attn_qkv", q + k + v, self.n_embd)
            else:
                for name, rows in (("attn_q", q), ("attn_k", k), ("attn_v", v)):
                    add(f"blk.{i}.{name}", rows, self.n_embd)
            add(f"blk.{i}.attn_output", self.n_embd, self.n_heads * self.value_dim)
            feeds = [("", 1, self.n_ff)]
            if self.n_experts and i % 2:
                add(f"blk.{i}.ffn_gate_inp", self.n_experts, self.n_embd)
                feeds = [("_exps", self.n_experts, self.n_ff // 2), ("_shexp", 1, self.n_ff // 2)]
            for ending, stacked, width in feeds:
                add(f"blk.{i}.ffn_gate{ending}", stacked * width, self.n_embd)
                add(f"blk.{i}.ffn_up{ending}", stacked * width, self.n_embd)
                add(f"blk.{i}.ffn_down{ending}", stacked * self.n_embd, width)
        add_vector("output_norm.weight", 1 + 0.2 * normal(self.n_embd, seed=99), self.norm_format)
        if self.rope_freqs:
            add_vector("rope_freqs.weight", np.linspace(1, 8, self.n_rot // 2), "F32")
        if not self.tied:
            add("output", self.n_vocab, self.n_embd)
        return made

    def file(self, **replaced: Rows | None) -> bytes:
        """The GGUF file; tensors can be replaced or, with None, left out."""
        a = self.architecture
        pairs: dict[str, tuple[str, Any] | None] = {
            "general.architecture": ("str", a),
            f"{a}.block_count": ("u32", self.n_layers),
            f"{a}.embedding_length": ("u32", self.n_embd),
            f"{a}.feed_forward_length": ("u32", self.n_ff),
            f"{a}.context_length": ("u32", 512),
            f"{a}.attention.head_count": ("u32", self.n_heads),
            f"{a}.attention.head_count_kv": ("u32", self.n_kv_heads),
            f"{a}.attention.key_length": ("u32", self.key_dim),
            f"{a}.attention.value_length": ("u32", self.value_dim),
            f"{a}.attention.layer_norm_rms_epsilon": ("f32", 1e-5),
            f"{a}.rope.dimension_count": ("u32", self.n_rot),
            f"{a}.rope.freq_base": ("f32", 10000.0),
        }
        if self.n_experts:
            pairs[f"{a}.expert_count"] = ("u32", self.n_experts)
            pairs[f"{a}.expert_used_count"] = ("u32", 2)
            pairs[f"{a}.expert_feed_forward_length"] = ("u32", self.n_ff // 2)
            pairs[f"{a}.interleave_moe_layer_step"] = ("u32", 2)
        pairs |= self.metadata
        metadata = [(key, *pair) for key, pair in pairs.items() if pair is not None]
        tensors = []
        for name, rows in (self.tensors | replaced).items():
            if rows is not None:
                fmt, data = FORMATS[rows[0]], rows[1]
                cols = data.shape[1] // fmt.block_bytes * fmt.block_len
                shape = (cols,) if is_vector(name) else (cols, len(data))
                if "_exps" in name:
                    shape = (cols, len(data) // self.n_experts, self.n_experts)
                tensors.append(ggufwriter.Tensor(name, shape, fmt.file_id, data.tobytes()))
        return ggufwriter.write(metadata, tensors)


WIDE = Tiny(n_embd=256, n_ff=256, n_heads=4, n_kv_heads=2, key_dim=64, value_dim=64, n_rot=64, n_vocab=64)
"""Its rows are whole blocks of every format."""


def is_vector(name: str) -> bool:
    return name.endswith(".bias") or "norm" in name or name == "rope_freqs.weight"


def tokens_of(n: int, n_vocab: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    found: list[int] = np.random.default_rng(seed).integers(0, n_vocab, n).tolist()
    return found


def load_model(data: bytes, context: int | None = None) -> Decoder:
    """A model whose tensors are all checked."""
    file = ModelFile.open(data)
    return Decoder(read_spec(file), Weights(file, load(PRESENT[0]), 1), context)


def log_softmax(x: np.ndarray) -> np.ndarray:
    """The log-probabilities of rows of logits, in doubles."""
    x = x - x.max(axis=1, keepdims=True).astype(np.float64)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def divergence(reference: np.ndarray, found: np.ndarray) -> float:
    """Mean KL(reference || found) over rows of logits."""
    p, q = log_softmax(reference), log_softmax(found)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


class Running:
    """A loaded model, its pages and its runner."""

    def __init__(
        self,
        data: bytes,
        target: str = PRESENT[0],
        n_threads: int = 1,
        kv_type: str = "f32",
        page_size: int = 16,
        max_pages: int | None = None,
        compute: str = "int8",
        adapters: Listed[tuple[LoadedLora, float, int]] = (),
        store: Callable[[Packer], PanelStore] = ResidentStore,
        context: int | None = None,
    ) -> None:
        file = ModelFile.open(data)
        self.weights = Weights(file, load(target), n_threads, compute=compute, store=store)
        self.model = Decoder(read_spec(file), self.weights, context)
        limit = (
            None if max_pages is None else max_pages * cache_pool(self.model, kv_type, page_size).page_stride
        )
        self.pool = cache_pool(self.model, kv_type, page_size, limit)
        self.runner = Runner(self.model, self.pool, n_threads)
        applied = [Applied(lora, bind(lora, self.model), scale, start) for lora, scale, start in adapters]
        self.adapters = Adaptation(applied) if applied else None

    def hidden_states(self, texts: Listed[Listed[int]], chunk: int = 512) -> list[np.ndarray]:
        """float32 (tokens, n_embd) of each text: a decoder's run together in chunks, an encoder's whole."""
        sequences = [Sequence(self.pool, tokens, adapters=self.adapters) for tokens in texts]
        found: list[list[np.ndarray]] = [[] for _ in texts]
        whole = not self.model.spec.causal
        while any(sequence.pending for sequence in sequences):
            parts = [(s, s.pending if whole else min(chunk, s.pending)) for s in sequences if s.pending]
            rows = self.runner.forward(parts, all_logits=True, states=True)
            pieces = np.split(rows, np.cumsum([n for _, n in parts])[:-1])
            for (sequence, _), piece in zip(parts, pieces):
                found[sequences.index(sequence)].append(piece)
        for sequence in sequences:
            sequence.release()
        self.pool.check_integrity()
        return [np.concatenate(pieces) for pieces in found]

    def logits(self, tokens: Listed[int], chunk: int = 10**6) -> np.ndarray:
        """float32 (n, vocab) of a fresh sequence run in chunks."""
        sequence = Sequence(self.pool, tokens, adapters=self.adapters)
        found = []
        while sequence.pending:
            found.append(self.runner.forward([(sequence, min(chunk, sequence.pending))], all_logits=True))
        sequence.release()
        self.pool.check_integrity()
        return np.concatenate(found)

    def in_pieces(self, lists: Listed[Listed[int]], rng: np.random.Generator) -> list[np.ndarray]:
        """float32 (n, vocab) of each list, run in random pieces and in batches with random others."""
        sequences = [Sequence(self.pool, tokens) for tokens in lists]
        found: list[list[np.ndarray]] = [[] for _ in lists]
        while any(sequence.pending for sequence in sequences):
            going = [i for i in rng.permutation(len(lists)) if sequences[i].pending]
            going = going[: rng.integers(1, len(lists) + 1)]
            parts = [(sequences[i], int(rng.integers(1, sequences[i].pending + 1))) for i in going]
            rows = self.runner.forward(parts, all_logits=True)
            for i, piece in zip(going, np.split(rows, np.cumsum([n for _, n in parts])[:-1]), strict=True):
                found[i].append(piece)
        return [np.concatenate(pieces) for pieces in found]

    def outputs(self, tokens: Listed[int]) -> np.ndarray:
        """Logits, or hidden states of a model without logits."""
        has_logits = self.model.spec.causal and self.model.output is not None
        return self.logits(tokens) if has_logits else self.hidden_states([tokens])[0]


def stated(
    data: bytes,
    tokens: Listed[int],
    compute: str = "int8",
    kv_type: str = "f32",
    context: int | None = None,
) -> np.ndarray:
    """The reference's logits, or an encoder's hidden states, of a file."""
    model = ReferenceModel(ModelFile.open(data), compute, kv_type, context=context)
    return (model.hidden_states if model.facts.encoder else model.logits)(np.array(tokens))
