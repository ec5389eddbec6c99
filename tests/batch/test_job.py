"""A job goes on where it was killed, and knows what is its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from oxillama import ConfigError, EngineConfig, SamplerConfig
from oxillama.batch.engines import for_jobs
from oxillama.batch.job import Job, Tally, facts_of
from oxillama.batch.plain import Settings
from oxillama.batch.sources import Source
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
    assert changed(Settings(model_name="m", max_tokens=3)) == {"settings"}
    assert changed(model_path=write_tiny_model(tmp_path / "n.gguf", seed=1)) == {"model"}
    (tmp_path / "a").write_bytes(b"1")
    assert changed(adapters=str(tmp_path / "a")) == {"adapters"}
