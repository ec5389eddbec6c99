"""Files of snapshots: replaced as a whole, and on the disk when the call returns."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from oxillama import InferenceEngine, ModelFileError, demo
from oxillama.atomic_file import replaced_file


@pytest.fixture(scope="module")
def engine() -> InferenceEngine:
    return InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)


def test_the_file_and_its_name_are_synced(
    tmp_path: Path, engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, real_sync, real_replace = [], os.fsync, os.replace

    def sync(fd: int) -> None:
        seen.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        real_sync(fd)

    def rename(*names: str) -> None:
        seen.append("rename")
        real_replace(*names)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    engine.snapshot_to_file(tmp_path / "a")
    assert seen == ["file", "rename", *["folder"] * hasattr(os, "O_DIRECTORY")]


@pytest.mark.parametrize("call", ["fsync", "replace", "write"])
def test_a_file_stays_where_writing_fails(
    call: str, tmp_path: Path, engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    engine.snapshot_to_file(path)
    before = path.read_bytes()
    engine.prefill([5, 6, 7])

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def pieces(*args: object) -> Iterator[bytes]:
        yield b"OXI"
        fail()

    with monkeypatch.context() as patched:
        if call == "write":
            patched.setattr("oxillama.session.snapshot.EngineSnapshot.pieces", pieces)
        else:
            patched.setattr(os, call, fail)
        with pytest.raises(ModelFileError, match="cannot be written: No space left on device"):
            engine.snapshot_to_file(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    engine.snapshot_to_file(path)
    assert len(path.read_bytes()) > len(before)
    engine.reset()


def test_a_folder_that_cannot_be_synced_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, codes = os.fsync, [errno.EINVAL, errno.ENOTSUP, errno.EIO]

    def sync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            code = codes.pop(0)
            raise OSError(code, os.strerror(code))
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    for _ in range(2):
        with replaced_file(tmp_path / "a") as file:
            file.write(b"x")
    with pytest.raises(ModelFileError, match="cannot be written"), replaced_file(tmp_path / "a") as file:
        file.write(b"y")
    assert not codes
