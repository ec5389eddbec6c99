"""Byte-pair encoding of texts whose words are marked otherwise: by spaces alone, or by tags (DNA)."""

from __future__ import annotations

from oxillama.text.tokenizer.characters import lowered, split_spaces
from oxillama.text.tokenizer.segmenters.byte_pair import BytePair
from oxillama.text.tokenizer.vocabulary import Vocab


class WhitespaceWords:
    """Byte-pair words between spaces, the spaces dropped (`tokenizer.ggml.model` = whitespace)."""

    def __init__(self, vocab: Vocab) -> None:
        self._pieces = BytePair(vocab)
        self._lowercase = vocab.lowercase

    def encode(self, text: str, out: list[int]) -> None:
        for word in split_spaces(text):
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
