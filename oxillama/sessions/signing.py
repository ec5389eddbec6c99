"""Signed receipts: prove who vouches for a text, and the order of the texts of a conversation.

The signature is Ed25519 (RFC 8032) over the canonical JSON (RFC 8785) of the receipt, the signer's key, the
number of the text in its chain, and the hash of the previous signed receipt. Canonical JSON has no integers
beyond 2^53 - 1; larger ones, such as a seed, are signed as text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from blake3 import blake3

from oxillama.base.atomic_file import replaced_file
from oxillama.base.config import checks
from oxillama.errors import ConfigError, ReceiptError
from oxillama.sessions.codec import check_fields, encode
from oxillama.sessions.receipt import MOST_BYTES, Receipt, from_json, read_file

FORMAT = "oxillama signed receipt"
VERSION = 1
MOST_TEXTS = 1 << 16
"""The maximum number of signed receipts in a chain."""
EXACT = 2**53 - 1
"""The largest integer in canonical JSON."""


@dataclass(frozen=True)
class SignedReceipt:
    """A receipt with its signer's signature.

    Attributes:
        receipt: the receipt of the text.
        key: public key of the signer, 64 hexadecimal digits.
        number: number of the text in its chain, from 0.
        previous: hash of the previous signed receipt, 64 hexadecimal digits; None for the first.
        signature: 128 hexadecimal digits.

    Raises:
        ReceiptError: a field has an invalid value. The signature is checked by `check` only.
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
        """The hash that the next signed receipt of a chain contains, 64 hexadecimal digits."""
        return blake3(self.payload() + bytes.fromhex(self.signature)).hexdigest()

    def check(self) -> None:
        """Raise ReceiptError if the signature is not the key's; ConfigError without `cryptography`."""
        ed25519 = needed("cryptography.hazmat.primitives.asymmetric.ed25519")
        invalid = needed("cryptography.exceptions").InvalidSignature
        payload = self.payload()
        try:
            key = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.key))
            key.verify(bytes.fromhex(self.signature), payload)
        except (invalid, ValueError):
            raise ReceiptError(f"signed receipt {self.number}: the signature is not of {self.key}") from None

    def to_json(self) -> str:
        """The signed receipt as one line of JSON."""
        return json.dumps({"format": FORMAT, "version": VERSION, **encode(SignedReceipt, self)})

    @classmethod
    def from_json(cls, text: str | bytes) -> SignedReceipt:
        """The signed receipt in a text of `to_json`, unchecked. Raises ReceiptError for another text."""
        return from_json(cls, text, "signed receipt", FORMAT, VERSION)


def exact(value: Any) -> Any:
    """Plain data with integers that canonical JSON cannot hold turned into text."""
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [exact(item) for item in value]
    return str(value) if type(value) is int and abs(value) > EXACT else value


def needed(module: str) -> Any:
    """Import a module of the extra `sign`. Raises ConfigError if it is not installed."""
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"sign: needs oxillama-cpu[sign], {error.name} is not installed") from error


def load_key(path: str | os.PathLike[str]) -> Any:
    """Load a private key (an `Ed25519PrivateKey` of `cryptography`) from a PEM file without a password, as
    written by ``openssl genpkey -algorithm ed25519``.

    Raises ConfigError if the file cannot be read, or contains no such key.
    """
    serialization = needed("cryptography.hazmat.primitives.serialization")
    kind = needed("cryptography.hazmat.primitives.asymmetric.ed25519").Ed25519PrivateKey
    try:
        key = serialization.load_pem_private_key(Path(path).read_bytes(), None)
    except OSError as error:
        raise ConfigError(f"key: {os.fspath(path)} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # `cryptography` raises several types
        raise ConfigError(f"key: expected a PEM file of an Ed25519 key: {type(error).__name__}") from None
    if not isinstance(key, kind):
        raise ConfigError("key: expected an Ed25519 key, got one of another kind")
    return key


def sign(receipt: Receipt, key: Any, previous: SignedReceipt | None = None) -> SignedReceipt:
    """Sign a receipt; with ``previous``, as the next of its chain. ``key`` as from `load_key`.

    Raises:
        ReceiptError: the previous receipt has another key, or the chain is full.
    """
    public = key.public_key().public_bytes_raw().hex()
    if previous is not None and previous.key != public:
        raise ReceiptError(f"signed receipt: expected the chain's key {previous.key}, got {public}")
    number, before = (0, None) if previous is None else (previous.number + 1, previous.digest)
    unsigned = SignedReceipt(receipt, public, number, before, "00" * 64)
    return replace(unsigned, signature=key.sign(unsigned.payload()).hex())


def check_chain(chain: Iterable[SignedReceipt], key: str | None = None) -> None:
    """Check the signatures and the order of a chain from its first text on, all by the same key.

    Receipts removed from the end of the chain cannot be detected. ``key`` is the expected public key.

    Raises ReceiptError; the message has the number of the first wrong text.
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
    """Load the signed receipts in a file, one a line, without checking signatures.

    Raises ReceiptError if the file cannot be read, is too long, or contains anything else.
    """
    data = read_file(path, "signed receipts")
    lines = data.splitlines()
    if len(data) > MOST_BYTES or len(lines) > MOST_TEXTS:
        raise ReceiptError(f"signed receipts: expected at most {MOST_BYTES} bytes and {MOST_TEXTS} lines")
    return [SignedReceipt.from_json(line) for line in lines]


def save_chain(path: str | os.PathLike[str], chain: Iterable[SignedReceipt]) -> None:
    """Write signed receipts to a file atomically. Raises ModelFileError on failure."""
    with replaced_file(Path(path)) as file:
        for signed in chain:
            file.write(signed.to_json().encode() + b"\n")
