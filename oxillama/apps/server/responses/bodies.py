"""Bodies of OpenAI's responses."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from oxillama.apps.server.bodies import Body, ClosedObject, StreamOptions, Whole
from oxillama.apps.server.no_effect import RESPONSES

LOGPROBS = "message.output_text.logprobs"

Includable = Literal[
    "message.output_text.logprobs",
    # these fields are in no answer here, or in every answer
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class TextFormat(ClosedObject):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(ClosedObject):
    format: TextFormat = TextFormat(type="text", schema=None)
    verbosity: Literal["medium"] | None = None


class Reasoning(ClosedObject):
    effort: str | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None
    context: Literal["auto"] | None = None


class InputBody(Body):
    """The fields that the prompt is made of."""

    interface = RESPONSES
    input: Any
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    text: TextConfig = TextConfig()
    reasoning: Reasoning = Reasoning()
    truncation: Literal["disabled"] = "disabled"
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)


class ResponsesBody(InputBody):
    takes_options = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    store: bool = True
    background: Literal[False] = False
    max_output_tokens: Whole | None = Field(None, ge=1)
    max_tool_calls: Whole | None = Field(None, ge=1)
    top_logprobs: Whole | None = Field(None, ge=0, le=100)
    include: list[Includable] = Field(default_factory=list)
    metadata: dict[str, Any] = Field(default_factory=dict)
    timings_per_token: bool = False
    return_progress: bool = False
