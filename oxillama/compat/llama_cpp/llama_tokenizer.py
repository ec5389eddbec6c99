"""Tokenizers by llama-cpp-python's names: text as bytes, tokens as lists."""

from __future__ import annotations

import abc
from typing import Any

from oxillama.compat.llama_cpp.protocols import HasVocabulary
from oxillama.text.chat.bridge import TokenizerBridge


class BaseLlamaTokenizer(abc.ABC):
    """The interface of ``tokenizer`` in `Llama`."""

    @abc.abstractmethod
    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """The ids of a text in UTF-8.

        Args:
            add_bos: whether to add the special tokens that the vocabulary puts around a text.
            special: whether to parse names of control tokens as these tokens.
        """

    @abc.abstractmethod
    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of tokens; ``special``: include the names of control tokens."""


class LlamaTokenizer(BaseLlamaTokenizer):
    """A tokenizer with the vocabulary of a model's file."""

    def __init__(self, llama: HasVocabulary | TokenizerBridge) -> None:
        self.bridge: TokenizerBridge = llama if isinstance(llama, TokenizerBridge) else llama.model

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        return self.bridge.encode(text.decode("utf-8"), add_special=add_bos, parse_special=special)

    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes:
        decoder = self.bridge.stream_decoder(not special, continuing=True)
        data = b"".join(map(decoder.piece, map(int, tokens)))
        opens = bool(tokens) and tokens[0] == self.bridge.bos_id
        return data.removeprefix(b" ") if opens else data  # the space that encoding has added

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """`tokenize` for a str."""
        return self.tokenize(text.encode("utf-8", errors="ignore"), add_bos=add_bos, special=special)

    def decode(self, tokens: list[int]) -> str:
        """`detokenize` as a str."""
        return self.detokenize(tokens).decode("utf-8", errors="ignore")

    @classmethod
    def from_ggml_file(cls, path: str) -> LlamaTokenizer:
        """A tokenizer with the vocabulary of a GGUF file."""
        return cls(TokenizerBridge.from_gguf(path))


class LlamaHFTokenizer(BaseLlamaTokenizer):
    """A tokenizer of `transformers`."""

    def __init__(self, hf_tokenizer: Any) -> None:
        self.hf_tokenizer: Any = hf_tokenizer

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        decoded = text.decode("utf-8", errors="ignore")
        return list(self.hf_tokenizer.encode(decoded, add_special_tokens=special))

    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes:
        before = prev_tokens or []
        start = len(self._bytes(before, special)) if before else 0
        return self._bytes(before + tokens, special)[start:]

    def _bytes(self, tokens: list[int], special: bool) -> bytes:
        text: str = self.hf_tokenizer.decode(tokens, skip_special_tokens=not special)
        return text.encode("utf-8", errors="ignore")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str) -> LlamaHFTokenizer:
        """A tokenizer from `transformers.AutoTokenizer`; `transformers` must be installed."""
        from transformers import AutoTokenizer

        return cls(AutoTokenizer.from_pretrained(pretrained_model_name_or_path))
