"""``batch``: a file of requests, on this machine or on a cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxillama.apps.cli import options
from oxillama.apps.cli.console import printable
from oxillama.apps.cli.models import MEANING, load_engine, model_path
from oxillama.apps.cli.progress import make_bar, shows_bars
from oxillama.base.config import EngineConfig, SchedulerConfig
from oxillama.base.distribution import install
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama.apps.batch.job import Job, Tally
    from oxillama.apps.batch.plain import Settings

FAILED = 1
"""The exit code where an answer is an error."""


def add_commands(commands: Any) -> None:
    batch = options.add_command(
        commands,
        "batch",
        help="answer a file of requests",
        description="Answers each line of a file: requests of OpenAI's batch format, or objects with a "
        "prompt, messages, or an input to embed, and options. Each line in gives one line out, in the same "
        "order; what is wrong with a line is in its answer. A run that was ended goes on where it was.",
        examples="""\
  oxillama batch in.jsonl out.jsonl -m model.gguf
  oxillama batch in.jsonl out.parquet -m model.gguf --max-tokens 200
""",
    )
    batch.add_argument("input", metavar="IN", help="file of requests: .jsonl, .parquet")
    batch.add_argument("output", metavar="OUT", help="file to write: .parquet, or else lines of JSON")
    batch.add_argument("-m", "--model", metavar="MODEL", required=True, help=MEANING)
    batch.add_argument(
        "--alias", metavar="NAME", help="what requests may call the model (default: its file's name)"
    )
    batch.add_argument(
        "-n",
        "--max-tokens",
        type=options.integer,
        metavar="N",
        help="max tokens of a text whose line does not say; -1 for as many as the context holds "
        "(default: 256; for OpenAI's format what its interface has)",
    )
    batch.add_argument(
        "--keep", action="append", metavar="NAME", help="a further field that the answer repeats (repeatable)"
    )
    batch.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    batch.add_argument("--restart", action="store_true", help="drop what an earlier run has answered")
    group = batch.add_argument_group("Ray")
    group.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="run on a cluster: the one at ADDRESS, else the one that runs, else one of this machine",
    )
    group.add_argument(
        "--actors",
        metavar="N|A:B",
        help="engines, or at least A and at most B (default: at most --per-machine on each)",
    )
    group.add_argument(
        "--per-machine", type=options.integer, metavar="N", help="engines that share a machine (default: 1)"
    )
    options.add_named_options(batch, ("max_sequences",))
    options.add_engine_options(batch)
    options.add_sampler_options(batch)
    batch.set_defaults(command=run_batch)


def run_batch(args: argparse.Namespace) -> int:
    from oxillama.apps.batch.engines import window_of
    from oxillama.apps.batch.facts import check_engine, facts_of
    from oxillama.apps.batch.job import Job, with_engine
    from oxillama.apps.batch.plain import Settings
    from oxillama.apps.batch.rows import Rows
    from oxillama.apps.server.model_names import name_of_file

    if args.ray is None and (args.actors is not None or args.per_machine is not None):
        raise ConfigError("actors, per_machine: expected --ray beside them, got none")
    config = batch_config(args)
    settings = Settings(
        model_name=args.alias or name_of_file(config.model_path),
        max_tokens=args.max_tokens,
        keep=tuple(args.keep or ()),
    )
    job = Job(
        Path(args.input),
        Path(args.output),
        facts_of(config, settings),
        overwrites=args.overwrite,
        restarts=args.restart,
    )
    if args.ray is not None:
        tally = run_on_ray(job, config, settings, args)
    else:
        with load_engine(config, args) as engine, bar(shows_bars(args)) as seen:
            check_engine(job.facts, engine)
            tally = job.run(with_engine(Rows(engine, settings), window_of(config)), seen)
    if not args.quiet:
        print(printable(summary(tally, args.output)), file=sys.stderr, flush=True)
    return FAILED if tally.n_failed else 0


def run_on_ray(job: Job, config: EngineConfig, settings: Settings, args: argparse.Namespace) -> Tally:
    """Runs a job on a cluster. Raises ConfigError if Ray is not installed, or there is no cluster."""
    check_installed()
    from oxillama.apps.ray.cluster import actors_of, connected, on_cluster

    shared = 1 if args.per_machine is None else args.per_machine
    with connected(args.ray or None), bar(shows_bars(args)) as seen:
        return job.run(on_cluster(config, settings, actors_of(args.actors, shared), shared, job.facts), seen)


def check_installed() -> None:
    """Raises ConfigError if Ray is not installed."""
    try:
        import ray.data  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"ray: expected Ray ({install('ray')}), got none of {error.name}") from error


def batch_config(args: argparse.Namespace) -> EngineConfig:
    """The engine that the arguments ask for. Raises ConfigError for a value out of range."""
    from oxillama.apps.batch.engines import for_jobs

    scheduler = SchedulerConfig(**options.given(args, SchedulerConfig))
    config = options.engine_config(args, model_path(args.model, args))
    return for_jobs(replace(config, scheduler=scheduler))


@contextmanager
def bar(show: bool) -> Iterator[Callable[[Tally], None]]:
    """A progress bar over rows; yields a function to call with each answer."""
    if not show:
        yield lambda tally: None
        return
    with make_bar("answering", " rows") as shown:

        def seen(tally: Tally) -> None:
            if shown.total is None:
                shown.reset(tally.n_rows)
                shown.initial = tally.n_known
            if tally.n_failed:
                shown.set_postfix(failed=tally.n_failed, refresh=False)
            shown.update(tally.n_done - shown.n)

        yield seen


def summary(tally: Tally, output: str) -> str:
    """The numbers of rows, of known rows and of failed rows, in one line."""
    known = f" ({tally.n_known} known from before)" if tally.n_known else ""
    failed = f", {tally.n_failed} of them errors" if tally.n_failed else ""
    return f"{output}: {tally.n_done} answers{known}{failed}"
