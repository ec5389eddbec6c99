"""Runs the command line as a user does: in a process of its own, over pipes and a terminal.

`run` forks that process from one that has imported the library already (`fork_server`).
"""

from __future__ import annotations

import atexit
import functools
import io
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oxillama import InferenceEngine, Receipt
from tests.support.fork_server import ForkServer
from tests.support.paths import ROOT

COMMANDS = (
    *(
        "run", "demo", "chat", "decide", "calibrate", "verify", "replay", "sign", "fingerprint", "info",
        "snapshot",
    ),
    *("tokenize", "quantize", "imatrix", "pack", "convert", "pull", "list", "rm", "serve", "batch", "bench"),
    *("perplexity", "compare", "eval", "doctor"),
)  # fmt: skip
PROMPT = "once upon a time"
SUMMARY = re.compile(
    r"prefill (\d+) tokens(, [\d.]+ tokens/s)? \| decode (\d+) tokens(, [\d.]+ tokens/s)? "
    r"\| finish (\w+) \| seed (\d+)"
)
INHERITED = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OXILLAMA_"))}
ENVIRONMENT = {**INHERITED, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": os.devnull}  # no history is kept

Text = str | bytes


def command(*args: Text | Path) -> list[str | bytes]:
    return [sys.executable, "-m", "oxillama", *(str(a) if isinstance(a, Path) else a for a in args)]


@contextmanager
def started(line: Sequence[Text], **how: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process whose stderr can be read, unless ``how`` says something else; it is killed at the end."""
    usual = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "env": ENVIRONMENT}
    process = subprocess.Popen(line, **{**usual, **how})
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


@functools.cache
def fork_server() -> ForkServer:
    server = ForkServer(ENVIRONMENT)
    atexit.register(server.close)
    return server


def run(*args: Text | Path, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    line = command(*args)
    if environment or not hasattr(os, "fork"):
        return subprocess.run(
            line, input=stdin, capture_output=True, timeout=60, env={**ENVIRONMENT, **environment}
        )
    return subprocess.CompletedProcess(line, *fork_server().run(line[3:], stdin, seconds=60))


def output(*args: Text | Path, stdin: bytes = b"") -> str:
    """The stdout of a command that must succeed."""
    done = run(*args, stdin=stdin)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def error(*args: Text | Path, stdin: bytes = b"", **environment: str) -> str:
    """The one line on stderr of a command that must fail, and write nothing else."""
    done = run(*args, stdin=stdin, **environment)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == b""
    text = done.stderr.decode()
    assert text.startswith("oxillama: error: "), text
    assert text.count("\n") == 1, text
    assert text.endswith("\n")
    return text


def called(*args: object) -> int:
    """The exit code of a command that runs in this process."""
    from oxillama.apps.cli import main

    return main([str(arg) for arg in args])


def printed(capsys: pytest.CaptureFixture[str], *args: object, code: int = 0) -> str:
    """`output`, in this process."""
    capsys.readouterr()  # of earlier commands
    found = called(*args)
    told = capsys.readouterr()
    assert found == code, told.err
    return told.out


def refused(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """`error`, in this process."""
    capsys.readouterr()  # of earlier commands
    code = called(*args)
    told = capsys.readouterr()
    assert (code, told.out) == (2, ""), told.err
    assert told.err.startswith("oxillama: error: ") and told.err.count("\n") == 1, told.err
    return told.err


def save_receipt(engine: InferenceEngine, path: Path, **options: Any) -> Receipt:
    """Writes the receipt of a text."""
    receipt = engine.stream("the fox", receipt=True, **options).result().receipt
    assert receipt is not None
    receipt.save(path)
    return receipt


def facts_of(done: subprocess.CompletedProcess[bytes]) -> tuple[str, ...]:
    """Prompt tokens, decoded tokens, finish reason, seed."""
    found = SUMMARY.fullmatch(done.stderr.decode().strip())
    assert found, done.stderr
    return found[1], found[3], found[5], found[6]


has_terminals = pytest.mark.skipif(sys.platform == "win32", reason="has no pseudo-terminals")


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, *args: Text | Path, term: str = "dumb") -> None:
        import pty

        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, command(*args), {**ENVIRONMENT, "TERM": term})
        self.seen = ""

    def send(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def expect(self, pattern: str, seconds: float = 60) -> str:
        """Reads until what is new matches; returns it."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen, re.DOTALL)):
            if not select.select([self.fd], [], [], max(0, end - time.monotonic()))[0]:
                pytest.fail(f"{pattern!r} did not come: {self.seen[-500:]!r}")
            try:
                self.seen += os.read(self.fd, 65536).decode("utf-8", "replace")
            except OSError:
                pytest.fail(f"{pattern!r} did not come before the end: {self.seen[-500:]!r}")
        text, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return text

    def exit_code(self, seconds: float = 60, *, interrupting: bool = False) -> int:
        """Waits for the end; ``interrupting`` presses Ctrl-C until it comes.

        Once is not enough: CPython does not see a signal just before it waits for a line.
        """
        end = pressed = time.monotonic()
        end += seconds
        while (now := time.monotonic()) < end:
            if interrupting and now >= pressed:
                self.send("\x03")
                pressed = now + 1
            try:
                if select.select([self.fd], [], [], 0.2)[0] and not os.read(self.fd, 65536):
                    break
            except OSError:  # how Linux says that the other side is gone
                break
        else:
            os.kill(self.pid, signal.SIGKILL)
            pytest.fail("the process did not end")
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
