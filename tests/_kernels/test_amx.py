"""AMX: the operations of amx.h, as C and as instructions, and the permission to use them."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, _kernels
from oxillama._kernels import cpu, targets, tile_tuning, tuning
from oxillama.apps.cli import doctor
from oxillama.base.targets import AMX, AVX512, TARGETS
from tests.support.kernels import refuses
from tests.support.paths import ROOT

PROGRAM = """
#include "simd.h"
#include "amx.h"
/* The sums of `steps` times 64 columns for two A and two B, or for one A; computed twice. */
void products(int is_signed, int two, const int8_t *a, ptrdiff_t stride, const uint8_t *b, int steps,
              int32_t *sums) {
    amx_configure();
    for (int n = 0; n < 2 * steps; n++) {
        const int k = n % steps;
        if (k == 0) amx_begin(two);
        const int8_t *x = a + 64 * k;
        const uint8_t *w = b + 1024 * k;
        if (is_signed && two) amx_add_ss(1, x, x + 16 * stride, stride, w, w + 1024 * steps);
        else if (is_signed) amx_add_ss(0, x, x, stride, w, w + 1024 * steps);
        else if (two) amx_add_us(1, x, x + 16 * stride, stride, w, w + 1024 * steps);
        else amx_add_us(0, x, x, stride, w, w + 1024 * steps);
    }
    amx_end(two, sums);
    amx_release();
}
"""
COMPILER = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")


def compiled(folder: Path, target: str, *flags: str) -> Path:
    """`PROGRAM` for one target."""
    assert COMPILER is not None
    (folder / "products.c").write_text(PROGRAM)
    result = folder / "products"
    command = [COMPILER, *flags, f"-DOX_TARGET_{target}", f"-I{ROOT / 'oxillama/_kernels/simd'}"]
    subprocess.run([*command, "products.c", "-o", result], cwd=folder, check=True)
    return result


def check_products(library: Path) -> None:
    """Asserts that the sums equal NumPy's, which cannot multiply signed by unsigned bytes directly."""
    function = ctypes.CDLL(str(library)).products
    rng = np.random.default_rng(1)
    steps = 3
    for signed in (True, False):
        for tokens in (16, 32):
            bytes_of = (-128, 128) if signed else (0, 256)
            a = rng.integers(*bytes_of, (tokens, 64 * steps)).astype(np.int8 if signed else np.uint8)
            w = rng.integers(-128, 128, (2, 16, 64 * steps)).astype(np.int8)
            a[0], a[1], w[0, 0], w[1, 0] = bytes_of[0], bytes_of[1] - 1, -128, 127
            rows = np.zeros((tokens, 64 * steps + 64), a.dtype)  # rows are further apart than their length
            rows[:, : 64 * steps] = a
            panels = np.ascontiguousarray(w.reshape(2, 16, 16 * steps, 4).transpose(0, 2, 1, 3))
            sums = np.zeros((tokens // 16, 2, 16, 16), np.int32)
            pointers = (rows.ctypes.data, rows.shape[1], panels.ctypes.data, steps, sums.ctypes.data)
            pointer, number = ctypes.c_void_p, ctypes.c_int
            function.argtypes = (number, number, pointer, ctypes.c_ssize_t, pointer, number, pointer)
            function(signed, tokens == 32, *pointers)
            wanted = np.einsum("tk,prk->tpr", a.astype(np.int64), w.astype(np.int64))
            assert np.array_equal(sums.transpose(0, 2, 1, 3).reshape(tokens, 2, 16), wanted)


@needs_compiler
def test_emulated_products_are_exact(tmp_path: Path) -> None:
    check_products(compiled(tmp_path, "PORTABLE", "-O2", "-shared", "-fPIC"))


def executed(folder: Path, script: str, *arguments: object) -> int:
    """Runs a script of Python in a process where tile instructions are executed: their number."""
    assert COMPILER is not None
    source, library = ROOT / "tests/support/tile_instructions.c", folder / "tile_instructions.so"
    subprocess.run([COMPILER, "-O2", "-shared", "-fPIC", source, "-o", library], check=True)
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"tile instructions: (\d+)", done.stderr)
    return int(found[1]) if found else 0


runs_avx512 = pytest.mark.skipif(
    sys.platform != "linux" or not all(map(cpu.has, AVX512.features)) or cpu.has("amx_tile"),
    reason="Linux on a processor with AVX-512 and without AMX",
)


@needs_compiler
@runs_avx512
def test_the_instructions_give_the_same_sums(tmp_path: Path) -> None:
    assert COMPILER is not None
    command = [COMPILER, *AMX.flags, "-E", "-x", "c", "/dev/null"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("the compiler does not know AMX")
    library = compiled(tmp_path, "AMX", "-O2", *AMX.flags, "-shared", "-fPIC")
    script = "import sys; from tests._kernels.test_amx import *; check_products(Path(sys.argv[1]))"
    assert executed(tmp_path, script, library) > 100


PRODUCTS = """
from types import SimpleNamespace
from oxillama import _kernels
_kernels.cpu = SimpleNamespace(has=lambda feature: True, ask_for_tiles=lambda: 0)
from tests.support.kernels import apply, linear, matrix, normal, same_bits
rounded = ("W8A8", 288), ("W8A8_128", 288)
supers = ("Q4_K", 512), ("Q5_K", 256), ("Q6_K", 512), ("IQ4_XS", 256)
blocks = [(name, 96) for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4")]
for name, cols in (*rounded, *supers, *blocks, ("Q1_0", 128)):
    parts, x, onto = [(name, matrix(name, 150, cols))], normal(51, cols), normal(51, 150, seed=1)
    for n, n_threads in ((16, 1), (33, 2), (51, 3)):
        one, other = (
            apply(linear(target, parts, cols), x[:n], n_threads, onto[:n]) for target in ("avx512", "amx")
        )
        assert same_bits(one, other), (name, n)
"""


@needs_compiler
@runs_avx512
@pytest.mark.skipif(targets()[AMX.name] == "not built", reason="amx is not built")
def test_the_kernels_of_amx_give_the_bits_of_avx512(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXILLAMA_TUNE", "0")  # the emulation is slow
    assert executed(tmp_path, PRODUCTS) > 1000


class RefusingCpu:
    """A processor with everything, whose system gives no tile registers."""

    def __init__(self) -> None:
        self.asked = 0

    def has(self, feature: str) -> bool:
        return True

    def openmp_threads(self) -> int:
        return 2

    def ask_for_tiles(self) -> int:
        self.asked += 1
        return errno.ENOSPC


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> RefusingCpu:
    found = RefusingCpu()
    monkeypatch.delenv("OXILLAMA_TARGET", raising=False)
    monkeypatch.setattr(_kernels, "cpu", found)
    monkeypatch.setattr(_kernels, "targets", lambda: {target.name: None for target in TARGETS})
    return found


REFUSED = "this processor has AMX; the kernel refused: No space left on device"


def test_a_refused_permission_is_an_error_where_amx_was_named(
    refusing: RefusingCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _kernels.refusal(AMX.name) == REFUSED
    monkeypatch.setenv("OXILLAMA_TARGET", AMX.name)
    with pytest.raises(ConfigError, match=f"target amx: {REFUSED}"):
        _kernels.best()


def test_an_automatic_choice_passes_over_a_target_that_is_refused(
    refusing: RefusingCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_kernels, "load", lambda name: name)
    monkeypatch.setattr(_kernels, "modules_of", lambda target: {"linear": None})
    right = False
    monkeypatch.setattr(tile_tuning, "tiles_are_right", lambda module: right)
    assert _kernels.best() == AVX512.name and refusing.asked == 1
    monkeypatch.setattr(refusing, "ask_for_tiles", lambda: 0)
    assert _kernels.best() == AVX512.name
    assert (
        _kernels.refusal(AMX.name)
        == "this processor has AMX; its products have other bits than those of vectors"
    )
    right = True
    assert _kernels.best() == AMX.name


class FakeLinear:
    """A matrix whose products in tiles take another time than its other ones, by a clock of their module."""

    def __init__(self, module: FakeModule, kind: int, cols: int) -> None:
        self.module, self.kind, self.cols, self.rows = module, kind, cols, 1

    def scratch_bytes(self, n: int) -> int:
        return 0

    def apply(self, x: np.ndarray, out: np.ndarray, scratch: np.ndarray, n_threads: int) -> None:
        in_tiles = len(x) >= self.module.counts[self.kind]
        out[:] = x[:, :1] + (self.module.wrong[self.kind] and in_tiles)
        self.module.now += 1e-6 * (self.module.tile_micros[self.kind](len(x)) if in_tiles else len(x))


class FakeModule:
    """Kernels with tiles, as `tuning` uses them."""

    def __init__(self, *tile_micros: Callable[[int], float], wrong: tuple[bool, ...] = (False,) * 3) -> None:
        self.tile_micros, self.wrong, self.now, self.n_made = tile_micros, wrong, 0.0, 0
        self.counts: tuple[int, ...] = ()

    def use_tiles(self, *counts: int) -> None:
        self.counts = counts

    def Linear(self, parts: list[Any], cols: int) -> FakeLinear:
        self.n_made += 1
        return FakeLinear(self, (self.n_made - 1) % 3, cols)


HALF, SETUP, SLOW = (lambda n: n / 2), (lambda n: 20 + n / 2), (lambda n: n * 0.99)  # microseconds


@pytest.mark.parametrize(
    ("micros", "counts"),
    [
        ((HALF, HALF, HALF), (16, 32, 32)),
        ((SETUP, SETUP, HALF), (64, 64, 32)),
        ((SLOW, HALF, SETUP), (tile_tuning.NEVER, 32, 64)),
        ((HALF, SLOW, SLOW), (16, tile_tuning.NEVER, tile_tuning.NEVER)),
    ],
)
def test_tiles_are_used_from_where_they_are_faster(
    micros: tuple[Callable[[int], float], ...], counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OXILLAMA_TUNE", raising=False)
    module: Any = FakeModule(*micros)
    assert tile_tuning.tune(module, lambda: module.now) == module.counts == counts


def test_without_tuning_the_defaults_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXILLAMA_TUNE", "0")
    module: Any = FakeModule(SLOW, SLOW, SLOW)
    assert tile_tuning.tune(module) == module.counts == tile_tuning.DEFAULTS and module.now == 0


@pytest.mark.parametrize(
    ("together", "apart", "tunes", "found"),
    [
        (1e-4, 1.1e-4, True, True),
        (1e-4, 1.02e-4, True, False),  # too little
        (1e-4, 9e-5, True, False),
        (1e-4, 9e-5, False, True),
        (1e-2, 2e-2, True, False),  # too late
    ],
)
def test_codes_are_unpacked_once_where_that_is_faster(
    together: float, apart: float, tunes: bool, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Module:
        """Kernels whose products take some seconds of a clock."""

        now, n_products, unpacks, cols, rows = 0.0, 0, True, 2048, 64

        def use_unpacked(self, quick: bool) -> None:
            self.unpacks = quick

        def Linear(self, parts: list[Any], cols: int) -> Module:
            return self

        def scratch_bytes(self, n: int) -> int:
            return 0

        def apply(self, *arguments: object) -> None:
            self.n_products += 1
            self.now += together if self.unpacks else apart

    monkeypatch.setenv("OXILLAMA_TUNE", "1" if tunes else "0")
    module: Any = Module()
    assert tuning.tune_unpacking(module, lambda: module.now) == module.unpacks == found
    assert module.n_products == (0 if not tunes else 1 if together > 1e-3 else 12)


@pytest.mark.parametrize("wrong", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_products_with_other_bits_are_noticed(wrong: tuple[bool, ...]) -> None:
    module: Any = FakeModule(HALF, HALF, HALF, wrong=wrong)
    assert tile_tuning.tiles_are_right(module) == (not any(wrong))
    assert module.counts == tile_tuning.DEFAULTS


@pytest.mark.skipif(targets()["amx_emulated"] is not None, reason="amx_emulated cannot run here")
def test_emulated_tiles_are_right_and_small_numbers_refused() -> None:
    module = _kernels.load("amx_emulated").linear
    assert tile_tuning.tiles_are_right(module)
    for numbers in ((15, 32, 32), (16, 31, 32), (16, 32, 31)):
        text = "rows, products, blocks: expected at least 16, 32 and 32, and at"
        refuses(text, module.use_tiles, *numbers)


def test_doctor_says_why_amx_is_not_used(
    refusing: RefusingCpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(name: str) -> str:
        doctor.print_facts(doctor.examine())
        (found,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{name} "))
        return found.removeprefix(name).strip()

    linear = SimpleNamespace(BF16_DOT=True, BF16_DOT_IS_FASTER=False)
    used = SimpleNamespace(target=AVX512.name, linear=linear, tile_tokens=None, unpacks_quick=False)
    monkeypatch.setattr(_kernels, "best", lambda: used)
    assert row("target amx") == REFUSED
    assert row("pairs of bf16") == "by fused multiply-adds: faster here"
    assert row("unsigned codes of 4 bits") == "unpacked for each tile of tokens: faster here"
    monkeypatch.setattr(refusing, "ask_for_tiles", lambda: 0)
    monkeypatch.setattr(_kernels, "modules_of", lambda target: {"linear": None})
    monkeypatch.setattr(tile_tuning, "tiles_are_right", lambda module: True)
    used.target, used.tile_tokens = AMX.name, (16, tile_tuning.NEVER, 64)
    assert row("target amx") == "used"
    assert row("AMX, rounded rows") == "from 16 tokens on"
    assert row("AMX, integer scales") == "not used: slower here"
    assert row("AMX, blocks of 32") == "from 64 tokens on"


@pytest.mark.skipif(cpu.has("amx_tile"), reason="this processor has AMX")
def test_a_processor_without_amx_is_refused() -> None:
    assert cpu.ask_for_tiles() > 0
