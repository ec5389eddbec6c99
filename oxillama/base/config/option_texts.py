"""Texts about options that few programs read: documentation, arguments, errors for wrong names."""

from __future__ import annotations

import difflib
import inspect
import math
import reprlib
import textwrap
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from oxillama.base.config import checks
from oxillama.base.config.option import NUMBERS, Option, declared
from oxillama.errors import ConfigError

ARGUMENTS = {"int": "N", "float": "X", "str": "TEXT", "AnyPath": "FILE"}
ARGUMENTS |= {"tuple[str, ...]": "TEXT", "tuple[int, ...]": "N"}
"""What stands for a value on the command line, by the type of the field."""

STARTS: dict[float, str] = {-math.inf: "(-inf", -checks.INT_MAX: "(-inf", checks.ABOVE_ZERO: "(0"}
ENDS: dict[float, str] = {
    math.inf: "inf)",
    checks.INT_MAX: "inf)",
    checks.BELOW_ONE: "1)",
    checks.MAX_SEED: "2^64)",
}
"""Bounds of an interval that are not shown as they are: what is beyond 2^31 is as good as infinite."""

INDENT: Any = {"initial_indent": "    ", "subsequent_indent": " " * 8}


def interval(option: Option) -> str:
    """The range of a number as an interval, e.g. "(0, 1]"; "" for what is no number."""
    if option.kind not in NUMBERS:
        return ""
    low = STARTS.get(option.low, f"[{option.low:.20g}")
    return f"{low}, {ENDS.get(option.high, f'{option.high:.20g}]')}"


def help_text(option: Option) -> str:
    """The help, and the range of a number."""
    return f"{option.help}. {interval(option)}" if interval(option) else option.help


def python_text(option: Option) -> str:
    """The help with what callers in Python may give."""
    return f"{option.help} ({option.python})" if option.python else option.help


def placeholder(option: Option) -> str:
    """What stands for the value on the command line; "" for a switch, and for other types."""
    usual = ARGUMENTS.get(option.kind, "")
    if option.choices:
        usual = "|".join([*option.choices, "FILE"] if option.kind == "AnyPath" else option.choices)
    return option.argument or usual


def repeats(option: Option) -> bool:
    """Whether the argument can be repeated."""
    return option.kind.startswith("tuple[") if option.is_list is None else option.is_list


def documented(written: str, cls: type) -> str:
    """The docstring of a class of options: what is written there, and its fields."""
    text, _, raises = inspect.cleandoc(written).partition("Raises:\n")
    lines = [text.strip(), "", "Attributes:"]
    for name, each in declared(cls).items():
        text = help_text(replace(each, help=python_text(each)))
        lines += textwrap.wrap(f"{name} ({each.type}): {text}".rstrip(), 110, **INDENT)
    return "\n".join([*lines, "", "Raises:", raises.rstrip()] if raises else lines)


def no_option(name: str, *classes: type) -> ConfigError:
    """The error for a name that is no option, with the option that is likely to be meant, by its name or its
    names elsewhere."""
    known: dict[str, str] = {}
    for cls in classes:
        for option_name, each in declared(cls).items():
            others = [flag.lstrip("-").replace("-", "_") for flag in each.flags.split()]
            known |= dict.fromkeys([*each.names.split(), *others], option_name)
    known |= {option_name: option_name for cls in classes for option_name in declared(cls)}
    return ConfigError(f"{name}: is no option{did_you_mean(name, known)}")


def did_you_mean(name: str, known: Mapping[str, str]) -> str:
    """The end of an error for ``name``: what the name most like it in ``known`` stands for; "" for none."""
    near = difflib.get_close_matches(name, known, 1) or difflib.get_close_matches(name.lower(), known, 1, 0.5)
    return f"; did you mean {known[near[0]]}?" if near else ""


def call_text(options: Any) -> str:
    """A call with the options that differ from their defaults; long values are cut."""
    values, known = vars(options), declared(type(options))
    shown = [
        f"{each.name}={reprlib.repr(values[each.name])}"
        for each in fields(options)
        if each.repr and not _is_same(values[each.name], known[each.name].default)
    ]
    return f"{type(options).__name__}({', '.join(shown)})"


def _is_same(value: Any, default: Any) -> bool:
    """Whether a value is the default; False for arrays, which have no single truth value."""
    return value is default or (type(value) is type(default) and bool(value == default))
