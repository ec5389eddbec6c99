"""Signed receipts: who vouches for a text, and the order of the texts of a conversation.

The signature is Ed25519 (RFC 8032) over the canonical JSON (RFC 8785) of the receipt, the signer's key, the
number of the text in its chain, and the hash of the signed receipt before it. Canonical JSON has no integers
beyond 2^53 - 1; those, such as a seed, are signed as text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from blake3 import blake3

from oxillama.atomic_file import replaced_file
from oxillama.config import checks
from oxillama.errors import ConfigError, ReceiptError
from oxillama.sessions.codec import check_fields, decode, encode, parse_json
from oxillama.sessions.receipt import MOST_BYTES, Receipt

FORMAT = "oxillama signed receipt"
VERSION = 1
MOST_TEXTS = 1 << 16
"""Signed receipts in a chain."""
EXACT = 2**53 - 1
"""The largest integer of canonical JSON."""


@dataclass(frozen=True)
class SignedReceipt:
    """A receipt, and the signature of whoever vouches for it.

    Attributes
    ----------
    receipt : of the text.
    key : public key of the signer, 64 hexadecimal digits.
    number : of the text in its chain, from 0.
    previous : hash of the signed receipt before it, 64 hexadecimal digits; None for the first.
    signature : 128 hexadecimal digits.

    Raises
    ------
    ReceiptError : a field is none that a signed receipt can have. The signature is checked by `check`.
    """

    receipt: Receipt
    key: Annotated[str, 64]
    number: Annotated[int, (0, MOST_TEXTS - 1)]
    previous: Annotated[str, 64] | None
    signature: Annotated[str, 128]

    def __post_init__(self) -> None:
        try:
            checks.instance("receipt", self.receipt, Receipt)
            check_fields(self)
        except ConfigError as error:
            raise ReceiptError(f"signed receipt: {error}") from None

    def payload(self) -> bytes:
        """The canonical JSON that is signed. Raises ReceiptError for text that is not valid Unicode."""
        fields = encode(SignedReceipt, self)
        del fields["signature"]
        rfc8785 = needed("rfc8785")
        try:
            found: bytes = rfc8785.dumps(exact({"format": FORMAT, "version": VERSION, **fields}))
        except (rfc8785.CanonicalizationError, UnicodeError, RecursionError) as error:
            raise ReceiptError(f"signed receipt: has no canonical JSON: {error}") from None
        return found

    @property
    def digest(self) -> str:
        """64 hexadecimal digits: the hash that the next one of a chain names."""
        return blake3(self.payload() + bytes.fromhex(self.signature)).hexdigest()

    def check(self) -> None:
        """Raises ReceiptError unless the key's owner has signed it; ConfigError without `cryptography`."""
        ed25519 = needed("cryptography.hazmat.primitives.asymmetric.ed25519")
        invalid = needed("cryptography.exceptions").InvalidSignature
        payload = self.payload()
        try:
            key = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.key))
            key.verify(bytes.fromhex(self.signature), payload)
        except (invalid, ValueError):
            raise ReceiptError(f"signed receipt {self.number}: the signature is not of {self.key}") from None

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps({"format": FORMAT, "version": VERSION, **encode(SignedReceipt, self)})

    @classmethod
    def from_json(cls, text: str | bytes) -> SignedReceipt:
        """What `to_json` wrote, unchecked. Raises ReceiptError if it is no signed receipt."""
        try:
            found = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise ReceiptError(f"signed receipt: expected JSON, got other text: {error}") from None
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            raise ReceiptError(f'signed receipt: expected an object of the format "{FORMAT}"')
        version = found.pop("version", None)
        if version != VERSION or isinstance(version, bool):
            raise ReceiptError(f"signed receipt: expected version {VERSION}, got {checks.shown(version)}")
        try:
            return decode(cls, found, name="signed receipt")
        except ReceiptError:
            raise
        except ConfigError as error:
            raise ReceiptError(str(error)) from None


def exact(value: Any) -> Any:
    """Plain data without integers that canonical JSON cannot hold: those are text."""
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [exact(item) for item in value]
    return str(value) if type(value) is int and abs(value) > EXACT else value


def needed(module: str) -> Any:
    """A module of the extra. Raises ConfigError if it is not installed."""
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"sign: needs oxillama-cpu[sign], {error.name} is not installed") from error


def load_key(path: str | os.PathLike[str]) -> Any:
    """The private key (an `Ed25519PrivateKey` of `cryptography`) in a PEM file without a password, as
    ``openssl genpkey -algorithm ed25519`` writes it.

    Raises ConfigError if the file cannot be read, or holds no such key.
    """
    serialization = needed("cryptography.hazmat.primitives.serialization")
    kind = needed("cryptography.hazmat.primitives.asymmetric.ed25519").Ed25519PrivateKey
    try:
        key = serialization.load_pem_private_key(Path(path).read_bytes(), None)
    except OSError as error:
        raise ConfigError(f"key: {os.fspath(path)} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # of several types, none of which holds the key
        raise ConfigError(f"key: expected a PEM file of an Ed25519 key: {type(error).__name__}") from None
    if not isinstance(key, kind):
        raise ConfigError("key: expected an Ed25519 key, got one of another kind")
    return key


def sign(receipt: Receipt, key: Any, previous: SignedReceipt | None = None) -> SignedReceipt:
    """A signed receipt, the next of a chain if ``previous`` is given. ``key`` is as `load_key` gives it.

    Raises
    ------
    ReceiptError : the previous one is of another key, or the chain is full.
    """
    public = key.public_key().public_bytes_raw().hex()
    if previous is not None and previous.key != public:
        raise ReceiptError(f"signed receipt: expected the chain's key {previous.key}, got {public}")
    number, before = (0, None) if previous is None else (previous.number + 1, previous.digest)
    unsigned = SignedReceipt(receipt, public, number, before, "00" * 64)
    return replace(unsigned, signature=key.sign(unsigned.payload()).hex())


def check_chain(chain: Iterable[SignedReceipt], key: str | None = None) -> None:
    """Checks the signatures of a chain from its first text on: none is missing, moved or of another key.

    That texts were cut off behind the last cannot be told. ``key`` is the public key that is expected.

    Raises ReceiptError; the message has the number of the first text that does not belong there.
    """
    before: SignedReceipt | None = None
    for number, signed in enumerate(chain):
        wanted = key if before is None else before.key
        if wanted is not None and signed.key != wanted:
            raise ReceiptError(f"signed receipt {number}: expected the key {wanted}, got {signed.key}")
        signed.check()
        if signed.number != number or signed.previous != (None if before is None else before.digest):
            raise ReceiptError(f"signed receipt {number}: does not follow the one before it in this chain")
        before = signed
    if before is None:
        raise ReceiptError("signed receipts: expected at least one, got none")


def load_chain(path: str | os.PathLike[str]) -> list[SignedReceipt]:
    """The signed receipts in a file, one a line; they are not checked.

    Raises ReceiptError if the file cannot be read, is too long, or holds something else.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ReceiptError(f"signed receipts: {os.fspath(path)} cannot be read: {reason}") from error
    lines = data.splitlines()
    if len(data) > MOST_BYTES or len(lines) > MOST_TEXTS:
        raise ReceiptError(f"signed receipts: expected at most {MOST_BYTES} bytes and {MOST_TEXTS} lines")
    return [SignedReceipt.from_json(line) for line in lines]


def save_chain(path: str | os.PathLike[str], chain: Iterable[SignedReceipt]) -> None:
    """Writes signed receipts to a file, which is replaced as a whole. Raises ModelFileError if it cannot."""
    with replaced_file(Path(path)) as file:
        for signed in chain:
            file.write(signed.to_json().encode() + b"\n")
