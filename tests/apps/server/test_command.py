"""``oxillama serve``: from the command line to an answer, and to the end."""

from __future__ import annotations

import json
import logging
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oxillama import InferenceEngine, demo
from oxillama.apps.cli import build_parser, main, options, serve
from oxillama.apps.server.callers import Keys
from oxillama.base.config import SchedulerConfig
from oxillama.base.config.server import ServerConfig
from oxillama.base.distribution import install
from tests.support.command_line import command, started


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A process that serves, its address, and the lines it has written so far."""
    lines: list[str] = []
    with started(command("serve", "--port", "0", *arguments), text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if line.startswith("curl"):
                break
        found = re.search(r"is ready at (\S+)", "".join(lines))
        assert found, lines
        yield process, found[1], lines


def post(url: str, body: Any) -> Any:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def test_the_line_that_it_prints_works() -> None:
    with running() as (_, url, lines):
        found = re.fullmatch(r"curl (\S+) -H 'Content-Type: application/json' -d '(.+)'\n", lines[-1])
        assert found and found[1] == f"{url}/v1/completions"
        answer = post(found[1], {**json.loads(found[2]), "seed": 3})
    engine = InferenceEngine.from_gguf(demo.STORY)
    assert answer["model"] == "story"
    assert answer["choices"][0]["text"] == engine.generate("Once upon a time", seed=3, max_tokens=40)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_signals_end_it(number: int, code: int) -> None:
    with running(str(demo.DRAFT), "--alias", "draft") as (process, _, lines):
        assert lines[0].startswith("draft is ready at ")
        process.send_signal(number)
        assert process.wait(60) == code
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_models_of_the_command_line(tmp_path: Path) -> None:
    plain = tmp_path / "plain.gguf"
    plain.symlink_to(demo.DRAFT)
    arguments = ["--model", f"tale={demo.STORY}", "--model", str(plain), "--lora", str(demo.PIRATE)]
    with running(*arguments) as (_, url, lines):
        assert lines[0].startswith("tale is ready at ")
        assert lines[1] == "plain is loaded when it is asked for\n"
        body = {"prompt": "Once upon a time", "max_tokens": 8, "seed": 3}
        for name, engine in (
            ("tale", InferenceEngine.from_gguf(demo.STORY, adapters=str(demo.PIRATE))),
            ("plain", InferenceEngine.from_gguf(demo.DRAFT)),
        ):
            answer = post(f"{url}/v1/completions", {**body, "model": name})
            assert answer["choices"][0]["text"] == engine.generate(body["prompt"], seed=3, max_tokens=8)


def test_options_of_the_models_behind_the_first() -> None:
    flags = ["--tokenizer", "t.json", "--speculate", "draft.gguf", "--packed", "x.packed", "-c", "99"]
    config = options.engine_config(build_parser("serve").parse_args(["serve", *flags, "--lora", "l.gguf"]))
    other = serve.for_others(config)
    assert (other.tokenizer_path, other.speculate, other.packed, other.adapters) == (None, None, "auto", ())
    assert other.context_size == 99
    config = options.engine_config(build_parser("serve").parse_args(["serve", "--speculate", "lookup"]))
    assert serve.for_others(config).speculate == "lookup"


def test_the_memory_that_models_take() -> None:
    args = build_parser("serve").parse_args(["serve", str(demo.STORY), "--models-memory", "1G"])
    (found,) = serve.hosted_models(args, serve.server_config(args))
    with InferenceEngine.from_gguf(demo.STORY) as engine:
        assert found.n_bytes == engine.metrics.snapshot().matrix_bytes > 0


def test_options_reach_the_engine_and_the_server() -> None:
    flags = "--max-waiting 5 --max-sequences 2 --temp 0.5 --api-key k --ping-seconds 3 -c 99 --alias x"
    args = build_parser("serve").parse_args(["serve", *flags.split()])
    assert options.given(args, SchedulerConfig) == {"max_waiting": 5, "max_sequences": 2}
    assert options.engine_config(args).context_size == 99
    assert options.sampler_config(args).temperature == 0.5
    assert serve.server_config(args) == ServerConfig(api_keys=("k",), ping_seconds=3.0, model_name="x")


def test_keys_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys"
    path.write_text("first\n\n second \n")
    args = build_parser("serve").parse_args(["serve", "--api-key", "k", "--api-key-file", str(path)])
    keys = Keys(serve.server_config(args))
    assert all(keys.caller(key) for key in ("k", "first", "second"))
    assert keys.caller("third") is None
    path.write_text("\n")
    for file, message in ((path, "expected a key on a line"), (tmp_path / "none", "cannot be read")):
        assert main(["serve", "--api-key-file", str(file)]) == 2
        told = capsys.readouterr().err
        assert told.startswith("oxillama: error: --api-key-file: ") and message in told


def test_what_cannot_be_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    garbage = tmp_path / "garbage.gguf"
    garbage.write_bytes(b"no model")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for arguments, message in (
            (["--port", str(port)], f"--host, --port: expected a free address, got 127.0.0.1:{port}: "),
            (["--port", "70000"], "port: expected an integer >= 0 and <= 65535, got 70000"),
            ([str(tmp_path / "none.gguf"), "--port", "0"], "none.gguf: "),
            ([str(garbage), "--port", "0"], "garbage.gguf"),
            (["--model", "=x"], "--model: expected NAME=MODEL, got '=x'"),
            (["--model", "\udcff=x"], "--model: expected a name in UTF-8, got '\\udcff'"),
            (["--model", "a=x.gguf", "--alias", "b"], "alias: expected a MODEL without --model"),
            ([str(demo.STORY), "--model", f"story={demo.DRAFT}"], "model: expected another name for each"),
            ([str(demo.STORY), "--models-memory", "9"], "--models-memory: expected at least the "),
        ):
            assert main(["serve", *arguments]) == 2
            told = capsys.readouterr()
            assert told.err.startswith("oxillama: error: ") and message in told.err, told.err
            assert (told.out, told.err.count("\n")) == ("", 1)


def test_the_packages_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    assert main(["serve"]) == 2
    wanted = f"serve: expected the packages of the server ({install('server')}), got none of uvicorn"
    assert wanted in capsys.readouterr().err


@pytest.mark.parametrize("quiet", [True, False])
def test_a_quiet_log_has_warnings_alone(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("oxillama.apps.server")
    with serve.log_on_stderr(quiet):
        log.info("a request")
        log.warning("a fault")
    log.warning("afterwards")
    told = capsys.readouterr().err
    assert ("a request" in told, "a fault" in told, "afterwards" in told) == (not quiet, True, False)


def test_the_address_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    from oxillama.apps.cli import serve

    class Socket(serve.socket.socket):
        own = "192.168.1.5"

        def connect(self, address: object) -> None:
            if not self.own:
                raise OSError("no network")

        def getsockname(self) -> tuple[str, int]:
            return self.own, 0

    monkeypatch.setattr(serve.socket, "socket", Socket)
    for url in ("http://0.0.0.0:8080", "http://[::]:8080"):
        assert serve.address_for_others(url) == "http://192.168.1.5:8080"
    assert serve.address_for_others("https://0.0.0.0:1") == "https://192.168.1.5:1"
    assert serve.address_for_others("http://127.0.0.1:8080") is None
    for own in ("127.0.0.1", ""):
        Socket.own = own
        assert serve.address_for_others("http://0.0.0.0:8080") is None
