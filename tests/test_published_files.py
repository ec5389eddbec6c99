"""Files that are published: whole or not at all, whatever call fails, and whoever writes at the same time."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from oxillama import OxiLlamaError
from oxillama.gguf import fingerprint
from tests.support.faults import every_fault
from tests.support.paths import ROOT
from tests.support.published import ROOMS, TARGET, VARIANTS
from tests.support.spread import few


@pytest.fixture(autouse=True)
def no_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    fingerprint.KNOWN.forget()


def rooms(*fast: str) -> list[Any]:
    """The rooms for `parametrize`, those that are not named as slow."""
    return few(sorted(ROOMS), fast)


def variants(room: str, folder: Path) -> list[bytes]:
    """The sources are in the folder afterwards, and no target is. Returns the bytes of each variant."""
    if room == "table":
        pytest.importorskip("pyarrow")
    ROOMS[room].prepare(folder)
    found = []
    for variant in range(VARIANTS):
        ROOMS[room].write(folder, variant)
        found.append((folder / TARGET).read_bytes())
        (folder / TARGET).unlink()
    assert len(set(found)) == VARIANTS
    return found


@pytest.mark.parametrize("room", rooms("quantize", "snapshot", "table"))
def test_a_call_that_fails_leaves_the_old_file_or_the_new(room: str, tmp_path: Path) -> None:
    target, of = tmp_path / TARGET, ROOMS[room]
    old, new, _ = variants(room, tmp_path)
    sources = sorted(os.listdir(tmp_path))

    def before() -> None:
        fingerprint.KNOWN.forget()
        with suppress(FileNotFoundError):
            target.unlink()
        if of.overwrites:
            target.write_bytes(old)

    def after(error: OxiLlamaError | None) -> None:
        names = sorted(os.listdir(tmp_path))
        assert names == sources if not target.exists() else names == sorted([*sources, TARGET])
        if of.overwrites:
            assert target.read_bytes() in (old, new)
        elif target.exists():
            assert target.read_bytes() == new
        if error is None:
            assert target.read_bytes() == new

    counts = every_fault(room, tmp_path, before, lambda: of.write(tmp_path, 1), after)
    assert counts.keys() >= {"open", "write", "fsync", "close", "stat", "rename" if of.overwrites else "link"}


@pytest.mark.parametrize("room", [name for name in sorted(ROOMS) if name != "table"])  # pyarrow reads
def test_a_call_that_fails_makes_no_other_content(room: str, tmp_path: Path) -> None:
    ROOMS[room].prepare(tmp_path)
    ROOMS[room].write(tmp_path, 0)
    before = (tmp_path / TARGET).read_bytes()

    def after(error: OxiLlamaError | None) -> None:
        assert (tmp_path / TARGET).read_bytes() == before
        assert error is not None

    counts = every_fault(
        f"{room}, reading", tmp_path, lambda: None, lambda: ROOMS[room].read(tmp_path / TARGET), after,
        ("open", "read"),
    )  # fmt: skip
    assert counts.keys() == {"open", "read"}


@contextmanager
def process(job: str, room: str, folder: Path, number: int, said: str) -> Iterator[subprocess.Popen[str]]:
    """A process of `tests.support.published`, which has said this and waits for a line."""
    command = [sys.executable, "-m", "tests.support.published", job, room, str(folder), str(number)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, env=environment) as found:
        try:
            assert found.stdout is not None
            assert found.stdout.readline() == f"{said}\n", found.communicate()[1]
            yield found
        finally:
            found.kill()


@pytest.mark.parametrize("room", rooms("pack", "convert-new", "snapshot"))
def test_of_two_writers_the_later_one_wins_or_none_is_replaced(room: str, tmp_path: Path) -> None:
    target, of = tmp_path / TARGET, ROOMS[room]
    contents = variants(room, tmp_path)
    sources = os.listdir(tmp_path)
    if of.overwrites:
        of.write(tmp_path, 0)
    with process("slowly", room, tmp_path, 1, "complete") as other:
        if of.overwrites:
            of.read(target)
            assert target.read_bytes() == contents[0]  # the other has written all but the name
        else:
            assert not target.exists()
        with target.open("rb") if of.overwrites else io.BytesIO(contents[0]) as reader:
            of.write(tmp_path, 2)
            of.read(target)
            assert target.read_bytes() == contents[2]
            error = other.communicate("\n", timeout=60)[1]
            assert reader.read() == contents[0]  # who has it open goes on reading the old one
    of.read(target)
    if of.overwrites:
        assert (other.returncode, target.read_bytes()) == (0, contents[1]), error
    else:
        assert (other.returncode, target.read_bytes()) == (1, contents[2])
        assert "ModelFileError" in error and "expected no such file, got one" in error
    assert sorted(os.listdir(tmp_path)) == sorted([*sources, TARGET])


def test_who_reads_while_two_write_sees_whole_files(tmp_path: Path) -> None:
    room, target = "imatrix", tmp_path / TARGET
    contents = variants(room, tmp_path)
    ROOMS[room].write(tmp_path, 0)
    seen = set()
    with (
        process("often", room, tmp_path, 200, "ready") as one,
        process("often", room, tmp_path, 200, "ready") as two,
    ):
        for writer in (one, two):
            assert writer.stdin is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
        while one.poll() is None or two.poll() is None:
            found = target.read_bytes()
            assert found in contents
            seen.add(found)
        assert one.returncode == two.returncode == 0
    assert len(seen) > 1
    assert os.listdir(tmp_path) == [TARGET]
