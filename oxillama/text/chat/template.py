"""Chat templates: Jinja programs from a model file, rendered without trusting them.

A template is a program somebody else wrote (CVE-2024-34359 ran code through one), so the template sees a
plain copy of the messages: dicts, lists, strings and numbers only, inside `oxillama.text.chat.sandbox`.
Limits are the size of the source, of its parse tree, of the input and of the output, and one deadline for a
rendering. Rendering follows `transformers`, for which these templates are written: the same environment,
`raise_exception`, `strftime_now`, `tojson`, the `generation` tag ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError

from oxillama.base.deadline import DeadlineExceeded
from oxillama.errors import ChatTemplateError
from oxillama.text.chat.sandbox import Environment, Refused
from oxillama.text.tokenizer.escapes import Escaper
from oxillama.text.tokenizer.vocabulary import HIDDEN, USER_DEFINED, Vocab
from oxillama.text.toolcalls.formats import grammar_of_template
from oxillama.text.toolcalls.tool_grammar import ToolCallGrammar

MAX_SOURCE = 1 << 18
"""Characters of a template."""

MAX_INPUT = 1 << 26
"""Characters of messages, tools and other variables together; each element counts as `ELEMENT` more."""

ELEMENT = 32
"""Characters that an element of a list or dict counts for, besides its text."""

MAX_DEPTH = 64
"""Levels of nested message data."""

MAX_SECONDS = 30.0
"""Seconds that a rendering may take."""


MARK = re.compile(r"[^\w\s].+[^\w\s]")
"""The name of a token that can mark the turns of a conversation, such as `<|im_start|>`."""


class TemplateTimeout(ChatTemplateError):
    """A rendering took longer than `MAX_SECONDS`."""


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja source, at most `MAX_SOURCE` characters.
        bos_token, eos_token: Texts of these tokens, for the template's variables of the same names.
        clock: The current time, for `strftime_now`.
        names: Names of control tokens, and of tokens that are control tokens if the template writes them
            around messages. Messages cannot contain these tokens; see `escaper`.

    Raises:
        ChatTemplateError: The source is not a valid template, is too long or too deeply nested, or uses what
            is not offered.
    """

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        *,
        clock: Callable[[], datetime] = datetime.now,
        names: tuple[Sequence[str], Sequence[str]] = ((), ()),
    ) -> None:
        if not isinstance(source, str):
            raise ChatTemplateError(f"chat template: expected a str, got {type(source).__name__}")
        if len(source) > MAX_SOURCE:
            raise ChatTemplateError(
                f"chat template: expected up to {MAX_SOURCE} characters, got {len(source)}"
            )
        self.source: str = source
        self.bos_token: str = bos_token
        self.eos_token: str = eos_token
        self._names = names
        self._environment = Environment(clock)
        try:
            self._template = self._environment.compile_checked(source)
        except TemplateSyntaxError as error:
            raise ChatTemplateError(f"chat template: {error.message} (line {error.lineno})") from error
        except Exception as error:  # too deep a nesting fails in more than one way
            raise ChatTemplateError(f"chat template: cannot be compiled: {_describe(error)}") from error

    @classmethod
    def of(cls, source: str, vocab: Vocab) -> ChatTemplate:
        """The template of a vocabulary. Raises ChatTemplateError as the class."""
        bos, eos = (
            vocab.tokens[vocab.special[name]] if name in vocab.special else "" for name in ("bos", "eos")
        )
        return cls(source, bos, eos, names=special_names(vocab))

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names of the variables that the template reads, those that it sets itself included."""
        names = self._environment.parse(self.source).find_all(nodes.Name)
        return frozenset(name.name for name in names if name.ctx == "load")

    @cached_property
    def format(self) -> ToolCallGrammar:
        """The format in which the template writes calls and reasoning; "none" without calls."""
        return grammar_of_template(self.source)

    @cached_property
    def escaper(self) -> Escaper:
        """Escapes the names of control tokens in messages."""
        control, marks = self._names
        around = self._around_messages() if marks else ""
        return Escaper([*control, *(name for name in marks if name in around)])

    def _around_messages(self) -> str:
        """What the template writes around the messages of a chat, without marks of reasoning."""
        for roles in (("system", "user", "assistant", "user"), ("user", "assistant", "user")):
            try:
                text = self.render([{"role": role, "content": "a"} for role in roles])
            except ChatTemplateError:
                continue
            for mark in self.format.reasoning or ():
                text = text.replace(mark, "")
            return text
        return ""

    @cached_property
    def _no_tools(self) -> list[Any] | None:
        """The value of ``tools`` without tools: [] for a template that fails with None."""
        message = {"role": "user", "content": "a"}
        choices: tuple[list[Any] | None, ...] = (None, [])
        for tools in choices:
            values: dict[str, Any] = {"messages": [message], "tools": tools, "add_generation_prompt": True}
            values |= {"documents": None, "bos_token": self.bos_token, "eos_token": self.eos_token}
            try:
                self._environment.rendered(self._template, values, MAX_SECONDS)
            except Exception:
                continue
            return tools
        return None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """Render messages to the text of a prompt.

        Args:
            messages: Each with a `role`, and a `content` that is a string, None or a list of typed parts.
            add_generation_prompt: End with the beginning of the assistant's turn.
            tools: JSON schemas of the functions the model may call.
            **kwargs: Further variables for the template (`enable_thinking`, `documents`, ...), plain data.

        Raises:
            ChatTemplateError: The messages are malformed, the template refuses them or fails, or it exceeds
                its limits.
        """
        plain = _PlainCopy()
        values = {
            "documents": None,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            **{name: plain.copy(value, name) for name, value in kwargs.items()},
            "messages": _check_messages(messages, plain),
            "tools": self._no_tools if tools is None else plain.copy(tools, "tools"),
            "add_generation_prompt": bool(plain.copy(add_generation_prompt, "add_generation_prompt")),
        }
        return self._rendered(values, "these messages", f"{len(messages)} messages")

    def render_values(self, values: Mapping[str, Any]) -> str:
        """Render a template that is not for messages: its variables, plain data, alone.

        Raises ChatTemplateError as `render`.
        """
        plain = _PlainCopy()
        copied = {name: plain.copy(value, name) for name, value in values.items()}
        return self._rendered(copied, "these values", "these values")

    def _rendered(self, values: Mapping[str, Any], what: str, amount: str) -> str:
        try:
            return self._environment.rendered(self._template, values, MAX_SECONDS)
        except DeadlineExceeded as error:
            raise TemplateTimeout(f"chat template: stopped, {error}, for {amount}") from None
        except Refused as error:
            raise ChatTemplateError(f"the chat template refuses {what}: {error.message}") from error
        except Exception as error:  # a template is a program: it can fail in any way a program can
            raise ChatTemplateError(f"chat template: {_describe(error)}") from error


def special_names(vocab: Vocab) -> tuple[list[str], list[str]]:
    """Names of control tokens, and of tokens that a template may use as such."""
    control, marks = [], []
    for text, kind in zip(vocab.tokens, vocab.types, strict=True):
        if kind & HIDDEN:
            control.append(text)
        elif kind & USER_DEFINED and MARK.fullmatch(text):
            marks.append(text)
    return control, marks


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:500]}"


def _check_messages(messages: Any, plain: _PlainCopy) -> list[dict[str, Any]]:
    """A plain copy of chat messages; ChatTemplateError says what is wrong with which."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ChatTemplateError(f"messages: expected a list of mappings, got {type(messages).__name__}")
    checked = []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message, Mapping):
            raise ChatTemplateError(f"{where}: expected a mapping, got {type(message).__name__}")
        copy = plain.copy(message, where)
        if not isinstance(copy.get("role"), str) or not copy["role"]:
            raise ChatTemplateError(f"{where}: expected a role, got {copy.get('role')!r:.80}")
        _check_content(copy, where)
        checked.append(copy)
    return checked


def _check_content(message: dict[str, Any], where: str) -> None:
    content = message.get("content")
    if isinstance(content, list):
        for j, part in enumerate(content):
            if not (isinstance(part, dict) and isinstance(part.get("type"), str)):
                raise ChatTemplateError(
                    f"{where}.content[{j}]: expected a mapping with a type, got {part!r:.80}"
                )
    elif content is None:
        if "content" not in message and not message.get("tool_calls"):
            raise ChatTemplateError(f"{where}: expected content or tool_calls, got neither")
    elif not isinstance(content, str):
        found = type(content).__name__
        raise ChatTemplateError(f"{where}.content: expected a string or a list of parts, got {found}")


class _PlainCopy:
    """Copies dicts, lists, strings, numbers, booleans and None, and adds up their size.

    Anything else, and more than `MAX_INPUT`, is a ChatTemplateError.
    """

    size = 0

    def copy(self, value: Any, where: str, depth: int = 0) -> Any:
        self.size += ELEMENT + (len(value) if isinstance(value, str) else 0)
        if self.size > MAX_INPUT:
            raise ChatTemplateError(f"{where}: expected up to {MAX_INPUT} characters in all, got more")
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, float):
            return float(value)
        if isinstance(value, int):
            return int(value)
        if depth >= MAX_DEPTH:
            raise ChatTemplateError(f"{where}: expected at most {MAX_DEPTH} levels, got more")
        if isinstance(value, Mapping):
            copied = {}
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ChatTemplateError(f"{where}: expected strings as keys, got {key!r:.80}")
                copied[self.copy(key, where)] = self.copy(item, f"{where}.{key:.80}"[:200], depth + 1)
            return copied
        if isinstance(value, (list, tuple)):
            return [self.copy(item, f"{where}[{i}]"[:200], depth + 1) for i, item in enumerate(value)]
        raise ChatTemplateError(f"{where}: expected plain data, got {type(value).__name__}")
