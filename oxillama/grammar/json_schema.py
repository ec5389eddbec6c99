"""JSON Schema to the rules of a grammar: every text of the grammar is a JSON value that the schema allows.

The schema is read into conditions, these into unions of conjuncts for each type of values, and each state (a
set of conditions on one value) becomes one rule; see the modules of `schema`. docs/json-schema.md lists the
keywords, what is enforced, and the limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import chain

from oxillama.errors import ConfigError, GrammarError
from oxillama.grammar.analysis import analysis_of
from oxillama.grammar.python_types import schema_of_type
from oxillama.grammar.rules import Rules
from oxillama.grammar.schema.conditions import Condition, State, of_schema, ordered, state_of
from oxillama.grammar.schema.distinct_items import array_node
from oxillama.grammar.schema.formulas import Expander, Formula
from oxillama.grammar.schema.json_text import WHITESPACE, Layout
from oxillama.grammar.schema.keywords import Keywords, Place
from oxillama.grammar.schema.messages import unmet
from oxillama.grammar.schema.object_text import object_node
from oxillama.grammar.schema.references import NO_SCOPE, References, Registry, Schema
from oxillama.grammar.schema.strings import Strings
from oxillama.grammar.schema.unevaluated import UNEVALUATED, Unevaluated
from oxillama.grammar.schema.writer import Writer
from oxillama.grammar.structural_fields import parsed


@dataclass(slots=True)
class JsonSchemaCompiler:
    """Compiles JSON Schema (drafts 4, 6, 7, 2019-09, 2020-12; `$schema` selects).

    Attributes
    ----------
    registry : documents that `$ref` may name by their address: a mapping, or a function that returns None
        for what it does not have. Nothing is ever fetched.
    default_schema : what schemas without `$schema` are taken to declare there; "": nothing.
    formats : whether `format` is enforced. None: as the schema's draft says, which is no for schemas that
        declare 2019-09 or 2020-12, and yes for all others.
    whitespace : "single" (at most one space after a comma or colon), "compact" (none), "spaced" (always one)
        or "flexible" (also new lines and indentation).
    any_order : objects take their properties in any order; if False in the order of the schema.
    open_objects : what an object that lists properties, and says nothing of others, does with others: accept
        them, as the specification has it, or not. Those of Python types never do without saying so.
    plain_integers : integers, and the whole numbers of `enum` and `const`, are never written with ".0", which
        JSON Schema allows from draft 6 on; those of Python types never are. Texts that the library generates
        from a schema have it so.
    mark : a text around strings in place of quotes, for formats that are not JSON; see `Layout`.
    unenforced : what the last compilation with ``strict=False`` had to let go, as "path: reason".

    Raises
    ------
    ConfigError : an option is none of its values.
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
        """The grammar of the JSON texts whose values meet a schema.

        Parameters
        ----------
        schema : bool, mapping, str or type
            The schema, its JSON text, or a type that has one: a dataclass, a `TypedDict`, an enumeration, any
            annotation of these and of the builtin types, or a class with ``model_json_schema()`` (pydantic).
        strict : bool
            What cannot be enforced is an error; if False it is left out and listed in `unenforced`.
        place : str
            Where the schema stands in a larger text, for errors while a text is followed.

        Raises
        ------
        GrammarError
            The schema is malformed, cannot be enforced or met, or is over a limit; the JSON path is named.
        """
        try:
            writer, root = self._writer(_loaded(schema), _is_type(schema), strict)
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
        """The strings among the values that meet a schema: each is in one of these sets at least.

        Parameters and errors are those of `compile`.
        """
        try:
            writer, root = self._writer(_loaded(schema), _is_type(schema), strict)
            return writer.strings(state_of(*map(writer.followed, ordered(root))))
        except RecursionError:
            raise GrammarError("#: nested too deeply") from None

    def _writer(self, schema: object, of_type: bool, strict: bool) -> tuple[Writer, State]:
        """A writer for the rules of a schema, and what their root must meet.

        ``of_type``: the schema was made for a Python type.
        """
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
        layout = Layout.of(self.whitespace, self.mark)
        followed = keywords.followed
        writer = Writer(
            expander,
            followed,
            layout,
            self.any_order,
            open_objects,
            unenforced,
            array_node,
            object_node,
        )
        return writer, state_of(of_schema(references.root, NO_SCOPE))


def _is_type(schema: object) -> bool:
    """Whether the schema is given as a type."""
    return not isinstance(schema, (str, bytes, bool, Mapping))


def _loaded(schema: object) -> object:
    """The schema as JSON values."""
    if isinstance(schema, (str, bytes)):
        return parsed("schema", schema, parse_float=Decimal)
    if isinstance(schema, (bool, Mapping)):
        return schema
    return schema_of_type(schema)
