"""The model: tokens in, hidden states and logits out.

x = embed(tokens); for each layer x += mixer(norm(x)), then x += feed_forward(norm(x)); logits = norm(x) W^T.
All rows of a ragged batch run together. `layers/layer.py` adds the outputs of a layer's two blocks to the
hidden state; `layers/` has the blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.base.formats import KV_PAIRS, KV_TYPES
from oxillama.base.lazy_import import lazy
from oxillama.errors import LoadError
from oxillama.models.frequencies import load_frequencies
from oxillama.models.layers.layer import AnyLayer, load_layer, matrix_groups
from oxillama.models.layers.norm import Norm, load_norm
from oxillama.models.page_groups import PageGroup, page_groups
from oxillama.models.read_spec import embedding_table
from oxillama.models.rope import log_of
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Embedding, Linear, MatrixGroup, PanelStore, Pass, panels_in_use
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Batch, Step, Threads, Workspace, tap_of

if TYPE_CHECKING:
    from oxillama.models.weights.low_rank import AdaptedRows

OTHER_STREAMS = 3
"""Streams of hidden states beside the first (Gemma 3n)."""
load_layer_embeddings: Callable[..., Any] = lazy("oxillama.models.layers.layer_input:LayerEmbeddings")
load_choice: Callable[..., Any] = lazy("oxillama.models.layers.switch:AdapterChoice")
load_streams: Callable[..., Any] = lazy("oxillama.models.layers.stream_kinds:load_streams")
assign_state_offsets: Callable[..., Any] = lazy("oxillama.models.layers.recurrent:assign_state_offsets")
new_state_batch: Callable[..., Any] = lazy("oxillama._kernels.recurrent.state_batch:StateBatch")
load_classifier: Callable[..., Any] = lazy("oxillama.models.classifier:load_classifier")
load_head: Callable[..., Any] = lazy("oxillama.models.decision_heads:load_head")
load_projection: Callable[..., Any] = lazy("oxillama.models.projection:load_projection")

Carried = dict[str, np.ndarray]
"""float32 (rows, width) of each buffer of `Decoder.carried`."""


class ForwardCancelled(Exception):
    """A forward pass was cancelled between two layers.

    Keys, values and recurrent states of its rows are partly written: the caller rolls the sequences back, as
    after any failed pass.
    """


class Decoder:
    """A loaded model of any architecture: a decoder, or an encoder (no output matrix, attention both ways).

    With `Spec.part` it is one stage of a pipeline: it has the embeddings if it has the first layer, and the
    output norm and matrix if it has the last one.

    Args:
        spec: sizes and facts.
        weights: the source of its tensors.
        context: tokens it will run with, on which some rotations depend; None for the training context.

    Raises:
        LoadError: a tensor is missing, has a wrong shape, or a format without kernels; a rotary factor is not
            above 0; or the context is longer than its table of positions.

    Attributes:
        carried: names and widths of the buffers that go from one stage to the next.
    """

    token_projection: Linear | None = None
    decision_head: Any = None

    def __init__(self, spec: Spec, weights: Weights, context: int | None = None) -> None:
        self.spec = spec
        self.kernels: Kernels = weights.kernels
        self.store: PanelStore = weights.store
        self.context: int = context or spec.context_length
        weights.ignore(spec.ignored)
        numbers = {f"{i}": f"{layer.block}" for i, layer in enumerate(spec.layers) if layer.block is not None}
        weights.name_layers(spec.family.block_prefix, dict(spec.family.renamed), numbers)
        self.inputs: InputEmbedding | None = (
            InputEmbedding(spec, weights, self.context) if spec.is_first else None
        )
        self.streams: Any | None = load_streams(spec, weights) if spec.family.streams else None
        self.layers: list[AnyLayer] = [load_layer(spec, i, weights) for i in spec.here]
        blocks = [
            block for layer in self.layers for block in layer.blocks() if hasattr(block, "state_floats")
        ]
        self.state_floats: int
        self.record_floats: int
        self.state_floats, self.record_floats = assign_state_offsets(blocks) if blocks else (0, 0)
        name = spec.family.output_norm if spec.is_last else ""
        self.output_norm: Norm | None = load_norm(spec, weights, name) if name else None
        self.output: Linear | None = load_output(spec, weights) if spec.is_last else None
        family, is_last = spec.family, spec.is_last
        self.classifier: Any = load_classifier(spec, weights) if is_last and family.classifier else None
        if is_last and family.token_projection:
            self.token_projection = weights.linear([("output", spec.embedding_width)], spec.n_embd)
        self.projection: Any = load_projection(spec, weights) if is_last and family.projections else None
        if is_last and spec.decision:
            self.decision_head = load_head(spec, weights)
        found = [load_frequencies(spec, i, weights, self.context) for i in range(len(spec.ropes))]
        self.frequencies: list[np.ndarray] = found

    def tables(self) -> list[Embedding]:
        """The tables of embeddings."""
        return self.inputs.tables() if self.inputs else []

    def linears(self) -> list[Linear]:
        """All linear layers, in the order of a forward pass."""
        found = self.inputs.linears() if self.inputs else []
        found += self.streams.linears() if self.streams else []
        found += [linear for layer in self.layers for linear in layer.linears()]
        found += [last for last in (self.output, self.token_projection) if last is not None]
        found += [linear for head in self._heads() for linear in head.linears()]
        return list(dict.fromkeys(found))  # layers may share theirs

    def groups(self) -> list[MatrixGroup]:
        """All linear layers, by layer of the model and in the order of a forward pass."""
        begin, end = (self.streams.begin_with, self.streams.end_with) if self.streams else ([], [])
        found = [MatrixGroup("inputs", [*(self.inputs.linears() if self.inputs else []), *begin])]
        known: set[Linear] = set()
        for i, layer in zip(self.spec.here, self.layers):
            for group in matrix_groups(f"layer {i}", layer):
                group.linears = [linear for linear in group.linears if linear not in known]
                known.update(group.linears)
                found.append(group)
        found.append(MatrixGroup("streams", end))
        ends = [last for last in (self.output, self.token_projection) if last is not None]
        found.append(MatrixGroup("output", ends))
        return found + [MatrixGroup("head", head.linears()) for head in self._heads()]

    def _heads(self) -> list[Any]:
        """What reads the last hidden states, besides the output matrix."""
        heads = (self.classifier, self.projection, self.decision_head)
        return [head for head in heads if head is not None]

    def workspace(self) -> Workspace:
        """Buffers for passes, without memory yet."""
        return Workspace(self.linears())

    @functools.cached_property
    def carried(self) -> dict[str, int]:
        """Buffers that hold what later layers read, with their floats per row."""
        spec = self.spec
        found = {"x": spec.n_embd}
        if spec.family.streams:
            n = OTHER_STREAMS if spec.connections is None else spec.connections.streams
            found["bank" if spec.family.streams == "banked" else "streams"] = n * spec.n_embd
        if spec.layer_width:
            found["layer_inputs"] = spec.n_layers * spec.layer_width
        if any(layer.mixer == "rwkv7" for layer in spec.layers):
            found["first_value"] = spec.n_embd
        if spec.family.adds_embedding:
            found["embedded"] = spec.n_embd
        if spec.switch is not None:
            found["adapter_slots"] = 1
        if any(layer.begins for layer in spec.layers):
            found |= dict.fromkeys(("high", "low"), spec.n_embd)
        return found

    @functools.cached_property
    def page_groups(self) -> tuple[PageGroup, ...]:
        """The groups of layers that keep their keys and values in the same pages."""
        return page_groups(self.spec)

    def kv_shapes(self, kv_type: str, page_size: int) -> list[Any]:
        """The kernels' `KvShape` of the pages of each page group."""
        shape = self.kernels.attention.KvShape
        key_type, value_type = (KV_TYPES[name] for name in KV_PAIRS[kv_type])
        return [shape(*group.sizes, key_type, value_type, page_size) for group in self.page_groups]

    def hidden_states(
        self,
        batch: Batch,
        kv: Sequence[Any],
        work: Workspace,
        tuner: Threads,
        cancelled: Callable[[], bool] | None = None,
        carried: Carried | None = None,
    ) -> np.ndarray:
        """Runs a batch.

        Args:
            batch: the rows.
            kv: for each page group, the kernels' `PagedBatch` of the rows; keys and values go into it.
            work: buffers, overwritten.
            tuner: chooses the number of threads of each layer.
            cancelled: called before every layer; True stops the pass.
            carried: the buffers that the previous stage passed on; None in the first one.

        Returns:
            float32 (wanted, n_embd): hidden states of the wanted rows after the last norm, in new memory; of
                an encoder with a `Family.token_projection` float32 (wanted, `Spec.embedding_width`).

        Raises:
            ForwardCancelled: ``cancelled`` returned True.
            ModelFileError: a file cannot be read or has changed since it was opened.
        """
        x, n_threads = self._run_layers(batch, kv, work, tuner, cancelled, carried)
        rows: np.ndarray = x.copy() if len(batch.wanted) == len(batch) else x[batch.wanted]
        if self.output_norm is not None and len(rows):
            self.output_norm.apply(rows, rows, n_threads)
        if self.token_projection is not None:
            return self._projected(self.token_projection, rows, batch, Pass(work.scratch, n_threads))
        return rows

    def _projected(self, matrix: Linear, rows: np.ndarray, batch: Batch, step: Pass) -> np.ndarray:
        """float32 (wanted, matrix.rows) of the hidden states of a batch's wanted rows."""
        found = np.empty((len(rows), matrix.rows), np.float32)
        step.adapted = batch.adapted and batch.adapted.of_rows(batch.wanted)
        with panels_in_use(self.store):
            matrix.apply(rows, found, step)
        return found

    def passed_on(
        self,
        batch: Batch,
        kv: Sequence[Any],
        work: Workspace,
        tuner: Threads,
        carried: Carried | None = None,
    ) -> Carried:
        """Runs a batch in a stage that is not the last; returns what the next stage gets."""
        self._run_layers(batch, kv, work, tuner, None, carried)
        return {name: work.rows[name, len(batch), width].copy() for name, width in self.carried.items()}

    def _run_layers(
        self,
        batch: Batch,
        kv: Sequence[Any],
        work: Workspace,
        tuner: Threads,
        cancelled: Callable[[], bool] | None,
        carried: Carried | None,
    ) -> tuple[np.ndarray, int]:
        """Runs the layers; their hidden states x (n, d), in a buffer, and the threads for what follows."""
        spec, n = self.spec, len(batch)
        scratch, alone = 0, tuner.max_threads == 1
        for part in kv:
            scratch = max(scratch, part.scratch_bytes(tuner.max_threads))
        work.reserve(n, scratch, batch.adapted)
        step = Step(
            batch=batch,
            kv=kv,
            work=work,
            scratch=work.scratch,
            n_threads=tuner.n_threads,
            tables={i: self._table(i, batch.positions) for i in self.rotations},
            temperatures=self._temperatures(batch.positions),
            table_at=self._table,
            adapted=batch.adapted,
        )
        if batch.recurrent_states is not None:
            before, after, earlier, recorded, settled = zip(*batch.recurrent_states)
            step.recurrent = new_state_batch(
                before, after, batch.row_start, self.state_floats,
                earlier, recorded, np.array(settled, np.int32), self.record_floats,
            )  # fmt: skip
        x = work.rows["x", n, spec.n_embd]
        self.store.begin_pass()
        try:
            if carried is None:
                assert self.inputs is not None, "only the first stage has embeddings"
                self.inputs.look_up(batch, x, step)
                if self.streams is not None:
                    self.streams.begin(x, step)
            for name, rows in (carried or {}).items():
                work.rows[name, n, self.carried[name]][:] = rows
            for number, layer in enumerate(self.layers):
                if number in batch.tapped:
                    work.rows.like(tap_of(number), x)[:] = x
                if cancelled is not None and cancelled():
                    raise ForwardCancelled
                if alone:
                    layer.run(x, step)
                    continue
                step.n_threads = tuner.begin(n, number)
                layer.run(x, step)
                tuner.end()
            if self.streams is not None and spec.is_last:
                self.streams.end(x, step)
        finally:
            self.store.end_pass()
        return x, tuner.n_threads

    def logits(
        self, rows: np.ndarray, work: Workspace, tuner: Threads, adapted: AdaptedRows | None = None
    ) -> np.ndarray:
        """float32 (n, vocab): logits of hidden states after the last norm, float32 (n, n_embd).

        ``adapted`` are the adapters of these rows. Raises ModelFileError as `hidden_states`.
        """
        assert self.output is not None, "an encoder has no logits"
        spec, out = self.spec, np.empty((len(rows), self.spec.n_vocab), np.float32)
        if len(rows):
            self.store.begin_pass()
            try:
                self.output.apply(rows, out, Pass(work.scratch, tuner.n_threads, adapted))
            finally:
                self.store.end_pass()
            if spec.logit_scale != 1:
                out *= np.float32(spec.logit_scale)
            if spec.final_soft_cap:
                self.kernels.vector.soft_cap(out, spec.final_soft_cap, tuner.n_threads)
            if spec.family.hidden_tokens:
                out[:, slice(*spec.family.hidden_tokens)] = np.finfo(np.float32).min
        return out

    def classify(self, hidden: np.ndarray, n_threads: int) -> np.ndarray:
        """float32 (n, n_labels): a reranker's scores for n texts.

        Args:
            hidden: float32 (n, n_embd), the hidden state of each text's token that `Classifier.pooling`
                names.
            n_threads: threads to use.
        """
        assert self.classifier is not None, "the model has no classifier"
        with panels_in_use(self.store):
            scores: np.ndarray = self.classifier.run(hidden, n_threads)
        return scores

    def project(self, pooled: np.ndarray, n_threads: int) -> np.ndarray:
        """Pooled hidden states, float32 (n, n_embd), after the matrices behind the pooling, if there are any.

        Raises ModelFileError as `hidden_states`.
        """
        if self.projection is None:
            return pooled
        with panels_in_use(self.store):
            projected: np.ndarray = self.projection.run(pooled, n_threads)
        return projected

    @functools.cached_property
    def rotations(self) -> list[int]:
        """The numbers of the rotations that layers use."""
        used = {layer.rope for layer in self.spec.layers}
        return [i for i in range(len(self.spec.ropes)) if i in used]

    def _table(self, i: int, positions: np.ndarray) -> np.ndarray:
        """float32 (n, 2, n_rot / 2): cosines and sines of the rotation with index ``i`` at n positions."""
        rope = self.spec.ropes[i]
        table = np.empty((len(positions), 2, rope.n_rot // 2), np.float32)
        self.kernels.vector.rope_table(positions, self.frequencies[i], rope.magnitude, table)
        return table

    def _temperatures(self, positions: np.ndarray) -> np.ndarray | None:
        """float32 (n, 1): factors of the queries in layers with `LayerSpec.scaled_queries`; None for 1."""
        temperature = self.spec.temperature
        if temperature is None:
            return None
        # a correctly rounded logarithm of each distinct value: the same bits on every machine
        steps = (positions + temperature.offset) // temperature.length + 1
        factors = {int(s): 1.0 + temperature.rate * log_of(int(s)) for s in np.unique(steps)}
        return np.array([[factors[int(s)]] for s in steps], np.float32)


class InputEmbedding:
    """The input of the first layer: scaled token embeddings plus type and position embeddings, normed."""

    def __init__(self, spec: Spec, weights: Weights, context: int) -> None:
        family, d = spec.family, spec.n_embd
        self.scale: float = spec.embedding_scale
        self.tokens: Embedding = weights.embedding(embedding_table(family, weights.file), spec.n_vocab, d)
        self.positions: Embedding | None = None
        self.type: np.ndarray | None = None
        name = "position_embd.weight"
        if family.positions == "yes" or (family.positions == "auto" and weights.has(name)):
            self.positions = weights.embedding(name, spec.context_length, d)
            if context > spec.context_length:
                raise LoadError(
                    f"{name}: expected {context} positions (the context size), got {spec.context_length}"
                )
        name = "token_types.weight"
        if family.token_types and weights.has(name):
            kinds = weights.shape(name)[1:]
            self.type = weights.matrix(name, kinds[0] if kinds else 1, d)[0]
        self.norm: Norm | None = load_norm(spec, weights, "token_embd_norm") if family.embd_norm else None
        self.choice: Any | None = load_choice(spec) if spec.switch else None
        self.is_added_again: bool = family.adds_embedding
        self.of_layers: Any | None = load_layer_embeddings(spec, weights) if spec.layer_width else None

    def tables(self) -> list[Embedding]:
        """The tables of embeddings."""
        of_layers = self.of_layers.table if self.of_layers else None
        return [table for table in (self.tokens, self.positions, of_layers) if table is not None]

    def linears(self) -> list[Linear]:
        return [self.of_layers.projection] if self.of_layers else []

    def look_up(self, batch: Batch, x: np.ndarray, step: Step) -> None:
        """x (n, d) = the input embeddings of the batch's tokens."""
        tokens = batch.tokens if self.choice is None else self.choice.run(batch.tokens, step)
        self.tokens.lookup(tokens, x)
        if step.adapted is not None:
            step.adapted.add_to_embeddings(tokens, x, step.scratch, step.n_threads)
        if self.scale != 1:
            x *= np.float32(self.scale)
        if batch.input_rows is not None:
            batch.input_rows.put(x, step)
        if self.type is not None:
            x += self.type
        if self.positions is not None:
            places = np.empty_like(x)
            self.positions.lookup(batch.positions, places)
            x += places
        if self.norm is not None:
            self.norm.apply(x, x, step.n_threads)
        if self.of_layers is not None:
            self.of_layers.look_up(x, step)
        if self.is_added_again:
            step.work.rows.like("embedded", x)[:] = x


def load_output(spec: Spec, weights: Weights) -> Linear | None:
    """The output matrix: its own, or the embedding table; None for an encoder."""
    kind = spec.family.output
    if kind == "none":
        return None
    least = max(spec.family.hidden_tokens, default=0)
    if spec.n_vocab < least:
        raise LoadError(f"token_embd.weight: expected at least {least} rows, got {spec.n_vocab}")
    own = kind in ("own", "both") or (kind == "auto" and weights.has("output.weight"))
    return weights.linear([("output" if own else "token_embd", spec.n_vocab)], spec.n_embd)
