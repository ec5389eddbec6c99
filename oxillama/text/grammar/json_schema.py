"""Compiles a JSON Schema to a grammar: every text of the grammar is a JSON value that the schema allows.

The schema is parsed into conditions; conditions become unions of conjuncts for each JSON type; each state (a
set of conditions on one value) becomes one rule. The modules of `schema` are the steps. docs/json-schema.md
lists the keywords, the enforced ones, and the limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import chain

from oxillama.errors import ConfigError, GrammarError
from oxillama.text.grammar.analysis import analysis_of
from oxillama.text.grammar.python_types import schema_of_type
from oxillama.text.grammar.rules import Rules
from oxillama.text.grammar.schema.conditions import Condition, State, of_schema, state_of
from oxillama.text.grammar.schema.distinct_items import array_node
from oxillama.text.grammar.schema.formulas import Expander, Formula
from oxillama.text.grammar.schema.json_text import WHITESPACE, Layout
from oxillama.text.grammar.schema.keywords import Keywords, Place
from oxillama.text.grammar.schema.messages import unmet
from oxillama.text.grammar.schema.object_text import object_node
from oxillama.text.grammar.schema.references import NO_SCOPE, References, Registry, Schema
from oxillama.text.grammar.schema.strings import Strings
from oxillama.text.grammar.schema.unevaluated import UNEVALUATED, Unevaluated
from oxillama.text.grammar.schema.writer import Writer
from oxillama.text.grammar.structural_fields import parsed


@dataclass(slots=True)
class JsonSchemaCompiler:
    """Compiles JSON Schema (drafts 4, 6, 7, 2019-09, 2020-12; `$schema` selects).

    Attributes:
        registry: documents that `$ref` may name by their address: a mapping, or a function that returns None
            for an unknown address. Documents are never downloaded.
        default_schema: the `$schema` of schemas that declare none; "": no default.
        formats: whether `format` is enforced. None: by the schema's draft, that is no for schemas that
            declare 2019-09 or 2020-12, and yes for all others.
        whitespace: "single" (at most one space after a comma or colon), "compact" (no space), "spaced"
            (always one) or "flexible" (also new lines and indentation).
        any_order: objects take their properties in any order; if False, in the order of the schema.
        open_objects: whether an object with listed properties may have unlisted ones if the schema does not
            say: True by default, as in the specification. Objects of Python types are closed unless they say
            otherwise.
        plain_integers: integers, and the whole numbers of `enum` and `const`, are never written with ".0",
            which JSON Schema allows from draft 6 on. Always the case for Python types. The library sets it
            for schemas that it generates text from.
        mark: a text that replaces the quotes of strings, for formats other than JSON; see `Layout`.
        unenforced: the keywords that the last compilation with ``strict=False`` ignored, as "path: reason".

    Raises:
        ConfigError: an option has an invalid value.
    """

    registry: Registry | None = None
    default_schema: str = ""
    formats: bool | None = None
    whitespace: str = "single"
    any_order: bool = False
    open_objects: bool = True
    plain_integers: bool = False
    mark: str = ""
    unenforced: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.whitespace not in WHITESPACE:
            raise ConfigError(f"whitespace: expected one of {', '.join(WHITESPACE)}, got {self.whitespace!r}")
        if not isinstance(self.any_order, bool):
            raise ConfigError(f"any_order: expected True or False, got {self.any_order!r}")

    def compile(self, schema: object, strict: bool = True, place: str = "") -> Rules:
        """Compile a schema to the grammar of the JSON texts whose values meet it.

        Args:
            schema: The schema, its JSON text, or a type that has one: a dataclass, a `TypedDict`, an
                enumeration, any annotation of these and of the builtin types, or a class with
                ``model_json_schema()`` (pydantic).
            strict: If True, a keyword that cannot be enforced is an error; if False it is listed in
                `unenforced`.
            place: The schema's position in a larger text, as a prefix for errors during generation.

        Raises:
            GrammarError: The schema is malformed, unenforceable, contradictory, or over a limit; names the
                JSON path.
        """
        try:
            writer, root = self._writer(schema, strict)
            rules = writer.write(root)
        except RecursionError:
            raise GrammarError("#: nested too deeply") from None
        productive = analysis_of(rules).productive
        if "root" not in productive:
            raise GrammarError(unmet(rules.rules["root"], rules.rules, writer.states, productive))
        if not place:
            return rules
        return replace(rules, places={name: f"{place}: {path}" for name, path in rules.places.items()})

    def strings(self, schema: object, strict: bool = True) -> list[Strings]:
        """The strings among the values that meet a schema, as a union of sets.

        Parameters and errors as for `compile`.
        """
        try:
            writer, root = self._writer(schema, strict)
            return writer.strings(writer.followed_state(root))
        except RecursionError:
            raise GrammarError("#: nested too deeply") from None

    def _writer(self, schema: object, strict: bool) -> tuple[Writer, State]:
        """A writer for the rules of a schema, and the root's conditions."""
        of_type = not isinstance(schema, (str, bytes, bool, Mapping))
        if isinstance(schema, (str, bytes)):
            schema = parsed("schema", schema, parse_float=Decimal)
        elif of_type:
            schema = schema_of_type(schema)
        self.unenforced = []

        def unenforced(path: str, reason: str) -> None:
            if strict:
                raise GrammarError(f"{path}: cannot be enforced: {reason}")
            if f"{path}: {reason}" not in self.unenforced:
                self.unenforced.append(f"{path}: {reason}")

        open_objects, plain_integers = self.open_objects and not of_type, self.plain_integers or of_type
        references = References(schema, self.registry, self.default_schema)
        keywords = Keywords(references, self.formats, plain_integers, unenforced)
        unevaluated = Unevaluated(keywords)

        def formulas(condition: Condition, kind: str) -> Iterable[Formula]:
            assert isinstance(condition.what, Schema)
            place = Place(condition.what, condition.scope)
            found = keywords.formulas(place, kind)
            if place.schema.words.isdisjoint(UNEVALUATED):
                return found
            return chain(found, unevaluated.formulas(place, kind))

        expander = Expander(formulas, keywords.kinds, unenforced)
        layout, followed = Layout.of(self.whitespace, self.mark), keywords.followed
        writer = Writer(
            expander, followed, layout, self.any_order, open_objects, unenforced, array_node, object_node
        )
        return writer, state_of(of_schema(references.root, NO_SCOPE))
