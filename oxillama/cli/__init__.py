"""Faces: the command line, ``oxillama COMMAND ...``.

Commands: `generate` (run, demo), `chat`, `info`, `tokenize`, `quantize` (quantize, imatrix), `convert`,
`bench`, `doctor`. A command is a function from the parsed arguments to an exit code: 0 success, 1 a negative
finding, 2 an error, 130 interrupted, 141 broken pipe. `options` makes arguments from the configuration
dataclasses, `console` reads and writes text, `progress` shows bars. To start quickly, a module imports NumPy
and the kernels only inside its commands.

Results go to stdout, everything else to stderr. An error is one line, never a traceback.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

from oxillama._version import __version__
from oxillama.cli import bench, chat, convert, doctor, generate, info, quantize, tokenize
from oxillama.cli.console import say
from oxillama.errors import OxiLlamaError

__all__ = ["build_parser", "main"]

ERROR, INTERRUPTED, BROKEN_PIPE = 2, 130, 141


class Parser(argparse.ArgumentParser):
    """Writes an error in the arguments as one line, like all other errors."""

    def error(self, message: str) -> NoReturn:
        say("error", f"{message.removeprefix('argument ')} (see {self.prog} --help)")
        raise SystemExit(ERROR)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; parsed arguments hold the function to call in ``command``."""
    parser = Parser(
        prog="oxillama",
        description="Runs GGUF language models on CPUs.",
        epilog="'oxillama demo' needs no model; 'oxillama COMMAND --help' lists a command's options.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"oxillama {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (generate, chat, info, tokenize, quantize, convert, bench, doctor):
        module.add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (None: that of the process) and returns its exit code."""
    _prepare_streams()
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.showwarning = _show_warning
        try:
            args = build_parser().parse_args(argv)
            if args.verbose:
                stack.enter_context(_log_on_stderr())
            code: int = args.command(args)
            sys.stdout.flush()
            return code
        except SystemExit as done:  # argparse: --help, --version, or an error already written
            return done.code if isinstance(done.code, int) else 0
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one has nothing left to stop
            if sys.stderr.isatty():
                print(file=sys.stderr)  # below the terminal's ^C
            return INTERRUPTED
        except (OxiLlamaError, ImportError) as error:
            say("error", str(error).removeprefix("oxillama: "))
            return ERROR
        except BrokenPipeError:
            return _leave_pipe()
        except MemoryError as error:
            say("error", f"out of memory: {error}")
            return ERROR
        except OSError as error:
            say("error", f"{error.filename or 'output'}: {error.strerror or error}")
            return _leave_pipe(ERROR)


@contextmanager
def _log_on_stderr() -> Iterator[None]:
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


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say("warning", str(message))


def _prepare_streams() -> None:
    """Makes any text readable and writable: invalid bytes become surrogates, others escapes."""
    for name, mode, errors in (("stdin", "r", "surrogateescape"), ("stdout", "w", "backslashreplace")):
        if getattr(sys, name) is None:  # the process was started with it closed
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for as long as the process
        if hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors=errors)


def _leave_pipe(code: int = BROKEN_PIPE) -> int:
    """Discards the buffer of stdout, which the interpreter would otherwise write at its exit."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass  # stdout is closed, or not a file
    return code
