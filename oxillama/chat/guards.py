"""Checks before and while a template is compiled, and guards in its syntax tree that charge its work.

Jinja's compiler takes time that grows with the tokens and, in places, with the depth of nesting, so both are
bounded before it runs. A guard is a filter whose name no template can write. Each body of statements begins
with one that charges the body's nodes and literal text; comparisons, slices, keys of dicts, `~` and filled
blocks are guarded each, because Jinja translates them to plain Python.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from jinja2 import Environment, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

from oxillama.chat.budget import NODE, NUMBERS, PLAIN, STEP, current_budget
from oxillama.chat.operations import TABLE

MAX_TOKENS = 16_000  # of a template, blanks and literal text counted as tokens
MAX_NUMBER = 40  # characters of a number
MAX_NAME = 256  # characters of a name
MAX_NESTING = 100  # nested statements and expressions while parsing; a pair of brackets counts three times
MAX_DEPTH = 100  # of the syntax tree

_NODE_NAMES = """
Template TemplateData Output For Break Continue If With Macro CallBlock FilterBlock Assign AssignBlock NSRef
Name Const Tuple List Dict Pair Keyword Call Filter Test CondExpr Compare Operand Getattr Getitem Slice Concat
Add Sub Mul Div FloorDiv Mod Pow Neg Pos Not And Or
"""
_NODES = frozenset(getattr(nodes, name) for name in _NODE_NAMES.split())
_BODIES: dict[type[nodes.Node], tuple[str, ...]] = {
    **dict.fromkeys((nodes.For, nodes.If), ("body", "else_")),
    **dict.fromkeys(
        (nodes.Template, nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock, nodes.With),
        ("body",),
    ),
}
_WEIGHTS = {nodes.Getattr: 6, nodes.Getitem: 6, nodes.Macro: 16, nodes.CallBlock: 16}
_COMPARISONS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "eq": ("==", operator.eq),
    "ne": ("!=", operator.ne),
    "lt": ("<", operator.lt),
    "lteq": ("<=", operator.le),
    "gt": (">", operator.gt),
    "gteq": (">=", operator.ge),
    "in": ("in", lambda value, values: value in values),
    "notin": ("not in", lambda value, values: value not in values),
}


# --------------------------------------------------------------------------- before compiling


def parse(environment: Environment, source: str) -> nodes.Template:
    """The syntax tree of a template, with guards. Raises TemplateSyntaxError or SecurityError."""
    _check_tokens(environment, source)
    tree = _Parser(environment, source).parse()
    _check_tree(tree)
    return cast(nodes.Template, _GuardInserter().visit(tree))


def _check_tokens(environment: Environment, source: str) -> None:
    for count, (line, kind, text) in enumerate(environment.lex(source)):
        if count >= MAX_TOKENS:
            raise TemplateSyntaxError(f"expected up to {MAX_TOKENS} tokens, got more", line)
        limit = MAX_NUMBER if kind in ("integer", "float") else MAX_NAME if kind == "name" else None
        if limit is not None and len(text) > limit:
            raise TemplateSyntaxError(f"expected up to {limit} characters in a {kind}, got {len(text)}", line)


def _deeper(method: Callable[..., Any]) -> Callable[..., Any]:
    def run(parser: _Parser, *args: Any, **kwargs: Any) -> Any:
        parser.depth += 1
        if parser.depth > MAX_NESTING:
            parser.fail(f"expected up to {MAX_NESTING} nested statements and expressions, got more")
        result = method(parser, *args, **kwargs)
        parser.depth -= 1
        return result

    return run


class _Parser(Parser):
    """Jinja's parser, which recurses in these methods only, with a depth that does not depend on Python's."""

    depth = 0
    parse_statement = _deeper(Parser.parse_statement)
    parse_condexpr = _deeper(Parser.parse_condexpr)
    parse_not = _deeper(Parser.parse_not)
    parse_unary = _deeper(Parser.parse_unary)


def _check_tree(tree: nodes.Node) -> None:
    level: list[nodes.Node] = [tree]
    for _ in range(MAX_DEPTH):
        for node in level:
            if type(node) not in _NODES:
                name = type(node).__name__
                raise TemplateSyntaxError(f"{name} is not available to templates", node.lineno)
        level = [child for node in level for child in node.iter_child_nodes()]
        if not level:
            return
    raise TemplateSyntaxError(f"expected up to {MAX_DEPTH} levels of syntax, got more", level[0].lineno)


# --------------------------------------------------------------------------- guards


def _tick(cost: int) -> bool:
    current_budget.get().spend(cost)
    return True


def _each(values: Any) -> Any:
    """What a loop runs over: plain data, so a turn is only what its body does."""
    if type(values) not in PLAIN:
        raise SecurityError(f"expected plain data to loop over, got {type(values).__name__}")
    return values


def _compare(left: Any, name: str, right: Any) -> Any:
    symbol, compare = _COMPARISONS[name]
    budget = current_budget.get()
    budget.spend(STEP + TABLE[symbol](budget, left, right))
    return compare(left, right)


def _number(value: Any) -> Any:
    if type(value) not in NUMBERS:
        raise SecurityError(f"expected numbers in a chain of comparisons, got {type(value).__name__}")
    return value


def _key(value: Any) -> Any:
    budget = current_budget.get()
    budget.spend(TABLE["{}"](budget, value))
    return value


def _slice(values: Any, start: Any, stop: Any, step: Any) -> Any:
    budget = current_budget.get()
    part = slice(start, stop, step)
    budget.spend(STEP + TABLE["[:]"](budget, values, part))
    return values[part]


def _concat(values: list[Any]) -> str:
    budget = current_budget.get()
    texts = [budget.text(value) for value in values]
    budget.spend(sum(map(len, texts)))
    return cast(str, budget.made("".join(texts)))


def _made(value: str) -> Any:
    budget = current_budget.get()
    budget.spend(len(value))
    return budget.made(value)


@pass_context
def finalize(context: Context, value: Any) -> Any:
    """Text of a value that is written; with the context, so that it is not called while compiling."""
    budget = current_budget.get()
    text = budget.text(value)
    budget.spend(len(text))
    return text


GUARDS: dict[str, Callable[..., Any]] = {
    ":tick": _tick,
    ":each": _each,
    ":compare": _compare,
    ":number": _number,
    ":key": _key,
    ":slice": _slice,
    ":concat": _concat,
    ":made": _made,
}


class _GuardInserter(NodeTransformer):
    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        fields = _BODIES.get(type(node), ())
        costs = [_cost_of_body(node, field) for field in fields]
        result = super().visit(node, *args, **kwargs)
        for field, cost in zip(fields, costs, strict=True):
            body = getattr(node, field)
            if body or field == "body":
                body.insert(0, nodes.ExprStmt(_ticked(cost, node.lineno), lineno=node.lineno))
        return result

    def visit_For(self, node: nodes.For) -> nodes.Node:
        cost = _cost([node.test]) if node.test is not None else 0
        self.generic_visit(node)
        node.iter = _guarded(":each", cast(nodes.Expr, node.iter))
        if node.test is not None:
            node.test = nodes.And(_ticked(cost, node.lineno), node.test, lineno=node.lineno)
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = _guarded(":made", cast(Any, node.filter), line=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _guarded(":concat", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        if not (isinstance(node.key, nodes.Const) and isinstance(node.key.value, str)):
            node.key = _guarded(":key", node.key)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        part = node.arg
        if not isinstance(part, nodes.Slice):
            return node
        bounds = (bound or nodes.Const(None) for bound in (part.start, part.stop, part.step))
        return _guarded(":slice", node.node, *bounds)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        if len(node.ops) == 1:
            (operand,) = node.ops
            return _guarded(":compare", node.expr, nodes.Const(operand.op), operand.expr)
        node.expr = _guarded(":number", node.expr)
        for operand in node.ops:
            operand.expr = _guarded(":number", operand.expr)
        return node


def _guarded(name: str, node: nodes.Expr, *args: nodes.Expr, line: int | None = None) -> nodes.Filter:
    lineno = node.lineno if line is None else line
    return nodes.Filter(node, name, list(args), [], None, None, lineno=lineno)


def _ticked(cost: int, line: int) -> nodes.Expr:
    return _guarded(":tick", nodes.Const(cost, lineno=line))


def _cost_of_body(node: nodes.Node, field: str) -> int:
    defaults = node.defaults if field == "body" and isinstance(node, (nodes.Macro, nodes.CallBlock)) else []
    return 2 * NODE + _cost([*getattr(node, field), *defaults])  # an empty body has turns, too


def _cost(statements: Iterable[nodes.Node]) -> int:
    """Units for running statements once, without the bodies inside them, which charge themselves."""
    return sum(
        NODE * _WEIGHTS.get(type(node), 1) + (len(node.data) if isinstance(node, nodes.TemplateData) else 0)
        for statement in statements
        for node in _own_nodes(statement)
    )


def _own_nodes(node: nodes.Node) -> Iterator[nodes.Node]:
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(node.iter_child_nodes(exclude=_BODIES.get(type(node), ())))
