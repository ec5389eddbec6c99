"""``--file``: the text of a file in a message."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from oxillama.apps.cli.console import printable
from oxillama.base.distribution import install
from oxillama.errors import ConfigError


def block_of(path: str, option: str) -> str:
    """A text file or a PDF as a block of code below its name, in the form of the page.

    Raises ConfigError naming ``option`` for a file that cannot be read, or is neither, and for a PDF without
    `pypdf`.
    """
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{option}: {path} cannot be read: {reason}") from error
    is_pdf = data.startswith(b"%PDF-")
    text = (pdf_text if is_pdf else plain_text)(path, data, option)
    if not text.strip():
        raise ConfigError(f"{option}: expected text in {path}, got none")
    fence = "```"
    while fence in text:
        fence += "`"
    name = printable(os.path.basename(path))
    language = "" if is_pdf else os.path.splitext(name)[1].removeprefix(".")
    end = "" if text.endswith("\n") else "\n"
    return f"{name}:\n\n{fence}{language}\n{text}{end}{fence}"


def plain_text(path: str, data: bytes, option: str) -> str:
    """The text of a file in UTF-8."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{option}: {path} is not UTF-8 (at byte {error.start})") from error
    if "\0" in text:
        raise ConfigError(f"{option}: expected text in {path}, got a zero at character {text.index(chr(0))}")
    return text


def pdf_text(path: str, data: bytes, option: str) -> str:
    """The text of a PDF, which another process reads."""
    from oxillama.apps.server.page.pdf_text import read

    if find_spec("pypdf") is None:
        raise ConfigError(f"{option}: {path} is a PDF, and the package pypdf is missing ({install('pdf')})")
    try:
        found = read(data)
    except OSError as error:
        raise ConfigError(f"{option}: {path}: no process to read it: {error.strerror}") from error
    if "error" in found:
        raise ConfigError(f"{option}: {path}: expected a PDF with text, got another: {found['error']}")
    return str(found["text"])
