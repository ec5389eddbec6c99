"""The frame of a command-line program: an error or a warning becomes one line, and an exit code."""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from oxillama.cli.console import say
from oxillama.errors import OxiLlamaError

ERROR, INTERRUPTED, BROKEN_PIPE = 2, 130, 141


class Formatter(argparse.HelpFormatter):
    """Keeps the lines of examples, and of texts that are indented."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(("examples:", "  ")) else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """Writes an error in the arguments as one line, like all other errors; its usage is one line, too.

    Attributes
    ----------
    summary : what a command does, as the list of commands says it.
    verbose : what the option --verbose of a command does.
    """

    summary: str = ""
    verbose: str = ""

    def __init__(self, **texts: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, **texts})

    def format_help(self) -> str:
        if self.usage is None and " " in self.prog:  # of a command, whose options are listed below
            self.usage: str = f"{self.prog} [options]".replace("%", "%%")
            for action in self._get_positional_actions():
                name = str(action.metavar or action.dest)
                optional = f"[{name} ...]" if action.nargs == "*" else f"[{name}]"
                self.usage += " " + (optional if action.nargs in ("?", "*") else name)
        return super().format_help()

    def print_help(self, file: Any = None) -> None:
        """As argparse's, which drops the error of a full disk where a help is larger than the buffer."""
        (sys.stdout if file is None else file).write(self.format_help())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = super().parse_known_args(args, namespace)
        if rest and " " in self.prog:
            self.error(f"unrecognized arguments: {' '.join(rest)}{self._likely(rest[0])}")
        return found, rest

    def _likely(self, name: str) -> str:
        """A question for the option that is likely to be meant by a name that is none."""
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        return likely(name.partition("=")[0].replace("_", "-"), known) if name.startswith("--") else ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            hint = likely(str(value), [str(choice) for choice in action.choices or ()])
            raise argparse.ArgumentError(action, error.message + hint) from None

    def error(self, message: str) -> NoReturn:
        say("error", f"{message.removeprefix('argument ')} (see {self.prog} --help)", program_of(self.prog))
        raise SystemExit(ERROR)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # Before Python 3.13 "--name=--" gave the option an empty list, whatever its type.
        if action.option_strings and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected a value, got '--'")
        return super()._get_values(action, arg_strings)


def likely(name: str, known: list[str]) -> str:
    """A question for the name that is most like an unknown one; "" if none is."""
    near = difflib.get_close_matches(name, known, 1, 0.7)
    return f"; did you mean {near[0]}?" if near else ""


def program_of(prog: str) -> str:
    """The name of the program: "oxillama" of "oxillama run", "benchmarks" of "python -m benchmarks load"."""
    return prog.removeprefix("python -m ").split()[0]


def run_program(program: str, job: Callable[[], int]) -> int:
    """Runs the job of a process; its exit code, or that of the error that ended the job."""
    _prepare_streams()
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: say("warning", str(message), program)
        try:
            code = _exit_code(job)
            sys.stdout.flush()
            return code
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one has nothing left to stop
            if sys.stderr.isatty():
                print(file=sys.stderr)  # below the terminal's ^C
            return INTERRUPTED
        except (OxiLlamaError, ImportError, Warning) as error:  # -W error raises warnings
            say("error", str(error).removeprefix("oxillama: "), program)
            return ERROR
        except BrokenPipeError:
            return _leave_pipe(BROKEN_PIPE)
        except MemoryError as error:
            say("error", f"out of memory: {error}", program)
            return ERROR
        except OSError as error:
            say("error", f"{error.filename or 'output'}: {error.strerror or error}", program)
            return _leave_pipe(ERROR)


def _exit_code(job: Callable[[], int]) -> int:
    try:
        return job()
    except SystemExit as done:  # argparse: --help, --version, or an error already written
        return done.code if isinstance(done.code, int) else 0


def _prepare_streams() -> None:
    """Makes any text readable and writable: invalid bytes become surrogates, others escapes."""
    streams: tuple[tuple[str, str, Any], ...] = (
        ("stdin", "r", "surrogateescape"),
        ("stdout", "w", "backslashreplace"),
        ("stderr", "w", "backslashreplace"),
    )
    for name, mode, errors in streams:
        if getattr(sys, name) is None:  # the process was started with it closed
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for as long as the process
        if hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors=errors)


def _leave_pipe(code: int) -> int:
    """Discards the buffer of stdout, which the interpreter would otherwise write at its exit."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass  # stdout is closed, or not a file
    return code
