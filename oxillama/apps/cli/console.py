"""Input and output of the commands: text, sizes, aligned rows, JSON."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from oxillama.apps.cli.terminal import styled
from oxillama.errors import ConfigError, in_short


def printable(text: str) -> str:
    """The text in one line, with control characters (a file name may hold them) as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(kind: str, message: str, program: str = "oxillama") -> None:
    """Writes a message as one line to stderr, above a progress bar."""
    bars = sys.modules.get("tqdm")
    line = styled(f"{program}: {kind}:", kind, sys.stderr) + f" {printable(in_short(message.strip()))}"
    with (
        suppress(OSError, ValueError),  # stderr is closed: nobody can be told
        bars.tqdm.external_write_mode(file=sys.stderr) if bars else nullcontext(),
    ):
        print(line, file=sys.stderr, flush=True)


@contextmanager
def logging_to(handler: logging.Handler, levels: Mapping[str, int]) -> Iterator[None]:
    """Has loggers, by their names, write records from these levels on to a handler alone inside the block."""
    loggers = [logging.getLogger(name) for name in levels]
    before = [(logger, logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(levels[logger.name])
        logger.propagate = False
    try:
        yield
    finally:
        for logger, level, propagates in before:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagates


def read_text(source: str, option: str) -> str:
    """All text of a file, or of stdin for "-", unchanged. Raises ConfigError naming ``option``."""
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return data.decode()
    except UnicodeDecodeError as error:
        what = "stdin" if source == "-" else source
        raise ConfigError(f"{option}: {what} is not UTF-8 (at byte {error.start})") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{option}: {source} cannot be read: {reason}") from error


def human_bytes(n: int) -> str:
    """A size in the largest binary unit that leaves at least 1: "1.5 MiB"."""
    size, unit = float(n), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{n} B" if unit == "B" else f"{size:.1f} {unit}"


def human_count(n: int) -> str:
    """A count in thousands, millions or billions: "1.10 B"."""
    for scale, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n >= scale:
            return f"{n / scale:.2f} {unit}"
    return str(n)


def print_rows(rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Rows of the same number of cells, in columns; columns in ``right`` are aligned to the right."""
    table = [[printable(in_short(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        sized = enumerate(zip(row, widths, strict=True))
        print("  ".join(f"{c:>{w}}" if i in right else f"{c:{w}}" for i, (c, w) in sized).rstrip())


def print_json(value: Any) -> None:
    """A value as indented JSON on stdout."""
    print(json.dumps(value, indent=2))


def check_writable(option: str, path: Path) -> None:
    """Raises ConfigError if a file cannot be written to this path: known before the work, not after."""
    if path.is_dir():
        raise ConfigError(f"{option}: expected a file, got the directory {path}")
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"{option}: expected a file in a folder that can be written to, got {path}")
