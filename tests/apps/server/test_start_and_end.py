"""The beginning and the end of `oxillama serve`: signals, the Unix socket, and a log that nobody reads."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from oxillama import ConfigError, demo
from oxillama.apps.cli.patient_streams import MOST_CHARS, PatientStream
from oxillama.apps.server.listening import listener, remove_dead
from oxillama.base.config.server import ServerConfig
from tests.support import command_line
from tests.support.command_line import command
from tests.support.spread import few, slow
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals and Unix sockets")

MOMENTS = ("package", "imports", "models", "bound")
"""When signals come: the package, all modules, or the names of models are known, or the socket is bound."""

PROGRAM = """
import os, sys
sys.argv = {arguments!r}
def send(moment):
    for number in {numbers!r} if moment in {moments!r} else ():
        os.kill(os.getpid(), number)
import oxillama
send("package")
from oxillama.apps.cli import main, serve
send("imports")
real = serve.hosted_models
def hosted_models(*arguments):
    found = real(*arguments)
    send("models")
    from oxillama.apps.server import listening
    class Listening(listening.Listening):
        def run(self):
            send("bound")
            super().run()
    listening.Listening = Listening
    return found
serve.hosted_models = hosted_models
sys.exit(main())
"""


def program(path: Path, numbers: list[int], moments: tuple[str, ...], *more: str) -> list[str]:
    """A command that serves, and sends itself signals while it starts."""
    arguments = ["oxillama", "serve", str(demo.DRAFT), "--unix-socket", str(path), *more]
    numbers = [int(number) for number in numbers]
    return [sys.executable, "-c", PROGRAM.format(arguments=arguments, numbers=numbers, moments=moments)]


started = partial(command_line.started, start_new_session=True)


def serving_at(path: Path, *more: str) -> list[str]:
    return [*map(str, command("serve", str(demo.DRAFT), "--unix-socket", str(path), *more))]


def answers(path: Path, target: str = "/health") -> bool:
    """Whether a server at a Unix socket answers."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(path))
        client.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return client.recv(65536).startswith(b"HTTP/1.1 ")
    return False


# --- signals ------------------------------------------------------------------------------------------


def test_signals_that_come_while_it_starts_do_not_end_it(tmp_path: Path) -> None:
    keys, path = tmp_path / "keys", tmp_path / "socket"
    keys.write_text("k\n")
    numbers = [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
    with started(program(path, numbers, MOMENTS, "--api-key-file", str(keys))) as process:  # type: ignore[arg-type]
        until(lambda: answers(path) or process.poll() is not None)
        for number in numbers:
            process.send_signal(number)
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        written: list[bytes] = []

        def n_read() -> int:
            written.append(process.stderr.read() or b"")  # type: ignore[union-attr]
            return b"".join(written).count(b"1 keys were read")

        until(lambda: n_read() == 2)
        assert answers(path)
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
        assert n_read() == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
@pytest.mark.parametrize("moment", few(MOMENTS, ("package", "bound")))
def test_signals_that_end_it_while_it_starts(tmp_path: Path, number: int, code: int, moment: str) -> None:
    path = tmp_path / "socket"
    with started(program(path, [number], (moment,))) as process:
        assert process.wait(60) == code
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    assert not path.exists()


@pytest.mark.parametrize(("number", "code"), [slow((signal.SIGINT, 130)), (signal.SIGTERM, -signal.SIGTERM)])
def test_the_socket_goes_with_the_server(tmp_path: Path, number: int, code: int) -> None:
    path = tmp_path / "socket"
    with started(serving_at(path)) as process:
        until(lambda: answers(path))
        with started(serving_at(path)) as second:  # the first one runs
            assert second.wait(60) == 2
            assert second.stderr is not None and b"expected a free path" in second.stderr.read()
        assert answers(path)
        process.send_signal(number)
        assert process.wait(60) == code
    assert not path.exists()


def test_a_socket_of_a_server_that_was_killed_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with started(serving_at(path)) as process:
        until(lambda: answers(path))
        process.kill()
        process.wait(60)
    assert path.exists()
    with started(serving_at(path)):
        until(lambda: answers(path))


def test_sockets_of_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    config = ServerConfig(unix_socket=path)
    with listener(config):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as later:
            later.bind(str(path))
            later.listen(0)
            waiting = []
            for _ in range(4):  # its backlog is full: it accepts nobody
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                with suppress(BlockingIOError):
                    waiting[-1].connect(str(path))
            began = time.monotonic()
            remove_dead(str(path))
            assert path.exists() and time.monotonic() - began < 60
            with pytest.raises(ConfigError, match="expected a free path"), listener(config):
                raise AssertionError
            for each in waiting:
                each.close()
    assert path.exists()
    path.unlink()
    path.write_text("a file")
    remove_dead(str(path))
    assert path.read_text() == "a file"


# --- the log ------------------------------------------------------------------------------------------


def test_a_log_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with started(serving_at(path)) as process:
        until(lambda: answers(path))
        for _ in range(150):  # 300 kB, of which a pipe holds 64
            assert answers(path, "/" + "x" * 2000)
        assert answers(path)
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
    assert not path.exists()


def test_lines_that_are_dropped_are_counted() -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reader, os.fdopen(write, "w", errors="backslashreplace") as writer:
        stream = PatientStream(writer)
        line = "x" * 999 + "\n"
        n = 2 * MOST_CHARS // len(line)
        for _ in range(n):
            assert stream.write(line) == len(line)
        assert not stream.drain(0.1)
        found = b""
        while b"dropped" not in found or not found.endswith(b"\n"):
            found += os.read(reader.fileno(), 65536)
        *kept, note = found.decode().splitlines()
        assert set(kept) == {line.strip()}
        assert note == f"{n - len(kept)} lines of the log were dropped: nobody read them in time"
        assert stream.drain(20)
        stream.write("ü\udcff\n")
        assert os.read(reader.fileno(), 100) == "ü\\udcff\n".encode()


def test_a_log_whose_reader_has_gone_stops_nothing() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as writer:
        stream = PatientStream(writer)
        os.close(read)
        for _ in range(1000):
            stream.write("x" * 10_000 + "\n")
        assert stream.drain(20)
