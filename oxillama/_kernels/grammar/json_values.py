"""Comparison of JSON texts by their values."""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal
from typing import Any

from oxillama.errors import GrammarError


def fingerprint(text: bytes) -> bytes:
    """Hexadecimal digits that two JSON texts share exactly if their values are equal: 128 bits of a hash.

    Numbers are equal by their exact values, strings by their characters, arrays item by item, and objects if
    they have equal values under the same names; of a repeated name the last value counts.

    Raises:
        GrammarError: values are nested more deeply than Python's stack allows.
        ValueError: the text is not JSON.
    """
    try:
        value = json.loads(text, parse_int=_number, parse_float=_number, object_pairs_hook=_sorted)
        return hashlib.blake2b(repr(value).encode(), digest_size=16).hexdigest().encode()
    except RecursionError:
        raise GrammarError("grammar: an item that is told apart by its value is nested too deeply") from None


def _sorted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(sorted(dict(pairs).items()))


def _number(text: str) -> bytes:
    """A number as its digits, without zeros at either end, and a hexadecimal exponent."""
    mantissa, _, exponent = text.lower().lstrip("-").partition("e")
    whole, _, part = mantissa.partition(".")
    digits = (whole + part).lstrip("0")
    if not digits:
        return b"0"
    short = digits.rstrip("0")
    power = int(Decimal(exponent or 0)) - len(part) + len(digits) - len(short)  # `int` accepts few digits
    return f"{'-' * text.startswith('-')}{short}e{power:x}".encode()
