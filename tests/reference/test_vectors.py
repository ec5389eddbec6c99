"""Published test vectors: the reference and the kernels of every target give the bits of the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import Sampler, SamplerConfig
from oxillama._kernels import load, pack
from oxillama.base.formats import FORMATS, ROUNDED
from oxillama.reference import rows, vectors
from oxillama.reference.vectors import Case, Expected
from tests.support.kernels import NAMES, PRESENT, apply, linear
from tests.support.paged_cache import Cache, choose
from tests.support.tiny_models import Running

PUBLISHED = vectors.load()
CASES = vectors.cases()


def activation(case: Case, target: str) -> np.ndarray:
    out = np.empty_like(case.inputs["x"])
    load(target).vector.activate(case.inputs["x"], case.options["name"], out, 1)
    return out


def gate(case: Case, target: str) -> np.ndarray:
    both = np.concatenate([case.inputs["x"], case.inputs["up"]])[None]
    out = np.empty((1, both.shape[1] // 2), np.float32)
    load(target).vector.gate(both, case.options["name"], out, 1)
    return out


def norm(case: Case, target: str) -> np.ndarray:
    vector, x, out = load(target).vector, case.inputs["x"], np.empty_like(case.inputs["x"])
    kernel = vector.layer_norm if case.options["centred"] else vector.rms_norm
    kernel(x, case.inputs["weight"], case.options["eps"], out, 1)
    return out


def cut_gates(case: Case, target: str) -> np.ndarray:
    out = case.inputs["x"].copy()
    load(target).vector.cut(out, out.shape[1], case.options["scale"], 1)
    return out


def selector(case: Case, target: str) -> np.ndarray:
    keys, most = case.inputs["keys"], case.options["most"]
    cache = Cache(target, (1, 1, keys.shape[1], 0), case.options["kv_type"], n_pages=100)
    batch = cache.batch([(0, len(keys))])
    batch.store(0, keys, 0, 0, 1)
    queries = case.inputs["queries"].reshape(len(keys), -1)
    return choose(batch, queries, case.inputs["weights"], most, len(keys))[most:]


def soft_cap(case: Case, target: str) -> np.ndarray:
    out = case.inputs["x"].copy()
    load(target).vector.soft_cap(out, case.options["cap"], 1)
    return out


def softmax(case: Case, target: str) -> np.ndarray:
    out = np.empty_like(case.inputs["x"])
    assert load(target).vector.softmax(case.inputs["x"], out)
    return out


def rotation(case: Case, target: str) -> np.ndarray:
    vector, out = load(target).vector, case.inputs["x"].reshape(6, -1).copy()
    table = np.empty((6, 2, case.options["n_rot"] // 2), np.float32)
    turns = rows.frequencies(case.options["n_rot"], case.options["base"])
    vector.rope_table(case.inputs["positions"], turns, 1.0, table)
    vector.rope(out, 3, 32, table, case.options["neox"], 1)
    return out


def experts(case: Case, target: str) -> np.ndarray:
    logits, k, gating = case.inputs["logits"], case.options["k"], case.options["gating"]
    chosen, weights = np.empty((len(logits), k), np.int32), np.empty((len(logits), k), np.float32)
    bias = None if gating == "chosen" else case.inputs["bias"]
    groups, kept = case.options["groups"], case.options["kept"]
    load(target).routing.route(logits, bias, gating, groups, kept, True, 2.5, chosen, weights)
    return np.hstack([chosen.astype(np.float32), weights])


def product(case: Case, target: str) -> np.ndarray:
    name, x, blocks = case.options["format"], case.inputs["x"], case.inputs["blocks"]
    values = np.empty(len(blocks) * x.shape[1], np.float32)
    pack.dequantize(FORMATS[name].id, blocks.reshape(-1), values)
    name = ROUNDED[case.options["compute"]].name if "compute" in case.options else name
    return np.concatenate([apply(linear(target, [(name, blocks)], x.shape[1]), x).reshape(-1), values])


def attention(case: Case, target: str) -> np.ndarray:
    options: dict[str, Any] = {"key_dim": 40, **case.options}
    options |= {name: array for name, array in case.inputs.items() if name != "qkv"}
    if "soft_cap" in options:
        options["softcap"] = options.pop("soft_cap")
    qkv, dim = case.inputs["qkv"], options.pop("key_dim")
    cache = Cache(target, (1, 1, dim, qkv.shape[1] - 3 * dim), options.pop("kv_type"), n_pages=100)
    (found,) = cache.run([(0, qkv)], 2, 0.3, **options)
    return found


def sampler(case: Case, target: str) -> np.ndarray:
    chooser, history = Sampler(SamplerConfig(**case.options), load(target)), [3, 5]
    for logits in case.inputs["logits"]:
        history.append(chooser.sample(logits, history))
    return np.array(history[2:], np.int32)


def model(case: Case, target: str) -> np.ndarray:
    data = (vectors.FOLDER / case.options["file"]).read_bytes()
    tokens = case.inputs["tokens"].tolist()
    return Running(data, target=target, kv_type=case.options["kv_type"]).logits(tokens)


KERNELS: dict[str, Callable[[Case, str], np.ndarray]] = {
    "activation": activation, "gate": gate, "norm": norm, "cut gates": cut_gates, "selector": selector,
    "soft cap": soft_cap, "softmax": softmax, "rotation": rotation, "experts": experts, "product": product,
    "attention": attention, "sampler": sampler, "model": model,
}  # fmt: skip
"""What the kernels of a target make of a case."""


def test_every_case_is_published() -> None:
    assert list(PUBLISHED) == list(CASES)
    assert set(KERNELS) == set(vectors.OPERATIONS) == {case.operation for case in CASES.values()}
    assert {f"product {name}" for name in NAMES} <= set(CASES)


def test_the_files_are_small() -> None:
    assert sum(path.stat().st_size for path in Path(vectors.FOLDER).iterdir()) < 300_000


@pytest.mark.parametrize("name", CASES)
def test_the_reference(name: str) -> None:
    case = CASES[name]
    assert Expected.of(vectors.OPERATIONS[case.operation](case)) == PUBLISHED[name]


@pytest.mark.parametrize("target", PRESENT)
@pytest.mark.parametrize("operation", KERNELS)
def test_the_kernels(operation: str, target: str) -> None:
    for name, case in CASES.items():
        if case.operation == operation:
            assert Expected.of(KERNELS[operation](case, target)) == PUBLISHED[name], name
