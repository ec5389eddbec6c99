"""Pictures and sounds of clients: data URLs, decoded in a process, for a model that takes them.

What a client sends opens no connection, and no file outside of ``--media-path``. A process decodes it, within
a time and an amount of memory: a file that crashes a decoder, or has it run for ever, ends that process and
not the server.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np

from oxillama.apps.server.callers import context
from oxillama.apps.server.errors import ApiError, fault, invalid, prompt_too_long, refuse_others, unsupported
from oxillama.apps.server.processes import JobTooLate, NoProcess
from oxillama.apps.server.prompts import check_text
from oxillama.apps.server.workers import pools
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.media.feature import Media
from oxillama.engine.features.media.parts import HeldMedia, Placed, with_parts
from oxillama.engine.features.media.prompt import MARKER, MediaPrompt
from oxillama.errors import ConfigError, MediaError
from oxillama.models.media import kinds
from oxillama.models.media.beside import takes
from oxillama.models.media.decode import DATA_URL, Picture, Sound, most_bytes, read_picture, read_sound

SECONDS = 30.0
"""That decoding one picture may take."""

SOUND_SECONDS = 120.0
"""That decoding one sound may take: an hour takes about 15 on a processor that has nothing else to do."""

MEMORY = 2 << 30
"""Bytes that a process may take beside what it has, while it decodes."""

MOST_MEDIA = 64
"""Media of a request."""

MOST_DECODED = 1 << 30
"""Bytes of the pixels and samples of a request."""

PARTS = {"image_url": "image", "input_image": "image", "input_audio": "audio", "audio_url": "audio"}
"""Types of parts that are media, and their kinds."""

NO_FIELDS = ("cache_control",)
"""Fields of parts that say nothing."""

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
    """The media of a loaded model: "image", "audio"."""
    return takes(media_of(engine).path)


# --- parts of messages --------------------------------------------------------------------------------


def media_part(where: str, data: Any, kind: str = "") -> Placed:
    """The part for base64 in the field ``where``. Raises ApiError for another value, and for a URL.

    Args:
        kind: "image", or "" for a picture or a sound, as the first bytes say.
    """
    if not isinstance(data, str):
        raise invalid(where, "base64", data)
    if data.startswith("data:") or "://" in data[:16]:  # `base64_of` refuses other URLs
        data = base64_of(data, where)
    if kind or not is_sound(data):
        return Placed(where, {"type": "input_image", "image_url": f"data:;base64,{data}"}, where)
    return Placed(where, {"type": "input_audio", "input_audio": data}, where)


def encoded_of(where: str, part: Mapping[str, Any], kind: str) -> tuple[str, str]:
    """The base64 of a medium's part, and its place in the body.

    Raises ApiError for a URL of another kind, a field that is not known, and a detail that asks for less.
    """
    known = {
        "image_url": ("type", "image_url", "detail"),
        "input_image": ("type", "image_url", "detail"),
        "audio_url": ("type", "audio_url"),
        "input_audio": ("type", "input_audio"),
    }[kind]
    refuse_others(where, part, known, NO_FIELDS)
    name = known[1]
    value, place = part.get(name), f"{where}.{name}"
    if isinstance(value, Mapping):
        inner = ("data", "format") if kind == "input_audio" else ("url", "detail")
        refuse_others(place, value, inner, NO_FIELDS)
        check_detail(f"{place}.detail", value.get("detail"))
        form = value.get("format")
        if kind == "input_audio" and form not in (None, *SOUND_FORMATS):
            raise invalid(f"{place}.format", f"one of {', '.join(SOUND_FORMATS)}", form)
        value, place = value.get(inner[0]), f"{place}.{inner[0]}"
    check_detail(f"{where}.detail", part.get("detail"))
    place = getattr(part, "place", None) or place
    if not isinstance(value, str):
        raise invalid(place, "base64" if kind == "input_audio" else "a data URL", value)
    if kind == "input_audio" and not value.startswith("data:"):
        return value, place
    return base64_of(value, place), place


def check_detail(where: str, value: Any) -> None:
    """Raises ApiError for a detail that asks for fewer tokens than the model has for a picture."""
    if value is not None and value not in DETAILS:
        raise unsupported(where, f"one of {', '.join(DETAILS)}", value)


def base64_of(url: str, where: str) -> str:
    """The base64 of a data URL, or of a file of `ServerConfig.media_path`.

    Raises ApiError for a URL of another kind: nothing is fetched.
    """
    head, folder = DATA_URL.match(url[:256]), context().config.media_path
    if url.startswith(FILE_URL) and folder is not None:
        return base64.b64encode(file_bytes(where, Path(folder), url[len(FILE_URL) :])).decode("ascii")
    if head is None:
        wanted = "a data URL in base64 (data:image/png;base64,...): the server fetches nothing"
        raise fault(where, f"expected {wanted}, got {url[:60]!r}", "unsupported_value")
    return url[head.end() :]


def file_bytes(where: str, folder: Path, name: str) -> bytes:
    """The bytes of a file below a folder; the name comes from a URL. Raises ApiError if the file is missing.

    Neither ".." nor a link leads out of the folder.
    """
    # ValueError: a null byte; RuntimeError: links in a ring
    with suppress(OSError, ValueError, RuntimeError):
        path = (folder / os.fsdecode(unquote_to_bytes(name)).lstrip("/")).resolve(strict=True)
        if path.is_relative_to(folder.resolve()) and path.is_file():
            with path.open("rb") as file:
                head = file.read(kinds.HEAD)
                most = most_bytes(head)
                data = head + file.read(most + 1 - len(head))
            if len(data) > most:
                raise not_decoded(where, f"expected at most {most} bytes, got more")
            return data
    raise not_decoded(where, f"expected a file below the server's --media-path, got {name[:60]!r}")


# --- decoding -----------------------------------------------------------------------------------------


def decoded(where: str, text: str, kind: str) -> Picture | Sound:
    """The pixels or samples of base64, from a process. Raises ApiError that names the place."""
    most = most_bytes(kinds.first_bytes(text))
    if len(text) > most // 3 * 4 + 4:
        raise not_decoded(where, f"expected at most {most} bytes, got more")
    if not text.isascii():
        raise not_decoded(where, "expected base64, got other characters")
    data, seconds = text.encode("ascii"), SECONDS if kind == "image" else SOUND_SECONDS
    try:
        shape, values = in_process(data, kind, seconds)
    except MediaError as error:
        raise not_decoded(where, str(error)) from error
    except MemoryError as error:
        raise not_decoded(where, "needs too much memory to be decoded") from error
    except JobTooLate as error:
        raise not_decoded(where, f"is not decoded after {seconds:g} s") from error
    except ApiError as error:
        if error.code != "process_ended":
            raise
        raise not_decoded(where, "cannot be decoded: the process that decoded it has ended") from error
    if kind == "image":
        return Picture(np.frombuffer(values, np.uint8).reshape(shape))
    return Sound(np.frombuffer(values, np.float32).reshape(shape))


def not_decoded(where: str, reason: str) -> ApiError:
    """The error of a medium that cannot be decoded."""
    return fault(where, reason, "invalid_media")


def in_process(data: bytes, kind: str, seconds: float) -> Found:
    """The medium in base64, decoded by a job process; without job processes, by this one."""
    try:
        return pools().processes.run(decoded_alone, data, kind, seconds=seconds)
    except NoProcess:
        return decoded_bytes(data, kind)


def decoded_alone(text: bytes, kind: str) -> Found:
    """`decoded_bytes` within `MEMORY`, in a process that does nothing else. Raises MemoryError, too."""
    with limited_memory():
        return decoded_bytes(text, kind)


def decoded_bytes(text: bytes, kind: str) -> Found:
    """The decoded medium, as plain values. Raises MediaError, ConfigError."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediaError("expected base64, got a text with other characters") from error
    values: np.ndarray = read_picture(data).pixels if kind == "image" else read_sound(data).samples
    return values.shape, values.tobytes()


@contextmanager
def limited_memory() -> Iterator[None]:
    """Limits the process to `MEMORY` more bytes of data inside the block, on systems that can."""
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

    Args:
        name: the field that has the messages.
        room: tokens of the context for prompt and text; None: all that the model has.
        free: tokens that must fit into it after the prompt.
    """

    def __init__(
        self, engine: InferenceEngine, name: str = "messages", room: int | None = None, free: int = 1
    ) -> None:
        self.engine: InferenceEngine = engine
        self.name: str = name
        self._room = engine.context_size if room is None else room
        self._free = free
        self._n = self._n_bytes = 0

    def take(self, messages: Sequence[Any]) -> tuple[list[Any], HeldPrompt | None]:
        """As `Media.take`; parts that are neither text nor media are left as they are.

        Raises ApiError, and HasMedia in a thread that is for texts.
        """
        taken = [with_parts(f"{self.name}[{i}]", each, self._part) for i, each in enumerate(messages)]
        if not self._n:
            return taken, None
        said, held = media_of(self.engine).take(taken)
        return said, None if held is None else HeldPrompt(held, self)

    def parts(self, media: Mapping[str, Placed]) -> dict[str, Placed]:
        """Parts of media by any names, decoded. Raises as `take`."""
        return {name: self._part(part.where, part) for name, part in media.items()}

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
        return Placed(where, {"type": kind, kind: self._decoded(place, text, kind)}, place)

    def _decoded(self, place: str, text: str, kind: str) -> Picture | Sound:
        """As `decoded`. Raises ApiError if the request has too many pixels and samples."""
        found = decoded(place, text, kind)
        self._n_bytes += found.pixels.nbytes if isinstance(found, Picture) else found.samples.nbytes
        if self._n_bytes > MOST_DECODED:
            wanted = f"at most {MOST_DECODED} bytes of pixels and samples in a request"
            raise not_decoded(place, f"expected {wanted}, got more")
        return found

    def check_length(self, n_tokens: int) -> None:
        """Raises ApiError for a prompt of so many tokens, before its media are encoded."""
        if n_tokens + self._free > self._room:
            raise prompt_too_long(self.name, n_tokens, self._room, self._free)

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
            raise fault(where, f"expected at most {MOST_MEDIA} media, got more")

    def between(self, places: Sequence[str], texts: Sequence[str], data: Sequence[Any]) -> MediaPrompt:
        """A prompt of texts with a medium, base64 or a data URL, between each two. Raises ApiError.

        ``places`` : the fields of the media in the body.
        """
        if len(data) != len(texts) - 1:
            where = places[0].rpartition("[")[0] if places else self.name
            raise invalid(where, f"one for each of {len(texts) - 1} markers ({MARKER})", len(data))
        found = []
        for place, item in zip(places, data, strict=True):
            if not isinstance(item, str):
                raise invalid(place, "base64", item)
            item = base64_of(item, place) if item.startswith(("data:", FILE_URL)) else item
            kind = "audio" if is_sound(item) else "image"
            self.check(place, kind)
            found.append(self._decoded(place, item, kind))
        marker = f"<__media {secrets.token_hex(12)}__>"  # so that no text has it
        text = marker.join(texts)
        check_text(self.engine, text, self.name)
        return media_of(self.engine).prompt(text, found, marker, places=places, check=self.check_length)


class HeldPrompt:
    """`HeldMedia`, which checks the length of a text before it is tokenized."""

    def __init__(self, held: HeldMedia, media: ClientMedia) -> None:
        self._held, self._media = held, media

    def prompt(self, text: str, closes: bool = False) -> MediaPrompt:
        """As `HeldMedia.prompt`. Raises ApiError for a text that is too long."""
        check_text(self._media.engine, text, self._media.name)
        return self._held.prompt(text, closes, self._media.check_length)

    def n_tokens(self, text: str) -> int:
        """As `HeldMedia.n_tokens`. Raises ApiError for a text that is too long to be tokenized."""
        check_text(self._media.engine, text, self._media.name, fits=False)
        return self._held.n_tokens(text)


def is_sound(text: str) -> bool:
    """Whether base64 begins as a sound does."""
    return kinds.is_sound(kinds.first_bytes(text))


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
