"""The sandbox of chat templates: Jinja's immutable sandbox with a budget of time and of work.

Before a template runs, `guards` are put into its syntax tree: each turn of a loop, each call, and each
operation that can make large values of small ones is charged to the `budget` first. Of the methods of
strings, lists and dicts, and of Jinja's filters, a template may use those listed here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from types import BuiltinMethodType
from typing import Any, cast

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from oxillama.chat.budget import binop_cost, current_budget, filter_cost, method_cost
from oxillama.chat.guards import GUARDS, GuardInserter, finalize, ticking, walked

# What a template may use; anything that is missing fails when the template is compiled.
_FILTERS = [
    "abs",
    "attr",
    "capitalize",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
]
_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(
        [
            "capitalize",
            "casefold",
            "count",
            "endswith",
            "find",
            "format",
            "index",
            "isalnum",
            "isalpha",
            "isascii",
            "isdecimal",
            "isdigit",
            "islower",
            "isnumeric",
            "isspace",
            "istitle",
            "isupper",
            "join",
            "lower",
            "lstrip",
            "partition",
            "removeprefix",
            "removesuffix",
            "replace",
            "rfind",
            "rindex",
            "rpartition",
            "rsplit",
            "rstrip",
            "split",
            "splitlines",
            "startswith",
            "strip",
            "swapcase",
            "title",
            "upper",
        ]
    ),
    dict: frozenset(["copy", "get", "items", "keys", "values"]),
    list: frozenset(["copy", "count", "index"]),
    tuple: frozenset(["count", "index"]),
}
# Filters that hand on what they were given, or a part of it, without a copy.
_FREE_FILTERS = frozenset(
    [
        "abs",
        "attr",
        "count",
        "d",
        "default",
        "first",
        "float",
        "int",
        "items",
        "last",
        "length",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "round",
        "safe",
        "select",
        "selectattr",
        "sum",
    ]
)


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks text for training; to us it is its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a budget and with nothing in it that is not known to be harmless."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants are worked out under the budget, not while compiling
            finalize=finalize,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        known = self.filters
        self.filters = {name: _budgeted(name, known[name]) for name in _FILTERS}
        self.filters["tojson"] = _tojson
        self.filters.update(GUARDS)
        self.tests = {name: _walking(cast(Callable[..., Any], test)) for name, test in self.tests.items()}
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: _strftime(clock(), format)

    def compile_guarded(self, source: str) -> Template:
        """Compile a template with guards in it; see the module's text."""
        tree = GuardInserter().visit(self.parse(source))
        return self.template_class.from_code(self, self.compile(tree), self.make_globals(None))

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = current_budget.get()
        size = budget.size((args, kwargs))
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(method, BuiltinMethodType) and owner is not None:
            name = method.__name__
            if name not in _METHODS.get(type(owner), ()):
                raise SecurityError(f"{type(owner).__name__}.{name} is not available to templates")
            if isinstance(owner, str):
                size = method_cost(owner, name, args, size)
            else:
                budget.size(owner)
                size = len(owner)
        budget.spend(1 + size)
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        current_budget.get().spend(1 + binop_cost(operator, left, right))
        return super().call_binop(context, operator, left, right)


def _budgeted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays for its arguments, and for what it makes of them, before it runs."""
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0  # context or environment comes first

    def run(*args: Any, **kwargs: Any) -> Any:
        budget = current_budget.get()
        size = budget.size((args[skip:], kwargs))
        budget.spend(1 if name in _FREE_FILTERS else 1 + size + filter_cost(name, args[skip:], kwargs))
        result = function(*args, **kwargs)
        return list(ticking(result)) if isinstance(result, Iterator) else result

    if skip:
        run.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return run


def _walking(test: Callable[..., Any]) -> Callable[..., Any]:
    skip = 1 if hasattr(test, "jinja_pass_arg") else 0

    def run(*args: Any, **kwargs: Any) -> Any:
        current_budget.get().spend(1)
        for value in args[skip:]:
            walked(value)
        return test(*args, **kwargs)

    if skip:
        run.jinja_pass_arg = test.jinja_pass_arg  # type: ignore[attr-defined]
    return run


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= 16):
        raise SecurityError(f"tojson: expected an indent from 0 to 16, got {indent!r}")
    budget = current_budget.get()
    budget.spend(budget.size((value, separators)) * (2 + (indent or 0)))
    return json.dumps(
        value,
        ensure_ascii=bool(ensure_ascii),
        indent=indent,
        separators=separators,
        sort_keys=bool(sort_keys),
    )


def _raise_exception(message: Any) -> None:
    raise Refused(str(message)[:1000])


class Refused(TemplateError):
    """The template itself rejects the messages."""


def _strftime(now: datetime, format: str) -> str:
    if not isinstance(format, str) or len(format) > 100 or re.search(r"%[^A-Za-z%]*\d", format):
        raise SecurityError("strftime_now: expected a short format without widths")
    return now.strftime(format)
