"""The sandbox chat templates run in: Jinja's immutable one, with a budget of time and of work.

Before a template runs, its syntax tree is rewritten so that each turn of a loop, each call, and each
operation that can make something large out of something small reports to the budget first; a loop that
prints nothing is stopped like one that prints too much. Of the methods of strings, lists and dicts, and
of Jinja's filters, a template may use those listed here.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from types import BuiltinMethodType
from typing import Any, cast

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

_MAX_BITS = 4096  # of an integer

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
_SPLITTING = frozenset(("split", "rsplit", "splitlines"))


class Budget:
    """What one rendering may still spend."""

    def __init__(self, seconds: float, work: int) -> None:
        self._deadline = time.monotonic() + seconds
        self._seconds, self._left, self._work = seconds, work, work

    def spend(self, work: int = 1) -> None:
        self._left -= work
        if self._left < 0:
            raise OverBudget(f"more than {self._work} units of work")
        if time.monotonic() > self._deadline:
            raise OverBudget(f"more than {self._seconds:g} seconds")

    def add(self, work: int) -> None:
        self._left += work
        self._work += work

    def size(self, value: Any) -> int:
        """Characters and elements in a value, shared parts counted each time; the walk itself costs time."""
        if isinstance(value, str):
            return len(value)
        total, pending, steps = 0, [value], 0
        while pending:
            item = pending.pop()
            steps += 1
            if not steps & 0xFF:
                self.spend(0)
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, dict):
                pending += item.keys()
                pending += item.values()
            elif isinstance(item, (list, tuple)):
                pending += item
            total += 1
        return total


class OverBudget(Exception):
    """A rendering was stopped; says what it took too much of."""


current_budget: ContextVar[Budget] = ContextVar("budget")


# --------------------------------------------------------------------------- guards, run by the template


def _tick(cost: int) -> bool:
    current_budget.get().spend(1 + cost)
    return True


def _each(values: Any) -> Any:
    """Iterate, each element a unit of work; what has a length keeps it."""
    if isinstance(values, (str, list, tuple, dict, range, Undefined)):
        current_budget.get().spend(1)
        return values
    return _ticking(iter(values))


def _ticking(values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        current_budget.get().spend(1)
        yield value


def _walked(value: Any) -> Any:
    """Let a value into a comparison: the walk costs time where comparing would."""
    if isinstance(value, (list, tuple, dict)):
        current_budget.get().size(value)
    return value


def _sliced(value: Any) -> Any:
    if hasattr(value, "__len__"):
        current_budget.get().spend(len(value))
    return value


def _concat(values: Sequence[Any]) -> str:
    budget = current_budget.get()
    budget.spend(budget.size(values))
    return "".join(map(str, values))


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    budget = current_budget.get()
    budget.spend(budget.size(value))
    return value


_GUARDS: dict[str, Callable[..., Any]] = {
    ":tick": _tick,
    ":each": _each,
    ":walked": _walked,
    ":sliced": _sliced,
    ":concat": _concat,
}


class _Guard(NodeTransformer):
    """Put guards into a syntax tree. They are filters whose names no template can write."""

    def _guarded(self, name: str, node: nodes.Expr) -> nodes.Expr:
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)

    def _count_turns(self, node: Any) -> nodes.Node:
        """Charge each run of a body for its literal text."""
        self.generic_visit(node)
        cost = sum(len(data.data) for part in node.body for data in _template_data(part))
        tick = self._guarded(":tick", nodes.Const(cost, lineno=node.lineno))
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        result: nodes.Node = node
        return result

    visit_Macro = visit_CallBlock = visit_Block = visit_FilterBlock = visit_AssignBlock = _count_turns

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self._count_turns(node)
        node.iter = self._guarded(":each", cast(nodes.Expr, node.iter))
        if node.test is not None:
            tick = self._guarded(":tick", nodes.Const(0, lineno=node.lineno))
            node.test = nodes.And(tick, node.test, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._guarded(":concat", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = self._guarded(":walked", node.expr)
        for operand in node.ops:
            operand.expr = self._guarded(":walked", operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = self._guarded(":sliced", node.node)
        return node


def _template_data(node: nodes.Node) -> Iterator[nodes.TemplateData]:
    if isinstance(node, nodes.TemplateData):
        yield node
    yield from node.find_all(nodes.TemplateData)


# --------------------------------------------------------------------------- the environment


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
            finalize=_finalize,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        known = self.filters
        self.filters = {name: _budgeted(name, known[name]) for name in _FILTERS}
        self.filters["tojson"] = _tojson
        self.filters.update(_GUARDS)
        self.tests = {name: _walking(cast(Callable[..., Any], test)) for name, test in self.tests.items()}
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: _strftime(clock(), format)

    def compile_guarded(self, source: str) -> Template:
        """Compile a template with guards in it; see the module's text."""
        tree = _Guard().visit(self.parse(source))
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
                size = _method_cost(owner, name, args, size)
            else:
                budget.size(owner)
                size = len(owner)
        budget.spend(1 + size)
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        current_budget.get().spend(1 + _binop_cost(operator, left, right))
        return super().call_binop(context, operator, left, right)


def _method_cost(text: str, name: str, args: tuple[Any, ...], size: int) -> int:
    if name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        return len(text) + text.count(args[0]) * len(args[1])
    if name == "join":
        return size + len(text) * size
    if name == "format":
        if re.search(r"\d{4}|\{[^}]*\{", text):
            raise SecurityError(
                "a format may not name a width of more than three digits, or take it from a value"
            )
        return len(text) + text.count("{") * (1000 + size)
    return 8 * len(text) if name in _SPLITTING else len(text)


def _binop_cost(operator: str, left: Any, right: Any) -> int:
    """What an operation makes, in characters, elements or bits; refuses what has no sensible size."""
    sizes = [len(v) if isinstance(v, (str, list, tuple)) else None for v in (left, right)]
    if operator == "*" and sizes != [None, None]:
        times = right if sizes[1] is None else left
        return (sizes[0] or sizes[1] or 0) * max(0, times if isinstance(times, int) else 0)
    if operator == "+":
        return sum(size or 0 for size in sizes)
    if operator == "%" and isinstance(left, str):
        if re.search(r"\d{4}|\*", left):
            raise SecurityError("a format may not name a width of more than three digits")
        return current_budget.get().size((left, right)) + 1000 * left.count("%")
    bits = [abs(v).bit_length() if isinstance(v, int) else 0 for v in (left, right)]
    if operator == "**" and isinstance(right, int) and bits[0] * abs(right) > _MAX_BITS:
        raise SecurityError(f"an integer of more than {_MAX_BITS} bits")
    if operator == "*" and sum(bits) > _MAX_BITS:
        raise SecurityError(f"an integer of more than {_MAX_BITS} bits")
    return 0


def _budgeted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays for its arguments, and for what it makes of them, before it runs."""
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0  # context or environment comes first

    def run(*args: Any, **kwargs: Any) -> Any:
        budget = current_budget.get()
        size = budget.size((args[skip:], kwargs))
        budget.spend(1 if name in _FREE_FILTERS else 1 + size + _filter_cost(name, args[skip:], kwargs))
        result = function(*args, **kwargs)
        return list(_ticking(result)) if isinstance(result, Iterator) else result

    if skip:
        run.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return run


def _filter_cost(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    value = args[0] if args else None
    if name == "join" and isinstance(value, (list, tuple, dict, str)):
        separator = args[1] if len(args) > 1 else kwargs.get("d", "")
        return len(value) * len(str(separator))
    if name == "replace" and len(args) > 2:
        return str(value).count(str(args[1])) * len(str(args[2]))
    if name == "indent":
        width = args[1] if len(args) > 1 else kwargs.get("width", 4)
        return (str(value).count("\n") + 1) * (width if isinstance(width, int) else len(str(width)))
    return 0


def _walking(test: Callable[..., Any]) -> Callable[..., Any]:
    skip = 1 if hasattr(test, "jinja_pass_arg") else 0

    def run(*args: Any, **kwargs: Any) -> Any:
        current_budget.get().spend(1)
        for value in args[skip:]:
            _walked(value)
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
