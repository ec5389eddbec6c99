"""Byte-pair encoding: neighbours are joined, best pair first, until no pair is known.

Two kinds of vocabulary work this way: BPE proper, whose file lists the pairs in order, and SentencePiece (of
`sentence_piece`), where any pair whose concatenation is a token may join, by that token's score. Text is cut
into words first, words repeat, and the cache of words makes the joining itself rare.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TypeVar

from oxillama.text.tokenizer.vocabulary import SPACE, Vocab

CACHED_WORDS = 1 << 16
CACHED_LENGTH = 48  # characters up to which a word is worth remembering
_LIST_LIMIT = 200  # symbols up to which a plain list is faster than a heap
T = TypeVar("T")


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable character for each byte: itself where printable, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return {byte: chr(byte if byte in printable else next(others)) for byte in range(256)}


BYTE_TO_CHAR = _byte_alphabet()
# The way back, to Latin-1; a character outside the alphabet becomes one that Latin-1 refuses.
CHAR_TO_BYTE = {
    **dict.fromkeys(range(256), "\uffff"),
    **{ord(char): chr(byte) for byte, char in BYTE_TO_CHAR.items()},
}


def merge_pairs(symbols: list[str], cost: Callable[[str, str], float]) -> list[str]:
    """Join neighbours, always the cheapest pair and the leftmost among equals, until none is joinable.

    Args:
        symbols: Consumed.
        cost: Cost of joining two neighbours; infinity where they cannot be joined.
    """
    if len(symbols) > _LIST_LIMIT:
        return _merge_many(symbols, cost)
    costs = [cost(left, right) for left, right in pairwise(symbols)]
    while costs:
        least = min(costs)
        if least == math.inf:
            break
        i = costs.index(least)
        symbols[i] += symbols.pop(i + 1)
        del costs[i]
        if i:
            costs[i - 1] = cost(symbols[i - 1], symbols[i])
        if i < len(costs):
            costs[i] = cost(symbols[i], symbols[i + 1])
    return symbols


def _merge_many(symbols: list[str], cost: Callable[[str, str], float]) -> list[str]:
    """`merge_pairs` with a heap over a linked list: near-linear in the number of symbols."""
    n = len(symbols)
    following = list(range(1, n + 1))
    preceding = list(range(-1, n - 1))
    heap = []
    for i in range(n - 1):
        price = cost(symbols[i], symbols[i + 1])
        if price != math.inf:
            heap.append((price, i, len(symbols[i]) + len(symbols[i + 1])))
    heapify(heap)
    while heap:
        _, i, length = heappop(heap)
        j = following[i]
        # An entry is stale once either symbol was joined to another: the lengths tell.
        if not symbols[i] or j == n or len(symbols[i]) + len(symbols[j]) != length:
            continue
        symbols[i] += symbols[j]
        symbols[j] = ""
        k = following[i] = following[j]
        h = preceding[i]
        if k < n:
            preceding[k] = i
            price = cost(symbols[i], symbols[k])
            if price != math.inf:
                heappush(heap, (price, i, length + len(symbols[k])))
        if h >= 0:
            price = cost(symbols[h], symbols[i])
            if price != math.inf:
                heappush(heap, (price, h, length + len(symbols[h])))
    return [symbol for symbol in symbols if symbol]


def uncrossed_spaces(tokens: list[str]) -> Callable[[str], list[str]]:
    """A function that cuts a text before each U+2581 which no token can contain after what precedes it."""
    between = "\ud800"  # no decoded token holds a high surrogate
    crossing = set(re.findall(f"([^{SPACE}{between}]){SPACE}", between.join(tokens)))
    barred = "".join(map(re.escape, sorted(crossing | {SPACE})))
    return re.compile(f"(?<=[^{barred}])(?={SPACE})").split


class WordCache(dict[str, T]):
    """What was made of the words seen lately; forgets everything when full."""

    def __init__(self, make: Callable[[str], T]) -> None:
        self._make = make

    def __missing__(self, word: str) -> T:
        found = self._make(word)
        if len(word) <= CACHED_LENGTH:
            if len(self) >= CACHED_WORDS:
                self.clear()
            self[word] = found
        return found


def symbol_ids(
    symbols: list[str], ids: Mapping[str, int], bytes_of: Callable[[str], Iterable[int]]
) -> tuple[int, ...]:
    """The ids of symbols; ``bytes_of`` gives the ids of the bytes of a symbol that is no token."""
    found: list[int] = []
    for symbol in symbols:
        id = ids.get(symbol)
        if id is not None:
            found.append(id)
        else:
            found += bytes_of(symbol)
    return tuple(found)


class BytePair:
    """BPE over pre-tokenized words, in the byte alphabet or over plain characters (Gemma 4).

    A symbol that is no token and has no byte tokens is left out, as llama.cpp does; that happens only
    in vocabularies which lack some byte.
    """

    def __init__(self, vocab: Vocab) -> None:
        assert vocab.pre is not None
        self._vocab, self._pre = vocab, vocab.pre
        ranks = dict(zip(vocab.merges, range(len(vocab.merges))))
        if len(ranks) < len(vocab.merges):  # the first of equal merges counts
            ranks = dict(zip(reversed(vocab.merges), reversed(range(len(vocab.merges)))))
        rank = ranks.get

        def cost(left: str, right: str) -> float:
            return rank(f"{left} {right}", math.inf)

        self._cost = cost
        self._cut: Callable[[str], list[str]] | None = None
        if not vocab.pre.byte_level and not vocab.pre.ignore_merges:
            self._cut = uncrossed_spaces(
                [merge.replace(" ", "", 1) for merge in vocab.merges if SPACE in merge]
            )
        self._words = WordCache(self._encode_word)

    def encode(self, text: str, out: list[int]) -> None:
        if self._pre.escape_spaces:
            text = text.replace(" ", SPACE)
        words = self._pre.split(text)
        if self._cut is not None:
            words = [part for word in words for part in self._cut(word)]
        for word in words:
            out += self._words[word]

    def _encode_word(self, word: str) -> tuple[int, ...]:
        if self._pre.byte_level:
            word = word.encode().decode("latin-1").translate(BYTE_TO_CHAR)
        ids = self._vocab.ids
        if word in ids and (self._pre.ignore_merges or (self._pre.newline_tokens and not word.strip("\n"))):
            return (ids[word],)
        return symbol_ids(merge_pairs(list(word), self._cost), ids, self._bytes_of)

    def _bytes_of(self, symbol: str) -> list[int]:
        if self._pre.byte_level:
            texts = [chr(byte) for byte in symbol.encode() if byte < 0x80]
        else:
            texts = [f"<0x{byte:02X}>" for byte in symbol.encode()]
        return [self._vocab.ids[text] for text in texts if text in self._vocab.ids]
