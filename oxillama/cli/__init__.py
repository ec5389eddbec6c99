"""Faces: the command line, ``oxillama COMMAND ...``.

Commands: `generate` (run, demo), `chat`, `verify`, `info`, `snapshot`, `tokenize`, `quantize` (quantize,
imatrix), `pack`, `convert`, `hub` (pull, list, rm), `serve`, `batch`, `bench`, `doctor`. A command is a
function from the parsed arguments to an exit code: 0 success, 1 a negative finding, 2 an error, 130
interrupted, 141 broken pipe. `options` makes arguments from the configuration dataclasses, `models` finds
the model, `program` turns errors into exit codes, `console` reads and writes text, `progress` shows bars,
`tools` has the tools of a chat, `sessions` keeps a session for the next process. To start quickly, a module
imports NumPy and the kernels only inside its commands.

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
    generate,
    hub,
    info,
    pack,
    quantize,
    serve,
    snapshot,
    tokenize,
    verify,
)
from oxillama.cli.console import say
from oxillama.cli.program import Parser, run_program
from oxillama.distribution import DISTRIBUTION

__all__ = ["build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; parsed arguments hold the function to call in ``command``."""
    parser = Parser(
        prog="oxillama",
        description="Runs GGUF language models on CPUs.",
        epilog="'oxillama demo' needs no model; 'oxillama COMMAND --help' lists a command's options.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{DISTRIBUTION} {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (
        generate,
        chat,
        verify,
        info,
        snapshot,
        tokenize,
        quantize,
        pack,
        convert,
        hub,
        serve,
        batch,
        bench,
        doctor,
    ):
        module.add_commands(commands)
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
