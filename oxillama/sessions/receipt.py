"""A receipt: what a text follows from, the text's tokens, and hashes of the logits, as JSON.

Its fields are checked when it is made, from a file too. Whether they are true is for
`sessions/verification.py` to find out.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from oxillama.atomic_file import replaced_file
from oxillama.config import checks
from oxillama.config.engine import COMPUTE, MAX_CONTEXT
from oxillama.errors import ConfigError, ReceiptError
from oxillama.formats import KV_PAIRS, WRITABLE
from oxillama.sessions.codec import ANY_TEXT, TOKENS, check_fields, decode, encode, parse_json

FORMAT = "oxillama receipt"
VERSION = 1

FINISH_REASONS = ("stop", "length", "timeout", "cancelled")
POINT_DIGITS = 8
"""Hexadecimal digits of a link of the chain that are kept for each token."""

MOST_BYTES = 64 << 20
"""Of a receipt: 40 bytes for each token of the longest context, and grammars."""
MOST_STOPS = 256
MOST_STOP_CHARACTERS = 4096
MOST_ADAPTERS = 256


@dataclass(frozen=True)
class AdapterUse:
    """An adapter that tokens were run with.

    Attributes
    ----------
    fingerprint : of the adapter, 64 hexadecimal digits.
    scale : of the user.
    start : position of the first token that it applied to.
    """

    fingerprint: Annotated[str, 64]
    scale: float
    start: int


@dataclass(frozen=True)
class MediumUse:
    """A picture or a sound of a prompt.

    Attributes
    ----------
    digest : hash of the decoded pixels or samples (`oxillama.media.decode`), 64 hexadecimal digits.
    starts : position of the first token of each of its tiles or pieces.
    """

    digest: Annotated[str, 64]
    starts: Annotated[list[int], TOKENS]


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What a text follows from. The fields are the keys of the JSON object.

    Attributes
    ----------
    library : version of the library that made it.
    model : hash of the model's file (`ModelFingerprint.content`), 64 hexadecimal digits.
    compute, quantize, kv_type, context_size : as in `EngineConfig`; ``context_size`` as the engine had it.
    adapters : in the order in which they were added.
    prompt : token ids; 0 where a medium stands.
    media : of the prompt, in order. projector : hash of the file that encoded them, 64 hexadecimal digits;
        None without media.
    sampler : the options of the sampler as plain data (`plain_options`), the seed in use among them.
    grammar : hash of the source of the grammar, schema, pattern or choices, 64 hexadecimal digits; None
        without one.
    stop, max_tokens : as in `GenerationOptions`.
    tokens : ids of the text, an ending token included.
    finish_reason : why it ended.
    points : for each token the first 8 hexadecimal digits of the link of its logits (`LogitsChain`).
    chain : the last link, 64 hexadecimal digits.

    Raises
    ------
    ReceiptError : a field is none that a request can have had; the message names it.
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
        """Max tokens that the text could have had."""
        room = self.context_size - len(self.prompt)
        return room if self.max_tokens is None else min(room, self.max_tokens)

    @property
    def seed(self) -> Any:
        """Of the random numbers, as the sampler's options say it."""
        return self.sampler.get("seed")

    @property
    def engine_options(self) -> dict[str, Any]:
        """The fields of `EngineConfig` that an engine needs to verify it."""
        names = ("compute", "quantize", "kv_type", "context_size")
        return {name: getattr(self, name) for name in names}

    # --- JSON -----------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The receipt as JSON text, one line for each field."""
        fields = encode(Receipt, self)
        if not self.media:
            del fields["media"], fields["projector"]
        pairs = {"format": FORMAT, "version": VERSION, **fields}
        lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in pairs.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Receipt:
        """The receipt that `to_json` wrote.

        Raises
        ------
        ReceiptError : the text is no JSON, longer than `MOST_BYTES`, of another version, or no such receipt.
        """
        if not isinstance(text, (str, bytes)):
            raise ReceiptError(f"receipt: expected JSON text, got {type(text).__name__}")
        if len(text) > MOST_BYTES:
            raise ReceiptError(f"receipt: expected at most {MOST_BYTES} bytes, got {len(text)}")
        try:
            found = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise ReceiptError(f"receipt: expected JSON, got other text: {error}") from None
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            raise ReceiptError(f'receipt: expected an object of the format "{FORMAT}", got another value')
        version = found.pop("version", None)
        if version != VERSION or isinstance(version, bool):
            raise ReceiptError(f"receipt: expected version {VERSION}, got {checks.shown(version)}")
        try:
            return decode(cls, found, name="receipt")
        except ReceiptError:
            raise
        except ConfigError as error:
            raise ReceiptError(str(error)) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Receipt:
        """The receipt in a file. Raises ReceiptError if it cannot be read, and as `from_json`."""
        try:
            with open(path, "rb") as file:
                return cls.from_json(file.read(MOST_BYTES + 1))
        except ReceiptError:
            raise
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ReceiptError(f"receipt: {os.fspath(path)} cannot be read: {reason}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the receipt to a file, which is replaced as a whole. Raises ModelFileError if it cannot."""
        with replaced_file(Path(path)) as file:
            file.write(self.to_json().encode())
