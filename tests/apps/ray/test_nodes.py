"""A machine of a cluster that ends in the middle of a job: the answers are those of one engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oxillama import EngineConfig, InferenceEngine
from oxillama.apps.batch.engines import for_jobs, window_of
from oxillama.apps.batch.facts import facts_of
from oxillama.apps.batch.job import Job, Tally, with_engine
from oxillama.apps.batch.plain import Settings
from oxillama.apps.batch.rows import Rows
from tests.support.clusters import OPEN, workers
from tests.support.paths import ROOT
from tests.support.tiny_file import write_tiny_model
from tests.support.waiting import until

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("ray.data", reason="Ray's data packages are not installed")
from ray.cluster_utils import Cluster  # noqa: E402

from oxillama.apps.ray.cluster import on_cluster  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # warnings of Ray itself

N_ROWS = 4000


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of one machine, on which the job is, to which others can be added."""
    for name, value in OPEN.items():
        monkeypatch.setenv(name, value)
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    ray.init(
        found.address,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": environment},
    )
    try:
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


def test_a_machine_that_ends_changes_nothing(machines: Any, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", ends=False)
    source, settings = tmp_path / "in.jsonl", Settings(model_name="tiny")
    source.write_text(
        "".join(f'{{"prompt": "once upon a time {i}", "max_tokens": {1 + i % 12}}}\n' for i in range(N_ROWS))
    )
    config = for_jobs(EngineConfig(model_path=model, num_threads=1, prefix_cache_bytes=1 << 18))
    facts = facts_of(config, settings)
    with InferenceEngine(config) as engine:
        whole = Job(source, tmp_path / "whole.jsonl", facts)
        whole.run(with_engine(Rows(engine, settings), window_of(config)), lambda tally: None)
    nodes = [machines.add_node(num_cpus=1)]
    until(lambda: sum(node["Alive"] for node in ray.nodes()) == 2, 60)
    job = Job(source, tmp_path / "out.jsonl", facts, overwrites=True)

    def seen(tally: Tally) -> None:
        if nodes and tally.n_done >= N_ROWS // 4:
            assert len(workers("MapWorker", nodes[0])) == 1
            machines.remove_node(nodes.pop(), allow_graceful=False)

    tally = job.run(on_cluster(config, settings, (2, 2)), seen)
    assert not nodes
    assert (tally.n_done, tally.n_failed) == (N_ROWS, 0)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
