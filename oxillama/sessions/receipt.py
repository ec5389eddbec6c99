"""Receipts: everything that determines a generated text, its tokens, and hashes of the logits, as JSON.

Construction checks the fields, also when loaded from a file. Whether they are true is checked by
`sessions/verification.py`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

from oxillama.base.atomic_file import replaced_file
from oxillama.base.config import checks
from oxillama.base.config.engine import COMPUTE, MAX_CONTEXT
from oxillama.base.formats import KV_PAIRS, WRITABLE
from oxillama.base.version import __version__
from oxillama.errors import ConfigError, ReceiptError
from oxillama.sessions.codec import ANY_TEXT, TOKENS, check_fields, decode, encode, parse_json

if TYPE_CHECKING:
    from oxillama.base.config import EngineConfig
    from oxillama.gguf.fingerprint import ModelFingerprint

T = TypeVar("T")

FORMAT = "oxillama receipt"
VERSION = 1

FINISH_REASONS = ("stop", "length", "timeout", "cancelled")
POINT_DIGITS = 8
"""Hexadecimal digits of each token's chain link that a receipt keeps."""

MOST_BYTES = 64 << 20
"""The maximum size of a receipt in bytes: 40 bytes for each token of the longest context, and grammars."""
MOST_STOPS = 256
MOST_STOP_CHARACTERS = 4096
MOST_ADAPTERS = 256


class OfEngine:
    """What all kinds of receipts have: facts of the engine, and files. Their classes add `from_json`."""

    compute: str
    quantize: str | None
    kv_type: str
    context_size: int
    synced: ClassVar[bool] = False
    """Whether `save` waits until the file is on the disk."""

    @staticmethod
    def facts(model: ModelFingerprint, config: EngineConfig, context_size: int) -> dict[str, Any]:
        """The fields ``library`` to ``context_size`` of a receipt from an engine."""
        return {
            "library": __version__,
            "model": model.content.hex(),
            "compute": config.compute,
            "quantize": config.quantize_format,
            "kv_type": config.kv_type,
            "context_size": context_size,
        }

    @property
    def engine_options(self) -> dict[str, Any]:
        """The fields of `EngineConfig` that an engine needs to verify the receipt."""
        names = ("compute", "quantize", "kv_type", "context_size")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a receipt from a file. Raises ReceiptError if the file cannot be read, and as `from_json`."""
        return cls.from_json(read_file(path, "receipt"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The receipt of a text. Raises ReceiptError."""
        raise NotImplementedError

    def to_json(self) -> str:
        """The text of the receipt."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the receipt to a file atomically. Raises ModelFileError on failure."""
        with replaced_file(Path(path), synced=self.synced) as file:
            file.write(self.to_json().encode())


@dataclass(frozen=True)
class AdapterUse:
    """An adapter that was applied to tokens.

    Attributes:
        fingerprint: the adapter's fingerprint, 64 hexadecimal digits.
        scale: the user's scale.
        start: position of the first token that it applied to.
    """

    fingerprint: Annotated[str, 64]
    scale: float
    start: int


@dataclass(frozen=True)
class MediumUse:
    """A picture or a sound in a prompt.

    Attributes:
        digest: hash of the decoded pixels or samples (`oxillama.models.media.decode`), 64 hexadecimal digits.
        starts: position of the first token of each of its tiles or pieces.
    """

    digest: Annotated[str, 64]
    starts: Annotated[list[int], TOKENS]


@dataclass(frozen=True, kw_only=True)
class Receipt(OfEngine):
    """Everything that determines a text. The fields are the keys of the JSON object.

    Attributes:
        library: version of the library that made the receipt.
        model: hash of the model's file (`ModelFingerprint.content`), 64 hexadecimal digits.
        compute: as in `EngineConfig`.
        quantize: as in `EngineConfig`.
        kv_type: as in `EngineConfig`.
        context_size: the engine's actual one.
        adapters: in the order in which they were added.
        prompt: token ids; 0 at positions of media.
        media: the media of the prompt, in order.
        projector: hash of the projector file, 64 hexadecimal digits; None without media.
        preprocessing: version of the way from files of media to pixels and samples
            (`oxillama.models.media.decode.PREPROCESSING`).
        sampler: the sampler's options as plain data (`plain_options`), including the seed that was used.
        grammar: hash of the source of the grammar, schema, pattern or choices, 64 hexadecimal digits; None
            without one.
        stop: as in `GenerationOptions`.
        max_tokens: as in `GenerationOptions`.
        tokens: ids of the text, including an end token.
        finish_reason: why the text ended.
        points: for each token, the first 8 hexadecimal digits of its link in the chain (`LogitsChain`).
        chain: the last link, 64 hexadecimal digits.

    Raises:
        ReceiptError: a field has a value that no request can have had; the message names the field.
    """

    library: str
    model: Annotated[str, 64]
    compute: Annotated[str, COMPUTE]
    quantize: Annotated[str, tuple(WRITABLE)] | None
    kv_type: Annotated[str, tuple(KV_PAIRS)]
    context_size: Annotated[int, (1, MAX_CONTEXT)]
    adapters: tuple[AdapterUse, ...]
    prompt: Annotated[list[int], TOKENS]
    sampler: dict[str, Any]
    grammar: Annotated[str, 64] | None
    stop: list[Annotated[str, ANY_TEXT]]
    max_tokens: Annotated[int, (0, math.inf)] | None
    tokens: Annotated[list[int], TOKENS]
    finish_reason: Annotated[str, FINISH_REASONS]
    points: list[Annotated[str, POINT_DIGITS]]
    chain: Annotated[str, 64]
    media: tuple[MediumUse, ...] = ()
    projector: Annotated[str, 64] | None = None
    preprocessing: Annotated[int, (1, 1 << 16)] = 1
    synced: ClassVar[bool] = True

    def __post_init__(self) -> None:
        try:
            checks.instance("adapters", self.adapters, tuple)
            checks.instance("media", self.media, tuple)
            check_fields(self)
            self._check_limits()
        except ConfigError as error:
            raise ReceiptError(f"receipt: {error}") from None

    def _check_limits(self) -> None:
        if len(self.library) > 100:
            raise checks.refuse("library", "a version", self.library)
        if len(self.adapters) > MOST_ADAPTERS:
            raise ConfigError(f"adapters: expected at most {MOST_ADAPTERS}, got {len(self.adapters)}")
        for use in self.adapters:
            checks.integer("adapters: start", use.start, 0, self.context_size)
        if len(self.media) > len(self.prompt) or bool(self.media) != (self.projector is not None):
            raise ConfigError("media: expected some, and a projector, or neither")
        starts = [start for use in self.media for start in use.starts]
        if starts != sorted(set(starts)) or any(start >= len(self.prompt) for start in starts):
            raise ConfigError("media: starts: expected positions of the prompt in order")
        checks.texts("stop", self.stop, empty=False)
        if len(self.stop) > MOST_STOPS or max(map(len, self.stop), default=0) > MOST_STOP_CHARACTERS:
            most = f"at most {MOST_STOPS} strings of at most {MOST_STOP_CHARACTERS} characters"
            raise checks.refuse("stop", most, self.stop)
        for name, least, most_tokens in (("prompt", 1, self.context_size), ("tokens", 0, self.limit)):
            n = len(getattr(self, name))
            if not least <= n <= most_tokens:
                raise ConfigError(f"{name}: expected {least} to {most_tokens} token ids, got {n}")
        if len(self.points) != len(self.tokens):
            raise ConfigError(f"points: expected {len(self.tokens)}, got {len(self.points)}")

    @property
    def limit(self) -> int:
        """The maximum number of tokens that the text could have had."""
        room = self.context_size - len(self.prompt)
        return room if self.max_tokens is None else min(room, self.max_tokens)

    @property
    def seed(self) -> Any:
        """The seed of the random numbers, from the sampler's options."""
        return self.sampler.get("seed")

    # --- JSON -----------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The receipt as JSON text, one line for each field."""
        fields = encode(Receipt, self)
        if not self.media:
            del fields["media"], fields["projector"], fields["preprocessing"]
        pairs = {"format": FORMAT, "version": VERSION, **fields}
        lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in pairs.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The receipt that `to_json` wrote.

        Raises:
            ReceiptError: the text is no JSON, longer than `MOST_BYTES`, of another version, or no such
                receipt.
        """
        return from_json(cls, text, "receipt", FORMAT, VERSION)


def from_json(kind: Callable[..., T], text: str | bytes, name: str, format: str, version: int) -> T:
    """Decode the JSON object of a dataclass, which also contains its ``format`` and ``version``.

    Raises ReceiptError if the text is longer than `MOST_BYTES` or not such an object; messages begin with
    ``name``.
    """
    if not isinstance(text, (str, bytes)):
        raise ReceiptError(f"{name}: expected JSON text, got {type(text).__name__}")
    if len(text) > MOST_BYTES:
        raise ReceiptError(f"{name}: expected at most {MOST_BYTES} bytes, got {len(text)}")
    try:
        found = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise ReceiptError(f"{name}: expected JSON, got other text: {error}") from None
    if not isinstance(found, dict) or found.pop("format", None) != format:
        raise ReceiptError(f'{name}: expected an object of the format "{format}", got another value')
    number = found.pop("version", None)
    if number != version or isinstance(number, bool):
        raise ReceiptError(f"{name}: expected version {version}, got {checks.shown(number)}")
    try:
        return decode(kind, found, name=name)
    except ReceiptError:
        raise
    except ConfigError as error:
        raise ReceiptError(str(error)) from None


def read_file(path: str | os.PathLike[str], name: str) -> bytes:
    """The bytes of a file, at most `MOST_BYTES` + 1. Raises ReceiptError if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ReceiptError(f"{name}: {os.fspath(path)} cannot be read: {reason}") from error
