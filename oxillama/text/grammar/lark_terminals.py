"""Terminals of Lark-style grammars: regular expressions with flags, and the terminals of `%import common`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any
from unicodedata import category

from oxillama.base.config.checks import shown
from oxillama.errors import GrammarError
from oxillama.text.grammar.analysis import rebuilt
from oxillama.text.grammar.codepoints import complement, union
from oxillama.text.grammar.regex import parse_regex
from oxillama.text.grammar.rules import Alt, Chars, Node, Ref, Repeat, Rules, Seq, Text

COMMON = {
    "DIGIT": "[0-9]", "HEXDIGIT": "[0-9a-fA-F]", "INT": "[0-9]+", "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_FLOAT": r"[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)",
    "NUMBER": r"[0-9]+|[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?([0-9]+|[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)",
    "LCASE_LETTER": "[a-z]", "UCASE_LETTER": "[A-Z]", "LETTER": "[A-Za-z]", "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*", "ESCAPED_STRING": r'"([^"\\\n]|\\[^\n])*"', "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+", "CR": r"\r", "LF": r"\n", "NEWLINE": r"(\r?\n)+",
}  # fmt: skip
"""Terminals of `%import common`, as regular expressions; the same as in Lark's common.lark."""

FLAGS = "is"
MOST_FOLDED = 10_000
"""The maximum size of a character class with the flag ``i``."""

MOST_PARTS = 2000
"""The maximum number of parts of a text in `substrings`."""


def regex_node(pattern: str, flags: str) -> Node:
    """The texts that a regular expression matches from end to end.

    Args:
        flags: "i" ignores case; with "s", a dot also matches a line feed.

    Raises:
        GrammarError: the pattern or a flag is invalid.
    """
    for flag in flags:
        if flag not in FLAGS:
            raise GrammarError(f"regex: expected the flags i and s, got {flag}")
    node = parse_regex(pattern, search=False, alone=False, dots="s" in flags)
    return folded(node) if "i" in flags else node


def folded(node: Node) -> Node:
    """The node with each character matched in either case."""
    if isinstance(node, Text):
        return Seq(tuple(_either(char) for char in node.text))
    if isinstance(node, Chars):
        if sum(last - first for first, last in node.ranges) > MOST_FOLDED:
            return _folded_class(node)
        cased = [
            (ord(other), ord(other))
            for first, last in node.ranges
            for code in range(first, last + 1)
            for other in _cases(chr(code))
        ]
        return Chars(union(cased))
    return rebuilt(node, folded)


def _folded_class(node: Chars) -> Chars:
    """A large class, such as a dot, unchanged; the characters outside of it must have no case."""
    left_out = complement(node.ranges)
    if sum(last - first for first, last in left_out) > MOST_FOLDED or any(
        len(_cases(chr(code))) > 1 for first, last in left_out for code in range(first, last + 1)
    ):
        raise GrammarError(f"regex: expected classes of at most {MOST_FOLDED} characters with the flag i")
    return node


def _either(char: str) -> Node:
    return Chars(union([(ord(other), ord(other)) for other in _cases(char)]))


def _cases(char: str) -> set[str]:
    """A character with its upper- and lower-case forms that are single characters."""
    return {found for found in (char, char.lower(), char.upper()) if len(found) == 1}


def substrings(value: Mapping[str, Any]) -> Rules:
    """The rules of `%regex` with an object: all substrings of a text, the empty one included.

    Args:
        value: ``{"substring_chars": text}``; or ``{"substring_words": text}``, whose substrings begin and end
            at boundaries of words, runs of white space, and runs of other characters; or
            ``{"substring_chunks": [text, ...]}``, at boundaries of chunks.

    Raises:
        GrammarError: the object has another form, or too many parts.
    """
    name, whole = next(iter(value.items()), ("", None))
    wanted = {"substring_chars": str, "substring_words": str, "substring_chunks": list}
    is_good = len(value) == 1 and name in wanted and isinstance(whole, wanted[name])
    if not is_good or not all(isinstance(part, str) for part in whole or ()):
        expected = "substring_chars, substring_words or substring_chunks"
        raise GrammarError(f"%regex: expected {expected}, got {shown(dict(value))}")
    assert whole is not None
    parts = ["".join(run) for _, run in groupby(whole, _kind)] if name == "substring_words" else list(whole)
    if len(parts) > MOST_PARTS:
        raise GrammarError(f"%regex: expected at most {MOST_PARTS} parts, got {len(parts)}")
    rules: dict[str, Node] = {f"{len(parts)}": Seq(())}
    for i, part in enumerate(parts):
        rules[f"{i}"] = Repeat(Seq((Text(part), Ref(f"{i + 1}"))), 0, 1)
    return Rules("root", {"root": Alt(tuple(Ref(name) for name in rules)), **rules})


def _kind(char: str) -> str:
    """The kind of a character for splitting into words: letters, marks, numbers and "_" form words."""
    if char.isspace():
        return "space"
    return "word" if char == "_" or category(char)[0] in "LMN" else "other"
