"""``oxillama quantize`` and ``imatrix``, and ``--quantize`` of the commands that run a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from oxillama import demo
from oxillama.gguf.model_file import ModelFile
from tests.support.command_line import error, output, run


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "f16.gguf"
    said = output("quantize", demo.DRAFT, path, "f16", "--allow-requantize")
    assert said.startswith(f"wrote {path}: F16, ")
    return path


def test_imatrix_then_quantize_then_run(source: Path, tmp_path: Path) -> None:
    importance, target = tmp_path / "i.gguf", tmp_path / "q.gguf"
    said = output("imatrix", source, demo.HELDOUT, "-o", importance, "--chunk", "128", "--chunks", "3")
    assert said == f"wrote {importance}: 7 matrices, 3 chunks of up to 128 tokens\n"
    done = run("quantize", source, target, "Q4_K_M", "--imatrix", importance, "-t", "2")
    assert done.returncode == 0, done.stderr
    assert b"bits a weight\ntensors: " in done.stdout
    note = b"oxillama: note: the importance matrix has nothing about token_embd.weight\n"
    assert done.stderr == note  # tied to the output, which is not recorded unless asked for
    text = output("run", target, "-p", "Once upon a time", "-n", "12", "--greedy")
    assert len(text) > 20
    loaded = output("run", source, "-p", "Once upon a time", "-n", "12", "--greedy", "--quantize", "Q8_0")
    plain = output("run", demo.DRAFT, "-p", "Once upon a time", "-n", "12", "--greedy")
    assert loaded == plain  # Q8_0 of what came from Q8_0


def test_a_dry_run_lists_and_writes_nothing(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "q.gguf"
    args = (
        "--output-tensor-type", "Q8_0", "--tensor-type", "ffn_(up|gate)=q5_k", "--tensor-type", "attn=Q2_K",
    )  # fmt: skip
    said = output("quantize", source, target, "q4_k_s", *args, "--dry-run", "--verbose")
    assert f"would write {target}: Q4_K_S" in said
    rows = {line.split()[0]: line.split()[-1] for line in said.splitlines()[:-2]}
    assert rows["token_embd.weight"] == "Q8_0"
    assert (rows["blk.0.ffn_up.weight"], rows["blk.0.attn_q.weight"]) == ("Q5_K", "Q2_K")
    assert rows["blk.0.attn_norm.weight"] == "F32"
    assert not target.exists()


def test_pure_files_and_kept_outputs(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "q.gguf"
    output("quantize", source, target, "Q3_K", "--pure", "--token-embedding-type", "Q6_K")
    with ModelFile.open(target) as file:
        formats = {name: t.format.name for name, t in file.tensors.items() if "norm" not in name}
    assert formats.pop("token_embd.weight") == "Q6_K"
    assert set(formats.values()) == {"Q3_K"}


def test_fallbacks_are_told(tmp_path: Path) -> None:
    from tests.support.tiny_file import write_tiny_model

    source = write_tiny_model(tmp_path / "tiny.gguf")
    done = run("quantize", source, tmp_path / "q.gguf", "Q4_K_M")
    assert done.returncode == 0
    assert b"blk.0.attn_q.weight: rows of 64 do not fit Q4_K, it is Q5_0\n" in done.stderr


def test_lowest_types_ask_for_an_importance_matrix(source: Path, tmp_path: Path) -> None:
    done = run("quantize", source, tmp_path / "q.gguf", "IQ2_XXS", "--dry-run")
    assert b"IQ2_XXS loses much without an importance matrix (--imatrix)" in done.stderr
    assert b"importance" not in run("quantize", source, tmp_path / "q.gguf", "IQ4_XS", "--dry-run").stderr


def test_errors_are_one_line(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "q.gguf"
    for args, message in (
        ((source, target, "MXFP4"), "type: expected one of F32, F16"),
        ((demo.DRAFT, target, "Q4_0"), "--allow-requantize: token_embd.weight is Q8_0 already"),
        ((tmp_path / "no.gguf", target, "Q4_0"), "no.gguf: cannot be opened"),
        ((source, source, "Q4_0"), "target: expected another file than the source"),
        ((source, target, "Q4_0", "--tensor-type", "attn_q"), "expected NAME=FORMAT, got 'attn_q'"),
        ((source, target, "Q4_0", "--imatrix", source), "expected F32 pairs of NAME.in_sum2"),
    ):
        assert message in error("quantize", *args)
    assert not target.exists()
    assert "--output: " in error("imatrix", source, demo.HELDOUT, "-o", tmp_path)
    assert "--chunk: expected an integer >= 1" in error(
        "imatrix", source, demo.HELDOUT, "-o", tmp_path / "i", "--chunk", "0"
    )
    assert "quantize: expected one of F32" in error("run", source, "-p", "a", "--quantize", "MXFP4")
    assert "quantize: expected one of F32" in error("bench", source, "--quantize", "Q5")


def test_bars_show_where_they_are_wanted(source: Path, tmp_path: Path) -> None:
    quantize = ("quantize", source, tmp_path / "q.gguf", "Q2_K")
    assert b"quantizing:" in run(*quantize, "--progress").stderr
    assert run(*quantize).stderr == b""
    imatrix = ("imatrix", source, demo.HELDOUT, "-o", tmp_path / "i.gguf", "--chunks", "2")
    assert b"running: " in run(*imatrix, "--progress").stderr
    assert run(*imatrix).stderr == b""
