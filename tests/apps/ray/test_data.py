"""Batch jobs on a cluster of Ray: the answers are those of one engine, whatever ends on the way."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oxillama import ConfigError, EngineConfig, InferenceEngine, RequestFailed
from oxillama.apps.batch.engines import for_jobs, window_of
from oxillama.apps.batch.facts import facts_of
from oxillama.apps.batch.job import Job, Tally, with_engine
from oxillama.apps.batch.plain import Settings
from oxillama.apps.batch.rows import Rows
from tests.support.clusters import OPEN, cluster, kill, workers
from tests.support.command_line import run
from tests.support.tiny_file import write_tiny_model
from tests.support.waiting import until

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("ray.data", reason="Ray's data packages are not installed")
from oxillama.apps.ray import Predictor, model_facts, predict, resources  # noqa: E402
from oxillama.apps.ray.cluster import actors_of, on_cluster, tables  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # warnings of Ray itself

SETTINGS = Settings(model_name="tiny")
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "enum": [3, 4]}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    with cluster():
        yield


def config_of(model: Path) -> EngineConfig:
    """A config with a small prefix cache: a search of thousands of short prompts is slower than a run."""
    return for_jobs(EngineConfig(model_path=model, num_threads=1, prefix_cache_bytes=1 << 18))


def write_rows(path: Path, n: int, most: int = 12) -> Path:
    rows = [{"prompt": f"once upon a time {i}", "id": i, "max_tokens": 1 + i % most} for i in range(n)]
    rows[n // 2] = {"prompt": "a", "temprature": 1}  # type: ignore[dict-item]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def undisturbed(model: Path, source: Path, target: Path) -> bytes:
    """The answers of one engine without Ray."""
    config = config_of(model)
    with InferenceEngine(config) as engine:
        job = Job(source, target, facts_of(config, SETTINGS))
        job.run(with_engine(Rows(engine, SETTINGS), window_of(config)), lambda tally: None)
    return target.read_bytes()


def on_ray(model: Path, source: Path, target: Path, seen: Any, actors: int = 2) -> Tally:
    config = config_of(model)
    job = Job(source, target, facts_of(config, SETTINGS), overwrites=True)
    return job.run(on_cluster(config, SETTINGS, (actors, actors)), seen)


def test_a_predictor_in_a_dataset(model: Path) -> None:
    rows = [{"prompt": f"hello {i}", "max_tokens": 3 + i % 5, "label": i} for i in range(60)]
    dataset = ray.data.from_items(rows, override_num_blocks=4)
    found = predict(
        dataset,
        EngineConfig(model_path=model, num_threads=1),
        concurrency=(1, 2),
        option_columns=("max_tokens",),
    ).take_all()
    engine = InferenceEngine.from_gguf(model)
    texts = {row["label"]: row["text"] for row in found}
    assert texts == {i: engine.generate(f"hello {i}", max_tokens=3 + i % 5, seed=0) for i in range(60)}
    assert {row["error"] for row in found} == {None}


def test_map_batches_with_the_class_itself(model: Path) -> None:
    dataset = ray.data.from_items([{"messages": [{"role": "user", "content": "x"}]}] * 3)
    found = dataset.map_batches(
        Predictor,
        fn_constructor_args=[EngineConfig(model_path=model, num_threads=1)],
        fn_constructor_kwargs={"schema": SCHEMA, "options": {"max_tokens": 400}},
        compute=ray.data.ActorPoolStrategy(size=1),
    ).take_all()
    assert [row["error"] for row in found] == [None] * 3
    for row in found:
        assert json.loads(row["text"]) == {"ok": row["ok"], "n": row["n"]}
        assert isinstance(row["ok"], bool) and row["n"] in (3, 4)


def test_what_is_wrong_is_said_by_the_caller(model: Path, tmp_path: Path) -> None:
    dataset = ray.data.from_items([{"prompt": "a"}])
    with pytest.raises(ConfigError, match="temprature"):
        predict(dataset, model, options={"temprature": 1})
    with pytest.raises(Exception, match=r"none\.gguf"):
        predict(dataset, tmp_path / "none.gguf")


def test_resources_come_from_the_file(model: Path) -> None:
    one, two = resources(model), resources(model, per_machine=2)
    assert (one["num_cpus"], two["num_cpus"]) == (4, 2)
    assert one["memory"] > two["memory"] > 512 << 20
    assert resources(EngineConfig(model_path=model, num_threads=3))["num_cpus"] == 3
    limited = EngineConfig(model_path=model, kv_memory_limit=5 << 30)
    assert resources(limited)["memory"] - 5 * 2**30 < 600 << 20
    with pytest.raises(ConfigError, match="per_machine"):
        resources(model, per_machine=0)


@pytest.mark.parametrize(
    ("text", "found"),
    [("3", (3, 3)), ("2:5", (2, 5)), (None, (1, 1)), ("0", None), ("5:2", None), ("a", None)],
)
def test_numbers_of_actors(text: str | None, found: tuple[int, int] | None) -> None:
    if found is not None:
        assert actors_of(text) == found
        return
    with pytest.raises(ConfigError, match="actors: expected"):
        actors_of(text)


def test_no_machine_has_room(model: Path) -> None:
    config = EngineConfig(model_path=model, num_threads=1, kv_memory_limit=1 << 50)
    with pytest.raises(
        ConfigError, match=r"ray: expected a machine with 1 CPUs and \d+ bytes of memory, got 4 and"
    ):
        on_cluster(config, SETTINGS, (1, 1))


def test_threads_are_the_cpus_that_ray_gives(model: Path) -> None:
    @ray.remote(num_cpus=3)
    def threads(*given: int) -> list[int | None]:
        from oxillama.apps.ray.sizing import as_assigned

        wanted = [EngineConfig(model_path=model), *(EngineConfig(num_threads=n) for n in given)]
        return [as_assigned(config).num_threads for config in wanted]

    assert ray.get(threads.remote(1)) == [3, 1]


def test_an_actor_that_fails_ends_the_run_in_one_line(model: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 4)
    address = ray.get_runtime_context().gcs_address
    flags = ("--packed", tmp_path / "none.packed", "--ray", address)
    done = run("batch", source, tmp_path / "out.jsonl", "-m", model, "-t", "1", *flags, **OPEN)
    last = done.stderr.decode().splitlines()[-1]
    assert done.returncode == 2 and last.startswith("oxillama: error: ray: ModelFileError: "), done
    assert "none.packed" in last and done.stdout == b"", done


def test_an_actor_with_another_model_ends_the_run(model: Path, tmp_path: Path) -> None:
    """The file is replaced, and an actor, which has the old one, is started again."""
    own = tmp_path / "own.gguf"
    own.write_bytes(model.read_bytes())
    source = write_rows(tmp_path / "in.jsonl", 2000)
    expected = undisturbed(own, source, tmp_path / "whole.jsonl")
    facts, swapped = facts_of(config_of(own), SETTINGS), list[int]()

    def seen(tally: Tally) -> None:
        if tally.n_done > 100 and not swapped:
            os.replace(write_tiny_model(tmp_path / "new.gguf", seed=1), own)
            swapped.extend(workers("MapWorker"))
            for pid in swapped:
                kill(pid)

    with pytest.raises(RequestFailed) as caught:
        on_ray(own, source, tmp_path / "out.jsonl", seen)
    got = facts_of(config_of(own), SETTINGS)["model"]
    assert f"expected that of the job, fingerprint {facts['model'][:16]}, got {got[:16]} at {own}" in str(
        caught.value
    )
    assert swapped
    known = (tmp_path / "out.jsonl.part").read_bytes()
    assert len(known) > 100 and expected.startswith(known)  # no row of the other model

    source = write_rows(tmp_path / "few.jsonl", 4)
    job = Job(source, tmp_path / "few.out", facts)
    with pytest.raises(RequestFailed, match="expected that of the job"):
        job.run(on_cluster(config_of(own), SETTINGS, (1, 1), facts=facts), lambda tally: None)


def test_a_predictor_with_another_model_ends_the_run(model: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(model.read_bytes())
    config = EngineConfig(model_path=own, num_threads=1)
    found = predict(ray.data.from_items([{"prompt": "a"}] * 3), config)
    os.replace(write_tiny_model(tmp_path / "new.gguf", seed=1), own)
    with pytest.raises(Exception, match="model: expected that of the job, fingerprint"):
        found.take_all()
    assert model_facts(config) == model_facts(own, {"num_cpus": 1})
    with pytest.raises(Exception, match=r"none\.gguf"):
        model_facts(tmp_path / "none.gguf")


def test_a_packed_file_is_made_once(model: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(model.read_bytes())
    source = write_rows(tmp_path / "in.jsonl", 600)
    on_ray(own, source, tmp_path / "out.jsonl", lambda tally: None)
    assert [path.name for path in tmp_path.glob("*.packed")] == ["own.gguf.packed"]


def disturbed(model: Path, tmp_path: Path, seed: int, n: int) -> None:
    """A run in which workers are killed; its answers are those of one engine."""
    source = write_rows(tmp_path / "in.jsonl", n)
    expected = undisturbed(model, source, tmp_path / "whole.jsonl")
    target, draw, killed = tmp_path / "out.jsonl", random.Random(seed), set[int]()
    moments = sorted(draw.sample(range(n * 3 // 4), 2))

    def seen(tally: Tally) -> None:
        if moments and tally.n_done >= moments[0]:
            moments.pop(0)
            until(lambda: bool(set(workers("MapWorker")) - killed))
            pid = draw.choice(sorted(set(workers("MapWorker")) - killed))
            killed.add(pid)
            kill(pid)

    tally = on_ray(model, source, target, seen)
    assert len(killed) == 2
    assert (tally.n_done, tally.n_failed) == (n, 1)
    assert target.read_bytes() == expected


def test_workers_that_are_killed_change_nothing(model: Path, tmp_path: Path) -> None:
    disturbed(model, tmp_path, 0, 2000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_workers_that_are_killed_at_random(model: Path, tmp_path: Path, seed: int) -> None:
    disturbed(model, tmp_path, seed, 2000)


@pytest.mark.slow
def test_ten_thousand_prompts_through_two_actors(model: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 10_000, most=4)
    pids: set[int] = set()

    def seen(tally: Tally) -> None:
        if tally.n_done in (3000, 6000):
            pids.update(workers("MapWorker"))

    tally = on_ray(model, source, tmp_path / "out.jsonl", seen)
    assert (tally.n_done, tally.n_failed, len(pids)) == (10_000, 1, 2)
    assert (tmp_path / "out.jsonl").read_bytes() == undisturbed(model, source, tmp_path / "whole.jsonl")


def test_nothing_to_do(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("")
    assert on_ray(model, source, tmp_path / "out.jsonl", lambda tally: None).n_done == 0
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_long_files_have_larger_blocks() -> None:
    lines = ((n, b"%d" % n) for n in range(100_001))
    found = list(tables(lines, 32))
    sizes = [table.num_rows for table in found]
    assert sizes[0] == 32 and sizes[1000] == 64 and max(sizes) == 128 and sum(sizes) == 100_001
    assert found[-1]["line"].to_pylist()[-1] == b"100000"


def test_the_command_on_a_cluster(model: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 20)
    expected = undisturbed(model, source, tmp_path / "whole.jsonl")
    address = ray.get_runtime_context().gcs_address
    line = ("batch", source, tmp_path / "out.jsonl", "-m", model, "-t", "1", "--alias", "tiny")
    found = run(*line, "--ray", address, "--actors", "1:2", **OPEN)
    assert found.returncode == 1, found.stderr
    assert (tmp_path / "out.jsonl").read_bytes() == expected
