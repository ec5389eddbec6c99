"""The part of `InferenceEngine` that answers conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from oxillama.config import EngineConfig, GenerationOptions
from oxillama.conversations.prompt import chat_prompt
from oxillama.engine.generation import Completion, Generation, text_of
from oxillama.engine.loading import LoadedModel
from oxillama.engine.prompts import Prompt, listed

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from oxillama.config import GenerationFields

Callback = Callable[[str], object]
"""Is called with each piece of text; returning False cancels."""


class Chats:
    """Conversations, in the chat template of the model's file; see `docs/toolcalls.md`."""

    config: EngineConfig
    _last: Any

    if TYPE_CHECKING:  # what it calls

        @property
        def model(self) -> LoadedModel: ...

        def _stream(
            self,
            prompt: Prompt,
            options: GenerationOptions | None,
            fields: Mapping[str, Any],
            callback: Callback | None = None,
        ) -> Generation: ...

    @overload
    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        options: GenerationOptions | None = None,
        *,
        tools: None = None,
        template: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        **fields: Any,
    ) -> str: ...

    @overload
    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        options: GenerationOptions | None = None,
        *,
        tools: Sequence[Any],
        template: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        **fields: Any,
    ) -> Completion: ...

    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        options: GenerationOptions | None = None,
        *,
        tools: Sequence[Any] | None = None,
        template: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        **fields: Any,
    ) -> str | Completion:
        """The answer to a conversation: `generate` from the prompt that the file's chat template makes.

        Reasoning is not part of the answer; ``stream_chat(...).result()`` has it.

        Parameters
        ----------
        messages : mappings with "role" and "content", the user's last message last. A content is a text or a
            list of parts ``{"type": "text", "text": ...}``. Messages of the assistant may have "tool_calls",
            and results of tools the role "tool".
        tools : that the model may call. The answer is then a `Completion`, with text and calls. Every call is
            valid by its tool's schema, unless it is cut off (``failed_calls``).
        template : more variables for the template, e.g. ``{"enable_thinking": False}``.
        callback, fields : as for `stream`; ``tool_choice`` and ``parallel_tool_calls`` are among the fields.

        Raises
        ------
        ChatTemplateError : the file has no chat template, or it refuses the messages.
        ConfigError : a part of a content is not text; a tool is none, or the template cannot tell the model
            of it.
        GrammarError : the schema of a tool cannot be enforced.
        """
        generation = self.stream_chat(
            messages, options, tools=tools, template=template, callback=callback, **fields
        )
        completion = generation.result()
        answer = text_of(completion) if generation.options.tools is None else completion
        self._last.generation = generation
        return answer

    def stream_chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        options: GenerationOptions | None = None,
        *,
        template: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        **fields: Unpack[GenerationFields],
    ) -> Generation:
        """`stream` from the prompt that the file's chat template makes of a conversation; see `chat`.

        The text is taken apart as the template says: `Generation.events` has calls and reasoning as they are
        written, the text that it yields is the answer alone.
        """
        checked = GenerationOptions.of(options, fields, self.config.sampler)
        said = listed(messages, "messages")
        tokens, checked = chat_prompt(self.model.tokenizer, said, checked, template)
        return self._stream(tokens, checked, {}, callback)
