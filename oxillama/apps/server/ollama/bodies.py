"""Bodies of Ollama's requests."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from oxillama.apps.server.bodies import Body, ClosedObject, Whole
from oxillama.apps.server.no_effect import OLLAMA


class OllamaBody(Body):
    """The fields of all bodies.

    Attributes:
        model: its name; None for the default one.
        options: by Ollama's names, and by the names of the table of options.
        keep_alive: how long the model stays loaded when nobody uses it.
    """

    interface = OLLAMA
    inner_options = "vectors"
    model: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    keep_alive: float | str | None = None


class TextBody(OllamaBody):
    """The fields of bodies that ask for text. Other fields of the body may be options, too.

    ``truncate`` and ``shift`` have no effect: prompts are never cut, and a text ends where the context is
    full.
    """

    inner_options = "text"
    takes_options = True
    stream: bool = True
    num_ctx: Whole | None = None
    truncate: bool = True
    shift: bool = True
    format: str | dict[str, Any] = ""
    think: bool | str | None = None
    logprobs: bool = False
    top_logprobs: Whole = Field(0, ge=0, le=100)


class GenerateBody(TextBody):
    prompt: str = ""
    suffix: str = ""
    system: str | None = None
    template: str | None = None
    context: list[Whole] = Field(default_factory=list)
    raw: bool = False
    images: list[str] = Field(default_factory=list)


class OllamaChatBody(TextBody):
    messages: list[Message] = Field(default_factory=list)
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: str | dict[str, Any] = "auto"  # OpenAI's


class Message(ClosedObject):
    """A message of a conversation."""

    role: str
    content: str | None = ""
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[Call] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class Call(ClosedObject):
    """A call of a tool."""

    function: Function
    id: str | None = None
    type: str = "function"


class Function(ClosedObject):
    """The function of a call, with its arguments."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    index: Whole | None = None
    description: str | None = None


class EmbedBody(OllamaBody):
    input: str | list[str] = Field(default_factory=list)
    truncate: bool = False
    dimensions: Whole | None = Field(None, ge=1)


class EmbeddingsBody(OllamaBody):
    prompt: str = ""


class ShowBody(Body):
    model: str | None = None
    name: str | None = None
    verbose: bool = False


class PullBody(Body):
    model: str | None = None
    name: str | None = None
    stream: bool = True
    insecure: bool = False
