"""Compiling a grammar checks the deadline, whatever the grammar is written in."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from oxillama.base.deadline import DeadlineExceeded, deadline
from oxillama.text.grammar import Grammar
from oxillama.text.grammar.json_schema import JsonSchemaCompiler
from oxillama.text.grammar.lark import parse_lark

SCHEMA = {"type": "object", "properties": {f"p{i}": {"enum": [i, f"v{i}"]} for i in range(300)}}

KINDS: dict[str, Callable[[], object]] = {
    "schema": lambda: JsonSchemaCompiler().compile(SCHEMA),
    "whole schema": lambda: Grammar.from_json_schema(SCHEMA),
    "gbnf": lambda: Grammar.parse('root ::= "a" | b\nb ::= "b" root'),
    "lark": lambda: parse_lark('start: "a" | b\nb: "b" start'),
}


@pytest.mark.parametrize("kind", KINDS)
def test_compiling_ends_at_the_deadline(kind: str) -> None:
    KINDS[kind]()
    with deadline(0.0), pytest.raises(DeadlineExceeded, match=r"longer than 0 s"):
        time.sleep(0.001)
        KINDS[kind]()
