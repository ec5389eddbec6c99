"""A model's tokens for grammars: the bytes of each token, and the end-of-generation tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from oxillama._kernels.grammar.trie import Trie
from oxillama.errors import TokenizerError
from oxillama.text.tokenizer.vocabulary import HIDDEN, UNUSED

if TYPE_CHECKING:
    from oxillama.text.tokenizer.tokenizer import Tokenizer


class Vocabulary:
    """The bytes of all tokens, as a trie. Read-only: any number of grammars and threads may share one.

    Args:
        strings: The bytes that each token adds to a text, by id.
        end_ids: Tokens after which generation ends; allowed exactly where the grammar may end.
        excluded: Tokens that are no text: control and unused tokens. A grammar allows them only by naming
            them. Tokens of zero bytes are always excluded.
    """

    def __init__(
        self, strings: Sequence[bytes], end_ids: Iterable[int], excluded: Iterable[int] = ()
    ) -> None:
        n = len(strings)
        inside = bytearray(b"\1") * n
        self.end_ids: frozenset[int] = frozenset(end_ids)
        for id in (*self.end_ids, *excluded):
            if not 0 <= id < n:
                raise TokenizerError(f"token {id}: the vocabulary has {n} tokens")
            inside[id] = 0
        self.trie: Trie = Trie(list(strings), bytes(inside))
        self.n_vocab = n
        self._masks: WeakValueDictionary[bytes, np.ndarray] = WeakValueDictionary()

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> Vocabulary:
        """The vocabulary of a tokenizer."""
        types = tokenizer.vocab.types
        hidden = HIDDEN | UNUSED
        excluded = [id for id, kind in enumerate(types) if kind & hidden]
        return cls(tokenizer.vocab_bytes(), tokenizer.eog_ids, excluded)

    @property
    def n_words(self) -> int:
        """The length of a mask in words of 32 tokens."""
        return (self.n_vocab + 31) // 32

    @property
    def n_bytes(self) -> int:
        """Memory held, in bytes."""
        return self.trie.n_bytes

    def is_text(self, token: int) -> bool:
        """Whether the token is text: not control, unused, empty, or an end of generation."""
        return self.trie.holds(token)

    def empty_mask(self) -> np.ndarray:
        """A mask that allows nothing: uint32 (n_words,)."""
        return np.zeros(self.n_words, np.uint32)

    def shared(self, mask: np.ndarray) -> np.ndarray:
        """The shared mask with these bits, one for all grammars: uint32 (n_words,), read-only."""
        data = mask.tobytes()
        found = self._masks.get(data)
        if found is None:
            found = self._masks[data] = np.frombuffer(data, np.uint32)
        return found
