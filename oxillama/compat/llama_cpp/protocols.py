"""What tokenizers, completions and chats need of a `Llama`, which imports them."""

from __future__ import annotations

from typing import Any, Protocol

from oxillama.engine.engine import InferenceEngine
from oxillama.tokenizer.bridge import TokenizerBridge


class HasVocabulary(Protocol):
    """A model with the vocabulary of its file."""

    @property
    def model(self) -> TokenizerBridge:
        """The vocabulary."""


class Model(HasVocabulary, Protocol):
    """A `Llama`, whose docstrings these methods have."""

    spm_infill: bool

    @property
    def engine(self) -> InferenceEngine:
        """What runs requests."""

    def n_ctx(self) -> int: ...
    def encoded(self, text: str) -> list[int]: ...
    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]: ...
    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes: ...
    def text_of(self, prompt: Any, **given: Any) -> Any: ...
