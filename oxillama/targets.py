"""Instruction-set targets the hot kernels are compiled for. Read by setup.py and at import.

One row per target: the macro its SIMD header is chosen by, the compiler flags it needs (gcc/clang
and MSVC spellings), and the CPU features that must be present before its modules are loaded.
`portable` needs nothing. Best first.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A set of instructions that the kernels are compiled for.

    Attributes
    ----------
    name : module suffix and the value of ``OXILLAMA_TARGET``.
    machines : values of ``platform.machine()`` (lower case) it exists on; empty for any.
    features : CPU features that must all be present, in `cpu_features` spelling.
    flags, msvc_flags : compiler flags, each probed before use.
    """

    name: str
    machines: tuple[str, ...]
    features: tuple[str, ...]
    flags: tuple[str, ...]
    msvc_flags: tuple[str, ...]


X86 = ("x86_64", "amd64")
ARM = ("aarch64", "arm64")

TARGETS: tuple[Target, ...] = (
    Target(
        "avx512",
        X86,
        ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"),
        (  # clang's AVX does not include popcnt, gcc's does
            *("-mavx2", "-mfma", "-mf16c", "-mpopcnt"),
            *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
        ),
        ("/arch:AVX512",),
    ),
    Target("avx2", X86, ("avx2", "fma", "f16c"), ("-mavx2", "-mfma", "-mf16c"), ("/arch:AVX2",)),
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
