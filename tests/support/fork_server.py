"""A process that has imported the command line and forks a child for each command.

Imports take most of the time of a command. A child runs ``python -m oxillama`` with modules that are imported
already, and with arguments, a working directory and pipes of its own; it ends as every interpreter ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

MODULES = (
    "jinja2",
    "numpy",
    "tokenizers",
    "tqdm",
    "oxillama.apps.cli",
    "oxillama.apps.quantize",
    "oxillama.apps.convert",
)
MESSAGE = 1 << 20  # bytes, at most


class ForkServer:
    """Runs commands in children of a process of its own, one at a time."""

    def __init__(self, environment: dict[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket, self._lock = ours, threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,  # pipes, as its children have: Python asks what a stream is only once
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=environment,
            )

    def run(self, args: Sequence[str | bytes], stdin: bytes, seconds: float) -> tuple[int, bytes, bytes]:
        """Exit code, stdout and stderr of ``python -m oxillama`` with these arguments.

        Raises subprocess.TimeoutExpired, after killing the child, if it takes longer.
        """
        with self._lock:
            pipes = [os.pipe() for _ in range(3)]
            (in_read, in_write), (out_read, out_write), (err_read, err_write) = pipes
            theirs = (in_read, out_write, err_write)
            request = json.dumps([os.getcwd(), [os.fsdecode(arg) for arg in args]])
            socket.send_fds(self._socket, [request.encode()], theirs)
            for end in theirs:
                os.close(end)
            found: dict[int, bytes] = {}
            readers = [threading.Thread(target=read, args=(found, fd)) for fd in (out_read, err_read)]
            writer = threading.Thread(target=write, args=(in_write, stdin))
            for thread in (*readers, writer):
                thread.start()
            child = int(self._socket.recv(MESSAGE))
            self._socket.settimeout(seconds)
            try:
                status = int(self._socket.recv(MESSAGE))
            except TimeoutError:
                os.kill(child, signal.SIGKILL)
                self._socket.settimeout(None)
                self._socket.recv(MESSAGE)
                raise subprocess.TimeoutExpired(list(args), seconds) from None
            finally:
                self._socket.settimeout(None)
                for thread in (*readers, writer):
                    thread.join()
            return os.waitstatus_to_exitcode(status), found[out_read], found[err_read]

    def close(self) -> None:
        self._socket.close()
        self._process.communicate()


def read(found: dict[int, bytes], fd: int) -> None:
    with open(fd, "rb") as file:
        found[fd] = file.read()


def write(fd: int, data: bytes) -> None:
    try:
        with open(fd, "wb", buffering=0) as file:
            while data:
                data = data[file.write(data) :]
    except BrokenPipeError:
        pass  # it reads no further


def serve(connection: socket.socket) -> None:
    """Forks until the other side is closed; returns in the parent, ends in a child."""
    for module in MODULES:
        importlib.import_module(module)
    import oxillama

    for name in oxillama.__all__:
        getattr(oxillama, name)
    gc.collect()
    gc.freeze()  # a child neither visits nor copies what was imported
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, MESSAGE, 3)
        if not request:
            return
        child = os.fork()
        if not child:
            connection.close()
            for i, descriptor in enumerate(descriptors):
                os.dup2(descriptor, i)
                os.close(descriptor)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            folder, arguments = json.loads(request)
            os.chdir(folder)
            sys.argv[1:] = arguments
            runpy.run_module("oxillama", run_name="__main__", alter_sys=True)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(b"%d" % child)
        connection.send(b"%d" % os.waitpid(child, 0)[1])


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
