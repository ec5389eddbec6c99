"""From the messages of a conversation to a prompt and the options that parse the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oxillama.config import GenerationOptions
from oxillama.engine.prompts import listed
from oxillama.tokenizer.bridge import TokenizerBridge
from oxillama.toolcalls.conversation import for_template, tool_variables
from oxillama.toolcalls.definitions import definitions
from oxillama.toolcalls.parsing import WITH_TOOLS, format_of_source, template_values


def prepared_chat(
    tokenizer: TokenizerBridge,
    messages: Iterable[Mapping[str, Any]],
    options: GenerationOptions,
    template: Mapping[str, Any] | None,
) -> tuple[list[int], GenerationOptions]:
    """The prompt of a conversation by the file's chat template, and the options of the request.

    Raises as `InferenceEngine.chat`.
    """
    said = listed(messages, "messages")
    tools = None if options.tools is None else definitions(options.tools)
    values = template_values(template, tools)
    if tools is not None and WITH_TOOLS in tokenizer.chat_template_names:
        values.setdefault("template", WITH_TOOLS)
    compiled = tokenizer.chat_template(str(values.get("template", "default")))
    if tools is not None:
        values = {**tool_variables(compiled, tools), **values}
    wanted = options.message_format
    if wanted is None or (isinstance(wanted, str) and wanted == "auto"):
        form = format_of_source(compiled.source, tools is not None)
        options = options._changed(message_format=form)
    return tokenizer.encode_chat(for_template(said, compiled), **values), options
