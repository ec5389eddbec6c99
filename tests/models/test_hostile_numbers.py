"""Every number that a spec reads, of every family, set to what no model has: an error that names the key, or
a model that runs."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from oxillama._kernels import best
from oxillama.errors import GGUFError, LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.models import read_spec
from oxillama.models.decoder import Decoder
from oxillama.models.metadata import RANGES, USUAL_RANGE, Reader
from oxillama.models.preflight import preflight
from oxillama.models.weights.loader import Weights
from tests.support import zoo
from tests.support.spread import few
from tests.support.tiny_models import Running

INF, NAN = float("inf"), float("nan")
HOSTILE: list[int | float] = [
    *(0, -1, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, -(2**63)),
    *(0.0, -1.0, 1.0, 5e-324, 1e-30, 1e30, 1.7e308, INF, -INF, NAN),
]
SIZED = ("position_embd.", "per_layer_token_embd.", "per_layer_model_proj.", "output.", "output_hc_")
"""Beginnings of names of tensors outside of layers whose shapes follow sizes of the file."""
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}


@cache
def raw(name: str) -> bytes:
    return (zoo.MODELS | zoo.VARIANTS)[name].file()


def opened(name: str) -> ModelFile:
    """A model of the zoo; its metadata may be changed."""
    return ModelFile.open(raw(name))


def keys_of(name: str, extra: dict[str, Any]) -> set[str]:
    """The keys of numbers that the spec of a model reads, without their prefix."""
    file, found = opened(name), set()
    prefix = file.metadata["general.architecture"]
    file.metadata.update({f"{prefix}.{key}": value for key, value in extra.items()})
    get = Reader.get

    def recording(self: Reader, key: str, kind: Any, default: Any) -> Any:
        if kind in (int, float):
            found.add(key)
        return get(self, key, kind, default)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reader, "get", recording)
        read_spec(file)
    return found


def cases() -> list[Any]:
    """(model, key, whether YaRN is on) for `parametrize`: each key with at most two of the families that
    read it, the second one as a slow test."""
    users: dict[tuple[str, bool], list[str]] = {}
    for name in sorted(zoo.MODELS):
        rotates = zoo.MODELS[name].architecture in (
            "llama", "grok", "deepseek2", "mistral3", "gpt-oss", "gemma3",
        )  # fmt: skip
        for yarn in (False, True) if rotates else (False,):
            for key in keys_of(name, YARN if yarn else {}):
                if not yarn or key.startswith("rope."):
                    users.setdefault((key, yarn), []).append(name)
    CASES.extend(sorted((name, key, yarn) for (key, yarn), names in users.items() for name in names[:2]))
    return few(CASES, {(names[0], *read) for read, names in users.items()})


CASES: list[tuple[str, str, bool]] = []
MARKED = cases()


def changed(name: str, key: str, yarn: bool, value: int | float) -> ModelFile:
    file = opened(name)
    prefix = file.metadata["general.architecture"]
    extra = (YARN if yarn else {}) | {key: value}
    file.metadata.update({f"{prefix}.{one}": it for one, it in extra.items()})
    return file


def run(file: ModelFile, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Hidden states, or an error of loading."""
    with monkeypatch.context() as patch:
        patch.setattr(ModelFile, "open", lambda source: file)
        return Running(b"").outputs([1, 2, 3])


def test_every_number_is_covered() -> None:
    found = {key for _, key, _ in CASES}
    assert found >= RANGES.keys() - {"attention.layer_norm_epsilon"}
    assert len(found) > 60


@pytest.mark.parametrize(("name", "key", "yarn"), MARKED)
def test_a_hostile_number_is_named_or_harmless(
    name: str, key: str, yarn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = opened(name).metadata["general.architecture"]
    for value in HOSTILE:
        file = changed(name, key, yarn, value)
        try:
            read_spec(file)
        except (LoadError, GGUFError) as error:
            assert str(error).startswith((f"{prefix}.", "blk.")), (value, error)
            assert preflight(file).reasons[0] == str(error)
            continue
        try:
            found = run(file, monkeypatch)
        except (LoadError, GGUFError) as error:  # a tensor has another shape than the size says
            assert str(error).startswith((f"{prefix}.", "blk.", *SIZED)), (value, error)
            assert ": expected" in str(error)
            continue
        assert np.isfinite(found).all(), value


@pytest.mark.parametrize(("name", "key", "yarn"), [case for case in CASES if case[1] in RANGES])
def test_a_number_at_the_end_of_its_range_runs(
    name: str, key: str, yarn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in RANGES.get(key, USUAL_RANGE):
        try:
            found = run(changed(name, key, yarn, value), monkeypatch)
        except LoadError as error:
            assert "expected another base than 1" in str(error)
            continue
        assert np.isfinite(found).all(), value


@pytest.mark.parametrize("factor", [5e-324, 1e-7, 1e-45, 0.0, -1.0, NAN, INF])
def test_rotary_factors_that_turn_too_fast_are_named(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened("llama")
    n_rot = read_spec(file).ropes[0].n_rot
    held = np.full(n_rot // 2, factor, np.float32)
    weights = Weights(file, best(), 1)
    vector, added = weights.vector, "rope_freqs.weight"
    monkeypatch.setattr(weights, "has", lambda name: name == added or name in file.tensors)
    monkeypatch.setattr(weights, "vector", lambda name, n: held if name == added else vector(name, n))
    shape = weights.shape
    monkeypatch.setattr(weights, "shape", lambda name: held.shape if name == added else shape(name))
    with pytest.raises(LoadError, match=r"^rope_freqs\.weight: expected"):
        Decoder(read_spec(file), weights)


@pytest.mark.parametrize("factor", [0.5, 1e-3])
def test_angles_stay_where_sines_are_exact(factor: float) -> None:
    file = opened("llama")
    file.metadata["llama.rope.scaling.factor"] = factor
    spec, most = read_spec(file), int(1e6 * factor)
    assert Decoder(spec, Weights(file, best(), 1), most).frequencies[0].max() * most == pytest.approx(1e6)
    with pytest.raises(LoadError, match=r"^llama\.rope\.scaling\.factor: expected at most .* radians"):
        Decoder(spec, Weights(file, best(), 1), most + 1)


# Tensors: a model with NaN loads; its logits are what the sampler refuses (see docs/architecture.md)


@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e38, -1e38])
@pytest.mark.parametrize(
    "part", ["norm", "bias", "ffn_gate_inp", "exp_probs_b", "token_embd", "attn_q", "ssm"]
)
def test_any_tensor_may_hold_anything(part: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("llama", "deepseek2", "gpt-oss", "granitehybrid", "rwkv7"):
        data = bytearray(raw(name))
        for tensor, info in opened(name).tensors.items():
            if part in tensor and info.format.name == "F32":
                np.frombuffer(data, np.float32, info.n_elements, info.offset)[::3] = value
        assert run(ModelFile.open(data), monkeypatch).dtype == np.float32
