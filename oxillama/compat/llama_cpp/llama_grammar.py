"""Grammars by llama-cpp-python's names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from oxillama.text.grammar import Grammar, JsonSchemaCompiler

LLAMA_GRAMMAR_DEFAULT_ROOT = "root"

MOST_GRAMMARS = 32
"""The number of compiled schemas that are cached."""


class LlamaGrammar:
    """A grammar that a text must follow: GBNF, or from a JSON schema.

    Attributes:
        rules: a value for ``SamplerConfig.grammar``.

    Raises:
        GrammarError: the grammar is malformed, or the schema cannot be enforced.
    """

    def __init__(self, *args: Any, _grammar: str | Grammar, **kwargs: Any) -> None:
        # GBNF text is parsed later, by the model that uses it, because it may name the model's tokens
        self.rules: str | Grammar = _grammar

    @property
    def _grammar(self) -> str:
        return self.rules if isinstance(self.rules, str) else self.rules.to_gbnf()

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar from GBNF text."""
        return cls(_grammar=grammar)

    @classmethod
    def from_file(cls, file: str | os.PathLike[str], verbose: bool = True) -> LlamaGrammar:
        """A grammar from a GBNF file. Raises OSError if it cannot be read, ValueError if it is empty."""
        with open(file, encoding="utf-8") as opened:
            text = opened.read()
        if not text:
            raise ValueError(f"grammar: expected GBNF text in {os.fspath(file)!r}, got an empty file")
        return cls.from_string(text, verbose=verbose)

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar from a JSON schema's text. Raises GrammarError if it cannot be enforced."""
        return cls.of(json.loads(json_schema))

    @classmethod
    def of(cls, schema: Any) -> LlamaGrammar:
        """A grammar from a schema. Raises GrammarError if it cannot be enforced."""
        return cls(_grammar=compiled(json.dumps(schema)))


@lru_cache(MOST_GRAMMARS)
def compiled(schema: str) -> Grammar:
    return Grammar.from_json_schema(
        closed(json.loads(schema)), compiler=JsonSchemaCompiler(plain_integers=True)
    )


def json_schema_to_gbnf(schema: str, prop_order: list[str] | None = None) -> str:
    """GBNF text of a JSON schema. Raises ValueError for an order of properties other than the schema's."""
    if prop_order:
        raise ValueError("prop_order: expected None, for the order of the schema")
    return compiled(schema).to_gbnf()


COMPOSED = {"allOf", "not", "if", "dependentSchemas", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"}
"""Keywords that let several schemas apply to one object."""

NAMED, LISTED, ONE = {"properties", "$defs", "definitions"}, {"anyOf", "oneOf", "prefixItems"}, {"items"}
"""Keywords whose values contain schemas: by name, in a list, and a single one."""


def closed(schema: Any) -> Any:
    """The schema with objects closed to unlisted properties, as llama.cpp interprets schemas.

    An object is unchanged if it defines additional properties itself, or if several schemas apply to it.
    """
    return schema if COMPOSED & keys_of(schema) else _closed(schema)


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    has_names = "properties" in schema
    found = dict(schema)
    for key, value in schema.items():
        if key in NAMED and isinstance(value, Mapping):
            found[key] = {name: _closed(each) for name, each in value.items()}
        elif key in ONE:
            found[key] = _closed(value)
        elif key in LISTED and isinstance(value, list) and not has_names:
            found[key] = [_closed(each) for each in value]
    others = {"anyOf", "oneOf", "$ref", "additionalProperties", "patternProperties", "propertyNames"}
    if has_names and not others & schema.keys():
        found["additionalProperties"] = False
    return found


def keys_of(value: Any) -> set[str]:
    """The keys of all mappings inside a value."""
    if isinstance(value, Mapping):
        return set(value).union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


def __getattr__(name: str) -> Any:
    if name == "JSON_GBNF":
        return compiled('{"type": "object"}').to_gbnf()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
