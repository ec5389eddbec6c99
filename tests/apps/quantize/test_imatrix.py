"""Importance matrices: both forms of file, what is refused, and what running a model collects."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, strategies as st

from oxillama import (
    ConfigError,
    GGUFError,
    ImportanceMatrix,
    ModelFileError,
    PromptError,
    collect_imatrix,
    demo,
    quantize_model,
)
from oxillama._kernels import best
from oxillama.apps.quantize.calibration import Recorder
from oxillama.apps.quantize.imatrix import FLOOR, Entry
from oxillama.compat.engine import InferenceEngine
from oxillama.gguf.model_file import ModelFile
from tests.support import gguf_writer as ggufwriter
from tests.support.kernels import dequantized
from tests.support.tiny_models import Running, Tiny, tokens_of

NAME = "blk.0.ffn_up.weight"


def made() -> ImportanceMatrix:
    rng = np.random.default_rng(0)
    return ImportanceMatrix(
        {
            NAME: Entry(rng.random((1, 12), np.float32), np.array([7], np.float32)),
            "blk.0.ffn_up_exps.weight": Entry(
                rng.random((3, 8), np.float32), np.array([4, 0, 9], np.float32)
            ),
        },
        ("a.txt", "b.txt"),
        5,
        512,
    )


def dat(entries: list[tuple[bytes, int, list[float]]], tail: bytes = b"") -> bytes:
    """The older form."""
    parts = [struct.pack("<i", len(entries))]
    for name, calls, values in entries:
        parts.append(struct.pack("<i", len(name)) + name + struct.pack("<2i", calls, len(values)))
        parts.append(np.array(values, "<f4").tobytes())
    return b"".join(parts) + tail


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "i.gguf"
    made().write(path)
    found = ImportanceMatrix.read(path)
    assert (found.datasets, found.chunk_count, found.chunk_size) == (("a.txt", "b.txt"), 5, 512)
    assert found.entries.keys() == made().entries.keys()
    for name, entry in made().entries.items():
        assert (found.entries[name].sums == entry.sums).all()
        assert (found.entries[name].counts == entry.counts).all()


def test_the_file_is_laid_out_as_llama_cpp_has_it(tmp_path: Path) -> None:
    made().write(tmp_path / "i.gguf")
    reader = gguf.GGUFReader(tmp_path / "i.gguf")
    shapes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    assert shapes == {
        "blk.0.ffn_up.weight.in_sum2": [12, 1],
        "blk.0.ffn_up.weight.counts": [1, 1],
        "blk.0.ffn_up_exps.weight.in_sum2": [8, 3],
        "blk.0.ffn_up_exps.weight.counts": [1, 3],
    }
    assert reader.get_field("general.type").contents() == "imatrix"  # type: ignore[union-attr]
    assert reader.get_field("imatrix.chunk_count").contents() == 5  # type: ignore[union-attr]
    assert reader.get_field("imatrix.chunk_size").contents() == 512  # type: ignore[union-attr]
    assert reader.get_field("imatrix.datasets").contents() == ["a.txt", "b.txt"]  # type: ignore[union-attr]


def test_the_older_form_is_read(tmp_path: Path) -> None:
    path = tmp_path / "i.dat"
    tail = struct.pack("<2i", 40, 5) + b"a.txt"
    path.write_bytes(dat([(NAME.encode(), 3, [3.0, 6.0]), (b"x", 1, [1.0])], tail))
    found = ImportanceMatrix.read(path)
    assert (found.datasets, found.chunk_count) == (("a.txt",), 40)
    weights = found.entries[NAME].weights(2, 1)
    assert weights is not None
    assert np.allclose(weights, [[2 / 3, 4 / 3]])
    path.write_bytes(dat([(NAME.encode(), 3, [3.0, 6.0])]))
    assert ImportanceMatrix.read(path).datasets == ()


def test_weights_are_means_of_one_above_zero() -> None:
    entry = Entry(np.array([[0, 2, 6], [0, 0, 0], [5, 5, 5]], np.float32), np.array([9, 3, 0], np.float32))
    weights = entry.weights(3, 3)
    assert weights is not None
    assert np.allclose(weights, [[FLOOR, 0.75, 2.25], [1, 1, 1], [1, 1, 1]])
    assert entry.weights(9, 1) is None
    assert Entry(entry.sums.reshape(1, 9), np.ones(1, np.float32)).weights(3, 3) is not None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "got 0 bytes instead of 4"),
        (struct.pack("<i", 0), "expected the number of entries .* got 0"),
        (struct.pack("<i", 2**31 - 1), "expected the number of entries .* got 2147483647"),
        (dat([(NAME.encode(), 1, [1.0])])[:-1], "got 3 bytes instead of 4"),
        (dat([(b"x", 1, [1.0]), (b"x", 1, [1.0])]), "x: expected the entry once"),
        (dat([(b"x" * 65, 1, [1.0])]), "expected the length of a name .* got 65"),
        (dat([(b"x", -1, [1.0])]), "expected a number of calls .* got -1"),
        (dat([(b"x", 1, [-1.0])]), "x: expected finite numbers >= 0"),
        (dat([(b"x", 1, [float("inf")])]), "x: expected finite numbers >= 0"),
        (dat([(b"x", 1, [1.0])], struct.pack("<2i", 1, 9)), "got 0 bytes instead of 9"),
        (ggufwriter.write([], []), "got no entries"),
        (
            ggufwriter.write([], [ggufwriter.Tensor("x", (2,), 0, bytes(8))]),
            "x: expected F32 pairs",
        ),
        (
            ggufwriter.write([], [ggufwriter.Tensor("x.in_sum2", (2,), 0, bytes(8))]),
            "x.in_sum2: expected F32 pairs",
        ),
        (
            ggufwriter.write(
                [],
                [
                    ggufwriter.Tensor("x.in_sum2", (2, 2), 0, bytes(16)),
                    ggufwriter.Tensor("x.counts", (1, 3), 0, bytes(12)),
                ],
            ),
            "expected shape \\(cols, 3\\)",
        ),
    ],
)
def test_files_that_are_none_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_bytes(data)
    with pytest.raises(GGUFError, match=message):
        ImportanceMatrix.read(path)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "no", "cannot be opened"),
        (tmp_path, "directory|cannot be opened"),
        ("a\0b", "path: expected no NUL"),
        ("/dev/zero", "expected a regular file|cannot be opened"),
    ):
        with pytest.raises(ModelFileError, match=words):
            ImportanceMatrix.read(path)


@given(data=st.binary(max_size=200), at=st.integers(0, 60))
def test_no_bytes_do_harm(data: bytes, at: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "i.dat"
    good = dat([(NAME.encode(), 3, [3.0, 6.0])], struct.pack("<2i", 40, 5) + b"a.txt")
    path.write_bytes(good[:at] + data)
    with suppress(GGUFError):
        ImportanceMatrix.read(path)


def test_collecting_sums_squares_of_what_a_matrix_sees(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a little fox. " * 20, encoding="utf-8")
    told: list[tuple[int, int]] = []
    found = collect_imatrix(
        demo.DRAFT, text, chunk_size=64, chunks=2, progress=lambda done, total: told.append((done, total))
    )
    assert told == [(1, 2), (2, 2)]
    assert (found.datasets, found.chunk_count, found.chunk_size) == (("text.txt",), 2, 64)
    engine = InferenceEngine.from_gguf(demo.DRAFT)
    bos, *ids = engine.tokenize(text.read_text())
    chunks = [[bos, *ids[:63]], [bos, *ids[64 : 64 + 63]]]  # the second's first token gives way to the BOS
    with ModelFile.open(demo.DRAFT) as file:
        info = file.tensors["token_embd.weight"]
        table = dequantized(info.format.name, file.data(info.name).reshape(info.shape[1], -1))
        norm = file.data("blk.0.attn_norm.weight").view(np.float32)
    x = np.concatenate([table[chunk] for chunk in chunks])
    x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * norm
    for name in ("attn_q", "attn_k", "attn_v"):
        entry = found.entries[f"blk.0.{name}.weight"]
        assert entry.counts.tolist() == [128]
        assert np.allclose(entry.sums, (x**2).sum(axis=0), rtol=1e-3)
    assert "token_embd.weight" not in found.entries
    assert found.entries["blk.0.ffn_down.weight"].sums.shape[0] == 1
    whole = collect_imatrix(demo.DRAFT, text, chunk_size=64, process_output=True)
    assert whole.entries["token_embd.weight"].counts[0] == 64 * whole.chunk_count
    path = tmp_path / "i.gguf"
    whole.write(path)
    done = quantize_model(demo.DRAFT, tmp_path / "q.gguf", "Q3_K_M", imatrix=path, allow_requantize=True)
    assert all(tensor.weighted for tensor in done.tensors if tensor.changes)
    with ModelFile.open(tmp_path / "q.gguf") as file:
        assert file.metadata["quantize.imatrix.dataset"] == "text.txt"
        assert file.metadata["quantize.imatrix.entries_count"] == len(whole.entries)
        assert file.metadata["quantize.imatrix.chunks_count"] == whole.chunk_count


def test_experts_are_recorded_one_by_one() -> None:
    model = Tiny(architecture="llama4", n_experts=4)
    running, recorder = Running(model.file()), Recorder()
    for matrices in running.model.linears():
        matrices.observer = recorder
    tokens = tokens_of(30, model.n_vocab)
    expected = Running(model.file()).logits(tokens)
    assert (running.logits(tokens) == expected).all()  # watching changes nothing
    entries = recorder.entries()
    counts = entries["blk.1.ffn_up_exps.weight"].counts
    assert counts.shape == (4,)
    assert counts.sum() == 2 * len(tokens)  # two experts see a token
    assert (entries["blk.1.ffn_down_exps.weight"].counts == counts).all()
    assert (entries["blk.1.ffn_gate_exps.weight"].sums == entries["blk.1.ffn_up_exps.weight"].sums).all()
    assert entries["blk.1.ffn_up_shexp.weight"].counts.tolist() == [30]
    assert entries["output.weight"].counts.tolist() == [30]
    assert best().target


def test_what_cannot_be_collected_is_refused(tmp_path: Path) -> None:
    text, empty, binary = tmp_path / "t", tmp_path / "e", tmp_path / "b"
    text.write_text("fox")
    empty.write_text("")
    binary.write_bytes(b"\xff")
    for options, message in (
        ({"chunk_size": 0}, "chunk_size: expected an integer >= 1, got 0"),
        ({"chunks": True}, "chunks: expected an integer >= 1, got True"),
        ({"chunk_size": 513}, r"chunk_size: expected up to 512 \(context_size\), got 513"),
    ):
        with pytest.raises(ConfigError, match=message):
            collect_imatrix(demo.DRAFT, text, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="text: expected UTF-8, got another byte at 0"):
        collect_imatrix(demo.DRAFT, binary)
    with pytest.raises(ConfigError, match="cannot be read"):
        collect_imatrix(demo.DRAFT, tmp_path / "no")
    with pytest.raises(PromptError, match="text: expected a text, got an empty file"):
        collect_imatrix(demo.DRAFT, empty)
