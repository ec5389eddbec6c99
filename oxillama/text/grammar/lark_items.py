"""Items of Lark-style grammars: texts, regular expressions, tokens, repetition counts, schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from oxillama.base.config.checks import shown
from oxillama.errors import GrammarError
from oxillama.text.grammar.grammar_text import GrammarText, TokenIds, one_token
from oxillama.text.grammar.json_schema import JsonSchemaCompiler
from oxillama.text.grammar.lark_terminals import folded, regex_node, substrings
from oxillama.text.grammar.rules import Chars, Node, Rules, Text, Tokens
from oxillama.text.grammar.structural_fields import Fields

MAX_COUNT = 1_000_000_000
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_REGEX = re.compile(r"/(?![/*])((?:[^/\\\n]|\\.)+)/([a-z]*)")
_TOKEN = re.compile(r"<[^<>\s]+>")
_IDS = re.compile(r"<\[(\^?)(\d{1,10}(?:-\d{1,10})?(?:,\d{1,10}(?:-\d{1,10})?)*)\]>")
_ANY_ID = "<[*]>"
_COUNT = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}|~\s*(\d+)(?:\s*\.\.\s*(\d+))?")


class LarkItems(GrammarText):
    """Parses single items of a grammar, each at the current position.

    Raises:
        GrammarError: the text at the position is not such an item; with line and column.
    """

    blank: re.Pattern[str] = re.compile(r"(?:[ \t\r]+|//[^\n]*|#[^\n]*)*")
    blank_lines: re.Pattern[str] = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|#[^\n]*)*")

    def __init__(self, text: str, token_ids: TokenIds | None, any_order: bool, where: str = "") -> None:
        super().__init__(text, token_ids)
        self.any_order = any_order
        self.where = where  # prefix for error positions: the location of this text in a larger one

    def json_object(self) -> dict[str, Any]:
        start = self.pos
        try:
            self.pos: int
            found, self.pos = json.JSONDecoder().raw_decode(self.text, start)
        except (ValueError, RecursionError) as error:
            self.fail(f"expected a JSON object: {error}", start)
        if not isinstance(found, dict):
            self.fail(f"expected a JSON object, got a {type(found).__name__}", start)
        return found

    def count(self) -> tuple[int, int | None] | None:
        """Parse ``{m}``, ``{m,}``, ``{,n}``, ``{m,n}``, ``~m`` or ``~m..n`` to bounds, None if absent."""
        found = _COUNT.match(self.text, self.pos)
        if found is None:
            return None
        bounds, self.pos = self._bounds(found), found.end()
        return bounds

    def _bounds(self, found: re.Match[str]) -> tuple[int, int | None]:
        first, comma, second, count, last = found.groups()
        if max(len(part or "") for part in found.groups()) > len(str(MAX_COUNT)):
            self.fail(f"expected at most {MAX_COUNT} repetitions, got {found[0]}")
        if count is not None:
            least, most = int(count), int(last or count)
        elif not (first or second) or (second and not comma):
            self.fail(f"expected a repetition as {{2}} or {{2,3}}, got {found[0]}")
        elif comma and not second:
            return int(first), None
        else:
            least, most = int(first or 0), int(second or first)
        if most < least or most > MAX_COUNT:
            self.fail(f"expected the second bound at or above the first, got {found[0]}")
        return least, most

    def string(self) -> Node:
        """Parse a quoted text or a range of quoted characters."""
        start, text = self.pos, self._literal()
        if self.text.startswith("..", self.pos):
            self.pos += 2
            last = self._literal()
            if len(text) != 1 or len(last) != 1 or last < text:
                self.fail('expected a range of characters in ascending order, as "a".."z"', start)
            return Chars(((ord(text), ord(last)),))
        if self.peek() == "i" and not self.text[self.pos + 1 : self.pos + 2].isalnum():
            self.pos += 1
            return folded(Text(text))
        return Text(text)

    def _literal(self) -> str:
        start = self.pos
        found = self.read(_STRING, "a string in quotes that ends in its line")
        try:
            text = json.loads(found[0])
            text.encode()
        except ValueError as error:
            self.fail(f"expected a string with JSON's escapes: {error}", start)
        return str(text)

    def regex(self) -> Node:
        """Parse a regular expression between slashes, and its flags."""
        start = self.pos
        found = self.read(_REGEX, "a regular expression that ends in its line")
        with self.errors_at(start):
            return regex_node(found[1].replace("\\/", "/"), found[2])

    def token(self) -> Node:
        """Parse a token name, or a list of ids; a negated list means all other text tokens."""
        start = self.pos
        found = self.read(_TOKEN, "a token as <name> or <[123]>")
        if found[0] == _ANY_ID:
            return Tokens((), negated=True)
        if found[0].startswith("<["):
            ids = _IDS.fullmatch(found[0])
            if ids is None:
                self.fail(f"expected token ids as <[1,3-5]>, <[^1,3-5]> or <[*]>, got {found[0]}", start)
            return Tokens(self._listed(ids[2], start), negated=bool(ids[1]))
        with self.errors_at(start):
            return Tokens((one_token(found[0], self.token_ids),))

    def _listed(self, text: str, start: int) -> tuple[int, ...]:
        ids: set[int] = set()
        for part in text.split(","):
            first, _, last = part.partition("-")
            low, high = int(first), int(last or first)
            if not low <= high < min(2**31, low + (1 << 20)):
                self.fail(f"expected a range of token ids, got {part}", start)
            ids.update(range(low, high + 1))
        return tuple(sorted(ids))

    def ruled(self, start: int, is_schema: bool) -> Rules:
        """Parse an object: a schema, or the argument of ``%regex``."""
        value = self.json_object()
        with self.errors_at(start):
            place = self.where + self.place(start)
            return schema_rules(value, self.any_order, place) if is_schema else substrings(value)


_SPACES = {(",", ":"): "compact", (", ", ": "): "spaced"}
"""The whitespace option of schemas by their separators of items and names, unless flexible."""


def schema_rules(schema: Any, any_order: bool, place: str) -> Rules:
    """The rules of a schema with the options in its ``x-guidance``; ``place`` is the schema's location."""
    options: Any = {}
    if isinstance(schema, Mapping) and "x-guidance" in schema:
        schema = dict(schema)
        options = schema.pop("x-guidance")
    compiler, strict = _compiler(options, any_order)
    return compiler.compile(schema, strict, place)


def _compiler(options: Any, any_order: bool) -> tuple[JsonSchemaCompiler, bool]:
    """The compiler for the options of ``x-guidance``, and whether unenforceable keywords are errors.

    ``coerce_one_of`` is accepted and ignored, because `oneOf` is exact here.
    """
    fields = Fields("x-guidance", options)
    separators = fields.text("item_separator", ","), fields.text("key_separator", ":")
    flexible = fields.flag("whitespace_flexible", True)
    lenient, _ = fields.flag("lenient"), fields.flag("coerce_one_of")
    fields.done()
    if separators not in _SPACES or (flexible and separators != (",", ":")):
        wanted = '"," and ":", or where whitespace_flexible is false ", " and ": "'
        raise GrammarError(f"x-guidance: expected the separators {wanted}, got {shown(list(separators))}")
    space = "flexible" if flexible else _SPACES[separators]
    if not options.keys() & {"whitespace_flexible", "item_separator", "key_separator"}:
        space = "single"
    compiler = JsonSchemaCompiler(whitespace=space, any_order=any_order, plain_integers=True)
    return compiler, not lenient
