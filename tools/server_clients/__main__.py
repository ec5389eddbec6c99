"""Runs well-known clients against the server: chats, streams, tools, schemas, embeddings, disconnects.

    python tools/server_clients [--client NAME ...] [--url URL --model NAME]

A client is a Python package, or requests in the form of an editor's. A client that is not installed is
reported and skipped. Without a URL a server is started with a small model of random weights, whose chat
template has tools: grammars make its answers and calls valid. With a URL the checks use the server there,
whose model needs a chat template with tools; then this project need not be installed, and each client can
have its own environment. The exit code is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from tools.server_clients import agents, chains, editors, vendors
from tools.server_clients.checks import CHECKS, MODULES, Server

FILES = (vendors, chains, agents, editors)
"""The modules of checks. Their imports fill `CHECKS`."""


@contextmanager
def own_server() -> Iterator[Server]:
    """Starts a server in a child process."""
    from tests.support.tiny_file import write_tiny_model
    from tests.support.tool_models import AS_IT_IS

    # random weights do not end their reasoning before the context is full
    template = re.sub(r"{% if m.reasoning_content.*?{% endif %}", "", AS_IT_IS, flags=re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(Path(folder) / "tiny.gguf", chat_template=template, ends=False)
        command = [sys.executable, "-m", "oxillama", "serve", str(model), "--port", "0", "-t", "1"]
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
        )
        assert process.stderr is not None
        try:
            text = ""
            while not (ready := re.search(r"is ready at (http://\S+)", text)):
                line = process.stderr.readline()
                assert line, f"the server has ended: {text}"
                text += line
            log = Path(folder) / "log"
            with log.open("w") as file:
                reader = subprocess.Popen(["cat"], stdin=process.stderr, stdout=file)
                yield Server(ready[1], "tiny")
        finally:
            process.terminate()
            process.wait()
            reader.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--client", action="append", choices=CHECKS, metavar="NAME", help="(default: all)")
    parser.add_argument("--url", help="of a server; without it one is started")
    parser.add_argument("--model", help="what the server at the URL calls its model")
    args = parser.parse_args()
    if (args.url is None) != (args.model is None):
        parser.error("--url and --model: expected both or none")
    if args.url is not None:
        return run(Server(args.url.rstrip("/"), args.model), args.client)
    with own_server() as server:
        return run(server, args.client)


def run(server: Server, clients: list[str] | None) -> int:
    """Runs the checks of clients, of all clients for None. Returns 1 if a check fails."""
    failed = 0
    for client in clients or CHECKS:
        module = MODULES.get(client, client.replace("-", "_"))
        if module and find_spec(module.partition(".")[0]) is None:
            print(f"{client}: is not installed")
            continue
        print(f"{client} {metadata.version(client) if module else ''}".rstrip())
        for what, test in CHECKS[client].items():
            begun = time.perf_counter()
            try:
                test(server)
            except Exception:
                failed += 1
                print(f"  {what}: FAILED\n{traceback.format_exc(limit=-4)}", flush=True)
            else:
                print(f"  {what}: good, {time.perf_counter() - begun:.1f} s", flush=True)
    print(f"{failed} failed" if failed else "all good")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
