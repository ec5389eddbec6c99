"""The sandbox of chat templates: Jinja's immutable sandbox; every operation is charged before it runs.

What a template may use is in the table of `operations`; `guards` cover what Jinja translates to plain Python.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn, cast

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace

from oxillama.chat.budget import OBJECT, PLAIN, STEP, current_budget
from oxillama.chat.guards import GUARDS, finalize, parse
from oxillama.chat.operations import OF_TEXTS, TABLE, attribute_of, names

MAX_TIME_FORMAT = 100  # characters of the format of `strftime_now`


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks text for training; to us it is its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a budget and with nothing in it that is not in the table."""

    intercepted_binops: frozenset[str] = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants are worked out under the budget, not while compiling
            finalize=finalize,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        filters, tests = {**self.filters, "tojson": _tojson}, self.tests
        self.filters = {name: _charged(f"|{name}", filters[name]) for name in names("|")}
        self.tests = {
            name: _charged(f"is {name}", cast(Callable[..., Any], tests[name])) for name in names("is ")
        }
        self.filters.update(GUARDS)
        functions: dict[str, Callable[..., Any]] = {
            "dict": _dict,
            "namespace": lambda *args, **kwargs: Namespace(_dict(*args, **kwargs)),
            "raise_exception": _raise_exception,
            "range": safe_range,
            "strftime_now": lambda format: _strftime(clock(), format),
        }
        self.globals.clear()
        self.globals.update(functions)
        self._costs = {function: TABLE[f"{name}()"] for name, function in functions.items()}

    def compile_guarded(self, source: str) -> Template:
        """Compile a template with guards in it; see the module's text."""
        code = self.compile(parse(self, source))
        return self.template_class.from_code(self, code, self.make_globals(None))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if type(obj) is Namespace:
            return not attr.startswith("_")
        return attribute_of(obj, attr) is not None

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(argument) is not int:
            budget = current_budget.get()
            budget.spend(TABLE["[]"](budget, obj, argument))
        return super().getitem(obj, argument)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("_loop_vars", None)  # for functions that take the context; none here does
        kwargs.pop("_block_vars", None)
        budget = current_budget.get()
        kind = type(function)
        budget.spend(STEP)
        if kind is Macro or kind is LoopContext:
            budget.spend(OBJECT * (len(args) + len(kwargs)))
            budget.enter()
            result = context.call(function, *args, **kwargs)
            budget.leave()
            return budget.made(result)
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        if isinstance(method, (BuiltinMethodType, MethodType)):
            owner, name = method.__self__, method.__name__
            cost = attribute_of(owner, name)
            if cost is None:
                raise SecurityError(f"{type(owner).__name__}.{name} is not available to templates")
            budget.spend(cost(budget, owner, *args, **kwargs))
        elif kind not in PLAIN:  # Python says that data cannot be called
            cost = self._costs.get(function)
            if cost is None:
                raise SecurityError(f"{kind.__name__} is not a function")
            budget.spend(cost(budget, *args, **kwargs))
        return budget.made(context.call(function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = current_budget.get()
        budget.spend(STEP + TABLE[operator](budget, left, right))
        return budget.made(self.binop_table[operator](left, right))

    def call_filter(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Filters that are named by a value: `map` calls them. A guard has no such name."""
        if name in GUARDS:
            raise SecurityError(f"no filter named {name!r}")
        return super().call_filter(name, *args, **kwargs)


def _charged(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or a test that is charged before it runs."""
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0  # context or environment comes first
    cost, text = TABLE[name], name in OF_TEXTS

    def run(*args: Any, **kwargs: Any) -> Any:
        budget = current_budget.get()
        budget.spend(STEP)
        if text and len(args) > skip:
            args = (*args[:skip], budget.text(args[skip]), *args[skip + 1 :])
        budget.spend(cost(budget, *args[skip:], **kwargs))
        result = function(*args, **kwargs)
        return budget.made(list(result) if isinstance(result, Iterator) else result)

    if skip:
        run.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return run


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=bool(ensure_ascii),
        indent=indent,
        separators=separators,
        sort_keys=bool(sort_keys),
    )


def _dict(*mappings: dict[Any, Any], **named: Any) -> dict[Any, Any]:
    for mapping in mappings:
        if type(mapping) is not dict:  # pairs could have any keys
            raise SecurityError(f"dict: expected a dict, got {type(mapping).__name__}")
    return dict(*mappings, **named)


def _raise_exception(message: Any) -> NoReturn:
    raise Refused(current_budget.get().text(message)[:1000])


class Refused(TemplateError):
    """The template itself rejects the messages."""


def _strftime(now: datetime, format: str) -> str:
    if not isinstance(format, str) or len(format) > MAX_TIME_FORMAT or re.search(r"%[^A-Za-z%]*\d", format):
        raise SecurityError(f"strftime_now: expected up to {MAX_TIME_FORMAT} characters without widths")
    return now.strftime(format)
