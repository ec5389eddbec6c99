"""Segmenters: text without special tokens in, token ids out; one class per kind of vocabulary.

Each reproduces the choices of llama.cpp's tokenizer of that kind, ties included. All work is on
Python strings: byte-pair vocabularies split text into words first, words repeat, and a bounded cache
of words makes the merging itself rare; SentencePiece text is cut the same way wherever no token can
span the cut, which changes nothing in the result.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol

import numpy as np

from oxillama.characters import WHITESPACE, base, category, lower
from oxillama.errors import TokenizerError
from oxillama.vocab import BYTE, NORMAL, PREFIX, UNUSED, USER_DEFINED, Vocab

SPACE = "\u2581"  # stands for a space in tokens

_CACHED_WORDS = 1 << 16
_CACHED_LENGTH = 48
_LIST_LIMIT = 200  # symbols up to which a plain list is faster than a heap


class Segmenter(Protocol):
    def encode(self, text: str, out: list[int]) -> None:
        """Append the ids of `text`, which is not empty and holds no lone surrogates, to `out`."""


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable character for each byte: itself where printable, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return {byte: chr(byte if byte in printable else next(others)) for byte in range(256)}


BYTE_TO_CHAR = _byte_alphabet()
# The way back, to Latin-1; a character outside the alphabet becomes one that Latin-1 refuses.
CHAR_TO_BYTE = {
    **{c: "\uffff" for c in range(256)},
    **{ord(char): chr(byte) for byte, char in BYTE_TO_CHAR.items()},
}


def merge_pairs(symbols: list[str], cost: Callable[[str, str], float]) -> list[str]:
    """Join neighbours, always the cheapest pair and the leftmost among equals, until none is joinable.

    Parameters
    ----------
    symbols : list of str
        Consumed.
    cost : callable
        Cost of joining two neighbours; infinity where they cannot be joined.
    """
    if len(symbols) > _LIST_LIMIT:
        return _merge_many(symbols, cost)
    costs = [cost(left, right) for left, right in zip(symbols, symbols[1:])]
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


def _uncrossed_spaces(tokens: list[str]) -> Callable[[str], list[str]]:
    """A function that cuts a text before each U+2581 which no token can contain after what precedes it."""
    between = "\ud800"  # no decoded token holds a high surrogate
    crossing = set(re.findall(f"([^{SPACE}{between}]){SPACE}", between.join(tokens)))
    barred = "".join(map(re.escape, sorted(crossing | {SPACE})))
    return re.compile(f"(?<=[^{barred}])(?={SPACE})").split


class _WordCache:
    """Ids of the words seen lately; forgets everything when full."""

    def __init__(self, encode: Callable[[str], tuple[int, ...]]) -> None:
        self._encode = encode
        self._known: dict[str, tuple[int, ...]] = {}

    def extend(self, words: list[str], out: list[int]) -> None:
        known = self._known
        for word in words:
            ids = known.get(word)
            if ids is None:
                ids = self._encode(word)
                if len(word) <= _CACHED_LENGTH:
                    if len(known) >= _CACHED_WORDS:
                        known.clear()
                    known[word] = ids
            out += ids


class BytePair:
    """BPE over pre-tokenized words, in the byte alphabet or over plain characters (Gemma 4).

    A symbol that is no token and has no byte tokens is left out, as llama.cpp does; that happens only
    in vocabularies which lack some byte.
    """

    def __init__(self, vocab: Vocab) -> None:
        assert vocab.pre is not None
        self._vocab, self._pre = vocab, vocab.pre
        ranks = dict(zip(vocab.merges, range(len(vocab.merges))))
        if len(ranks) < len(vocab.merges):  # of equal merges the first counts
            ranks = dict(zip(reversed(vocab.merges), reversed(range(len(vocab.merges)))))
        rank = ranks.get

        def cost(left: str, right: str) -> float:
            return rank(f"{left} {right}", math.inf)

        self._cost = cost
        self._cut: Callable[[str], list[str]] | None = None
        if not vocab.pre.byte_level and not vocab.pre.ignore_merges:
            self._cut = _uncrossed_spaces(
                [merge.replace(" ", "", 1) for merge in vocab.merges if SPACE in merge]
            )
        self._words = _WordCache(self._encode_word)

    def encode(self, text: str, out: list[int]) -> None:
        if self._pre.escape_spaces:
            text = text.replace(" ", SPACE)
        words = self._pre.split(text)
        if self._cut is not None:
            words = [part for word in words for part in self._cut(word)]
        self._words.extend(words, out)

    def _encode_word(self, word: str) -> tuple[int, ...]:
        if self._pre.byte_level:
            word = word.encode().decode("latin-1").translate(BYTE_TO_CHAR)
        ids = self._vocab.ids
        if word in ids and (self._pre.ignore_merges or (self._pre.newline_tokens and not word.strip("\n"))):
            return (ids[word],)
        found: list[int] = []
        for symbol in merge_pairs(list(word), self._cost):
            id = ids.get(symbol)
            if id is not None:
                found.append(id)
            else:
                found += self._bytes_of(symbol)
        return tuple(found)

    def _bytes_of(self, symbol: str) -> list[int]:
        if self._pre.byte_level:
            texts = [chr(byte) for byte in symbol.encode() if byte < 0x80]
        else:
            texts = [f"<0x{byte:02X}>" for byte in symbol.encode()]
        return [self._vocab.ids[text] for text in texts if text in self._vocab.ids]


class SentencePiece:
    """SentencePiece BPE: neighbours whose concatenation is a token are joined, highest score first."""

    def __init__(self, vocab: Vocab) -> None:
        self._ids = vocab.ids
        scores = vocab.scores or [0.0] * len(vocab.tokens)
        # -inf is a score too: the worst one, but not "cannot be joined".
        costs = {token: min(-score, 1e300) for token, score in zip(vocab.tokens, scores)}
        price = costs.get

        def cost(left: str, right: str) -> float:
            return price(left + right, math.inf)

        self._cost = cost
        self._cut = _uncrossed_spaces([token for token in vocab.tokens if SPACE in token])
        self._words = _WordCache(self._encode_word)

    def encode(self, text: str, out: list[int]) -> None:
        self._words.extend(self._cut(text.replace(" ", SPACE)), out)

    def _encode_word(self, word: str) -> tuple[int, ...]:
        found: list[int] = []
        for symbol in merge_pairs(list(word), self._cost):
            id = self._ids.get(symbol)
            if id is not None:
                found.append(id)
            else:
                found += map(self._byte_id, symbol.encode())
        return tuple(found)

    def _byte_id(self, byte: int) -> int:
        id = self._ids.get(f"<0x{byte:02X}>")
        if id is None and byte < 0x80:
            id = self._ids.get(chr(byte))
        if id is None:
            raise TokenizerError(
                f"{PREFIX}tokens: no token for the byte 0x{byte:02X}, the text cannot be encoded"
            )
        return id


class WhitespaceWords:
    """Byte-pair words between spaces, the spaces dropped (`tokenizer.ggml.model` = whitespace)."""

    def __init__(self, vocab: Vocab) -> None:
        self._pieces = BytePair(vocab)
        self._lowercase = vocab.lowercase

    def encode(self, text: str, out: list[int]) -> None:
        for word in _SPACE_RUN.split(text):
            if word:
                self._pieces.encode(lowered(word) if self._lowercase else word, out)


class DnaText:
    """Byte-pair text in which `<dna>...</dna>` encloses a sequence encoded six letters at a time."""

    _LENGTH = 6
    _MARK = "\ue000"  # ends the spelling of these tokens in the file, to tell them from words

    def __init__(self, vocab: Vocab) -> None:
        self._pieces, self._ids = BytePair(vocab), dict(vocab.ids)
        self._tags = [vocab.ids.get(text) for text in ("<dna>", "</dna>", "<oov>")]

    def encode(self, text: str, out: list[int]) -> None:
        opening, closing, unknown = self._tags
        if opening is None or closing is None or unknown is None:
            self._pieces.encode(text, out)
            return
        while text:
            before, found, text = text.partition("<dna>")
            if before:
                self._pieces.encode(before, out)
            if not found:
                return
            out.append(opening)
            sequence, found, text = text.partition("</dna>")
            self._encode_sequence(sequence, unknown, out)
            if not found:
                return
            out.append(closing)

    def _encode_sequence(self, sequence: str, unknown: int, out: list[int]) -> None:
        raw = sequence.encode().upper()  # bytes: only a-z change
        for i in range(0, len(raw), self._LENGTH):
            letters = raw[i : i + self._LENGTH].ljust(self._LENGTH, b"A").decode("utf-8", "surrogateescape")
            out.append(self._ids.get(letters + self._MARK, unknown))


class WordPiece:
    """BERT: lower case, no accents, punctuation and ideographs apart, longest token first.

    Tokens that begin a word are spelled with a leading U+2581 in GGUF, the others without `##`.
    """

    def __init__(self, vocab: Vocab) -> None:
        if "unk" not in vocab.special:
            raise TokenizerError(f"{PREFIX}unknown_token_id: a WordPiece vocabulary needs one")
        self._ids, self._unknown = vocab.ids, vocab.special["unk"]
        self._longest = max(map(len, vocab.tokens))
        self._normal = _BertCharacters(vocab.lowercase, vocab.strip_accents)
        self._words = _WordCache(self._encode_word)

    def encode(self, text: str, out: list[int]) -> None:
        self._words.extend([word for word in text.translate(self._normal).split(" ") if word], out)

    def _encode_word(self, word: str) -> tuple[int, ...]:
        word = SPACE + word
        found: list[int] = []
        start = 0
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                id = self._ids.get(word[start:end])
                if id is not None:
                    break
            else:
                return (self._unknown,)
            found.append(id)
            start = end
        return tuple(found)


class _BertCharacters(dict[int, str]):
    """What each character becomes before words are looked up, worked out when it is first met."""

    def __init__(self, lowercase: bool, strip_accents: bool) -> None:
        self._lowercase, self._strip_accents = lowercase, strip_accents

    def __missing__(self, code_point: int) -> str:
        c = base(code_point) if self._strip_accents else code_point
        kind = category(c)
        if c in WHITESPACE:
            text = " "
        elif c in (0, 0xFFFD) or kind == "C" or (self._strip_accents and kind == "M"):
            text = ""
        else:
            text = chr(lower(c) if self._lowercase else c)
            if kind == "P" or (c < 0x7F and kind == "S") or any(a <= c <= b for a, b in _BERT_IDEOGRAPHS):
                text = f" {text} "
        self[code_point] = text
        return text


# As in the Hugging Face normalizer: 0x2B920, where Unicode's block begins at 0x2B820.
_BERT_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)

_SPACE_RUN = re.compile("[" + "".join(map(chr, sorted(WHITESPACE))) + "]+")


def lowered(text: str) -> str:
    """`text` in simple lower case, character by character."""
    return "".join(chr(lower(ord(char))) for char in text)


class Unigram:
    """Unigram language model: the segmentation with the highest sum of scores (Viterbi), over bytes."""

    def __init__(self, vocab: Vocab) -> None:
        if "unk" not in vocab.special:
            raise TokenizerError(f"{PREFIX}unknown_token_id: a Unigram vocabulary needs one")
        self._unknown = vocab.special["unk"]
        scores = vocab.scores or [0.0] * len(vocab.tokens)
        self._pieces: dict[bytes, tuple[int, float]] = {}
        self._longest: dict[bytes, int] = {}  # length of the longest piece, by its first three bytes
        normal: list[float] = []
        user_defined: list[bytes] = []
        for id, kind in enumerate(vocab.original_types):
            piece = vocab.tokens[id].encode("utf-8", "surrogateescape")
            if kind & NORMAL:
                normal.append(scores[id])
            if kind & USER_DEFINED:
                user_defined.append(piece)
            if kind & (NORMAL | USER_DEFINED | UNUSED):
                self._pieces[piece] = (id, 0.0 if vocab.types[id] & USER_DEFINED else scores[id])
                self._longest[piece[:3]] = max(len(piece), self._longest.get(piece[:3], 0))
        lowest = np.float32(min(normal, default=np.finfo(np.float32).max))
        self._unknown_score = float(lowest - np.float32(10.0))
        self._normalize = Normalizer(vocab, user_defined)
        self._words = _WordCache(self._encode_word)
        self._cut: Callable[[str], list[str]] | None = None
        if np.all(np.asarray([*normal, self._unknown_score]) * 2**24 % 1 == 0):
            # Sums of such scores are exact, so what stands before a word cannot sway its segmentation.
            self._cut = _uncrossed_spaces(vocab.tokens)

    def encode(self, text: str, out: list[int]) -> None:
        normal = self._normalize(text)
        found: list[int] = []
        self._words.extend(self._cut(normal) if self._cut else [normal], found)
        unknown = self._unknown  # a run of unknown characters counts as one
        if unknown in found:
            found = [id for i, id in enumerate(found) if id != unknown or not i or found[i - 1] != unknown]
        out += found

    def _encode_word(self, word: str) -> tuple[int, ...]:
        data = word.encode("utf-8", "surrogateescape")
        n = len(data)
        best = [-math.inf] * (n + 1)
        came_from = [0] * (n + 1)
        token = [self._unknown] * (n + 1)
        best[0] = 0.0
        pieces, longest = self._pieces, self._longest
        start = 0
        while start < n:
            score = best[start]
            following = min(start + _UTF8_LENGTH[data[start] >> 4], n)
            whole_character = False
            limit = max(2, longest.get(data[start : start + 3], 0))
            for end in range(start + 1, min(start + limit, n) + 1):
                entry = pieces.get(data[start:end])
                if entry is not None:
                    whole_character = whole_character or end == following
                    if score + entry[1] > best[end]:
                        best[end], came_from[end], token[end] = score + entry[1], start, entry[0]
            if not whole_character and score + self._unknown_score > best[following]:
                best[following] = score + self._unknown_score
                came_from[following], token[following] = start, self._unknown
            start = following
        found: list[int] = []
        end = n
        while end:
            found.append(token[end])
            end = came_from[end]
        return tuple(reversed(found))


_UTF8_LENGTH = (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4)  # by the upper half of the first byte


class Normalizer:
    """SentencePiece's text normalization: a compiled table of replacements, then the rules for spaces.

    `precompiled_charsmap` is a little-endian length, that many bytes of an XOR-compressed double array
    (a trie over bytes, one uint32 per node), and the replacements, each ended by a NUL.
    """

    def __init__(self, vocab: Vocab, user_defined: list[bytes]) -> None:
        self._space = SPACE if vocab.escape_spaces else " "
        self._prefix, self._merge = vocab.add_space_prefix, vocab.remove_extra_spaces
        # Any beginning of a user-defined token is left as it is, whether or not the rest follows.
        self._kept = {text[:i] for text in user_defined for i in range(1, len(text) + 1)}
        self._nodes, self._replacements = _read_charsmap(vocab.charsmap)

        # Whether no replacement spans a space, as far as is known: `_longest` looks out for one.
        self._separable = not any(b" " in text for text in self._kept)
        if self._nodes and self._has_child(_child_base(self._nodes[0]), 0x20):
            self._separable = False
        self._known: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        words = text.split(" ")
        if self._nodes or self._kept:
            replaced = [self._replace_word(word) for word in words] if self._separable else []
            if not self._separable:  # which `_replace_word` may just have found out
                replaced = [self._replace(text.encode())]
            words = " ".join(replaced).split(" ")
        if self._merge:
            return "".join(self._space + word for word in words if word)
        prefix = self._space if self._prefix and any(words) else ""
        return prefix + self._space.join(words)

    def _replace_word(self, word: str) -> str:
        replaced = self._known.get(word)
        if replaced is None:
            replaced = self._replace(word.encode())
            if len(word) <= _CACHED_LENGTH:
                if len(self._known) >= _CACHED_WORDS:
                    self._known.clear()
                self._known[word] = replaced
        return replaced

    def _replace(self, text: bytes) -> str:
        out, i = bytearray(), 0
        while i < len(text):
            replacement, length = self._match(text, i)
            out += replacement
            i += length
        return out.decode("utf-8", "surrogateescape")

    def _match(self, text: bytes, start: int) -> tuple[bytes, int]:
        """The replacement at `start` and how many bytes it replaces."""
        end = start
        while end < len(text) and text[start : end + 1] in self._kept:
            end += 1
        if end > start:
            return text[start:end], end - start
        if self._nodes:
            length, offset = self._longest(text, start)
            if length:
                stop = self._replacements.find(b"\0", offset)
                if stop < 0:
                    raise TokenizerError(f"{PREFIX}precompiled_charsmap: replacement at {offset} has no end")
                return self._replacements[offset:stop], length
        length = _utf8_length(text, start)
        return (text[start : start + length], length) if length else ("\ufffd".encode(), 1)

    def _longest(self, text: bytes, start: int) -> tuple[int, int]:
        """Length of the longest key of the trie at `start`, and the offset of its replacement."""
        nodes, length, offset = self._nodes, 0, 0
        try:
            node = _child_base(nodes[0])
            for i in range(start, len(text)):
                byte = text[i]
                unit = nodes[node ^ byte]
                if byte == 0 or unit & 0x800000FF != byte:
                    break
                node ^= byte ^ _child_base(unit)
                if unit >> 8 & 1:
                    length, offset = i - start + 1, nodes[node] & 0x7FFFFFFF
            else:
                if self._has_child(node, 0x20):
                    self._separable = False
        except IndexError:
            raise TokenizerError(f"{PREFIX}precompiled_charsmap: a node points outside the trie") from None
        return length, offset

    def _has_child(self, base: int, byte: int) -> bool:
        child = base ^ byte
        return child < len(self._nodes) and self._nodes[child] & 0x800000FF == byte


def _child_base(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)


def _read_charsmap(data: bytes) -> tuple[tuple[int, ...], bytes]:
    if not data:
        return (), b""
    if len(data) < 4:
        raise TokenizerError(f"{PREFIX}precompiled_charsmap: {len(data)} bytes are too few for its header")
    (size,) = struct.unpack_from("<I", data)
    if size % 4 or 4 + size >= len(data):
        raise TokenizerError(
            f"{PREFIX}precompiled_charsmap: a trie of {size} bytes does not fit {len(data)} bytes"
        )
    return struct.unpack_from(f"<{size // 4}I", data, 4), data[4 + size :]


def _utf8_length(text: bytes, start: int) -> int:
    """Length of the UTF-8 sequence at `start`, 0 where there is none."""
    lead = text[start]
    length = 1 if lead < 0x80 else 0 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    rest = text[start + 1 : start + length]
    return length if length and len(rest) == length - 1 and all(b & 0xC0 == 0x80 for b in rest) else 0


class Rwkv:
    """RWKV world: the longest token at each place, over bytes."""

    def __init__(self, vocab: Vocab) -> None:
        self._ids: dict[bytes, int] = {}
        self._prefixes: set[bytes] = set()
        for id, text in enumerate(vocab.tokens):
            token = unescape_rwkv(text)
            self._ids[token] = id
            self._prefixes.update(token[:i] for i in range(1, len(token) + 1))
        self._unknown = vocab.special.get("unk")

    def encode(self, text: str, out: list[int]) -> None:
        data = text.encode()
        start = 0
        while start < len(data):
            best, length = self._unknown, 1
            end = start + 1
            while end <= len(data) and data[start:end] in self._prefixes:
                if data[start:end] in self._ids:
                    best, length = self._ids[data[start:end]], end - start
                end += 1
            if best is None:
                raise TokenizerError(f"{PREFIX}tokens: no token begins with the byte 0x{data[start]:02X}")
            out.append(best)
            start += length


def unescape_rwkv(text: str) -> bytes:
    r"""The bytes of an RWKV token, which GGUF spells with \t, \n, \r, \xHH and \ before any other byte."""

    def plain(match: re.Match[bytes]) -> bytes:
        escape = match[0]
        if len(escape) == 4:
            return bytes([int(escape[2:], 16)])
        return {b"t": b"\t", b"n": b"\n", b"r": b"\r"}.get(escape[1:], escape[1:])

    return re.sub(
        rb"\\(?:x[0-9A-Fa-f]{2}|.)", plain, text.encode("utf-8", "surrogateescape"), flags=re.DOTALL
    )


class Plamo2:
    """PLaMo 2: the segmentation with the highest sum of scores, found from the end; bytes where none fits."""

    _UNKNOWN = -10_000_000
    _INVALID = -20_000_000

    def __init__(self, vocab: Vocab) -> None:
        scores = vocab.scores or [0.0] * len(vocab.tokens)
        self._bytes = {}
        self._pieces: dict[str, tuple[int, int]] = {}
        for id, (text, score) in enumerate(zip(vocab.tokens, scores)):
            if vocab.original_types[id] & BYTE:
                self._bytes[vocab.byte_of(id)] = id
            elif math.isfinite(score):
                points = math.floor(abs(score) * 1e4 + 0.5)
                self._pieces[text] = (id, points if score > 0 else -points)
        missing = set(range(256)) - self._bytes.keys()
        if missing:
            raise TokenizerError(f"{PREFIX}tokens: no byte token for 0x{min(missing):02X}")
        self._longest = max(map(len, self._pieces), default=0)

    def encode(self, text: str, out: list[int]) -> None:
        text = text.removeprefix("\ufeff")
        n = len(text)
        cost = [0] * (n + 1)
        step: list[tuple[int, int | None]] = [(1, None)] * (n + 1)  # length and token; None: bytes
        for i in range(n - 1, -1, -1):
            least, choice = 1 << 60, step[i]
            for length in range(min(self._longest, n - i), 0, -1):
                entry = self._pieces.get(text[i : i + length])
                if entry is not None and entry[1] > self._INVALID and cost[i + length] - entry[1] < least:
                    least, choice = cost[i + length] - entry[1], (length, entry[0])
            if cost[i + 1] - self._UNKNOWN < least:
                least, choice = cost[i + 1] - self._UNKNOWN, (1, None)
            cost[i], step[i] = least, choice
        i = 0
        while i < n:
            length, id = step[i]
            if id is None:
                out += (self._bytes[byte] for byte in text[i].encode())
            else:
                out.append(id)
            i += length


def segmenter(vocab: Vocab) -> Segmenter:
    """The segmenter for a vocabulary."""
    if vocab.model == "whitespace":
        return WhitespaceWords(vocab)
    if vocab.model == "hybriddna":
        return DnaText(vocab)
    by_kind: dict[str, Callable[[Vocab], Segmenter]] = {
        "bpe": BytePair,
        "spm": SentencePiece,
        "unigram": Unigram,
        "wordpiece": WordPiece,
        "rwkv": Rwkv,
        "plamo2": Plamo2,
    }
    return by_kind[vocab.kind](vocab)
