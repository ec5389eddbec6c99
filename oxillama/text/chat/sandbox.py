"""The sandbox of chat templates: Jinja's immutable sandbox, a limit of size, and checks of the deadline.

A syntax transformer wraps what a loop iterates over and what an assignment keeps. So a loop without output
checks the deadline, too, and no variable grows beyond `MAX_OUTPUT`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from oxillama.base.deadline import DeadlineExceeded
from oxillama.text.tokenizer.escapes import ESCAPE, QUOTE

MAX_OUTPUT = 1 << 26
"""Characters of a prompt; characters or elements of a value that a template keeps or repeats."""

MAX_NODES = 30_000
"""Nodes of a template's parse tree."""

MAX_DEPTH = 100
"""Levels of a template's parse tree."""

MAX_BITS = 4096
"""Bits of a product or power of integers."""

STEP = 16
"""Turns of a loop between two checks of the deadline."""

_OF_DICTS = frozenset(dir(dict))
"""Names of attributes of a dict, which come before its members."""

_ESCAPE_IN_JSON = re.compile(rf"(?<!\\)((?:\\\\)*)\\u({ord(ESCAPE):04x}|{ord(QUOTE):04x})")

_LOOP, _KEEP = ":loop", ":keep"
"""Names of the two filters that the transformer inserts. A template cannot write a name with a colon."""


class Refused(TemplateError):
    """The template itself rejects the messages, by `raise_exception`."""


class Environment(ImmutableSandboxedEnvironment):
    """The environment of `transformers`' chat templates in the sandbox.

    Args:
        clock: returns the current time, for `strftime_now`.
    """

    intercepted_binops: frozenset[str] = frozenset(("*", "**"))

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._safe: dict[tuple[type, str], bool] = {}
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants are evaluated under the deadline, not at compile time
            finalize=_finalize,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self.filters.update({"tojson": _tojson, _LOOP: _TimedLoop, _KEEP: check_size})
        self.globals.clear()
        self.globals.update(
            cycler=Cycler,
            dict=dict,
            joiner=Joiner,
            namespace=Namespace,
            raise_exception=_raise_exception,
            range=safe_range,
            strftime_now=lambda format: clock().strftime(format),
        )

    def compile_checked(self, source: str) -> Template:
        """Compile a template with checks in its loops and assignments.

        Raises TemplateSyntaxError, and other errors for a template that is nested too deeply.
        """
        tree = self.parse(source)
        _check_tree(tree)
        code = self.compile(cast(nodes.Template, _CheckInserter().visit(tree)))
        return self.template_class.from_code(self, code, self.make_globals(None))

    def rendered(self, template: Template, values: Mapping[str, Any], seconds: float) -> str:
        """The text that a template writes.

        Raises DeadlineExceeded after ``seconds``, SecurityError beyond `MAX_OUTPUT` characters, Refused, and
        any error that the template's program comes to.
        """
        pieces, length = [], 0
        token = _END.set((time.monotonic() + seconds, seconds))
        try:
            for piece in template.generate(values):
                length += len(piece)
                _refuse_beyond(MAX_OUTPUT, length)
                pieces.append(piece)
        finally:
            _END.reset(token)
        return "".join(pieces)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As Jinja's sandbox, which spends most of a rendering here: the answer for a type is kept."""
        kind = type(obj)
        if kind is dict and attribute not in _OF_DICTS:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if attribute in ("format", "format_map"):  # Jinja replaces these methods of strings
            return super().getattr(obj, attribute)
        is_safe = self._safe.get((kind, attribute))
        if is_safe is None:
            is_safe = self._safe[kind, attribute] = self.is_safe_attribute(obj, attribute, None)
        if is_safe:
            try:
                return getattr(obj, attribute)
            except AttributeError:
                pass
        return super().getattr(obj, attribute)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        _check_time()
        for value in args:
            check_size(value)
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length(), right.bit_length()
            _refuse_beyond(MAX_BITS, sum(bits) if operator == "*" else bits[0] * right if bits[0] > 1 else 0)
        for many, times in ((left, right), (right, left)):
            if operator == "*" and isinstance(times, int) and hasattr(many, "__len__"):
                _refuse_beyond(MAX_OUTPUT, len(many) * times)
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks text for training; rendering writes its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _CheckInserter(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _LOOP, node)
        return node

    def visit_Assign(self, node: nodes.Assign) -> nodes.Node:
        self.generic_visit(node)
        node.node = _filtered(node.node, _KEEP, node)
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = _filtered(node.filter, _KEEP, node)
        return node


class _TimedLoop:
    """What a `for` iterates over, with checks of the deadline before items."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)  # type: ignore[arg-type]  # TypeError for a generator: Jinja lists it then

    def __iter__(self) -> Iterator[Any]:
        for i, value in enumerate(self._values):
            if i % STEP == 0:
                _check_time()
            yield value


_END: ContextVar[tuple[float, float]] = ContextVar("oxillama end of a rendering")
"""The moment by `time.monotonic` at which the rendering of this context must be done; the seconds allowed."""


def _check_time() -> None:
    end, seconds = _END.get()
    if time.monotonic() > end:
        raise DeadlineExceeded(f"it took longer than {seconds:g} s")


def check_size(value: Any) -> Any:
    """Return a value that has at most `MAX_OUTPUT` characters or elements; SecurityError for another."""
    if isinstance(value, (str, list, tuple, dict)):
        _refuse_beyond(MAX_OUTPUT, len(value))
    return value


def _filtered(value: Any, name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=node.lineno)


def _check_tree(tree: nodes.Node) -> None:
    count, level = 0, [tree]
    for _ in range(MAX_DEPTH):
        count += len(level)
        if count > MAX_NODES:
            raise TemplateSyntaxError(f"expected up to {MAX_NODES} nodes, got more", level[0].lineno)
        level = [child for node in level for child in node.iter_child_nodes()]
        if not level:
            return
    raise TemplateSyntaxError(f"expected up to {MAX_DEPTH} levels of syntax, got more", level[0].lineno)


def _refuse_beyond(most: int, size: int) -> None:
    if size > most:
        raise SecurityError(f"expected a value of size up to {most}, got {size}")


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    """The value that is written. Jinja does not call a function of the context at compile time."""
    _check_time()
    return value


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_list_of,
    )
    return _ESCAPE_IN_JSON.sub(_own_escape, text) if ensure_ascii else text


def _own_escape(found: re.Match[str]) -> str:
    return found.group(1) + chr(int(found.group(2), 16))


def _list_of(value: Any) -> list[Any]:
    """A list of an iterator's items: `map` and `select` return iterators here, and arrays in llama.cpp."""
    if not isinstance(value, Iterator):
        raise TypeError(f"a {type(value).__name__} has no JSON form")
    return list(_TimedLoop(value))


def _raise_exception(message: Any) -> NoReturn:
    raise Refused(str(message)[:1000])
