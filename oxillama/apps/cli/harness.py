"""``eval``: the tasks of lm-evaluation-harness."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from oxillama.apps.cli import options
from oxillama.apps.cli.console import check_writable, print_json, print_rows, say
from oxillama.apps.cli.models import add_model, model_path
from oxillama.base.config import EngineConfig
from oxillama.base.distribution import install
from oxillama.errors import ConfigError

INSTALL = f"eval: needs lm-evaluation-harness: {install('eval')}"


def add_commands(commands: Any) -> None:
    command = options.add_command(
        commands,
        "eval",
        help="measure a model with tasks of lm-evaluation-harness",
        description="Runs tasks of lm-evaluation-harness (lm_eval). The figures are the same for every batch "
        "size, number of threads and instruction set. Tasks in --include whose data are local files need no "
        "network.",
        examples="""\
  oxillama eval model.gguf --tasks arc_easy,hellaswag --limit 100
  oxillama eval model.gguf --tasks mine --include tasks --receipts receipts
""",
    )
    add_model(command)
    command.add_argument("--tasks", metavar="A,B,...", required=True, help="names of tasks or groups")
    command.add_argument(
        "--include", metavar="FOLDER", action="append", default=[], help="folder of further tasks, as YAML"
    )
    command.add_argument("--offline", action="store_true", help="open no connection, even for data of tasks")
    for name, meaning in (
        ("--num-fewshot", "examples before each question (default: the task's)"),
        ("--limit", "max documents of a task (default: all)"),
        ("--batch-size", "sequences that are run at a time (default: 64)"),
    ):
        command.add_argument(name, metavar="N", type=options.integer, help=meaning)
    command.add_argument("--chat", action="store_true", help="put questions with the model's chat template")
    command.add_argument("--system", metavar="TEXT", help="system message of these conversations")
    command.add_argument(
        "--truncate", action="store_true", help="cut the beginning of a prompt that does not fit the context"
    )
    command.add_argument(
        "--bootstrap", metavar="N", type=options.integer, default=1000,
        help="resamplings for the errors of some metrics (default: 1000)",
    )  # fmt: skip
    command.add_argument(
        "--receipts", metavar="FOLDER", help="write a receipt of each item, for oxillama verify"
    )
    command.add_argument("--json", action="store_true", help="write all results as JSON")
    command.add_argument("--samples", metavar="FILE.json", help="write each question with its answers here")
    options.add_engine_options(command)
    command.set_defaults(command=run_eval)


def run_eval(args: argparse.Namespace) -> int:
    if args.offline:  # read when these libraries are imported
        os.environ.update({"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"})
    if args.samples is not None:
        check_writable("--samples", Path(args.samples))
    if args.system is not None and not args.chat:
        raise ConfigError("system: needs --chat")
    try:
        import lm_eval  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(INSTALL) from error
    from oxillama.apps.evaluation.tasks import evaluate

    found = evaluate(
        model_path(args.model, args),
        [name for name in args.tasks.split(",") if name],
        include=args.include,
        num_fewshot=args.num_fewshot,
        limit=args.limit,
        batch_size=args.batch_size,
        chat=args.chat,
        system=args.system,
        truncate=args.truncate,
        bootstrap=args.bootstrap,
        receipts=args.receipts,
        samples=args.samples is not None,
        **options.given(args, EngineConfig),
    )
    if args.samples is not None:
        Path(args.samples).write_text(found.samples_json(), encoding="utf-8")
    if args.json:
        print_json(found.results)
    else:
        rows = [("task", "metric", "value", "+/-"), *found.rows()]
        print_rows(rows, right=(2, 3))
    if args.receipts is not None and not args.quiet:
        say("note", f"wrote receipts to {args.receipts}")
    return 0
