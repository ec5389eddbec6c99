"""`Grammar`: a compiled grammar, the language that a generated text must belong to."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from oxillama._kernels.grammar.nodes import matches
from oxillama._kernels.grammar.parser_states import ParserStates
from oxillama.base.config.checks import shown
from oxillama.errors import GrammarError
from oxillama.text.grammar.constraint import HARD_BYTES, MASK_WORK, Constraint
from oxillama.text.grammar.gbnf import parse_gbnf
from oxillama.text.grammar.gbnf_printer import print_gbnf
from oxillama.text.grammar.grammar_text import TokenIds
from oxillama.text.grammar.json_schema import JsonSchemaCompiler
from oxillama.text.grammar.packed import packed
from oxillama.text.grammar.plain import plain_rules
from oxillama.text.grammar.program import Found, Pieces
from oxillama.text.grammar.regex import parse_regex
from oxillama.text.grammar.rules import Rules
from oxillama.text.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from oxillama._kernels.grammar.network import Program
    from oxillama.text.tokenizer.tokenizer import Tokenizer

MOST_CONSTRAINTS = 4  # vocabularies per grammar whose constraints are cached

# The grammar of a JSON text, exactly as RFC 8259 defines it.
_JSON = r"""
root   ::= ws value ws
value  ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (member (ws "," ws member)* ws)? "}"
member ::= string ws ":" ws value
array  ::= "[" ws (value (ws "," ws value)* ws)? "]"
string ::= "\"" ([^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+-]? [0-9]+)?
ws     ::= [ \t\n\r]*
"""


class Grammar:
    """A compiled grammar. Immutable: sequences, models and threads may share one.

    Made by `parse`, `from_json_schema`, `from_regex`, `from_rules` or `json`; follow it with `GrammarState`.
    """

    def __init__(self, rules: Rules, found: Found | None = None) -> None:
        self.rules = rules
        self._pieces = Pieces(rules, found)
        self.program: Program = self._pieces.program
        self._digest: bytes | None = None
        self._lock = Lock()
        self._constraints: dict[Vocabulary, Constraint] = {}

    @classmethod
    def parse(cls, text: str, root: str = "root", tokenizer: Tokenizer | None = None) -> Grammar:
        """Compile a grammar in GBNF.

        Args:
            text: The grammar, in the notation of llama.cpp.
            root: The rule that the whole output must match.
            tokenizer: Needed if the grammar names tokens by their text, as in `<|im_end|>`.

        Raises:
            GrammarError: The text is not a valid grammar (with line and column), matches no text, or is too
                large.
        """
        return cls(parse_gbnf(text, root, None if tokenizer is None else spelled_ids(tokenizer)))

    @classmethod
    def from_rules(cls, rules: Rules) -> Grammar:
        """Compile the rules that a front end made; raises GrammarError as `parse` does."""
        return cls(rules)

    @classmethod
    def from_regex(cls, pattern: str) -> Grammar:
        """The texts that a regular expression (ECMA-262, as in JSON Schema) matches from end to end.

        Raises:
            GrammarError: The pattern is malformed, not regular (with the position), over a limit, or matches
                nothing.
        """
        node = parse_regex(pattern, search=False)
        if not matches(node, set()):
            raise GrammarError(f"regex {shown(pattern)}: no text matches it")
        return cls(Rules("root", {"root": node}))

    @classmethod
    def from_json_schema(
        cls, schema: object, *, strict: bool = True, compiler: JsonSchemaCompiler | None = None
    ) -> Grammar:
        """The JSON texts whose values meet a schema.

        Args:
            schema: A JSON Schema, its text, or a type: a dataclass, a `TypedDict`, a pydantic model.
            strict: If True, a keyword that cannot be enforced is an error; if False it is ignored.
            compiler: Holds non-default options; afterwards lists the ignored keywords.

        Raises:
            GrammarError: The schema is malformed, cannot be enforced or met, or is over a limit.
        """
        compiler = compiler or JsonSchemaCompiler()
        try:
            return cls(compiler.compile(schema, strict))
        except GrammarError as error:
            reason = str(error)
            raise GrammarError(reason if "#" in reason else f"#: {reason}") from None

    @classmethod
    def json(cls) -> Grammar:
        """Any JSON text (RFC 8259), with optional whitespace around it."""
        return _json()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the rules, each separately, and the analysis; rules are unpickled when first used."""
        return Grammar, (packed(self.rules), self._pieces.found)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the rules; grammars of the same digest behave the same."""
        if self._digest is None:
            text = json.dumps(plain_rules(self.rules), separators=(",", ":"))
            self._digest = hashlib.sha256(text.encode()).digest()
        return self._digest

    def to_gbnf(self) -> str:
        """The grammar as GBNF text, for people to read."""
        return print_gbnf(self.rules)

    def matches(self, text: str | bytes) -> bool:
        """Whether the whole text belongs to the language.

        Raises:
            GrammarError: The grammar names tokens, so text alone cannot decide; or a limit of memory or work
                was reached.
        """
        if self.program.token_sets:
            raise GrammarError("grammar: names tokens, so whether it matches depends on a vocabulary")
        try:
            data = text.encode() if isinstance(text, str) else text
        except UnicodeEncodeError:
            return False  # lone surrogates are in no text
        states = ParserStates(self.program, HARD_BYTES, MASK_WORK)
        return states.accepts(states.advance(states.start(), data))

    def table_bytes(self) -> int:
        """Bytes of the parser states and masks of its constraints."""
        with self._lock:
            return sum(each.table_bytes for each in self._constraints.values())

    def constraint(self, vocabulary: Vocabulary) -> Constraint:
        """The state shared by sequences over this vocabulary; the `MOST_CONSTRAINTS` used last are cached."""
        with self._lock:
            found = self._constraints.pop(vocabulary, None) or Constraint(self.program, vocabulary)
            self._constraints[vocabulary] = found
            if len(self._constraints) > MOST_CONSTRAINTS:
                del self._constraints[next(iter(self._constraints))]
        return found


def spelled_ids(tokenizer: Tokenizer) -> TokenIds:
    """A function that encodes the text of a special token, for parsers of grammars."""
    return lambda spelled: tokenizer.encode(spelled, add_special=False, parse_special=True)


@lru_cache(maxsize=1)
def _json() -> Grammar:
    return Grammar.parse(_JSON)
