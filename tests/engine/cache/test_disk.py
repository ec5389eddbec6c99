"""The folder of blocks: what is found, what is refused, what goes first, and what other processes do."""

from __future__ import annotations

import errno
import logging
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, strategies as st

from oxillama.engine.features.disk_prefixes.folder import (
    BLOCK,
    DIGEST,
    KV,
    MAGIC,
    STALE_SECONDS,
    BlockFolder,
    chain,
)
from oxillama.errors import ConfigError

ROOT = bytes(32)
HEAD = len(MAGIC) + DIGEST


def data_of(n: int, size: int = 1000) -> np.ndarray:
    return np.full(size, n % 256, np.uint8)


def name_of(n: int) -> str:
    return f"{n:064x}{KV}"


def names_in(path: Path) -> list[int]:
    return sorted(int(entry.name.removesuffix(KV), 16) for entry in path.iterdir())


def filled(path: Path, n: int, most: int = 10**6) -> BlockFolder:
    folder = BlockFolder(path, most)
    for i in range(n):
        folder.write(name_of(i), data_of(i))
    return folder


def test_a_chain_names_all_that_comes_before() -> None:
    tokens = list(range(5 * BLOCK + 3))
    names = chain(ROOT, tokens)
    assert len(set(names)) == 5
    assert chain(ROOT, tokens[: 3 * BLOCK]) == names[:3]
    assert chain(ROOT, tokens[: BLOCK - 1]) == []
    assert not set(chain(b"x" * 32, tokens)) & set(names)
    changed = [*tokens[:BLOCK], 7, *tokens[BLOCK + 1 :]]
    assert [a == b for a, b in zip(chain(ROOT, changed), names)] == [True, False, False, False, False]
    adapted = [tokens[0] | 1 << 40, *tokens[1:]]
    assert not set(chain(ROOT, adapted)) & set(names)
    wide = [*tokens[: 4 * BLOCK], *(token | (2**256 - 1) << 32 for token in tokens[4 * BLOCK :])]
    assert len(chain(ROOT, wide)) == 5


def test_what_was_written_is_found(tmp_path: Path) -> None:
    path = tmp_path / "made" / "by it"
    folder = filled(path, 3)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(entry.stat().st_mode) for entry in path.iterdir()} == {0o600}
    other = BlockFolder(path, 10**6)
    for found in (folder, other):
        assert found.has(name_of(1)) and not found.has(name_of(3))
        assert np.array_equal(found.read(name_of(1), 1000), data_of(1))  # type: ignore[arg-type]
        assert found.read(name_of(3), 1000) is None
    other.write(name_of(9), data_of(9))
    assert folder.has(name_of(9))  # what was written since


@given(at=st.integers(0, HEAD + 99), bit=st.integers(0, 7))
def test_any_changed_byte_is_noticed(at: int, bit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = BlockFolder(tmp_path_factory.mktemp("blocks"), 10**6)
    folder.write(name_of(0), data_of(3, 100))
    file = folder.path / name_of(0)
    content = bytearray(file.read_bytes())
    assert len(content) == HEAD + 100
    content[at] ^= 1 << bit
    file.write_bytes(content)
    assert folder.read(name_of(0), 100) is None
    assert not file.exists() and not folder.has(name_of(0))


def test_what_is_cut_or_renamed_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = filled(tmp_path, 4)
    whole = (tmp_path / name_of(0)).read_bytes()
    for n, content in enumerate((b"", whole[:20], whole[:-1], whole + b"\0", whole)):
        (tmp_path / name_of(1)).write_bytes(content)  # the last is whole, and another's
        with caplog.at_level(logging.WARNING, "oxillama"):
            assert folder.read(name_of(1), 1000) is None
        assert len(caplog.records) == n + 1 and "is damaged and is deleted" in caplog.text
        assert names_in(tmp_path) == [0, 2, 3]
    assert folder.read(name_of(2), 999) is None  # a file of another size
    assert names_in(tmp_path) == [0, 3]


def test_the_limit_holds_and_the_oldest_go(tmp_path: Path) -> None:
    folder = filled(tmp_path, 8, 10 * (1000 + HEAD))
    now = time.time_ns()
    for i in range(8):
        os.utime(tmp_path / name_of(i), ns=(now, now - (8 - i) * 10**9))
    folder.touch([name_of(0), name_of(1)])
    for i in range(8, 40):
        folder.write(name_of(i), data_of(i))
        os.utime(tmp_path / name_of(i), ns=(now, now + i * 10**9))
        assert sum(entry.stat().st_size for entry in tmp_path.iterdir()) <= folder.max_bytes
        if i == 10:
            assert {0, 1}.issubset(names_in(tmp_path)) and 2 not in names_in(tmp_path)
    assert names_in(tmp_path) == list(range(40 - len(names_in(tmp_path)), 40))
    assert folder.present == {name_of(i) for i in names_in(tmp_path)}
    folder.write(name_of(99), data_of(9, folder.max_bytes))
    assert 99 not in names_in(tmp_path)


def test_of_a_chain_the_end_goes_first(tmp_path: Path) -> None:
    folder = filled(tmp_path, 6, 6 * (1000 + HEAD))
    folder.touch([name_of(i) for i in range(6)])
    folder.write(name_of(50), data_of(50))
    assert 0 in names_in(tmp_path) and 5 not in names_in(tmp_path)


def test_the_files_of_others_count(tmp_path: Path) -> None:
    limit = 40 * (1000 + HEAD)
    folders = [BlockFolder(tmp_path, limit) for _ in range(3)]
    for i in range(300):
        folders[i % 3].write(name_of(i), data_of(i))
    held = sum(entry.stat().st_size for entry in tmp_path.iterdir())
    assert held <= limit * (1 + 3 / 32) + 3 * 1040
    assert len(names_in(tmp_path)) > 20


def test_others_delete_what_is_in_use(tmp_path: Path) -> None:
    folder = filled(tmp_path, 2)
    with open(tmp_path / name_of(0), "rb") as file:
        (tmp_path / name_of(0)).unlink()
        assert len(file.read()) == 1000 + HEAD
    assert folder.has(name_of(0))  # not noticed yet
    assert folder.read(name_of(0), 1000) is None
    assert not folder.has(name_of(0))
    (tmp_path / name_of(1)).unlink()
    folder.touch([name_of(1)])
    assert not folder.has(name_of(1))
    folder.write(name_of(1), data_of(1))
    assert folder.read(name_of(1), 1000) is not None


def test_a_folder_that_cannot_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = filled(tmp_path, 2)
    error = PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    monkeypatch.setattr(os, "utime", Mock(side_effect=error))
    folder.touch([name_of(0), name_of(1)])
    assert folder.present == {name_of(0), name_of(1)}
    assert folder.read(name_of(1), 1000) is not None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders here")
def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    folder = filled(tmp_path, 1)
    os.mkfifo(tmp_path / name_of(1))
    assert folder.read(name_of(1), 1000) is None
    assert names_in(tmp_path) == [0]


@pytest.mark.parametrize("call", ["mkstemp", "write", "replace", "scandir"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_disk_ends_the_writing_and_nothing_else(
    call: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = filled(tmp_path, 2, 3 * (1000 + HEAD))

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "oxillama"):
        where = {
            "mkstemp": "tempfile.mkstemp",
            "write": "oxillama.engine.features.disk_prefixes.folder._head",
        }.get(call, f"os.{call}")
        patched.setattr(where, Mock(side_effect=OSError(code, os.strerror(code))))
        for i in range(2, 5):
            folder.write(name_of(i), data_of(i))
    assert not folder.is_writable
    assert [record.message.partition(" is written")[0] for record in caplog.records] == [
        "prefix cache: nothing more"
    ]
    assert set(names_in(tmp_path)) <= {0, 1, 2}  # and no unfinished file
    folder.write(name_of(7), data_of(7))
    assert 7 not in names_in(tmp_path)
    assert folder.read(name_of(1), 1000) is not None


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_file_that_cannot_be_written_whole(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    folder, limit = BlockFolder(tmp_path, 10**6), resource.RLIMIT_FSIZE
    before = resource.getrlimit(limit)
    resource.setrlimit(limit, (50_000, before[1]))
    try:
        folder.write(name_of(0), data_of(0, 100_000))
    finally:
        resource.setrlimit(limit, before)
    assert not folder.is_writable and not list(tmp_path.iterdir())


def test_what_was_left_unfinished_is_removed_later(tmp_path: Path) -> None:
    for name, age in ((".old", STALE_SECONDS + 60), (".new", 5)):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    (tmp_path / "theirs").write_bytes(b"x")  # no file of ours
    BlockFolder(tmp_path, 1000)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".new", "theirs"]


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below", "a\0b"):
        with pytest.raises(ConfigError, match="prefix_cache_dir: expected a folder, got "):
            BlockFolder(path, 1000)


MANY = """
import sys
import numpy as np
from oxillama.engine.features.disk_prefixes.folder import BlockFolder
folder = BlockFolder(sys.argv[1], int(sys.argv[2]))
for turn in range(20):
    for i in range(15):
        name = f"{(i * 7 + turn) % 25:064x}.kv"
        folder.write(name, np.full(1000, (i * 7 + turn) % 25, np.uint8))
        other = f"{(i * 3 + turn) % 25:064x}"
        found = folder.read(other + ".kv", 1000)
        assert found is None or (found == int(other, 16)).all()
        folder.touch([name])
assert folder.is_writable
"""


@pytest.mark.parametrize("room", [30, 5])
def test_many_processes_share_a_folder(room: int, tmp_path: Path) -> None:
    """What one reads is whole, whatever the others write and delete; nothing is taken for damaged.

    There is room for all 25 blocks, or for five of them: then each process deletes what the others write.
    """
    command = [sys.executable, "-c", MANY, str(tmp_path), str(room * 1040)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
        assert b"damaged" not in errors
    folder = BlockFolder(tmp_path, 30 * 1040)
    assert names_in(tmp_path) == list(range(25)) if room > 25 else len(names_in(tmp_path)) <= room + 3
    assert all(folder.read(name_of(i), 1000) is not None for i in names_in(tmp_path))
