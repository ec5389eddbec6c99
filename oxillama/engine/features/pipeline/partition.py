"""Assigns layers to the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from oxillama.errors import ConfigError
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Spec


def layer_costs(spec: Spec, file: ModelFile) -> list[int]:
    """Bytes of each layer's tensors that a token's pass reads; of experts those that it uses."""
    found = [0] * spec.n_layers
    stored = [str(i if layer.block is None else layer.block) for i, layer in enumerate(spec.layers)]
    for name, info in file.tensors.items():
        words = name.removeprefix(spec.family.block_prefix).split(".")
        for i, number in enumerate(stored if words[0] == "blk" else ()):
            if number != words[1]:
                continue
            n_bytes = info.nbytes
            if spec.experts is not None and "_exps" in name:
                n_bytes = n_bytes * spec.layers[i].experts // spec.experts.n_experts
            found[i] += n_bytes
    return found


def borders_allowed(spec: Spec) -> list[int]:
    """The layers before which a stage may begin: none behind it attends to keys of a layer before it, or to
    positions that one before it has chosen."""
    needed = [
        min(i if other is None else other for other in (layer.kv_from, layer.selected_by))
        for i, layer in enumerate(spec.layers)
    ]
    return [border for border in range(1, spec.n_layers) if min(needed[border:]) >= border]


def split(
    spec: Spec, file: ModelFile, speeds: Sequence[float], borders: Sequence[int] | None = None
) -> list[tuple[int, int]]:
    """The layers of each stage: the first, and the one behind the last.

    The slowest stage takes as little time as possible: its bytes by its speed. The last stage also has the
    output matrix.

    Args:
        speeds: of the stages, in any one unit.
        borders: the first layers of all stages but the first, to choose them; None to balance them.

    Raises:
        ConfigError: there are fewer layers than stages, or a border stands between a layer and another one
            that attends to its keys, or to the positions that it has chosen.
    """
    allowed, n = borders_allowed(spec), len(speeds)
    if borders is not None:
        wrong = [border for border in borders if border not in allowed]
        if wrong or len(borders) != n - 1 or list(borders) != sorted(set(borders)):
            wanted = f"{n - 1} of {allowed}, ascending"
            raise ConfigError(f"borders: expected {wanted}, got {list(borders)}")
        ends = [*borders, spec.n_layers]
        return list(zip([0, *borders], ends))
    if len(allowed) < n - 1:
        raise ConfigError(f"stages: expected at most {len(allowed) + 1} for this model, got {n}")
    costs = layer_costs(spec, file)
    output = file.tensors.get("output.weight") or file.tensors.get("token_embd.weight")
    behind = 0 if output is None else output.nbytes
    sums = [0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    places = [0, *allowed]
    # best[place] : the time of the slowest of the stages before it, and their borders
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for stage in range(n - 1):
        following: dict[int, tuple[float, tuple[int, ...]]] = {}
        for start, (slowest, taken) in best.items():
            for end in places:
                if end > start:
                    time = max(slowest, (sums[end] - sums[start]) / speeds[stage])
                    if end not in following or time < following[end][0]:
                        following[end] = (time, (*taken, end))
        best = following
    _, chosen = min(
        (max(slowest, (sums[-1] - sums[start] + behind) / speeds[-1]), taken)
        for start, (slowest, taken) in best.items()
    )
    return list(zip([0, *chosen], [*chosen, spec.n_layers]))
