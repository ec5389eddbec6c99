"""The tools of a release: the way to an answer, and OpenMP's library of a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TOOLS = ROOT / "tools"
pytestmark = pytest.mark.skipif(not TOOLS.exists(), reason="an installed package has no tools")


def test_each_way_begins_with_the_installation() -> None:
    tool = import_module("tools.time_to_chat")
    asked = {tool.SERVE: 4.0, tool.OPENAI: 2.0, tool.ASKED: 1.0}
    steps = {tool.INSTALL: 16.0, tool.CHAT: 8.0, tool.AGAIN: 64.0, **asked}
    assert list(tool.ways(steps).values()) == [24.0, 20.0, 23.0]


@pytest.mark.parametrize(
    ("code", "said"), [("raise SystemExit(3)", "ended with 3"), ("print('no page')", "ended with 0")]
)
def test_a_server_that_ends_is_no_page(code: str, said: str) -> None:
    tool = import_module("tools.time_to_chat")
    with (
        subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.DEVNULL) as server,
        pytest.raises(SystemExit, match=said),
    ):
        tool.wait_for(f"http://127.0.0.1:{tool.free_port()}", server)


def wheel(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as files:
        for name in names:
            files.writestr(name, name)
    return path


def test_the_library_of_a_wheel_is_the_one_file_of_its_name(tmp_path: Path) -> None:
    fetch_openmp = import_module("tools.fetch_openmp")
    one = wheel(
        tmp_path / "one.whl", "a.libs/libgomp-1a2b.so.1.0.0", "a/libgomp/x.py", "a/.dylibs/libomp.dylib"
    )
    assert fetch_openmp.library(one, "libgomp") == b"a.libs/libgomp-1a2b.so.1.0.0"
    assert fetch_openmp.library(one, "libomp") == b"a/.dylibs/libomp.dylib"
    two = wheel(tmp_path / "two.whl", "a.libs/libgomp-1.so", "b.libs/libgomp-2.so")
    with pytest.raises(
        ValueError, match=r"two\.whl: expected one file libgomp\*, got a\.libs/libgomp-1\.so, b"
    ):
        fetch_openmp.library(two, "libgomp")
    with pytest.raises(ValueError, match=r"one file libiomp\*, got none"):
        fetch_openmp.library(one, "libiomp")


def test_a_wheel_for_a_glibc_that_is_too_new_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TOOLS)  # it imports another tool
    build_wheel = import_module("tools.build_wheel")
    for tags in ("manylinux2014_x86_64.manylinux_2_17_x86_64", "manylinux_2_28_aarch64"):
        build_wheel.check_glibc(f"a-1-cp311-cp311-{tags}.whl")
    for tags, found in (("manylinux_2_36_aarch64", r"\[\(2, 36\)\]"), ("linux_aarch64", "no tag")):
        with pytest.raises(SystemExit, match=f"glibc 2.28 or older, got {found}"):
            build_wheel.check_glibc(f"a-1-cp311-cp311-{tags}.whl")


def test_wheels_of_linux_and_macos_take_the_fetched_library() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
    for system in ("linux", "macos"):
        assert "tools/fetch_openmp.py /tmp/openmp" in config[system]["before-all"]
    assert "AUDITWHEEL_LD_LIBRARY_PATH=/tmp/openmp " in config["linux"]["repair-wheel-command"]
    assert config["macos"]["environment"]["LDFLAGS"] == "-L/tmp/openmp"


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
def test_the_cross_compiler_compiles_and_never_links(tmp_path: Path) -> None:
    wrapper, cross_compile = tmp_path / "cc", import_module("tools.cross_compile")
    wrapper.write_text(cross_compile.WRAPPER.format(compiler="echo cc", dropped="-march=*"))
    wrapper.chmod(0o755)
    compiled = subprocess.run(
        [wrapper, "-O3", "-march=x", "-c", "a.c", "-o", "a.o"], text=True, capture_output=True, check=True
    )
    assert compiled.stdout.startswith("cc -O3 -c a.c -o a.o ") and not Path(tmp_path, "a.o").exists()
    linked = subprocess.run(
        [wrapper, "a.o", "-o", tmp_path / "a.so"], text=True, capture_output=True, check=True
    )
    assert linked.stdout == "" and Path(tmp_path, "a.so").read_bytes() == b""
