"""``doctor``: describes this installation and this machine, and measures their limits."""

from __future__ import annotations

import argparse
import os
import platform
import re
from typing import TYPE_CHECKING, Any

from oxillama import ConfigError, __version__
from oxillama.apps.cli.console import human_bytes, human_count, print_json, print_rows, printable
from oxillama.apps.cli.models import add_model, model_path
from oxillama.apps.cli.options import add_command, add_named_options, given
from oxillama.base.config.engine import EngineConfig, available_cpus
from oxillama.base.targets import TARGETS

if TYPE_CHECKING:
    from oxillama._kernels import Kernels
    from oxillama.apps.doctor.diagnosis import Diagnosis

DEPENDENCIES = ("numpy", "tokenizers", "jinja2", "tqdm")


def add_commands(commands: Any) -> None:
    doctor = add_command(
        commands,
        "doctor",
        help="describe this installation, and measure what holds this machine back",
        description="Describes this installation and this machine. With --measure it measures the peak rates "
        "of memory and multipliers, with MODEL also the model's speed beside them. The exit code is 1 where "
        "something in the installation cannot work, or costs more than 20% of the speed as measured.",
    )
    add_model(doctor, nargs="?")
    doctor.add_argument("--measure", action="store_true", help="measure the machine, for about a second")
    doctor.add_argument("--json", action="store_true", help="write JSON")
    add_named_options(doctor, ("num_threads",))
    doctor.set_defaults(command=run_doctor)


def run_doctor(args: argparse.Namespace) -> int:
    facts = examine()
    found = diagnosis(args) if facts["target"] is not None else None
    if args.json:
        print_json({**facts, **(found.as_json() if found else {})})
    else:
        print_facts(facts)
        if found is not None:
            print_diagnosis(found)
    return 1 if facts["problems"] or (found is not None and found.is_held_back) else 0


def diagnosis(args: argparse.Namespace) -> Diagnosis:
    from oxillama.apps.doctor.diagnosis import diagnose

    path = None if args.model is None else model_path(args.model, args)
    return diagnose(path, measure=args.measure, num_threads=given(args, EngineConfig).get("num_threads"))


def examine() -> dict[str, Any]:
    """The facts that `doctor` prints, ready for JSON."""
    from oxillama import _kernels

    problems = []
    try:
        kernels = _kernels.best()
        used, chosen = kernels.target, choices(kernels)
    except ConfigError as error:
        used, chosen = None, {}
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
        "targets": {name: _kernels.refusal(name) for name in _kernels.targets()},
        "target": used,
        "choices": chosen,
        "OXILLAMA_TARGET": os.environ.get("OXILLAMA_TARGET"),
        "dependencies": versions,
        "cython": cython_version(_kernels.cpu.has),
        "demo_models": demo_models(),
        "problems": problems,
    }


def choices(kernels: Kernels) -> dict[str, str]:
    """What was chosen by measurement when the kernels were loaded, by subject."""
    from oxillama._kernels.tile_tuning import NEVER

    found = {}
    if kernels.linear.BF16_DOT:
        faster = kernels.linear.BF16_DOT_IS_FASTER
        found["pairs of bf16"] = "by their instruction" if faster else "by fused multiply-adds: faster here"
    unpacking = "once for many tokens" if kernels.unpacks_quick else "for each tile of tokens: faster here"
    found["unsigned codes of 4 bits"] = f"unpacked {unpacking}"
    for name, n in zip(("rounded rows", "integer scales", "blocks of 32"), kernels.tile_tokens or ()):
        found[f"AMX, {name}"] = f"from {n} tokens on" if n < NEVER else "not used: slower here"
    return found


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
    for target in TARGETS:
        reason = facts["targets"][target.name]
        if target.use == "automatic" or target.name == facts["target"]:
            state = "used" if target.name == facts["target"] else reason or "available"
        elif reason == "not built":
            continue
        else:
            state = reason or f"available, used only with OXILLAMA_TARGET={target.name}"
        rows.append((f"target {target.name}", state))
    rows += facts["choices"].items()
    rows.append(("OXILLAMA_TARGET", "not set" if wish is None else wish))
    rows += [(name, found or "not installed") for name, found in facts["dependencies"].items()]
    rows.append(("Cython at build", facts["cython"] or "not known"))
    for name, size in facts["demo_models"].items():
        rows.append((name, "missing" if size is None else human_bytes(size)))
    rows += [("problem", problem) for problem in facts["problems"]]
    print_rows(rows)


def print_diagnosis(found: Diagnosis) -> None:
    print()
    print_rows(machine_rows(found))
    measured, weights = found.measured, found.weights
    if measured.rates:
        print()
        head = ("threads", "read, GB/s", "int8, GMAC/s", "float, GMAC/s")
        rows = [
            (str(r.threads), *(f"{x / 1e9:.1f}" for x in (r.read, r.products, r.float_products)))
            for r in measured.rates
        ]
        print_rows([head, *rows], right=range(4))
    if measured.model is not None:
        model, peak = measured.model, measured.rates[-1]
        in_products, of_peak = 1 - model.outside - model.other_kernels, model.share_of_products(peak)
        print()
        print_rows(
            [
                ("weights in memory", human_bytes(weights or 0)),
                ("weights a token", human_bytes(round(model.bytes_per_token))),
                ("products a token", f"{human_count(round(model.macs_per_token))} multiply-adds"),
                (
                    "decode",
                    f"{model.decode:.1f} tokens/s, {model.share_of_read(peak):.0%} of the memory's rate",
                ),
                (
                    "of a decode step",
                    f"products {in_products:.0%}, other kernels {model.other_kernels:.0%}, "
                    f"outside kernels {model.outside:.0%} ({model.kernel_calls} kernel calls)",
                ),
                (
                    "prefill",
                    f"{model.prefill:.1f} tokens/s, {of_peak:.0%} of the multipliers' rate",
                ),
            ]
        )
    print()
    for finding in found.findings:
        loss = "" if finding.loss is None else f", {finding.loss:.0%} lost"
        print(printable(f"{finding.what}: {finding.measured}, expected {finding.expected}{loss}"))
        print(printable(f"  {finding.advice}"))
    if not found.findings:
        print("nothing found that holds this machine back")
    if not measured.rates:
        print("rates were not measured: oxillama doctor --measure, or oxillama doctor MODEL")


def machine_rows(found: Diagnosis) -> list[tuple[str, str]]:
    """The facts of the machine, as rows to print."""

    def known(value: Any, form: str = "{}") -> str:
        return "unknown" if value is None else form.format(value)

    def size(value: int | None) -> str:
        return "unknown" if value is None else human_bytes(value)

    def clock(value: float | None) -> str:
        return known(None if value is None else value / 1e9, "{:.2f} GHz")

    machine, shares = found.measured.during or found.machine, found.measured.shares
    nodes = f"{known(machine.numa_allowed)} of {known(machine.numa_nodes)}"
    rows = [
        ("CPU", known(machine.cpu)),
        ("instructions", known(machine.features and " ".join(machine.features))),
        (
            "virtual machine",
            "unknown" if machine.hypervisor is None else "yes" if machine.hypervisor else "no",
        ),
        ("processors allowed", f"{known(machine.allowed_cpus)} of {known(machine.online_cpus)}"),
        ("physical cores of them", known(machine.cores)),
        (
            "processor quota",
            known(machine.cpu_quota, "{:g} processors") if machine.cpu_quota else "none found",
        ),
        ("frequency governor", known(machine.governors and " ".join(machine.governors))),
        ("frequency", f"{clock(machine.frequency)} of {clock(machine.max_frequency)}"),
        ("transparent huge pages", known(machine.transparent_huge_pages)),
        ("NUMA nodes allowed", f"{nodes}, policy {known(machine.numa_policy)}"),
        ("memory free", f"{size(machine.free_memory)} of {size(machine.memory)}"),
        ("memory limit", size(machine.memory_limit) if machine.memory_limit else "none found"),
        ("swap in use", f"{size(machine.swap_used)}, {size(machine.swapped)} of this process"),
        ("time stolen by the host", known(shares.stolen, "{:.0%}") if shares is not None else "not measured"),
        ("time of other processes", known(shares.others, "{:.0%}") if shares is not None else "not measured"),
    ]
    return rows
