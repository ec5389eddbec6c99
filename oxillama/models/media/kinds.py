"""The format of a file by its first bytes, which chooses the decoder and which errors name."""

from __future__ import annotations

import base64
import binascii
import re

TAKEN = {
    "image": "PNG, JPEG, WebP, BMP, GIF, TIFF or PPM",
    "audio": "WAV, MP3, FLAC, Ogg or AIFF",
}
"""The formats that are read, by kind of medium."""

WORDS = {"image": "picture", "audio": "sound"}

HEAD = 4096
"""Bytes of a file that `kind_of` looks at, at most."""

STARTS: tuple[tuple[str, str, re.Pattern[bytes]], ...] = tuple(
    (kind, name, re.compile(pattern, re.DOTALL))
    for kind, name, pattern in (
        ("image", "PNG", rb"\x89PNG"),
        ("image", "JPEG", rb"\xff\xd8\xff"),
        ("image", "WebP", rb"RIFF....WEBP"),
        ("image", "BMP", rb"BM"),
        ("image", "GIF", rb"GIF8"),
        ("image", "TIFF", rb"II[*+]\0|MM\0[*+]"),
        ("image", "PPM", rb"P[1-6]\s"),
        ("audio", "WAV", rb"RIFF|RIFX|RF64"),
        ("audio", "FLAC", rb"fLaC"),
        ("audio", "Ogg", rb"OggS"),
        ("audio", "AIFF", rb"FORM"),
        ("audio", "MP3", rb"ID3|\xff[\xe2-\xe7\xf2-\xf7\xfa-\xff]"),
        ("image", "AVIF", rb"....ftyp(?:avi[fs]|mi[fs]1.{4,60}avi[fs])"),
        ("image", "HEIC", rb"....ftyp(?:he[iv][a-z]|m[is]f1)"),
        ("audio", "M4A", rb"....ftyp(?:M4[AB]|F4[AB])"),
        ("", "MP4 or M4A", rb"....ftyp"),
        ("image", "SVG", rb"(?:\xef\xbb\xbf)?\s*(?:<(?:\?xml|!).*)?<svg[\s/>]"),
        ("image", "JPEG XL", rb"\xff\x0a|\0\0\0\x0cJXL "),
        ("image", "JPEG 2000", rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51"),
        ("image", "ICO", rb"\0\0[\1\2]\0"),
        ("image", "PSD", rb"8BPS"),
        ("", "PDF", rb"%PDF"),
        ("", "PostScript", rb"%!PS"),
        ("audio", "AAC", rb"\xff[\xf0\xf1\xf8\xf9]|ADIF"),
        ("audio", "AMR", rb"#!AMR"),
        ("audio", "MIDI", rb"MThd"),
        ("audio", "WMA", rb"\x30\x26\xb2\x75"),
        ("", "WebM or Matroska", rb"\x1a\x45\xdf\xa3"),
    )
)
"""Kind of medium ("" where the first bytes do not decide), name, and beginning of each format."""


def kind_of(data: bytes) -> tuple[str, str]:
    """ "image", "audio" or "", and the name of the format; two empty texts for an unknown format."""
    head = data[:HEAD]
    return next(((kind, name) for kind, name, start in STARTS if start.match(head)), ("", ""))


def first_bytes(text: str) -> bytes:
    """The first bytes of base64, as many as tell pictures and sounds apart; none of other texts."""
    try:
        return base64.b64decode(text[:64])
    except (binascii.Error, ValueError):
        return b""


def is_sound(data: bytes) -> bool:
    """Whether a file, or its first 12 bytes, begin as a sound does."""
    return kind_of(data)[0] == "audio"


def why_not(data: bytes, kind: str, reason: str) -> str:
    """Why a file that was to be an "image" or "audio" is not read.

    Args:
        reason: of the decoder, which is given for files of a format that is read.
    """
    found, name = kind_of(data)
    taken = TAKEN[kind]
    if name and name in re.split(", | or ", taken):
        return f"cannot be decoded as {name}: {reason}"
    if name and found in (kind, ""):
        return f"cannot be decoded: {name} is not read; convert it to {taken}"
    got = f"{name}, a {WORDS[found]}" if name and found else "another format"
    return f"cannot be decoded: expected a {WORDS[kind]} ({taken}), got {got}"
