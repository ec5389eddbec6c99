"""The table of formats: how models write reasoning and calls, and how a chat template tells which one it is.

Facts: the chat templates of the models named. A format is chosen by marks that a template has because it
writes earlier calls in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from oxillama.config import checks


@dataclass(frozen=True)
class ToolCallGrammar:
    """A way to write calls and reasoning.

    Attributes
    ----------
    name : of the format.
    style : syntax of calls: "tagged" (JSON, or Qwen's tags), "keys" (GLM's tags), "bare" (JSON, perhaps the
        whole message), "mistral" (JSON, or a name and JSON), "sections" (a name and JSON, each call between
        delimiters), "invoke" (tags with attributes), "dict" (Gemma's), "python" (a list of calls in Python),
        "harmony" (gpt-oss), "none".
    opens : texts that a call, or several, can begin with; first the usual one.
    close : text that it ends with; "" if it ends with its JSON. May be missing at the end of a message.
    reasoning : texts before and after it; None if there is none.
    quote : text around strings, in the style "dict".
    inside : texts before a call, between its name and its arguments, and behind it, in the style "sections".
    numbered : its name is written as functions.NAME:0, in the style "sections"; that is its id.
    listed : JSON between the delimiters is a list of calls, in the style "tagged".
    tight : no line breaks stand between values and their tags, in the style "tagged".
    marks, unlike : texts that a template of this format has, all of them; and texts that it has not.
    reasoning_anywhere : it may also come after text.
    ends_reasoning : a call inside it is a call, and ends it.
    dropped : texts that mean nothing.
    """

    name: str
    style: str
    opens: tuple[str, ...]
    close: str
    reasoning: tuple[str, str] | None = None
    quote: str = ""
    inside: tuple[str, ...] = ()
    numbered: bool = False
    listed: bool = False
    tight: bool = False
    marks: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    reasoning_anywhere: bool = False
    ends_reasoning: bool = False
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
        for key in ("opens", "inside", "marks", "unlike", "dropped"):
            found[key] = checks.texts(key, found.get(key, ()), empty=False)
        if found.get("reasoning") is not None:
            pair = checks.texts("reasoning", found["reasoning"], empty=False)
            found["reasoning"] = pair
            if len(pair) != 2:
                raise checks.refuse("reasoning", "a text before and one after it", pair)
        for key in ("name", "style", "close", "quote"):
            checks.encodable(key, found.setdefault(key, ""))
        checks.one_of("style", found["style"], {row.style for row in _ROWS})
        for key in ("reasoning_anywhere", "ends_reasoning", "numbered", "listed", "tight"):
            checks.boolean(key, found.setdefault(key, False))
        unknown = set(found) - {f.name for f in fields(ToolCallGrammar)}
        if unknown:
            raise checks.refuse("message_format", "fields of a format", sorted(unknown))
        made = ToolCallGrammar(**found)
        if made.style == "sections" and len(made.inside) != 3:
            raise checks.refuse("inside", "three texts in the style 'sections'", made.inside)
        if not made.opens and made.style not in ("none",):
            raise checks.refuse("opens", "a text that a call begins with", made.opens)
        return made

    def open_delimiter(self) -> str:
        """What a call begins with; "" if there are none."""
        return self.opens[0] if self.opens else ""

    def close_delimiter(self) -> str:
        """What a call ends with; "" if it ends with its JSON."""
        return self.close

    @property
    def delimiters(self) -> tuple[str, ...]:
        """All texts that mean something to the format; special tokens may be parts of them."""
        found = (*self.opens, self.close, *(self.reasoning or ()), self.quote, *self.inside, *self.dropped)
        return tuple(text for text in (*found, *_INSIDE.get(self.style, ())) if text)

    def without_calls(self) -> ToolCallGrammar:
        """The same reasoning, and no calls: what looks like one is text."""
        if self.style == "harmony":  # its channels are not told apart without it
            return self
        return replace(self, style="none", opens=(), close="", ends_reasoning=False)

    def begins_in_reasoning(self, prompt: str) -> bool:
        """Whether a prompt ends inside reasoning, so that what follows begins there."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning[0])


_INSIDE = {
    "keys": ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "mistral": ("[CALL_ID]", "[ARGS]"),
    "invoke": ("<｜DSML｜invoke name=", "<｜DSML｜parameter name="),
    "harmony": (
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|constrain|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
    ),
}
"""Texts inside calls or messages, by style."""

THINK = ("<think>", "</think>")
REASONINGS = (THINK, ("[THINK]", "[/THINK]"))
"""Of formats that do not have one of their own, by what a template has."""

_ROWS = (
    ToolCallGrammar(
        "harmony",
        "harmony",
        ("<|channel|>commentary to=functions.",),
        "<|call|>",
        ("<|channel|>analysis<|message|>", "<|end|>"),
        marks=("<|channel|>", "<|message|>"),
    ),
    ToolCallGrammar(
        "deepseek-dsml",
        "invoke",
        ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"),
        "",
        THINK,
        marks=("｜DSML｜",),
        ends_reasoning=True,
    ),
    ToolCallGrammar(
        "deepseek",
        "sections",
        ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        "<｜tool▁calls▁end｜>",
        THINK,
        inside=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        marks=("<｜tool▁calls▁begin｜>",),
        ends_reasoning=True,
    ),
    ToolCallGrammar(
        "kimi",
        "sections",
        ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        "<|tool_calls_section_end|>",
        inside=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        numbered=True,
        marks=("<|tool_calls_section_begin|>",),
        ends_reasoning=True,
    ),
    ToolCallGrammar(
        "minimax",
        "invoke",
        ("<minimax:tool_call>",),
        "",
        THINK,
        marks=("<minimax:tool_call>", "<invoke name="),
    ),
    ToolCallGrammar(
        "seed",
        "tagged",
        ("<seed:tool_call>", "<function="),
        "</seed:tool_call>",
        ("<seed:think>", "</seed:think>"),
        tight=True,
        marks=("<seed:tool_call>",),
    ),
    ToolCallGrammar("glm", "keys", ("<tool_call>",), "</tool_call>", THINK, marks=("<arg_key>",)),
    ToolCallGrammar(
        "qwen-xml",
        "tagged",
        ("<tool_call>", "<function="),
        "</tool_call>",
        marks=("<tool_call>", "<function=", "<parameter="),
        ends_reasoning=True,
    ),
    ToolCallGrammar(
        "gemma",
        "dict",
        ("<|tool_call>",),
        "<tool_call|>",
        ("<|channel>thought", "<channel|>"),
        quote='<|"|>',
        marks=("<|tool_call>",),
        reasoning_anywhere=True,
        dropped=("<channel|>", "<|channel>"),
    ),
    ToolCallGrammar(
        "function-gemma",
        "dict",
        ("<start_function_call>",),
        "<end_function_call>",
        quote="<escape>",
        marks=("<start_function_call>",),
    ),
    ToolCallGrammar(
        "lfm2",
        "python",
        ("<|tool_call_start|>",),
        "<|tool_call_end|>",
        marks=("<|tool_", "_start|>"),
        unlike=("<|tool_call:begin|>",),
    ),
    ToolCallGrammar("granite", "tagged", ("<|tool_call|>",), "", listed=True, marks=("<|tool_call|>",)),
    ToolCallGrammar(
        "nemotron", "tagged", ("<TOOLCALL>",), "</TOOLCALL>", listed=True, marks=("<TOOLCALL>", "</TOOLCALL>")
    ),
    ToolCallGrammar(
        "apriel",
        "tagged",
        ("<tool_calls>",),
        "</tool_calls>",
        listed=True,
        marks=("<tool_calls>[",),
        unlike=("<tool_call>",),
    ),
    ToolCallGrammar("mistral", "mistral", ("[TOOL_CALLS]",), "", marks=("[TOOL_CALLS]",)),
    ToolCallGrammar(
        "qwen",
        "tagged",
        ("<tool_call>",),
        "</tool_call>",
        marks=("<tool_call>",),
        unlike=("<tool_calls>", "]<]minimax[>["),
    ),
    ToolCallGrammar(
        "llama3",
        "bare",
        ("<|python_tag|>",),
        "<|eom_id|>",
        marks=("<|start_header_id|>", '"parameters": dictionary'),
        dropped=("<|eot_id|>", "<|eom_id|>"),
    ),
    ToolCallGrammar("none", "none", (), ""),
)
GRAMMARS: dict[str, ToolCallGrammar] = {row.name: row for row in _ROWS}
"""By name, in the order in which a template's marks are looked for."""

ToolCallGrammar.Llama3 = GRAMMARS["llama3"]
ToolCallGrammar.Qwen = replace(GRAMMARS["qwen"], reasoning=THINK)
ToolCallGrammar.Mistral = replace(GRAMMARS["mistral"], reasoning=REASONINGS[1])


def grammar_of_template(source: str) -> ToolCallGrammar:
    """The format that a chat template, Jinja source, writes calls and reasoning in.

    Of a template that writes no calls the format "none", with its reasoning.
    """
    fitting = (row for row in _ROWS if all(mark in source for mark in row.marks))
    row = next(row for row in fitting if not any(mark in source for mark in row.unlike))
    reasoning = next((pair for pair in REASONINGS if pair[1] in source), None)
    return row if row.reasoning is not None or reasoning is None else replace(row, reasoning=reasoning)
