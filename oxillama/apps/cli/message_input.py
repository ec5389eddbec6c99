"""The user's messages, from a terminal or a pipe: single lines, continued lines, blocks and pastes."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from oxillama.apps.cli.terminal import state_folder

BLOCK = '"""'
MOST_LINES = 1000
"""Lines of the history that are kept."""


class MessageInput:
    """Reads messages.

    A line that ends in a backslash continues in the next line. A line that starts with three quotation marks
    starts a block, which ends with the next line that ends in three. On a terminal with bracketed paste,
    pasted lines are one message. The line editor completes commands and paths, and has a history that is
    kept for the next chat.

    Args:
        interactive: whether stdin is a terminal, which shows a prompt and has a line editor.
    """

    def __init__(self, interactive: bool) -> None:
        self.interactive = interactive
        self._editor = line_editor() if interactive else None
        self._history = None if self._editor is None else history_file(self._editor)

    def read(self) -> str | None:
        """The next message; None at the end of the input.

        On a terminal Ctrl-C discards what is being typed. Raises KeyboardInterrupt for the second in a row
        with nothing typed between.
        """
        interrupted = False
        while True:
            try:
                return self._message()
            except KeyboardInterrupt:
                typed = self._editor is not None and self._editor.get_line_buffer()
                if not self.interactive or (interrupted and not typed):
                    raise
                interrupted = True
                print("\n(Ctrl-C again or Ctrl-D exits)", file=sys.stderr, flush=True)

    def _message(self) -> str | None:
        text = self._line("> ")
        if text is None:
            return None
        if text.startswith(BLOCK):
            text = text.removeprefix(BLOCK)
            while not text.rstrip().endswith(BLOCK):
                line = self._line(". ")
                if line is None:
                    return text
                text += "\n" + line
            return text.rstrip().removesuffix(BLOCK).strip("\n")
        while text.endswith("\\"):
            text = text[:-1] + "\n" + (self._line(". ") or "")
        return text

    def _line(self, prompt: str) -> str | None:
        """A line of the input without its line break; None at the end of the input."""
        if not self.interactive:
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else None
        try:
            if sys.stdout.isatty():
                return self._remembered(input(prompt))
            print(prompt, end="", file=sys.stderr, flush=True)  # stdout has the answers alone
            return input()
        except EOFError:
            return None

    def _remembered(self, line: str) -> str:
        """The line, which the history file has now."""
        if self._history is not None and self._editor is not None and line.strip():
            with suppress(OSError, ValueError):
                self._editor.append_history_file(1, str(self._history))
        return line


def line_editor() -> Any | None:
    """The module `readline`, with completion and bracketed paste; None on systems without it."""
    try:
        import readline
    except ImportError:  # not on every system
        return None
    from oxillama.apps.cli.chat_commands import completions

    def complete(word: str, n: int) -> str | None:
        if n == 0:
            found[:] = completions(readline.get_line_buffer()[: readline.get_endidx()], word)
        return found[n] if n < len(found) else None

    found: list[str] = []
    is_gnu = "libedit" not in (readline.__doc__ or "")
    readline.set_completer(complete)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete" if is_gnu else "bind ^I rl_complete")
    if is_gnu and os.environ.get("TERM", "dumb") != "dumb":
        readline.parse_and_bind("set enable-bracketed-paste on")
    return readline


def history_file(editor: Any) -> Path | None:
    """The file with the lines of earlier chats, which the editor has read; None if it cannot be used."""
    path = state_folder() / "chat_history"
    with suppress(OSError, ValueError):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        editor.read_history_file(str(path))
        if editor.get_current_history_length() > MOST_LINES:
            editor.set_history_length(MOST_LINES)
            editor.write_history_file(str(path))
            editor.clear_history()
            editor.read_history_file(str(path))
        return path
    return None
