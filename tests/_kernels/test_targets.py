"""Targets: which there are, which can run, and how one is chosen."""

from __future__ import annotations

import platform

import pytest

from oxillama import _kernels
from oxillama._kernels import best, cpu, load, targets
from oxillama.base.targets import PER_TARGET, TARGETS
from oxillama.errors import ConfigError
from tests.support.kernels import PRESENT, refuses


def test_portable_is_last_and_needs_nothing() -> None:
    assert TARGETS[-1].name == "portable"
    assert TARGETS[-1].machines == TARGETS[-1].features == TARGETS[-1].flags == TARGETS[-1].msvc_flags == ()
    assert PRESENT[-1] == "portable"


def test_names_are_distinct_and_machines_lower_case() -> None:
    assert len({target.name for target in TARGETS}) == len(TARGETS)
    assert all(machine == machine.lower() for target in TARGETS for machine in target.machines)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_target_can_run_or_says_why_not(target: object) -> None:
    assert isinstance(target, type(TARGETS[0]))
    reason = targets()[target.name]
    if reason is None:
        assert all(cpu.has(feature) for feature in target.features)
        kernels = load(target.name)
        assert kernels.target == target.name
        assert kernels.linear.__name__.endswith(f"linear_{target.name}")
        assert kernels.vector.__name__.endswith(f"vector_{target.base or target.name}")
    else:
        assert reason == "not built" or reason.startswith("the CPU has no ")
        refuses(f"target {target.name}: {reason}", load, target.name, error=ConfigError)


def test_a_base_is_a_worse_target_that_runs_wherever_the_other_does() -> None:
    for at, target in enumerate(TARGETS):
        if target.base:
            (base,) = (each for each in TARGETS[at + 1 :] if each.name == target.base)
            assert {*base.features} <= {*target.features} and base.machines == target.machines
            assert base.modules() == dict.fromkeys(PER_TARGET, base.name) and {*target.own} < {*PER_TARGET}
            assert {*target.modules().values()} == {target.name, base.name}


def test_targets_of_another_machine_are_not_built() -> None:
    here = platform.machine().lower()
    for target in TARGETS:
        if target.machines and here not in target.machines:
            assert targets()[target.name] == "not built"


def test_a_missing_feature_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    target = next((t for t in TARGETS if t.features and targets()[t.name] != "not built"), None)
    if target is None:
        pytest.skip("only the portable target was built")

    class Poor:
        @staticmethod
        def has(feature: str) -> bool:
            assert target is not None
            return feature != target.features[0]

    monkeypatch.setattr(_kernels, "cpu", Poor)
    assert targets.__wrapped__()[target.name] == f"the CPU has no {target.features[0]}"


def test_what_is_unknown_is_refused_or_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "target: expected one of .*portable, got 'sse9'"
    refuses(text, load, "sse9", error=ConfigError)
    monkeypatch.setenv("OXILLAMA_TARGET", "sse9")
    refuses(text, best, error=ConfigError)
    assert cpu.has("avx1024") is False


def test_the_best_is_the_first_that_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OXILLAMA_TARGET", raising=False)
    automatic = {target.name for target in TARGETS if target.use == "automatic"}
    assert best().target == next(name for name in PRESENT if name in automatic)


@pytest.mark.parametrize("name", PRESENT)
def test_the_environment_overrides_the_choice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXILLAMA_TARGET", name)
    assert best().target == name


def test_a_build_for_other_cpus_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OXILLAMA_TARGET", raising=False)
    monkeypatch.setattr(_kernels, "targets", lambda: {"avx2": "the CPU has no avx2", "portable": "not built"})
    text = "got avx2: the CPU has no avx2, portable: not built; install again"
    refuses(text, best, error=ConfigError)
