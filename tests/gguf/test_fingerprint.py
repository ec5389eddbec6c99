"""A fingerprint depends on all content of a model and on nothing else; a cached one is never a wrong one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from oxillama.errors import ModelFileError
from oxillama.gguf import fingerprint, known_hashes
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.gguf.known_hashes import cache_folder
from oxillama.gguf.model_file import ModelFile
from tests.support.gguf_writer import Tensor, f32_tensor, write

METADATA: list[tuple[str, str, Any]] = [
    ("general.architecture", "str", "llama"),
    ("tokenizer.ggml.tokens", "[str]", ["a", "b"]),
    ("llama.rope.freq_base", "f32", 1e4),
]
TENSORS = [f32_tensor("a", 4, 1), f32_tensor("b", 40000, 2), f32_tensor("c", 2, 3)]
WHOLE = write(METADATA, TENSORS)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; files written just now count as settled."""
    monkeypatch.setattr(known_hashes, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(known_hashes, "SETTLE_SECONDS", -3600.0)
    fingerprint.KNOWN.forget()
    return tmp_path / "cache" / "fingerprints"


@pytest.fixture
def n_hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that a whole model was hashed."""
    calls: list[int] = []
    hashed = fingerprint._hashed
    monkeypatch.setattr(fingerprint, "_hashed", lambda *given: (calls.append(1), hashed(*given))[1])
    return calls


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of the model."""
    made = tmp_path / "m.gguf"
    made.write_bytes(WHOLE)
    return made


def digest(data: bytes) -> bytes:
    return ModelFingerprint.compute(data).digest


def test_every_byte_of_a_tensor_counts() -> None:
    found = {digest(WHOLE)}
    start = len(WHOLE) - sum(len(tensor.data) for tensor in TENSORS)
    places = [start, start + 127, start + 128, start + 128 + 640_000, start + 128 + 1_279_999, len(WHOLE) - 1]
    for place in places:
        changed = bytearray(WHOLE)
        changed[place] ^= 1
        found.add(digest(bytes(changed)))
    assert len(found) == 1 + len(places)


@pytest.mark.parametrize(
    ("metadata", "tensors"),
    [
        ([*METADATA[:2], ("llama.rope.freq_base", "f32", 1e5)], TENSORS),
        ([*METADATA[:2], ("llama.rope.freq_base", "f64", 1e4)], TENSORS),
        ([METADATA[0], ("tokenizer.ggml.tokens", "[str]", ["a", "c"]), METADATA[2]], TENSORS),
        (METADATA[:2], TENSORS),
        ([*METADATA, ("some.key", "u32", 0)], TENSORS),
        (METADATA, TENSORS[:2]),
        (METADATA, [Tensor("aa", (8, 4), 0, TENSORS[0].data), *TENSORS[1:]]),
        (METADATA, [Tensor("a", (4, 8), 0, TENSORS[0].data), *TENSORS[1:]]),
        (METADATA, [Tensor("a", (8, 4), 26, TENSORS[0].data), *TENSORS[1:]]),  # I32
    ],
)
def test_metadata_names_shapes_and_formats_count(metadata: list[Any], tensors: list[Tensor]) -> None:
    assert digest(write(metadata, tensors)) != digest(WHOLE)


def test_tensors_that_swap_their_bytes_are_another_model() -> None:
    a, b = (f32_tensor(name, 4, fill) for name, fill in (("a", 1), ("b", 2)))
    c, d = (f32_tensor(name, 4, fill) for name, fill in (("a", 2), ("b", 1)))
    assert digest(write(METADATA, [a, b])) != digest(write(METADATA, [c, d]))


def test_how_a_model_lies_in_its_file_does_not_count() -> None:
    for other in (
        write(METADATA[::-1], TENSORS[::-1]),
        write(METADATA, TENSORS, alignment=64),
        write([*METADATA, ("split.count", "u16", 0)], TENSORS),  # merged by gguf-split
    ):
        assert digest(other) == digest(WHOLE)


def test_paths_shards_bytes_and_open_files_agree(path: Path, tmp_path: Path) -> None:
    for i, tensors in enumerate((TENSORS[:1], TENSORS[1:])):
        split = [("split.no", "u16", i), ("split.count", "u16", 2), ("split.tensors.count", "i32", 3)]
        (tmp_path / f"s-0000{i + 1}-of-00002.gguf").write_bytes(
            write([*(METADATA if i == 0 else []), *split], tensors)
        )
    expected = ModelFingerprint.compute(WHOLE)
    with ModelFile.open(path) as file:
        assert ModelFingerprint.compute(file) == expected
    for source in (path, str(path), tmp_path / "s-00001-of-00002.gguf", bytearray(WHOLE), memoryview(WHOLE)):
        assert ModelFingerprint.compute(source) == expected
        assert expected.verify(source)


def test_settings_count_and_their_order_does_not() -> None:
    plain = ModelFingerprint.compute(WHOLE)
    one = ModelFingerprint.compute(WHOLE, {"compute": "int8", "quantize": None})
    assert one == ModelFingerprint.compute(WHOLE, {"quantize": None, "compute": "int8"})
    others: list[dict[str, Any]] = [
        {"compute": "f32", "quantize": None},
        {"compute": "int8"},
        {"compute": "int8", "quantize": "None"},
        {"context_size": 1},
        {"context_size": True},
        {"context_size": 1.0},
    ]
    found = {plain, one, *(ModelFingerprint.compute(WHOLE, settings) for settings in others)}
    assert len(found) == len({f.digest for f in found}) == len({f.display() for f in found}) == 8
    assert one.verify(WHOLE)


def test_digest_and_display() -> None:
    made = ModelFingerprint.compute(WHOLE)
    assert len(made.digest) == 32
    assert made.digest.hex().startswith(made.display())
    assert len(made.display()) == 16


def test_progress_ends_at_the_bytes_of_all_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "PIECE_BYTES", 1 << 19)
    heard: list[tuple[int, int]] = []
    made = ModelFingerprint.compute(WHOLE, progress=lambda done, total: heard.append((done, total)))
    total = sum(len(tensor.data) for tensor in TENSORS)
    assert [done for done, _ in heard] == [128, 128 + (1 << 19), 128 + (1 << 20), total - 64, total]
    assert {n for _, n in heard} == {total}
    monkeypatch.undo()
    assert digest(WHOLE) == made.digest  # pieces do not matter


def test_a_closed_file_is_refused() -> None:
    file = ModelFile.open(WHOLE)
    file.close()
    with pytest.raises(ModelFileError, match="closed"):
        ModelFingerprint.compute(file)


# --- the cache --------------------------------------------------------------------------------------


def test_a_file_is_hashed_once(path: Path, own_cache: Path, n_hashed: list[int]) -> None:
    first = ModelFingerprint.compute(path)
    assert ModelFingerprint.compute(path) == first
    fingerprint.KNOWN.forget()  # as another process
    assert ModelFingerprint.compute(path, {"compute": "f32"}).content == first.content
    for kept in own_cache.iterdir():
        kept.unlink()  # the folder is asked once
    assert ModelFingerprint.compute(path) == first
    assert len(n_hashed) == 1
    assert first.verify(path)
    assert len(n_hashed) == 2  # verifying never asks the cache


def test_bytes_are_not_cached(own_cache: Path, n_hashed: list[int]) -> None:
    assert digest(WHOLE) == digest(WHOLE)
    assert len(n_hashed) == 2
    assert not own_cache.exists()


def test_a_changed_file_is_hashed_anew(path: Path, tmp_path: Path) -> None:
    first = ModelFingerprint.compute(path)
    times = path.stat()
    with path.open("r+b") as file:  # same inode and size; mtime is set back, ctime cannot be
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = ModelFingerprint.compute(path)
    assert second != first
    assert second == ModelFingerprint.compute(path.read_bytes())
    assert not first.verify(path)
    other = tmp_path / "other.gguf"
    other.write_bytes(WHOLE)
    other.replace(path)
    assert ModelFingerprint.compute(path) == first


def test_a_file_changed_just_now_is_not_cached(
    path: Path, own_cache: Path, n_hashed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_hashes, "SETTLE_SECONDS", 3600.0)
    assert ModelFingerprint.compute(path) == ModelFingerprint.compute(path)
    assert len(n_hashed) == 2
    if os.name == "posix":
        os.utime(path, (0, 0))  # as of a file that was copied with its times
        assert ModelFingerprint.compute(path) == ModelFingerprint.compute(path)
        assert len(n_hashed) == 4
    assert not own_cache.exists()


def test_a_file_that_changes_while_it_is_hashed_is_not_cached(
    path: Path, own_cache: Path, n_hashed: list[int]
) -> None:
    with pytest.raises(ModelFileError, match="changed while it was in use"):
        ModelFingerprint.compute(path, progress=lambda done, total: os.utime(path, ns=(0, done)))
    assert not own_cache.exists()
    with ModelFile.open(path) as file:
        ModelFingerprint.compute(file, progress=lambda done, total: path.unlink(missing_ok=True))
    assert not own_cache.exists()
    assert len(n_hashed) == 2


@pytest.mark.parametrize("damage", [b"", b"x", b"\0" * 64, b"flip", b"other"])
def test_a_damaged_cache_is_not_believed(
    path: Path, tmp_path: Path, own_cache: Path, n_hashed: list[int], damage: bytes
) -> None:
    first = ModelFingerprint.compute(path)
    (entry,) = own_cache.iterdir()
    good = entry.read_bytes()
    if damage == b"flip":
        damage = bytes([good[0] ^ 1]) + good[1:]
    elif damage == b"other":  # the entry of another file
        other = tmp_path / "other.gguf"
        other.write_bytes(write(METADATA, TENSORS[:1]))
        ModelFingerprint.compute(other)
        damage = next(e.read_bytes() for e in own_cache.iterdir() if e != entry)
    entry.write_bytes(damage)
    n_hashed.clear()
    fingerprint.KNOWN.forget()
    assert ModelFingerprint.compute(path) == first
    assert len(n_hashed) == 1
    assert entry.read_bytes() == good  # and it is written again


def test_a_cache_that_cannot_be_written_is_no_error(
    path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache.parent.mkdir()
    own_cache.write_bytes(b"a file where the folder should be")
    expected = ModelFingerprint.compute(WHOLE)
    assert ModelFingerprint.compute(path) == expected
    fingerprint.KNOWN.forget()
    monkeypatch.setattr(known_hashes, "cache_folder", lambda: None)
    assert ModelFingerprint.compute(path) == expected


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/oxillama"),
        ("linux", {"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/oxillama"),
        ("linux", {"XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/oxillama"),
        ("darwin", {"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/h/Library/Caches/oxillama"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/oxillama"),
        ("win32", {"LOCALAPPDATA": ""}, None),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="paths as POSIX writes them")
def test_where_the_cache_is(
    platform: str, variables: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_hashes.sys, "platform", platform)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = cache_folder()
    assert (None if found is None else str(found)) == expected
