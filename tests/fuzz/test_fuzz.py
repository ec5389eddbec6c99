"""Hostile inputs of every kind: the corpus, and fresh mutants from a fixed seed; `tools/fuzz.py` runs more.

And the harness itself: it finds what it is there to find, and says which input it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.fuzz.harness import CORPUS, Finding, Worker, fuzz, minimize, outcome_of
from tests.fuzz.mutate import built, minimized, mutated, smaller
from tests.fuzz.targets import TARGETS
from tests.fuzz.unsound import Unsound
from tests.support.spread import slow

SEED = 1
MOST_SEEDS = 60
"""Inputs of a corpus in each run. Only that of models is larger: by models that other tests run, too."""


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Some inputs are made with files, which belong into no folder of the user's."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("fuzz"))
    yield
    os.chdir(before)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as made:
        yield made


@pytest.mark.parametrize("share", [8, slow(1)])
@pytest.mark.parametrize("name", TARGETS)
def test_hostile_inputs(name: str, share: int, worker: Worker) -> None:
    n_corpus = worker.ask(name, None)
    start = max(0, n_corpus - MOST_SEEDS) if share > 1 else 0
    n_runs = n_corpus - start + TARGETS[name].per_run // share  # the corpus and new inputs
    report = fuzz(worker, TARGETS[name], runs=n_runs, seed=SEED, start=start)
    for finding in report.findings.values():
        pytest.fail(f"{finding.kind}\n{finding.value!r:.2000}\n{finding.details}")
    assert report.n == n_runs, report
    assert report.counts["used"] > report.n // 20, report  # most inputs of some kinds are refused
    assert report.counts["used"] + report.counts["skipped"] < report.n, report  # some are


@pytest.mark.parametrize("name", TARGETS)
def test_what_the_corpus_begins_with_is_valid(name: str, worker: Worker) -> None:
    first = TARGETS[name].seeds()[0]
    counts, found = worker.ask(name, [first])
    assert (dict(counts), found) == ({"used": 1}, [])


@pytest.mark.parametrize("name", sorted(f"{p.parent.name}/{p.stem}" for p in CORPUS.glob("*/*.json")))
def test_what_once_failed(name: str, worker: Worker) -> None:
    value = json.loads((CORPUS / f"{name}.json").read_text(encoding="utf-8"))
    counts, found = worker.ask(name.partition("/")[0], [value])
    assert not found, found[0].details
    assert "skipped" not in counts


# --- the harness ------------------------------------------------------------------------------------


def test_the_harness_finds_what_is_unsound() -> None:
    target = Unsound()
    with Worker([target], wall=1.0) as worker:
        report = fuzz(worker, target, runs=12)
        limited = os.path.exists("/proc/self/statm")
        assert report.counts == {"used": 8 - limited, "GGUFError": 1, "FINDINGS": 3 + limited}, report
        found = {finding.value[0]: finding for finding in report.findings.values()}
        assert found["error"].kind.startswith("KeyError in ")
        assert found["crash"].kind.startswith("exit code ")
        assert found["hang"].kind.startswith("hang")
        assert "Timeout" in found["hang"].details
        if limited:
            assert found["memory"].kind.startswith("MemoryError")
        minimize(worker, target, found["error"])
        assert found["error"].value == ["error"]
        assert outcome_of(worker, target.name, ["fine"]) is None
        again = outcome_of(worker, target.name, ["crash"])
        assert isinstance(again, Finding)


def test_the_same_number_is_the_same_input() -> None:
    for target in TARGETS.values():
        corpus = target.corpus()
        index = len(corpus) + 3
        assert repr(target.make(corpus, 5, index)) == repr(target.make(corpus, 5, index)), target.name
        assert any(
            repr(target.make(corpus, 5, index + n)) != repr(target.make(corpus, 6, index + n))
            for n in range(5)
        )


def test_an_input_is_made_smaller_until_nothing_can_go() -> None:
    value = {"a": [1, {"b": "xxxxyzzzz"}, 3], "c": {"d": [4, 5]}, "e": 700}

    def fails(candidate: Any) -> bool:
        return "y" in repr(candidate) and "4" in repr(candidate)

    assert minimized(value, fails) == {"a": [{"b": "y"}], "c": {"d": [4]}}
    assert list(smaller([])) == []


def test_what_json_cannot_hold_is_built() -> None:
    assert built({"@repeat": ["ab", 2]}) == "abab"
    assert built({"@nest": ["k", 2, {"@tuple": [1]}]}) == {"k": {"k": (1,)}}
    assert built([{"@bytes": "00ff"}]) == [b"\x00\xff"]
    assert built({"@array": ["uint8", [1, 2]]}).tolist() == [1, 2]
    value = {"a": [1, 2], "b": "text"}
    assert any(mutated(value, Random(seed)) != value for seed in range(4))
    assert value == {"a": [1, 2], "b": "text"}
