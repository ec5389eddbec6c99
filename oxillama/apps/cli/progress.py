"""Progress bars on stderr. Each bar disappears at the end of its block."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oxillama import Generation

PREFILL_SECONDS = 1.0
"""A prefill that takes longer than this gets a bar."""
POLL_SECONDS = 0.1


def shows_bars(args: argparse.Namespace) -> bool:
    """Whether bars are shown: never with --quiet, as --progress says, else if stderr is a terminal."""
    if args.quiet:
        return False
    return sys.stderr.isatty() if args.progress is None else bool(args.progress)


def make_bar(doing: str, unit: str, total: int | None = None, **options: Any) -> Any:
    from tqdm import tqdm  # type: ignore[import-untyped]

    return tqdm(total=total, desc=doing, unit=unit, leave=False, file=sys.stderr, **options)


@contextmanager
def loading_bar(path: str, show: bool, doing: str = "loading") -> Iterator[Callable[[str, int], None]]:
    """A bar over the bytes of a model's tensors; yields the engine's ``progress`` callback.

    The callback exists without a bar too: the engine then packs the weights before the text is timed.
    """
    if not show:
        yield lambda name, n_bytes: None
        return
    from oxillama.gguf.model_file import ModelFile

    with ModelFile.open(path) as file:
        left = {name: tensor.nbytes for name, tensor in file.tensors.items()}
    with make_bar(doing, "B", sum(left.values()), unit_scale=True) as bar:

        def loaded(name: str, n_bytes: int) -> None:
            step = min(n_bytes, left[name])  # a tied embedding is loaded twice, as table and as matrix
            left[name] -= step
            bar.update(step)

        yield loaded


@contextmanager
def count_bar(show: bool, doing: str, unit: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar over chunks or rounds; yields a callback for (done, total), or None without a bar."""
    if not show:
        yield None
        return
    with make_bar(doing, unit) as bar:

        def progress(done: int, total: int) -> None:
            bar.n, bar.total = done, total
            bar.refresh()

        yield progress


@contextmanager
def prefill_bar(generation: Generation, show: bool) -> Iterator[None]:
    """A bar over the tokens of a prompt while the block waits for the first piece of text."""
    if not show:
        yield
        return
    is_done = threading.Event()

    def watch() -> None:
        if is_done.wait(PREFILL_SECONDS):
            return
        with make_bar("prefill", " tokens", generation.prefill_total) as bar:
            while True:
                bar.n = generation.prefill_progress
                bar.refresh()
                if is_done.wait(POLL_SECONDS):
                    return

    thread = threading.Thread(target=watch, name="watch prefill", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
