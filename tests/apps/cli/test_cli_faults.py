"""Whatever call of the system fails, a command ends with one line and a code, or has done its work."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from oxillama import OxiLlamaError, pack_model
from oxillama.apps import cli
from oxillama.apps.cli import program
from tests.support.faults import CHANGING, FAULTS, every_fault
from tests.support.published import TARGET, hf_folder, tiny_model
from tests.support.spread import few

READING = ("open", "read", "stat", "map", "lock", "list")
WRITING = (*CHANGING, "read", "stat")


def packed_model(folder: Path) -> None:
    tiny_model(folder)
    pack_model(folder / "m.gguf", num_threads=1)


WRITTEN = (TARGET, "hf.gguf", "s")
"""Files that commands write."""

VARYING = ("pack", "info")
"""Commands whose files, or whose output, differ from one time to the next."""

PROMPT = ("-p", "hello", "-n", "3", "-t", "1", "-q", "--temp", "0")


def model_and_session(folder: Path) -> None:
    tiny_model(folder)
    assert cli.main(["run", "m.gguf", *PROMPT, "--session", "s"]) == 0


def model_and_rows(folder: Path) -> None:
    tiny_model(folder)
    (folder / "in.jsonl").write_text('{"prompt": "hello"}\n{"prompt": "good day"}\n')


COMMANDS: dict[str, tuple[Callable[[Path], object], tuple[str, ...], tuple[str, ...]]] = {
    "pack": (tiny_model, ("pack", "m.gguf", "-o", TARGET, "-t", "1", "-q"), WRITING),
    "pack --check": (packed_model, ("pack", "m.gguf", "--check", "-q"), READING),
    "quantize": (tiny_model, ("quantize", "m.gguf", TARGET, "Q8_0", "-t", "1", "-q"), WRITING),
    "convert": (hf_folder, ("convert", "hf", "-q"), WRITING),
    "run": (packed_model, ("run", "m.gguf", *PROMPT), READING),
    "run --session": (model_and_session, ("run", "m.gguf", *PROMPT, "--session", "s"), WRITING),
    "batch": (model_and_rows, ("batch", "in.jsonl", TARGET, "-m", "m.gguf", *PROMPT[2:]), tuple(FAULTS)),
    "snapshot": (model_and_session, ("snapshot", "s"), READING),
    "snapshot --check": (model_and_session, ("snapshot", "s", "--check"), READING),
    "info": (packed_model, ("info", "m.gguf", "-q"), READING),
}


@pytest.mark.filterwarnings("default")  # a packed file that cannot be read is a warning
@pytest.mark.parametrize("name", few(COMMANDS, ("info",)))
def test_a_command_ends_with_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    prepare, arguments, operations = COMMANDS[name]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(program, "_leave_pipe", lambda code: code)  # the process goes on here
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    sources = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    kept = {*tmp_path.iterdir(), tmp_path / "cache"}
    codes: list[int] = []

    def before() -> None:
        for path in set(tmp_path.iterdir()) - kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path, data in sources.items():
            if path.read_bytes() != data:
                path.write_bytes(data)
        capfd.readouterr()

    def use() -> None:
        codes.append(cli.main([*arguments]))

    def left() -> dict[str, bytes]:
        """What a command that did its work has written."""
        return {each: (tmp_path / each).read_bytes() for each in WRITTEN if (tmp_path / each).is_file()}

    before()
    use()
    made, text = left(), capfd.readouterr().out
    assert codes == [0]

    def after(error: OxiLlamaError | None) -> None:
        told = capfd.readouterr()
        assert "Traceback" not in told.err and "Error:" not in told.err, told
        errors = [line for line in told.err.splitlines() if line.startswith("oxillama: error: ")]
        assert (codes[-1], len(errors)) in ((0, 0), (2, 1)), (codes[-1], told)
        if name in VARYING:
            return
        if codes[-1] == 0:
            assert told.out == text
            assert left() == made
        else:
            for each, data in left().items():
                assert data in (made[each], sources.get(tmp_path / each)), each

    counts = every_fault(f"oxillama {name}", tmp_path, before, use, after, operations, closes=False)
    assert {"open", "read"} <= counts.keys()
    assert 0 in codes[1:] and 2 in codes
