"""What no command can use ends in exit code 2 and one line that says why."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oxillama import demo
from oxillama.apps.cli import build_parser, main, options
from tests.support.command_line import COMMANDS, ENVIRONMENT, ROOT, command, refused, run

Arguments = Callable[[Path, Path], list[object]]


def request(out: Path) -> Path:
    """A file with a request, beside an output."""
    path = Path(f"{out}.request.json")
    path.write_text('{"state": "x", "questions": {"q": {"type": "noul", "instructions": "?"}}}')
    return path


INPUTS: dict[str, Arguments] = {
    "run": lambda path, out: ["run", path, "-p", "x"],
    "run, prompt": lambda path, out: ["run", demo.DRAFT, "-f", path / "x"],
    "run, grammar": lambda path, out: ["run", demo.DRAFT, "-p", "x", "--grammar", path],
    "run, schema": lambda path, out: ["run", demo.DRAFT, "-p", "x", "--json-schema", path],
    "run, tokenizer": lambda path, out: ["run", demo.DRAFT, "-p", "x", "--tokenizer", path],
    "chat": lambda path, out: ["chat", path],
    "chat, template": lambda path, out: ["chat", demo.DRAFT, "--chat-template", path / "x"],
    "decide": lambda path, out: ["decide", path, request(out)],
    "decide, requests": lambda path, out: ["decide", demo.DRAFT, path],
    "decide, calibration": lambda path, out: ["decide", demo.DRAFT, request(out), "--calibration", path],
    "calibrate": lambda path, out: ["calibrate", path, request(out), "-o", out],
    "calibrate, requests": lambda path, out: ["calibrate", demo.DRAFT, path, "-o", out],
    "verify": lambda path, out: ["verify", path, "--model", demo.DRAFT],
    "replay": lambda path, out: ["replay", "x", "--record", path],
    "fingerprint": lambda path, out: ["fingerprint", path],
    "fingerprint, compare": lambda path, out: ["fingerprint", demo.DRAFT, "--compare", path],
    "sign": lambda path, out: ["sign", demo.DRAFT, "--key", path, "-o", f"{out}.jsonl"],
    "perplexity": lambda path, out: ["perplexity", path, demo.HELDOUT],
    "perplexity, text": lambda path, out: ["perplexity", demo.DRAFT, path],
    "compare": lambda path, out: ["compare", demo.DRAFT, path, "--text", demo.HELDOUT],
    "compare, text": lambda path, out: ["compare", demo.DRAFT, demo.DRAFT, "--text", path],
    "eval": lambda path, out: ["eval", path, "--tasks", "x"],
    "info": lambda path, out: ["info", path],
    "snapshot": lambda path, out: ["snapshot", path],
    "tokenize": lambda path, out: ["tokenize", path, "x"],
    "quantize": lambda path, out: ["quantize", path, out, "Q8_0"],
    "quantize, imatrix": lambda path, out: ["quantize", demo.DRAFT, out, "Q4_0", "--imatrix", path],
    "imatrix": lambda path, out: ["imatrix", path, demo.HELDOUT, "-o", out],
    "imatrix, text": lambda path, out: ["imatrix", demo.DRAFT, path, "-o", out],
    "pack": lambda path, out: ["pack", path, "-o", out],
    "convert": lambda path, out: ["convert", path, out],
    "batch, model": lambda path, out: ["batch", demo.HELDOUT, out, "-m", path],
    "pull": lambda path, out: ["pull", path],
    "rm": lambda path, out: ["rm", path],
    "bench": lambda path, out: ["bench", path],
    "bench, compare": lambda path, out: ["bench", demo.DRAFT, "--compare", path],
}
"""A command line for each file that a command reads."""

OUTPUTS: dict[str, Arguments] = {
    "run, receipt": lambda path, out: ["run", demo.DRAFT, "-p", "x", "-n", "1", "--receipt", path],
    "quantize": lambda path, out: ["quantize", demo.DRAFT, path, "Q4_0", "--allow-requantize"],
    "imatrix": lambda path, out: ["imatrix", demo.DRAFT, demo.HELDOUT, "-o", path, "--chunks", "1"],
    "bench": lambda path, out: ["bench", demo.DRAFT, "--json", path, "--rounds", "1"],
}
"""The same for each file that a command writes."""

MODELLESS = ("demo", "doctor", "list", "serve")


def test_every_command_that_reads_a_file_is_tried() -> None:
    assert {name.split(",")[0] for name in INPUTS} == set(COMMANDS) - set(MODELLESS)


@pytest.mark.parametrize("kind", ["absent", "directory", "empty", "garbage", "surrogate", "long"])
@pytest.mark.parametrize("name", INPUTS)
def test_input_that_cannot_be_used(
    name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / {"surrogate": "\udcff", "long": "x" * 300}.get(kind, kind)
    if kind == "directory":
        path.mkdir()
    if kind in ("empty", "garbage"):
        path.write_bytes(b"" if kind == "empty" else b"\xff\xfe{]" * 100)
    refused(capsys, *INPUTS[name](path, tmp_path / "out.gguf"))
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("name", OUTPUTS)
def test_output_that_cannot_be_written(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "absent" / "x", demo.DRAFT / "x"):
        refused(capsys, *OUTPUTS[name](path, path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_options_that_do_not_exist(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    positional = () if name in MODELLESS else ("x",)
    assert " --help)" in refused(capsys, name, *positional, "--nonsense\n")


def numbers_of(name: str) -> list[argparse.Action]:
    """The options of a command that take a number."""
    commands = next(
        each for each in build_parser()._actions if each.dest == argparse.SUPPRESS and each.choices
    )
    kinds = (options.integer, options.number, options.byte_count)
    return [each for each in commands.choices[name]._actions if each.option_strings and each.type in kinds]


SHORT_RUNS = {"run": ("-n", "1"), "chat": ("x", "-n", "1"), "demo": ("-n", "1"), "bench": ("--rounds", "1")}
WITH_NUMBERS = ("run", "demo", "perplexity", "compare", "imatrix", "info", "quantize", "bench")


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_a_number_out_of_range_is_named_by_its_flag(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    line = ["demo"] if name == "demo" else INPUTS[name](demo.DRAFT, tmp_path / "out.gguf")
    refused = 0
    for option in numbers_of(name):
        values = [*map(str, line), *SHORT_RUNS.get(name, ()), f"{option.option_strings[-1]}=-7"]
        if option.dest in ("frequency_penalty", "presence_penalty"):
            continue  # any number is in range
        code, said = main(values), capsys.readouterr().err
        flags = tuple(f"oxillama: error: {flag}" for flag in option.option_strings)
        assert code == 2 and said.startswith(flags), f"{option.dest}: {said}"
        refused += 1
    assert refused


def test_errors_and_warnings_name_all_options_by_their_flags(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["batch", "in.jsonl", "out.jsonl", "-m", str(demo.DRAFT), "--actors", "2"]
    assert "error: --actors, --per-machine: expected --ray" in refused(capsys, *line)
    line = ["run", str(demo.DRAFT), "-p", "x", "--greedy", "--temp", "0.5"]
    assert "cannot be combined with --temp" in refused(capsys, *line)
    main(["info", str(demo.STORY), "--offload-pinned", "nothing"])
    assert "error: --offload-pinned: expected names" in capsys.readouterr().err


def test_an_error_with_more_than_a_message_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A field of a request that is wrong: `WireError` takes a place and a message."""
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('[{"ph": 1}]')
    said = refused(capsys, "calibrate", demo.DRAFT, wrong, "-o", tmp_path / "out.json")
    assert "line[1]: must be an object" in said


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in (*MODELLESS, "chat")])
def test_arguments_that_are_missing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, name)
    assert "required" in said or "MODEL: expected a model" in said


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["bench", "--help"], ["doctor"], ["info", demo.DRAFT], ["run", demo.DRAFT, "-p", "x"]],
)
def test_a_full_disk(arguments: list[str | Path]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command(*arguments), stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT)
    assert (done.returncode, done.stderr) == (2, b"oxillama: error: output: No space left on device\n")


@pytest.mark.parametrize("name", ["demo", "doctor"])
def test_streams_that_are_closed(name: str) -> None:
    line = f'exec "{sys.executable}" -m oxillama {name} <&- 2>&-'
    done = subprocess.run(["sh", "-c", line], stdout=subprocess.PIPE, env=ENVIRONMENT)
    assert done.returncode == 0
    assert done.stdout


def test_warnings_are_one_line_even_as_errors() -> None:
    arguments = ("run", demo.DRAFT, "-p", "x", "-n", "1", "-c", "5000")
    told = run(*arguments).stderr
    assert told.startswith(b"oxillama: warning: --context-size: 5000 is more than the 512")
    assert told.count(b"\n") == 2  # and the summary
    done = run(*arguments, PYTHONWARNINGS="error::UserWarning")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert done.stderr.startswith(b"oxillama: error: --context-size: 5000 is more than the 512")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A source tree that is not built."""
    if not (ROOT / "oxillama").is_dir():
        pytest.skip("the package is not that of a checkout")
    names = ("oxillama", "benchmarks") if (ROOT / "benchmarks").is_dir() else ("oxillama",)
    for name in names:
        no_code = shutil.ignore_patterns("*.so", "*.pyd", "*.gguf", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=no_code)
    return tmp_path


def test_a_source_tree_that_is_not_built_says_what_to_do(sources: Path) -> None:
    advice = "the kernels are not built in"
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONPATH"}
    lines = [
        ["-m", "oxillama", "doctor"],
        *([["-m", "benchmarks", "kernels"]] if (sources / "benchmarks").is_dir() else []),
    ]
    for line in lines:
        done = subprocess.run([sys.executable, *line], cwd=sources, capture_output=True, env=environment)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1), done.stderr
        assert done.stderr.startswith(f"{line[1]}: error: {advice} {sources}".encode())
    code = "import oxillama; oxillama.InferenceEngine"
    done = subprocess.run([sys.executable, "-c", code], cwd=sources, capture_output=True, env=environment)
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith(f"ImportError: oxillama: {advice} {sources}")
    assert "pip install -e ." in last
    assert b"circular" not in done.stderr


ROOMS: dict[str, Arguments] = {
    "apps.evaluation": lambda path, out: ["perplexity", demo.DRAFT, demo.HELDOUT],
    "apps.convert": lambda path, out: ["convert", path, out],
    "apps.server": lambda path, out: ["serve"],
    "apps.batch": lambda path, out: ["batch", path, out, "-m", demo.DRAFT],
    "apps.doctor": lambda path, out: ["doctor"],
    "apps.quantize": lambda path, out: ["quantize", demo.DRAFT, out, "Q4_0"],
    "gguf.hub": lambda path, out: ["pull", "a/b"],
    "engine.features.packed_files": lambda path, out: ["pack", demo.DRAFT, "-o", out],
    "sessions": lambda path, out: ["verify", path, "--model", demo.DRAFT],
    "apps.mcp": lambda path, out: ["chat", demo.DRAFT, "--mcp", path],
    "engine.features.constraints": lambda path, out: ["run", demo.DRAFT, "-p", "x", "--regex", "a"],
}
"""A command line that needs a room, by the room."""


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_that_is_not_there_is_named(room: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("{}")
    arguments = [str(each) for each in ROOMS[room](tmp_path / "in", tmp_path / "out")]
    program = (
        f"import sys; sys.modules['oxillama.{room}'] = None\n"  # the import fails as if it were not there
        f"from oxillama.apps.cli import main; sys.exit(main({arguments}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert f"oxillama.{room}" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_message_on_a_closed_stderr_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    assert main(["info", os.devnull]) == 2
