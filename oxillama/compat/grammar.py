"""The compiler of JSON schemas, without an object."""

from __future__ import annotations

from oxillama.grammar import Grammar


class JsonSchemaCompiler:
    """Compiles a schema with the default options; `oxillama.grammar.JsonSchemaCompiler` has options."""

    @staticmethod
    def compile(schema: object, *, strict: bool = True) -> Grammar:
        """The grammar of the JSON texts whose values meet a schema: `Grammar.from_json_schema`.

        Parameters
        ----------
        schema : bool, mapping, JSON text, or a type that has a schema.
        strict : what cannot be enforced is an error; False: it is left out.

        Raises
        ------
        GrammarError : the schema is malformed, cannot be enforced, or is over a limit; the path is named.
        """
        return Grammar.from_json_schema(schema, strict=strict)
