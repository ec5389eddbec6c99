"""Best-sum segmentation: Unigram language models (with their text normalization), and PLaMo 2."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import numpy as np

from oxillama.errors import TokenizerError
from oxillama.text.tokenizer.segmenters.byte_pair import WordCache, uncrossed_spaces
from oxillama.text.tokenizer.vocabulary import BYTE, NORMAL, PREFIX, SPACE, UNUSED, USER_DEFINED, Vocab

CHARSMAP = f"{PREFIX}precompiled_charsmap"


class Unigram:
    """Unigram language model: the segmentation with the highest sum of scores (Viterbi), over bytes."""

    def __init__(self, vocab: Vocab) -> None:
        if "unk" not in vocab.special:
            raise TokenizerError(f"{PREFIX}unknown_token_id: expected a token id (Unigram), got none")
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
        self._words = WordCache(self._encode_word)
        self._cut: Callable[[str], list[str]] | None = None
        if np.all(np.asarray([*normal, self._unknown_score]) * 2**24 % 1 == 0):
            # Sums of such scores are exact, so what stands before a word cannot sway its segmentation.
            self._cut = uncrossed_spaces(vocab.tokens)

    def encode(self, text: str, out: list[int]) -> None:
        normal = self._normalize(text)
        found: list[int] = []
        for word in self._cut(normal) if self._cut else [normal]:
            found += self._words[word]
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


_UTF8_LENGTH = (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4)  # indexed by the upper half of the first byte


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

        # Whether no replacement known so far spans a space: `_longest` looks out for one.
        self._separable = not any(b" " in text for text in self._kept)
        if self._nodes and self._has_child(_child_base(self._nodes[0]), 0x20):
            self._separable = False
        self._replaced = WordCache(lambda word: self._replace(word.encode()))

    def __call__(self, text: str) -> str:
        words = text.split(" ")
        if self._nodes or self._kept:
            replaced = [self._replaced[word] for word in words] if self._separable else []
            if not self._separable:  # `_longest` may just have found this out
                replaced = [self._replace(text.encode())]
            words = " ".join(replaced).split(" ")
        if self._merge:
            return "".join(self._space + word for word in words if word)
        prefix = self._space if self._prefix and any(words) else ""
        return prefix + self._space.join(words)

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
                    raise TokenizerError(f"{CHARSMAP}: expected a zero after the text at {offset}, got none")
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
            raise TokenizerError(f"{CHARSMAP}: expected nodes inside the trie, got one outside") from None
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
        raise TokenizerError(f"{CHARSMAP}: expected 4 bytes or more, got {len(data)}")
    (size,) = struct.unpack_from("<I", data)
    if size % 4 or 4 + size >= len(data):
        raise TokenizerError(f"{CHARSMAP}: expected a trie of at most {len(data) - 4} bytes, got {size}")
    return struct.unpack_from(f"<{size // 4}I", data, 4), data[4 + size :]


def _utf8_length(text: bytes, start: int) -> int:
    """Length of the UTF-8 sequence at `start`, 0 if no sequence starts there."""
    lead = text[start]
    length = 1 if lead < 0x80 else 0 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    rest = text[start + 1 : start + length]
    return length if length and len(rest) == length - 1 and all(b & 0xC0 == 0x80 for b in rest) else 0


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
            raise TokenizerError(f"{PREFIX}tokens: expected a byte token for 0x{min(missing):02X}, got none")
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
