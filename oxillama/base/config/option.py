"""The declaration of an option, and what follows from it: its check, its range in words, its argument.

A class of options is a frozen dataclass with `Options` as its base; each of its fields is an `option`. The
command line, the server's table of names and `docs/options.md` are derived from `declared`, the keyword types
(`fields.pyi`) from the source.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeAlias, TypeVar

from oxillama.base.config import checks
from oxillama.base.lazy_import import lazy

documented: Callable[..., Any] = lazy("oxillama.base.config.option_texts:documented")
call_text: Callable[..., Any] = lazy("oxillama.base.config.option_texts:call_text")
no_option: Callable[..., Any] = lazy("oxillama.base.config.option_texts:no_option")

AnyPath: TypeAlias = str | os.PathLike[str]
"""A path, as users give it."""
Adapters: TypeAlias = Any
"""Adapters, as users give them: see `oxillama.base.config.adapters`."""

T = TypeVar("T")
Self = TypeVar("Self", bound="Options")

NUMBERS: dict[str, Callable[..., Any]] = {"int": checks.integer, "float": checks.number}
CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "bool": checks.boolean,
    "str": checks.encodable,
    "tuple[str, ...]": functools.partial(checks.texts, empty=False),
    "tuple[int, ...]": checks.token_ids,
    "Any": lambda name, value: value,
}
"""What checks a value, by the type of the field."""

DECLARED: dict[type, dict[str, Option]] = {}
"""What `declared` has found."""


@dataclass(eq=False, repr=False)
class Option:
    """How an option is declared. `declared` adds the name, the type and the default of the field.

    Attributes:
        help: what the option does.
        python: further values that callers in Python may give; the command line does not tell of them.
        low, high: the range of a number.
        choices: the texts that are allowed; for a path, the words that are no paths.
        check: takes the name and a value, and returns the value as the library keeps it, or raises
            ConfigError; for types that are not in `CHECKS`, or instead of their check.
        argument: the placeholder of the value on the command line, which says how the text is parsed; None
            for the placeholder of its type.
        is_list: whether the argument can be repeated; None for what the type says.
        is_read: whether the argument is the path of a file that has the value.
        flags: further names on the command line, with spaces between them.
        names: further names in the body of a request to the server.
        cli, server: whether the command line, and the body of a request, can set the option by its name.
    """

    help: str
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()
    check: Callable[[str, Any], Any] | None = None
    argument: str | None = None
    is_list: bool | None = None
    is_read: bool = False
    flags: str = ""
    names: str = ""
    cli: bool = True
    server: bool = True
    python: str = ""
    name: str = ""
    type: str = "Any"
    default: Any = None

    @property
    def kind(self) -> str:
        """The type of values other than None."""
        return self.type.removesuffix(" | None")

    @property
    def takes_none(self) -> bool:
        """Whether None is a value, and not for the check to decide about."""
        return self.default is None or (self.check is None and self.kind != self.type)

    @functools.cached_property
    def checked(self) -> Callable[[Any], Any]:
        """Checks a value, and returns the value as the library keeps it. Raises ConfigError."""
        check = functools.partial(self._check(), self.name)
        return (lambda value: None if value is None else check(value)) if self.takes_none else check

    def _check(self) -> Callable[[str, Any], Any]:
        if self.check is not None:
            return self.check
        if self.kind in NUMBERS:
            most = checks.FLOAT_MAX if self.kind == "float" else math.inf
            low, high = max(self.low, -most), min(self.high, most)
            return functools.partial(NUMBERS[self.kind], low=low, high=high)
        if self.kind == "AnyPath":
            return functools.partial(checks.path, words=self.choices)
        return functools.partial(checks.one_of, names=self.choices) if self.choices else CHECKS[self.kind]


def option(default: T, *, help: str, hash: bool = True, repr: bool = True, **more: Any) -> T:
    """A field of a class of options; ``more`` as for `Option`, ``hash`` and ``repr`` as for a field."""
    metadata = {"option": Option(help, **more)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, hash=hash, repr=repr, metadata=metadata)  # type: ignore[return-value]
    return field(default=default, hash=hash, repr=repr, metadata=metadata)


def declared(cls: type) -> dict[str, Option]:
    """The options of a class by their names, in order."""
    if cls not in DECLARED:
        DECLARED[cls] = {each.name: _declared(each) for each in fields(cls)}
    return DECLARED[cls]


def _declared(each: Field[Any]) -> Option:
    found = copy(each.metadata.get("option") or Option(""))
    found.name, found.type = each.name, str(each.type)
    found.default = each.default if each.default_factory is MISSING else each.default_factory()
    return found


class Options:
    """The base of the classes of options: checks each value as it is declared, then all values together."""

    def __init_subclass__(cls) -> None:
        cls.__doc__ = Documentation(cls.__doc__ or "")  # type: ignore[assignment]
        cls.__repr__ = Options.__repr__  # type: ignore[method-assign]  # a dataclass keeps it

    def __new__(cls: type[Self], *values: Any, **given: Any) -> Self:
        """An object without values. Raises ConfigError for a name that is no option."""
        for name in given:
            if name not in cls.__dataclass_fields__:  # type: ignore[attr-defined]
                raise no_option(name, cls)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        values = vars(self)
        for name, each in declared(type(self)).items():
            if values[name] is not each.default:
                values[name] = each.checked(values[name])
        self._check_together()

    def __repr__(self) -> str:
        return str(call_text(self))

    def _check_together(self) -> None:
        """Raises ConfigError for values that cannot be combined. May run again."""

    def _with(self: Self, given: Mapping[str, Any]) -> Self:
        """A copy with other values, of which only these are checked, and all together. Raises ConfigError."""
        known = declared(type(self))
        made = self._changed(**{name: known[name].checked(value) for name, value in given.items()})
        made._check_together()
        return made

    def _changed(self: Self, **values: Any) -> Self:
        """A copy with other values that have been checked."""
        made = object.__new__(type(self))
        vars(made).update(vars(self), **values)
        return made


class Documentation:
    """The docstring of a class of options: what is written there, and its fields, once somebody reads it."""

    def __init__(self, written: str) -> None:
        self.written = written

    def __get__(self, instance: object, owner: type) -> str:
        if "__match_args__" not in vars(owner):  # the dataclass is being made
            return self.written
        return str(documented(self.written, owner))
