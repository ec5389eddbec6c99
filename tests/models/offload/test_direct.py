"""Reads past the system's cache: the same bytes, the same errors, and the usual way where they cannot be."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama.errors import ModelFileError
from oxillama.gguf.extent import Extent, OpenFile
from oxillama.models.offload.direct import BLOCK, READ_BYTES, DirectReads

SIZE = 3 * READ_BYTES + 777


@pytest.fixture
def data() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)


@pytest.fixture
def path(tmp_path: Path, data: np.ndarray) -> Path:
    path = tmp_path / "file"
    path.write_bytes(data.tobytes())
    return path


PLACES = [
    (0, SIZE),
    (0, 1),
    (BLOCK - 1, 2),
    (BLOCK, BLOCK),
    (1, READ_BYTES),
    (READ_BYTES - 1, READ_BYTES + 2),
    (SIZE - 1, 1),
    (SIZE - 5000, 5000),
    (17, 0),
]


@pytest.mark.parametrize(("start", "n"), PLACES)
def test_the_bytes_are_those_of_the_file(path: Path, data: np.ndarray, start: int, n: int) -> None:
    out = np.zeros(n + 2, np.uint8)
    DirectReads()(Extent(OpenFile(path), start, n), out[1:-1])
    assert (out[1:-1] == data[start : start + n]).all()
    assert out[0] == out[-1] == 0  # no other bytes are written


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="the system has no such reads")
@pytest.mark.parametrize("fails", ["open", "preadv", "second preadv"])
def test_where_it_cannot_be_the_cache_is_used(
    path: Path, data: np.ndarray, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OpenFile(path)
    calls = [0]
    original = getattr(os, fails.split()[-1])

    def refuse(fd: Any, *arguments: Any) -> Any:
        calls[0] += fd != file.fd
        if fd == file.fd or (fails == "second preadv" and calls[0] < 2):
            return original(fd, *arguments)
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, fails.split()[-1], refuse)
    out, read = np.zeros(SIZE, np.uint8), DirectReads()
    read(Extent(file, 0, SIZE), out)
    assert calls[0]
    assert (out == data).all()


def test_a_file_that_was_cut_or_changed(path: Path) -> None:
    file, out = OpenFile(path), np.zeros(SIZE, np.uint8)
    os.truncate(path, SIZE - 1)
    with pytest.raises(ModelFileError, match="changed while it was in use"):
        DirectReads()(Extent(file, 0, SIZE), out)
    with pytest.raises(ModelFileError, match="changed while it was in use"):
        DirectReads()(Extent(file, 0, 10), out[:10])


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc with the open files")
def test_descriptors_are_closed(path: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    read = DirectReads()
    for _ in range(5):
        read(Extent(OpenFile(path), 0, 100), np.zeros(100, np.uint8))
    del read
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
