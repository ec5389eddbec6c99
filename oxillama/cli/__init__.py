"""Faces: the command line, ``oxillama COMMAND ...``.

Each module here is a concern: `generate` (run, demo), `chat`, `inspect` (info, tokenize), `quantize`
(quantize, imatrix), `convert`, `doctor`, `bench`; `options` makes arguments of the configuration dataclasses,
`console` reads and writes. A command is a function of the parsed arguments that returns an exit code: 0 done,
1 a finding, 2 an error, 130 interrupted, 141 nobody reads the output. Importing them is quick: what is heavy
(NumPy, the kernels) is imported by the command that needs it.

Results go to stdout, all else to stderr. What goes wrong is one line there, never a traceback.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from oxillama._version import __version__
from oxillama.cli import bench, chat, convert, doctor, generate, inspect, quantize
from oxillama.cli.console import say
from oxillama.errors import OxiLlamaError

__all__ = ["build_parser", "main"]

ERROR, INTERRUPTED, BROKEN_PIPE = 2, 130, 141


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line, as every other error is said."""

    def error(self, message: str) -> NoReturn:
        say("error", f"{message} (see {self.prog} --help)")
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
    for module in (generate, chat, inspect, quantize, convert, bench, doctor):
        module.add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (None: that of the process) and returns its exit code."""
    _prepare_streams()
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            args = build_parser().parse_args(argv)
            code: int = args.command(args)
            sys.stdout.flush()
            return code
        except SystemExit as done:  # argparse: --help, --version, an error it has told
            return done.code if isinstance(done.code, int) else 0
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # another has nothing left to stop
            if sys.stderr.isatty():
                print(file=sys.stderr)  # below the terminal's ^C
            return INTERRUPTED
        except OxiLlamaError as error:
            say("error", str(error))
            return ERROR
        except BrokenPipeError:
            return _leave_pipe()
        except MemoryError as error:
            say("error", f"out of memory: {error}")
            return ERROR
        except OSError as error:
            say("error", f"{error.filename or 'output'}: {error.strerror or error}")
            return _leave_pipe(ERROR)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say("warning", str(message))


def _prepare_streams() -> None:
    """Lets any text in and out: what a terminal cannot show is escaped, bytes that are no text are kept."""
    for name, mode, errors in (("stdin", "r", "surrogateescape"), ("stdout", "w", "backslashreplace")):
        if getattr(sys, name) is None:  # the process was started with it closed
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for as long as the process
        if hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors=errors)


def _leave_pipe(code: int = BROKEN_PIPE) -> int:
    """Drops what stdout still holds, or the interpreter would try to write it when it ends."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass  # stdout is closed, or not a file
    return code
