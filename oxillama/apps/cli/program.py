"""The frame of a command-line program: an error or a warning becomes one line, and an exit code."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Container, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, NoReturn

from oxillama.apps.cli.console import say
from oxillama.errors import OxiLlamaError

ERROR, INTERRUPTED, BROKEN_PIPE = 2, 130, 141


class Formatter(argparse.HelpFormatter):
    """Keeps the lines of examples, and of texts that are indented."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(("examples:", "  ")) else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """Writes an error in the arguments as one line, like all other errors; its usage is one line, too.

    Attributes:
        summary: what a command does, as the list of commands says it.
        verbose: what the option --verbose of a command does.
        short: how a long help is shortened; None if it always is shown whole.
    """

    _mixes = False
    summary: str = ""
    verbose: str = ""
    short: ShortHelp | None = None

    def __init__(self, **texts: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, **texts})

    def format_help(self) -> str:
        self._name_usage()
        whole = super().format_help()
        return whole if self.short is None else self.short.of(self, whole)

    def _name_usage(self) -> None:
        """Makes the usage of a command one line: the options are listed below it."""
        if self.usage is None and " " in self.prog:
            self.usage: str = f"{self.prog} [options]".replace("%", "%%")
            for action in self._get_positional_actions():
                name = str(action.metavar or action.dest)
                optional = f"[{name} ...]" if action.nargs == "*" else f"[{name}]"
                self.usage += " " + (optional if action.nargs in ("?", "*") else name)

    def print_help(self, file: Any = None) -> None:
        """Prints the help and, unlike argparse, reports a full disk for a help larger than the buffer."""
        (sys.stdout if file is None else file).write(self.format_help())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._subparsers is not None or self._mixes:
            found, rest = super().parse_known_args(args, namespace)
        else:  # options between positional arguments, too
            self._name_usage()
            self._mixes = True
            try:
                found, rest = self.parse_known_intermixed_args(args, namespace)
            finally:
                self._mixes = False
        if self._mixes:
            return found, rest
        if rest and " " in self.prog:
            unknown = [name for name in rest if name.startswith("-")] or rest
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._likely(unknown[0])}")
        return found, rest

    def _likely(self, name: str) -> str:
        """A question that names the option most like an unknown name."""
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        return likely(name.partition("=")[0].replace("_", "-"), known) if name.startswith("--") else ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            hint = likely(str(value), [str(choice) for choice in action.choices or ()], 0.6)
            message = f"invalid choice: {str(value)!r}{hint}" if hint else error.message
            raise argparse.ArgumentError(action, message) from None

    def error(self, message: str) -> NoReturn:
        say("error", f"{message.removeprefix('argument ')} (see {self.prog} --help)", program_of(self.prog))
        raise SystemExit(ERROR)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # Before Python 3.13 "--name=--" gave the option an empty list, whatever its type.
        if action.option_strings and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected a value, got '--'")
        return super()._get_values(action, arg_strings)


@dataclass(frozen=True)
class ShortHelp:
    """The help of the options that most users need, each in a line.

    Attributes:
        listed: the arguments of groups that are listed; those without a group are in any case.
        texts: what is said of arguments, by their names; None or nothing for the beginning of the usual text.
        values: what stands for their values.
        most: lines of a help that is shown whole.
    """

    listed: Container[str]
    texts: Mapping[str, str | None]
    values: Mapping[str, str]
    most: int

    def of(self, parser: Parser, whole: str) -> str:
        """The short help of a parser; its whole help if that is not longer than `most` lines."""
        if whole.count("\n") <= self.most:
            return whole
        formatter = Formatter(parser.prog, max_help_position=27)
        formatter.add_usage(parser.usage, (), ())
        formatter.add_text(parser.description)
        own = set(parser._get_positional_actions()) | set(parser._optionals._group_actions)
        for is_option, title in ((False, "arguments"), (True, "options")):
            formatter.start_section(title)
            shown = [each for each in parser._actions if bool(each.option_strings) == is_option]
            for each in sorted(shown, key=self._place):
                if (each in own or each.dest in self.listed) and each.help != argparse.SUPPRESS:
                    formatter.add_argument(self._shortened(each))
            formatter.end_section()
        n = sum(bool(each.option_strings) for each in parser._actions)
        formatter.add_text(f"'{parser.prog} --help-all' shows all {n} options, with their values.")
        formatter.add_text(parser.epilog)
        return formatter.format_help()

    def _place(self, action: argparse.Action) -> int:
        """The order: the command's own options, common ones, options of groups, options of all commands."""
        if action.dest in ("verbose", "quiet", "help", argparse.SUPPRESS):
            return 3
        return 2 if action.dest in self.listed else 1

    def _shortened(self, action: argparse.Action) -> argparse.Action:
        """An argument with fewer names, and less text."""
        found = copy(action)
        names = [name for name in action.option_strings if not name.startswith("--no-")]
        if names:
            letters = [name for name in names if not name.startswith("--")]
            words = [name for name in names if name.startswith("--")]
            if isinstance(action, argparse.BooleanOptionalAction):
                words = [words[0].replace("--", "--[no-]", 1)]
            found.option_strings = [", ".join(letters[:1] + words[:1])]
        found.metavar = self.values.get(action.dest, action.metavar)
        found.help = self.texts.get(action.dest) or re.split(r"[;(:,]|\. ", action.help or "")[0].strip()
        return found


def likely(name: str, known: list[str], least: float = 0.7) -> str:
    """A question that suggests the name most like an unknown one; "" without a similar name."""
    near = difflib.get_close_matches(name, known, 1, least)
    return f"; did you mean {near[0]}?" if near else ""


def with_flag(message: str, flags: Mapping[str, str]) -> str:
    """The message of an error or a warning, with options by their flags, not as in Python."""
    names, colon, rest = message.partition(":")
    return ", ".join(flags.get(name, name) for name in names.split(", ")) + colon + rest


def program_of(prog: str) -> str:
    """The name of the program: "oxillama" of "oxillama run", "benchmarks" of "python -m benchmarks load"."""
    return prog.removeprefix("python -m ").split()[0]


def run_program(program: str, job: Callable[[], int]) -> int:
    """Runs the job of a process; returns its exit code, or the exit code of the error that ended the job."""
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
