"""Type names of requests and answers, for annotations; all of them are dicts."""

from __future__ import annotations

from typing import Any

JsonType = None | int | str | bool | list[Any] | dict[str, Any]

NAMES = (
    *("EmbeddingUsage", "Embedding", "EmbeddingData", "CreateEmbeddingResponse"),
    *("CompletionLogprobs", "CompletionChoice", "CompletionUsage", "CompletionChunk", "Completion"),
    *("CreateCompletionResponse", "CreateCompletionStreamResponse"),
    *("ChatCompletionResponseFunctionCall", "ChatCompletionResponseMessage", "ChatCompletionMessage"),
    *("ChatCompletionFunction", "ChatCompletionTopLogprobToken", "ChatCompletionLogprobToken"),
    *("ChatCompletionLogprobs", "ChatCompletionResponseChoice", "ChatCompletionChoice"),
    *("CreateChatCompletionResponse", "ChatCompletion", "CreateChatCompletionStreamResponse"),
    *("ChatCompletionMessageToolCallChunkFunction", "ChatCompletionMessageToolCallChunk"),
    *("ChatCompletionStreamResponseDeltaEmpty", "ChatCompletionStreamResponseDeltaFunctionCall"),
    *("ChatCompletionStreamResponseDelta", "ChatCompletionStreamResponseChoice"),
    *("ChatCompletionStreamResponse", "ChatCompletionChunk", "ChatCompletionChunkChoice"),
    *("ChatCompletionChunkDelta", "ChatCompletionChunkDeltaEmpty", "ChatCompletionFunctions"),
    *("ChatCompletionFunctionCallOption", "ChatCompletionRequestResponseFormat"),
    *("ChatCompletionRequestMessageContentPartText", "ChatCompletionRequestMessageContentPartImage"),
    *("ChatCompletionRequestMessageContentPartImageImageUrl", "ChatCompletionRequestMessageContentPart"),
    *("ChatCompletionRequestSystemMessage", "ChatCompletionRequestUserMessage"),
    *("ChatCompletionRequestAssistantMessage", "ChatCompletionRequestToolMessage"),
    *("ChatCompletionRequestFunctionMessage", "ChatCompletionRequestMessage"),
    *("ChatCompletionRequestAssistantMessageFunctionCall", "ChatCompletionRequestFunctionCallOption"),
    *("ChatCompletionMessageToolCallFunction", "ChatCompletionMessageToolCall"),
    *("ChatCompletionMessageToolCalls", "ChatCompletionRequestFunctionCall"),
    *("ChatCompletionFunctionParameters", "ChatCompletionToolFunction", "ChatCompletionTool"),
    *("ChatCompletionNamedToolChoiceFunction", "ChatCompletionNamedToolChoice"),
    *("ChatCompletionToolChoiceOption", "ChatCompletionResponseFunction", "ChatCompletionFunctionCall"),
)

__all__ = ["JsonType", *NAMES]


def __getattr__(name: str) -> Any:
    if name in NAMES:
        return dict[str, Any]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
