"""Opening model files: paths, bytes, split files, typed metadata; reference files; speed."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama.base.formats import FORMATS
from oxillama.errors import GGUFError, ModelFileError
from oxillama.gguf import extent, header
from oxillama.gguf.header import FIRST_PIECE_BYTES
from oxillama.gguf.model_file import ModelFile, StringArray
from tests.support.gguf_writer import Tensor, assemble, entry, f32_tensor, vocabulary, write
from tests.support.paths import SHARED

PARITY = sorted((SHARED / "parity").glob("*.gguf"))
F32 = FORMATS["F32"].id
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/fd")


# Bytes and files


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda raw: memoryview(bytearray(raw))])
def test_bytes_are_not_copied(wrap: Callable[[bytes], Any]) -> None:
    raw = wrap(write([], [f32_tensor(fill=5)]))
    model = ModelFile.open(raw)
    data = model.data("a")
    assert np.shares_memory(data, np.frombuffer(raw, np.uint8))
    assert not data.flags.writeable
    assert (model.path, model.paths, model.file_size) == (None, (), len(raw))
    assert data[0] == 5


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_read(tmp_path: Path, kind: Callable[[Path], Any]) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(write([("k", "[str]", ["x"])], [f32_tensor(fill=5)]))
    with ModelFile.open(kind(path)) as model:
        assert (model.path, model.paths, model.file_size) == (path, (path,), path.stat().st_size)
        data = model.data("a")
        assert not data.flags.writeable
        assert not np.shares_memory(data, model.data("a"))
        assert "m.gguf" in repr(model)
    model.close()
    assert data.tobytes() == f32_tensor(fill=5).data
    assert list(model.metadata["k"]) == ["x"]
    for use in (model.data, model.extent):
        with pytest.raises(ModelFileError, match=r"a: expected an open file, got m\.gguf closed"):
            use("a")


def test_an_unknown_tensor_is_an_error() -> None:
    with pytest.raises(GGUFError, match="b: expected a tensor of <bytes>, got no such name"):
        ModelFile.open(write([], [f32_tensor("a")])).data("b")


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of bytes of each read of a file."""
    found: list[int] = []
    read_at = extent._read_at

    def counted(fd: int, out: memoryview, start: int) -> int:
        found.append(read_at(fd, out, start))
        return found[-1]

    monkeypatch.setattr(extent, "_read_at", counted)
    return found


def test_opening_reads_no_tensor(tmp_path: Path, bytes_read: list[int]) -> None:
    path, n_bytes = tmp_path / "big.gguf", 1 << 20
    entries = [entry("a", (n_bytes // 4,), F32, 0), entry("b", (n_bytes // 4,), F32, n_bytes)]
    path.write_bytes(assemble([], entries, b"\1" * n_bytes + b"\2" * n_bytes))
    with ModelFile.open(path) as model:
        assert sum(bytes_read) <= FIRST_PIECE_BYTES
        bytes_read.clear()
        assert model.data("b").max() == 2
        assert sum(bytes_read) == n_bytes


@pytest.mark.parametrize("first", [1, 16, 100, 1 << 16])
def test_a_header_is_read_in_growing_pieces(
    tmp_path: Path, bytes_read: list[int], monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    monkeypatch.setattr(header, "FIRST_PIECE_BYTES", first)
    values = [("n", "u32", 7), ("words", "[str]", ["x" * n for n in range(60)]), ("ff", "[f32]", [0.5] * 99)]
    raw = write(values, [f32_tensor("a")])
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with ModelFile.open(path) as model:
        assert sum(bytes_read) <= len(raw)
        assert list(model.metadata["words"]) == values[1][2]
        assert model.get("ff", list[float]) == values[2][2]
        pairs, whole = model.raw_metadata(), ModelFile.open(raw).raw_metadata()
        assert {key: pair.tobytes() for key, pair in pairs.items()} == {
            key: pair.tobytes() for key, pair in whole.items()
        }


def test_a_header_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header, "MAX_HEADER_BYTES", 1 << 20)
    path = tmp_path / "m.gguf"
    for values in ([("s", "str", "x" * (1 << 20))], [("s", "[str]", ["x", "y" * (1 << 20)])]):
        path.write_bytes(write(values, []))
        with pytest.raises(
            GGUFError, match="s: expected a header of at most 1048576 bytes, got a longer one"
        ):
            ModelFile.open(path)


@on_linux
def test_nothing_stays_open(tmp_path: Path) -> None:
    def n_open() -> int:
        return len(os.listdir("/proc/self/fd"))

    path = tmp_path / "m.gguf"
    path.write_bytes(write([], [f32_tensor()]))
    before = n_open()
    with ModelFile.open(path) as model:
        part = model.extent("a")
        assert n_open() == before + 1
    assert part.read().tobytes() == f32_tensor().data
    del part
    assert n_open() == before
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(GGUFError, match="expected 128 bytes of data, got 127") as caught:
        ModelFile.open(path)
    assert n_open() == before, caught
    with pytest.raises(ModelFileError, match="directory") as caught_too:
        ModelFile.open(tmp_path)
    assert n_open() == before, caught_too


# Files that change while they are open


def test_a_deleted_or_replaced_file_is_still_read(tmp_path: Path) -> None:
    path, other = tmp_path / "m.gguf", tmp_path / "other.gguf"
    path.write_bytes(write([], [f32_tensor(fill=5)]))
    other.write_bytes(write([], [f32_tensor(fill=6)]))
    with ModelFile.open(path) as model:
        if os.name != "nt":  # which keeps open files from both
            os.link(path, tmp_path / "second name")
            other.replace(path)
            path.unlink()
        assert model.data("a")[0] == 5


@pytest.mark.parametrize("change", ["cut", "empty", "longer", "other bytes"])
@pytest.mark.parametrize("use", ["data", "extent", "rows", "raw_metadata"])
def test_a_changed_file_is_an_error(tmp_path: Path, change: str, use: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(write([("k", "u8", 1)], [f32_tensor("a", 64, 5)]))
    size = path.stat().st_size
    with ModelFile.open(path) as model:
        part, rows = model.extent("a"), np.array([0, 3, 1], np.int32)
        calls: dict[str, Callable[[], Any]] = {
            "data": lambda: model.data("a"),
            "extent": lambda: part.read(64, 32),
            "rows": lambda: part.read_rows(rows, 64),
            "raw_metadata": model.raw_metadata,
        }
        calls[use]()
        if change == "other bytes":
            with path.open("r+b") as file:
                file.seek(size - 8)
                file.write(b"12345678")
            os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # the clock of times may be coarse
        else:
            os.truncate(path, {"cut": size - 200, "empty": 0, "longer": size + 1}[change])
        with pytest.raises(ModelFileError, match=f"^{re.escape(str(path))}: changed while it was in use: "):
            calls[use]()


@pytest.mark.parametrize("missing", [(), ("preadv",), ("preadv", "pread")])
def test_every_way_to_read_at_an_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]
) -> None:
    for name in missing:
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(extent, "COPIED_BYTES", 1000)
    path, data = tmp_path / "m.gguf", np.random.default_rng(0).bytes(1 << 14)
    path.write_bytes(write([], [Tensor("a", (1 << 12,), F32, data)]))
    with ModelFile.open(path) as model:
        assert model.data("a").tobytes() == data
        os.truncate(path, 8192)
        with pytest.raises(ModelFileError, match="changed while it was in use: expected 16384 bytes at"):
            model.data("a")


def test_a_disk_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(write([], [f32_tensor("a")]))

    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with ModelFile.open(path) as model:
        monkeypatch.setattr(extent, "_read_at", fail)
        with pytest.raises(ModelFileError, match=r"m\.gguf: cannot be read: Input/output error"):
            model.data("a")


def test_rows_are_those_of_the_table(tmp_path: Path) -> None:
    path, table = tmp_path / "m.gguf", np.arange(50 * 8, dtype=np.float32).reshape(50, 8)
    path.write_bytes(write([], [f32_tensor("z"), Tensor("a", (8, 50), F32, table.tobytes())]))
    with ModelFile.open(path) as model:
        for holder in (model, ModelFile.open(path.read_bytes())):
            for ids in ([], [49], [3, 4, 5], [5, 3], [0, 2, 4, 7], [7, 0, 7, 49, 8, 48], list(range(50))):
                found = holder.extent("a").read_rows(np.array(ids, np.int32), 32).view(np.float32)
                assert np.array_equal(found, table[ids])
        for bad in ([50], [-1], [0, 50], [0, -1]):
            with pytest.raises(IndexError, match="ids: expected rows below 50"):
                model.extent("a").read_rows(np.array(bad), 32)


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    cases: list[tuple[str | Path, str]] = [
        (tmp_path / "none.gguf", "cannot be opened"),
        (tmp_path, "directory|cannot be opened"),
        ("nul\0.gguf", "path: expected no NUL"),
        ("\ud800.gguf", "path: expected no NUL|cannot be opened"),
        ("x" * 5000, "cannot be opened"),
    ]
    for path, words in cases:
        with pytest.raises(ModelFileError, match=words):
            ModelFile.open(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_a_pipe_or_device_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null"), Path("/dev/zero")):
        with pytest.raises(ModelFileError, match="expected a regular file"):
            ModelFile.open(path)


def test_a_file_that_may_not_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:  # as for a file of mode 0, which root may read nevertheless
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ModelFileError, match=r"m\.gguf: cannot be opened: Permission denied"):
        ModelFile.open("m.gguf")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    for source in (tmp_path / "m.gguf", b"", bytearray(), memoryview(b"")):
        with pytest.raises(GGUFError, match="expected a GGUF file, got an empty one"):
            ModelFile.open(source)


# Typed metadata


TYPED = [
    ("i", "u32", 3), ("n", "i8", -3), ("f", "f32", 0.5), ("t", "bool", True), ("s", "str", "x"),
    ("ii", "[i32]", [1, 2]), ("ff", "[f32]", [0.5]), ("tt", "[bool]", [True]), ("ss", "[str]", ["x", "y"]),
    ("nest", "[[i32]]", [[1]]),
]  # fmt: skip
MATCHES: dict[Any, dict[str, Any]] = {
    int: {"i": 3, "n": -3},
    float: {"i": 3.0, "n": -3.0, "f": 0.5},
    bool: {"t": True},
    str: {"s": "x"},
    list[int]: {"ii": [1, 2]},
    list[float]: {"ii": [1.0, 2.0], "ff": [0.5]},
    list[bool]: {"tt": [True]},
    list[str]: {"ss": ["x", "y"]},
}
NAMES: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "a boolean",
    str: "a string",
    list[int]: "an array of integers",
    list[float]: "an array of numbers",
    list[bool]: "an array of booleans",
    list[str]: "an array of strings",
}


@pytest.mark.parametrize("kind", MATCHES, ids=str)
def test_get_converts_or_names_what_it_found(kind: Any) -> None:
    model = ModelFile.open(write(TYPED))
    for key, _, _ in TYPED:
        if key in MATCHES[kind]:
            found = model.get(key, kind)
            assert found == MATCHES[kind][key]
            sample, wanted = (found[0], kind.__args__[0]) if isinstance(found, list) else (found, kind)
            assert type(sample) is wanted
        else:
            with pytest.raises(GGUFError, match=f"^{key}: expected {NAMES[kind]}, got .*, in <bytes>$"):
                model.get(key, kind, None)


def test_get_finds_arrays_as_stored() -> None:
    model = ModelFile.open(write(TYPED))
    assert model.get("ff", np.ndarray).dtype == np.float32
    with pytest.raises(GGUFError, match="ss: expected an array of numbers, got an array of 2 str"):
        model.get("ss", np.ndarray)


def test_get_knows_absent_keys() -> None:
    model = ModelFile.open(write(TYPED))
    assert model.get("none", int, 7) == 7
    assert model.get("none", int, None) is None
    with pytest.raises(GGUFError, match="none: expected an integer, got no such key, in <bytes>"):
        model.get("none", int)


# Split files


def shard(
    index: int,
    count: int,
    tensors: list[Tensor],
    total: int,
    extra: Sequence[tuple[str, str, Any]] = (),
    alignment: int | None = None,
) -> bytes:
    split = [("split.no", "u16", index), ("split.count", "u16", count), ("split.tensors.count", "i32", total)]
    return write([*extra, *split], tensors, alignment=alignment)


def shard_path(folder: Path, index: int, count: int = 3) -> Path:
    return folder / f"m-{index + 1:05d}-of-{count:05d}.gguf"


FIRST = [("general.name", "str", "whole"), ("sizes", "[i32]", [1, 2]), ("flag", "bool", True)]
LATE = [("late", "[i32]", [5])]


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """Three shards; the first holds metadata only, as gguf-split can write it."""
    a, b, c = (f32_tensor(name, fill=ord(name)) for name in "abc")
    shard_path(tmp_path, 0).write_bytes(shard(0, 3, [], 3, FIRST))
    shard_path(tmp_path, 1).write_bytes(shard(1, 3, [a, b], 3, LATE, alignment=64))
    shard_path(tmp_path, 2).write_bytes(shard(2, 3, [c], 3, LATE, alignment=16))
    return tmp_path


def test_the_first_shard_opens_all(split: Path) -> None:
    paths = tuple(shard_path(split, index) for index in range(3))
    with ModelFile.open(paths[0]) as model:
        assert model.paths == paths
        assert model.path == paths[0]
        assert model.file_size == sum(path.stat().st_size for path in paths)
        assert {name: info.shard for name, info in model.tensors.items()} == {"a": 1, "b": 1, "c": 2}
        assert [model.data(name)[0] for name in "abc"] == [*b"abc"]
        assert model.get("general.name", str) == "whole"
        assert model.get("split.no", int) == 0
        assert model.get("late", list[int]) == [5]
        assert model.alignment == 32
        assert "general.alignment" not in model.metadata
    with pytest.raises(ModelFileError, match=r"expected an open file, got m-00003-of-00003\.gguf closed"):
        model.data("c")


def test_a_later_shard_is_not_opened_alone(split: Path) -> None:
    with pytest.raises(GGUFError, match=r"first shard, got shard 2 of 3, in m-00002-of-00003\.gguf"):
        ModelFile.open(shard_path(split, 1))


def test_a_missing_shard_is_named(split: Path) -> None:
    shard_path(split, 2).unlink()
    with pytest.raises(ModelFileError, match=r"m-00003-of-00003\.gguf: cannot be opened"):
        ModelFile.open(shard_path(split, 0))


def test_a_broken_shard_is_named(split: Path) -> None:
    shard_path(split, 1).write_bytes(shard_path(split, 1).read_bytes()[:-1])
    with pytest.raises(GGUFError, match=r"b: .* in m-00002-of-00003\.gguf"):
        ModelFile.open(shard_path(split, 0))


@on_linux
def test_no_shard_stays_open_after_an_error(split: Path) -> None:
    shard_path(split, 2).write_bytes(shard(1, 3, [], 3))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(GGUFError, match=r"split\.no: expected 2, got 1") as caught:
        ModelFile.open(shard_path(split, 0))
    assert len(os.listdir("/proc/self/fd")) == before, caught


@pytest.mark.parametrize(
    ("second", "key"),
    [
        (shard(2, 3, [f32_tensor("b")], 3), "split.no"),
        (shard(0, 3, [f32_tensor("b")], 3), "split.no"),
        (write([("split.count", "u16", 3)]), "split.no"),
        (write([("split.count", "u16", 3), ("split.no", "bool", True)]), "split.no"),
        (write([("split.no", "u16", 1)]), "split.count"),
        (shard(1, 4, [f32_tensor("b")], 3), "split.count"),
        (shard(1, 3, [f32_tensor("b")], 4), "split.tensors.count"),
        (shard(1, 3, [f32_tensor("b")], 3, [("general.name", "str", "another")]), "general.name"),
        (shard(1, 3, [f32_tensor("b")], 3, [("general.name", "[i32]", [1])]), "general.name"),
        (shard(1, 3, [f32_tensor("b")], 3, [("general.name", "bool", True)]), "general.name"),
        (shard(1, 3, [f32_tensor("b")], 3, [("flag", "u8", 1)]), "flag"),
        (shard(1, 3, [f32_tensor("b")], 3, [("sizes", "[i32]", [1, 3])]), "sizes"),
    ],
)
def test_a_shard_that_disagrees_is_named(split: Path, second: bytes, key: str) -> None:
    shard_path(split, 1).write_bytes(second)
    with pytest.raises(GGUFError, match=r"m-00002-of-00003\.gguf") as caught:
        ModelFile.open(shard_path(split, 0))
    assert caught.value.key == key


def test_shards_do_not_share_tensors(split: Path) -> None:
    shard_path(split, 2).write_bytes(shard(2, 3, [f32_tensor("b")], 3))
    with pytest.raises(GGUFError, match=r"b: expected the tensor in one shard, .* in m-00003-of-00003\.gguf"):
        ModelFile.open(shard_path(split, 0))


def test_shards_hold_every_tensor_announced(split: Path) -> None:
    shard_path(split, 2).write_bytes(shard(2, 3, [], 3))
    with pytest.raises(GGUFError, match="expected 3 tensors in all shards, got 2"):
        ModelFile.open(shard_path(split, 0))


def test_the_name_must_fit_the_count(split: Path) -> None:
    renamed = shard_path(split, 0).rename(split / "m.gguf")
    with pytest.raises(
        GGUFError, match=r"split\.count: expected a path that ends in -00001-of-00003\.gguf, got m\.gguf"
    ):
        ModelFile.open(renamed)
    with pytest.raises(GGUFError, match=r"split\.count: expected a path that ends in .*, got <bytes>"):
        ModelFile.open(renamed.read_bytes())


@pytest.mark.parametrize("count", [-1, 65536, 2**62])
def test_the_shard_count_is_bounded(count: int) -> None:
    with pytest.raises(GGUFError, match=r"split\.count: expected 0 to 65535"):
        ModelFile.open(write([("split.no", "u16", 0), ("split.count", "i64", count)]))


@pytest.mark.parametrize("count", [0, 1])
def test_a_merged_file_is_whole(count: int) -> None:
    assert list(ModelFile.open(shard(0, count, [f32_tensor("a")], 1)).tensors) == ["a"]


# Whole files


@pytest.mark.skipif(not PARITY, reason="the reference files are not here")
@pytest.mark.parametrize("path", PARITY, ids=lambda path: path.stem)
def test_reference_files_read_the_same_as_with_the_gguf_package(path: Path) -> None:
    from gguf import GGUFReader

    theirs = GGUFReader(path)
    with ModelFile.open(path) as ours:
        fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
        assert list(ours.metadata) == list(fields)
        for key, field in fields.items():
            value = ours.metadata[key]
            plain = value.tolist() if isinstance(value, np.ndarray) else value
            assert (list(plain) if isinstance(plain, StringArray) else plain) == field.contents(), key
        assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
        for tensor in theirs.tensors:
            info = ours.tensors[tensor.name]
            assert info.format.id == tensor.tensor_type
            assert info.shape == tuple(tensor.shape.tolist())
            assert (info.n_elements, info.nbytes) == (tensor.n_elements, tensor.n_bytes)
            assert info.offset == tensor.data_offset
            assert ours.data(tensor.name).tobytes() == tensor.data.tobytes()


def test_a_large_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    path.write_bytes(vocabulary(128_000, 280_000))
    with ModelFile.open(path) as model:
        tokens = list(model.metadata["tokenizer.ggml.tokens"])
    assert len(tokens) == 128_000
    assert tokens[-1] == "t127999"
    assert model.metadata["tokenizer.ggml.merges"][279_999] == "t279999 x"
