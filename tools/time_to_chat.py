"""Measures the seconds from ``pip install`` of a wheel to an answer in three ways.

    python tools/time_to_chat.py dist/NAME.whl [--rounds 3]    # with the Python that the wheel is for

Each round makes a virtual environment, installs the wheel with `EXTRAS`, and asks the demo model in the
terminal, on the web page and by the openai client. PATH has no compiler. After the first round pip has
packages in its cache.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

EXTRAS = "server,terminal"
QUESTION = "Mia and the Golden Drum"
ASK = """
import sys, openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none")
asked = [{"role": "user", "content": sys.argv[2]}]
found = client.chat.completions.create(model=client.models.list().data[0].id, messages=asked, max_tokens=20)
print(found.choices[0].message.content)
"""
INSTALL, CHAT, AGAIN = "pip install", "first answer in the terminal", "second answer"
SERVE, OPENAI, ASKED = "serve, until the page is there", "pip install openai", "answer to openai"
WAYS = {
    "to an answer in the terminal": (INSTALL, CHAT),
    "to the page": (INSTALL, SERVE),
    "to an answer to openai": (INSTALL, SERVE, OPENAI, ASKED),
}
"""The three ways, and the steps of each."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            steps = measure(Path(folder), args.wheel.resolve())
        for name, seconds in (steps | ways(steps)).items():
            print(f"{name:<32} {seconds:6.1f} s", flush=True)
    return 0


def ways(steps: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each row of `WAYS`."""
    return {name: sum(steps[step] for step in way) for name, way in WAYS.items()}


def measure(folder: Path, wheel: Path) -> dict[str, float]:
    """Seconds of each step. Raises SystemExit if a step fails or prints nothing."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PATH"] = str(programs)  # no compiler
    pip = (programs / "python", "-m", "pip", "install", "--disable-pip-version-check", "--only-binary=:all:")

    def run(*command: object, text: str = "") -> None:
        words = [str(word) for word in command]
        done = subprocess.run(
            words, input=text, env=environment, cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode or not done.stdout.strip():
            raise SystemExit(f"{' '.join(words)}: {done.stderr or 'no output'}")

    found = {INSTALL: timed(partial(run, *pip, f"{wheel}[{EXTRAS}]"))}
    chat = partial(run, programs / "oxillama", "chat", "--max-tokens", "20", text=QUESTION)
    found[CHAT] = timed(chat)
    found[AGAIN] = timed(chat)
    address = f"http://127.0.0.1:{free_port()}"
    serve = [str(programs / "oxillama"), "serve", "--port", address.rpartition(":")[2]]
    started = time.monotonic()
    with subprocess.Popen(serve, env=environment, cwd=folder, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(address, server)
            found[SERVE] = time.monotonic() - started
            found[OPENAI] = timed(partial(run, *pip, "openai"))
            found[ASKED] = timed(partial(run, programs / "python", "-c", ASK, address, QUESTION))
        finally:
            server.terminate()
    return found


def timed(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    """Waits until the server sends the page. Raises SystemExit if the server ends before."""
    while True:
        if server.poll() is not None:
            raise SystemExit(f"oxillama serve ended with {server.returncode}")
        try:
            with urllib.request.urlopen(address, timeout=5) as page:
                if b"<html" in page.read():
                    return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
