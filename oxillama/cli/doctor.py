"""``doctor``: describes this installation: versions, CPU, targets, models."""

from __future__ import annotations

import argparse
import os
import platform
import re
from typing import Any

from oxillama import ConfigError, __version__
from oxillama.cli.console import human_bytes, print_json, print_rows
from oxillama.cli.options import add_command
from oxillama.config.engine import available_cpus

DEPENDENCIES = ("numpy", "tokenizers", "jinja2", "tqdm")


def add_commands(commands: Any) -> None:
    doctor = add_command(
        commands,
        "doctor",
        help="describe this installation",
        description="Describes this installation. The exit code is 1 where something in it cannot work.",
    )
    doctor.add_argument("--json", action="store_true", help="write JSON")
    doctor.set_defaults(command=run_doctor)


def run_doctor(args: argparse.Namespace) -> int:
    facts = examine()
    if args.json:
        print_json(facts)
    else:
        print_facts(facts)
    return 1 if facts["problems"] else 0


def examine() -> dict[str, Any]:
    """The facts that `doctor` prints, ready for JSON."""
    from oxillama import _kernels

    problems = []
    try:
        used = _kernels.best().target
    except ConfigError as error:
        used = None
        problems.append(f"OXILLAMA_TARGET: {error}")
    versions = {name: version_of(name) for name in DEPENDENCIES}
    problems += [f"{name} is not installed" for name, found in versions.items() if found is None]
    return {
        "oxillama": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": available_cpus(),
        "openmp_threads": _kernels.cpu.openmp_threads(),
        "targets": _kernels.targets(),
        "target": used,
        "OXILLAMA_TARGET": os.environ.get("OXILLAMA_TARGET"),
        "dependencies": versions,
        "cython": cython_version(_kernels.cpu.has),
        "demo_models": demo_models(),
        "problems": problems,
    }


def version_of(distribution: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def cython_version(function: object) -> str | None:
    """The Cython version of the build, from the module name of the type of Cython functions."""
    found = re.fullmatch(r"_cython_(\d+)_(\d+)_(\w+)", type(function).__module__)
    return ".".join(found.groups()) if found else None


def demo_models() -> dict[str, int | None]:
    """Size in bytes of each model of the package, by file name; None for a missing one."""
    from oxillama import demo

    paths = (demo.STORY, demo.DRAFT, demo.PIRATE)
    return {path.name: path.stat().st_size if path.is_file() else None for path in paths}


def print_facts(facts: dict[str, Any]) -> None:
    threads, wish = facts["openmp_threads"], facts["OXILLAMA_TARGET"]
    rows = [
        ("oxillama", facts["oxillama"]),
        ("Python", facts["python"]),
        ("platform", facts["platform"]),
        ("CPUs usable", str(facts["cpus"])),
        ("OpenMP", f"{threads} processors" if threads else "no: the kernels run on one thread"),
    ]
    for name, reason in facts["targets"].items():
        state = "used" if name == facts["target"] else reason or "available"
        rows.append((f"target {name}", state))
    rows.append(("OXILLAMA_TARGET", "not set" if wish is None else wish))
    rows += [(name, found or "not installed") for name, found in facts["dependencies"].items()]
    rows.append(("Cython at build", facts["cython"] or "not known"))
    for name, size in facts["demo_models"].items():
        rows.append((name, "missing" if size is None else human_bytes(size)))
    rows += [("problem", problem) for problem in facts["problems"]]
    print_rows(rows)
