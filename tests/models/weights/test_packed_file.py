"""Packed files: the bits of the model they were made of, and an error for each byte that is not theirs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from oxillama import pack_model
from oxillama._kernels import load
from oxillama._kernels.memory import ALIGNMENT
from oxillama.base.formats import FORMATS
from oxillama.errors import ModelFileError
from oxillama.gguf.model_file import ModelFile
from oxillama.models.weights import packed_file
from oxillama.models.weights.loader import Weights
from oxillama.models.weights.packed_file import DIGEST, LARGE_BYTES, PAGE, START, PackedFile
from oxillama.models.weights.packed_store import PackedStore
from tests.support.kernels import PRESENT, same_bits
from tests.support.panels import current_hashes, recorded_hashes
from tests.support.spread import few
from tests.support.tiny_file import write_tiny_model
from tests.support.tiny_models import Running, tokens_of
from tests.support.zoo import MODELS, VARIANTS, VOCAB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The packed file of a tiny model."""
    return pack_model(write_tiny_model(tmp_path / "m.gguf"))


@pytest.mark.parametrize("mapping", [True, False], ids=["mapped", "read"])
@pytest.mark.parametrize("name", few(sorted(MODELS | VARIANTS)))
def test_every_model_has_the_bits_of_the_model_without(name: str, mapping: bool, tmp_path: Path) -> None:
    model = (MODELS | VARIANTS)[name]
    data, source = model.file(), tmp_path / "m.gguf"
    source.write_bytes(data)
    packed = PackedFile(pack_model(source))
    running = Running(data, store=partial(PackedStore, packed, mapping=mapping))
    tokens = tokens_of(20, VOCAB)
    assert same_bits(running.outputs(tokens), Running(data).outputs(tokens))
    assert packed.absent == []
    for linear in running.model.linears():
        linear.pack()
        for panels in linear.prepare(np.empty((0, linear.cols), np.float32)).panels:
            assert panels.flags.writeable == (not mapping)


@pytest.mark.parametrize("compute", ["f32", "bf16"])
def test_panels_are_the_same_on_every_target(compute: str, tmp_path: Path) -> None:
    data, source = MODELS["qwen3moe"].file(), tmp_path / "m.gguf"
    source.write_bytes(data)
    target = pack_model(source, compute=compute)
    for name in PRESENT:
        packed = PackedFile(target)
        found = Running(data, name, compute=compute, store=partial(PackedStore, packed))
        assert same_bits(found.logits([1, 2, 3]), Running(data, name, compute=compute).logits([1, 2, 3]))
        assert packed.absent == []


@pytest.mark.slow
def test_panels_are_those_that_files_of_this_version_hold() -> None:
    """An engine takes any file of its `PANELS_VERSION`, whatever release made it."""
    recorded, current = recorded_hashes(), current_hashes()
    assert recorded["version"] == packed_file.PANELS_VERSION
    advice = "raise PANELS_VERSION, then run `python -m tests.support.panels`"
    for kind in ("formats", "models"):
        changed = [name for name, found in recorded[kind].items() if current[kind].get(name) != found]
        assert changed == [], advice
    assert set(current["formats"]) == set(recorded["formats"]), "run `python -m tests.support.panels`"


def test_where_panels_lie(tmp_path: Path) -> None:
    packed = PackedFile(pack_model(write_tiny_model(tmp_path / "m.gguf", n_embd=128, n_ff=512)))
    assert packed.panels.start % PAGE == 0
    assert {matrix.nbytes >= LARGE_BYTES for matrix in packed.matrices.values()} == {True, False}
    for matrix in packed.matrices.values():
        assert matrix.start % (PAGE if matrix.nbytes >= LARGE_BYTES else ALIGNMENT) == 0
    assert packed.nbytes == packed.panels.start + packed.panels.nbytes + DIGEST * len(packed.matrices)


@pytest.mark.parametrize("size", [64, 1000, 4096, 1 << 16])
def test_the_pieces_that_are_written_make_no_difference(
    path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = path.read_bytes()
    monkeypatch.setattr(packed_file, "LARGE_PAGE", size)
    assert pack_model(path.with_name("m.gguf")).read_bytes() == expected


def test_nobody_may_write_to_it(path: Path) -> None:
    assert path.stat().st_mode & 0o222 == 0
    assert pack_model(path.with_name("m.gguf")) == path  # in place of the old one


def test_only_what_the_model_needs_is_found(path: Path) -> None:
    with ModelFile.open(path.with_name("m.gguf")) as file:
        weights = Weights(file, load(PRESENT[0]), 1)
        (source,) = weights.linear([("blk.0.ffn_up", 96)], 64).sources
    with PackedFile(path) as packed:
        key = ("blk.0.ffn_up.weight", 0, 0)
        assert packed.find(key, source, 64) is not None
        for wrong in (
            ((key[0], 1, 0), source, 64),
            ((key[0], 0, 1), source, 64),
            (key, replace(source, format=FORMATS["F16"]), 64),
            (key, replace(source, rows=95), 64),
            (key, source, 32),
        ):
            assert packed.find(*wrong) is None
        assert packed.absent == [key[0]] * 5


def changed_byte(at: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[at] ^= 1

    return change


def write(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (changed_byte(0), "expected a packed file, got b'NXIPACK1'"),
        (changed_byte(8), "expected version 1, got 0"),
        (changed_byte(START.size), "header: expected its checksum, got another"),
        (changed_byte(START.size + DIGEST + 5), "header: expected its checksum, got another"),
        (lambda data: data.clear(), "expected a packed file, got b''"),
        (lambda data: data.__delitem__(slice(20, None)), "expected a packed file"),
        (lambda data: data.__delitem__(slice(100, None)), r"expected \d+ bytes, got 100"),
        (lambda data: data.pop(), r"expected \d+ bytes, got \d+"),
        (lambda data: data.append(0), r"expected \d+ bytes, got \d+"),
    ],
)
def test_a_damaged_file_is_not_opened(path: Path, change: Callable[[bytearray], Any], text: str) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    write(path, data)
    with pytest.raises(ModelFileError, match=text):
        PackedFile(path)


def test_damaged_panels_and_checksums_are_found_by_reading_them(path: Path) -> None:
    with PackedFile(path) as packed:
        calls: list[tuple[int, int]] = []
        packed.verify(lambda *done: calls.append(done))
        assert len(calls) == len(packed.matrices)
        assert calls[-1][0] == sum(matrix.nbytes for matrix in packed.matrices.values())
        start, matrix = packed.panels.start, list(packed.matrices.values())[2]
    data = path.read_bytes()
    for at, text in (
        (start + matrix.start + matrix.nbytes - 1, f"{matrix.tensor}, expert 0, matrix 0: expected its"),
        (len(data) - 1, "checksums: expected its checksum"),
    ):
        damaged = bytearray(data)
        damaged[at] ^= 1
        write(path, damaged)
        with PackedFile(path) as packed, pytest.raises(ModelFileError, match=text):
            packed.verify()


def with_header(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Writes the file anew with another header, under a checksum that is right."""
    data = path.read_bytes()
    _, _, n_bytes = START.unpack(data[: START.size])
    header = json.loads(data[START.size + DIGEST :][:n_bytes])
    with PackedFile(path) as packed:
        rest = data[packed.panels.start :]
    changed = change(header)
    text = changed if isinstance(changed, bytes) else json.dumps(header).encode()
    start = START.pack(b"OXIPACK1", 1, len(text))
    head = start + blake3(start + text).digest() + text
    write(path, head + bytes(-len(head) % PAGE) + rest)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((1, -1), (1, 0.0), (2, True), (3, "Q9_9"), (3, 7), (4, 0), (4, 10**30), (5, 63)),
        *((6, -64), (6, 2), (6, 64), (6, 10**9), (6, 10**30), (7, 0), (7, 10**30), (7, None)),
    ],
)
def test_a_directory_that_cannot_be_is_refused(path: Path, field: int, value: Any) -> None:
    with_header(path, lambda header: header["matrices"][1].__setitem__(field, value))
    with pytest.raises(ModelFileError, match=r"damaged|expected \d+ bytes|expected names and numbers"):
        PackedFile(path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda header: header["matrices"].append(header["matrices"][0]), "damaged|bytes"),
        (lambda header: header["matrices"][0].pop(), "expected the header of a packed file"),
        (lambda header: header.update(matrices=3), "expected the header of a packed file"),
        (lambda header: header.update(matrices=[[[], 0, 0, "F32", 1, 1, 0, 64]]), "damaged|bytes|header"),
        (lambda header: header.pop("facts"), "expected the header of a packed file"),
        (lambda header: header["facts"].update(files=3), "expected the header of a packed file"),
        (lambda header: header["facts"].update(files=[[1, 2]]), "expected the header of a packed file"),
        (lambda header: header["facts"].update(files=[[1, 2, 3, None]]), "expected the header of a packed"),
        (lambda header: header["facts"].update(content=3), "expected the header of a packed file"),
        (lambda header: header["facts"].update(settled=1), "expected the header of a packed file"),
        (lambda header: header["facts"].pop("content"), "expected the header of a packed file"),
        (lambda header: header["facts"].update(more=1), "expected the header of a packed file"),
        (lambda header: b"[", "expected the header of a packed file"),
        (lambda header: b"[" * 100_000, "expected the header of a packed file"),
        (lambda header: b"[]", "expected the header of a packed file"),
        (lambda header: b"\xff", "expected the header of a packed file"),
        (
            lambda header: header.update(byte_order="big"),
            "of a little-endian machine, got big",
        ),
    ],
)
def test_a_header_that_cannot_be_is_refused(
    path: Path, change: Callable[[dict[str, Any]], Any], text: str
) -> None:
    with_header(path, change)
    with pytest.raises(ModelFileError, match=text):
        PackedFile(path)


def test_the_length_of_the_header_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_file, "MOST_HEADER", 10)
    with pytest.raises(ModelFileError, match=r"expected \d+ bytes"):
        PackedFile(path)


@pytest.mark.skipif(os.name == "nt", reason="a folder is opened otherwise there")
def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for wrong in (tmp_path, tmp_path / "none"):
        with pytest.raises(ModelFileError):
            PackedFile(wrong)
