"""A receipt: what a text follows from, the text's tokens, and hashes of the logits, as JSON.

Its fields are checked when it is made, from a file too. Whether they are true is for
`sessions/verification.py` to find out.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from oxillama.atomic_file import replaced_file
from oxillama.config import checks
from oxillama.config.engine import COMPUTE, MAX_CONTEXT
from oxillama.errors import ConfigError, ReceiptError
from oxillama.formats import KV_TYPES, WRITABLE

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

    fingerprint: str
    scale: float
    start: int


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What a text follows from. The fields are the keys of the JSON object.

    Attributes
    ----------
    library : version of the library that made it.
    model : hash of the model's file (`ModelFingerprint.content`), 64 hexadecimal digits.
    compute, quantize, kv_type, context_size : as in `EngineConfig`; ``context_size`` as the engine had it.
    adapters : in the order in which they were added.
    prompt : token ids.
    sampler : the options of the sampler as plain data (`plain_sampler`), the seed in use among them.
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
    model: str
    compute: str
    quantize: str | None
    kv_type: str
    context_size: int
    adapters: tuple[AdapterUse, ...]
    prompt: list[int]
    sampler: dict[str, Any]
    grammar: str | None
    stop: list[str]
    max_tokens: int | None
    tokens: list[int]
    finish_reason: str
    points: list[str]
    chain: str

    def __post_init__(self) -> None:
        try:
            self._check()
        except ConfigError as error:
            raise ReceiptError(f"receipt: {error}") from None

    def _check(self) -> None:
        if len(checks.encodable("library", self.library)) > 100:
            raise checks.refuse("library", "a version", self.library)
        check_hex("model", self.model, 64)
        checks.one_of("compute", self.compute, COMPUTE)
        if self.quantize is not None:
            checks.one_of("quantize", self.quantize, WRITABLE)
        checks.one_of("kv_type", self.kv_type, KV_TYPES)
        checks.integer("context_size", self.context_size, 1, MAX_CONTEXT)
        self._check_adapters()
        check_tokens("prompt", self.prompt, 1, self.context_size)
        checks.instance("sampler", self.sampler, dict)
        if self.grammar is not None:
            check_hex("grammar", self.grammar, 64)
        stop = checks.texts("stop", checks.instance("stop", self.stop, list), empty=False)
        if len(stop) > MOST_STOPS or max(map(len, stop), default=0) > MOST_STOP_CHARACTERS:
            most = f"at most {MOST_STOPS} strings of at most {MOST_STOP_CHARACTERS} characters"
            raise checks.refuse("stop", most, self.stop)
        if self.max_tokens is not None:
            checks.integer("max_tokens", self.max_tokens, 0)
        check_tokens("tokens", self.tokens, 0, self.limit)
        checks.one_of("finish_reason", self.finish_reason, FINISH_REASONS)
        if len(checks.instance("points", self.points, list)) != len(self.tokens):
            raise ConfigError(f"points: expected {len(self.tokens)}, got {len(self.points)}")
        for point in self.points:
            check_hex("points", point, POINT_DIGITS)
        check_hex("chain", self.chain, 64)

    def _check_adapters(self) -> None:
        checks.instance("adapters", self.adapters, tuple)
        if len(self.adapters) > MOST_ADAPTERS:
            raise ConfigError(f"adapters: expected at most {MOST_ADAPTERS}, got {len(self.adapters)}")
        for use in self.adapters:
            check_hex("adapters: fingerprint", checks.instance("adapters", use, AdapterUse).fingerprint, 64)
            checks.number("adapters: scale", use.scale)
            checks.integer("adapters: start", use.start, 0, self.context_size)

    @property
    def limit(self) -> int:
        """Most tokens that the text could have had."""
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
        pairs = {"format": FORMAT, "version": VERSION, **asdict(self)}
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
            found = json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
        except (ValueError, RecursionError) as error:
            raise ReceiptError(f"receipt: expected JSON, got other text: {error}") from None
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            raise ReceiptError(f'receipt: expected an object of the format "{FORMAT}", got another value')
        version = found.pop("version", None)
        if version != VERSION or isinstance(version, bool):
            raise ReceiptError(f"receipt: expected version {VERSION}, got {checks.shown(version)}")
        names = [field.name for field in fields(cls)]
        for name in (*names, *found):
            if name not in found or name not in names:
                what = "no such field" if name in found else "is missing"
                raise ReceiptError(f"receipt: {checks.shown(name)}: {what}")
        return cls(**{**found, "adapters": adapter_uses(found["adapters"])})

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


def check_hex(name: str, value: Any, n: int) -> None:
    """Raises ConfigError unless ``value`` is ``n`` lower-case hexadecimal digits."""
    if not isinstance(value, str) or not re.fullmatch(rf"[0-9a-f]{{{n}}}", value):
        raise checks.refuse(name, f"{n} hexadecimal digits", value)


def check_tokens(name: str, value: Any, least: int, most: int) -> None:
    """Raises ConfigError unless ``value`` is a list of ``least`` to ``most`` token ids."""
    if not least <= len(checks.instance(name, value, list)) <= most:
        raise ConfigError(f"{name}: expected {least} to {most} token ids, got {len(value)}")
    if not all(type(token) is int and 0 <= token < 2**31 for token in value):
        raise checks.refuse(name, "token ids", value)


def adapter_uses(value: Any) -> tuple[AdapterUse, ...]:
    """The adapters of a receipt's JSON. Raises ReceiptError."""
    names = {field.name for field in fields(AdapterUse)}
    if not isinstance(value, list) or not all(isinstance(use, dict) and set(use) == names for use in value):
        raise ReceiptError(f"receipt: adapters: expected objects with the keys {', '.join(sorted(names))}")
    return tuple(AdapterUse(**use) for use in value)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; two keys of one name would be read differently by others."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def no_constant(name: str) -> Any:
    """Refuses NaN and the infinities, which are no JSON."""
    raise ValueError(f"{name} is no number of JSON")
