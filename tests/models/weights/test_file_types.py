"""File types give each tensor the format that llama.cpp gives it, as recorded; names are checked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from oxillama import ConfigError, ImportanceMatrix, quantize_model
from oxillama.apps.quantize.imatrix import Entry
from oxillama.apps.quantize.mixes import ModelFacts, mixed
from oxillama.base.formats import FORMATS, WRITABLE
from oxillama.gguf.file_types import (
    FALLBACK,
    FILE_TYPES,
    fitting,
    is_quantized,
    named_format,
    named_type,
)
from tests.support.file_type_cases import CASES, LETTERS, OURS_ALONE, Case
from tests.support.paths import DATA
from tests.support.spread import each

RECORDED = json.loads((DATA / "file_types.json").read_text())


def ones(case: Case) -> ImportanceMatrix:
    """The same importance everywhere."""
    found = ImportanceMatrix()
    for name, shape in case.matrices().items():
        if len(shape) > 1:
            n = shape[2] if len(shape) > 2 else 1
            found.entries[name] = Entry(np.ones((n, shape[0]), np.float32), np.ones(n, np.float32))
    return found


@pytest.mark.parametrize("name", each(CASES, 3))
def test_every_tensor_gets_the_format_that_llama_cpp_gives_it(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(case.file())
    for key, formats in RECORDED[name].items():
        file_type, _, weighted = key.partition(", ")
        plan = quantize_model(path, None, file_type, imatrix=ones(case) if weighted else None)
        assert "".join(LETTERS[tensor.format.name] for tensor in plan.tensors) == formats, (name, key)


def test_all_file_types_are_recorded() -> None:
    assert {key.partition(", ")[0] for key in RECORDED["grouped"]} == set(FILE_TYPES) - {*OURS_ALONE}
    assert set(RECORDED) == set(CASES)
    different = {formats for case in RECORDED.values() for formats in case.values()}
    assert len(different) > 80  # the cases tell the rules apart


@pytest.mark.parametrize(
    ("name", "found"), [("q4_k_m", "Q4_K_M"), ("Q4_K", "Q4_K_M"), ("Q5_K", "Q5_K_M"), ("f16", "F16")]
)
def test_types_are_known_by_the_names_users_give_them(name: str, found: str) -> None:
    assert named_type(name) == (found, FILE_TYPES[found])


@pytest.mark.parametrize("name", ["MXFP4", "Q1_0", "Q8_K", "Q4", "", "COPY"])
def test_other_types_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"type: expected one of F32, .*Q6_K.*, got {name!r}"):
        named_type(name)
    with pytest.raises(ConfigError, match=f"quantize: expected one of F32, .*, got {name!r}"):
        named_format(name, "quantize")


@pytest.mark.parametrize("name", WRITABLE)
def test_rows_that_do_not_fit_get_a_format_that_does(name: str) -> None:
    fmt = FORMATS[name]
    assert fitting(fmt, 512) is fmt
    expected = name
    while 96 % FORMATS[expected].block_len:
        expected = FALLBACK[expected]
    assert fitting(fmt, 96).name == expected
    assert fitting(fmt, 40).name == (name if fmt.block_len == 1 else "F16")


def test_types_of_ours_alone_are_mixed_as_their_neighbours_are() -> None:
    facts = ModelFacts("llama", 8, 8, 2, 0, tied=False, has_importance=False)
    for name in OURS_ALONE:
        tensors = ("output.weight", "blk.0.attn_v.weight", "token_embd.weight")
        found = [mixed(name, tensor, 256, (0, 8), facts) for tensor in tensors]
        assert found == ["Q6_K", name, "Q4_K" if name == "Q2_0_G128" else name]
    assert fitting(FORMATS["Q2_0_G128"], 192).name == "Q2_0"


def test_small_and_delicate_tensors_stay() -> None:
    for name in ("blk.0.ffn_gate_inp.weight", "blk.3.attn_q_norm.weight", "blk.0.ssm_conv1d.weight"):
        assert not is_quantized(name, 2)
    assert not is_quantized("position_embd.weight", 2)
    assert not is_quantized("blk.0.attn_q.weight", 1)
    assert not is_quantized("blk.0.attn_q.bias", 2)
    assert is_quantized("blk.0.attn_q.weight", 2)
    assert is_quantized("blk.0.ffn_up_exps.weight", 3)
