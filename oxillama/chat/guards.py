"""Guards: steps that are put into the syntax tree of a template and report its work to the budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.runtime import Context, Undefined
from jinja2.visitor import NodeTransformer

from oxillama.chat.budget import current_budget


def _tick(cost: int) -> bool:
    current_budget.get().spend(1 + cost)
    return True


def _each(values: Any) -> Any:
    """Iterate, each element a unit of work; what has a length keeps it."""
    if isinstance(values, (str, list, tuple, dict, range, Undefined)):
        current_budget.get().spend(1)
        return values
    return ticking(iter(values))


def ticking(values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        current_budget.get().spend(1)
        yield value


def walked(value: Any) -> Any:
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
def finalize(context: Context, value: Any) -> Any:
    budget = current_budget.get()
    budget.spend(budget.size(value))
    return value


GUARDS: dict[str, Callable[..., Any]] = {
    ":tick": _tick,
    ":each": _each,
    ":walked": walked,
    ":sliced": _sliced,
    ":concat": _concat,
}


class GuardInserter(NodeTransformer):
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
