"""Faces: the command line, ``oxillama COMMAND ...``.

    "checks": "tokenize snapshot verify replay sign fingerprint",
    "evaluation": "eval perplexity compare",

Results go to stdout, everything else to stderr. An error is one line, never a traceback.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from oxillama._version import __version__
from oxillama.cli import (
    batch,
    bench,
    chat,
    convert,
    doctor,
    evaluate,
    fingerprint,
    generate,
    harness,
    hub,
    info,
    pack,
    quantize,
    replay,
    serve,
    snapshot,
    tokenize,
    verify,
)
from oxillama.cli.console import say
from oxillama.cli.options import add_message_options
from oxillama.cli.program import Parser, run_program
from oxillama.distribution import DISTRIBUTION

__all__ = ["build_parser", "main"]

GROUPS = {
    "chat and text": "chat run demo",
    "serving and batch jobs": "serve batch",
    "models": "pull list rm info",
    "files": "quantize imatrix convert pack",
    "checks": "tokenize snapshot verify replay sign fingerprint",
    "evaluation": "eval perplexity compare",
    "this machine": "doctor bench",
}
"""The commands as the help lists them: under these headings, those that most users need first."""

EXAMPLES = """\
  oxillama demo                              a story from the model that the package ships
  oxillama chat Qwen/Qwen3-4B-GGUF:Q4_K_M    talk to a model of the Hugging Face Hub, downloaded once
  oxillama chat model.gguf "What is a llama?"
  oxillama info model.gguf                   what the model needs, before it is loaded
  oxillama serve model.gguf                  a page, and OpenAI's API, at http://127.0.0.1:8080
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; parsed arguments hold the function to call in ``command``."""
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
    for module in (
        generate,
        chat,
        verify,
        replay,
        info,
        snapshot,
        fingerprint,
        tokenize,
        quantize,
        pack,
        convert,
        hub,
        serve,
        batch,
        bench,
        evaluate,
        harness,
        doctor,
    ):
        module.add_commands(commands)
    for title, names in GROUPS.items():
        lines = [f"  {name:<12}{commands.choices[name].summary}" for name in names.split()]
        parser.add_argument_group(title, "\n".join(lines))
    about = parser.add_argument_group("options")
    about.add_argument("-h", "--help", action="help", help="show this help message and exit")
    about.add_argument("--version", action="version", version=f"{DISTRIBUTION} {__version__}")
    for command in commands.choices.values():
        add_message_options(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (None: that of the process) and returns its exit code."""

    def job() -> int:
        args = build_parser().parse_args(argv)
        with log_on_stderr() if args.verbose else nullcontext():
            code: int = args.command(args)
        return code

    return run_program("oxillama", job)


@contextmanager
def log_on_stderr() -> Iterator[None]:
    """Writes each record of the library's logger as one line to stderr."""
    logger, handler = logging.getLogger("oxillama"), LineHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


class LineHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(record.levelname.lower(), record.getMessage())
