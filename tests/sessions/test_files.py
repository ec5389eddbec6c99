"""Files of snapshots: replaced as a whole, and on the disk when the call returns."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from oxillama import ModelFileError, demo, pack_model
from oxillama.base.atomic_file import replaced_file
from oxillama.compat.engine import InferenceEngine
from oxillama.errors import SnapshotIncompatible
from oxillama.sessions.restore import resume
from oxillama.sessions.snapshot import EngineSnapshot
from tests.support.tiny_file import CHATML, write_tiny_model


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
            patched.setattr("oxillama.sessions.snapshot.EngineSnapshot.pieces", pieces)
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


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_not_replaced_without_overwrite(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EPERM, "no links")))
    path = tmp_path / "a"
    with (
        pytest.raises(ModelFileError, match="expected no such file"),
        replaced_file(path, overwrite=False) as file,
    ):
        file.write(b"late")
        path.write_bytes(b"first")
    assert path.read_bytes() == b"first"
    path.unlink()
    with replaced_file(path, overwrite=False) as file:
        file.write(b"alone")
    assert path.read_bytes() == b"alone"
    assert os.listdir(tmp_path) == ["a"]


WRITER = '''
import builtins, errno, io, os, resource, signal, sys, tempfile
from pathlib import Path
from oxillama import EngineSnapshot, ModelFileError
from oxillama.base import atomic_file
from oxillama.sessions.container import write_file

path, kind = Path(sys.argv[1]), sys.argv[2]
old, new = (EngineSnapshot.deserialize(Path(name).read_bytes()) for name in sys.argv[3:5])
bytes_of = {name: snapshot.serialize() for name, snapshot in (("old", old), ("new", new))}
left = -1


def step():
    """The place of a fault; of a write, before it and in its middle."""
    global left
    left -= 1
    if left == 0 and kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if left == 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Raw(io.FileIO):
    def write(self, data):
        step()
        view = memoryview(data).cast("B")
        n = super().write(view[: len(view) // 2])
        step()
        return n + super().write(view[n:])


def stepping(call):
    def run(*args, **kind):
        step()
        return call(*args, **kind)
    return run


def write_new():
    atomic_file.open = lambda name, mode: Raw(name, mode)
    for module, name in ((tempfile, "mkstemp"), (os, "fchmod"), (os, "fsync"), (os, "replace"), (os, "open")):
        setattr(module, name, stepping(getattr(module, name)))
    write_file(path, new.pieces())
    step()


seen, n, ended = [], 0, False
while not ended:
    n += 1
    path.write_bytes(bytes_of["old"])
    child = os.fork()
    if not child:
        left = n
        try:
            write_new()
        except ModelFileError as error:
            os._exit(28 if "No space left on device" in str(error) else 1)
        except OSError:
            os._exit(0)  # the step after the end
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ended = code == 0
    assert code in (0, 28 if kind == "full" else -signal.SIGKILL), (n, code)
    found = path.read_bytes()
    names = [name for name, held in bytes_of.items() if held == found]
    assert names, f"step {n}: neither the old file nor the new one"
    seen += names
    beside = [other for other in path.parent.iterdir() if other.name.startswith(f".{path.name}.")]
    assert kind == "killed" or not beside, beside
    for other in beside:
        other.unlink()
    write_file(path, new.pieces())  # what was left is in nobody's way
    assert path.read_bytes() == bytes_of["new"]
assert seen[-1] == "new" and seen == sorted(seen, reverse=True), seen  # old, then new
print(n, seen.count("old"))
'''


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.parametrize("kind", ["killed", "full"])
def test_a_fault_at_any_step_leaves_the_old_file_or_the_new(
    kind: str, tmp_path: Path, engine: InferenceEngine
) -> None:
    for name, tokens in (("old", [5, 6, 7]), ("new", [8, 9, 10, 11])):
        with engine.session() as session:
            session.prefill(tokens)
            session.snapshot_to_file(tmp_path / name)
    (tmp_path / "target").mkdir()
    arguments = [str(tmp_path / "target" / "a"), kind, str(tmp_path / "old"), str(tmp_path / "new")]
    done = subprocess.run([sys.executable, "-c", WRITER, *arguments], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    n_steps, n_old = map(int, done.stdout.split())
    assert n_steps > 15 and n_old > 10


LIMITED = """
import resource, signal, sys
from pathlib import Path
from oxillama import EngineSnapshot, ModelFileError
from oxillama.sessions.container import write_file
snapshot = EngineSnapshot.deserialize(Path(sys.argv[1]).read_bytes())
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
size = len(snapshot.serialize())
resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, size - 1))
try:
    write_file(sys.argv[2], snapshot.pieces())
except ModelFileError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of files here")
def test_a_file_that_may_not_grow_stays(tmp_path: Path, engine: InferenceEngine) -> None:
    with engine.session() as session:
        session.prefill(list(range(5, 200)))
        session.snapshot_to_file(tmp_path / "new")
    (tmp_path / "a").write_bytes(b"old")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "new"), str(tmp_path / "a")],
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert b"cannot be written: File too large" in done.stdout
    assert (tmp_path / "a").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "new"]


# --- files that a snapshot names ----------------------------------------------------------------------------
def snapshot_with(engine: InferenceEngine, **options: object) -> bytes:
    """A snapshot of an engine whose options name other files."""
    taken = EngineSnapshot.deserialize(engine.snapshot())
    return replace(taken, engine={**taken.engine, **options}).serialize()


def test_a_snapshot_has_no_file_written(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "m.gguf")
    with InferenceEngine.from_gguf(model) as engine:
        data = snapshot_with(engine, packed="make")
        assert EngineSnapshot.deserialize(engine.snapshot()).engine["packed"] == "auto"
    resume(InferenceEngine, data)[0].close()
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no named pipes")
@pytest.mark.parametrize(
    "option", ["chat_template", "tokenizer_path", "mmproj", "packed", "speculate", "draft_corpus"]
)
def test_a_snapshot_has_no_pipe_opened(engine: InferenceEngine, tmp_path: Path, option: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        data = snapshot_with(engine, **{option: [str(path)] if option == "draft_corpus" else str(path)})
        with pytest.raises(SnapshotIncompatible, match=f"{option}: expected a regular file"):
            resume(InferenceEngine, data)


def test_the_paths_of_a_snapshot_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny_model(tmp_path / "m.gguf")
    pack_model(model, tmp_path / "p.packed")
    (tmp_path / "t.jinja").write_text(CHATML)
    (tmp_path / "corpus.txt").write_text("once upon a time")
    monkeypatch.chdir(tmp_path)
    options = {"packed": "p.packed", "chat_template": "t.jinja", "draft_corpus": ("corpus.txt", b"the fox")}
    with InferenceEngine.from_gguf(model, speculate="lookup", **options) as engine:
        data = engine.snapshot()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    engine, _ = resume(InferenceEngine, data)
    with engine:
        assert engine.config.packed == str(tmp_path / "p.packed")
        assert engine.config.chat_template == str(tmp_path / "t.jinja")
        assert engine.config.draft_corpus == (str(tmp_path / "corpus.txt"),)
