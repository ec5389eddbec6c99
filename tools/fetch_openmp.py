"""Fetches OpenMP's library for a wheel from a wheel of scikit-learn.

    python tools/fetch_openmp.py FOLDER [--system linux|darwin] [--machine x86_64|aarch64|arm64]

A library that comes with a new system needs a new system. The libraries in scikit-learn's wheels run on old
systems, too: libgomp with the glibc of manylinux wheels, conda-forge's libomp with macOS 11 (10.9 on Intel
processors).
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

LIBRARIES = {"linux": ("libgomp", "libgomp.so.1"), "darwin": ("libomp", "libomp.dylib")}
"""By system, the beginning of the library's name in the wheel, and the name that a linker looks for."""


def fetch(folder: Path, system: str = platform.system().lower(), machine: str = platform.machine()) -> Path:
    """Makes the folder, writes the library to it, and returns its path."""
    prefix, name = LIBRARIES[system]
    tags = [f"manylinux_2_{glibc}" for glibc in (17, 27, 28)] if system == "linux" else ["macosx_12_0"]
    platforms = [f"--platform={tag}_{machine}" for tag in tags]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as downloads:
        only = ("--no-deps", "--only-binary=:all:", "-q", "-d", downloads)
        pip = (sys.executable, "-m", "pip", "download", *only, *platforms, "scikit-learn")
        subprocess.run(pip, check=True)
        (path,) = Path(downloads).glob("*.whl")
        (folder / name).write_bytes(library(path, prefix))
    return folder / name


def library(wheel: Path, prefix: str) -> bytes:
    """The file of a wheel whose name begins with the prefix. Raises ValueError unless exactly one does."""
    with zipfile.ZipFile(wheel) as files:
        found = [name for name in files.namelist() if PurePosixPath(name).name.startswith(prefix)]
        if len(found) != 1:
            raise ValueError(f"{wheel.name}: expected one file {prefix}*, got {', '.join(found) or 'none'}")
        return files.read(found[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--system", choices=LIBRARIES, default=platform.system().lower())
    parser.add_argument("--machine", default=platform.machine(), help="default: %(default)s")
    args = parser.parse_args()
    print(fetch(args.folder, args.system, args.machine))


if __name__ == "__main__":
    main()
