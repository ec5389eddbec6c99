"""Compiles every kernel for another operating system or processor. Nothing is linked or run.

    pip install ziglang cython numpy 'setuptools>=77'
    python tools/cross_compile.py aarch64-macos
    python tools/cross_compile.py x86_64-windows-gnu --headers FOLDER
    CC=x86_64-w64-mingw32-gcc python tools/cross_compile.py x86_64-windows-gnu --headers FOLDER

A target has the name that zig gives it; zig contains the headers of the target's C library. NumPy's headers
come from a wheel for the target, OpenMP's header from gcc. Python's headers come from this Python or from
FOLDER: for Windows, `Include` of CPython's sources and `PC/pyconfig.h.in` as pyconfig.h. The compiler is zig,
or ``CC``.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from oxillama.base.targets import TARGETS

SYSTEMS = {
    "windows-gnu": {"x86_64": ("AMD64", "win_amd64"), "aarch64": ("ARM64", "win_arm64")},
    "macos": {"x86_64": ("x86_64", "macosx_14_0_x86_64"), "aarch64": ("arm64", "macosx_14_0_arm64")},
    "linux-musl": {
        "x86_64": ("x86_64", "musllinux_1_2_x86_64"),
        "aarch64": ("aarch64", "musllinux_1_2_aarch64"),
    },
}
"""For each system and processor, Python's name of the machine and the platform tag of wheels."""
WRAPPER = """#!/bin/sh
# Compiles. Instead of linking, makes an empty output file.
for word; do
    shift
    case $word in
    {dropped}) ;;
    *) set -- "$@" "$word" ;;
    esac
done
for word; do
    [ "$word" = -c ] && exec {compiler} "$@" -Wno-ignored-attributes -O1
done
while [ $# -gt 0 ]; do
    [ "$1" = -o ] && : > "$2"
    shift
done
"""
ARM = "-mcpu=generic+v8_2a+dotprod+fullfp16"
"""zig's options in place of `-march`, which zig does not accept."""

DEFINED = {"windows-gnu": ("-DMS_WIN64",)}
"""By system, the macros that pyconfig.h defines for Microsoft's compiler alone."""


def numpy_headers(platform: str, folder: Path) -> Path:
    """The folder with NumPy's headers for a platform of wheels."""
    command = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:")
    ours = f"numpy=={version('numpy')}"  # Cython reads the declarations of the installed NumPy
    subprocess.run([*command, "--platform", platform, "-d", folder, ours], check=True)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if "/include/" in name])
    return folder / "numpy" / "_core" / "include"


def openmp_header(folder: Path) -> Path:
    """A folder with gcc's omp.h and nothing else of gcc's."""
    found = subprocess.run(["gcc", "-print-file-name=include/omp.h"], check=True, text=True, stdout=-1).stdout
    folder.mkdir(exist_ok=True)
    (folder / "omp.h").write_bytes(Path(found.strip()).read_bytes())
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [f"{machine}-{system}" for system, machines in SYSTEMS.items() for machine in machines]
    parser.add_argument("target", choices=names)
    parser.add_argument("--headers", type=Path, default=Path(sysconfig.get_path("include")), metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path("/tmp/oxillama-cross"), help="default: %(default)s")
    args = parser.parse_args()
    machine, _, system = args.target.partition("-")
    python_machine, platform = SYSTEMS[system][machine]
    folder = (args.out / args.target).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    compiler, dropped = os.environ.get("CC"), "''"
    if not compiler:
        compiler = f"{shlex.quote(sys.executable)} -m ziglang cc -target {args.target}"
        dropped = "-march=*"
        if machine == "aarch64":
            compiler += f" {ARM}"
    wrapper = folder / "cc"
    wrapper.write_text(WRAPPER.format(compiler=compiler, dropped=dropped))
    wrapper.chmod(0o755)
    included = (
        numpy_headers(platform, folder / "numpy"),
        args.headers.resolve(),
        openmp_header(folder / "omp"),
    )
    environment = {
        **os.environ,
        "OXILLAMA_MACHINE": python_machine,
        "OXILLAMA_TARGETS": "all",
        "CC": str(wrapper),
        "LDSHARED": f"{wrapper} -shared",
        "CFLAGS": " ".join([*(f"-I{path}" for path in included), *DEFINED.get(system, ())]),
    }
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", folder / "lib"]
    subprocess.run([*command, "--build-temp", folder], check=True, cwd=ROOT, env=environment)
    objects = [path for path in folder.rglob("*.o") if path.stat().st_size]
    wanted = {
        t.name
        for t in TARGETS
        if t.use != "in tests" and (not t.machines or python_machine.lower() in t.machines)
    }
    left_out = wanted - {path.stem.removeprefix("linear_") for path in objects}
    if left_out:
        raise SystemExit(f"{args.target}: the compiler does not take {', '.join(sorted(left_out))}")
    print(f"{args.target}: {len(objects)} modules compiled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
