"""What a process may use, and options from several places."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oxillama.base.config import GenerationOptions, SamplerConfig, available_cpus


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="has no affinities")
@pytest.mark.parametrize("group", ["", "system.slice/oxillama.service"], ids=["container", "unit"])
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("max 100000\n", 8), ("200000 100000\n", 2), ("150000 100000\n", 2), ("160000 50000\n", 3),
        ("10000 100000\n", 1), ("9900000 100000\n", 8), ("", 8), ("some text\n", 8), (None, 8),
    ],
)  # fmt: skip
def test_cpus_are_bounded_by_the_quota(
    text: str | None, found: int, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container sees its own group as the root; the group of a unit of systemd is below the root."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"0::/{group}\n")
    (tmp_path / "sys/fs/cgroup" / group).mkdir(parents=True)
    if text is not None:
        (tmp_path / "sys/fs/cgroup" / group / "cpu.max").write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert available_cpus(tmp_path) == found


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
