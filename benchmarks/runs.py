"""Common parts of all benchmarks: options, the report, the comparison with an earlier report.

A command creates a `Run` before it measures, so that bad options fail at once. `Run.rows` has the engines
take turns. `Run.finish` prints the machine, the table and the comparison, and writes the JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.peers import ENGINES
from benchmarks.timing import CpuTime, Subjects, alternate, others_share
from oxillama.apps.bench.machine import describe_machine, machine_text
from oxillama.apps.bench.report import (
    Metric,
    Row,
    Samples,
    compare,
    read_report,
    report,
    rows,
    table,
    write_report,
)
from oxillama.apps.cli.console import check_writable
from oxillama.apps.cli.options import integer
from oxillama.base.config.engine import available_cpus
from oxillama.errors import ConfigError, ModelFileError


def add_arguments(parser: argparse.ArgumentParser, rounds: int = 10, warmup: int = 1) -> None:
    """The options that all commands share."""
    parser.add_argument("--rounds", type=int, default=rounds, help="turns per engine (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=warmup, help="turns thrown away (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to FILE")
    parser.add_argument("--compare", type=Path, metavar="OLD.json", help="compare with an earlier --json")


def add_engine_arguments(parser: argparse.ArgumentParser, new: int) -> None:
    """The options of commands that run models in any engine: model files, engines, threads, tokens."""
    parser.add_argument("--model", type=Path, required=True, action="append", help="GGUF file; repeatable")
    parser.add_argument("--engine", choices=ENGINES, default="oxillama", help="default: %(default)s")
    parser.add_argument("--peer", choices=ENGINES, help="a second engine to compare with")
    add_threads(parser)
    add_option(parser, "--new", new, "tokens decoded")


def add_model(parser: argparse.ArgumentParser) -> None:
    """The options of commands that run one model: its file, threads."""
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    add_threads(parser)


def add_threads(parser: argparse.ArgumentParser) -> None:
    """The option of commands that run kernels."""
    add_option(parser, "--threads", available_cpus())


def add_option(parser: argparse.ArgumentParser, name: str, default: Any, what: str = "", **more: Any) -> None:
    """An option that is a count, unless ``more`` has another type; its help ends with its default."""
    help = f"{what} (default: %(default)s)" if what else "default: %(default)s"
    parser.add_argument(name, default=default, help=help, **{"type": positive, **more})


def positive(text: str) -> int:
    """Parses a count of at least 1."""
    value = integer(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, got {text!r}")
    return value


def engines(args: argparse.Namespace) -> list[str]:
    """The engines that were asked for, the one that is compared first."""
    if args.peer is None:
        return [args.engine]
    if args.peer == args.engine:
        raise ConfigError(f"--peer: expected another engine than --engine, got {args.peer} twice")
    return [args.engine, args.peer]


def check_models(models: Sequence[Path]) -> None:
    """Raises ModelFileError for the first that is no file."""
    for model in models:
        if not model.is_file():
            raise ModelFileError(f"{model}: expected a GGUF model, got no such file")


def version_of(engine: str) -> str:
    """The version of an engine that runs models, or else of the package with this name."""
    return ENGINES[engine](Path(), 1, 1).version() if engine in ENGINES else version(engine)


class Run:
    """One run of a command under conditions, which must be the same for two reports to be compared.

    Args:
        args: of the command; the models among them must be files.
        names: of the arguments that are conditions.
        engines: whose versions the report has.
        conditions: values in place of those of the arguments, and further ones.

    Attributes:
        model: the name of the one model; "" without a model, or with several.

    Raises ModelFileError for a model that is no file, and ConfigError for counts that measure nothing, a
    --json that could not be written, and a --compare that is no report of this command under these
    conditions.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        *names: str,
        engines: Sequence[str] = ("oxillama",),
        **conditions: Any,
    ) -> None:
        model = getattr(args, "model", None)
        check_models(model if isinstance(model, list) else [model] if model else [])
        self.model = model.stem if isinstance(model, Path) else ""
        conditions = {name: getattr(args, name) for name in names} | conditions
        for name, least in (("rounds", 1), ("warmup", 0)):
            if getattr(args, name) < least:
                raise ConfigError(f"--{name}: expected at least {least}, got {getattr(args, name)}")
        if args.json is not None:
            check_writable("--json", args.json)
        self.command, self.engines = args.command, engines
        self.rounds, self.warmup = args.rounds, args.warmup
        self.options = {**conditions, "rounds": args.rounds, "warmup": args.warmup}
        self.json, self.compare = args.json, args.compare
        self.old = read_report(args.compare, args.command, conditions) if args.compare is not None else None
        self.start = CpuTime.now()

    def alternate(self, subjects: Subjects) -> Samples:
        """The samples of subjects that take turns, by subject and metric."""
        return alternate(subjects, rounds=self.rounds, warmup=self.warmup)

    def rows(self, subjects: Subjects, metrics: Sequence[Metric], model: str | None = None) -> list[Row]:
        """The rows of subjects that take turns, of ``model`` if it is not the run's."""
        return rows(self.model if model is None else model, self.alternate(subjects), metrics)

    def pairs(self, samples: Samples, metric: Metric, *pairs: tuple[str, str]) -> list[Row]:
        """A row for each two subjects that are to be compared."""
        return [
            Row(self.model, metric, {name: samples[name][metric.name] for name in pair}) for pair in pairs
        ]

    def finish(self, results: Sequence[Row], text: str | None = None) -> int:
        """Print the rows, or the ``text`` a command made of them; write and compare them. Returns 0."""
        machine = describe_machine()
        machine["others_share"] = others_share(self.start, CpuTime.now())
        machine["engines"] = {name: version_of(name) for name in self.engines}
        content = report(self.command, self.options, machine, results)
        print(machine_text(machine))
        print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.options.items()), end="")
        print("; median [quartiles]")
        print(table(results) if text is None else text)
        if self.old is not None:
            old_machine = self.old.get("machine", {})
            print(f"\nagainst {self.compare} of {self.old.get('time')}, {old_machine.get('cpu')}:")
            print(compare(self.old, content))
        if self.json is not None:
            write_report(self.json, content)
        return 0
