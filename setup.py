"""Builds the kernels: every hot ``.pyx`` once per instruction-set target, each flag probed first.

What the compiler cannot do is left out with one line that says so: a target whose flags it does
not know, or OpenMP (then the kernels run on one thread). `portable` is always built.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = Path("oxillama", "_kernels")
PER_TARGET = ("linear", "attention", "quantize", "vector", "routing", "recurrent", "sampling", "roofline")
ONCE = (
    "cpu",
    "pack",
    "grammar/trie",
    "grammar/parser_states",
    "grammar/mask_cache",
    "grammar/loops",
    "grammar/matcher",
)

UNIX_FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-Wno-unused-function", "-Wno-unknown-pragmas"]
# gcc 12 vectorizes the plain loops over quantize.pyx's small structs with aligned 32-byte stores to a stack
# slot that it aligns to 16: a crash. The work is in the seam's vectors, which this leaves alone; portable
# needs it, and its 16-byte vectors are safe.
UNIX_EXTRA = {"quantize": ["-fno-tree-vectorize"]}
MSVC_FLAGS = ["/O2", "/fp:precise"]
UNIX_OPENMP = [(["-fopenmp"], ["-fopenmp"]), (["-Xpreprocessor", "-fopenmp"], ["-lomp"])]
MSVC_OPENMP = [(["/openmp"], [])]
OPENMP_PROGRAM = "#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n"


def load_table(name: str) -> ModuleType:
    """Import one of the fact tables without importing the package (its kernels are not built yet)."""
    spec = importlib.util.spec_from_file_location(f"oxillama_{name}", Path("oxillama", f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


MACHINE = os.environ.get("OXILLAMA_MACHINE", platform.machine()).lower()
TARGETS = [t for t in load_table("targets").TARGETS if not t.machines or MACHINE in t.machines]


def extension(pyx: str, target: str) -> Extension:
    """The module of one ``.pyx`` for one target, e.g. ``oxillama._kernels.linear_avx2``."""
    return Extension(
        f"oxillama._kernels.{pyx}_{target}" if target else f"oxillama._kernels.{pyx.replace('/', '.')}",
        [str(KERNELS / f"{pyx}.pyx")],
        include_dirs=[numpy.get_include(), str(KERNELS / "simd")],
        define_macros=[
            ("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"),
            (f"OX_TARGET_{(target or 'portable').upper()}", "1"),
        ],
    )


def target_of(ext: Extension) -> str:
    """The target an `extension` was made for, or "" for a module built once."""
    return ext.name.rpartition("_")[2] if ext.name.rpartition("_")[2] in {t.name for t in TARGETS} else ""


class BuildKernels(build_ext):
    """Probes the compiler, drops what it cannot build, translates and compiles the rest."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def build_extensions(self) -> None:
        msvc = self.compiler.compiler_type == "msvc"
        common = [f for f in (MSVC_FLAGS if msvc else UNIX_FLAGS) if self.compiles([f])]
        omp_compile, omp_link = self.find_openmp(MSVC_OPENMP if msvc else UNIX_OPENMP)
        flags_of = {"": []}
        for target in TARGETS:
            flags = list(target.msvc_flags if msvc else target.flags)
            if self.compiles(flags):
                flags_of[target.name] = flags
            else:
                self.say(f"the compiler does not take {' '.join(flags)}: target {target.name} is left out")
        for name, flags in flags_of.items():
            mine = [e for e in self.extensions if target_of(e) == name]
            for ext, translated in zip(mine, self.translate(mine, name or "once"), strict=True):
                ext.sources = translated.sources
                module = ext.name.rpartition(".")[2].removesuffix(f"_{name}")
                extra = [] if msvc or name in ("", "portable") else UNIX_EXTRA.get(module, [])
                ext.extra_compile_args = (
                    common + flags + omp_compile + [f for f in extra if self.compiles([f])]
                )
                ext.extra_link_args = list(omp_link)
        self.extensions[:] = [e for e in self.extensions if target_of(e) in flags_of]
        super().build_extensions()

    def translate(self, extensions: list[Extension], folder: str) -> list[Extension]:
        """Cython to C, into a folder for each target, since the module names in the C differ."""
        return cythonize(
            extensions,
            build_dir=os.path.join(self.build_temp, "cython", folder),
            include_path=[str(KERNELS)],
            compiler_directives={
                "language_level": 3,
                "boundscheck": False,
                "wraparound": False,
                "cdivision": True,
                "initializedcheck": False,
                "embedsignature": True,
            },
            quiet=True,
        )

    def find_openmp(self, candidates: list[tuple[list[str], list[str]]]) -> tuple[list[str], list[str]]:
        for compile_flags, link_flags in candidates:
            if self.compiles(compile_flags, link_flags, OPENMP_PROGRAM):
                return compile_flags, link_flags
        self.say("the compiler has no OpenMP: the kernels will run on one thread")
        return [], []

    def compiles(
        self, flags: list[str], link: list[str] | None = None, program: str = "int main(void) { return 0; }\n"
    ) -> bool:
        """Whether the compiler builds (and, with ``link``, links) a trivial program with these flags."""
        strict = [] if self.compiler.compiler_type == "msvc" else ["-Werror"]
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text(program)
            try:
                objects = self.compiler.compile(
                    [str(source)], output_dir=folder, extra_preargs=strict + flags
                )
                if link is not None:
                    self.compiler.link_executable(objects, str(Path(folder, "probe")), extra_postargs=link)
            except Exception:  # distutils raises several kinds; any of them means no
                return False
        return True

    def say(self, line: str) -> None:
        print(f"oxillama: {line}", file=sys.stderr)


setup(
    ext_modules=[extension(p, t.name) for t in TARGETS for p in PER_TARGET]
    + [extension(p, "") for p in ONCE],
    cmdclass={"build_ext": BuildKernels},
)
