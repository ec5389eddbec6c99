"""`ToolCallGrammar`: one way to write reasoning and calls, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from oxillama.base.config import checks
from oxillama.text.toolcalls.patterns import BODIES, WORDS, pattern

OBJECT = '{"name":~"$name",~"arguments":~$json}'
FUNCTION, PARAMETER = "<function=$name>\n$arguments</function>", "<parameter=$key>\n$value\n</parameter>\n"


@dataclass(frozen=True)
class ToolCallGrammar:
    """A way to write calls and reasoning. The grammar of messages and their parser are both made of it.

    Calls are patterns: texts with ``$`` words in the place of what differs, and ``~`` for optional white
    space. Line breaks must be written, and may be missing when a call is parsed.

    ======================  ============================================================================
    ``$name``               the tool's name
    ``$id``, ``$code``      an id of 9 letters and digits, or of 10 without capitals
    ``$number``             a number of the call
    ``$kind``               the word function
    ``$json``               all arguments as an object in JSON
    ``$members``            the same with bare keys, and with ``quote`` around strings
    ``$keywords``           arguments of Python
    ``$elements``           a tag for each argument, member and item, named as they are
    ``$arguments``          each argument as ``argument`` has it
    ``$key``, ``$value``    an argument's name; its text, which is the string itself or JSON
    ``$string``, ``$type``  whether the value is a string, ``true`` or ``false``; its type of JSON
    ======================  ============================================================================

    Attributes:
        name: of the format.
        calls: patterns of a call; none if there are no calls. A pattern that begins with ``{`` is an object
            in JSON, which is parsed whatever the order of its members and by other names for them.
        opens: texts that a call, or several, can begin with; first the usual one. One that a pattern begins
            with is the beginning of a call, all others stand before it.
        close: text that calls end with; "" if it is ``</...>`` of what they began with, in formats of tags,
            or nothing. May be missing at the end of a message.
        reasoning: texts before and after reasoning; None for a format without reasoning.
        argument: pattern of an argument, where calls have ``$arguments``.
        also: patterns of calls and arguments that are parsed and never written.
        separator: pattern of what stands between calls; "" if each has delimiters of its own.
        listed: objects, and calls in Python, are written as a list.
        quote: text around strings, for ``$members``.
        mark: text before every tag, for ``$elements``.
        wrapping: texts that may surround a string in a tag.
        headers: patterns of the beginning of a message that is a call, for formats of several messages. Their
            recipients come after ``to=``, or are the whole header.
        answers: what begins a message that is an answer, first the usual one.
        turns: what begins a further message, what ends its header, and what ends a message.
        next: what stands between two messages.
        escaped: names are in the characters of XML.
        spread: calls in JSON are written over several lines.
        bare: a call may be the whole message, without a delimiter.
        single: a message has one call at most.
        reasoning_anywhere: it may also come after text.
        ends_reasoning: a call inside it is a call, and ends it.
        framing: texts around answers and between the parts of a message, which are written and mean nothing.
        dropped: texts that mean nothing where they are written, and are not asked for.
        marks: texts that a chat template of this format has and, after ``!``, texts that it has not.
    """

    name: str
    calls: tuple[str, ...]
    opens: tuple[str, ...]
    close: str = ""
    reasoning: tuple[str, str] | None = None
    argument: str = ""
    also: tuple[str, ...] = ()
    separator: str = ""
    listed: bool = False
    quote: str = ""
    mark: str = ""
    wrapping: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()
    next: str = ""
    escaped: bool = False
    spread: bool = False
    bare: bool = False
    single: bool = False
    reasoning_anywhere: bool = False
    ends_reasoning: bool = False
    framing: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    Llama3: ClassVar[ToolCallGrammar]
    Qwen: ClassVar[ToolCallGrammar]
    Mistral: ClassVar[ToolCallGrammar]

    @staticmethod
    def Custom(open: str, close: str, reasoning: tuple[str, str] | None = None) -> ToolCallGrammar:
        """Calls between delimiters of your own: JSON, or tags in Qwen's form.

        Raises ConfigError for an empty delimiter.
        """
        for name, text in {"open": open, "close": close}.items():
            if not isinstance(text, str) or not text.strip():
                raise checks.refuse(name, "a text that is not empty", text)
        return ToolCallGrammar(
            "custom", (OBJECT,), (open,), close, reasoning, argument=PARAMETER, also=(FUNCTION,)
        )

    @staticmethod
    def of(plain: Mapping[str, Any]) -> ToolCallGrammar:
        """The format of which ``dataclasses.asdict`` gave the fields. Raises ConfigError for other values."""
        found = dict(plain)
        for field in fields(ToolCallGrammar):
            key, kind = field.name, str(field.type)
            if key in ("calls", "opens") or (kind.startswith("tuple[str, ...") and key in found):
                found[key] = checks.texts(key, found.get(key, ()), empty=False)
            elif kind == "str":
                checks.encodable(key, found.setdefault(key, ""))
            elif kind == "bool":
                checks.boolean(key, found.setdefault(key, False))
        for key, n, wanted in _LENGTHS:
            if found.get(key):
                found[key] = checks.texts(key, found[key], empty=False)
                if len(found[key]) < n:
                    raise checks.refuse(key, wanted, found[key])
        unknown = set(found) - {f.name for f in fields(ToolCallGrammar)}
        if unknown:
            raise checks.refuse("message_format", "fields of a format", sorted(unknown))
        made = ToolCallGrammar(**found)
        made._check()
        return made

    def _check(self) -> None:
        """Raises ConfigError for what is no pattern, and where a text that patterns need is missing."""
        words = (*WORDS, *BODIES, "value")
        for text in (*self.calls, *self.also, *filter(None, (self.argument,))):
            made, wanted = pattern(text), ("value",) if text == self.argument else BODIES
            if "".join(made.parts) != text or any(p[0] == "$" and p[1:] not in words for p in made.parts):
                raise checks.refuse("calls", f"no words but ${', $'.join(words)} in each pattern", text)
            if made.body not in wanted and not (text in self.also and made.body == "value"):
                raise checks.refuse("calls", f"one of ${', $'.join(wanted)} in each pattern", text)
            for body, key in _NEEDS.items():
                if made.body == body and not getattr(self, key):
                    raise checks.refuse(key, f"a text, for the calls have ${body}", "")
        if self.calls and not (self.opens or self.headers):
            raise checks.refuse("opens", "a text that a call begins with", self.opens)
        if self.headers and not (self.turns and self.answers and self.turns[0] in self.next):
            lacking = "none without turns, answers, and what begins a turn in next"
            raise checks.refuse("headers", lacking, self.headers)

    @property
    def has_calls(self) -> bool:
        """Whether there are calls at all."""
        return bool(self.calls)

    def open_delimiter(self) -> str:
        """The text that a call begins with; "" for a format without calls."""
        return self.opens[0] if self.opens else ""

    def close_delimiter(self) -> str:
        """What a call ends with; "" if it ends with its JSON."""
        return self.close

    @property
    def delimiters(self) -> tuple[str, ...]:
        """All texts that mean something to the format; special tokens may be parts of them."""
        patterns = (*self.calls, self.argument, *self.also, *self.headers, *self.answers, self.next)
        found = [text for one in patterns for text in pattern(one).literals]
        found += (*self.opens, *map(self.closing, self.opens), *(self.reasoning or ()), *self.wrapping)
        found += (*self.turns, self.quote, self.mark, *self.framing, *self.dropped)
        return tuple(text for text in dict.fromkeys(found) if text)

    def closing(self, opened: str) -> str:
        """What closes calls that ``opened`` begins; "" if nothing does."""
        return self.close or (f"</{opened[1:]}" if self.argument and opened.startswith("<") else "")

    def without_calls(self) -> ToolCallGrammar:
        """The format with the same reasoning and without calls: a call is text."""
        if self.headers:  # its messages are not told apart without it
            return self
        return replace(self, calls=(), also=(), opens=(), close="", bare=False, ends_reasoning=False)

    def begins_in_reasoning(self, prompt: str) -> bool:
        """Whether a prompt ends inside reasoning, so that what follows begins there."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning[0])

    def at_answer(self, prompt: str) -> str:
        """A prompt, continued to where the text of an answer begins.

        Reasoning that the prompt opens is closed, and the header of a message that is an answer is added.
        """
        if self.headers:
            begun = prompt.endswith(self.next[self.next.index(self.turns[0]) :])
            return prompt + self.answers[0] if begun else prompt
        if self.reasoning is None or not self.begins_in_reasoning(prompt):
            return prompt
        return f"{prompt}\n{self.reasoning[1]}\n\n"


_LENGTHS = (
    ("reasoning", 2, "a text before and one after it"),
    ("wrapping", 2, "a text before and one after a string"),
    ("turns", 2, "what begins a message, what ends its header, and what ends the message"),
)
_NEEDS = {"arguments": "argument", "members": "quote", "elements": "mark"}
