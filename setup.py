"""Builds the kernels: every hot ``.pyx`` once per instruction-set target, each flag probed first.

What the compiler cannot do is left out with one line that says so: a target whose flags it does
not know, or OpenMP (then the kernels run on one thread). `portable` needs no flags.

``OXILLAMA_TARGETS`` says which targets are built: names, ``all`` (those for tests are named beside it), or
``native``, which is the best one that this CPU runs. In place (and for an editable install) the default is
``all``, since tests compare the targets; otherwise it is ``native``.
``OXILLAMA_DEBUG=1`` builds with bounds checks, assertions and debugging symbols; ``OXILLAMA_DEBUG=sanitize``
also with gcc's address and undefined-behaviour sanitizers (``tools/sanitize.py`` builds and runs that).
``OXILLAMA_MACHINE`` names another machine than this one, for a cross compiler.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import Cython
import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNELS = Path("oxillama", "_kernels")
VENDORED = Path("oxillama", "apps", "server", "page", "static", "vendor", "README.md")
VENDORED_ROW = r"^\|.* of `([\w-]+)@([\d.]+)` \| ([\w.-]+)"
DEBUG = os.environ.get("OXILLAMA_DEBUG", "") not in ("", "0")
SANITIZE = os.environ.get("OXILLAMA_DEBUG") == "sanitize"

# No -g: the names of variables in inlined bodies took longer than compiling them.
UNIX_FLAGS = [
    "-O3",
    "-g0",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wno-unused-function",
    "-Wno-maybe-uninitialized",
    "-Wno-discarded-qualifiers",
    "-Wno-unknown-pragmas",
]
UNIX_DEBUG_FLAGS = ["-O1", "-g", "-UNDEBUG", "-fsanitize=bounds", "-fsanitize-undefined-trap-on-error"]
UNIX_SANITIZE_LINK_FLAGS = ["-fsanitize=address,undefined"]
UNIX_SANITIZE_FLAGS = [
    "-O1",
    "-g1",
    "-UNDEBUG",
    "-fno-omit-frame-pointer",
    "-fno-wrapv",  # Python's own flags make overflow defined, and so unseen
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=all",
]
UNIX_EXTRA = {
    # gcc 12 vectorizes the plain loops over quantize.pyx's small structs with aligned 32-byte stores to a
    # stack slot that it aligns to 16: a crash. The work is in the seam's vectors, which this leaves alone;
    # portable needs it, and its 16-byte vectors are safe.
    "quantize": ["-fno-tree-vectorize"],
    # A function for each layout or KV type, not one for all of them, for which gcc takes twice as long.
    # gcc 12 would compute indices of panels in vector registers, and f16 would take a tenth longer.
    "attention": ["-fno-inline-functions-called-once", "-mno-stv"],
    "linear": ["-fno-inline-functions-called-once"],
}
# Of modules that are built once, only those with arithmetic are faster with -O3, which compiles for longer.
UNIX_ONCE = ["-O1"]
FAST_ONCE = {"pack", "polyphase"}
ALWAYS_INLINE = {"linear", "attention", "quantize", "vector", "routing", "recurrent", "delta", "pack"}
# Excluded: large functions that raise errors, or run once for a block of keys. Each has one copy.
NEVER_INLINE = {
    "arrays": ["refuse_data", "refuse_dimensions", "refuse_overlap", "refuse_shape", "refuse_threads"],
    "attention.bf16pairs": ["pairs_of_row"],
    "attention.decoding": ["decode_panel"],
    "attention.onlinesoftmax": ["add_values_of_row", "softmax_row"],
    "attention.panels": ["gather_panel"],
    "packing.dispatch": ["dequantize_blocks"],
    "simd.bf16": ["is_bf16_dot", "is_bf16_dot_faster"],
}
GLUE = "/* #### Code section: initfunc_declarations ### */"
"""Before the code that Cython adds to every module: initialization, and helpers about Python's objects."""
SHORT_CALLS = {"vector", "routing", "recurrent", "delta", "sampling"}  # where the helpers take a part
MSVC_FLAGS = ["/O2", "/fp:precise"]
UNIX_OPENMP = [(["-fopenmp"], ["-fopenmp"]), (["-Xpreprocessor", "-fopenmp"], ["-lomp"])]
MSVC_OPENMP = [(["/openmp"], [])]
OPENMP_PROGRAM = "#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n"
FEATURES_PROGRAM = """
#include "cpu.h"
int main(int n, char **names) {
    for (int i = 1; i < n; i++)
        if (!ox_cpu_has(names[i])) return 1;
    return 0;
}
"""


def load(path: Path) -> ModuleType:
    """Import a file of the package without the package, whose kernels are not built yet."""
    spec = importlib.util.spec_from_file_location(f"oxillama_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def c_names(functions: dict[str, list[str]]) -> str:
    """A pattern of the names that Cython gives inline functions of ``.pxd`` files. Each has to be there."""
    found = []
    for module, names in functions.items():
        parts = ("oxillama", "_kernels", *module.split("."))
        text = Path(*parts).with_suffix(".pxd").read_text()
        for name in names:
            if not re.search(rf"^cdef inline .*\b{name}\(", text, re.M):
                raise SystemExit(f"NEVER_INLINE: expected an inline function of {module}, got {name}")
            found.append("".join(f"{len(part)}{part}_" for part in parts) + name)
    return "|".join(found)


targets = load(Path("oxillama", "base", "targets.py"))
formats = load(Path("oxillama", "base", "formats.py"))
load(KERNELS / "generate.py").write(KERNELS, formats.IN_MEMORY, formats.LAYOUTS)
load(KERNELS / "generate_stubs.py").write(KERNELS, targets.PER_TARGET)
load(Path("oxillama", "base", "config", "generate_fields.py")).write(Path("oxillama", "base", "config"))
MACHINE = os.environ.get("OXILLAMA_MACHINE", platform.machine()).lower()
TARGETS = [t for t in targets.TARGETS if not t.machines or MACHINE in t.machines]
PER_TARGET = targets.PER_TARGET
"""Modules below ``oxillama._kernels``, the slowest to compile first."""
APART = c_names(NEVER_INLINE)
SOURCES = {".".join(p.relative_to(KERNELS).with_suffix("").parts): p for p in sorted(KERNELS.rglob("*.pyx"))}


class KernelExtension(Extension):
    """The module of one ``.pyx``, for one target or for all of them.

    Attributes
    ----------
    module : below ``oxillama._kernels``, e.g. ``linear.linear``.
    target : a row of `TARGETS`, or None for a module that is built once.
    """

    def __init__(self, module: str, target: object | None) -> None:
        self.module, self.target = module, target
        super().__init__(
            f"oxillama._kernels.{module}_{target.name}" if target else f"oxillama._kernels.{module}",
            [str(SOURCES[module])],
            include_dirs=[numpy.get_include(), str(KERNELS / "simd"), str(KERNELS / "machine")],
            define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        )


class BuildKernels(build_ext):
    """Probes the compiler, drops what it cannot build, translates and compiles the rest."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self) -> None:
        self.in_place = self.inplace or self.editable_mode  # the base class clears the first meanwhile
        super().run()
        if not self.in_place and "OXILLAMA_MACHINE" not in os.environ:
            # In the folder of the checkout, Python imports the checkout's package, not the installed one.
            self.copy_extensions_to_source()

    def build_extensions(self) -> None:
        self.msvc = self.compiler.compiler_type == "msvc"
        debug = UNIX_SANITIZE_FLAGS if SANITIZE else UNIX_DEBUG_FLAGS if DEBUG else []
        common = [f for f in (MSVC_FLAGS if self.msvc else UNIX_FLAGS + debug) if self.compiles([f])]
        omp_compile, omp_link = self.find_openmp(MSVC_OPENMP if self.msvc else UNIX_OPENMP)
        flags_of = {target.name: self.flags_of(target) for target in self.wanted()}
        self.extensions[:] = [
            e for e in self.extensions if e.target is None or flags_of.get(e.target.name) is not None
        ]
        c_files = self.translate()
        for ext in self.extensions:
            mine, name = flags_of[ext.target.name] if ext.target else [], ext.module.rpartition(".")[2]
            if mine and not self.msvc:
                mine = mine + [f for f in UNIX_EXTRA.get(name, []) if self.compiles([f])]
            if not (ext.target or name in FAST_ONCE or self.msvc):
                mine = UNIX_ONCE
            ext.extra_compile_args = common + mine + omp_compile
            ext.extra_link_args = omp_link + (UNIX_SANITIZE_LINK_FLAGS if SANITIZE else [])
            ext.depends = [str(path) for path in KERNELS.rglob("*.h")]
            ext.sources = [str(self.specialize(ext, c_files[ext.module]))]
        super().build_extensions()

    def wanted(self) -> list[object]:
        """The targets that ``OXILLAMA_TARGETS`` names."""
        wanted = os.environ.get("OXILLAMA_TARGETS") or ("all" if self.in_place else "native")
        names = wanted.replace(",", " ").split()
        if "all" in names or (wanted == "native" and "OXILLAMA_MACHINE" in os.environ):
            names = [name for name in names if name not in ("all", "native")]
            names += [t.name for t in TARGETS if t.use != "in tests"]
        elif wanted == "native":
            best = (t for t in TARGETS if t.use == "automatic" and self.runs_here(t))
            names = [next(t.name for t in best if self.flags_of(t) is not None)]
        unknown = set(names) - {t.name for t in TARGETS}
        if unknown:
            raise SystemExit(
                f"OXILLAMA_TARGETS: expected all, native or some of {', '.join(t.name for t in TARGETS)}, "
                f"got {wanted!r}"
            )
        names += [t.base for t in TARGETS if t.name in names]
        return [t for t in TARGETS if t.name in names]

    def flags_of(self, target: object) -> list[str] | None:
        """A target's flags, or None if the compiler does not take them."""
        flags = target.msvc_flags if self.msvc else target.flags
        if flags is None:
            self.say(f"target {target.name} is left out: its kernels are not written for MSVC")
            return None
        if self.compiles([*flags]):
            return [*flags]
        self.say(f"the compiler does not take {' '.join(flags)}: target {target.name} is left out")
        return None

    def translate(self) -> dict[str, Path]:
        """Cython to C, once for all targets of a module: the C file of each module."""
        folder = Path(self.build_temp, "cython-debug" if DEBUG else "cython")
        modules = sorted({e.module for e in self.extensions})
        plain = [Extension(f"oxillama._kernels.{m}", [str(SOURCES[m])]) for m in modules]
        translated = cythonize(
            plain,
            build_dir=str(folder),
            nthreads=self.parallel if multiprocessing.get_start_method() == "fork" else 0,
            compiler_directives={
                "language_level": 3,
                "boundscheck": DEBUG,
                "wraparound": False,
                "cdivision": True,
                "initializedcheck": DEBUG,
                "embedsignature": True,
                "annotation_typing": False,  # annotations are for the stubs
                "freethreading_compatible": True,
                "emit_code_comments": DEBUG,  # which the compiler would read again for each target
            },
            quiet=True,
        )
        return {m: Path(e.sources[0]) for m, e in zip(modules, translated, strict=True)}

    def specialize(self, ext: KernelExtension, c_file: Path) -> Path:
        """A module's C for one target, in a file that changes with the flags, so that those count.

        Tile bodies take the layout and the number of tokens as constants, which they become once inlined: so
        inline functions of `ALWAYS_INLINE` are. Those that Cython adds, about Python's objects, are plain
        functions, which saves a tenth of the time. With sanitizers speed does not count: nothing is forced.
        """
        name, short = ext.module.rpartition(".")[2], ext.name.rpartition(".")[2]
        always = "__forceinline" if self.msvc else "inline __attribute__((always_inline))"
        inlined = name in ALWAYS_INLINE and short != f"{name}_portable" and not SANITIZE
        lines = [
            f"/* {' '.join(ext.extra_compile_args)} */",
            f"#define OX_BODY {always if inlined else 'inline'}",
            f"#define OX_APART {'__declspec(noinline)' if self.msvc else '__attribute__((noinline))'}",
        ]
        if ext.target:
            lines += [
                "#define CYTHON_INLINE",
                f"#define OX_TARGET_{ext.target.name.upper()} 1",
                f"#define PyInit_{name} PyInit_{short}",
            ]
        inline = r"static CYTHON_INLINE (?=[^;{\n]*__pyx_f_"  # functions of .pyx and .pxd files
        body = re.sub(rf"{inline}(?:{APART})\()", "static OX_APART ", c_file.read_text())
        body, n_found = re.subn(f"{inline})", "static OX_BODY ", body)
        if inlined and not n_found:
            raise SystemExit(f"{c_file}: expected static CYTHON_INLINE functions, got none")
        if not DEBUG and name not in SHORT_CALLS:
            body = body.replace(GLUE, f'#pragma GCC optimize ("O1")\n{GLUE}')
        text = "\n".join([*lines, body])
        path = Path(self.build_temp, "targets", f"{short}.c")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        return path

    def runs_here(self, target: object) -> bool:
        """Whether this machine has the features of a target."""
        with tempfile.TemporaryDirectory() as folder:
            program = self.build_probe(folder, FEATURES_PROGRAM, [], [])
            return program is not None and not subprocess.run([program, *target.features]).returncode

    def find_openmp(self, candidates: list[tuple[list[str], list[str]]]) -> tuple[list[str], list[str]]:
        for compile_flags, link_flags in candidates:
            with tempfile.TemporaryDirectory() as folder:
                if self.build_probe(folder, OPENMP_PROGRAM, compile_flags, link_flags):
                    return compile_flags, link_flags
        self.say("the compiler has no OpenMP: the kernels will run on one thread")
        return [], []

    def compiles(self, flags: list[str]) -> bool:
        """Whether the compiler takes these flags."""
        with tempfile.TemporaryDirectory() as folder:
            strict = [] if self.msvc else ["-Werror"]
            return self.build_probe(folder, "int main(void) { return 0; }\n", strict + flags) is not None

    def build_probe(
        self, folder: str, program: str, flags: list[str], link: list[str] | None = None
    ) -> str | None:
        """Builds (and, with ``link``, links) a program: its path, or None if that fails."""
        source, result = Path(folder, "probe.c"), Path(folder, "probe")
        source.write_text(program)
        try:
            objects = self.compiler.compile(
                [str(source)], output_dir=folder, include_dirs=[str(KERNELS / "machine")], extra_preargs=flags
            )
            if link is not None:
                self.compiler.link_executable(objects, str(result), extra_postargs=link)
        except Exception:  # distutils raises several kinds; any of them means no
            return None
        return str(result)

    def say(self, line: str) -> None:
        print(f"oxillama: {line}", file=sys.stderr)


class WheelWithSbom(bdist_wheel):
    """A wheel with a list of what the kernels are made of (CycloneDX, in the place that PEP 770 names)."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        super().egg2dist(egginfo_path, distinfo_path)
        path = Path(distinfo_path, "sboms", "oxillama.cdx.json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(self.sbom(), indent=1) + "\n", encoding="utf-8")

    def sbom(self) -> dict[str, object]:
        """The distribution, the packages of which its kernels contain code, and the page's vendored files."""
        whole = component("pypi", self.distribution.get_name(), self.distribution.get_version(), "MIT")
        parts = [
            component("pypi", "cython", Cython.__version__, "Apache-2.0"),
            component("pypi", "numpy", numpy.__version__, "BSD-3-Clause"),
            *(component("npm", *row) for row in re.findall(VENDORED_ROW, VENDORED.read_text("utf-8"), re.M)),
        ]
        return {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {"component": whole},
            "components": parts,
            "dependencies": [{"ref": whole["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}],
        }


def component(registry: str, name: str, version: str, license_id: str) -> dict[str, object]:
    """A package of a registry, as CycloneDX lists it."""
    url = f"pkg:{registry}/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": url,
        "name": name,
        "version": version,
        "purl": url,
        "licenses": [{"license": {"id": license_id}}],
    }


ONCE = [KernelExtension(m, None) for m in SOURCES if m not in PER_TARGET]
ONCE.sort(key=lambda extension: extension.module.rpartition(".")[2] not in FAST_ONCE)
HOT = [KernelExtension(m, t) for m in PER_TARGET for t in TARGETS if t.modules()[m] == t.name]
setup(
    ext_modules=[*HOT, *ONCE],  # the shortest last, so that no core idles
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": WheelWithSbom},
)
