"""Chat templates: Jinja programs from a model file, rendered without trusting them.

A template is a program somebody else wrote (CVE-2024-34359 ran code through one), so it sees a plain
copy of the messages, dicts, lists, strings and numbers only, inside `oxillama.chat.sandbox`, which bounds
what it may use, make and take. All limits are counts, none is a time. Rendering follows `transformers`, for
which these templates are written: the same environment, `raise_exception`, `strftime_now`, `tojson`, the
`generation` tag ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError

from oxillama.chat.budget import ELEMENT, MAX_BITS, Budget, OverBudget, current_budget
from oxillama.chat.sandbox import Environment, Refused
from oxillama.errors import ChatTemplateError

MAX_SOURCE = 1 << 18  # characters of a template
MAX_INPUT = 1 << 26  # characters of messages, tools and other variables, and `ELEMENT` for each element
MAX_DEPTH = 64  # of nested message data


class ChatTemplate:
    """A compiled chat template.

    Parameters
    ----------
    source : str
        Jinja source, at most `MAX_SOURCE` characters.
    bos_token, eos_token : str
        Texts of these tokens, for the template's variables of the same names.
    clock : callable
        The current time, for `strftime_now`.

    Raises
    ------
    ChatTemplateError
        The source is not a valid template, is too long or too deeply nested, or uses what is not offered.
    """

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        *,
        clock: Callable[[], datetime] = datetime.now,
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
        self._environment = Environment(clock)
        try:
            self._template = self._environment.compile_guarded(source)
        except TemplateSyntaxError as error:
            raise ChatTemplateError(f"chat template: {error.message} (line {error.lineno})") from error
        except Exception as error:  # too deep a nesting fails in more than one way
            raise ChatTemplateError(f"chat template: cannot be compiled: {_describe(error)}") from error

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names of the variables that the template reads, those that it sets itself included."""
        names = self._environment.parse(self.source).find_all(nodes.Name)
        return frozenset(name.name for name in names if name.ctx == "load")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """Render messages to the text of a prompt.

        Parameters
        ----------
        messages : sequence of mappings
            Each with a `role`, and a `content` that is a string, None or a list of typed parts.
        add_generation_prompt : bool
            End with the beginning of the assistant's turn.
        tools : sequence of mappings, optional
            JSON schemas of the functions the model may call.
        **kwargs
            Further variables for the template (`enable_thinking`, `documents`, ...), plain data.

        Raises
        ------
        ChatTemplateError
            The messages are malformed, the template refuses them or fails, or it exceeds its limits.
        """
        plain = _PlainCopy()
        values = {
            "documents": None,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            **{name: plain.copy(value, name) for name, value in kwargs.items()},
            "messages": _check_messages(messages, plain),
            "tools": plain.copy(tools, "tools"),
            "add_generation_prompt": bool(plain.copy(add_generation_prompt, "add_generation_prompt")),
        }
        budget = Budget(plain.size)
        token = current_budget.set(budget)
        try:
            return self._collect(values, budget)
        except ChatTemplateError:
            raise
        except OverBudget as error:
            raise ChatTemplateError(f"chat template: stopped, it took {error}") from None
        except Refused as error:
            raise ChatTemplateError(f"the chat template refuses these messages: {error.message}") from error
        except Exception as error:  # a template is a program: it can fail in any way a program can
            raise ChatTemplateError(f"chat template: {_describe(error)}") from error
        finally:
            current_budget.reset(token)

    def _collect(self, values: dict[str, Any], budget: Budget) -> str:
        pieces, length = [], 0
        for piece in self._template.generate(values):
            length += len(piece)
            if length > budget.text_limit:
                raise OverBudget(f"more than {budget.text_limit} characters to write")
            pieces.append(piece)
        return "".join(pieces)


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
            if int(value).bit_length() > MAX_BITS:
                raise ChatTemplateError(f"{where}: expected integers of up to {MAX_BITS} bits, got more")
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
