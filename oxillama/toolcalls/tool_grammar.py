"""`ToolCallGrammar`: the facts of one way to write reasoning and calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from oxillama.config import checks

STYLES = {  # with the number of their texts in ``inside``, ``tags`` and ``headers``
    "tagged": (0, 0, 0),
    "keys": (3, 4, 0),
    "bare": (0, 0, 0),
    "mistral": (0, 0, 0),
    "sections": (3, 0, 0),
    "invoke": (0, 5, 0),
    "elements": (0, 1, 0),
    "dict": (0, 0, 0),
    "python": (0, 0, 0),
    "harmony": (0, 0, 0),
    "recipients": (0, None, 5),
    "none": (0, 0, 0),
}
TURNS = ("harmony", "recipients")
"""Styles whose message is made of several, each with a header of its own."""


@dataclass(frozen=True)
class ToolCallGrammar:
    """A way to write calls and reasoning.

    Attributes
    ----------
    name : of the format.
    style : syntax of calls: "tagged" (JSON, or Qwen's tags), "keys" (GLM's tags), "bare" (JSON, perhaps the
        whole message), "mistral" (JSON, or a name and JSON), "sections" (a name and JSON, each call between
        delimiters), "invoke" (tags with attributes), "elements" (tags that are named as the parameters are),
        "dict" (Gemma's), "python" (a list of calls in Python), "harmony" (gpt-oss), "recipients" (messages
        within the message, of which each names a tool or the user), "none".
    opens : texts that a call, or several, can begin with; first the usual one.
    close : text that it ends with; "" if it ends with its JSON. May be missing at the end of a message.
    reasoning : texts before and after it; None if there is none.
    quote : text around strings, in the style "dict".
    inside : texts before a call, between its name and its arguments, and behind it, in the styles "sections"
        and "keys", where the second may be "".
    identified : text between a call's id and its name, in the style "sections"; "" if it has no id.
    tags : the tags inside a call. In the style "keys" those around a parameter's name and around its value;
        in "invoke" the beginnings of a call's and a parameter's tag, up to the quotes of the name, the ends
        of a parameter and of a call, and what a tag ends with; in "elements" what stands before each tag.
    typed : attribute that tells the type of a parameter, in the style "invoke": "string" is true or false,
        "type" is a type of JSON, and calls are numbered; "" if there is none.
    headers : in the style "recipients": what follows the prompt before the first recipient, and what follows
        each recipient; what ends a message that is not the last; the recipients of answers and of reasoning.
    members : names of the members of a call that is JSON: of an id, if there are three, of the tool's name
        and of its arguments; none where the tool's name is the name of the arguments.
    numbered : its name is written as functions.NAME:0, in the style "sections"; that is its id.
    fenced : arguments may also stand in a block of code, in the style "sections".
    listed : JSON between the delimiters is a list of calls, in the style "tagged".
    lines : it is several calls, one to a line, in the style "tagged".
    spread : a list of calls is written over several lines, in the style "tagged".
    tight : no line breaks stand between values and their tags.
    cdata : strings may stand in ``<![CDATA[...]]>``, in the style "invoke".
    single : a message has one call at most.
    reasoning_anywhere : it may also come after text.
    ends_reasoning : a call inside it is a call, and ends it.
    framing : texts around answers and between the parts of a message, which are written and mean nothing.
    dropped : texts that mean nothing where they are written, and are not asked for.
    """

    name: str
    style: str
    opens: tuple[str, ...]
    close: str
    reasoning: tuple[str, str] | None = None
    quote: str = ""
    inside: tuple[str, ...] = ()
    identified: str = ""
    tags: tuple[str, ...] = ()
    typed: str = ""
    headers: tuple[str, ...] = ()
    members: tuple[str, ...] = ("name", "arguments")
    numbered: bool = False
    fenced: bool = False
    listed: bool = False
    lines: bool = False
    spread: bool = False
    tight: bool = False
    cdata: bool = False
    single: bool = False
    reasoning_anywhere: bool = False
    ends_reasoning: bool = False
    framing: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    Llama3: ClassVar[ToolCallGrammar]
    Qwen: ClassVar[ToolCallGrammar]
    Mistral: ClassVar[ToolCallGrammar]

    @staticmethod
    def Custom(open: str, close: str, reasoning: tuple[str, str] | None = None) -> ToolCallGrammar:
        """Calls between delimiters of your own: JSON, or tags as Qwen has them.

        Raises ConfigError for an empty delimiter.
        """
        for name, text in {"open": open, "close": close}.items():
            if not isinstance(text, str) or not text.strip():
                raise checks.refuse(name, "a text that is not empty", text)
        return ToolCallGrammar("custom", "tagged", (open,), close, reasoning)

    @staticmethod
    def of(plain: Mapping[str, Any]) -> ToolCallGrammar:
        """The format of which ``dataclasses.asdict`` gave the fields. Raises ConfigError for other values."""
        found = dict(plain)
        for key, kind in _KINDS.items():
            if kind is tuple and (key in found or key == "opens"):
                found[key] = checks.texts(key, found.get(key, ()), empty=key in ("inside", "headers"))
            elif kind is str:
                checks.encodable(key, found.setdefault(key, ""))
            elif kind is bool:
                checks.boolean(key, found.setdefault(key, False))
        if found.get("reasoning") is not None:
            pair = checks.texts("reasoning", found["reasoning"], empty=False)
            found["reasoning"] = pair
            if len(pair) != 2:
                raise checks.refuse("reasoning", "a text before and one after it", pair)
        checks.one_of("style", found["style"], set(STYLES))
        unknown = set(found) - {f.name for f in fields(ToolCallGrammar)}
        if unknown:
            raise checks.refuse("message_format", "fields of a format", sorted(unknown))
        made = ToolCallGrammar(**found)
        made._check()
        return made

    def _check(self) -> None:
        """Raises ConfigError where the texts are not as many as the style has."""
        for key, n in zip(("inside", "tags", "headers"), STYLES[self.style], strict=True):
            texts = getattr(self, key)
            if n is None and len(texts) not in (0, 5):
                raise checks.refuse(key, f"five texts or none in the style {self.style!r}", texts)
            if n and len(texts) != n:
                wanted = ("one text", "two texts", "three texts", "four texts", "five texts")[n - 1]
                raise checks.refuse(key, f"{wanted} in the style {self.style!r}", texts)
        if len(self.members) not in (0, 2, 3):
            wanted = "the names of a name and of arguments, or of an id too"
            raise checks.refuse("members", wanted, self.members)
        if not self.opens and self.style != "none":
            raise checks.refuse("opens", "a text that a call begins with", self.opens)

    def open_delimiter(self) -> str:
        """What a call begins with; "" if there are none."""
        return self.opens[0] if self.opens else ""

    def close_delimiter(self) -> str:
        """What a call ends with; "" if it ends with its JSON."""
        return self.close

    @property
    def delimiters(self) -> tuple[str, ...]:
        """All texts that mean something to the format; special tokens may be parts of them."""
        found = (*self.opens, self.close, *(self.reasoning or ()), self.quote, *self.inside, self.identified)
        found += (*self.tags, *self.headers, *self.framing, *self.dropped, *_INSIDE.get(self.style, ()))
        return tuple(text for text in found if text)

    def without_calls(self) -> ToolCallGrammar:
        """The same reasoning, and no calls: what looks like one is text."""
        if self.style in TURNS:  # its messages are not told apart without it
            return self
        return replace(self, style="none", opens=(), close="", ends_reasoning=False)

    def begins_in_reasoning(self, prompt: str) -> bool:
        """Whether a prompt ends inside reasoning, so that what follows begins there."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning[0])


GLM_TAGS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")


def invoke_tags(mark: str) -> tuple[str, ...]:
    """The tags ``invoke`` and ``parameter`` with a mark before their names, for the style "invoke"."""
    return (
        *(f'<{mark}invoke name="', f'<{mark}parameter name="'),
        *(f"</{mark}parameter>", f"</{mark}invoke>", ">"),
    )


_KINDS: dict[str, type] = {
    f.name: tuple if "tuple" in str(f.type) else bool if f.type == "bool" else str
    for f in fields(ToolCallGrammar)
    if f.name != "reasoning"
}
_INSIDE = {
    "mistral": ("[CALL_ID]", "[ARGS]"),
    "harmony": (
        *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
    ),
}
"""Texts inside calls or messages, by style."""
