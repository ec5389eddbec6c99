"""GBNF, llama.cpp's notation for grammars: text to `Rules`.

The dialect is llama-grammar.cpp's in llama-cpp-python 0.3.36: rules `name ::= ...`, literals,
character classes, `.`, groups, `|`, `* + ? {m} {m,} {m,n}`, token terminals `<[id]>`, `<text>` and
`!<...>`, comments. A rule ends at its line's end, except inside a group and after `|` or `::=`. llama.cpp
silently accepts some mistakes (a reversed range, a rule defined twice, an empty class, a bound that it
replaces by "no bound"); this parser either raises an error or does what was written.
"""

from __future__ import annotations

import re

from oxillama.base.deadline import check_deadline
from oxillama.errors import GrammarError
from oxillama.text.grammar.codepoints import complement, union
from oxillama.text.grammar.expressions import ANY
from oxillama.text.grammar.grammar_text import GrammarText, TokenIds, one_token
from oxillama.text.grammar.rules import (
    LAST_CODE_POINT,
    Alt,
    Chars,
    Node,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    Tokens,
)

MAX_REPEAT = 1_000_000_000

WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
_NAME = re.compile("[a-zA-Z0-9-]+")
_NUMBER = re.compile("[0-9]+")
_DIGITS = frozenset("0123456789")
_TOKEN = re.compile(r"(!?)(<(?:\[(\d{1,10})\]>|(?!\[)[^>]*>))", re.ASCII)
_HEX = r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))"
_CHARACTER = re.compile(rf'([^\\])|\\([trn\\"\[\]-])|{_HEX}', re.DOTALL)
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n"}


def parse_gbnf(text: str, root: str = "root", token_ids: TokenIds | None = None) -> Rules:
    """Parse a grammar.

    Args:
        text: The grammar in GBNF.
        root: The rule that the whole output must match.
        token_ids: Encodes the text of a token terminal, `<` and `>` included, to token ids; must return
            exactly one.

    Raises:
        GrammarError: The text is not a valid grammar; the message and the attributes give line and column.
    """
    return _Parser(text, token_ids).parse(root)


class _Parser(GrammarText):
    blank = re.compile(r"(?:[ \t]+|#[^\r\n]*)*")
    blank_lines = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)*")

    def __init__(self, text: str, token_ids: TokenIds | None) -> None:
        super().__init__(text, token_ids)
        self.used: dict[str, int] = {}  # name -> position of the first reference to it

    def parse(self, root: str) -> Rules:
        rules: dict[str, Node] = {}
        self.blanks(lines=True)
        while self.pos < len(self.text):
            start = self.pos
            name = self.name()
            if name in rules:
                self.fail(f"rule {name} is defined twice", start)
            self.blanks()
            self.expect("::=", f"after the rule name {name}")
            self.blanks(lines=True)
            rules[name] = self.alternatives()
            if self.peek() not in ("\r", "\n", ""):
                self.fail(f"expected an item or the end of the line, got {self.found()}")
            self.blanks(lines=True)
        for name, where in self.used.items():
            if name not in rules:
                self.fail(f"rule {name} is not defined", where)
        if root not in rules:
            raise GrammarError(f"grammar: expected a rule {root}, got {', '.join(rules) or 'no rules'}")
        return Rules(root, rules)

    # ------------------------------------------------------------------ rules

    def alternatives(self) -> Node:
        options = [self.sequence()]
        while self.peek() == "|":
            self.pos += 1
            self.blanks(lines=True)
            options.append(self.sequence())
        return options[0] if len(options) == 1 else Alt(tuple(options))

    def sequence(self) -> Node:
        check_deadline()
        items: list[Node] = []
        while True:
            char = self.peek()
            if char and char in "*+?{":
                if not items:
                    self.fail(f"expected an item before {char}")
                items[-1] = self.repeated(items[-1])
            else:
                item = self.item(char)
                if item is None:
                    return items[0] if len(items) == 1 else Seq(tuple(items))
                items.append(item)
            self.blanks(lines=self.depth > 0)

    def item(self, char: str) -> Node | None:
        """The item that starts at this position; None if no item does."""
        if char == '"':
            return self.literal()
        if char == "[":
            return self.char_class()
        if char == "(":
            return self.group(")")
        if char == ".":
            self.pos += 1
            return ANY
        if char and char in "<!":
            return self.token()
        if char in WORD:
            start = self.pos
            name = self.name()
            self.used.setdefault(name, start)
            return Ref(name)
        return None

    def repeated(self, item: Node) -> Node:
        start = self.pos
        char = self.peek()
        self.pos += 1
        if char != "{":
            return Repeat(item, int(char == "+"), 1 if char == "?" else None)
        self.blanks(lines=self.depth > 0)
        least = self.integer()
        most: int | None = least
        self.blanks(lines=self.depth > 0)
        if self.peek() == ",":
            self.pos += 1
            self.blanks(lines=self.depth > 0)
            most = self.integer() if self.peek() in _DIGITS else None
            self.blanks(lines=self.depth > 0)
        self.expect("}", "to close the repetition")
        if most is not None and most < least:
            self.fail(f"expected the second bound at or above the first, got {{{least},{most}}}", start)
        return Repeat(item, least, most)

    # ------------------------------------------------------------------ terminals

    def literal(self) -> Node:
        start = self.pos
        self.pos += 1
        chars: list[str] = []
        while self.peek() != '"':
            at = self.pos
            code = self.character(start, "literal")
            if 0xD800 <= code <= 0xDFFF:
                self.fail(f"expected a character, got the surrogate {code:X}", at)
            chars.append(chr(code))
        self.pos += 1
        return Text("".join(chars))

    def char_class(self) -> Node:
        start = self.pos
        self.pos += 1
        negated = self.peek() == "^"
        self.pos += negated
        ranges: list[tuple[int, int]] = []
        while self.peek() != "]":
            at = self.pos
            first = last = self.character(start, "class")
            if self.peek() == "-" and self.text[self.pos + 1 : self.pos + 2] != "]":
                self.pos += 1
                last = self.character(start, "class")
                if last < first:
                    self.fail(f"expected a range in ascending order, got {self.text[at : self.pos]}", at)
            ranges.append((first, last))
        self.pos += 1
        points = union(ranges)
        return Chars(complement(points) if negated else points)

    def character(self, start: int, what: str) -> int:
        """Read one character of a literal or a class, which may be an escape."""
        at = self.pos
        if self.peek() == "":
            self.fail(f"the {what} is not closed", start)
        plain, escaped, *digits = self.read(
            _CHARACTER, f"an escape as \\n, \\x41, \\u0041 or \\U00000041 in the {what}"
        ).groups("")
        value = int("".join(digits), 16) if any(digits) else ord(plain or _ESCAPES.get(escaped, escaped))
        if value > LAST_CODE_POINT:
            self.fail(f"expected a code point up to {LAST_CODE_POINT:X}, got {value:X}", at)
        return value

    def token(self) -> Node:
        start = self.pos
        negated, spelled, number = self.read(_TOKEN, "a token as <text> or <[123]>").groups()
        with self.errors_at(start):
            id = one_token(spelled, self.token_ids) if number is None else int(number)
        return Tokens((id,), negated == "!")

    # ------------------------------------------------------------------ text

    def name(self) -> str:
        return self.read(_NAME, "a rule name")[0]

    def integer(self) -> int:
        start = self.pos
        digits = self.read(_NUMBER, "a number")[0]
        if len(digits) > 10 or int(digits) > MAX_REPEAT:
            self.fail(f"expected at most {MAX_REPEAT} repetitions", start)
        return int(digits)
