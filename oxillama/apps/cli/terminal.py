"""Output on a terminal: colours, streamed Markdown, the clipboard; and the folder for state files."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

STYLES = {"dim": "2", "error": "31", "warning": "33"}
"""Codes of ECMA-48."""

CLIPBOARD_BYTES = 74_994
"""Most bytes that a terminal takes for the clipboard: 100,000 in base 64, as xterm has it."""


def is_terminal(stream: TextIO) -> bool:
    """Whether a person reads the stream."""
    return not stream.closed and stream.isatty()


def has_colours(stream: TextIO) -> bool:
    """Whether a stream takes colours: NO_COLOR says no, FORCE_COLOR yes, else a terminal that is not dumb."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def styled(text: str, style: str, stream: TextIO) -> str:
    """The text in a style of `STYLES`, if the stream takes colours."""
    code = STYLES.get(style)
    return f"\x1b[{code}m{text}\x1b[0m" if code and text and has_colours(stream) else text


def shown_text(text: str) -> str:
    """Text of a model without control characters but tabs and line breaks: it cannot steer the terminal."""
    return "".join(c for c in text if c in "\t\n" or not ("\0" <= c < " " or "\x7f" <= c < "\xa0"))


def write_text(text: str) -> None:
    """Writes text of a model or a file to stdout: unchanged, or to a terminal as `shown_text`."""
    sys.stdout.write(shown_text(text) if is_terminal(sys.stdout) else text)
    sys.stdout.flush()


def state_folder() -> Path:
    """The folder for state files of a user: XDG_STATE_HOME, else ~/.local/state."""
    home = os.environ.get("XDG_STATE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state") / "oxillama"


def copy_to_clipboard(text: str, stream: TextIO) -> bool:
    """Asks the terminal to copy a text (OSC 52); returns whether it was asked."""
    data = text.encode()
    if not is_terminal(stream) or len(data) > CLIPBOARD_BYTES:
        return False
    stream.write(f"\x1b]52;c;{base64.b64encode(data).decode()}\a")
    stream.flush()
    return True


ECHO = 3
"""Columns that an answer leaves free: behind a full line the terminal's ``^C`` would begin another line, and
what is drawn again would be seen twice."""


class PlainView:
    """Writes an answer to stdout as it comes."""

    def __enter__(self) -> PlainView:
        self.text: str = ""
        return self

    def add(self, text: str) -> None:
        """The next piece."""
        self.text += text
        write_text(text)

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        if not self.text.endswith("\n") and not isinstance(error, BrokenPipeError):
            sys.stdout.write("\n")
            sys.stdout.flush()


class MarkdownView:
    """Writes an answer in Markdown to the terminal as it comes; the last block is redrawn until it is whole.

    Args:
        console: of `rich`.
    """

    def __init__(self, console: Any) -> None:
        self.console = console

    def __enter__(self) -> MarkdownView:
        from rich.live import Live

        self.rest: str = ""
        self.live: Live = Live(console=self.console, transient=True, refresh_per_second=12)
        self.live.start()
        return self

    def add(self, text: str) -> None:
        """The next piece."""
        whole, self.rest = split_blocks(self.rest + shown_text(text))
        self.live.update(self._rendered(last_lines(self.rest, self.console.height - 2)))
        if whole:  # above the rest, which is drawn again below it
            self._print(whole)

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self.live.update("")
        self.live.stop()
        if self.rest.strip():
            self._print(self.rest)

    def _print(self, text: str) -> None:
        self.live.console.print(self._rendered(text))
        self.live.console.print()

    def _rendered(self, text: str) -> Any:
        from rich.constrain import Constrain
        from rich.markdown import Markdown

        return Constrain(Markdown(text, hyperlinks=False), max(1, self.console.width - ECHO))


def split_blocks(text: str) -> tuple[str, str]:
    """The blocks of a Markdown text that are whole, and the rest, which may go on.

    A block is whole when an empty line follows it and neither a block of code is open nor a list may go on.
    """
    end = start = 0
    fence, is_empty = "", False
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if fence:
            fence = "" if bare.startswith(fence) and not bare.strip(fence[0]) else fence
        elif bare.startswith(("```", "~~~")):
            fence = bare[: len(bare) - len(bare.lstrip(bare[0]))]
        elif bare and is_empty and not line.startswith((" ", "\t", "-", "*", "+")) and not line[0].isdigit():
            end = start  # no item of the list before it
        start += len(line)
        is_empty = not bare and not fence
        if is_empty and line.endswith("\n") and not is_list(text[end:start]):
            end = start
    return text[:end], text[end:]


def is_list(text: str) -> bool:
    """Whether a block is a list, which may continue after an empty line."""
    first = text.lstrip()[:3]
    return first[:2] in ("- ", "* ", "+ ") or (first[:1].isdigit() and any(c in first for c in ".)"))


def last_lines(text: str, n: int) -> str:
    """The last lines of a block, with the line that opens it if it is code."""
    lines = text.splitlines(keepends=True)
    if len(lines) <= n:
        return text
    opening = lines[:1] if lines[0].lstrip().startswith(("```", "~~~")) else []
    return "".join([*opening, *lines[len(lines) - max(1, n - 1) :]])


def new_view(markdown: bool) -> PlainView | MarkdownView:
    """The writer of an answer: Markdown on a terminal with colours, if wanted and if `rich` is installed."""
    if markdown and is_terminal(sys.stdout) and has_colours(sys.stdout):
        try:
            from rich.console import Console
        except ImportError:
            return PlainView()
        return MarkdownView(Console(file=sys.stdout, highlight=False))
    return PlainView()
