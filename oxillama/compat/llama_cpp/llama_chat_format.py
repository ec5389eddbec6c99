"""Chat handlers and prompt formatters by llama-cpp-python's names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from oxillama.base.config import checks
from oxillama.compat.llama_cpp.chat_formats import CHAT_FORMATS, NOT_OFFERED, ChatFormatterResponse
from oxillama.compat.llama_cpp.chatting import Asked, answer
from oxillama.compat.llama_cpp.protocols import Model
from oxillama.errors import ConfigError
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.chat.messages import is_text
from oxillama.text.chat.prompt import chat_text
from oxillama.text.chat.template import ChatTemplate

TEMPLATE = "chat_template.default"
"""The chat format that uses the template of the model's file."""


class LlamaChatCompletionHandler(Protocol):
    """Answers a chat; called with ``llama`` and the arguments of `create_chat_completion`."""

    def __call__(self, *, llama: Model, messages: list[Any], **kwargs: Any) -> Any: ...


class ChatFormatter(Protocol):
    """Makes a prompt from messages."""

    def __call__(self, *, messages: list[Any], **kwargs: Any) -> ChatFormatterResponse: ...


class LlamaChatCompletionHandlerNotFoundException(Exception):
    """There is no handler with this name."""


class LlamaChatCompletionHandlerRegistry:
    """The handlers of all formats by name; all instances share them."""

    _chat_handlers: dict[str, LlamaChatCompletionHandler] = {}  # noqa: RUF012

    def register_chat_completion_handler(
        self, name: str, chat_handler: LlamaChatCompletionHandler, overwrite: bool = False
    ) -> None:
        """Add a handler. Raises ValueError if the name is taken, unless ``overwrite``."""
        if not overwrite and name in self._chat_handlers:
            raise ValueError(f"chat_format: {name!r} is registered already; overwrite=True replaces it")
        self._chat_handlers[name] = chat_handler

    def unregister_chat_handler(self, name: str) -> None:
        """Remove a handler. Raises ValueError if it does not exist."""
        if name not in self._chat_handlers:
            raise ValueError(f"chat_format: {name!r} is not registered")
        del self._chat_handlers[name]

    def get_chat_completion_handler_by_name(self, name: str) -> LlamaChatCompletionHandler:
        """The handler with a name. Raises LlamaChatCompletionHandlerNotFoundException."""
        if name in self._chat_handlers:
            return self._chat_handlers[name]
        why = f" ({NOT_OFFERED[name]})" if name in NOT_OFFERED else ""
        known = ", ".join(self._chat_handlers)
        raise LlamaChatCompletionHandlerNotFoundException(
            f"Invalid chat handler: {name}{why}; expected one of {known}"
        )


def get_chat_completion_handler(name: str) -> LlamaChatCompletionHandler:
    """The handler with a name. Raises LlamaChatCompletionHandlerNotFoundException."""
    return LlamaChatCompletionHandlerRegistry().get_chat_completion_handler_by_name(name)


def register_chat_completion_handler(name: str) -> Callable[[Any], Any]:
    """Decorator that registers a function as a handler."""

    def register(handler: Any) -> Any:
        LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(name, handler)
        return handler

    return register


def register_chat_format(name: str) -> Callable[[Any], Any]:
    """Decorator that registers a function as a formatter."""

    def register(formatter: Any) -> Any:
        handler = chat_formatter_to_chat_completion_handler(formatter)
        LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(name, handler)
        return formatter

    return register


def chat_formatter_to_chat_completion_handler(chat_formatter: ChatFormatter) -> LlamaChatCompletionHandler:
    """A handler that answers the prompts of a formatter."""

    def handler(*, llama: Model, messages: list[Any], **kwargs: Any) -> Any:
        asked = Asked.of(kwargs)
        shows_tools = getattr(chat_formatter, "shows_tools", True)
        if asked.tools and asked.named is None and asked.choice != "none" and not shows_tools:
            raise ConfigError(
                "tools: expected a chat format that shows tools to the model, or one tool_choice"
            )
        shown = {name: kwargs.get(name) for name in ("functions", "function_call", "tools", "tool_choice")}
        made = chat_formatter(messages=messages, **shown)
        prompt = llama.tokenize(made.prompt.encode(), add_bos=not made.added_special, special=True)
        return answer(llama, prompt, asked, made.stop, made.stopping_criteria)

    return handler


class Jinja2ChatFormatter:
    """A formatter for a Jinja template, which runs in the sandbox of `oxillama.text.chat`."""

    def __init__(
        self,
        template: str,
        eos_token: str,
        bos_token: str,
        add_generation_prompt: bool = True,
        stop_token_ids: list[int] | None = None,
    ) -> None:
        self.template: str = template
        self.eos_token: str = eos_token
        self.bos_token: str = bos_token
        self.add_generation_prompt = add_generation_prompt
        self.stop_token_ids: set[int] | None = None if stop_token_ids is None else set(stop_token_ids)
        self._compiled = ChatTemplate(template, bos_token, eos_token)

    def __call__(self, *, messages: list[Any], **kwargs: Any) -> ChatFormatterResponse:
        prompt = self._compiled.render(messages, self.add_generation_prompt, **kwargs)
        ids = self.stop_token_ids
        criteria = None if ids is None else [lambda tokens, logits: int(tokens[-1]) in ids]
        return ChatFormatterResponse(prompt, [self.eos_token], criteria, added_special=True)

    def to_chat_handler(self) -> LlamaChatCompletionHandler:
        """A handler that answers the formatter's prompts."""
        return chat_formatter_to_chat_completion_handler(self)


def token_text(token: Any) -> str:
    """The text of a token in a tokenizer_config.json; "" if absent."""
    return str(token["content"]) if isinstance(token, Mapping) else token or ""


def hf_tokenizer_config_to_chat_formatter(
    tokenizer_config: Mapping[str, Any], add_generation_prompt: bool = True
) -> ChatFormatter:
    """A formatter for the template of a tokenizer_config.json.

    With ``add_generation_prompt``, an empty assistant message is appended.
    """
    bos, eos = (token_text(tokenizer_config.get(name)) for name in ("bos_token", "eos_token"))
    template = ChatTemplate(tokenizer_config["chat_template"], bos, eos)
    ending = [{"role": "assistant", "content": ""}] if add_generation_prompt else []

    def formatter(messages: list[Any], **kwargs: Any) -> ChatFormatterResponse:
        prompt = template.render([*messages, *ending], False)
        return ChatFormatterResponse(prompt, [eos, bos], added_special=True)

    return formatter


def hf_tokenizer_config_to_chat_completion_handler(
    tokenizer_config: Mapping[str, Any], add_generation_prompt: bool = True
) -> LlamaChatCompletionHandler:
    """The handler of `hf_tokenizer_config_to_chat_formatter`."""
    formatter = hf_tokenizer_config_to_chat_formatter(tokenizer_config, add_generation_prompt)
    return chat_formatter_to_chat_completion_handler(formatter)


def hf_autotokenizer_to_chat_formatter(
    pretrained_model_name_or_path: str | os.PathLike[str],
) -> ChatFormatter:
    """A formatter that uses `transformers.AutoTokenizer`; `transformers` must be installed."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(pretrained_model_name_or_path)

    def formatter(messages: list[Any], **kwargs: Any) -> ChatFormatterResponse:
        prompt = tokenizer.apply_chat_template(messages, tokenize=False)
        return ChatFormatterResponse(prompt, tokenizer.eos_token, added_special=True)

    return formatter


def hf_autotokenizer_to_chat_completion_handler(
    pretrained_model_name_or_path: str | os.PathLike[str],
) -> LlamaChatCompletionHandler:
    """The handler of `hf_autotokenizer_to_chat_formatter`."""
    return chat_formatter_to_chat_completion_handler(
        hf_autotokenizer_to_chat_formatter(pretrained_model_name_or_path)
    )


# --- the template of the file ---------------------------------------------------------------------------


class TemplateHandler:
    """Answers by a template of the model's file. If the template shows tools, calls are parsed."""

    def __init__(self, name: str = "default") -> None:
        self.name = name

    def __call__(self, *, llama: Model, messages: list[Any], **kwargs: Any) -> Any:
        asked = Asked.of(kwargs)
        held = None
        if not all(map(is_text, messages)):
            messages, held = llama.engine.model.feature("media").take(messages)
        calls = asked.tools if asked.named is None and asked.choice != "none" else None
        named = {} if self.name == "default" else {"template": self.name}
        text = chat_text(llama.model, messages, calls, named)
        prompt = llama.encoded(text) if held is None else held.prompt(text)
        return answer(llama, prompt, asked, parses=True)


def template_handlers(tokenizer: TokenizerBridge) -> dict[str, LlamaChatCompletionHandler]:
    """The handlers of a file's templates, by their names in ``chat_format``."""
    return {f"chat_template.{name}": TemplateHandler(name) for name in tokenizer.templates}


class MTMDChatHandler(TemplateHandler):
    """Answers messages with pictures and sounds by the template of the model's file.

    Args:
        clip_model_path: the projector file, which `Llama` loads.
        verbose, use_gpu: ignored.

    Raises ValueError if there is no such file.
    """

    def __init__(self, clip_model_path: str, verbose: bool = True, use_gpu: bool = True) -> None:
        super().__init__()
        if not os.path.exists(clip_model_path):
            raise ValueError(f"Clip model path does not exist: {clip_model_path}")
        self.clip_model_path = clip_model_path
        self.verbose = verbose
        self.use_gpu = use_gpu

    def __call__(self, *, llama: Model, messages: list[Any], **kwargs: Any) -> Any:
        if llama.engine.config.mmproj is None:
            raise checks.refuse("chat_handler", "one that Llama was made with", type(self).__name__)
        return super().__call__(llama=llama, messages=messages, **kwargs)

    @classmethod
    def from_pretrained(cls, repo_id: str, filename: str | None, **kwargs: Any) -> MTMDChatHandler:
        """A handler with a projector file from the Hugging Face Hub; ``kwargs`` may have ``cache_dir``."""
        from oxillama.gguf.hub.pretrained import pretrained_path

        path = pretrained_path(
            repo_id, filename, None, kwargs.pop("cache_dir", None), None, pull_mmproj=False
        )
        return cls(str(path), **kwargs)


Llava15ChatHandler = Llava16ChatHandler = Qwen25VLChatHandler = Gemma4ChatHandler = MTMDChatHandler
MiniCPMv26ChatHandler = ObsidianChatHandler = MoondreamChatHandler = MTMDChatHandler
NanoLlavaChatHandler = Llama3VisionAlphaChatHandler = MTMDChatHandler

# --- ChatML with calls ----------------------------------------------------------------------------------

CALLING = """\
{%- set system = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | list -%}
{{- '<|im_start|>system\n' + system | join('\n') -}}
{%- if tools -%}
{{- '\n\nFunctions that you can call:\n<tools>\n' -}}
{%- for tool in tools %}{{ tool | tojson }}\n{% endfor -%}
{{- '</tools>\nWrite a call so:\n<tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call>' -}}
{%- endif -%}
{{- '<|im_end|>\n' -}}
{%- for m in messages if m['role'] != 'system' -%}
{{- '<|im_start|>' + ('user' if m['role'] == 'tool' else m['role']) + '\n' -}}
{%- set is_result = m['role'] == 'tool' -%}
{{- '<tool_response>\n' + m['content'] + '\n</tool_response>' if is_result else m['content'] or '' -}}
{%- for call in m.get('tool_calls') or [] -%}
{%- set f = call.function -%}
{{- '\n<tool_call>\n{"name": ' + f.name | tojson + ', "arguments": ' -}}
{{- (f.arguments if f.arguments is string else f.arguments | tojson) + '}\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\n' -}}
"""
"""ChatML that shows tools, with calls in the format of Hermes and Qwen models."""

FUNCTION_CALLING = "chatml-function-calling"


def chatml_function_calling(*, llama: Model, messages: Sequence[Any], **kwargs: Any) -> Any:
    """Answers in ChatML, with a tool prompt of oxillama's own; tool calls are parsed."""
    asked = Asked.of(kwargs)
    tools = asked.tools if asked.choice != "none" else None
    text = ChatTemplate(CALLING).render(messages, tools=tools)
    prompt = llama.tokenize(text.encode(), add_bos=True, special=True)
    return answer(llama, prompt, asked, ["<|im_end|>"], parses=True, message_format="qwen")


LlamaChatCompletionHandlerRegistry._chat_handlers |= {
    name: chat_formatter_to_chat_completion_handler(formatter) for name, formatter in CHAT_FORMATS.items()
} | {FUNCTION_CALLING: chatml_function_calling}


def __getattr__(name: str) -> Any:
    """``format_NAME``: a formatter of `CHAT_FORMATS`."""
    for known, formatter in CHAT_FORMATS.items():
        if name == f"format_{known.replace('-2', '2').replace('-3', '3').replace('-', '_')}":
            return formatter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
