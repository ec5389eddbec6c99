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
from oxillama.errors import LoadError
from oxillama.formats import KV_PAIRS, KV_TYPES
from oxillama.models.layers.layer import AnyLayer, load_layer, matrix_groups
from oxillama.models.layers.norm import Norm, load_norm
from oxillama.models.page_groups import PageGroup, page_groups
from oxillama.models.read_spec import embedding_table
from oxillama.models.rope import MAX_ANGLE, log_of
from oxillama.models.spec import Spec
from oxillama.models.workspace import Batch, Step, Threads, Workspace
from oxillama.on_use import on_use
from oxillama.weights.linear import Embedding, Linear, MatrixGroup, PanelStore, Pass, panels_in_use
from oxillama.weights.loader import Weights

if TYPE_CHECKING:
    from oxillama.weights.low_rank import AdaptedRows

OTHER_STREAMS = 3
"""Streams of hidden states beside the first (Gemma 3n)."""
load_streams: Callable[..., Any] = on_use("oxillama.models.layers.streams:Streams")
load_layer_embeddings: Callable[..., Any] = on_use("oxillama.models.layers.layer_input:LayerEmbeddings")
assign_state_offsets: Callable[..., Any] = on_use("oxillama.models.layers.recurrent:assign_state_offsets")
new_state_batch: Callable[..., Any] = on_use("oxillama._kernels.recurrent.state_batch:StateBatch")
load_classifier: Callable[..., Any] = on_use("oxillama.models.classifier:load_classifier")
load_projection: Callable[..., Any] = on_use("oxillama.models.projection:load_projection")

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

    Parameters
    ----------
    spec : sizes and facts.
    weights : the source of its tensors.
    context : tokens it will run with, on which some rotations depend; None for the training context.

    Raises
    ------
    LoadError : a tensor is missing, has a wrong shape, or a format without kernels; a rotary factor is not
        above 0; or the context is longer than its table of positions.

    Attributes
    ----------
    carried : names and widths of the buffers that go from one stage to the next.
    """

    def __init__(self, spec: Spec, weights: Weights, context: int | None = None) -> None:
        self.spec = spec
        self.kernels: Kernels = weights.kernels
        self.store: PanelStore = weights.store
        self.context: int = context or spec.context_length
        weights.ignore(spec.ignored)
        weights.name_layers(spec.family.block_prefix, dict(spec.family.renamed))
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
        self.projection: Any = load_projection(spec, weights) if is_last and family.projections else None
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
        found += [self.output] if self.output else []
        heads = [head for head in (self.classifier, self.projection) if head is not None]
        return found + [linear for head in heads for linear in head.linears()]

    def groups(self) -> list[MatrixGroup]:
        """All linear layers, by layer of the model and in the order of a forward pass."""
        begin, end = (self.streams.begin_with, self.streams.end_with) if self.streams else ([], [])
        found = [MatrixGroup("inputs", [*(self.inputs.linears() if self.inputs else []), *begin])]
        for i, layer in zip(self.spec.here, self.layers):
            found += matrix_groups(f"layer {i}", layer)
        found.append(MatrixGroup("streams", end))
        found.append(MatrixGroup("output", [self.output] if self.output else []))
        heads = [head for head in (self.classifier, self.projection) if head is not None]
        return found + [MatrixGroup("head", head.linears()) for head in heads]

    def workspace(self) -> Workspace:
        """Buffers for passes, without memory yet."""
        return Workspace(self.linears())

    @functools.cached_property
    def carried(self) -> dict[str, int]:
        """Buffers that hold what later layers read, with their floats per row."""
        spec = self.spec
        found = {"x": spec.n_embd}
        if spec.family.streams:
            found["streams"] = OTHER_STREAMS * spec.n_embd
        if spec.layer_width:
            found["layer_inputs"] = spec.n_layers * spec.layer_width
        if any(layer.mixer == "rwkv7" for layer in spec.layers):
            found["first_value"] = spec.n_embd
        return found

    @functools.cached_property
    def page_groups(self) -> tuple[PageGroup, ...]:
        """Which layers keep their keys and values together."""
        return page_groups(self.spec)

    def kv_shapes(self, kv_type: str, page_size: int) -> list[Any]:
        """Of each page group the kernels' `KvShape` of its pages."""
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
        given: Carried | None = None,
    ) -> np.ndarray:
        """Runs a batch.

        Parameters
        ----------
        batch : the rows.
        kv : of each page group the kernels' `PagedBatch` over the same rows, into which their keys and values
            are stored.
        work : buffers, overwritten.
        tuner : chooses the number of threads of each layer.
        cancelled : called before every layer; True stops the pass.
        given : the buffers that the previous stage passed on; None in the first one.

        Returns
        -------
        float32 (wanted, n_embd) : hidden states of the wanted rows after the last norm, in new memory.

        Raises
        ------
        ForwardCancelled : ``cancelled`` returned True.
        ModelFileError : a file cannot be read or has changed since it was opened.
        """
        x, n_threads = self._run_layers(batch, kv, work, tuner, cancelled, given)
        rows: np.ndarray = x.copy() if len(batch.wanted) == len(batch) else x[batch.wanted]
        if self.output_norm is not None and len(rows):
            self.output_norm.apply(rows, rows, n_threads)
        return rows

    def passed_on(
        self,
        batch: Batch,
        kv: Sequence[Any],
        work: Workspace,
        tuner: Threads,
        given: Carried | None = None,
    ) -> Carried:
        """Runs a batch in a stage that is not the last; returns the ``given`` of the next stage's pass."""
        self._run_layers(batch, kv, work, tuner, None, given)
        return {name: work.rows[name, len(batch), width].copy() for name, width in self.carried.items()}

    def _run_layers(
        self,
        batch: Batch,
        kv: Sequence[Any],
        work: Workspace,
        tuner: Threads,
        cancelled: Callable[[], bool] | None,
        given: Carried | None,
    ) -> tuple[np.ndarray, int]:
        """Runs the layers; the hidden states x (n, d) behind them, in a buffer, and the threads for what
        follows."""
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
            if given is None:
                assert self.inputs is not None, "only the first stage has embeddings"
                self.inputs.look_up(batch, x, step)
                if self.streams is not None:
                    self.streams.begin(x, step)
            for name, rows in (given or {}).items():
                work.rows[name, n, self.carried[name]][:] = rows
            for layer in self.layers:
                if cancelled is not None and cancelled():
                    raise ForwardCancelled
                if alone:
                    layer.run(x, step)
                    continue
                step.n_threads = tuner.begin(n)
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
        return out

    def classify(self, hidden: np.ndarray, n_threads: int) -> np.ndarray:
        """float32 (n, n_labels): a reranker's scores for n texts.

        Parameters
        ----------
        hidden : float32 (n, n_embd), the hidden state of each text's token that `Classifier.pooling` names.
        n_threads : threads to use.
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
        """float32 (n, 2, n_rot / 2): cosines and sines of rotation ``i``."""
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
        self.of_layers: Any | None = load_layer_embeddings(spec, weights) if spec.layer_width else None

    def tables(self) -> list[Embedding]:
        """The tables of embeddings."""
        of_layers = self.of_layers.table if self.of_layers else None
        return [table for table in (self.tokens, self.positions, of_layers) if table is not None]

    def linears(self) -> list[Linear]:
        return [self.of_layers.projection] if self.of_layers else []

    def look_up(self, batch: Batch, x: np.ndarray, step: Step) -> None:
        """x (n, d) = the input embeddings of the batch's tokens."""
        self.tokens.lookup(batch.tokens, x)
        if step.adapted is not None:
            step.adapted.add_to_embeddings(batch.tokens, x, step.scratch, step.n_threads)
        if self.scale != 1:
            x *= np.float32(self.scale)
        if batch.given is not None:
            batch.given.put(x, step)
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


def load_output(spec: Spec, weights: Weights) -> Linear | None:
    """The output matrix: its own, or the embedding table; None for an encoder."""
    kind = spec.family.output
    if kind == "none":
        return None
    own = kind in ("own", "both") or (kind == "auto" and weights.has("output.weight"))
    return weights.linear([("output" if own else "token_embd", spec.n_vocab)], spec.n_embd)


def load_frequencies(spec: Spec, i: int, weights: Weights, context: int) -> np.ndarray:
    """float64 (n_rot / 2,): radians per position of rotation ``i``, divided by the file's rotary factors."""
    rope, name = spec.ropes[i], "rope_freqs.weight"
    names = [name] if weights.has(name) else []
    if not names and (spec.family.longrope or rope.kind == "longrope"):
        names = [f"rope_factors_{length}.weight" for length in ("short", "long")]
        names = [name for name in names if weights.has(name)]
        name = f"rope_factors_{'long' if context > rope.original_context else 'short'}.weight"
    # some files have factors for dimensions that do not rotate, too
    n, whole = rope.n_rot // 2, spec.key_dim // 2
    sizes = {name: whole if weights.shape(name) == (whole,) else n for name in names}
    factors = {name: weights.vector(name, sizes[name])[:n] for name in names}
    for other, values in factors.items():
        if not (np.isfinite(values) & (values > 0)).all():
            raise LoadError(f"{other}: expected finite numbers above 0")
    plain = i > 0 and spec.family.local_rope == "plain"
    found = rope.frequencies(context, None if plain else factors.get(name))
    most = MAX_ANGLE / min(context, MAX_ANGLE)
    if not (found <= most).all():
        key = name if name in factors else f"{spec.family.name}.rope.scaling.factor"
        wanted = f"at most {most:g} radians per position in a context of {context}"
        raise LoadError(f"{key}: expected {wanted}, got {found.max()}")
    return found
