"""Whatever call of the system fails, a command ends with one line and a code, or has done its work."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from oxillama import OxiLlamaError, cli, pack_model
from tests.support.faults import CHANGING, every_fault
from tests.support.published import TARGET, hf_folder, tiny_model
from tests.support.spread import few

READING = ("open", "read", "stat", "map", "lock", "list")
WRITING = (*CHANGING, "read", "stat")


def packed_model(folder: Path) -> None:
    tiny_model(folder)
    pack_model(folder / "m.gguf", num_threads=1)


COMMANDS: dict[str, tuple[Callable[[Path], object], tuple[str, ...], tuple[str, ...]]] = {
    "pack": (tiny_model, ("pack", "m.gguf", "-o", TARGET, "-t", "1", "-q"), WRITING),
    "pack --check": (packed_model, ("pack", "m.gguf", "--check", "-q"), READING),
    "quantize": (tiny_model, ("quantize", "m.gguf", TARGET, "Q8_0", "-t", "1", "-q"), WRITING),
    "convert": (hf_folder, ("convert", "hf", "-q"), WRITING),
    "info": (packed_model, ("info", "m.gguf", "-q"), READING),
}


@pytest.mark.filterwarnings("default")  # a packed file that cannot be read is a warning
@pytest.mark.parametrize("name", few(COMMANDS, ("pack", "convert")))
def test_a_command_ends_with_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    prepare, arguments, operations = COMMANDS[name]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    sources = {path.name for path in tmp_path.iterdir()} | {"cache"}
    codes: list[int] = []

    def before() -> None:
        for path in set(tmp_path.iterdir()):
            if path.name not in sources:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        capfd.readouterr()

    def use() -> None:
        codes.append(cli.main([*arguments]))

    def after(error: OxiLlamaError | None) -> None:
        told = capfd.readouterr().err
        assert "Traceback" not in told and "Error:" not in told, told
        errors = [line for line in told.splitlines() if line.startswith("oxillama: error: ")]
        assert (codes[-1], len(errors)) in ((0, 0), (2, 1)), (codes[-1], told)

    counts = every_fault(f"oxillama {name}", tmp_path, before, use, after, operations, closes=False)
    assert {"open", "read", "stat"} <= counts.keys()
    assert 0 in codes and 2 in codes
