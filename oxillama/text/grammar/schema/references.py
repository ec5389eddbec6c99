"""References between schemas: identifiers, anchors, pointers, dynamic scopes.

A document is walked once. Every subschema becomes a `Schema` that knows its dialect and its `Resource` (the
nearest enclosing schema with an identifier). Other documents come from the user's registry; nothing is
downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import unquote, urljoin

from oxillama.base.config.checks import shown
from oxillama.errors import GrammarError
from oxillama.text.grammar.schema.dialects import (
    ANNOTATIONS,
    LIST,
    NAMED,
    ONE,
    UNDECLARED,
    Dialect,
    custom_dialect,
    is_published,
    standard_dialect,
    warn_of,
)

Registry = Mapping[str, object] | Callable[[str], object]
PACKAGE = "jsonschema-specifications"  # contains the meta-schemas of the specifications
MAX_SCHEMAS = 20_000  # subschemas in all documents
MAX_NESTING = 200  # nesting of subschemas
RECURSIVE = "$recursiveAnchor"  # the key of this anchor among the dynamic anchors
IDENTIFIERS = frozenset({"$schema", "$id", "id", "$anchor", "$dynamicAnchor", RECURSIVE})
BELOW = ONE | LIST | NAMED
ATOMS = frozenset({str, int, float, bool, Decimal, type(None)})


@dataclass(eq=False, slots=True)
class Resource:
    """A schema with its own identifier, and the anchors inside it."""

    uri: str
    anchors: dict[str, Schema] = field(default_factory=dict)
    dynamic: dict[str, Schema] = field(default_factory=dict)
    root: Schema = None  # type: ignore[assignment]  # set when the schema is made


@dataclass(eq=False, slots=True)
class Schema:
    """A subschema of a document, compared by identity.

    Attributes:
        value: the schema itself: a boolean or a mapping.
        words: its keywords that have a meaning in its dialect.
        path: its location, for messages: "#/properties/name".
        serial: number of the schema in the order in which schemas were found.
        holds: the cached condition that the schema holds; see `conditions`.
    """

    value: Any
    words: frozenset[str]
    path: str
    resource: Resource
    dialect: Dialect
    serial: int
    below: dict[tuple[str, ...], Schema] = field(default_factory=dict)
    holds: Any = None


# The outermost schema of each dynamic anchor on the path to a schema.
Scope = frozenset[tuple[str, Schema]]
NO_SCOPE: Scope = frozenset()


def entered(scope: Scope, schema: Schema) -> Scope:
    """The scope inside a schema: adds the anchors of its resource that are not yet in the scope."""
    if not schema.resource.dynamic:
        return scope
    known = {name for name, _ in scope}
    return scope | {(name, s) for name, s in schema.resource.dynamic.items() if name not in known}


class References:
    """All documents of a compilation."""

    def __init__(self, root: object, registry: Registry | None, default_schema: str) -> None:
        self.registry = registry
        self.default: Dialect = UNDECLARED
        if default_schema:
            self.default = self.dialect(default_schema, "#")
        self.resources: dict[str, Resource] = {}
        self.constants: Resource = Resource("oxillama:constants")
        self.resolved: dict[tuple[int, str], Schema] = {}
        self.n_schemas: int = 0
        self.root: Schema = self.load("", root, self.default)

    def load(self, uri: str, value: object, dialect: Dialect) -> Schema:
        """Add a document under its address; its schemas can then be found by their identifiers."""
        resource = Resource(uri)
        schema = self.schema(copied(value, {}), f"{uri}#", resource, dialect, depth=0)
        self.resources.setdefault(uri, schema.resource)
        return schema

    def schema(self, value: object, path: str, resource: Resource, dialect: Dialect, depth: int) -> Schema:
        """Make a schema and all its subschemas."""
        if isinstance(value, bool):
            names: Mapping[str, object] = {}
        elif isinstance(value, dict):
            names = value
        else:
            raise GrammarError(f"{path}: expected a schema (an object or a boolean), got {shown(value):.80}")
        self.n_schemas += 1
        if self.n_schemas > MAX_SCHEMAS or depth > MAX_NESTING:
            raise GrammarError(
                f"{path}: at most {MAX_SCHEMAS} subschemas, {MAX_NESTING} within each other, are read"
            )
        fresh = resource.root is None
        is_named = not IDENTIFIERS.isdisjoint(names)
        if is_named:
            declared = names.get("$schema")
            if isinstance(declared, str):
                dialect = self.dialect(declared, path)
            resource, fresh = self.identified(names, path, resource, dialect, fresh)
        words = dialect.keywords.intersection(names)
        if len(words) < len(names):
            for name in names.keys() - dialect.keywords - ANNOTATIONS:
                warn_of(f"{path}/{name}", "keyword", name, dialect.keywords)
        made = Schema(value, words, path, resource, dialect, self.n_schemas)
        if fresh:
            resource.root = made
            self.resources.setdefault(resource.uri, resource)
        if is_named:
            self.take_anchors(made, names)
        if not BELOW.isdisjoint(names):
            for keys, at, below in _subschemas(names, path):
                made.below[keys] = self.schema(below, at, resource, dialect, depth + 1)
        return made

    def constant(self, value: object, path: str) -> Schema:
        """A schema outside of the documents that allows only this value."""
        self.n_schemas += 1
        if self.n_schemas > MAX_SCHEMAS:
            raise GrammarError(f"{path}: more than {MAX_SCHEMAS} values and subschemas")
        words = frozenset({"const"})
        return Schema({"const": value}, words, path, self.constants, UNDECLARED, self.n_schemas)

    def dialect(self, uri: str, path: str) -> Dialect:
        found = standard_dialect(uri)
        if found is not None:
            return found
        meta = self.retrieve(uri.rstrip("#"))
        if meta is None:
            raise GrammarError(f"{path}/$schema: {uri!r} is neither a known draft nor in the registry")
        return custom_dialect(uri, meta, path)

    def identified(
        self, value: Mapping[str, object], path: str, resource: Resource, dialect: Dialect, fresh: bool
    ) -> tuple[Resource, bool]:
        """The resource of a schema, and whether the schema is the resource's root."""
        identifier = value.get(dialect.id_keyword)
        if not isinstance(identifier, str) or ("$ref" in value and dialect.ref_hides_siblings):
            return resource, fresh
        uri, _, fragment = identifier.partition("#")
        if fragment and not uri:
            return resource, fresh  # an anchor, see take_anchors
        return Resource(join(resource.uri, uri, f"{path}/{dialect.id_keyword}")), True

    def take_anchors(self, schema: Schema, value: Mapping[str, object]) -> None:
        anchors, dynamic = schema.resource.anchors, schema.resource.dynamic
        identifier = value.get(schema.dialect.id_keyword)
        hidden = "$ref" in value and schema.dialect.ref_hides_siblings
        if isinstance(identifier, str) and "#" in identifier[:-1] and not hidden:
            anchors.setdefault(identifier.partition("#")[2], schema)
        if schema.dialect.draft <= 7:
            return
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = value.get(keyword)
            if isinstance(name, str):
                anchors.setdefault(name, schema)
                if keyword == "$dynamicAnchor":
                    dynamic.setdefault(name, schema)
        if value.get(RECURSIVE) is True and schema.resource.root is schema:
            dynamic.setdefault(RECURSIVE, schema)

    def retrieve(self, uri: str) -> object | None:
        """A document of the user's registry, or a meta-schema; None for an unknown address."""
        found = document_of(self.registry, uri)
        return meta_schema(uri) if found is None else found

    def resolve(self, schema: Schema, reference: object, keyword: str) -> Schema:
        """The target of a reference in ``schema``, without regard to dynamic scopes."""
        at = f"{schema.path}/{keyword}"
        if not isinstance(reference, str):
            raise GrammarError(f"{at}: expected a reference (a string), got {shown(reference):.80}")
        uri, _, fragment = join(schema.resource.uri, reference, at).partition("#")
        resource = self.resources.get(uri)
        if resource is None:
            document = self.retrieve(uri)
            if document is None:
                hint = f" (meta-schemas need the package {PACKAGE})" if is_published(uri) else ""
                raise GrammarError(f"{at}: {uri!r} is neither in the schema nor in the registry{hint}")
            self.load(uri, document, schema.dialect if schema.dialect.declared else self.default)
            resource = self.resources[uri]
        fragment = unquote(fragment)
        if not fragment:
            return resource.root
        if fragment.startswith("/"):
            return self.pointed(resource.root, fragment, at)
        if fragment not in resource.anchors:
            raise GrammarError(f"{at}: there is no anchor {fragment!r} in {uri or 'the schema'}")
        return resource.anchors[fragment]

    def pointed(self, schema: Schema, pointer: str, at: str) -> Schema:
        """The schema at a JSON pointer, even where no keyword expects a schema."""
        value: object = schema.value
        keys: tuple[str, ...] = ()  # from `schema` to `value`
        for token in pointer.split("/")[1:]:
            key = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and re.fullmatch("0|[1-9][0-9]{0,8}", key) and int(key) < len(value):
                value = value[int(key)]
            else:
                raise GrammarError(f"{at}: there is no {pointer!r} in {schema.path}")
            keys += (key,)
            if keys in schema.below:
                schema, keys = schema.below[keys], ()
        if keys:
            path = schema.path + "".join(["/" + pointer_step(key) for key in keys])
            schema.below[keys] = self.schema(value, path, schema.resource, schema.dialect, 0)
            schema = schema.below[keys]
        return schema

    def target(self, schema: Schema, keyword: str, scope: Scope) -> Schema:
        """The target of `$ref`, `$dynamicRef` or `$recursiveRef` in a dynamic scope."""
        reference = schema.value[keyword]
        found = self.resolved.get((schema.serial, keyword))
        if found is None:
            found = self.resolved[schema.serial, keyword] = self.resolve(schema, reference, keyword)
        if keyword == "$recursiveRef" and RECURSIVE in found.resource.dynamic:
            return dict(scope).get(RECURSIVE, found)
        if keyword == "$dynamicRef":
            name = unquote(str(reference).partition("#")[2])
            if name and found.resource.dynamic.get(name) is found:
                return dict(scope).get(name, found)
        return found


def document_of(registry: Registry | None, uri: str) -> object | None:
    """The registry's document at an address, or None."""
    if registry is None:
        return None
    return registry(uri) if callable(registry) else registry.get(uri, registry.get(uri + "#"))


def meta_schema(uri: str) -> object | None:
    """The meta-schema at this address; None for any other address, or if `PACKAGE` is not installed."""
    if not is_published(uri):
        return None
    try:
        from jsonschema_specifications import REGISTRY
    except ImportError:
        return None
    found = REGISTRY.get(uri)
    contents: object = found.contents if found is not None else None
    return contents


def join(base: str, reference: str, at: str) -> str:
    """Resolve a reference against the identifier of the enclosing resource (RFC 3986, section 5).

    ``at`` is the path of the reference.

    Raises:
        GrammarError: the reference or the identifier is not a URI.
    """
    if not reference or reference.startswith("#"):
        return base.partition("#")[0] + reference
    try:
        return urljoin(base, reference)
    except ValueError as error:
        raise GrammarError(
            f"{at}: expected URI references, got {shown(reference):.80} in {shown(base):.80}: {error}"
        ) from None


def copied(value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    """A copy of JSON values in lists and dicts that no caller can change.

    ``known``: the copies so far by id, so that a shared value is copied once.
    """
    if id(value) not in known:
        if isinstance(value, (dict, Mapping)):
            made: Any = {
                name: one if type(one) in ATOMS else copied(one, known) for name, one in value.items()
            }
        elif isinstance(value, (list, tuple)):
            made = [one if type(one) in ATOMS else copied(one, known) for one in value]
        else:
            return value
        known[id(value)] = value, made
    return known[id(value)][1]


def _subschemas(value: Mapping[str, object], path: str) -> Iterator[tuple[tuple[str, ...], str, object]]:
    """The subschemas of a schema: (keys to the subschema, its path, its value)."""
    for keyword, below in value.items():
        if keyword not in BELOW:
            continue
        if keyword in ONE and isinstance(below, (bool, dict)):
            yield (keyword,), f"{path}/{keyword}", below
        elif keyword in LIST and isinstance(below, list):
            for i, one in enumerate(below):
                yield (keyword, str(i)), f"{path}/{keyword}/{i}", one
        elif keyword in NAMED and isinstance(below, dict):
            for name, one in below.items():
                if keyword != "dependencies" or isinstance(one, (bool, dict)):
                    yield (keyword, name), f"{path}/{keyword}/{pointer_step(str(name))}", one


def pointer_step(key: str) -> str:
    """A key as JSON pointers write it."""
    return key.replace("~", "~0").replace("/", "~1") if "/" in key or "~" in key else key
