"""Where grammars of requests are compiled: in the calling thread, unless the context sets a compiler."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from oxillama.base.config.sampler import SamplerConfig
from oxillama.errors import GrammarError
from oxillama.text.grammar.grammar import Grammar
from oxillama.text.grammar.python_types import schema_of_type

Compiler = Callable[..., Grammar]
"""Called with a module-level function that makes a grammar, and the function's arguments."""

COMPILER: ContextVar[Compiler | None] = ContextVar("oxillama grammar compiler", default=None)


def compiled_by(function: Callable[..., Grammar], *arguments: Any) -> Grammar:
    """The grammar that ``function`` makes, by the context's compiler if there is one; raises their errors."""
    compiler = COMPILER.get()
    return function(*arguments) if compiler is None else compiler(function, *arguments)


def key_of(config: SamplerConfig) -> tuple[str, bool, object]:
    """The cache key of a grammar: the config field, ``any_order``, and the field's value in hashable form."""
    name = config.constraint or ""
    value = getattr(config, name)
    try:
        hash(value)
    except TypeError:  # a mapping, or annotations that hold one
        schema = value if isinstance(value, Mapping) else schema_of_type(value)
        try:
            text = json.dumps(schema, default=repr)
            return f"{name} of {type(value).__name__}", config.any_order, text
        except RecursionError:
            raise GrammarError("#: nested too deeply") from None
        except Exception as error:  # a value within itself, an integer of thousands of digits, a class's repr
            raise GrammarError(f"schema: expected JSON values, got others: {error}") from error
    return name, config.any_order, value
