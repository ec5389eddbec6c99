"""An answer on the terminal: its text as it is made, its reasoning in one dim line, a summary."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
import unicodedata
from typing import TYPE_CHECKING

from oxillama.apps.cli.generate import summary
from oxillama.apps.cli.progress import prefill_bar, shows_bars
from oxillama.apps.cli.terminal import MarkdownView, PlainView, has_colours, is_terminal, new_view, styled
from oxillama.base.events import ReasoningPart, TextPart
from oxillama.errors import OxiLlamaError

if TYPE_CHECKING:
    from oxillama import Generation

REFRESH_SECONDS = 0.1


def show_answer(generation: Generation, args: argparse.Namespace) -> bool:
    """Writes the answer as it is made, with --verbose a summary, too. Returns whether Ctrl-C ended it."""
    interrupted, view = False, None
    line, events = ReasoningLine(generation, args.quiet), generation.events()
    try:
        with prefill_bar(generation, shows_bars(args)):
            event = next(events, None)
        while event is not None:
            if isinstance(event, ReasoningPart):
                line.add(event.text)
            elif isinstance(event, TextPart):
                line.end()
                view = view or opened(args)
                view.add(event.text)
            event = next(events, None)
    except KeyboardInterrupt:
        interrupted = True
        generation.close()
    except OxiLlamaError as error:
        line.end()
        close(view, error)  # the error has its own line
        raise
    except BaseException as error:
        close(view, error)
        raise
    line.end()
    close(view)
    if args.verbose:
        text = summary(generation, interrupted)
        print(styled(text, "dim", sys.stderr), file=sys.stderr, flush=True)
    return interrupted


def opened(args: argparse.Namespace) -> PlainView | MarkdownView:
    """The view of an answer that begins."""
    return new_view(args.markdown).__enter__()


def close(view: PlainView | MarkdownView | None, error: BaseException | None = None) -> None:
    """Ends a view, or the empty line of an answer without text."""
    if view is None:
        view = PlainView().__enter__()
    view.__exit__(None if error is None else type(error), error, None)


class ReasoningLine:
    """Reasoning on stderr: on a terminal one line, in which new words replace the old ones.

    Args:
        generation: whose tokens are counted.
        quiet: whether nothing is shown.
    """

    def __init__(self, generation: Generation, quiet: bool) -> None:
        self.generation: Generation = generation
        self.quiet: bool = quiet
        self.text: str = ""
        self.n_tokens: int = 0
        self.begun: float = 0.0
        self.shown_at: float = 0.0
        self.is_live: bool = not quiet and is_terminal(sys.stderr) and has_colours(sys.stderr)

    def add(self, text: str) -> None:
        """The next piece."""
        now = time.monotonic()
        self.begun = self.begun or now
        self.text += text
        self.n_tokens = len(self.generation.tokens)
        if self.is_live and now - self.shown_at >= REFRESH_SECONDS:
            self.shown_at = now
            width = shutil.get_terminal_size().columns - len("thinking: ") - 1
            self._write(f"\r\x1b[K{styled('thinking: ' + last_columns(self.text, width), 'dim', sys.stderr)}")

    def end(self) -> None:
        """Folds the line; a second call does nothing."""
        if not self.begun:
            return
        seconds, self.begun = time.monotonic() - self.begun, 0.0
        folded = f"thought for {self.n_tokens} tokens, {seconds:.1f} s"
        if not self.quiet:
            start = "\r\x1b[K" if self.is_live else ""
            self._write(f"{start}{styled(folded, 'dim', sys.stderr)}\n")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def last_columns(text: str, width: int) -> str:
    """The end of a text in one line of at most so many columns."""
    line, n = " ".join("".join(c if c.isprintable() else " " for c in text[-4 * width :]).split()), 0
    for i in range(len(line) - 1, -1, -1):
        n += 2 if unicodedata.east_asian_width(line[i]) in "WF" else 1
        if n > width:
            return line[i + 1 :]
    return line
