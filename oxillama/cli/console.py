"""What the commands read and write with: text, sizes, aligned rows, files at once or not at all, a bar."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oxillama.errors import ConfigError


def printable(text: str) -> str:
    """The text in one line, with control characters (a file's name may hold them) as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(kind: str, message: str) -> None:
    """One line on stderr, whatever the message holds."""
    print(f"oxillama: {kind}: {printable(message)}", file=sys.stderr, flush=True)


def read_text(source: str, option: str) -> str:
    """All text of a file, or of stdin for "-", exactly as it is. Raises ConfigError naming ``option``."""
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
    """Rows of as many cells each, in columns; those in ``right`` are aligned to the right."""
    table = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        sized = enumerate(zip(row, widths, strict=True))
        print("  ".join(f"{c:>{w}}" if i in right else f"{c:{w}}" for i, (c, w) in sized).rstrip())


def print_json(value: Any) -> None:
    """A value as indented JSON on stdout."""
    print(json.dumps(value, indent=2))


def check_writable(path: Path) -> None:
    """Raises ConfigError if `write_json` to this path is bound to fail: better known before the work."""
    if path.is_dir():
        raise ConfigError(f"--json: {path} is a directory, expected a file")
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"--json: {path} cannot be written: {folder} is not a folder to write to")


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON: the whole file, or on any failure none. Raises ConfigError."""
    text = json.dumps(value, indent=2) + "\n"
    target = Path(os.path.realpath(path))  # a link stays one
    try:
        if target.exists() and not target.is_file():  # a device or a pipe can only be written to
            target.write_text(text)
            return
        fd, temporary = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
        try:
            os.fchmod(fd, 0o666 & ~_umask()) if hasattr(os, "fchmod") else None
            with open(fd, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise ConfigError(f"--json: {path} cannot be written: {error.strerror or error}") from error


def _umask() -> int:
    """What `mkstemp` disregards; it can only be asked for by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def loading_bar(path: str, show: bool | None, doing: str = "loading") -> Iterator[Callable[[str, int], None]]:
    """A progress bar for the tensors of a model, as the engine's ``progress``.

    ``show`` None means where stderr is a terminal. The bar goes away at the end; ``doing`` stands before it.
    Where none is shown the tensors are heard of all the same: the engine packs them before the text is timed.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda name, n_bytes: None
        return
    from tqdm import tqdm  # type: ignore[import-untyped]

    from oxillama.gguf.model_file import ModelFile

    with ModelFile.open(path) as file:
        left = {name: tensor.nbytes for name, tensor in file.tensors.items()}
    with tqdm(
        total=sum(left.values()), desc=doing, unit="B", unit_scale=True, leave=False, file=sys.stderr
    ) as bar:

        def loaded(name: str, n_bytes: int) -> None:
            step = min(n_bytes, left[name])  # a table that is both the embedding and the output comes twice
            left[name] -= step
            bar.update(step)

        yield loaded
