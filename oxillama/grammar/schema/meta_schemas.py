"""The meta-schemas of the specifications, for schemas that refer to them.

They come with the package jsonschema-specifications, if that is installed.
"""

from __future__ import annotations

from oxillama.grammar.schema.dialects import is_published

PACKAGE = "jsonschema-specifications"


def meta_schema(uri: str) -> object | None:
    """The document of this address; None for any other address, and where the package is not installed."""
    if not is_published(uri):
        return None
    try:
        from jsonschema_specifications import REGISTRY
    except ImportError:
        return None
    found = REGISTRY.get(uri)
    contents: object = found.contents if found is not None else None
    return contents
