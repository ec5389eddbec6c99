"""SentencePiece vocabularies: byte-pair encoding by the scores of tokens."""

from __future__ import annotations

import math
from operator import neg

from oxillama.errors import TokenizerError
from oxillama.text.tokenizer.segmenters.byte_pair import WordCache, merge_pairs, symbol_ids, uncrossed_spaces
from oxillama.text.tokenizer.vocabulary import PREFIX, SPACE, Vocab


class SentencePiece:
    """SentencePiece BPE: neighbours whose concatenation is a token are joined, highest score first."""

    def __init__(self, vocab: Vocab) -> None:
        self._ids = vocab.ids
        scores = vocab.scores or [0.0] * len(vocab.tokens)
        prices = list(map(neg, scores))
        if math.inf in prices:  # -inf is a score too: the worst one, but not "cannot be joined"
            prices = [min(price, 1e300) for price in prices]
        price = dict(zip(vocab.tokens, prices)).get

        def cost(left: str, right: str) -> float:
            return price(left + right, math.inf)

        self._cost = cost
        self._cut = uncrossed_spaces([token for token in vocab.tokens if SPACE in token])
        self._words = WordCache(self._encode_word)

    def encode(self, text: str, out: list[int]) -> None:
        for word in self._cut(text.replace(" ", SPACE)):
            out += self._words[word]

    def _encode_word(self, word: str) -> tuple[int, ...]:
        symbols = merge_pairs(list(word), self._cost)
        return symbol_ids(symbols, self._ids, lambda symbol: map(self._byte_id, symbol.encode()))

    def _byte_id(self, byte: int) -> int:
        id = self._ids.get(f"<0x{byte:02X}>")
        if id is None and byte < 0x80:
            id = self._ids.get(chr(byte))
        if id is None:
            raise TokenizerError(f"{PREFIX}tokens: expected a token for the byte 0x{byte:02X}, got none")
        return id
