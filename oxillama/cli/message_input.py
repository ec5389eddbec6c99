"""The user's messages, from a terminal or a pipe: single lines, continued lines, blocks and pastes."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

BLOCK = '"""'


class MessageInput:
    """Reads messages.

    A line that ends in a backslash continues in the next line. A line that starts with three quotation marks
    starts a block, which ends with the next line that ends in three. On a terminal with bracketed paste,
    pasted lines are one message.

    Parameters
    ----------
    interactive : whether stdin is a terminal, which shows a prompt and has a line editor.
    """

    def __init__(self, interactive: bool) -> None:
        self.interactive = interactive
        if interactive:
            with suppress(ImportError):  # not on every system
                import readline

                is_gnu = "libedit" not in (readline.__doc__ or "")
                if is_gnu and os.environ.get("TERM", "dumb") != "dumb":
                    readline.parse_and_bind("set enable-bracketed-paste on")

    def read(self) -> str | None:
        """The next message; None at the end of the input.

        On a terminal Ctrl-C discards what is being typed. Raises KeyboardInterrupt for the second in a row.
        """
        interrupted = False
        while True:
            try:
                return self._message()
            except KeyboardInterrupt:
                if interrupted or not self.interactive:
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
        """One line without its end; None at the end of the input."""
        if not self.interactive:
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else None
        try:
            if sys.stdout.isatty():
                return input(prompt)
            print(prompt, end="", file=sys.stderr, flush=True)  # stdout has the answers alone
            return input()
        except EOFError:
            return None
