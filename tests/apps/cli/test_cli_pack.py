"""``oxillama pack``, and what ``info`` and ``run`` make of packed files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from oxillama import demo
from tests.support.command_line import error, output, run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = Path(shutil.copy(demo.DRAFT, tmp_path / "m.gguf"))
    os.utime(path, (1e9, 1e9))
    return path


@pytest.mark.slow
def test_pack_check_info_and_run(model: Path) -> None:
    plain = output("run", model, "-p", "Once", "-n", "8", "--greedy")
    assert json.loads(output("info", model, "--json"))["packed"] == []
    packed = Path(f"{model}.packed")
    size = f"{Path(output('pack', model).split(': ')[0].removeprefix('wrote ')).stat().st_size}"
    assert packed.stat().st_size == int(size)
    assert output("pack", model, "--check") == f"{packed}: sound, and of this model\n"
    assert output("run", model, "-p", "Once", "-n", "8", "--greedy") == plain
    (facts,) = json.loads(output("info", model, "--json"))["packed"]
    assert (facts["file"], facts["bytes"], facts["compute"]) == (str(packed), int(size), "int8")
    line = next(line for line in output("info", model).splitlines() if line.startswith("packed file"))
    assert line.split(maxsplit=2)[2].startswith(f"{packed}, ")


def test_another_option_has_a_file_of_its_own(model: Path, tmp_path: Path) -> None:
    assert output("pack", model, "--compute", "f32").startswith(f"wrote {model}.f32.packed: ")
    assert output("pack", model, "--compute", "f32", "--check").startswith(f"{model}.f32.packed: sound")
    line = next(line for line in output("info", model).splitlines() if line.startswith("packed file"))
    assert "MiB, compute f32" in line
    elsewhere = tmp_path / "elsewhere"
    assert output("pack", model, "-o", elsewhere).startswith(f"wrote {elsewhere}: ")
    found = output("run", model, "-p", "Once", "-n", "4", "--greedy", "--packed", elsewhere)
    assert found == output("run", model, "-p", "Once", "-n", "4", "--greedy")
    refused = error("run", model, "-p", "Once", "--packed", elsewhere, "--compute", "f32")
    assert "expected panels of quantize None, compute f32, got quantize None, compute int8" in refused


def test_make_makes_it(model: Path) -> None:
    output("run", model, "-p", "Once", "-n", "2", "--packed", "make")
    assert output("pack", model, "--check").startswith(f"{model}.packed: sound")


def test_damage_is_found(model: Path) -> None:
    assert "cannot be opened" in error("pack", model, "--check")
    output("pack", model)
    packed = Path(f"{model}.packed")
    data = bytearray(packed.read_bytes())
    data[-100_000] ^= 1
    packed.unlink()
    packed.write_bytes(data)
    assert "expected its checksum, got another: the file is damaged" in error("pack", model, "--check")
    packed.unlink()
    packed.write_bytes(data[:-1])
    (facts,) = json.loads(output("info", model, "--json"))["packed"]
    assert "bytes, got" in facts["misfit"]
    assert facts["compute"] is None
    done = run("run", model, "-p", "Once", "-n", "2")
    assert done.returncode == 0
    assert b"warning" in done.stderr
    assert b"the model is loaded without it" in done.stderr
