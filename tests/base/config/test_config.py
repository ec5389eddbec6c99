"""What a process may use, and options from several places."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oxillama.base.config import GenerationOptions, SamplerConfig, available_cpus


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="has no affinities")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("max 100000\n", 8), ("200000 100000\n", 2), ("150000 100000\n", 2), ("160000 50000\n", 3),
        ("10000 100000\n", 1), ("9900000 100000\n", 8), ("", 8), ("some text\n", 8), (None, 8),
    ],
)  # fmt: skip
def test_cpus_are_bounded_by_the_quota(text: str | None, found: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_text(path: Path) -> str:
        assert str(path) == "/sys/fs/cgroup/cpu.max"
        if text is None:
            raise FileNotFoundError
        return text

    with monkeypatch.context() as patched:
        patched.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
        patched.setattr(Path, "read_text", read_text)
        assert available_cpus() == found


def test_the_sampler_of_the_options_comes_before_the_engines() -> None:
    usual, own = SamplerConfig(top_k=7, seed=1), SamplerConfig(top_k=9, seed=2)
    cases: list[tuple[GenerationOptions | None, dict[str, object], SamplerConfig]] = [
        (None, {}, usual),
        (None, {"top_k": 3}, SamplerConfig(top_k=3, seed=1)),
        (GenerationOptions(sampler=own), {}, own),
        (GenerationOptions(sampler=own), {"top_k": 3}, SamplerConfig(top_k=3, seed=2)),
        (GenerationOptions(sampler=own), {"sampler": usual, "seed": 5}, SamplerConfig(top_k=7, seed=5)),
    ]
    for options, given, expected in cases:
        assert GenerationOptions.of(options, given, usual).sampler == expected
