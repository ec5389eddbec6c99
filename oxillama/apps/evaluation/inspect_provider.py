"""A model provider for inspect-ai: ``--model oxillama/PATH``, with options of `EngineConfig` as ``-M``.

inspect-ai finds this module by its entry point; importing it works, too.
"""

from __future__ import annotations

from typing import Any

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolCall, ToolChoice, ToolFunction, ToolInfo

from oxillama.base.config import EngineConfig
from oxillama.engine.engine import InferenceEngine
from oxillama.errors import ConfigError

OPTIONS = (
    *("max_tokens", "temperature", "top_p", "top_k", "seed"),
    *("frequency_penalty", "presence_penalty", "logit_bias"),
)
"""Fields of `GenerateConfig` that are fields of `GenerationOptions`."""

CALLERS = (
    *("system_message", "max_retries", "timeout", "attempt_timeout", "max_connections"),
    *("adaptive_connections", "max_tool_output", "cache", "cache_prompt", "internal_tools"),
    *("reasoning_history", "parallel_tool_calls", "stop_seqs", "response_schema"),
)
"""Fields that inspect-ai handles itself, or that are handled separately here."""

STOPS = {"length": "max_tokens", "tool_calls": "tool_calls"}


@modelapi(name="oxillama")
class OxillamaAPI(ModelAPI):  # type: ignore[misc]  # a base class without types
    """A GGUF model.

    Args:
        model_name: path of the file.
        base_url, api_key: must be None.
        config: inspect-ai's options for all requests.
        model_args: fields of `EngineConfig`.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008  # the default of the base class
        **model_args: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config)
        if base_url is not None or api_key is not None:
            raise ConfigError("base_url, api_key: expected none, the model runs in this process")
        self.engine: InferenceEngine = InferenceEngine(EngineConfig(model_path=model_name, **model_args))

    def max_connections(self) -> int:
        """The number of concurrent requests: as many as the engine admits."""
        most: int = self.engine.config.scheduler.max_sequences
        return most

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Answer a conversation. Raises ConfigError for an unsupported option."""
        fields = options_of(config)
        if tools:
            fields["tools"] = [definition(tool) for tool in tools]
            fields["tool_choice"] = choice_of(tool_choice)
            if config.parallel_tool_calls is not None:
                fields["parallel_tool_calls"] = config.parallel_tool_calls
        generation = self.engine.stream_chat([plain(message) for message in input], **fields)
        completion = await generation
        calls = [
            ToolCall(id=call.id or f"call-{number}", function=call.name, arguments=dict(call.args))
            for number, call in enumerate(completion.tool_calls)
        ]
        message = ChatMessageAssistant(
            content=completion.text, tool_calls=calls or None, model=self.model_name, source="generate"
        )
        usage = completion.usage
        total = usage.prompt_tokens + usage.generated_tokens
        return ModelOutput(
            model=self.model_name,
            choices=[
                ChatCompletionChoice(message=message, stop_reason=STOPS.get(completion.finish_reason, "stop"))
            ],
            usage=ModelUsage(
                input_tokens=usage.prompt_tokens, output_tokens=usage.generated_tokens, total_tokens=total
            ),
        )

    async def aclose(self) -> None:
        """Close the engine."""
        self.engine.close()


def options_of(config: GenerateConfig) -> dict[str, Any]:
    """The fields of `GenerationOptions`. Raises ConfigError for an unsupported field."""
    given = config.model_dump(exclude_none=True)
    fields = {name: given.pop(name) for name in OPTIONS if name in given}
    if config.stop_seqs:
        fields["stop"] = list(config.stop_seqs)
    if config.response_schema is not None:
        fields["json_schema"] = config.response_schema.json_schema.model_dump(exclude_none=True)
    unknown = [name for name in given if name not in CALLERS]
    if unknown:
        raise ConfigError(f"{', '.join(unknown)}: cannot be honoured by this model")
    return fields


def plain(message: ChatMessage) -> dict[str, Any]:
    """A message for `InferenceEngine.chat`. Raises ConfigError for a part that is not text."""
    if not isinstance(message.content, str) and any(
        part.type not in ("text", "reasoning") for part in message.content
    ):
        raise ConfigError("messages: expected parts of text alone")
    found: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.role == "assistant" and message.tool_calls:
        found["tool_calls"] = [
            {"type": "function", "id": c.id, "function": {"name": c.function, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    if message.role == "tool":
        found["tool_call_id"] = message.tool_call_id
        found["name"] = message.function
        if message.error is not None:
            found["content"] = message.error.message
    return found


def definition(tool: ToolInfo) -> dict[str, Any]:
    """The JSON definition of a tool."""
    parameters = tool.parameters.model_dump(exclude_none=True)
    return {"name": tool.name, "description": tool.description, "parameters": parameters}


def choice_of(choice: ToolChoice) -> Any:
    """A tool choice for `GenerationOptions`."""
    if isinstance(choice, ToolFunction):
        return choice.name
    return "required" if choice == "any" else choice
