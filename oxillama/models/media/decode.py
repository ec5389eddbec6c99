"""From what a caller gives to 8-bit pixels and samples: paths, bytes, data URLs, arrays, pictures of Pillow.

Pillow reads pictures and soundfile reads sounds (`sounds.py`); both are imported when one is read. Nothing is
ever fetched from a network. What is too large is refused before it is decoded.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from blake3 import blake3

from oxillama.base.distribution import install
from oxillama.errors import ConfigError, MediaError
from oxillama.models.media.kinds import HEAD, is_sound, why_not
from oxillama.models.media.sounds import RATE, decoded_sound, mono

T = TypeVar("T")

PREPROCESSING = 2
"""Version of the way from files to pixels and samples; part of every digest, and of receipts.

2: pictures are turned as EXIF says and laid on white, and sounds are resampled by a polyphase filter.
"""

MOST_BYTES = 64 << 20
"""Of an encoded picture."""

MOST_SOUND_BYTES = 1 << 30
"""Of an encoded sound: an hour of 16 bits, 48,000 samples per second and two channels has 691,200,000."""

MOST_PIXELS = 1 << 26
"""Of a picture."""

MOST_SIDE = 1 << 15
"""Pixels along a side of a picture."""

MOST_SCANNED = 1 << 32
"""Pixels of all scans of a JPEG, which a file may have many of in few bytes."""

MOST_EXIF = 64
"""Segments of EXIF, each of which Pillow copies together with all before it."""

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""Of pictures, by Pillow's names."""

ORIENTATION = 0x112
"""The EXIF tag that says how a picture is to be turned."""

TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
"""From values of `ORIENTATION` to the numbers of Pillow's `Image.Transpose`; other values turn nothing."""

WITH_ALPHA = ("RGBA", "RGBa", "LA", "La", "PA", "P", "1", "L", "RGB")
"""Modes of Pillow whose pictures may have transparency that Pillow can convert to RGBA."""

STRIP = 1 << 20
"""Pixels that are laid on white at a time."""

DATA_URL = re.compile(r"data:[\w.+-]*/?[\w.+-]*(?:;[\w.+-]+=[^;,]*)*;base64,", re.ASCII)


@dataclass(frozen=True)
class Picture:
    """uint8 (h, w, 3): red, green and blue."""

    pixels: np.ndarray

    @cached_property
    def digest(self) -> bytes:
        """BLAKE3 of "picture PREPROCESSING WIDTH HEIGHT\\n" and of the pixels, row by row."""
        h, w, _ = self.pixels.shape
        return digest(f"picture {PREPROCESSING} {w} {h}\n", self.pixels)


@dataclass(frozen=True)
class Sound:
    """float32 (n,) from -1 to 1: one channel at 16,000 samples per second."""

    samples: np.ndarray

    @cached_property
    def digest(self) -> bytes:
        """BLAKE3 of "sound PREPROCESSING 16000\\n" and of the samples, little-endian."""
        return digest(f"sound {PREPROCESSING} {RATE}\n", self.samples.astype("<f4"))


def digest(head: str, values: np.ndarray) -> bytes:
    """BLAKE3 of a text and of the bytes of an array."""
    return blake3(head.encode()).update(np.ascontiguousarray(values).tobytes()).digest()


def read_picture(source: Any) -> Picture:
    """A picture of a path, bytes, a data URL, an array (h, w), (h, w, 3) or (h, w, 4) of uint8, or Pillow.

    Pictures of Pillow, and of files, are turned as their EXIF says. Transparency is laid on white. Of an
    animation the first picture is taken. Bits beyond 8 are dropped.

    Raises:
        MediaError: it cannot be decoded, is empty, or is over a limit.
        ConfigError: ``source`` is of another kind, or Pillow is not installed.
    """
    if isinstance(source, Picture):
        return source
    if isinstance(source, np.ndarray):
        return Picture(_from_array(source))
    if type(source).__module__.startswith("PIL."):
        return Picture(_rgb(source))
    data = read_bytes(source, "picture")
    return Picture(_quietly("picture", lambda: _decoded_picture(data)))


def read_sound(source: Any, rate: int = RATE) -> Sound:
    """A sound of a path, bytes, a data URL, or an array (n,) or (n, channels) at ``rate`` samples per second.

    Channels are averaged, and other rates are resampled to 16,000 per second.

    Raises as `read_picture`, with soundfile in the place of Pillow.
    """
    if isinstance(source, Sound):
        return source
    if isinstance(source, np.ndarray):
        return Sound(mono(source, rate))
    data = read_bytes(source, "sound")
    return Sound(_quietly("sound", lambda: decoded_sound(data)))


def read_medium(source: Any) -> Picture | Sound:
    """A picture, or a sound if the bytes begin like one. Raises as `read_picture`."""
    if isinstance(source, (Picture, Sound)):
        return source
    if isinstance(source, np.ndarray):
        return read_sound(source) if source.ndim == 1 else read_picture(source)
    if type(source).__module__.startswith("PIL."):
        return read_picture(source)
    data = read_bytes(source, "medium")
    return read_sound(data) if is_sound(data) else read_picture(data)


def read_bytes(source: Any, what: str) -> bytes:
    """The bytes of a file, of a data URL, or those given. Raises MediaError, ConfigError."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = source if isinstance(source, bytes) else bytes(source)
    elif isinstance(source, str) and source.startswith("data:"):
        data = _of_data_url(source, what)
    elif isinstance(source, str) and re.match(r"[a-z][a-z0-9+.-]+://", source, re.IGNORECASE | re.ASCII):
        raise ConfigError(
            f"{what}: expected a path, bytes or a data URL; nothing is fetched from {source[:40]!r}"
        )
    elif isinstance(source, (str, os.PathLike)):
        data = _of_file(source, what)
    else:
        raise ConfigError(
            f"{what}: expected a path, bytes, a data URL or an array, got {type(source).__name__}"
        )
    most = most_bytes(data)
    if len(data) > most:
        raise MediaError(f"{what}: expected at most {most} bytes, got more")
    if not data:
        raise MediaError(f"{what}: is empty")
    return data


def most_bytes(head: bytes) -> int:
    """Bytes that a file with these first bytes may have."""
    return MOST_SOUND_BYTES if is_sound(head) else MOST_BYTES


def _of_data_url(url: str, what: str) -> bytes:
    head = DATA_URL.match(url[:256])
    if head is None:
        raise MediaError(f"{what}: expected a data URL in base64, got {url[:40]!r}")
    if len(url) > 2 * MOST_SOUND_BYTES:
        raise MediaError(f"{what}: expected at most {MOST_SOUND_BYTES} bytes, got more")
    try:
        return base64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediaError(f"{what}: expected base64, got a data URL with other characters") from error


def _of_file(path: str | os.PathLike[str], what: str) -> bytes:
    try:
        found = Path(path)
        if not found.is_file():
            raise MediaError(f"{what}: expected a file, got {os.fspath(path)!r}")
        with found.open("rb") as file:
            head = file.read(HEAD)
            return head + file.read(most_bytes(head) + 1)
    except MediaError:
        raise
    except (OSError, ValueError) as error:
        raise MediaError(f"{what}: {os.fspath(path)!r} cannot be read: {error}") from error


ADDRESS = re.compile(r"<[^<>]* at 0x[0-9a-fA-F]+[^<>]*>")
"""How Python shows an object without a text of its own."""


def _quietly(what: str, decode: Callable[[], T]) -> T:
    """What a decoder returns; every error of it is a MediaError, and its warnings are dropped."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return decode()
    except (MediaError, ConfigError):
        raise
    except (Exception, MemoryError) as error:
        reason = ADDRESS.sub("the file", str(error))[:200] or type(error).__name__
        raise MediaError(f"{what}: cannot be decoded: {reason}") from error


# --- pictures ---------------------------------------------------------------------------------------------


def _decoded_picture(data: bytes) -> np.ndarray:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ConfigError(f"picture: needs Pillow, which is not installed: {install('media')}") from error
    n_exif = data.count(b"Exif\0\0")
    if n_exif > MOST_EXIF:
        raise MediaError(f"picture: expected at most {MOST_EXIF} segments of EXIF, got {n_exif}")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        reason = "the file is damaged or cut short"
        raise MediaError(f"picture: {why_not(data, 'image', reason)}") from None
    with image:
        check_size(*image.size)
        n_scans = data.count(b"\xff\xda") if image.format in ("JPEG", "MPO") else 1
        if n_scans * image.width * image.height > MOST_SCANNED:
            most = MOST_SCANNED // (image.width * image.height)
            raise MediaError(f"picture: expected at most {most} scans for its size, got {n_scans}")
        return _rgb(image)


def check_size(width: int, height: int) -> None:
    """Raises MediaError for a picture without pixels, or over a limit."""
    if width < 1 or height < 1:
        raise MediaError(f"picture: expected pixels, got {width} x {height}")
    if max(width, height) > MOST_SIDE or width * height > MOST_PIXELS:
        raise MediaError(
            f"picture: expected at most {MOST_PIXELS} pixels and {MOST_SIDE} along a side, "
            f"got {width} x {height}"
        )


def _rgb(image: Any) -> np.ndarray:
    """uint8 (h, w, 3) of a picture of Pillow."""
    check_size(*image.size)
    return _quietly("picture", lambda: _converted(image))


def _converted(image: Any) -> np.ndarray:
    image = _upright(image)
    mode, clear = image.mode, image.info.get("transparency")
    if mode.startswith("I") or mode == "F":
        values = np.asarray(image)
        pixels = _from_array(_eight_bits(values))
        if isinstance(clear, int):
            pixels[values == clear] = 255
        return pixels
    if mode in WITH_ALPHA and image.has_transparency_data:
        if mode == "La":
            image = image.convert("LA")
        return on_white(np.asarray(image.convert("RGBA")))
    return _from_array(np.asarray(image.convert("RGB")))


def _upright(image: Any) -> Any:
    """A picture turned as its EXIF says; EXIF that cannot be read turns nothing."""
    image.load()  # EXIF may follow the pixels
    try:
        turn = TURNS.get(image.getexif().get(ORIENTATION))
    except Exception:  # Pillow reads EXIF without checks
        turn = None
    return image if turn is None else image.transpose(turn)


def on_white(pixels: np.ndarray) -> np.ndarray:
    """uint8 (h, w, 3) of uint8 (h, w, 4): (255 (255 - alpha) + colour alpha) / 255, rounded."""
    h, w, _ = pixels.shape
    found = np.empty((h, w, 3), np.uint8)
    step = max(1, STRIP // w)
    for y in range(0, h, step):
        part = pixels[y : y + step].astype(np.uint16)
        alpha = part[..., 3:]
        total = part[..., :3] * alpha + (255 - alpha) * 255 + 128  # below 2^16
        found[y : y + step] = total + (total >> 8) >> 8
    return found


def _eight_bits(values: np.ndarray) -> np.ndarray:
    """uint8 of grey values of 16 bits."""
    if values.dtype.kind == "f":
        raise MediaError("picture: expected 8 or 16 bits to a value, got floating-point numbers")
    found: np.ndarray = (np.clip(values, 0, 65535) >> 8).astype(np.uint8)
    return found


def _from_array(array: np.ndarray) -> np.ndarray:
    """uint8 (h, w, 3) of an array of grey, RGB or RGBA values; RGBA is laid on white."""
    if (
        array.dtype != np.uint8
        or array.ndim not in (2, 3)
        or (array.ndim == 3 and array.shape[2] not in (3, 4))
    ):
        raise ConfigError(
            "picture: expected uint8 of shape (h, w), (h, w, 3) or (h, w, 4), "
            f"got {array.dtype} {array.shape}"
        )
    check_size(array.shape[1], array.shape[0])
    if array.ndim == 2:
        array = np.stack([array] * 3, axis=2)
    return on_white(array) if array.shape[2] == 4 else np.ascontiguousarray(array)
