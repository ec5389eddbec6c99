"""Pictures and sounds of clients: data URLs, decoded in a process, for a model that takes them.

What a client sends opens no connection, and no file outside of ``--media-path``. A process decodes it, within
a time and an amount of memory: a file that crashes a decoder, or has it run for ever, ends that process and
not the server.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from oxillama.engine.engine import InferenceEngine
from oxillama.errors import ConfigError, MediaError
from oxillama.media.beside import takes
from oxillama.media.decode import (
    DATA_URL,
    MOST_BYTES,
    SOUND_STARTS,
    Picture,
    Sound,
    read_picture,
    read_sound,
)
from oxillama.media.feature import HeldMedia, Media, with_parts
from oxillama.media.prompt import MARKER, MediaPrompt
from oxillama.server.callers import context
from oxillama.server.errors import ApiError, invalid
from oxillama.server.processes import JobTooLate, NoProcess
from oxillama.server.prompts import check_text
from oxillama.server.workers import pools

SECONDS = 30.0
"""That decoding one medium may take."""

MEMORY = 2 << 30
"""Bytes that a process may take beside what it has, while it decodes."""

MOST_MEDIA = 64
"""Media of a request."""

PARTS = {"image_url": "image", "input_image": "image", "input_audio": "audio", "audio_url": "audio"}
"""Types of parts that are media, and their kinds."""

DETAILS = ("auto", "high", "original")
"""Values of OpenAI's ``detail`` that ask for no less than the model takes."""

FILE_URL = "file://"
"""Before the name of a file below ``--media-path``."""

SOUND_FORMATS = ("wav", "mp3", "flac", "ogg", "aiff")

Found = tuple[tuple[int, ...], bytes]
"""The shape and the bytes of pixels or samples."""


MAY_ENCODE: ContextVar[bool] = ContextVar("oxillama server encodes", default=False)
"""Whether the thread is one that runs encoders."""


class HasMedia(Exception):
    """A prompt has media, and is to be made by a thread that runs encoders: others are for short jobs."""


def media_of(engine: InferenceEngine) -> Media:
    """The media of a model."""
    found: Media = engine.model.feature("media")
    return found


def taken_by(engine: InferenceEngine) -> tuple[str, ...]:
    """What a loaded model takes beside text: "image", "audio"."""
    return takes(media_of(engine).path)


# --- parts of messages --------------------------------------------------------------------------------


class Placed(dict[str, Any]):
    """A part of a message in OpenAI's form, and the place at which the body has it."""

    def __init__(self, where: str, part: Mapping[str, Any]) -> None:
        super().__init__(part)
        self.where = where


def image_part(where: str, data: Any) -> Placed:
    """The part for a picture in base64. Raises ApiError for another value, and for a URL."""
    if not isinstance(data, str):
        raise invalid(where, "base64", data)
    if data.startswith("data:"):
        data = base64_of(data, where)
    elif "://" in data[:16]:
        base64_of(data, where)  # which says that nothing is fetched
    return Placed(where, {"type": "input_image", "image_url": f"data:;base64,{data}"})


def encoded_of(where: str, part: Mapping[str, Any], kind: str) -> tuple[str, str]:
    """The base64 of a part that is a medium, and the place where it stands.

    Raises ApiError for a URL of another kind, a field that is not known, and a detail that asks for less.
    """
    known = {
        "image_url": ("type", "image_url", "detail"),
        "input_image": ("type", "image_url", "detail"),
        "audio_url": ("type", "audio_url"),
        "input_audio": ("type", "input_audio"),
    }[kind]
    refuse_fields(where, part, known)
    name = known[1]
    value, place = part.get(name), f"{where}.{name}"
    if isinstance(value, Mapping):
        inner = ("data", "format") if kind == "input_audio" else ("url", "detail")
        refuse_fields(place, value, inner)
        check_detail(f"{place}.detail", value.get("detail"))
        form = value.get("format")
        if kind == "input_audio" and form not in (None, *SOUND_FORMATS):
            raise invalid(f"{place}.format", f"one of {', '.join(SOUND_FORMATS)}", form)
        value, place = value.get(inner[0]), f"{place}.{inner[0]}"
    check_detail(f"{where}.detail", part.get("detail"))
    if not isinstance(value, str):
        raise invalid(place, "base64" if kind == "input_audio" else "a data URL", value)
    if kind == "input_audio" and not value.startswith("data:"):
        return value, place
    return base64_of(value, place), place


def refuse_fields(where: str, value: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raises ApiError for a field that is not known; ``cache_control`` and null say nothing."""
    for name, item in value.items():
        if name not in (*known, "cache_control") and item is not None:
            message = f"{where}.{name:.200}: expected one of {', '.join(known)}, got another field"
            raise ApiError(400, message, param=f"{where}.{name:.200}", code="unknown_parameter")


def check_detail(where: str, value: Any) -> None:
    """Raises ApiError for a detail that asks for fewer tokens than the model has for a picture."""
    if value is not None and value not in DETAILS:
        message = f"{where}: expected one of {', '.join(DETAILS)}, got {value!r:.200}"
        raise ApiError(400, message, param=where, code="unsupported_value")


def base64_of(url: str, where: str) -> str:
    """The base64 of a data URL, or of a file of `ServerConfig.media_path`.

    Raises ApiError for a URL of another kind: nothing is fetched.
    """
    head, folder = DATA_URL.match(url[:256]), context().config.media_path
    if url.startswith(FILE_URL) and folder is not None:
        return base64.b64encode(file_bytes(where, Path(folder), url[len(FILE_URL) :])).decode("ascii")
    if head is None:
        wanted = "a data URL in base64 (data:image/png;base64,...): the server fetches nothing"
        message = f"{where}: expected {wanted}, got {url[:60]!r}"
        raise ApiError(400, message, param=where, code="unsupported_value")
    return url[head.end() :]


def file_bytes(where: str, folder: Path, name: str) -> bytes:
    """What is in a file below a folder; the name is that of a URL. Raises ApiError if there is none.

    Neither ".." nor a link leads out of the folder.
    """
    # ValueError: a null byte; RuntimeError: links in a ring
    with suppress(OSError, ValueError, RuntimeError):
        path = (folder / unquote(name).lstrip("/")).resolve(strict=True)
        if path.is_relative_to(folder.resolve()) and path.is_file():
            with path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                raise not_decoded(where, f"expected at most {MOST_BYTES} bytes, got more")
            return data
    raise not_decoded(where, f"expected a file below the server's --media-path, got {name[:60]!r}")


# --- decoding -----------------------------------------------------------------------------------------


def decoded(where: str, text: str, kind: str) -> Picture | Sound:
    """The pixels or samples of base64, from a process. Raises ApiError that names the place."""
    if len(text) > MOST_BYTES // 3 * 4 + 4:
        raise not_decoded(where, f"expected at most {MOST_BYTES} bytes, got more")
    if not text.isascii():
        raise not_decoded(where, "expected base64, got other characters")
    data = text.encode("ascii")
    try:
        shape, values = in_process(data, kind)
    except MediaError as error:
        raise not_decoded(where, str(error)) from error
    except MemoryError as error:
        raise not_decoded(where, "needs too much memory to be decoded") from error
    except JobTooLate as error:
        raise not_decoded(where, f"is not decoded after {SECONDS:g} s") from error
    except ApiError as error:
        if error.code != "process_ended":
            raise
        raise not_decoded(where, "cannot be decoded: the process that decoded it has ended") from error
    if kind == "image":
        return Picture(np.frombuffer(values, np.uint8).reshape(shape))
    return Sound(np.frombuffer(values, np.float32).reshape(shape))


def not_decoded(where: str, reason: str) -> ApiError:
    """The error of a medium that cannot be decoded."""
    return ApiError(400, f"{where}: {reason}", param=where, code="invalid_media")


def in_process(data: bytes, kind: str) -> Found:
    """What a process makes of base64; this one, without its limits, if there are to be no processes."""
    try:
        return pools().processes.run(decoded_alone, data, kind, seconds=SECONDS)
    except NoProcess:
        return decoded_bytes(data, kind)


def decoded_alone(text: bytes, kind: str) -> Found:
    """`decoded_bytes` within `MEMORY`, in a process that does nothing else. Raises MemoryError, too."""
    with limited_memory():
        return decoded_bytes(text, kind)


def decoded_bytes(text: bytes, kind: str) -> Found:
    """What base64 decodes to, as plain values. Raises MediaError, ConfigError."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediaError("expected base64, got a text that is none") from error
    values: np.ndarray = read_picture(data).pixels if kind == "image" else read_sound(data).samples
    return values.shape, values.tobytes()


@contextmanager
def limited_memory() -> Iterator[None]:
    """Inside, the process may take `MEMORY` bytes of data more than it has, where the system can tell."""
    before: tuple[int, int] | None = None
    with suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[5])
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = pages * resource.getpagesize() + MEMORY
        if soft == resource.RLIM_INFINITY or wanted < soft:
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
            before = soft, hard
    try:
        yield
    finally:
        if before is not None:
            resource.setrlimit(resource.RLIMIT_DATA, before)


# --- prompts ------------------------------------------------------------------------------------------


class ClientMedia:
    """The media of a client's request, in the place of `Media` for `chat_prompt`.

    Parameters
    ----------
    name : of the field that the messages stand in.
    """

    def __init__(self, engine: InferenceEngine, name: str = "messages") -> None:
        self.engine: InferenceEngine = engine
        self.name: str = name
        self._n = 0

    def take(self, messages: Sequence[Any]) -> tuple[list[Any], HeldPrompt | None]:
        """As `Media.take`; parts that are neither text nor media are left as they are.

        Raises ApiError, and HasMedia in a thread that is for texts.
        """
        taken = [with_parts(f"{self.name}[{i}]", each, self._part) for i, each in enumerate(messages)]
        if not self._n:
            return taken, None
        said, held = media_of(self.engine).take(taken)
        return said, None if held is None else HeldPrompt(held, self)

    def _part(self, where: str, part: Any) -> Any:
        where = getattr(part, "where", where)
        type = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(type, str) or type not in PARTS:
            if type in ("image", "audio"):  # the library's own, which may name files
                raise invalid(where, f"a part of type text, {', '.join(PARTS)}", type)
            return part
        kind = PARTS[type]
        self.check(where, kind)
        text, place = encoded_of(where, part, type)
        return {"type": kind, kind: decoded(place, text, kind)}

    def check(self, where: str, kind: str) -> None:
        """Raises ApiError unless the model takes media of a kind, and the request may have one more."""
        if not MAY_ENCODE.get():
            raise HasMedia  # before the encoder is loaded
        try:
            media_of(self.engine).check_takes(where, kind)
        except ConfigError as error:
            message = f"{error} ({kind} input is not supported)"
            raise ApiError(400, message, param=where, code="unsupported_value") from error
        self._n += 1
        if self._n > MOST_MEDIA:
            raise ApiError(400, f"{where}: expected at most {MOST_MEDIA} media, got more", param=where)

    def between(self, where: str, texts: Sequence[str], data: Sequence[Any]) -> MediaPrompt:
        """A prompt of texts with a medium, base64 or a data URL, between each two. Raises ApiError."""
        if len(data) != len(texts) - 1:
            raise invalid(where, f"one for each of {len(texts) - 1} markers ({MARKER})", len(data))
        found = []
        for i, item in enumerate(data):
            place = f"{where}[{i}]"
            if not isinstance(item, str):
                raise invalid(place, "base64", item)
            item = base64_of(item, place) if item.startswith(("data:", FILE_URL)) else item
            kind = "audio" if is_sound(item) else "image"
            self.check(place, kind)
            found.append(decoded(place, item, kind))
        marker = f"<__media {secrets.token_hex(12)}__>"  # so that no text has it
        text = marker.join(texts)
        check_text(self.engine, text, self.name)
        return media_of(self.engine).prompt(text, found, marker)


class HeldPrompt:
    """`HeldMedia`, which checks the length of a text before it is tokenized."""

    def __init__(self, held: HeldMedia, media: ClientMedia) -> None:
        self._held, self._media = held, media

    def prompt(self, text: str, closes: bool = False) -> MediaPrompt:
        """As `HeldMedia.prompt`. Raises ApiError for a text that is too long."""
        check_text(self._media.engine, text, self._media.name)
        return self._held.prompt(text, closes)


def is_sound(text: str) -> bool:
    """Whether base64 begins as a sound does."""
    try:
        data = base64.b64decode(text[:16])
    except (binascii.Error, ValueError):
        return False
    return data.startswith(SOUND_STARTS) and data[8:12] != b"WEBP"


def marker_text(messages: Sequence[Any]) -> list[Any]:
    """Messages with `MARKER` in the places of media, as `/completion` takes the text."""
    return [
        {**message, "content": [marker_part(part) for part in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def marker_part(part: Any) -> Any:
    """A part, or a text in the place of a medium."""
    is_medium = isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] in PARTS
    return {"type": "text", "text": MARKER} if is_medium else part
