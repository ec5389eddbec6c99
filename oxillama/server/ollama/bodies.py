"""Bodies of Ollama's requests."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from oxillama.server.bodies import Body, Part


class OllamaBody(Body):
    """What all bodies have.

    Attributes
    ----------
    model : its name; None for the default one.
    options : by Ollama's names, and by those of the table of options.
    keep_alive : how long the model stays loaded when nobody uses it.
    """

    inner_options = "vectors"
    model: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    keep_alive: float | str | None = None


class TextBody(OllamaBody):
    inner_options = "text"
    stream: bool = True
    format: str | dict[str, Any] = ""
    think: bool | str | None = None
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=100)


class GenerateBody(TextBody):
    prompt: str = ""
    suffix: str = ""
    system: str | None = None
    template: str | None = None
    context: list[int] = Field(default_factory=list)
    raw: bool = False
    images: list[str] = Field(default_factory=list)


class OllamaChatBody(TextBody):
    messages: list[Message] = Field(default_factory=list)
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: str | dict[str, Any] = "auto"  # OpenAI's


class Message(Part):
    """One of a conversation."""

    role: str
    content: str | None = ""
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[Call] | None = None
    tool_name: str | None = None


class Call(Part):
    """A call of a tool."""

    function: Function
    id: str | None = None
    type: str = "function"


class Function(Part):
    """What a call calls."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    index: int | None = None
    description: str | None = None


class EmbedBody(OllamaBody):
    input: str | list[str] = Field(default_factory=list)
    truncate: bool = False
    dimensions: int | None = Field(None, ge=1)


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
