"""Lark-style grammars in llguidance's dialect: text to `Rules`.

Names of rules are lower case, names of terminals upper case; text that `%ignore` matches may follow each
terminal of a rule. There is no lexer: a text belongs to the language if the rules allow any way to cut the
text into terminals. `lark_lazy` describes how lazy rules change that. Regular expressions follow
`grammar/regex.py` (ECMA-262), with the flags ``i`` and ``s``. Source: the syntax of llguidance 1.9.1
(docs/syntax.md), after Lark's. Unsupported syntax is an error with line and column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from oxillama.base.deadline import check_deadline
from oxillama.errors import GrammarError
from oxillama.text.grammar.analysis import replaced, walk
from oxillama.text.grammar.dfa import automaton, meet
from oxillama.text.grammar.expressions import EMPTY
from oxillama.text.grammar.grammar_text import MAX_DEPTH, TokenIds, errors_under
from oxillama.text.grammar.lark_items import LarkItems, schema_rules
from oxillama.text.grammar.lark_lazy import cut_lazily
from oxillama.text.grammar.lark_terminals import COMMON, regex_node
from oxillama.text.grammar.rulebook import RuleBook
from oxillama.text.grammar.rules import Alt, Dfa, Node, Ref, Repeat, Rules, Seq
from oxillama.text.grammar.structural_fields import Fields, parsed, texts_of

HEADER = "%llguidance"
"""The first line of a Lark-style grammar."""

_NAME = re.compile(r"[?!]*(_*[a-z](?:[a-z0-9_]|-(?!>))*|_*[A-Z](?:[A-Z0-9_]|-(?!>))*)(?![A-Za-z0-9_])")
_GRAMMAR = re.compile(r"@([A-Za-z_](?:[A-Za-z0-9_]|-(?!>))*)")
_ENDS = ("", "|", "&", ")", "]", "\n")
"""Texts that may follow a sequence."""
_ATTRIBUTE = re.compile(r"lazy\b|suffix\s*=\s*")
_WORD = re.compile(r"%[a-z]*")
_IMPORT = re.compile(r"common\s*(?:\.\s*([A-Z_]+)(?:\s*->\s*([A-Z_][A-Z0-9_]*))?|\(([A-Z_,\s]*)\))")


def is_lark(text: str) -> bool:
    """Whether a grammar is Lark-style: the text begins with `HEADER`, or is JSON."""
    return text.lstrip().startswith((HEADER, "{"))


def parse_lark(text: str, token_ids: TokenIds | None = None, any_order: bool = False) -> Rules:
    """Parse a grammar; the whole text must match its rule ``start``.

    Args:
        text: The grammar; the line ``%llguidance {}`` may precede it. Or JSON, ``{"grammars": [...]}``: a
            list of grammars, each with ``lark_grammar`` or ``json_schema``. The whole text must match the
            first grammar; grammars with a ``name`` can be referenced as ``@name``.
        token_ids: Encodes the text of a token, `<` and `>` included, to token ids; must return exactly one.
        any_order: Whether objects of schemas take their properties in any order.

    Raises:
        GrammarError: The text is not a valid grammar, or uses an unsupported feature; the message and the
            attributes give line and column. In a list of grammars, the message gives the path.
    """
    book = RuleBook()
    if not text.lstrip().startswith("{"):
        return book.rules(_Parser(text, token_ids, any_order, book, {}).parse(), "start")
    fields = Fields("grammar", parsed("grammar", text))
    grammars = list(fields.each("grammars", "grammars", least=1))
    fields.done()
    refs = [book.name("grammar") for _ in grammars]
    names: dict[str, Ref] = {}
    for one, ref in zip(grammars, refs):
        name = one.text("name", "")
        if name and names.setdefault(name, ref) != ref:
            raise one.error("name", "a name that no other grammar has")
    for one, ref in zip(grammars, refs):
        kind = "json_schema" if one.known("lark_grammar") is None else "lark_grammar"
        path, value = one.path_of(kind), one.take(kind)
        one.done()
        parser = None
        if kind == "lark_grammar":
            (lark,) = texts_of(path, [value])
            parser = _Parser(lark, token_ids, any_order, book, names, f"{path}: ")
        with errors_under(path):
            node = parser.parse() if parser else book.include(schema_rules(value, any_order, path))
        book.define(ref, node)
    return book.rules(refs[0])


class _Parser(LarkItems):
    """Parses one grammar into a rule book. ``grammars``: the named grammars that it may reference."""

    def __init__(
        self,
        text: str,
        token_ids: TokenIds | None,
        any_order: bool,
        book: RuleBook,
        grammars: Mapping[str, Ref],
        where: str = "",
    ) -> None:
        super().__init__(text, token_ids, any_order, where)
        self.grammars = grammars
        self.nodes: dict[str, Node] = {}  # rules and terminals by name
        self.refs: dict[str, Ref] = {}  # ... and their references in the book
        self.names: dict[Ref, str] = {}
        self.places: dict[str, int] = {}
        self.used: dict[str, int] = {}
        self.book = book
        self.skip = self.book.name("skip")  # the rule of ignored text
        self.ignored: list[Node] = []
        self.skips_first = False
        self.in_terminal = False
        self.lexemes: dict[Ref, Node] = {}  # each use of a terminal in a rule: reference -> node
        self.lazy: dict[Ref, str] = {}  # the lazy lexemes, with the names of their rules

    def parse(self) -> Node:
        """Parse all statements; returns the node of the whole text."""
        while True:
            self.blanks(lines=True)
            if self.pos >= len(self.text):
                break
            self.statement()
            self.blanks()
            if self.peek() not in ("\n", ""):
                self.fail(f"expected the end of the line, got {self.found()}")
        for name, at in self.used.items():
            if name not in self.nodes:
                self.fail(f"{name} is not defined", at)
        if "start" not in self.nodes:
            raise GrammarError(f"grammar: expected a rule start, got {', '.join(self.nodes) or 'no rules'}")
        skip = Repeat(Alt(tuple(self.inlined(node, ()) for node in self.ignored)), 0, None)
        self.book.define(self.skip, skip if self.ignored else EMPTY)
        start = self.ref("start")
        if self.lazy:
            self.cut_lazily(start)
        for name, node in self.nodes.items():
            if name.isupper():
                self.book.define(self.ref(name), self.inlined(node, (name,)))
            else:
                self.book.define(self.ref(name), replaced(node, lambda ref: self.lexemes.get(ref, ref)))
        return Seq((self.skip, start)) if self.skips_first else start

    def cut_lazily(self, start: Ref) -> None:
        """Remove texts that lazy matching excludes, from lazy terminals and from terminals that compete."""
        at = min(self.places[name] for name in self.lazy.values())
        if self.ignored:
            self.fail("expected no %ignore together with lazy rules", at)
        rules = {self.ref(name): node for name, node in self.nodes.items() if not name.isupper()}
        terminals = {one: self.inlined(node, ()) for one, node in self.lexemes.items()}
        with self.errors_at(at):
            self.lexemes |= cut_lazily(rules, start, terminals, self.lazy)

    def ref(self, name: str) -> Ref:
        """The reference to a rule or a terminal."""
        if name not in self.refs:
            self.refs[name] = self.book.name(name)
            self.names[self.refs[name]] = name
        return self.refs[name]

    # ------------------------------------------------------------------ statements

    def statement(self) -> None:
        start = self.pos
        if self.text.startswith("%", start):
            return self.directive()
        name = self.read(_NAME, "a rule, a terminal or a directive")[1]
        suffix = self.attribute() if self.peek() == "[" and name.islower() else None
        if self.peek() == ".":
            self.fail("priorities are not supported")
        self.blanks()
        self.expect(":", f"after {name}")
        node = self.body(name.isupper() or suffix is not None)
        if suffix is not None:
            self.in_terminal = False
            node = self.lexeme(Seq((node, suffix)))
            self.lazy[next(reversed(self.lexemes))] = name
        self.define(name, start, node)

    def attribute(self) -> Node:
        """Parse a lazy rule's attribute; returns the node of its suffix. Other attributes are rejected."""
        self.pos += 1
        if self.text.startswith("stop", self.pos):
            self.fail("stop= would remove generated text; use suffix= or lazy")
        found = self.read(_ATTRIBUTE, "lazy or suffix=")
        suffix = None
        if found[0] != "lazy":
            self.in_terminal = True
            suffix = self.item()
            if suffix is None:
                self.fail(f"expected a terminal after suffix=, got {self.found()}")
        self.blanks()
        self.expect("]", "to close the attribute")
        return suffix or EMPTY

    def define(self, name: str, at: int, node: Node) -> None:
        if name in self.nodes:
            self.fail(f"{name} is defined twice", at)
        self.nodes[name], self.places[name] = node, at

    def body(self, is_terminal: bool) -> Node:
        self.in_terminal = is_terminal
        self.blanks()
        return self.alternatives()

    def directive(self) -> None:
        start = self.pos
        word = self.read(_WORD, "a directive")[0]
        self.blanks()
        if word == "%ignore":
            self.ignored.append(self.body(True))
        elif word == "%import":
            self.imported()
        elif word == HEADER:
            self.options(start)
        else:
            self.fail(f"expected %ignore, %import or {HEADER}, got {word}", start)

    def options(self, start: int) -> None:
        for name, value in self.json_object().items():
            if name != "allow_initial_skip" or not isinstance(value, bool):
                self.fail(f"expected no option but allow_initial_skip, got {name}", start)
            self.skips_first = value

    def imported(self) -> None:
        start = self.pos
        found = self.read(_IMPORT, "a name as common.INT, or several as common (INT, WS)")
        names = [found[1]] if found[1] else [name.strip() for name in found[3].split(",") if name.strip()]
        for name in names:
            if name not in COMMON:
                self.fail(f"expected one of {', '.join(COMMON)}, got {name}", start)
            self.define(found[2] or name, start, regex_node(COMMON[name], ""))

    # ------------------------------------------------------------------ expressions

    def alternatives(self) -> Node:
        options = [self.intersection()]
        while True:
            before = self.pos
            self.blanks(lines=True)
            if self.peek() != "|":
                if not self.depth:
                    self.pos = before
                return options[0] if len(options) == 1 else Alt(tuple(options))
            self.pos += 1
            self.blanks(lines=True)
            options.append(self.intersection())

    def intersection(self) -> Node:
        start = self.pos
        items = [self.operand()]
        while self.peek() == "&":
            self.need_terminal("&")
            self.pos += 1
            self.blanks()
            items.append(self.operand())
        if self.text.startswith("->", self.pos):  # names the alternative; no effect on the language
            self.pos += 2
            self.blanks()
            self.read(_NAME, "a name")
            self.blanks()
        if len(items) == 1 and items[0][0]:
            return items[0][1]
        return self.combined(items, start)

    def operand(self) -> tuple[bool, Node]:
        """A sequence, and True; or a single item negated with ``~``, and False."""
        if self.peek() != "~":
            return True, self.sequence([])
        start = self.pos
        item = self.negated()
        behind = self.pos
        self.blanks(lines=bool(self.depth))
        if self.peek() in _ENDS or self.text.startswith("->", self.pos):
            return False, item
        self.pos = behind
        return True, self.sequence([self.repeated(self.combined([(False, item)], start))])

    def negated(self) -> Node:
        """Parse the item after ``~``."""
        self.need_terminal("~")
        self.pos += 1
        self.blanks()
        item = self.item()
        if item is None:
            self.fail(f"expected an item, got {self.found()}")
        return item

    def combined(self, items: list[tuple[bool, Node]], start: int) -> Node:
        """The strings that match every positive item (flag True) and no negative item (flag False)."""
        nodes = [self.inlined(node, ()) for _, node in items]
        if any(isinstance(one, Ref) for node in nodes for one in walk(node)):
            self.fail("expected parts without %regex", start)
        with self.errors_at(start):
            parts: tuple[list[Dfa], list[Dfa]] = [], []
            for (must, _), node in zip(items, nodes):
                parts[not must].append(automaton(node))
            return meet(*parts)

    def sequence(self, items: list[Node]) -> Node:
        """Parse a sequence that begins with ``items``, already parsed."""
        check_deadline()
        while True:
            self.blanks(lines=bool(self.depth))
            start = self.pos
            item = self.combined([(False, self.negated())], start) if self.peek() == "~" else self.item()
            if item is None:
                return items[0] if len(items) == 1 else Seq(tuple(items))
            items.append(self.repeated(item))

    def repeated(self, item: Node) -> Node:
        while True:
            char = self.peek()
            if char and char in "*+?":
                self.pos += 1
                item = Repeat(item, int(char == "+"), 1 if char == "?" else None)
                continue
            bounds = self.count()
            if bounds is None:
                return item
            item = Repeat(item, *bounds)

    def item(self) -> Node | None:
        """The item that starts at this position; None if no item does."""
        char, start = self.peek(), self.pos
        if char == '"':
            return self.lexeme(self.string())
        if char == "/":
            return self.lexeme(self.regex())
        if char == "(" or char == "[":
            return self.group(")") if char == "(" else Repeat(self.group("]"), 0, 1)
        if char == "<":
            if self.in_terminal:
                self.fail("expected text within a terminal, got a token")
            return self.lexeme(self.token())
        if char == "%":
            return self.lexeme(self.special())
        if char == "@":
            return self.lexeme(self.grammar())
        found = _NAME.match(self.text, start)
        if found is None or (char and char in "?!"):
            return None
        self.pos = found.end()
        name = found[1]
        if self.in_terminal and not name.isupper():
            self.fail(f"expected a terminal within a terminal, got the rule {name}", start)
        self.used.setdefault(name, start)
        return self.lexeme(self.ref(name)) if name.isupper() else self.ref(name)

    def lexeme(self, node: Node) -> Node:
        """A terminal; in a rule, followed by ignored text."""
        if self.in_terminal:
            return node
        one = self.book.name("terminal")
        self.lexemes[one] = node
        return Seq((one, self.skip))

    def grammar(self) -> Ref:
        """Parse a reference to a named grammar."""
        start = self.pos
        name = self.read(_GRAMMAR, "a grammar as @name")[1]
        if self.in_terminal:
            self.fail(f"expected text within a terminal, got the grammar @{name}", start)
        if name not in self.grammars:
            known = ", ".join(self.grammars) or "no grammar has one"
            self.fail(f"expected the name of another grammar ({known}), got @{name}", start)
        return self.grammars[name]

    def special(self) -> Node:
        """Parse ``%json`` or ``%regex`` with its object."""
        start = self.pos
        for word in ("%json", "%regex"):
            if self.text.startswith(word, start):
                if self.in_terminal and word == "%json":
                    self.fail("%json is not allowed in a terminal", start)
                self.pos += len(word)
                self.blanks(lines=True)
                return self.book.include(self.ruled(start, word == "%json"))
        self.fail("expected %json or %regex")

    # ------------------------------------------------------------------ terminals

    def inlined(self, node: Node, within: tuple[str, ...]) -> Node:
        """A terminal with the terminals that it references inlined; a terminal may not contain itself."""

        def written(ref: Ref) -> Node:
            if ref not in self.names:
                return ref
            name = self.names[ref]
            if name not in self.nodes:
                self.fail(f"expected a terminal that is defined above, got {name}", self.used[name])
            if name in within or len(within) > MAX_DEPTH:
                self.fail(f"the terminal {name} contains itself", self.places[name])
            return self.inlined(self.nodes[name], (*within, name))

        return replaced(node, written)

    def need_terminal(self, what: str) -> None:
        if not self.in_terminal:
            self.fail(f"{what} can only combine the parts of a terminal")
