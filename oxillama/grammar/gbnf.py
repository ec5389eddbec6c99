"""GBNF, llama.cpp's notation for grammars: text to `Rules` and back.

The dialect is that of llama-grammar.cpp as of llama-cpp-python 0.3.36: rules `name ::= ...`, literals,
character classes, `.`, groups, `|`, `* + ? {m} {m,} {m,n}`, token terminals `<[id]>`, `<text>` and
`!<...>`, comments. A rule ends at its line's end, except inside a group and after `|` or `::=`. Where
llama.cpp is silent about a slip (a range turned round, a rule defined twice, a class that is empty, a
bound it replaces by "no bound"), this parser either raises or does what was written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from oxillama.errors import GrammarError
from oxillama.grammar.rules import (
    LAST_CODE_POINT,
    Alt,
    Chars,
    Dfa,
    Node,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    Tokens,
)

MAX_TEXT = 4_000_000  # characters
MAX_DEPTH = 60  # groups inside groups
MAX_REPEAT = 1_000_000_000

_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
_DIGITS = frozenset("0123456789")
_HEX = frozenset("0123456789abcdefABCDEF")
_HEX_ESCAPES = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_ANY = Chars(((0, LAST_CODE_POINT),))

Ranges = list[tuple[int, int]]


def parse_gbnf(text: str, root: str = "root", token_ids: Callable[[str], list[int]] | None = None) -> Rules:
    """Read a grammar.

    Parameters
    ----------
    text : str
        The grammar in GBNF.
    root : str
        The rule that the whole output must match.
    token_ids : callable, optional
        Turns the text of a token terminal, `<` and `>` included, into token ids; it must give just one.

    Raises
    ------
    GrammarError
        The text is no grammar; the message and the attributes give line and column.
    """
    return _Parser(text, token_ids).parse(root)


class _Parser:
    def __init__(self, text: str, token_ids: Callable[[str], list[int]] | None) -> None:
        if len(text) > MAX_TEXT:
            raise GrammarError(f"grammar: expected at most {MAX_TEXT} characters, found {len(text)}")
        self.text, self.token_ids = text, token_ids
        self.pos = 0
        self.depth = 0
        self.used: dict[str, int] = {}  # where each name is first referred to

    def parse(self, root: str) -> Rules:
        rules: dict[str, Node] = {}
        self.skip_space(newlines=True)
        while self.pos < len(self.text):
            start = self.pos
            name = self.name()
            if name in rules:
                self.fail(f"rule {name} is defined twice", start)
            self.skip_space()
            if not self.text.startswith("::=", self.pos):
                self.fail(f"expected ::= after the rule name {name}, found {self.found()}")
            self.pos += 3
            self.skip_space(newlines=True)
            rules[name] = self.alternatives(nested=False)
            if self.peek() not in ("\r", "\n", ""):
                self.fail(f"expected an item or the end of the line, found {self.found()}")
            self.skip_space(newlines=True)
        for name, where in self.used.items():
            if name not in rules:
                self.fail(f"rule {name} is not defined", where)
        if root not in rules:
            raise GrammarError(f"grammar: expected a rule {root}, found {', '.join(rules) or 'no rules'}")
        return Rules(root, rules)

    # ------------------------------------------------------------------ rules

    def alternatives(self, nested: bool) -> Node:
        options = [self.sequence(nested)]
        while self.peek() == "|":
            self.pos += 1
            self.skip_space(newlines=True)
            options.append(self.sequence(nested))
        return options[0] if len(options) == 1 else Alt(tuple(options))

    def sequence(self, nested: bool) -> Node:
        items: list[Node] = []
        while True:
            char = self.peek()
            if char and char in "*+?{":
                if not items:
                    self.fail(f"expected an item before {char}")
                items[-1] = self.repeated(items[-1], nested)
            else:
                item = self.item(char)
                if item is None:
                    return items[0] if len(items) == 1 else Seq(tuple(items))
                items.append(item)
            self.skip_space(nested)

    def item(self, char: str) -> Node | None:
        """The item that starts here; None if what is here starts none."""
        if char == '"':
            return self.literal()
        if char == "[":
            return self.char_class()
        if char == "(":
            return self.group()
        if char == ".":
            self.pos += 1
            return _ANY
        if char and char in "<!":
            return self.token()
        if char in _WORD:
            start = self.pos
            name = self.name()
            self.used.setdefault(name, start)
            return Ref(name)
        return None

    def group(self) -> Node:
        start = self.pos
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"expected at most {MAX_DEPTH} groups inside each other")
        self.pos += 1
        self.skip_space(newlines=True)
        node = self.alternatives(nested=True)
        if self.peek() != ")":
            self.fail(f"expected ) to close the group of {self.place(start)}, found {self.found()}")
        self.pos += 1
        self.depth -= 1
        return node

    def repeated(self, item: Node, nested: bool) -> Node:
        start = self.pos
        char = self.peek()
        self.pos += 1
        if char != "{":
            return Repeat(item, int(char == "+"), 1 if char == "?" else None)
        self.skip_space(nested)
        least = self.integer()
        most: int | None = least
        self.skip_space(nested)
        if self.peek() == ",":
            self.pos += 1
            self.skip_space(nested)
            most = self.integer() if self.peek() in _DIGITS else None
            self.skip_space(nested)
        if self.peek() != "}":
            self.fail(f"expected }} to close the repetition, found {self.found()}")
        self.pos += 1
        if most is not None and most < least:
            self.fail(f"expected the second bound at or above the first, found {{{least},{most}}}", start)
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
                self.fail(f"expected a character, found the surrogate {code:X}", at)
            chars.append(chr(code))
        self.pos += 1
        return Text("".join(chars))

    def char_class(self) -> Node:
        start = self.pos
        self.pos += 1
        negated = self.peek() == "^"
        self.pos += negated
        ranges: Ranges = []
        while self.peek() != "]":
            at = self.pos
            first = last = self.character(start, "class")
            if self.peek() == "-" and self.text[self.pos + 1 : self.pos + 2] != "]":
                self.pos += 1
                last = self.character(start, "class")
                if last < first:
                    self.fail(f"expected a range in ascending order, found {self.text[at : self.pos]}", at)
            ranges.append((first, last))
        self.pos += 1
        merged = merge(ranges)
        return Chars(complement(merged) if negated else merged)

    def character(self, start: int, what: str) -> int:
        """One character of a literal or a class, an escape included."""
        at = self.pos
        char = self.peek()
        self.pos += 1
        if char == "":
            self.fail(f"the {what} is not closed", start)
        if char != "\\":
            return ord(char)
        kind = self.peek()
        self.pos += 1
        if kind in _ESCAPES:
            return ord(_ESCAPES[kind])
        if kind not in _HEX_ESCAPES:
            self.fail(f"unknown escape \\{kind}", at)
        digits = self.text[self.pos : self.pos + _HEX_ESCAPES[kind]]
        if len(digits) < _HEX_ESCAPES[kind] or not set(digits) <= _HEX:
            self.fail(f"expected {_HEX_ESCAPES[kind]} hexadecimal digits after \\{kind}", at)
        self.pos += len(digits)
        value = int(digits, 16)
        if value > LAST_CODE_POINT:
            self.fail(f"expected a code point up to {LAST_CODE_POINT:X}, found {digits}", at)
        return value

    def token(self) -> Node:
        start = self.pos
        negated = self.peek() == "!"
        self.pos += negated
        if self.peek() != "<":
            self.fail(f"expected a token as <text> or <[id]>, found {self.found()}")
        end = self.text.find(">", self.pos)
        if end < 0:
            self.fail("the token is not closed with >", start)
        spelled = self.text[self.pos : end + 1]
        self.pos = end + 1
        if spelled.startswith("<["):
            digits = spelled[2:-2]
            if not spelled.endswith("]>") or not digits or not set(digits) <= _DIGITS or len(digits) > 10:
                self.fail(f"expected a token id as <[123]>, found {spelled}", start)
            return Tokens((int(digits),), negated)
        if self.token_ids is None:
            self.fail(f"the token {spelled} can only be looked up in a tokenizer, and none was given", start)
        ids = self.token_ids(spelled)
        if len(ids) != 1:
            self.fail(f"expected the text of one token, but {spelled} is {len(ids)} tokens", start)
        return Tokens((ids[0],), negated)

    # ------------------------------------------------------------------ text

    def peek(self) -> str:
        return self.text[self.pos : self.pos + 1]

    def skip_space(self, newlines: bool = False) -> None:
        """Pass blanks and comments, and ends of lines where the item may go on in the next."""
        blanks = " \t\r\n" if newlines else " \t"
        while char := self.peek():
            if char == "#":
                while self.peek() not in ("\r", "\n", ""):
                    self.pos += 1
            elif char in blanks:
                self.pos += 1
            else:
                return

    def name(self) -> str:
        start = self.pos
        while self.peek() in _WORD:
            self.pos += 1
        if self.pos == start:
            self.fail(f"expected a rule name, found {self.found()}")
        return self.text[start : self.pos]

    def integer(self) -> int:
        start = self.pos
        while self.peek() in _DIGITS:
            self.pos += 1
        if self.pos == start:
            self.fail(f"expected a number, found {self.found()}")
        if self.pos - start > 10 or int(self.text[start : self.pos]) > MAX_REPEAT:
            self.fail(f"expected at most {MAX_REPEAT} repetitions", start)
        return int(self.text[start : self.pos])

    def found(self) -> str:
        char = self.peek()
        return repr(char) if char else "the end of the text"

    def place(self, pos: int) -> str:
        line, column = self.line_and_column(pos)
        return f"line {line}, column {column}"

    def line_and_column(self, pos: int) -> tuple[int, int]:
        before = self.text[:pos]
        return before.count("\n") + 1, pos - before.rfind("\n")

    def fail(self, message: str, pos: int | None = None) -> NoReturn:
        line, column = self.line_and_column(self.pos if pos is None else pos)
        raise GrammarError(message, line=line, column=column)


# --------------------------------------------------------------------------- ranges


def merge(ranges: Ranges) -> tuple[tuple[int, int], ...]:
    """The same code points as ascending, disjoint ranges that do not touch."""
    out: Ranges = []
    for first, last in sorted(ranges):
        if out and first <= out[-1][1] + 1:
            out[-1] = out[-1][0], max(out[-1][1], last)
        else:
            out.append((first, last))
    return tuple(out)


def complement(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The code points outside of ascending, disjoint ranges."""
    out: Ranges = []
    start = 0
    for first, last in ranges:
        if first > start:
            out.append((start, first - 1))
        start = last + 1
    if start <= LAST_CODE_POINT:
        out.append((start, LAST_CODE_POINT))
    return tuple(out)


# --------------------------------------------------------------------------- printing


def print_gbnf(rules: Rules) -> str:
    """A grammar as GBNF text, its root first: for people to read.

    `parse_gbnf` reads it back as a grammar of the same language. Names of characters that GBNF does not
    allow, and a `Dfa`'s states, get names of their own.
    """
    return _Printer(rules).text()


class _Printer:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.names: dict[str, str] = {}
        self.lines: list[str] = []
        for name in (rules.root, *rules.rules):
            if name not in self.names:
                wanted = "".join(c if c in _WORD else "-" for c in name) or "rule"
                self.names[name] = self.fresh("root" if name == rules.root else wanted)

    def fresh(self, wanted: str) -> str:
        taken = set(self.names.values())
        name, n = wanted, 1
        while name in taken:
            n += 1
            name = f"{wanted}-{n}"
        return name

    def text(self) -> str:
        for name, spelled in self.names.copy().items():
            self.lines.append(f"{spelled} ::= {self.alternatives(self.rules.rules[name])}")
        return "\n".join(self.lines) + "\n"

    def alternatives(self, node: Node) -> str:
        if isinstance(node, Alt) and node.items:
            return " | ".join(self.sequence(item) for item in node.items)
        return self.sequence(node)

    def sequence(self, node: Node) -> str:
        if isinstance(node, Seq) and node.items:
            return " ".join(self.item(item) for item in node.items)
        return self.item(node)

    def item(self, node: Node) -> str:
        if isinstance(node, Text):
            return '"' + "".join(_spell(ord(char), '"\\') for char in node.text) + '"'
        if isinstance(node, Chars):
            return "." if node == _ANY else _spell_class(node.ranges)
        if isinstance(node, Tokens):
            return self.tokens(node)
        if isinstance(node, Ref):
            return self.names[node.name]
        if isinstance(node, Dfa):
            return self.dfa(node)
        if isinstance(node, Repeat):
            atom = self.item(node.item)
            if isinstance(node.item, Repeat):
                atom = f"({atom})"
            return atom + _spell_bounds(node.least, node.most)
        if isinstance(node, Seq) and not node.items:
            return '""'
        if isinstance(node, Alt) and not node.items:
            return "[]"
        return f"({self.alternatives(node)})"

    def tokens(self, node: Tokens) -> str:
        if node.negated and len(node.ids) > 1:
            raise GrammarError(f"GBNF: cannot say any token but {len(node.ids)} others")
        spelled = [f"{'!' * node.negated}<[{id}]>" for id in node.ids]
        return spelled[0] if len(spelled) == 1 else f"({' | '.join(spelled)})" if spelled else "[]"

    def dfa(self, node: Dfa) -> str:
        """A right-linear rule for each state."""
        names: list[str] = []
        for state in range(len(node.edges)):
            names.append(self.fresh(f"dfa-{len(self.names)}"))
            self.names[f"\0{len(self.names)} {state}"] = names[-1]
        for state, edges in enumerate(node.edges):
            by_target: dict[int, Ranges] = {}
            for first, last, target in edges:
                by_target.setdefault(target, []).append((first, last))
            options = [f"{_spell_class(merge(r))} {names[target]}" for target, r in by_target.items()]
            options += ['""'] * (state in node.accepting)
            self.lines.append(f"{names[state]} ::= {' | '.join(options) or '[]'}")
        return names[0]


def _spell(code: int, special: str) -> str:
    char = chr(code)
    if char in special:
        return "\\" + char
    if 0x20 <= code < 0x7F:
        return char
    if char in "\t\r\n":
        return {"\t": "\\t", "\r": "\\r", "\n": "\\n"}[char]
    return f"\\x{code:02X}" if code < 0x100 else f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


def _spell_class(ranges: tuple[tuple[int, int], ...]) -> str:
    open_ended = len(ranges) > 1 and ranges[0][0] == 0 and ranges[-1][1] == LAST_CODE_POINT
    shown = complement(ranges) if open_ended else ranges
    parts = []
    for first, last in shown:
        low, high = _spell(first, "]\\[-"), _spell(last, "]\\[-")
        low = f"\\x{first:02X}" if low == "^" else low
        parts.append(low if first == last else f"{low}-{high}")
    return f"[{'^' * open_ended}{''.join(parts)}]"


def _spell_bounds(least: int, most: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    if short is not None:
        return short
    if most is None:
        return f"{{{least},}}"
    return f"{{{least}}}" if least == most else f"{{{least},{most}}}"
