"""Checks whether a file can be loaded and how much memory it needs, without its weights.

All tensors are checked as in loading, and a model is built, but matrices are not read. So errors and sizes
are the same as in loading.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from oxillama._kernels import Kernels, best
from oxillama.base.config.engine import EngineConfig
from oxillama.base.formats import KV_PAIRS
from oxillama.errors import ConfigError, GGUFError, LoadError, TokenizerError
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, Spec, read_spec
from oxillama.models.offload.parts import parts_of, pin, sizes_of
from oxillama.models.offload.plan import make_plan
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.weights.packer import Source
from oxillama.text.chat.bridge import TokenizerBridge


@dataclass(frozen=True)
class Preflight:
    """The memory that a file needs, or the reasons why it cannot be loaded.

    Attributes:
        reasons: errors that loading it raises; () for none.
        spec, tokenizer: None where they cannot be read.
        surplus: tensors that the model does not use.
        weight_bytes: memory of the packed matrices.
        least_budget: bytes of the smallest ``offload_budget``.
        resident_bytes: of matrices in memory at a time, at most: all, or what the budget allows.
        table_bytes: bytes of the embedding tables, which stay in the file.
        kv_bytes: memory of the keys and values of a token, by KV type.
        kv_context_bytes: of those that a sequence as long as the training context keeps.
        state_bytes: memory of the recurrent state of a sequence.
    """

    reasons: tuple[str, ...]
    spec: Spec | None = None
    tokenizer: TokenizerBridge | None = None
    surplus: tuple[str, ...] = ()
    weight_bytes: int = 0
    least_budget: int = 0
    resident_bytes: int = 0
    table_bytes: int = 0
    kv_bytes: dict[str, int] = field(default_factory=dict)
    kv_context_bytes: dict[str, int] = field(default_factory=dict)
    state_bytes: int = 0


class UnpackedLinear(Linear):
    """The sizes of a linear layer, which cannot be applied."""

    _panels = None

    def __init__(self, sources: list[Source], cols: int) -> None:
        self.sources = sources
        self.rows: int = sum(source.rows for source in sources)
        self.cols = cols


class UnpackedWeights(Weights):
    """Weights that are checked and counted, but not packed."""

    def __init__(self, file: ModelFile, kernels: Kernels) -> None:
        super().__init__(file, kernels, 1)
        self.packed_bytes: int = 0

    def linear_of(self, sources: list[Source], cols: int, bias: np.ndarray | None) -> Linear:
        self.packed_bytes += sum(source.packed_bytes(cols) for source in sources)
        return UnpackedLinear(sources, cols)


def preflight(file: ModelFile, budget: int | None = None, pinned: tuple[str, ...] = ()) -> Preflight:
    """Checks an open file. Errors of loading are returned, not raised.

    ``budget`` and ``pinned`` are ``offload_budget`` and ``offload_pinned`` of `EngineConfig`.
    """
    reasons, tokenizer = [], None
    try:
        tokenizer = TokenizerBridge.from_metadata(file.metadata)
    except TokenizerError as error:
        reasons.append(str(error))
    try:
        spec = read_spec(file)
    except (LoadError, GGUFError) as error:
        without = sorted({t.format.name for t in file.tensors.values() if t.format.layout is None})
        missing = [f"format {name} has no kernels" for name in without]
        return Preflight((str(error), *missing, *reasons), tokenizer=tokenizer)
    if tokenizer is not None and tokenizer.n_vocab > spec.n_vocab:
        reasons.append(f"tokenizer: has {tokenizer.n_vocab} tokens, the embedding only {spec.n_vocab} rows")
    weights = UnpackedWeights(file, best())
    try:
        model = Decoder(spec, weights)
    except (LoadError, GGUFError) as error:
        return Preflight((str(error), *reasons), spec, tokenizer)
    groups = model.groups()
    parts = parts_of(groups)
    resident = weights.packed_bytes
    try:
        pin(parts, pinned)
        sizes = sizes_of(parts, groups)
        if budget is not None:
            make_plan(sizes, budget)
            resident = min(resident, budget)
    except ConfigError as error:
        return Preflight((str(error), *reasons), spec, tokenizer)
    page = EngineConfig.page_size
    kv, whole = dict.fromkeys(KV_PAIRS, 0), dict.fromkeys(KV_PAIRS, 0)
    for name in KV_PAIRS if spec.attending else ():
        for group, shape in zip(model.page_groups, model.kv_shapes(name, page)):
            context, reach = spec.context_length, group.reach
            kv[name] += shape.page_bytes // page
            whole[name] += (
                shape.page_bytes // page * (min(context, reach.most) if reach.is_limited else context)
            )
    return Preflight(
        reasons=tuple(reasons),
        spec=spec,
        tokenizer=tokenizer,
        surplus=tuple(weights.unused()),
        weight_bytes=weights.packed_bytes,
        least_budget=sizes.least,
        resident_bytes=resident,
        table_bytes=sum(table.table.nbytes for table in model.tables()),
        kv_bytes=kv,
        kv_context_bytes=whole,
        state_bytes=4 * model.state_floats,
    )
