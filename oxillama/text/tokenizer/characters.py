"""Properties of characters: categories, spaces, lower case and base letters, all of one Unicode version.

Cuts made by a tokenizer must not change with the Python in use, so everything here rests on our own
table of Unicode 15.1 (the version of llama.cpp's src/unicode-data.cpp). Only the two mappings that
Unicode promises not to change for existing characters are taken from the standard library.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Literal

import numpy as np

from oxillama.text.tokenizer.unicode_table import RANGES

WHITESPACE = frozenset(
    (
        *range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F,
        0x3000,
    ),
)  # fmt: skip
_WIDE_SPACES = {c: "\v" for c in WHITESPACE if c > 0x7F}

# The letter that stands for a class of non-ASCII characters in a class view.
STAND_IN = {"N": "\xd1", "L": "\xd2", "P": "\xd3", "M": "\xd4", "S": "\xd5"}
OTHER = "\xd0"
HAN_LETTER, HAN_OTHER = "\xd6", "\xd7"
UPPER, LOWER = "\xd8", "\xd9"

JOINERS = (0x200C, 0x200D)
"""The zero-width non-joiner and joiner."""

View = Literal["", "han", "cased", "joined"]
"""A class view, and what it also sets apart: ideographs, upper and lower case, or `JOINERS` as marks."""

# CJK ideograph blocks: the unified ones with extensions A to F, and the compatibility ones.
_HAN_BLOCKS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2EBEF),
    (0x2F800, 0x2FA1F),
)


@cache
def categories() -> np.ndarray:
    """The general category of every code point, as the ASCII code of its letter: uint8 [0x110000].

    L letter, N number, P punctuation, S symbol, M mark, Z separator, C control, X unassigned.
    """
    letters = _letters()
    return np.where((letters == ord("U")) | (letters == ord("l")), np.uint8(ord("L")), letters)


def _letters() -> np.ndarray:
    """The letter of each code point in `RANGES`: uint8 [0x110000]."""
    words = RANGES.split()
    letters = np.frombuffer("".join(word[0] for word in words).encode(), np.uint8)
    return np.repeat(letters, [int(word[1:], 36) for word in words])


@cache
def _class_table(view: View) -> np.ndarray:  # Latin-1 codes, uint8 [0x110000]
    category = categories()
    table = np.full(category.shape, ord(OTHER), np.uint8)
    for letter, stand_in in STAND_IN.items():
        table[category == ord(letter)] = ord(stand_in)
    if view == "han":
        for first, last in _HAN_BLOCKS:
            block = table[first : last + 1]
            block[:] = np.where(block == ord(STAND_IN["L"]), ord(HAN_LETTER), ord(HAN_OTHER))
    if view == "cased":
        case = _letters()
        table[case == ord("U")], table[case == ord("l")] = ord(UPPER), ord(LOWER)
    if view == "joined":
        table[list(JOINERS)] = ord(STAND_IN["M"])
    table[list(WHITESPACE)] = ord("\v")
    table[:128] = np.arange(128)
    return table


def class_view(text: str, view: View = "") -> str:
    """Return `text` with each non-ASCII character replaced by the stand-in of its class.

    Same length, Latin-1 only. Non-ASCII spaces become a vertical tab. What the `view` sets apart has
    stand-ins of its own.
    """
    if text.isascii():
        return text
    code_points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return _class_table(view)[code_points].tobytes().decode("latin-1")


def space_view(text: str) -> str:
    """Return `text` with each non-ASCII space replaced by a vertical tab; same length."""
    return text if text.isascii() else text.translate(_WIDE_SPACES)


def category(code_point: int) -> str:
    return chr(categories()[code_point])


def lower(code_point: int) -> int:
    """The simple (one to one) lower case of a code point."""
    return code_point if category(code_point) == "X" else ord(chr(code_point).lower()[0])


def base(code_point: int) -> int:
    """The first code point of the canonical decomposition: the letter without its accents."""
    return (
        code_point if category(code_point) == "X" else ord(unicodedata.normalize("NFD", chr(code_point))[0])
    )


def without_accents(code_point: int) -> str:
    """The canonical decomposition without nonspacing marks: a Hangul syllable whole, no vowel sign lost."""
    if category(code_point) == "X":
        return chr(code_point)
    parts = unicodedata.normalize("NFD", chr(code_point))
    return "".join(char for char in parts if unicodedata.category(char) != "Mn")


def lowered(text: str) -> str:
    """`text` in simple lower case, character by character."""
    return "".join(chr(lower(ord(char))) for char in text)


def split_spaces(text: str) -> list[str]:
    """The runs of characters that are not spaces."""
    return [word for word in _SPACE_RUN.split(text) if word]


_SPACE_RUN = re.compile(f"[{''.join(map(chr, sorted(WHITESPACE)))}]+")
