"""Instruction-set targets the hot kernels are compiled for. Read by setup.py and at import.

One row per target: the macro its SIMD header is chosen by, the compiler flags it needs (gcc/clang
and MSVC spellings), and the CPU features that must be present before its modules are loaded.
`portable` needs nothing. Best first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Target:
    """A set of instructions that the kernels are compiled for.

    Attributes:
        name: module suffix and the value of ``OXILLAMA_TARGET``.
        machines: values of ``platform.machine()`` (lower case) it exists on; empty for any.
        features: CPU features that must all be present, in `cpu_features` spelling.
        flags, msvc_flags: compiler flags, each probed before use; None: not for MSVC.
        base: name of the target whose modules are used for those that these instructions do not change.
        own: modules of `PER_TARGET` that are compiled for it; empty for all of them.
        use: "automatic"; "in tests": built only where ``OXILLAMA_TARGETS`` names it, used only where
            ``OXILLAMA_TARGET`` does.
    """

    name: str
    machines: tuple[str, ...]
    features: tuple[str, ...]
    flags: tuple[str, ...]
    msvc_flags: tuple[str, ...] | None
    base: str = ""
    own: tuple[str, ...] = ()
    use: Literal["automatic", "in tests"] = "automatic"

    def modules(self) -> dict[str, str]:
        """The modules of `PER_TARGET`, each with the name of the target that it is compiled for."""
        return {path: self.name if path in (self.own or PER_TARGET) else self.base for path in PER_TARGET}


X86 = ("x86_64", "amd64")
ARM = ("aarch64", "arm64")

AVX512 = Target(
    "avx512",
    X86,
    ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"),
    (  # clang's AVX does not include popcnt, gcc's does
        *("-mavx2", "-mfma", "-mf16c", "-mpopcnt"),
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
    ),
    ("/arch:AVX512",),
)
AMX = Target(
    "amx",
    X86,
    (*AVX512.features, "amx_tile", "amx_int8"),
    (*AVX512.flags, "-mamx-tile", "-mamx-int8"),
    None,  # simd/amx.h is written in the assembly of gcc and clang
    base="avx512",
    own=("linear.linear",),
)

TARGETS: tuple[Target, ...] = (
    AMX,
    replace(AMX, name="amx_emulated", features=AVX512.features, flags=AVX512.flags, use="in tests"),
    AVX512,
    Target(
        "avxvnni",
        X86,
        ("avx2", "fma", "f16c", "avx_vnni"),
        ("-mavx2", "-mfma", "-mf16c", "-mavxvnni"),
        ("/arch:AVX2",),
        base="avx2",
        own=("linear.linear", "machine.roofline"),
    ),
    Target("avx2", X86, ("avx2", "fma", "f16c"), ("-mavx2", "-mfma", "-mf16c"), ("/arch:AVX2",)),
    Target(
        "i8mm",
        ARM,
        ("asimddp", "i8mm"),
        ("-march=armv8.2-a+dotprod+fp16+i8mm",),
        None,
        base="neon",
        own=("linear.linear",),
    ),
    Target("neon", ARM, ("asimddp",), ("-march=armv8.2-a+dotprod+fp16",), ("/arch:armv8.2",)),
    Target("portable", (), (), (), ()),
)

PER_TARGET: tuple[str, ...] = (
    "linear.linear",
    "attention.attention",
    "quantize.quantize",
    "sampling.sampling",
    "vector.vector",
    "recurrent.recurrent",
    "recurrent.delta",
    "vector.routing",
    "machine.roofline",
)
"""Modules below `oxillama._kernels` that are compiled for each target, the slowest to compile first."""
