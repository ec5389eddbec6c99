"""Bodies of Anthropic's interface."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from oxillama.apps.server.bodies import Body, ClosedObject, Whole
from oxillama.apps.server.no_effect import ANTHROPIC

Text = Annotated[str, Field(min_length=1)]


class Thinking(ClosedObject):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Whole | None = Field(None, ge=1)
    display: Literal["summarized", "omitted"] = "summarized"


class Format(ClosedObject):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(ClosedObject):
    effort: str | None = None
    format: Format | None = None


class ToolChoice(ClosedObject):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


def keeps_all(value: dict[str, Any]) -> dict[str, Any]:
    """A management of the context that removes nothing. Raises ValueError for another one."""
    edits = value.get("edits", [])
    if set(value) <= {"edits"} and isinstance(edits, list):
        thinking = "clear_thinking_20251015"
        whole = [{"type": thinking, "keep": keep} for keep in ("all", {"type": "all"})]
        if all(edit in whole for edit in edits):
            return value
    raise ValueError("edits that keep everything")


class CountBody(Body):
    """The fields that the prompt is made of."""

    interface = ANTHROPIC
    messages: list[dict[str, Any]] = Field(min_length=1)
    model: str | None = None
    system: Any = ""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: ToolChoice = ToolChoice(type="auto")
    thinking: Thinking | None = None
    output_config: OutputConfig = OutputConfig()
    output_format: Format | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    cache_control: dict[str, Any] | None = None
    context_management: Annotated[dict[str, Any], AfterValidator(keeps_all)] | None = None
    mcp_servers: list[Any] = Field(default_factory=list, max_length=0)
    speed: Literal["standard"] = "standard"


class MessagesBody(CountBody):
    takes_options = True
    stream: bool = False
    stop_sequences: list[Text] = Field(default_factory=list)
    service_tier: Literal["auto", "standard_only"] = "auto"
