"""What is said of a file without loading it is what loading it says and takes."""

from __future__ import annotations

import json
import math
import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import InferenceEngine
from oxillama.apps.cli import main
from oxillama.apps.cli.facts import describe
from oxillama.base.formats import FORMATS, KV_PAIRS
from oxillama.errors import GGUFError, LoadError, TokenizerError
from oxillama.gguf.model_file import ModelFile
from oxillama.models.preflight import preflight
from tests.models.test_real_files import k_m, wide, written
from tests.support import gguf_writer as ggufwriter
from tests.support.spread import few
from tests.support.tiny_file import tiny_vocabulary, write_tiny_model
from tests.support.tiny_models import Running
from tests.support.zoo import MODELS, VARIANTS, Model


@pytest.mark.parametrize("name", few(sorted(MODELS)))
def test_memory_is_what_loading_takes(name: str) -> None:
    """Superblocks too, where what is packed is larger than in the file."""
    model = wide(MODELS[name])
    data = written(model, k_m)
    found = preflight(ModelFile.open(data))
    # "no_vocab", which the models here have, is a vocabulary that cannot be used
    assert [reason for reason in found.reasons if "tokenizer" not in reason] == []
    running = Running(data)
    packed = 0
    for matrices in running.model.linears():
        matrices.pack()
        packed += sum(map(len, matrices.prepare(np.empty((0, matrices.cols), np.float32)).panels))
    assert found.weight_bytes == packed
    assert found.state_bytes == 4 * running.model.state_floats
    for kind in KV_PAIRS:
        shapes = running.model.kv_shapes(kind, 16) if found.spec and found.spec.attending else []
        assert found.kv_bytes[kind] == sum(shape.page_bytes for shape in shapes) // 16


def first_error(path: Path) -> str:
    with pytest.raises((LoadError, GGUFError, TokenizerError)) as caught:
        InferenceEngine.from_gguf(path)
    return str(caught.value)


N = len(tiny_vocabulary()[0])
BROKEN: dict[str, dict[str, Any]] = {
    "architecture": {"architecture": "quantum"},
    "missing": {"tensors": {"blk.1.ffn_up.weight": None}},
    "shape": {"tensors": {"blk.1.attn_k.weight": np.ones((7, 64), np.float32)}},
    "format": {"tensors": {"blk.0.attn_q.weight": np.ones((64, 64), np.int32)}},
    "option": {"metadata": {"llama.expert_group_scale": 2.0}},
    "rotation": {"metadata": {"llama.rope.scaling.type": "spiral"}},
    "pooling": {"metadata": {"llama.pooling_type": 7}},
    "layers": {"metadata": {"llama.nextn_predict_layers": 2}},
    "factors": {"tensors": {"rope_freqs.weight": np.zeros(8, np.float32)}},
    "tokens": {"tensors": {"token_embd.weight": np.ones((N - 1, 64), np.float32)}},
}


@pytest.mark.parametrize("what", BROKEN)
def test_info_says_what_loading_says(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_tiny_model(tmp_path / "broken.gguf", **BROKEN[what])
    message = first_error(path)
    assert main(["info", str(path), "--json"]) == 1
    told = capsys.readouterr()
    facts = json.loads(told.out)
    assert message in facts["missing"]
    assert facts["supported"] is False
    assert f"oxillama: error: {message}" in told.err.splitlines()
    assert main(["info", str(path)]) == 1
    assert f"no: {facts['missing'][0]}" in capsys.readouterr().out


@pytest.mark.parametrize("name", [*sorted(MODELS), *sorted(VARIANTS)])
def test_nothing_of_a_sound_file_stands_against_it(name: str) -> None:
    """Files of every architecture and variant; the described facts equal the facts of the file."""
    model = (MODELS | VARIANTS)[name]
    facts = describe(ModelFile.open(model.file()))
    assert [reason for reason in facts["missing"] if "tokenizer" not in reason] == []
    json.dumps(facts, allow_nan=False)
    assert (facts["recurrent"] is not None) == model.facts.recurrent
    assert facts["surplus"] == []


def facts_of(model: Model) -> dict[str, Any]:
    return describe(ModelFile.open(model.file()))


def test_what_is_told_of_attention() -> None:
    assert facts_of(MODELS["llama"])["attention"]["kind"] == "grouped queries"
    assert facts_of(MODELS["olmoe"])["attention"]["kind"] == "multi-head"
    assert facts_of(VARIANTS["starcoder-one-head"])["attention"]["kind"] == "multi-query"
    latent = facts_of(MODELS["deepseek2"])["attention"]
    assert (latent["kind"], latent["key_width"], latent["value_width"]) == ("multi-head latent", 24, 16)
    oss = facts_of(MODELS["gpt-oss"])["attention"]
    assert (oss["sinks"], oss["windows"], oss["windowed_layers"], oss["layers"]) == (True, [6], 1, 2)
    assert facts_of(MODELS["gemma2"])["attention"]["soft_cap"] == 50.0
    assert facts_of(MODELS["llama4"])["attention"]["chunk"] == 8192
    assert facts_of(MODELS["bloom"])["attention"]["linear_bias"] == 8.0
    assert facts_of(MODELS["bert"])["attention"]["both_ways"] is True
    assert facts_of(MODELS["mamba"])["attention"] is None
    assert facts_of(MODELS["mamba"])["memory"]["kv_per_token"]["f16"] == 0


def test_what_is_told_of_experts_states_and_pooling() -> None:
    facts = facts_of(MODELS["qwen2moe"])["experts"]
    assert facts == {
        **{"kind": "softmax", "layers": 2, "experts": 6, "used": 3, "width": 24, "shared_width": 20},
        "groups": None,
    }
    assert facts_of(VARIANTS["deepseek2-v3"])["experts"]["groups"] == 4
    assert facts_of(MODELS["llama"])["experts"] is None
    hybrid = facts_of(MODELS["jamba"])
    assert (hybrid["recurrent"]["kind"], hybrid["recurrent"]["layers"]) == ("mamba", 1)
    assert hybrid["recurrent"]["state_bytes"] == hybrid["memory"]["state"] > 0
    assert facts_of(MODELS["bert"])["pooling"] == "mean"
    assert facts_of(VARIANTS["bert-cls"])["pooling"] == "cls"
    assert facts_of(MODELS["llama"])["pooling"] is None


@pytest.mark.skipif(sys.platform != "linux", reason="makes a file of holes")
def test_a_file_larger_than_memory_is_described(tmp_path: Path) -> None:
    """Matrices of 100 GB, which take no room on the disk: neither read nor allocated."""
    keys = {"attention.key_length": ("u32", 128), "attention.value_length": ("u32", 128)}
    model = Model("llama", n_layers=24, n_embd=8192, n_ff=65536, n_heads=64, n_kv_heads=8, keys=dict(keys))
    shapes = {"token_embd": (8192, 256000), "output": (8192, 256000), "output_norm": (8192,)}
    for i in range(model.n_layers):
        parts = {"attn_q": 8192, "attn_k": 1024, "attn_v": 1024, "ffn_gate": 65536, "ffn_up": 65536}
        shapes |= {f"blk.{i}.{name}": (8192, rows) for name, rows in parts.items()}
        shapes |= {f"blk.{i}.attn_output": (8192, 8192), f"blk.{i}.ffn_down": (65536, 8192)}
        shapes |= {f"blk.{i}.{name}": (8192,) for name in ("attn_norm", "ffn_norm")}
    entries, size = [], 0
    for name, shape in shapes.items():
        kind = FORMATS["F16" if len(shape) > 1 else "F32"]
        entries.append(ggufwriter.entry(f"{name}.weight", shape, kind.id, size))
        size += kind.nbytes(math.prod(shape))
    pairs = [ggufwriter.pair("general.architecture", "str", "llama")]
    pairs += [ggufwriter.pair(f"llama.{key}", *pair) for key, pair in model.metadata().items()]
    path = tmp_path / "large.gguf"
    header = ggufwriter.assemble(pairs, entries)
    path.write_bytes(header)
    os.truncate(path, -(-len(header) // 32) * 32 + size)
    tracemalloc.start()
    try:
        with ModelFile.open(path) as file:
            found = preflight(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        path.unlink()
    assert found.weight_bytes > 80 * 2**30
    assert peak < 2**24


def test_surplus_tensors_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {"blk.0.attn_extra.weight": np.ones((4, 4), np.int32)}
    path = write_tiny_model(tmp_path / "more.gguf", tensors=tensors)
    assert main(["info", str(path)]) == 0
    assert "blk.0.attn_extra.weight" in capsys.readouterr().out
