"""From what a caller gives to 8-bit pixels and samples: paths, bytes, data URLs, arrays, pictures of Pillow.

Pillow reads pictures and soundfile reads sounds; both are imported when one is read. Nothing is ever fetched
from a network. What is too large is refused before it is decoded.
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

from oxillama.distribution import install
from oxillama.errors import ConfigError, MediaError

T = TypeVar("T")

MOST_BYTES = 64 << 20
"""Of an encoded picture or sound."""

MOST_PIXELS = 1 << 26
"""Of a picture."""

MOST_SIDE = 1 << 15
"""Pixels along a side of a picture."""

RATE = 16000
"""Samples per second that the encoders of sounds take."""

MOST_SAMPLES = RATE * 3600
"""Of a sound."""

MOST_RATE = 192_000
"""Samples per second of a file."""

BLOCK = 1 << 18
"""Samples that are decoded, or resampled, at a time."""

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""Of pictures, by Pillow's names."""

DATA_URL = re.compile(r"data:[\w.+-]*/?[\w.+-]*(?:;[\w.+-]+=[^;,]*)*;base64,", re.ASCII)


@dataclass(frozen=True)
class Picture:
    """uint8 (h, w, 3): red, green and blue."""

    pixels: np.ndarray

    @cached_property
    def digest(self) -> bytes:
        """BLAKE3 of "picture WIDTH HEIGHT\\n" and of the pixels, row by row."""
        h, w, _ = self.pixels.shape
        return digest(f"picture {w} {h}\n", self.pixels)


@dataclass(frozen=True)
class Sound:
    """float32 (n,) from -1 to 1: one channel at 16,000 samples per second."""

    samples: np.ndarray

    @cached_property
    def digest(self) -> bytes:
        """BLAKE3 of "sound 16000\\n" and of the samples, little-endian."""
        return digest(f"sound {RATE}\n", self.samples.astype("<f4"))


def digest(head: str, values: np.ndarray) -> bytes:
    """BLAKE3 of a text and of the bytes of an array."""
    return blake3(head.encode()).update(np.ascontiguousarray(values).tobytes()).digest()


def read_picture(source: Any) -> Picture:
    """A picture of a path, bytes, a data URL, an array (h, w), (h, w, 3) or (h, w, 4) of uint8, or Pillow.

    Transparency is dropped. Of an animation the first picture is taken. Bits beyond 8 are dropped.

    Raises
    ------
    MediaError : it cannot be decoded, is empty, or is over a limit.
    ConfigError : ``source`` is of another kind, or Pillow is not installed.
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
        return Sound(_mono(source, rate))
    data = read_bytes(source, "sound")
    samples, rate = _quietly("sound", lambda: _decoded_sound(data))
    return Sound(_mono(samples, rate))


SOUND_STARTS = (b"RIFF", b"fLaC", b"OggS", b"ID3", b"FORM", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")
"""First bytes of sounds; RIFF is also that of WebP pictures."""


def read_medium(source: Any) -> Picture | Sound:
    """A picture, or a sound if the bytes begin like one. Raises as `read_picture`."""
    if isinstance(source, (Picture, Sound)):
        return source
    if isinstance(source, np.ndarray):
        return read_sound(source) if source.ndim == 1 else read_picture(source)
    if type(source).__module__.startswith("PIL."):
        return read_picture(source)
    data = read_bytes(source, "medium")
    is_sound = data.startswith(SOUND_STARTS) and data[8:12] != b"WEBP"
    return read_sound(data) if is_sound else read_picture(data)


def read_bytes(source: Any, what: str) -> bytes:
    """The bytes of a file, of a data URL, or those given. Raises MediaError, ConfigError."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source[: MOST_BYTES + 1]) if isinstance(source, bytes) else bytes(source)
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
    if len(data) > MOST_BYTES:
        raise MediaError(f"{what}: expected at most {MOST_BYTES} bytes, got more")
    if not data:
        raise MediaError(f"{what}: is empty")
    return data


def _of_data_url(url: str, what: str) -> bytes:
    head = DATA_URL.match(url[:256])
    if head is None:
        raise MediaError(f"{what}: expected a data URL in base64, got {url[:40]!r}")
    if len(url) > 2 * MOST_BYTES:
        raise MediaError(f"{what}: expected at most {MOST_BYTES} bytes, got more")
    try:
        return base64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediaError(f"{what}: expected base64, got a data URL that is none") from error


def _of_file(path: str | os.PathLike[str], what: str) -> bytes:
    try:
        found = Path(path)
        if not found.is_file():
            raise MediaError(f"{what}: expected a file, got {os.fspath(path)!r}")
        with found.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise MediaError(f"{what}: {os.fspath(path)!r} cannot be read: {error}") from error


def _quietly(what: str, decode: Callable[[], T]) -> T:
    """What a decoder returns; every error of it is a MediaError, and its warnings are dropped."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return decode()
    except (MediaError, ConfigError):
        raise
    except (Exception, MemoryError) as error:
        raise MediaError(f"{what}: cannot be decoded: {str(error)[:200] or type(error).__name__}") from error


# --- pictures ---------------------------------------------------------------------------------------------


def _decoded_picture(data: bytes) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigError(f"picture: needs Pillow, which is not installed: {install('media')}") from error
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
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
    mode: str = image.mode
    if mode.startswith(("I;16", "I")) or mode == "F":
        return _from_array(_eight_bits(np.asarray(image)))
    if mode in ("RGBA", "RGBa", "RGBX"):
        return np.ascontiguousarray(np.asarray(image.convert("RGBA") if mode == "RGBa" else image)[..., :3])
    if mode == "P" and "transparency" in image.info:
        return np.ascontiguousarray(np.asarray(image.convert("RGBA"))[..., :3])
    if mode in ("LA", "La"):
        image = image.convert("LA").getchannel("L")
    return _from_array(np.asarray(image.convert("RGB")))


def _eight_bits(values: np.ndarray) -> np.ndarray:
    """uint8 of grey values of 16 bits."""
    if values.dtype.kind == "f":
        raise MediaError("picture: expected 8 or 16 bits to a value, got floating-point numbers")
    found: np.ndarray = (np.clip(values, 0, 65535) >> 8).astype(np.uint8)
    return found


def _from_array(array: np.ndarray) -> np.ndarray:
    """uint8 (h, w, 3) of an array of grey, RGB or RGBA values."""
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
    return np.ascontiguousarray(array[..., :3])


# --- sounds -----------------------------------------------------------------------------------------------


def _decoded_sound(data: bytes) -> tuple[np.ndarray, int]:
    """float32 (n,), the mean of the channels, and its rate.

    Blocks are decoded until the file ends: what its head says of its length allocates nothing.
    """
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise ConfigError(f"sound: needs soundfile, which is not installed: {install('media')}") from error
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        rate = int(file.samplerate)
        check_rate(rate, MOST_RATE)
        if file.channels > 64:
            raise MediaError(f"sound: expected at most 64 channels, got {file.channels}")
        most, n, blocks = MOST_SAMPLES // RATE * rate, 0, []
        while len(block := file.read(BLOCK // file.channels, dtype="float32", always_2d=True)):
            n += len(block)
            if n > most:
                raise MediaError(f"sound: expected at most an hour, got more than {most} samples at {rate}")
            blocks.append(_mean(block))
        return np.concatenate(blocks) if blocks else np.zeros(0, np.float32), rate


def check_rate(rate: Any, most: int = 1_000_000) -> None:
    """Raises MediaError for samples per second that are none, or over a limit."""
    if isinstance(rate, bool) or not isinstance(rate, int) or not 1000 <= rate <= most:
        raise MediaError(f"sound: expected 1,000 to {most:,} samples per second, got {rate}")


def _mean(samples: np.ndarray) -> np.ndarray:
    """float32 (n,) of samples (n, channels): the channels are added in order."""
    total = np.zeros(len(samples), np.float32)
    for channel in samples.T:
        total += channel
    return total / np.float32(samples.shape[1])


def _mono(samples: np.ndarray, rate: int) -> np.ndarray:
    """float32 (n,) at 16,000 per second."""
    if samples.dtype == np.int16:
        samples = samples.astype(np.float32) / np.float32(32768)
    if samples.dtype.kind != "f" or samples.ndim not in (1, 2):
        raise ConfigError(
            f"sound: expected floats or int16 (n,) or (n, channels), got {samples.dtype} {samples.shape}"
        )
    check_rate(rate)
    if not len(samples) or samples.size == 0:
        raise MediaError("sound: is empty")
    if len(samples) > MOST_SAMPLES // RATE * rate:
        raise MediaError(f"sound: expected at most an hour, got {len(samples)} samples at {rate}")
    found = samples.astype(np.float32, copy=False)
    if found.ndim == 2:
        found = _mean(found)
    if not np.isfinite(found).all():
        raise MediaError("sound: expected finite samples")
    return np.ascontiguousarray(found if rate == RATE else resampled(found, rate))


def resampled(samples: np.ndarray, rate: int) -> np.ndarray:
    """float32 at 16,000 per second, by a windowed sinc over 16 zero crossings, in exact order."""
    found = np.empty(max(1, int(len(samples) * RATE // rate)), np.float32)
    for begin in range(0, len(found), BLOCK):
        found[begin : begin + BLOCK] = _resampled(samples, rate, begin, min(begin + BLOCK, len(found)))
    return found


def _resampled(samples: np.ndarray, rate: int, begin: int, end: int) -> np.ndarray:
    """float64: some of the samples at 16,000 per second."""
    from oxillama.media.resize import sinc

    step = rate / RATE
    stretch = max(1.0, step)
    reach = int(16 * stretch) + 1
    places = np.arange(begin, end) * step
    first = np.floor(places).astype(np.int64) - reach
    total, weight = np.zeros(end - begin), np.zeros(end - begin)
    for k in range(2 * reach + 2):
        at = first + k
        x = (at - places) / stretch
        factor = np.where(np.abs(x) < 16, sinc(x) * sinc(x / 16), 0.0)
        inside = (at >= 0) & (at < len(samples))
        total += np.where(inside, samples[np.clip(at, 0, len(samples) - 1)], 0.0) * factor
        weight += factor
    found: np.ndarray = total / weight
    return found
