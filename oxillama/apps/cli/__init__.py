"""The command line, ``oxillama COMMAND ...``.

Results go to stdout, everything else to stderr. An error is one line, never a traceback.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from oxillama.apps.cli.console import logging_to, say
from oxillama.apps.cli.options import add_message_options
from oxillama.apps.cli.program import Parser, run_program, with_flag
from oxillama.base.distribution import DISTRIBUTION
from oxillama.base.version import __version__
from oxillama.errors import ConfigError, GrammarError

__all__ = ["build_parser", "main"]

FIRST = ("demo", "chat", "run", "serve", "batch", "pull", "list", "info", "quantize", "doctor")
"""The commands that a newcomer needs: the help says what each does."""

MORE = {
    "models": ("rm", "imatrix", "convert", "pack", "tokenize", "snapshot"),
    "measure": ("bench", "eval", "perplexity", "compare"),
    "decisions": ("decide", "calibrate"),
    "receipts": ("verify", "replay", "sign", "fingerprint"),
}
"""The other commands by topic: ``--help`` gives their names, ``--help-all`` says what each does, too."""

COMMANDS: dict[str, str] = {
    name: module
    for module, names in {
        "generate": "run demo", "chat": "chat", "decide": "decide calibrate", "verify": "verify sign",
        "replay": "replay", "info": "info", "snapshot": "snapshot", "fingerprint": "fingerprint",
        "tokenize": "tokenize", "quantize": "quantize imatrix", "pack": "pack", "convert": "convert",
        "hub": "pull list rm", "serve": "serve", "batch": "batch", "bench": "bench",
        "evaluate": "perplexity compare", "harness": "eval", "doctor": "doctor",
    }.items()
    for name in names.split()
}  # fmt: skip
"""The module of each command, imported when its parser is made."""

EXAMPLES = """\
  oxillama demo                              a story from the model that the package ships
  oxillama chat Qwen/Qwen3-4B-GGUF:Q4_K_M    talk to a model of the Hugging Face Hub, downloaded once
  oxillama chat model.gguf "What is a llama?"
  oxillama info model.gguf                   what the model needs, before it is loaded
  oxillama serve model.gguf                  a page, and OpenAI's API, at http://127.0.0.1:8080
"""


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands; parsed arguments hold the function to call in ``command``.

    With the name of a command, the parsers of its module alone are made: all parsers take 30 ms.
    """
    parser = Parser(
        prog="oxillama",
        usage="oxillama COMMAND [options]",
        description="Runs GGUF language models on CPUs.",
        epilog=f"examples:\n{EXAMPLES}\n'oxillama COMMAND --help' lists the options of a command.",
        allow_abbrev=False,
        add_help=False,
    )
    commands = parser.add_subparsers(
        prog="oxillama", metavar="COMMAND", required=True, help=argparse.SUPPRESS, title="commands"
    )
    modules = [COMMANDS[command]] if command in COMMANDS else dict.fromkeys(COMMANDS.values())
    for module in modules:
        importlib.import_module(f"{__name__}.{module}").add_commands(commands)
    chosen = {} if command in COMMANDS else {"commands": FIRST, **MORE}  # the help of a command has no lists
    summaries = {name: f"  {name:<13}{each.summary}" for name, each in commands.choices.items()}
    lists = {title: "\n".join(summaries[name] for name in names) for title, names in chosen.items()}
    names_alone = "\n".join(f"  {topic + ':':<13}{', '.join(names)}" for topic, names in MORE.items())
    parser.add_argument_group("commands", lists.get("commands"))
    parser.add_argument_group("more commands", names_alone)
    about = parser.add_argument_group("options")
    about.add_argument("-h", "--help", action="help", help="show this help message and exit")
    about.add_argument(
        "--help-all", action=ListAll, lists=lists, help="say what every command does, and exit"
    )
    about.add_argument("--version", action="version", version=f"{DISTRIBUTION} {__version__}")
    for each in commands.choices.values():
        add_message_options(each)
    return parser


class ListAll(argparse.Action):
    """Prints what every command does, by topic, and ends the program."""

    def __init__(self, option_strings: Sequence[str], dest: str, lists: Mapping[str, str], help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)
        self.lists = lists

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        sys.stdout.write("\n\n".join(f"{title}:\n{text}" for title, text in self.lists.items()) + "\n")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (None: the process's own) and returns its exit code."""

    def job() -> int:
        words = list(sys.argv[1:] if argv is None else argv)
        if not words:
            build_parser().print_help()
            return 0
        args = build_parser(words[0]).parse_args(words)
        show = warnings.showwarning  # the function of `run_program`, which puts the earlier one back
        warnings.showwarning = lambda message, *how, **more: show(
            with_flag(str(message), args.flags), *how, **more
        )
        try:
            with logging_to(LineHandler(), {"oxillama": logging.DEBUG}) if args.verbose else nullcontext():
                code: int = args.command(args)
        except (ConfigError, GrammarError, Warning) as error:
            error.args = (with_flag(str(error), args.flags),)
            raise
        return code

    return run_program("oxillama", job)


class LineHandler(logging.Handler):
    """Writes each record as one line to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.levelname.lower(), record.getMessage())
