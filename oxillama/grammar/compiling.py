"""Where grammars for requests are compiled: in the thread that asks, unless its context has a compiler."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from oxillama.grammar.grammar import Grammar

Compiler = Callable[..., Grammar]
"""Is called with a function of a module, which makes a grammar, and its arguments."""

COMPILER: ContextVar[Compiler | None] = ContextVar("oxillama grammar compiler", default=None)


def compiled_by(function: Callable[..., Grammar], *arguments: Any) -> Grammar:
    """The grammar that a function makes. Raises what it raises, and what the compiler of the context does."""
    compiler = COMPILER.get()
    return function(*arguments) if compiler is None else compiler(function, *arguments)
