"""`oxillama run` and what holds for every command: help, errors, interruption."""

from __future__ import annotations

import argparse
import io
import itertools
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tqdm  # type: ignore[import-untyped]

import oxillama
from oxillama import demo
from oxillama.apps.cli import build_parser, console, generate, info, main, progress
from oxillama.base.distribution import DISTRIBUTION
from oxillama.compat.engine import InferenceEngine
from oxillama.gguf.model_file import ModelFile
from tests.support.command_line import (
    COMMANDS,
    ENVIRONMENT,
    PROMPT,
    SUMMARY,
    Text,
    command,
    error,
    facts_of,
    output,
    run,
)
from tests.support.tiny_file import END_OF_TURN, write_tiny_model
from tests.support.waiting import asleep

SHOWN = argparse.Namespace(quiet=False, progress=False)


# --- the program ----------------------------------------------------------------------------------
def test_version() -> None:
    assert output("--version") == f"{DISTRIBUTION} {oxillama.__version__}\n"


def test_help_and_version_import_nothing_heavy() -> None:
    code = (
        "import sys; from oxillama.apps.cli import main; main(['--version']); main(['run', '--help']);"
        "heavy = {'numpy', 'tokenizers', 'jinja2', 'tqdm', 'oxillama._kernels'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=ENVIRONMENT, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_help_has_ten_commands_first_and_names_the_others() -> None:
    text = output("--help")
    assert text.count("\n") <= 40
    first, rest = text.split("\nmore commands:\n")
    more, options = rest.split("\noptions:\n")
    described = re.findall(r"^  (\w+) +\w", first.split("\ncommands:\n")[1], re.MULTILINE)
    named = re.findall(r"(\w+)(?:,|$)", re.sub(r"\w+: ", "", more), re.MULTILINE)
    assert len(described) == 10 and sorted([*described, *named]) == sorted(COMMANDS)
    assert "examples:\n  oxillama demo " in options


def test_the_whole_help_says_what_every_command_does() -> None:
    listed = re.findall(r"^  (\w+) +(\w.*)$", output("--help-all"), re.MULTILINE)
    assert sorted(name for name, _ in listed) == sorted(COMMANDS)
    assert dict(listed)["fingerprint"] == "hash what a model computes"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name: str) -> None:
    text = output(name, "--help")
    assert text.startswith(f"usage: oxillama {name} ")
    first = re.search(r"^options:\n  (-+[\w-]+)", text, re.MULTILINE)
    has_own = name not in ("rm",)
    assert first is not None and (first[1] not in ("-h", "-v", "-q")) == has_own, "own options come first"


@pytest.mark.slow
def test_examples_of_the_help_are_command_lines() -> None:
    shown = output("--help") + "".join(output(name, "--help") for name in COMMANDS)
    lines = re.findall(r"^  (oxillama .+?)(?:   .*)?$", shown, re.MULTILINE)
    assert len(lines) > 20
    for line in lines:
        build_parser().parse_args(shlex.split(line)[1:])


# --- run ------------------------------------------------------------------------------------------
def test_run_writes_the_text_then_a_summary(model: Path, engine: InferenceEngine) -> None:
    done = run("run", model, "-p", PROMPT, "-n", "20", "--greedy", "--seed", "7")
    assert done.stdout.decode() == engine.generate(PROMPT, max_tokens=20) + "\n"
    assert facts_of(done) == (str(len(engine.tokenize(PROMPT))), "19", "length", "7")
    assert done.returncode == 0


def test_each_piece_is_flushed(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []

    class Out(io.StringIO):
        def flush(self) -> None:
            flushed.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Out())
    pieces = list(engine.stream(PROMPT, max_tokens=9))
    generate.show(engine.stream(PROMPT, max_tokens=9), SHOWN)
    assert flushed[: len(pieces)] == list(itertools.accumulate(pieces))


def test_run_reads_its_prompt_from_stdin_or_a_file_as_it_is(
    model: Path, engine: InferenceEngine, tmp_path: Path
) -> None:
    prompt = "once\0 upon\n"
    (tmp_path / "prompt.txt").write_text(prompt)
    flags, expected = ("-n", "20", "--greedy"), engine.generate(prompt, max_tokens=20)
    for source in (("-p", "-"), ("-f", "-"), ("-f", str(tmp_path / "prompt.txt"))):
        assert output("run", model, *source, *flags, stdin=prompt.encode()) == expected + "\n"


def test_the_seed_of_the_summary_repeats_a_run(model: Path) -> None:
    line = ("run", model, "-p", PROMPT, "-n", "30")
    done = run(*line)
    seed = facts_of(done)[3]
    assert output(*line, "--seed", seed, "-t", "1") == done.stdout.decode()
    assert output(*line, "--seed", "5") != output(*line, "--seed", "6")


def test_stop_texts(model: Path, engine: InferenceEngine) -> None:
    text = engine.generate(PROMPT, max_tokens=40)
    done = run("run", model, "-p", PROMPT, "--greedy", "--stop", "never there", "--stop", text[10:14])
    assert done.stdout.decode() == text[: text.index(text[10:14])] + "\n"
    assert facts_of(done)[2] == "stop"


def test_no_tokens_at_all(model: Path) -> None:
    done = run("run", model, "-p", PROMPT, "-n", "0")
    assert (done.returncode, done.stdout) == (0, b"\n")
    assert facts_of(done)[:3] == ("0", "0", "length")  # its prompt need not be run


@pytest.mark.parametrize(
    ("flags", "n_tokens"),
    [([], 1 + len(END_OF_TURN)), (["--parse-special"], 2), (["--parse-special", "--no-special"], 1)],
)
def test_special_tokens_in_the_prompt(model: Path, flags: list[str], n_tokens: int) -> None:
    done = run("run", model, "-p", END_OF_TURN, "-n", "1", *flags)
    assert facts_of(done)[0] == str(n_tokens)


def test_sizes_are_in_units_that_leave_one_or_more() -> None:
    for n, text in (
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536 << 10, "1.5 MiB"),
        (1 << 30, "1.0 GiB"),
    ):
        assert console.human_bytes(n) == text
    assert console.human_bytes(3 << 50) == "3072.0 TiB"
    assert [console.human_count(n) for n in (999, 1000, 1_100_000_000)] == ["999", "1.00 K", "1.10 B"]


def test_bar_is_shown_when_asked_for(model: Path) -> None:
    assert b"loading:" in run("run", model, "-p", PROMPT, "-n", "1", "--progress").stderr
    assert b"loading" not in run("run", model, "-p", PROMPT, "-n", "1").stderr


def test_bar_counts_every_byte_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_model(tmp_path / "tied.gguf", tied=True)
    bars = []

    class Bar(tqdm.tqdm):  # type: ignore[misc]
        def close(self) -> None:
            bars.append((self.n, self.total))
            super().close()

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    with progress.loading_bar(str(path), True) as loaded:
        InferenceEngine.from_gguf(path, progress=loaded)
    with ModelFile.open(path) as file:
        n_bytes = sum(tensor.nbytes for tensor in file.tensors.values())
    assert (n_bytes, n_bytes) in bars


def test_no_bar(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is shown, but the engine still hears that it is to pack the model now."""
    with progress.loading_bar(str(model), False) as loaded:
        loaded("token_embd.weight", 1)
    assert capfd.readouterr() == ("", "")


def test_no_limit_runs_to_the_end_of_the_context(model: Path) -> None:
    done = run("run", model, "-p", PROMPT, "-n", "-1", "-c", "60", "--greedy")
    prompt, decoded, reason, _ = facts_of(done)
    assert (int(prompt) + int(decoded), reason) == (60 - 1, "length")


def test_quiet_is_the_text_alone(model: Path) -> None:
    flags = ("run", model, "-p", PROMPT, "-n", "9", "--greedy")
    done = run(*flags, "--quiet", "--progress")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == run(*flags).stdout
    assert b"error: prompt: " in run("run", model, "-p", "", "--quiet").stderr


def test_a_timeout_is_a_reason_to_end(model: Path) -> None:
    done = run("run", model, "-p", PROMPT, "-n", "-1", "-c", "999999", "--timeout", "0.2", "-q")
    assert done.returncode == 0
    done = run("run", model, "-p", PROMPT, "-n", "-1", "--timeout", "0.01")
    assert facts_of(done)[2] == "timeout"


class FakePrefill:
    """A generation whose prompt is 10 tokens further whenever somebody looks."""

    prefill_total = 4096

    def __init__(self) -> None:
        self.looks = 0

    @property
    def prefill_progress(self) -> int:
        self.looks += 1
        return 10 * self.looks


def test_a_long_prefill_has_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.001)
    fake: Any = FakePrefill()
    with progress.prefill_bar(fake, True):
        pass  # over before the bar would come
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "PREFILL_SECONDS", 0)
    with progress.prefill_bar(fake, True):
        while fake.looks < 3:
            time.sleep(0.001)
    assert re.search(r"prefill: .*\d+/4096", capsys.readouterr().err)
    with progress.prefill_bar(fake, False):
        looks = fake.looks
    assert fake.looks == looks
    assert not [thread for thread in threading.enumerate() if "watch" in thread.name]


def test_a_bar_counts_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.count_bar(True, "measuring", " rounds") as count:
        assert count is not None
        count(11, 11)
        console.say("note", "aside")
    told = capsys.readouterr().err
    assert "measuring: 100%" in told
    assert "\roxillama: note: aside\n" in told  # on a line of its own


def test_verbose_shows_the_log(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def log(args: argparse.Namespace) -> int:
        logging.getLogger("oxillama.test").debug("a\nb %d", 1)
        return 0

    monkeypatch.setattr(info, "run_info", log)
    for flags, expected in ((["-v"], "oxillama: debug: a\\nb 1\n"), ([], "")):
        assert main(["info", str(model), *flags]) == 0
        assert capsys.readouterr().err == expected
    assert not logging.getLogger("oxillama").isEnabledFor(logging.DEBUG)


# --- bad input ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-p", ""], "prompt: expected text, got none"),
        (["-p", "a" * 5000], "prompt: expected at most 4095 tokens for the context, got 5001"),
        (["-p", b"a\xffb"], "lone surrogate U+DCFF at character 1"),
        (["-p", b"\xed\xa0\x80"], "lone surrogate U+DCED at character 0"),
        (["-p", "x", "--threads", "0"], "--num-threads: expected an integer >= 1 and <= 1024, got 0"),
        (["-p", "x", "--max-tokens", "-2"], "--max-tokens: expected an integer >= 0, got -2"),
        (["-p", "x", "--max-tokens", "many"], "-n/--max-tokens: expected an integer, got 'many'"),
        (["-p", "x", "--timeout", "0"], "timeout: expected a number > 0, got 0.0"),
        (["-p", "x", "--temp", "-1"], "temperature: expected a number >= 0, got -1.0"),
        (["-p", "x", "--temp", "nan"], "temperature: expected a number >= 0, got nan"),
        (["-p", "x", "--top-k", "1.5"], "error: --top-k: expected an integer, got '1.5'"),
        (["-p", "x", "--kv-type", "f8"], "error: --kv-type: expected one of f32, f16"),
        (["-p", "x", "--kv-type", "f8"], "KEYS:VALUES of these, got 'f8'"),
        (["-p", "x", "--page-size", "17"], "--page-size: expected a power of two, got 17"),
        (["-p", "x", "--ctx", "1000000"], "--context-size: expected an integer >= 1 and <= 999999"),
        (["-p", "x", "--stop", ""], "stop: expected strings that are not empty"),
        (["-p", "x", "-f", "y"], "not allowed with argument"),
        (["-p", "x", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["-p", "x", "--nonsense\n\x1b[2J"], r"unrecognized arguments: --nonsense\n\x1b[2J"),
        (["-f", "absent\nfile"], r"prompt: absent\nfile cannot be read: No such file"),
        (["-f", "."], "prompt: . cannot be read: Is a directory"),
        ([], "prompt: expected text, got none"),
    ],
)
def test_bad_arguments_of_run(model: Path, flags: list[Text], message: str) -> None:
    assert message in error("run", model, *flags)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe"])
def test_bad_prompt_on_stdin(model: Path, data: bytes) -> None:
    assert error("run", model, "-p", "-", stdin=data).startswith(
        ("oxillama: error: prompt: ", "oxillama: error: --prompt: ")
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["info"], "MODEL"),
        (["--ver"], "COMMAND"),
    ],
)
def test_bad_commands(args: list[str], message: str) -> None:
    assert message in error(*args)


def test_without_a_command_the_help_is_printed() -> None:
    assert output() == output("--help")


def test_demo_is_a_model_in_every_command(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("Once upon a time, there was a little fox. " * 20)
    assert output("run", "demo", "-p", "Once", "-n", "2", "-q")
    assert output("tokenize", "demo", "Hello") == output("tokenize", demo.STORY, "Hello")
    assert re.search(r"\n\nmemory: .* at 512 tokens = .* free: fits\n$", output("info", "demo"))
    assert output("perplexity", "demo", tmp_path / "text", "--windows", "1", "--window", "64")
    both = output("compare", "demo", "demo", tmp_path / "text", "--windows", "1", "--window", "64")
    assert both == output(
        "compare", "demo", "demo", "--text", tmp_path / "text", "--windows", "1", "--window", "64"
    )
    assert "TEXTFILE: expected a text" in error("compare", "demo", "demo")


def test_the_end_of_info_says_whether_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    from oxillama.apps.cli.info import fit_words
    from oxillama.apps.doctor.machine import Machine

    memory: dict[str, Any] = {"context": 40960, "resident": 3 << 30, "state": 0}
    memory |= {"kv_per_token": {"f16": 1 << 17}, "kv_at_context": {"f16": 5 << 30}}
    for free, end in ((5 << 30, "of 5.0 GiB free: fits"), (3 << 30, "of 3.0 GiB free: does not fit")):
        machine = Machine(memory_available=free)
        monkeypatch.setattr("oxillama.apps.doctor.machine.read_machine", lambda machine=machine: machine)
        assert fit_words(memory).startswith(f"3.0 GiB + 1.0 GiB at 8,192 tokens = 4.0 GiB {end}")


@pytest.mark.parametrize(("name", "meant"), [("rnu", "run"), ("caht", "chat"), ("tokenise", "tokenize")])
def test_a_mistyped_command_has_one_suggestion(name: str, meant: str) -> None:
    assert error(name) == (
        f"oxillama: error: COMMAND: invalid choice: '{name}'; did you mean {meant}? (see oxillama --help)\n"
    )
    assert "did you mean" not in error("nonsense")


def test_options_stand_between_positional_arguments() -> None:
    for line, expected in (
        ("chat M --system S Q", {"model": "M", "system": "S", "question": ["Q"]}),
        ("chat --system S M -n 5 Q R", {"model": "M", "max_tokens": 5, "question": ["Q", "R"]}),
        ("chat M -n 5 -- -Q", {"model": "M", "max_tokens": 5, "question": ["-Q"]}),
        ("verify A --model M B", {"model": "M", "receipt": ["A", "B"]}),
        ("perplexity M --window 5 T", {"model": "M", "window": 5, "text": "T"}),
        ("snapshot A --json", {"file": ["A"], "json": True}),
    ):
        found = vars(build_parser().parse_args(line.split()))
        assert {name: found[name] for name in expected} == expected
    said = error("chat", "M", "--sistem", "S", "Q")
    assert "unrecognized arguments: --sistem; did you mean --system? (see oxillama chat --help)" in said
    assert "did you mean" not in error("serve", "--nonsense")


QUERY = "blk.0.attn_q.weight"


def broken_models(folder: Path, good: Path) -> Iterator[tuple[Path, str]]:
    """Files that cannot be run, each with what is said of it."""
    data = good.read_bytes()
    for name, content, message in (
        ("empty.gguf", b"", "empty.gguf"),
        ("truncated.gguf", data[:-1], "expected 24576 bytes of data, got 24575"),
        ("header.gguf", data[:500], "header.gguf"),
        ("foreign.gguf", b"\x7fELF" + data[4:], "foreign.gguf"),
    ):
        (folder / name).write_bytes(content)
        yield folder / name, message
    yield folder / "absent.gguf", "absent.gguf: cannot be opened: No such file or directory"
    yield folder, "expected a file, got a directory"
    for name, changes, message in (
        ("arch", {"architecture": "quantum"}, "general.architecture: expected one of"),
        (
            "format",
            {"tensors": {QUERY: np.ones((64, 64), np.int32)}},
            f"{QUERY}: expected a format with kernels",
        ),
        ("missing", {"tensors": {QUERY: None}}, f"{QUERY}: expected a tensor of shape"),
    ):
        yield write_tiny_model(folder / f"{name}.gguf", **changes), message


def test_models_that_cannot_be_run(tmp_path: Path, model: Path) -> None:
    results = tmp_path / "results.json"
    results.write_text("kept")
    for path, message in broken_models(tmp_path, model):
        assert message in error("run", path, "-p", "x"), path
        error("bench", path, "--json", results)
    assert results.read_text() == "kept"
    assert not [p for p in tmp_path.iterdir() if p.suffix not in (".gguf", ".json")]


def test_text_in_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "arch.gguf", architecture="\x1b[2J\nx")
    assert "\x1b" not in error("run", path, "-p", "x")
    told = run("info", path)
    assert told.returncode == 1
    assert b"\x1b" not in told.stdout + told.stderr


def test_target_that_does_not_exist(model: Path) -> None:
    assert "got 'sparkling'" in error("run", model, "-p", "x", OXILLAMA_TARGET="sparkling")


def test_terminal_of_few_characters(model: Path) -> None:
    done = run("run", model, "-p", PROMPT, "-n", "200", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert len(done.stdout) > 100


# --- interruption ---------------------------------------------------------------------------------
def start_endless(model: Path, *flags: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command("run", model, "-p", PROMPT, "-n", "900000", "-c", "999999", "--greedy", *flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )


def test_interrupt_keeps_the_text_and_tells_the_speed(model: Path, engine: InferenceEngine) -> None:
    with start_endless(model) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        rest, told = process.communicate(timeout=60)  # the text alone would take minutes
    text = (first + rest).decode()
    assert process.returncode == 130
    assert text.endswith("\n")
    assert engine.generate(PROMPT, max_tokens=20).startswith(text.rstrip("\n")[:10])
    _warning, summary = told.decode().splitlines()
    found = SUMMARY.fullmatch(summary)
    assert found, told
    assert found[5] == "interrupted"
    assert "Traceback" not in told.decode()


def test_the_summary_of_an_interrupted_prompt_counts_what_ran(model: Path) -> None:
    with InferenceEngine.from_gguf(model, num_threads=1, prefill_chunk_size=8) as engine:
        steps: list[int] = []
        observe = engine.model.loop._observe

        def cancel_at_the_third(batch: Any) -> None:
            observe(batch)
            steps.append(batch.n_prefill)
            if len(steps) == 3:
                generation.cancel()

        engine.model.loop._observe = cancel_at_the_third  # type: ignore[method-assign]
        generation = engine.stream([5] * 100, max_tokens=9)
        assert generation.result().finish_reason == "cancelled"
    assert steps == [8, 8, 8]
    assert (generation.prefill_progress, generation.prefill_total) == (24, 100)
    found = SUMMARY.fullmatch(generate.summary(generation, interrupted=True))
    assert found and found[0].startswith("prefill 24 tokens, ") and "| decode 0 tokens |" in found[0]


def test_the_summary_counts_tokens_that_were_not_read(engine: InferenceEngine) -> None:
    """The time covers them: those whose text is held back, and those that wait for the consumer."""
    generation = engine.stream(PROMPT, window=4, max_tokens=60, temperature=0)
    request = generation._text_request
    next(generation)
    while request.has_room:
        time.sleep(0.001)
    generation.close()
    assert 1 <= len(generation.tokens) < request.n_generated
    assert generation.timings.decode_tokens == request.n_generated - 1
    assert f"| decode {request.n_generated - 1} tokens, " in generate.summary(generation, interrupted=True)
    held = engine.stream(PROMPT, max_tokens=12, temperature=0, ignore_eos=True).result()
    assert held.timings.decode_tokens == 11 and held.timings.prefill_tokens + held.usage.cached_tokens == len(
        engine.tokenizer.encode(PROMPT)
    )


def test_interrupt_before_the_text(model: Path) -> None:
    """While it waits for its prompt, as while it loads: no text, no traceback."""
    process = subprocess.Popen(
        command("run", model, "-p", "-"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    with process:
        asleep(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read() == process.stderr.read() == b""


def test_reader_that_leaves(model: Path) -> None:
    with start_endless(model) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read().count(b"\n") == 1  # the warning of the long context


@pytest.mark.parametrize("line", ["info --json", "info --tensors", "chat hello -n 9"])
def test_reader_that_was_never_there(model: Path, line: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    name, *rest = line.split()
    args = command(name, model, *rest)
    done = subprocess.run(args, stdout=writer, stderr=subprocess.PIPE, env=ENVIRONMENT)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
