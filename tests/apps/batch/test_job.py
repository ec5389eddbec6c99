"""A job goes on where it was killed, and knows what is its own."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any, BinaryIO

import pytest

from oxillama import ConfigError, EngineConfig, OxiLlamaError, SamplerConfig
from oxillama.apps.batch import job
from oxillama.apps.batch.engines import for_jobs
from oxillama.apps.batch.facts import facts_of
from oxillama.apps.batch.job import Job, Tally
from oxillama.apps.batch.plain import Settings
from oxillama.apps.batch.sources import Source
from tests.support.faults import every_fault
from tests.support.tiny_file import write_tiny_model

FACTS = {"model": "m"}
Lines = Iterator[tuple[int, bytes]]


class Killed(Exception):
    pass


async def echo(lines: Lines, until: int = 1000) -> AsyncIterator[bytes]:
    """Answers with the line, and fails at row ``until``; odd rows are errors."""
    for number, line in lines:
        if number == until:
            raise Killed
        yield json.dumps({"row": json.loads(line), "error": {} if number % 2 else None}).encode()


def ignore(tally: Tally) -> None:
    pass


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f"{n}\n" for n in range(10)))
    return path


def rows_of(path: Path) -> list[Any]:
    return [json.loads(line)["row"] for line in path.read_text().splitlines()]


def test_a_whole_run(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    seen: list[tuple[int, int]] = []
    job = Job(source, target, FACTS)
    tally = job.run(echo, lambda tally: seen.append((tally.n_done, tally.n_failed)))
    assert (tally.n_rows, tally.n_done, tally.n_failed, tally.n_known) == (10, 10, 5, 0)
    assert rows_of(target) == list(range(10))
    assert seen == [(n, n // 2) for n in range(11)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


@pytest.mark.parametrize("rest", [b"", b"{", b'{"row": 4, "error": nul', b"\0\0"])
@pytest.mark.parametrize("until", [0, 4, 9])
def test_a_run_goes_on_behind_the_last_whole_line(
    source: Path, tmp_path: Path, until: int, rest: bytes
) -> None:
    target = tmp_path / "out.jsonl"
    with pytest.raises(Killed):
        Job(source, target, FACTS).run(lambda lines: echo(lines, until), ignore)
    assert not target.exists()
    with (tmp_path / "out.jsonl.part").open("ab") as part:
        part.write(rest)
    taken: list[int] = []

    def answers(lines: Lines) -> AsyncIterator[bytes]:
        return echo((taken.append(number) or (number, line)) for number, line in lines)  # type: ignore[func-returns-value]

    tally = Job(source, target, FACTS).run(answers, ignore)
    assert taken == list(range(until, 10))
    assert (tally.n_known, tally.n_done, tally.n_failed) == (until, 10, 5)
    assert rows_of(target) == list(range(10))


def test_another_job_is_refused(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    with pytest.raises(Killed):
        Job(source, target, FACTS).run(lambda lines: echo(lines, 4), ignore)
    with pytest.raises(ConfigError, match=r"out\.jsonl\.part to be of this job, but model changed"):
        Job(source, target, {"model": "n"}).run(echo, ignore)
    source.write_text("0\n")
    with pytest.raises(ConfigError, match="but input changed"):
        Job(source, target, FACTS).run(echo, ignore)
    assert Job(source, target, {"model": "n"}, restarts=True).run(echo, ignore).n_known == 0
    assert rows_of(target) == [0]


def test_answers_without_a_note_are_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl.part").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"expected .*out\.jsonl\.job beside"):
        Job(source, tmp_path / "out.jsonl", FACTS).run(echo, ignore)


@pytest.mark.parametrize("note", [b"", b"[]", b"5", b"null", b"\xff", b"[" * 100_000, b"{}"])
def test_a_note_of_something_else_is_refused(source: Path, tmp_path: Path, note: bytes) -> None:
    target = tmp_path / "out.jsonl"
    target.with_name("out.jsonl.part").write_bytes(b'{"error": null}\n')
    target.with_name("out.jsonl.job").write_bytes(note)
    with pytest.raises(ConfigError, match="output: expected "):
        Job(source, target, FACTS).run(echo, ignore)


@pytest.mark.parametrize("line", [b"", b"x", b"5", b"{}", b"[]", b"\xff", b"null", b"[" * 100_000])
def test_a_part_that_holds_no_answers_is_refused(source: Path, tmp_path: Path, line: bytes) -> None:
    job = Job(source, tmp_path / "out.jsonl", FACTS)
    job.note.write_text(json.dumps(job.facts))
    job.part.write_bytes(b'{"error": null}\n' + line + b"\n")
    with pytest.raises(ConfigError, match=r"output: expected an answer in line 2 of .*\.part, got another"):
        job.run(echo, ignore)


def test_a_target_that_exists_is_not_replaced_unasked(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("mine")
    with pytest.raises(ConfigError, match="which exists"):
        Job(source, target, FACTS)
    assert target.read_text() == "mine"
    Job(source, target, FACTS, overwrites=True).run(echo, ignore)
    assert rows_of(target) == list(range(10))
    with pytest.raises(ConfigError, match="expected another file than the input"):
        Job(source, source, FACTS, overwrites=True)
    with pytest.raises(ConfigError, match="which exists"):
        Job(source, tmp_path, FACTS, overwrites=True)


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
@pytest.mark.parametrize("links", [True, False])
def test_a_target_that_appears_during_a_run_is_not_replaced(
    source: Path, tmp_path: Path, name: str, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    target = tmp_path / name

    def no_link(*paths: Path) -> None:
        raise OSError(errno.EPERM, "no links")

    if not links:
        monkeypatch.setattr(os, "link", no_link)

    def answers(lines: Lines) -> AsyncIterator[bytes]:
        target.write_text("another's")
        return echo(lines)

    with pytest.raises(ConfigError, match="which exists"):
        Job(source, target, FACTS).run(answers, ignore)
    assert target.read_text() == "another's"
    target.unlink()
    tally = Job(source, target, FACTS).run(echo, ignore)
    assert tally.n_known == 10  # nothing was lost
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", name]


def test_the_target_of_a_job_that_ended_before_this_one_ran_is_not_replaced(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out.jsonl"
    late = Job(source, target, {"model": "n"})
    Job(source, target, FACTS).run(echo, ignore)
    first = target.read_bytes()
    with pytest.raises(ConfigError, match="which exists"):
        late.run(echo, ignore)
    assert target.read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_a_part_that_became_another_jobs_target_is_not_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, lock, n_locked = tmp_path / "out.jsonl", job.locked, 0

    def locked(file: BinaryIO, path: Path) -> None:
        nonlocal n_locked
        n_locked += 1
        if n_locked == 1:
            os.rename(path, target)  # the other job ends between opening and locking
        lock(file, path)

    monkeypatch.setattr(job, "locked", locked)
    with pytest.raises(ConfigError, match="which exists"):
        Job(source, target, FACTS, restarts=True).run(echo, ignore)
    assert n_locked == 2
    assert target.read_bytes() == b""


def test_a_run_that_was_killed_at_its_very_end_loses_nothing(source: Path, tmp_path: Path) -> None:
    target, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    Job(source, target, FACTS).run(echo, ignore)
    first = target.read_bytes()
    os.link(target, part)  # between the link and the end of the name of the part
    Job(source, target, FACTS, overwrites=True, restarts=True).run(lambda lines: echo(lines), ignore)
    assert target.read_bytes() == first
    os.link(target, part)
    with pytest.raises(Killed):
        Job(source, target, FACTS, overwrites=True, restarts=True).run(lambda lines: echo(lines, 3), ignore)
    assert target.read_bytes() == first


COMMAND = """
import sys
from pathlib import Path
from tests.apps.batch.test_job import Job, echo, ignore
job = Job(Path(sys.argv[1]), Path(sys.argv[2]), {"model": sys.argv[3]}, restarts=True)
print("made", flush=True)
sys.stdin.readline()
job.run(echo, ignore)
"""


def test_of_processes_that_write_one_target_one_does(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    runs = []
    for model in "abcdef":
        command = [sys.executable, "-c", COMMAND, str(source), str(target), model]
        runs.append(subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True))
    for run in runs:
        assert run.stdout is not None and run.stdout.readline() == "made\n"
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("\n")
        run.stdin.flush()
    ends = [(run.communicate(timeout=60)[1], run.returncode) for run in runs]
    assert [code for _, code in ends].count(0) == 1, ends
    assert all(code == 0 or "ConfigError: output: expected" in error for error, code in ends)
    assert rows_of(target) == list(range(10))


def test_two_runs_at_a_time_are_refused(source: Path, tmp_path: Path) -> None:
    def answers(lines: Lines) -> AsyncIterator[bytes]:
        with pytest.raises(ConfigError, match="another one writes it"):
            Job(source, tmp_path / "out.jsonl", FACTS).run(echo, ignore)
        return echo(lines)

    assert Job(source, tmp_path / "out.jsonl", FACTS).run(answers, ignore).n_done == 10


@pytest.mark.parametrize("change", ["0\n", "".join(f"{n}\n" for n in range(11))])
def test_an_input_that_changes_is_noticed(source: Path, tmp_path: Path, change: str) -> None:
    job = Job(source, tmp_path / "out.jsonl", FACTS)
    source.write_text(change)
    with pytest.raises(ConfigError, match=r"input: expected 10 rows, got .* has changed"):
        job.run(echo, ignore)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(("text", "n"), [("", 0), ("a", 1), ("a\n", 1), ("a\n\n", 2), ("\n\nb", 3)])
def test_each_line_is_a_row(tmp_path: Path, text: str, n: int) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(text)
    source = Source.of(path)
    assert source.n_rows == n == len(list(source.lines()))
    assert [number for number, _ in source.lines(1)] == list(range(1, n))


def test_an_input_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"input: .* cannot be read"):
        Source.of(tmp_path / "none.jsonl")


def test_what_a_job_is_told_by(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf")
    settings = Settings(model_name="m")
    config = for_jobs(EngineConfig(model_path=path))
    facts = facts_of(config, settings)
    assert json.loads(json.dumps(facts)) == facts

    def changed(settings: Settings = settings, **fields: Any) -> set[str]:
        made = for_jobs(EngineConfig(**{"model_path": path, **fields}))
        other = facts_of(made, settings)
        return {name for name in facts if facts[name] != other[name]}

    assert changed(num_threads=1, packed="off", prefix_cache_bytes=0) == set()
    assert changed(sampler=SamplerConfig(temperature=0.5)) == {"sampler"}
    assert changed(compute="f32", seed=1) == {"compute", "seed"}
    assert changed(kv_type="bf16") == {"kv_type", "contract"}  # another version gives these other bits
    assert changed(Settings(model_name="m", max_tokens=3)) == {"settings"}
    assert changed(model_path=write_tiny_model(tmp_path / "n.gguf", seed=1)) == {"model"}
    (tmp_path / "a").write_bytes(b"1")
    assert changed(adapters=str(tmp_path / "a")) == {"adapters"}


@pytest.mark.slow  # every call of a run, one after another
def test_a_call_of_the_system_that_fails_loses_nothing(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"

    def before() -> None:
        for path in tmp_path.iterdir():
            if path != source:
                path.unlink()

    def after(error: OxiLlamaError | None) -> None:
        if target.exists():
            assert rows_of(target) == list(range(10))  # it was whole before it had its name
        else:
            assert error is not None
            Job(source, target, FACTS).run(echo, ignore)
            assert rows_of(target) == list(range(10))
            assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "out.jsonl"]

    counts = every_fault(
        "batch", tmp_path, before, lambda: Job(source, target, FACTS).run(echo, ignore), after
    )
    assert counts.keys() >= {"open", "read", "write", "fsync", "rename", "link", "unlink", "stat", "truncate"}
    assert counts["write"] >= 10
