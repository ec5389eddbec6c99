"""`TokenizerBridge`: the tokenizer of a model file together with the chat templates of the file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from oxillama.errors import ChatTemplateError
from oxillama.text.tokenizer.encoder import Encoder
from oxillama.text.tokenizer.tokenizer import Tokenizer
from oxillama.text.tokenizer.vocabulary import Vocab

if TYPE_CHECKING:
    from oxillama.text.chat.template import ChatTemplate

KEY = "tokenizer.chat_template"
"""The metadata key of the default template; the keys of others have a dot and their name after it."""


class TokenizerBridge(Tokenizer):
    """A vocabulary's encoder and decoder, and the chat templates of its file by name.

    Build one with `from_gguf`, `from_metadata` or `from_file`. Safe to share between threads.

    Attributes:
        templates: Jinja sources by name; the unnamed template is "default".
        compiled: Templates that were compiled, by name.
    """

    def __init__(self, vocab: Vocab, encoder: Encoder, templates: Mapping[str, str] | None = None) -> None:
        super().__init__(vocab, encoder)
        self.templates: dict[str, str] = dict(templates or {})
        self.compiled: dict[str, ChatTemplate] = {}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Self:
        found = super().from_metadata(metadata)
        found.templates = templates_of(metadata)
        return found

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], metadata: Mapping[str, Any] | None = None) -> Self:
        found = super().from_file(path, metadata)
        found.templates = templates_of(metadata or {})
        return found

    def chat_template_source(self, name: str) -> str:
        """The text of a chat template of the file. Raises ChatTemplateError if the file has none so named."""
        if name not in self.templates:
            known = ", ".join(self.templates) or "none"
            raise ChatTemplateError(f"chat template: expected one of the file's ({known}), got {name!r}")
        return self.templates[name]

    def chat_template(self, name: str = "default") -> ChatTemplate:
        """A chat template of the file, compiled once. Raises ChatTemplateError if it is absent or invalid."""
        from oxillama.text.chat.template import ChatTemplate  # an engine starts without Jinja

        if name not in self.compiled:
            self.compiled[name] = ChatTemplate.of(self.chat_template_source(name), self.vocab)
        return self.compiled[name]

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        template: str = "default",
        **kwargs: Any,
    ) -> str:
        """Render messages with the file's chat template; see `ChatTemplate.render`."""
        return self.chat_template(template).render(messages, add_generation_prompt, **kwargs)


def templates_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates of GGUF metadata by name; "default" for the unnamed one. Empty ones are left out."""
    found = {}
    for name, value in metadata.items():
        if name != KEY and not name.startswith(KEY + "."):
            continue
        if isinstance(value, bytes):
            value = value.decode("utf-8", "surrogateescape")
        if isinstance(value, str) and value.strip():
            found[name[len(KEY) + 1 :] or "default"] = value
    return found
