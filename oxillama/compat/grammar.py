"""The compiler of JSON schemas, as a class with a static method."""

from __future__ import annotations

from oxillama.text.grammar import Grammar


class JsonSchemaCompiler:
    """Compiles schemas with default options; see `oxillama.text.grammar.JsonSchemaCompiler` for options."""

    @staticmethod
    def compile(schema: object, *, strict: bool = True) -> Grammar:
        """Compile a schema to the grammar of the JSON texts that meet it: `Grammar.from_json_schema`.

        Args:
            schema: bool, mapping, JSON text, or a type that has a schema.
            strict: True: a keyword that cannot be enforced is an error; False: it is ignored.

        Raises:
            GrammarError: the schema is malformed, unenforceable, or over a limit; names the JSON path.
        """
        return Grammar.from_json_schema(schema, strict=strict)
