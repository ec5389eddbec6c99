"""MTP layers: blocks for next-token prediction behind the layers of some files, which draft for the model.

The block's input at position p is made of the embedding of token p and of the model's hidden state h of
position p - 1, after the last norm (zeros before the first):

    y = W [norm_e(embedding) | norm_h(h)].

A layer with attention (over the keys of such y), a norm and an output matrix make logits of token
p + 1. The normed state takes the place of h for a further token (DeepSeek-V3, 2024).

In DeepSeek-V4 and Qwen 3.8, h are the streams of hidden states before they end. Each stream has such an
input, the layer runs over the streams, and the streams that it leaves take the place of h.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama.models.decoder import Carried, Decoder
from oxillama.models.drafts.draft_model import DraftInput, DraftModel
from oxillama.models.layers.gated_streams import GatedMix
from oxillama.models.layers.head_norm import HeadNorm
from oxillama.models.layers.hyper_connections import streams_of
from oxillama.models.layers.layer import load_layer
from oxillama.models.layers.norm import Norm, load_norm
from oxillama.models.layers.recurrent import assign_state_offsets
from oxillama.models.metadata import Reader
from oxillama.models.spec import LayerSpec, Spec
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import STREAMS, Batch, Step, Threads, Workspace

if TYPE_CHECKING:
    from oxillama.models.weights.low_rank import AdaptedRows


def block_layer(spec: Spec, weights: Weights) -> LayerSpec:
    """The sizes of a model's MTP layer: as in the last layer that attends, but for what files say of the
    block itself. It sees everything, or, in DeepSeek-V4, the window."""
    i, family = spec.n_layers, spec.family
    layer = replace(spec.layers[max(spec.attending)], window=0, kv_from=None, selected_by=None)
    if family.rope_on_windows_only:  # the block rotates, although it sees everything
        layer = replace(layer, rope=0)
    read = Reader(weights.file, family.name, family.all_options)

    def stated(key: str) -> bool:
        """Whether an array has a value for the block."""
        return read.is_array(key) and len(weights.file.metadata[f"{family.name}.{key}"]) > i

    if stated("swiglu_clamp_exp"):
        copies = all(each.limit == each.expert_limit for each in spec.layers)
        limit = read.amounts("swiglu_clamp_exp", i + 1)[i]
        layer = replace(layer, expert_limit=limit, limit=limit if copies else layer.limit)
    if stated("swiglu_clamp_shexp"):
        layer = replace(layer, limit=read.amounts("swiglu_clamp_shexp", i + 1)[i])
    if spec.compression is not None:
        window = spec.compression.window
        return replace(layer, window=window, rope=0, block_size=0, places=1, chosen_by_token=False)
    ratios = "attention.compress_ratios"
    is_full = stated(ratios) and not read.per_layer(ratios, i + 1, least=0)[i]
    chooses = any(name.startswith(f"blk.{i}.indexer.") for name in weights.file.tensors) and not is_full
    if layer.mixer in ("attention", "blocked"):
        layer = replace(layer, mixer="blocked" if chooses and spec.selector else "attention")
    return replace(layer, selected_by=i) if chooses and spec.selector else layer


class NextTokenInput(DraftInput):
    """The input of a block for next-token prediction: ``hidden`` is float32 (rows, n_embd), and whether it is
    ``observed`` makes no difference."""

    def __init__(self, spec: Spec, weights: Weights, block: str) -> None:
        d, own = spec.n_embd, f"{block}.embed_tokens.weight"
        table = weights.embedding(own if weights.has(own) else "token_embd.weight", spec.n_vocab, d)
        super().__init__(table, weights.linear([(f"{block}.eh_proj", d)], 2 * d))
        self.token_norm: Norm = load_norm(spec, weights, f"{block}.enorm")
        self.scale: float = spec.embedding_scale
        self.load_state_norm(spec, weights, f"{block}.hnorm")

    def load_state_norm(self, spec: Spec, weights: Weights, name: str) -> None:
        """Loads the norm of the states."""
        self.state_norm: Norm = load_norm(spec, weights, name)

    def look_up(self, batch: Batch, x: np.ndarray, step: Step) -> None:
        """x (n, d) = the input of the block for the batch's tokens and the given states."""
        both = self.with_tokens(batch, x, step)
        both[:, x.shape[1] :] = self.state_norm.apply(self.hidden, x, step.n_threads)
        self.projection.apply(both, x, step)

    def with_tokens(self, batch: Batch, x: np.ndarray, step: Step) -> np.ndarray:
        """float32 (n, 2 d): the normed embeddings, and place for the states; x (n, d) is overwritten."""
        both: np.ndarray = step.work.rows["next_token", len(x), self.projection.cols]
        self.table.lookup(batch.tokens, x)
        if self.scale != 1:
            x *= np.float32(self.scale)
        both[:, : x.shape[1]] = self.token_norm.apply(x, x, step.n_threads)
        return both


class StreamedInput(NextTokenInput):
    """The input of a block over streams: ``hidden`` has the streams, float32 (rows, streams n_embd), and
    perhaps more behind them."""

    def load_state_norm(self, spec: Spec, weights: Weights, name: str) -> None:
        assert spec.connections is not None
        self.n: int = spec.connections.streams
        n, d = self.n, spec.n_embd
        wide = weights.shape(f"{name}.weight") == (n * d,)  # a weight for each stream
        weight = weights.vector(f"{name}.weight", n * d if wide else d)
        of_streams = np.tile(weight, 1 if wide else n).reshape(n, d)
        self.norm: HeadNorm = HeadNorm(weights.kernels, False, spec.norm_eps, n, d, of_streams)

    def look_up(self, batch: Batch, x: np.ndarray, step: Step) -> None:
        """Makes the streams of the batch's tokens and the given states; x (n, d) is overwritten."""
        (rows, d), width = x.shape, self.n * x.shape[1]
        both, streams = self.with_tokens(batch, x, step), streams_of(step, rows, width)
        states = np.ascontiguousarray(self.hidden[:, :width])
        self.norm.apply(states, step.n_threads)
        for first in range(0, width, d):
            both[:, d:] = states[:, first : first + d]
            self.projection.apply(both, x, step)
            streams[:, first : first + d] = x


class NextTokenHead(DraftModel):
    """The MTP layer of a file: a model of one layer, with the output matrix of its model; see `DraftModel`.

    Raises:
        LoadError: a tensor is missing or has a wrong shape.

    Attributes:
        tapped: what it reads of the target in place of the hidden states after the last norm.
        is_streamed: its layer runs over the streams of its model.
    """

    inputs: NextTokenInput  # type: ignore[assignment]
    is_streamed = False
    new_inputs: Callable[[Spec, Weights, str], NextTokenInput] = NextTokenInput

    def __init__(self, spec: Spec, weights: Weights, target: Decoder) -> None:
        i, layer = spec.n_layers, block_layer(spec, weights)
        block = f"blk.{i}.nextn"
        others = tuple(replace(each, n_kv_heads=0, selected_by=None) for each in spec.layers)
        own_spec = replace(
            spec,
            family=spec.family if self.is_streamed else replace(spec.family, streams=""),
            layers=(*others, layer),
            recurrent=None,
            part=None,
            selector=None if layer.selected_by is None else spec.selector,
        )
        super().__init__(own_spec, weights, target)
        self.inputs = self.new_inputs(own_spec, weights, block)
        self.layers = [load_layer(own_spec, i, weights)]
        blocks = [each for each in self.layers[0].blocks() if hasattr(each, "state_floats")]
        self.state_floats, self.record_floats = assign_state_offsets(blocks)
        norms = (f"{block}.shared_head_norm", f"blk.{i}.layer_output_norm")
        own = next((name for name in norms if weights.has(f"{name}.weight")), None)
        self.output_norm = load_norm(spec, weights, own) if own else target.output_norm
        head = f"{block}.shared_head_head"
        if weights.has(f"{head}.weight"):
            self.output = weights.linear([(head, spec.n_vocab)], spec.n_embd)


class StreamedHead(NextTokenHead):
    """The MTP layer of a file over streams.

    Its hidden states, float32 (rows, (streams + 1) n_embd), are the streams, and behind them what the output
    matrix reads: the streams' end, normed.
    """

    tapped = (STREAMS,)
    is_streamed = True
    new_inputs = StreamedInput

    def __init__(self, spec: Spec, weights: Weights, target: Decoder) -> None:
        super().__init__(spec, weights, target)
        ends, own = copy(target.streams), f"blk.{spec.n_layers}.nextn.hc_head"
        assert ends is not None
        if weights.has(f"{own}_norm.weight"):
            ends.mix = GatedMix(spec, weights, own, False)
        ends.begin = lambda x, step: None  # the inputs have made them
        self.streams = ends

    def hidden_states(
        self,
        batch: Batch,
        kv: Sequence[Any],
        work: Workspace,
        tuner: Threads,
        cancelled: Callable[[], bool] | None = None,
        carried: Carried | None = None,
    ) -> np.ndarray:
        normed = super().hidden_states(batch, kv, work, tuner, cancelled, carried)
        streams = work.rows["streams", len(batch), self.carried["streams"]]
        return np.concatenate([streams[batch.wanted], normed], axis=1)

    def logits(
        self, rows: np.ndarray, work: Workspace, tuner: Threads, adapted: AdaptedRows | None = None
    ) -> np.ndarray:
        normed = np.ascontiguousarray(rows[:, self.carried["streams"] :])
        return super().logits(normed, work, tuner, adapted)


KINDS: dict[str, type[NextTokenHead]] = {"states": NextTokenHead, "streams": StreamedHead}
"""By `Family.next_token`."""


def load_next_token_head(spec: Spec, weights: Weights, target: Decoder) -> NextTokenHead | None:
    """The MTP layer of a file; None for a file without one that can draft."""
    there = weights.has(f"blk.{spec.n_layers}.nextn.eh_proj.weight")
    kind = KINDS.get(spec.family.next_token)
    return kind(spec, weights, target) if there and kind is not None else None
