"""The part of `InferenceEngine` that answers conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from oxillama.config import EngineConfig, GenerationOptions
from oxillama.engine.generation import Completion, Generation, text_of
from oxillama.engine.loading import LoadedModel
from oxillama.engine.prompts import Prompt, listed
from oxillama.toolcalls.conversation import for_template, tool_variables
from oxillama.toolcalls.definitions import definitions
from oxillama.toolcalls.parsing import WITH_TOOLS, format_of_source, template_values

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
        messages : mappings with "role" and "content", the user's last message last. Those of the assistant
            may have "tool_calls", and results of tools the role "tool".
        tools : that the model may call. The answer is then a `Completion`, with text and calls. Every call is
            valid by its tool's schema, unless it is cut off (``failed_calls``).
        template : more variables for the template, e.g. ``{"enable_thinking": False}``.
        callback, fields : as for `stream`; ``tool_choice`` and ``parallel_tool_calls`` are among the fields.

        Raises
        ------
        ChatTemplateError : the file has no chat template, or it refuses the messages.
        ConfigError : a tool is none, or the template cannot tell the model of it.
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
        said = listed(messages, "messages")
        checked = GenerationOptions.of(options, fields, self.config.sampler)
        tools = None if checked.tools is None else definitions(checked.tools)
        tokenizer = self.model.tokenizer
        values = template_values(template, tools)
        if tools is not None and WITH_TOOLS in tokenizer.chat_template_names:
            values.setdefault("template", WITH_TOOLS)
        compiled = tokenizer.chat_template(str(values.get("template", "default")))
        if tools is not None:
            values = {**tool_variables(compiled, tools), **values}
        wanted = checked.message_format
        if wanted is None or (isinstance(wanted, str) and wanted == "auto"):
            form = format_of_source(compiled.source, tools is not None)
            checked = replace(checked, message_format=form)
        tokens = tokenizer.encode_chat(for_template(said, compiled), **values)
        return self._stream(tokens, checked, {}, callback)
