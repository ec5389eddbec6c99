"""Protocols of `Llama` for the modules that it imports."""

from __future__ import annotations

from typing import Any, Protocol

from oxillama.engine.engine import InferenceEngine
from oxillama.text.chat.bridge import TokenizerBridge


class HasVocabulary(Protocol):
    """A model with the vocabulary of its file."""

    @property
    def model(self) -> TokenizerBridge:
        """The vocabulary."""


class Model(HasVocabulary, Protocol):
    """The methods of `Llama` that other modules call; see there for docstrings."""

    spm_infill: bool

    @property
    def engine(self) -> InferenceEngine:
        """The engine that runs requests."""

    def n_ctx(self) -> int: ...
    def encoded(self, text: str) -> list[int]: ...
    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]: ...
    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes: ...
    def text_of(self, prompt: Any, **given: Any) -> Any: ...
