"""The program of a process for jobs: it reads jobs from its stdin, and writes their results.

Such a process ends when its stdin does: with the server, also where that was killed.
"""

from __future__ import annotations

import gc
import mmap
import os
import queue
import signal
import struct
import sys
import threading
from collections.abc import Sequence
from typing import IO, Any

from oxillama.apps.server.pieces import cut, joined
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.tokenizer.encoder import VocabularyEncoder
from oxillama.text.tokenizer.vocabulary import Vocab

NICE = 5
"""The niceness of a process for jobs: it gets a quarter of a core on which a kernel runs."""

MOST_BYTES = 1 << 29
"""Memory with which a process is not used again."""

TOKENIZERS: dict[int, TokenizerBridge] = {}
"""Tokenizers that the server has sent, by its numbers."""

COUNT, SIZE = struct.Struct("<I"), struct.Struct("<Q")


def write(file: IO[bytes], pieces: Sequence[bytes]) -> None:
    """Writes pieces with their sizes. Raises OSError."""
    file.write(COUNT.pack(len(pieces)) + b"".join([SIZE.pack(len(piece)) for piece in pieces]))
    for piece in pieces:
        file.write(piece)
    file.flush()


def read(file: IO[bytes]) -> list[bytes]:
    """The pieces that `write` has written. Raises EOFError, OSError."""
    (n,) = COUNT.unpack(exactly(file, COUNT.size))
    sizes = [size for (size,) in SIZE.iter_unpack(exactly(file, n * SIZE.size))]
    return [exactly(file, size) for size in sizes]


def exactly(file: IO[bytes], n: int) -> bytes:
    """The next ``n`` bytes. Raises EOFError if the file ends before."""
    data = file.read(n)
    if len(data) < n:
        raise EOFError
    return data


def keep_tokenizer(number: int, vocab: Vocab, encoder: Any, templates: dict[str, str]) -> None:
    """Keeps a tokenizer for further jobs; an encoder of None becomes the vocabulary's own."""
    TOKENIZERS[number] = TokenizerBridge(vocab, encoder or VocabularyEncoder(vocab), templates)


def forget_tokenizer(number: int) -> None:
    """Frees a tokenizer that no job will need."""
    TOKENIZERS.pop(number, None)


def plain_error(error: BaseException) -> tuple[Any, ...]:
    """An error as values that can be pickled, whatever its class asks for."""
    return type(error), error.args, {name: value for name, value in vars(error).items() if name[:2] != "__"}


def error_of(kind: type[BaseException], arguments: tuple[Any, ...], facts: dict[str, Any]) -> BaseException:
    """The error that `plain_error` described."""
    is_builtin = kind.__module__ == "builtins"  # these may ask for their arguments, and have no other facts
    error = kind(*arguments) if is_builtin else kind.__new__(kind, *arguments)
    vars(error).update(facts)
    return error


def answer(job: list[bytes]) -> list[bytes]:
    """The outcome of a job, in pieces: whether it succeeded, its result or error, and whether to continue."""
    try:
        function, arguments = joined(job, lambda name: TOKENIZERS[name[1]])
        found, is_good = function(*arguments), True
    except Exception as error:
        found, is_good = plain_error(error), False
    try:
        return cut((is_good, found, memory() < MOST_BYTES))
    except Exception as error:  # a value that cannot be pickled
        return cut((False, (type(error), (str(error),), {}), True))


def memory() -> int:
    """Bytes of memory that this process has; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def give_way() -> None:
    """Lowers this process's priority, in the usual class: a real-time class ignores `NICE`."""
    if hasattr(os, "sched_setscheduler") and os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    if hasattr(os, "nice"):
        os.nice(NICE)


def main() -> None:
    """Runs jobs until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    give_way()
    gc.disable()  # a job is short, and nothing but its result outlives it
    jobs: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a job prints is no result

    def listen() -> None:
        try:
            while True:
                jobs.put(read(sys.stdin.buffer))
        except (EOFError, OSError):
            os._exit(0)  # also in the middle of a job

    threading.Thread(target=listen, daemon=True).start()
    while True:
        write(results, answer(jobs.get()))
        gc.collect()
        gc.freeze()  # what is kept now is kept for further jobs: the next collection is short
