"""The drafts of JSON Schema: the keywords of each draft, and the `$schema` addresses that select it.

A schema without `$schema` is read as 2020-12. Older syntax (an array of `items`, a boolean
`exclusiveMinimum`, `dependencies`, `$recursiveRef`) is accepted too where 2020-12 gives it no
meaning.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from oxillama.errors import GrammarError


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Keywords by the type of their value: one schema, a list of schemas, a mapping of names to schemas.
ONE = _words("""additionalItems additionalProperties contains contentSchema else if items not propertyNames
    then unevaluatedItems unevaluatedProperties""")
LIST = _words("allOf anyOf items oneOf prefixItems")
NAMED = _words("$defs definitions dependencies dependentSchemas patternProperties properties")

_DRAFT_4 = _words("""$ref additionalItems additionalProperties allOf anyOf definitions dependencies enum
    exclusiveMaximum exclusiveMinimum format items maxItems maxLength maxProperties maximum minItems
    minLength minProperties minimum multipleOf not oneOf pattern patternProperties properties required type
    uniqueItems""")
_DRAFT_6 = _DRAFT_4 | {"const", "contains", "propertyNames"}
_DRAFT_7 = _DRAFT_6 | {"else", "if", "then"}
# `dependencies` was replaced in 2019-09, but remains understood for compatibility.
_2019 = _DRAFT_7 | _words("""$defs $recursiveRef dependentRequired dependentSchemas maxContains minContains
    unevaluatedItems unevaluatedProperties""")
_2020 = (_2019 - {"$recursiveRef", "additionalItems"}) | {"$dynamicRef", "prefixItems"}

# The assertions of the vocabulary "validation" (2019-09 and 2020-12).
_VALIDATION = _words("""const dependentRequired enum exclusiveMaximum exclusiveMinimum maxContains maxItems
    maxLength maxProperties maximum minContains minItems minLength minProperties minimum multipleOf pattern
    required type uniqueItems""")
_KNOWN_VOCABULARIES = _words(
    "core applicator unevaluated validation meta-data format format-annotation format-assertion content"
)


ANNOTATIONS = _words("""$anchor $comment $dynamicAnchor $id $recursiveAnchor $schema $vocabulary
    contentEncoding contentMediaType contentSchema default deprecated description discriminator example
    examples externalDocs id nullable readOnly title writeOnly xml""")
"""Keywords that restrict nothing: those of the drafts, and OpenAPI's."""

OPENAPI_FORMATS = _words("binary byte decimal double float int32 int64 password sf-string")
"""Formats that OpenAPI's registry adds. They are annotations here."""


def likely_keyword(name: str, known: Iterable[str]) -> str | None:
    """The keyword, or format, that an unknown name is probably a misspelling of; None if none is near."""
    plain = {re.sub(r"\W|_", "", each).lower(): each for each in known}
    near = difflib.get_close_matches(re.sub(r"\W|_", "", name).lower(), plain, 1, 0.75)
    return plain[near[0]] if near else None


def warn_of(path: str, kind: str, name: str, known: Iterable[str]) -> None:
    """Warns of an unknown name that is like a known one: a schema that is not enforced as it was meant."""
    likely = likely_keyword(name, known)
    if likely is not None:
        warnings.warn(
            f"{path}: {name!r} is no {kind}, it has no effect; did you mean {likely!r}?", stacklevel=2
        )


@dataclass(frozen=True, slots=True)
class Dialect:
    """The keywords of a draft and their variations.

    Attributes:
        draft: 4, 6, 7, 2019 or 2020.
        keywords: keywords that have a meaning; other keywords are annotations.
        declared: whether `$schema` chose it.
        asserts_formats: whether `format` is enforced unless an option says otherwise.
    """

    draft: int
    keywords: frozenset[str]
    declared: bool = True
    asserts_formats: bool = True

    @property
    def id_keyword(self) -> str:
        return "id" if self.draft == 4 else "$id"

    @property
    def ref_hides_siblings(self) -> bool:
        """Whether `$ref` disables the other keywords of its schema, as it does up to draft 7."""
        return self.draft <= 7


_BY_NAME = {
    "draft-04": Dialect(4, _DRAFT_4),
    "draft-06": Dialect(6, _DRAFT_6),
    "draft-07": Dialect(7, _DRAFT_7),
    "draft/2019-09": Dialect(2019, _2019, asserts_formats=False),
    "draft/2020-12": Dialect(2020, _2020, asserts_formats=False),
}
UNDECLARED = Dialect(2020, _2019 | _2020, declared=False)


def is_published(uri: str) -> bool:
    """Whether an address is of a document of the specifications."""
    scheme, _, rest = uri.partition("://json-schema.org/")
    return scheme in ("http", "https") and rest.startswith("draft")


def standard_dialect(uri: str) -> Dialect | None:
    """The dialect of a meta-schema of the specifications; None for any other address."""
    scheme, _, rest = uri.rstrip("#").partition("://json-schema.org/")
    if scheme not in ("http", "https"):
        return None
    return _BY_NAME.get(rest.removesuffix("/schema")) if rest != "schema" else _BY_NAME["draft/2020-12"]


def custom_dialect(uri: str, meta: object, path: str) -> Dialect:
    """The dialect of a user's meta-schema: the dialect of its `$schema`, without vocabularies it omits.

    ``path`` is the path of the schema that declares the meta-schema.

    Raises:
        GrammarError: the meta-schema has no known `$schema`, or requires an unknown vocabulary.
    """
    base = standard_dialect(str(meta.get("$schema", ""))) if isinstance(meta, Mapping) else None
    if base is None:
        raise GrammarError(f"{path}/$schema: {uri!r} is not the meta-schema of a known draft")
    assert isinstance(meta, Mapping)
    vocabularies = meta.get("$vocabulary")
    if not isinstance(vocabularies, Mapping):
        return base
    names = {str(name).rpartition("/vocab/")[2] for name in vocabularies}
    for name, required in vocabularies.items():
        if required and str(name).rpartition("/vocab/")[2] not in _KNOWN_VOCABULARIES:
            raise GrammarError(f"{path}/$schema: {uri!r} requires the unknown vocabulary {name!r}")
    keywords = base.keywords
    if "validation" not in names:
        keywords -= _VALIDATION
    if "applicator" not in names:
        keywords -= (ONE | LIST | NAMED) - {"$defs", "unevaluatedItems", "unevaluatedProperties"}
    if base.draft == 2020 and "unevaluated" not in names:
        keywords -= {"unevaluatedItems", "unevaluatedProperties"}
    return replace(base, keywords=keywords, asserts_formats="format-assertion" in names)
