"""Builds and checks what is published: the source distribution, and from it a wheel with all targets.

    pip install '.[release]' && python tools/build_wheel.py [--out dist] [--twice]
    CC=aarch64-linux-gnu-gcc python tools/build_wheel.py --machine aarch64

The compiler is the system's, or ``CC``. OpenMP's library is the libgomp of scikit-learn's wheel, because the
libgomp of a new system needs a newer glibc; ``--openmp FOLDER`` takes the library of a folder. ``--twice``
builds everything again in another folder and compares the bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from fetch_openmp import fetch

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = {".whl": 16_000_000, ".gz": 6_000_000}
GLIBC = (2, 28)
"""The newest version of glibc that a wheel may need."""


def run(*command: object, **environment: str) -> str:
    """Returns the output of a command. A command that fails ends this program."""
    print("+", *command, flush=True)
    environment = {**os.environ, **environment}
    return subprocess.run([*map(str, command)], env=environment, check=True, text=True, stdout=-1).stdout


def build_sdist(folder: Path, epoch: int) -> Path:
    """Builds the source distribution: the same files give the same bytes. Without files that a build writes.

    Zopfli's output is 1.5% smaller than gzip's. Files are ordered by kind, which compresses better.
    """
    import zopfli.gzip

    run(sys.executable, "-m", "build", "--sdist", "-o", folder, ROOT)
    (path,) = folder.glob("*.tar.gz")
    with tarfile.open(path) as old:
        files = [member for member in old.getmembers() if ".egg-info/" not in member.name]
        members = [(member.name, old.extractfile(member)) for member in files]
        contents = {name: file.read() for name, file in members if file is not None}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for name in sorted(contents, key=lambda name: (Path(name).suffix, name)):
            clean = tarfile.TarInfo(name)
            clean.size, clean.mtime, clean.mode = len(contents[name]), epoch, 0o644
            new.addfile(clean, io.BytesIO(contents[name]))
    path.write_bytes(zopfli.gzip.compress(packed.getvalue(), numiterations=3))
    return path


def build_wheel(sdist: Path, machine: str, openmp: Path, folder: Path, epoch: int) -> Path:
    """Builds the wheel of a source distribution, with OpenMP's library inside."""
    environment = {"SOURCE_DATE_EPOCH": str(epoch), "OXILLAMA_TARGETS": "all"}
    if machine != platform.machine():
        compiler = os.environ["CC"]
        environment |= {"OXILLAMA_MACHINE": machine, "LDSHARED": f"{compiler} -shared"}
        version = "".join(map(str, sys.version_info[:2]))
        environment |= {"SETUPTOOLS_EXT_SUFFIX": f".cpython-{version}-{machine}-linux-gnu.so"}
    plain, option = folder / "plain", f"--config-settings=--build-option=--plat-name=linux_{machine}"
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", option, "-w", plain, sdist, **environment)
    (path,) = plain.glob("*.whl")
    environment["AUDITWHEEL_LD_LIBRARY_PATH"] = str(openmp)
    # auditwheel accepts only "auto" for a machine other than this one
    run(sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "-w", folder, path, **environment)
    (path,) = folder.glob("*.whl")
    check_glibc(path.name)
    return path


def check_glibc(name: str) -> None:
    """Ends this program if the file name of a wheel says that the wheel needs a newer glibc than `GLIBC`."""
    needed = [(int(major), int(minor)) for major, minor in re.findall(r"manylinux_(\d+)_(\d+)_", name)]
    if not needed or min(needed) > GLIBC:
        newest = ".".join(map(str, GLIBC))
        raise SystemExit(f"{name}: expected a tag for glibc {newest} or older, got {needed or 'no tag'}")


def check(path: Path) -> None:
    """Ends this program if a file is too large, or a tool finds a fault in it."""
    size = path.stat().st_size
    if size > MOST_BYTES[path.suffix]:
        raise SystemExit(f"{path.name}: expected at most {MOST_BYTES[path.suffix]} bytes, got {size}")
    run(sys.executable, "-m", "twine", "check", "--strict", path)
    if path.suffix == ".whl":
        run(sys.executable, "-m", "check_wheel_contents", path)
        print(run(sys.executable, "-m", "auditwheel", "show", path))
    print(f"{path.name}: {size} bytes, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist")
    parser.add_argument("--machine", default=platform.machine(), help="default: %(default)s")
    parser.add_argument("--openmp", type=Path, metavar="FOLDER", help="with libgomp.so.1")
    parser.add_argument("--twice", action="store_true", help="build again, and compare the bytes")
    parser.add_argument("--sdist", action="store_true", help="the source distribution alone")
    args = parser.parse_args()
    said = run("git", "-C", ROOT, "log", "-1", "--format=%ct")
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", said))
    results = []
    for _ in range(1 + args.twice):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            paths = [build_sdist(folder / "sdist", epoch)]
            if not args.sdist:
                openmp = args.openmp or fetch(folder / "openmp", "linux", args.machine).parent
                paths.append(build_wheel(paths[0], args.machine, openmp, folder / "wheel", epoch))
            results.append({path.name: path.read_bytes() for path in paths})
    if results[0] != results[-1]:
        raise SystemExit("two builds differ")
    args.out.mkdir(exist_ok=True)
    for file, content in results[0].items():
        (args.out / file).write_bytes(content)
        check(args.out / file)


if __name__ == "__main__":
    main()
