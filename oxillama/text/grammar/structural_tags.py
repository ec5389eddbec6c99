"""Structural tags, XGrammar's notation for free text with constrained parts: to `Rules`.

A tag is ``begin``, a constrained content, and ``end``. A trigger is a prefix of a tag's ``begin``: once the
text contains a trigger, that tag must follow; other text is free. Free text contains neither a trigger nor
the end of the enclosing tag. Both forms are accepted: ``{"format": {...}}`` and the older one with
``structures`` and ``triggers``. Source: the formats of xgrammar 0.2.8 (`xgrammar/structural_tag.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from oxillama.base.config.checks import shown
from oxillama.errors import GrammarError
from oxillama.text.grammar.expressions import ANY, EMPTY
from oxillama.text.grammar.gbnf import parse_gbnf
from oxillama.text.grammar.grammar_text import TokenIds, errors_under, one_token
from oxillama.text.grammar.json_schema import JsonSchemaCompiler
from oxillama.text.grammar.regex import parse_regex
from oxillama.text.grammar.rulebook import RuleBook, texts_without
from oxillama.text.grammar.rules import Alt, Node, Repeat, Rules, Seq, Text, Tokens
from oxillama.text.grammar.structural_fields import MAX_COUNT, Fields, parsed, texts_of

MAX_DEPTH = 60
"""The maximum nesting of formats."""

RULED = frozenset(
    [
        "const_string", "json_schema", "regex", "grammar", "sequence", "or", "optional", "plus", "star",
        "repeat", "tag",
    ],
)  # fmt: skip
"""Types of formats without free text of their own."""

Stops = tuple[str, ...]


def structural_tag_rules(
    tag: Mapping[str, Any] | str, token_ids: TokenIds | None = None, any_order: bool = False
) -> Rules:
    """Compile a structural tag.

    Args:
        tag: The structural tag, or its JSON text.
        token_ids: Encodes the text of a token to token ids; must return exactly one.
        any_order: Whether objects take their properties in any order, if a schema's format does not say.

    Raises:
        GrammarError: The tag has another form, or uses an unsupported feature; or a schema, regular
            expression or grammar in it is invalid. The message names the path.
    """
    try:
        read = parsed("structural_tag", tag) if isinstance(tag, str) else tag
        return _Writer(token_ids, any_order).rules(read)
    except RecursionError:
        raise GrammarError("structural_tag: nested too deeply") from None


def rules_whole_text(tag: Mapping[str, Any] | str) -> bool:
    """Whether a structural tag has no free text. The tag need not be valid."""
    try:
        read = parsed("structural_tag", tag) if isinstance(tag, str) else tag
    except GrammarError:
        return False
    return "structures" not in read and _kinds(read.get("format")) <= RULED


def _kinds(format: Any) -> set[str]:
    """The types of a format and of the formats in it."""
    if isinstance(format, list):
        return set().union(*map(_kinds, format))
    if not isinstance(format, Mapping):
        return set()
    found = {str(format["type"])} if "type" in format else set()
    return found.union(*(_kinds(value) for key, value in format.items() if key != "json_schema"))


class _Writer:
    """Writes the rules of formats into a rule book.

    Each format gets ``stops``: the texts that may follow the format, which free text at its end may not
    contain.
    """

    def __init__(self, token_ids: TokenIds | None, any_order: bool) -> None:
        self._token_ids = token_ids
        self._any_order = any_order
        self._book = RuleBook()
        self._depth = 0
        self._writers: dict[str, Callable[[Fields, Stops], Node]] = {
            "const_string": self._const,
            "json_schema": self._schema,
            "regex": self._regex,
            "grammar": self._grammar,
            "any_text": self._any_text,
            "token": self._token,
            "exclude_token": self._exclude_token,
            "any_tokens": self._any_tokens,
            "sequence": self._sequence,
            "or": self._or,
            "optional": partial(self._repeated, 0, 1),
            "plus": partial(self._repeated, 1, None),
            "star": partial(self._repeated, 0, None),
            "repeat": self._repeat,
            "tag": self._tag,
            "triggered_tags": self._triggered,
            "token_triggered_tags": self._token_triggered,
            "tags_with_separator": self._separated,
            "dispatch": self._dispatch,
            "token_dispatch": self._token_dispatch,
        }

    def rules(self, tag: Any) -> Rules:
        fields = Fields("structural_tag", tag)
        if fields.text("type", "structural_tag") != "structural_tag":
            raise fields.error("type", '"structural_tag"')
        found = self._format("format", fields.take("format"), ()) if "format" in tag else self._legacy(fields)
        fields.done()
        return self._book.rules(found)

    def _legacy(self, fields: Fields) -> Node:
        """The older form: structures with a schema each, and triggers."""
        tags = []
        for structure in fields.each("structures", "structures"):
            begin, end, schema = structure.text("begin"), structure.text("end"), structure.take("schema")
            structure.done()
            content = {"type": "json_schema", "json_schema": schema}
            tags.append({"type": "tag", "begin": begin, "content": content, "end": end})
        return self._triggered(
            Fields("structural_tag", {"tags": tags, "triggers": fields.take("triggers")}), ()
        )

    def _format(self, path: str, value: Any, stops: Stops) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise GrammarError(f"{path}: expected at most {MAX_DEPTH} formats inside each other")
        fields = Fields(path, value)
        kind = fields.take("type")
        if not isinstance(kind, str) or kind not in self._writers:
            raise GrammarError(f"{path}.type: expected one of {', '.join(self._writers)}, got {shown(kind)}")
        found = self._book.rule(self._writers[kind](fields, stops))
        fields.done()
        self._depth -= 1
        return found

    # ------------------------------------------------------------------ parts

    def _const(self, fields: Fields, stops: Stops) -> Node:
        return Text(fields.text("value"))

    def _schema(self, fields: Fields, stops: Stops) -> Node:
        if fields.text("style", "json") != "json":
            raise fields.error("style", '"json"')
        if fields.texts("excludes", ()):
            raise fields.error("excludes", "no texts, because schemas cannot exclude texts")
        blanks = fields.count("max_whitespace_cnt", None)
        any_order = fields.flag("any_order", self._any_order)
        schema = fields.take("json_schema")
        if isinstance(schema, str):
            schema = parsed(fields.path_of("json_schema"), schema)
        whitespace = "compact" if blanks == 0 else "single"
        compiler = JsonSchemaCompiler(whitespace=whitespace, any_order=any_order, plain_integers=True)
        path = fields.path_of("json_schema")
        with errors_under(path):
            return self._book.include(compiler.compile(schema, place=path))

    def _regex(self, fields: Fields, stops: Stops) -> Node:
        pattern = fields.text("pattern")
        with errors_under(fields.path_of("pattern")):
            return parse_regex(pattern, search=False, alone=False)

    def _grammar(self, fields: Fields, stops: Stops) -> Node:
        text = fields.text("grammar")
        with errors_under(fields.path_of("grammar")):
            return self._book.include(parse_gbnf(text, "root", self._token_ids))

    def _any_text(self, fields: Fields, stops: Stops) -> Node:
        most = fields.count("max_chars", None)
        if fields.take("max_tokens", None) is not None:
            raise fields.error("max_tokens", "max_chars, because the tokens of a text are not counted")
        if most is None:
            return self._free(fields, (), stops)
        if fields.texts("excludes", ()) or stops:
            raise fields.error("max_chars", "no value together with excludes or an end")
        return Repeat(ANY, 0, most)

    def _free(self, fields: Fields, texts: tuple[str, ...], stops: Stops) -> Node:
        """Any text without ``texts``, ``stops``, and the excluded texts of the format."""
        left_out = (*texts, *fields.texts("excludes", ()), *stops)
        return self._book.rule(texts_without(tuple(dict.fromkeys(left_out))))

    # ------------------------------------------------------------------ tokens

    def _token(self, fields: Fields, stops: Stops) -> Node:
        return Tokens((self._id(fields.path_of("token"), fields.take("token")),))

    def _exclude_token(self, fields: Fields, stops: Stops, ids: tuple[int, ...] = ()) -> Node:
        return Tokens((*ids, *self._ids(fields, "exclude_tokens")), negated=True)

    def _any_tokens(self, fields: Fields, stops: Stops) -> Node:
        return Repeat(self._exclude_token(fields, stops), 0, fields.count("max_tokens", None))

    def _others(self, fields: Fields, ids: tuple[int, ...]) -> Node:
        """Any number of tokens except ``ids`` and the excluded tokens of the format."""
        return self._book.rule(Repeat(self._exclude_token(fields, (), ids), 0, None))

    def _ids(self, fields: Fields, name: str, wanted: bool = False) -> tuple[int, ...]:
        items = fields.items(name, least=1) if wanted else fields.items(name, ())
        return tuple(self._id(f"{fields.path_of(name)}[{i}]", item) for i, item in enumerate(items))

    def _id(self, path: str, token: Any) -> int:
        if isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 2**31:
            return token
        if not isinstance(token, str):
            raise GrammarError(f"{path}: expected a token id or the text of a token, got {shown(token)}")
        with errors_under(path):
            return one_token(token, self._token_ids)

    # ------------------------------------------------------------------ combinations

    def _sequence(self, fields: Fields, stops: Stops) -> Node:
        return Seq(tuple(self._elements(fields, (), stops)))

    def _or(self, fields: Fields, stops: Stops) -> Node:
        return Alt(tuple(self._elements(fields, stops, stops)))

    def _elements(self, fields: Fields, stops: Stops, last: Stops) -> Iterator[Node]:
        path, items = fields.path_of("elements"), fields.items("elements", least=1)
        for i, item in enumerate(items):
            yield self._format(f"{path}[{i}]", item, last if i == len(items) - 1 else stops)

    def _content(self, fields: Fields, stops: Stops = ()) -> Node:
        return self._format(fields.path_of("content"), fields.take("content"), stops)

    def _repeated(self, least: int, most: int | None, fields: Fields, stops: Stops) -> Node:
        return Repeat(self._content(fields, stops), least, most)

    def _repeat(self, fields: Fields, stops: Stops) -> Node:
        least, most = fields.count("min", None), fields.take("max")
        if least is None:
            raise fields.error("min", "a number")
        if type(most) is not int or not (most == -1 or least <= most <= MAX_COUNT):
            raise fields.error("max", f"-1, or {least} to {MAX_COUNT}")
        return self._repeated(least, None if most == -1 else most, fields, stops)

    # ------------------------------------------------------------------ tags

    def _tag(self, fields: Fields, stops: Stops) -> Node:
        return Seq((self._begin(fields), *self._inside(fields)))

    def _begin(self, fields: Fields) -> Node:
        begin = fields.take("begin")
        return Text(begin) if isinstance(begin, str) else self._format(fields.path_of("begin"), begin, ())

    def _inside(self, fields: Fields) -> tuple[Node, Node]:
        """The content and the end of a tag; free text at the end of the content may not contain the end."""
        end = fields.take("end")
        if isinstance(end, Mapping):
            return self._content(fields), self._format(fields.path_of("end"), end, ())
        ends = texts_of(fields.path_of("end"), [end] if isinstance(end, str) else end)
        if not ends:
            raise fields.error("end", "at least one text")
        return self._content(fields, tuple(text for text in ends if text)), Alt(tuple(map(Text, ends)))

    def _tags(self, fields: Fields) -> list[Fields]:
        found = []
        for tag in fields.each("tags", least=1):
            if tag.text("type", "tag") != "tag":
                raise tag.error("type", '"tag"')
            found.append(tag)
        return found

    def _any_of(self, tags: list[Fields]) -> Node:
        ways = []
        for tag in tags:
            ways.append(self._book.rule(self._tag(tag, ())))
            tag.done()
        return self._book.rule(Alt(tuple(ways)))

    def _triggered(self, fields: Fields, stops: Stops) -> Node:
        triggers = fields.texts("triggers")
        if not triggers or "" in triggers:
            raise fields.error("triggers", "texts that are not empty")
        tags = self._tags(fields)
        for tag in tags:
            begin = tag.known("begin")
            matching = [t for t in triggers if isinstance(begin, str) and begin.startswith(t)]
            if len(matching) != 1:
                raise tag.error("begin", f"a text that begins with one of the triggers {shown(triggers)}")
        return self._in_free_text(fields, self._free(fields, triggers, stops), tags)

    def _token_triggered(self, fields: Fields, stops: Stops) -> Node:
        triggers = self._ids(fields, "trigger_tokens", wanted=True)
        tags = self._tags(fields)
        for tag in tags:
            path, begin = tag.path_of("begin"), tag.known("begin")
            is_token = isinstance(begin, Mapping) and begin.get("type") == "token"
            if not is_token or self._id(path, begin.get("token")) not in triggers:
                raise tag.error("begin", "a format of type token that is one of trigger_tokens")
        return self._in_free_text(fields, self._others(fields, triggers), tags)

    def _in_free_text(self, fields: Fields, between: Node, tags: list[Fields]) -> Node:
        """Tags with free text between them; with ``at_least_one``, the text begins with a tag."""
        tag = self._any_of(tags)
        wanted, once = fields.flag("at_least_one"), fields.flag("stop_after_first")
        if once:
            return tag if wanted else Seq((between, Repeat(tag, 0, 1)))
        return Seq((tag if wanted else EMPTY, between, Repeat(Seq((tag, between)), 0, None)))

    def _separated(self, fields: Fields, stops: Stops) -> Node:
        tag = self._any_of(self._tags(fields))
        more = Seq((Text(fields.text("separator")), tag))
        wanted, once = fields.flag("at_least_one"), fields.flag("stop_after_first")
        found = tag if once else Seq((tag, Repeat(more, 0, None)))
        return found if wanted else Repeat(found, 0, 1)

    # ------------------------------------------------------------------ dispatch

    def _dispatch(self, fields: Fields, stops: Stops) -> Node:
        pairs = self._pairs(fields)
        patterns = texts_of(fields.path_of("rules"), [pattern for pattern, _ in pairs])
        if "" in patterns:
            raise fields.error("rules", "patterns that are not empty")
        return self._dispatched(fields, self._free(fields, patterns, stops), map(Text, patterns), pairs)

    def _token_dispatch(self, fields: Fields, stops: Stops) -> Node:
        pairs = self._pairs(fields)
        ids = tuple(self._id(fields.path_of("rules"), pattern) for pattern, _ in pairs)
        return self._dispatched(fields, self._others(fields, ids), (Tokens((id,)) for id in ids), pairs)

    def _pairs(self, fields: Fields) -> list[tuple[Any, Any]]:
        found = []
        for item in fields.items("rules", least=1):
            if not isinstance(item, (list, tuple)) or len(item) != 2:
                raise fields.error("rules", "pairs of a pattern and a format")
            found.append((item[0], item[1]))
        return found

    def _dispatched(
        self, fields: Fields, between: Node, patterns: Iterable[Node], pairs: list[tuple[Any, Any]]
    ) -> Node:
        path = fields.path_of("rules")
        ways = [
            Seq((pattern, self._format(f"{path}[{i}][1]", content, ())))
            for i, (pattern, (_, content)) in enumerate(zip(patterns, pairs))
        ]
        one = self._book.rule(Alt(tuple(ways)))
        if not fields.flag("loop", True):
            return Seq((between, Repeat(one, 0, 1)))
        return Seq((between, Repeat(Seq((one, between)), 0, None)))
