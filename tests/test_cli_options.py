"""The options made of the configuration dataclasses."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields, replace
from typing import Any

import pytest

from oxillama import ConfigError, EngineConfig, SamplerConfig
from oxillama.cli import build_parser, options
from tests.commandline import (
    output,
)


def other_value(cls: type, name: str) -> Any:
    """A value that the field takes and that is not its default."""
    default = getattr(cls(), name)
    special = {"kv_type": "f32", "tokenizer_path": "tokenizer.json"}
    if name in special:
        return special[name]
    if isinstance(default, bool):
        return not default
    if default is None:
        return 3
    return default * 2 if isinstance(default, int) else default / 2


FIELDS = [(cls, f.name) for cls in (EngineConfig, SamplerConfig) for f in fields(cls)]


@pytest.mark.parametrize(("cls", "name"), [f for f in FIELDS if f[1] not in options.ELSEWHERE])
@pytest.mark.parametrize("verb", ["run", "chat"])
def test_every_field_has_an_option_that_sets_it(verb: str, cls: type, name: str) -> None:
    value = other_value(cls, name)
    prompt = ["-p", "x"] if verb == "run" else []
    args = build_parser().parse_args([verb, "m", *prompt, f"--{name.replace('_', '-')}", str(value)])
    config = options.engine_config(args, "m")
    assert getattr(config if cls is EngineConfig else config.sampler, name) == value
    usual = EngineConfig(model_path="m")
    changed = [f.name for f in fields(config) if getattr(config, f.name) != getattr(usual, f.name)]
    assert set(changed) <= {name, "sampler"}


def test_only_fields_made_of_other_arguments_have_no_option() -> None:
    assert set(options.ELSEWHERE) == {"model_path", "sampler", "scheduler"}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["-t", "3"], {"num_threads": 3}),
        (["--threads", "3"], {"num_threads": 3}),
        (["-c", "99"], {"context_size": 99}),
        (["--ctx", "99"], {"context_size": 99}),
        (["--prefill-chunk", "7"], {"prefill_chunk_size": 7}),
        (["--tokenizer", "t.json"], {"tokenizer_path": "t.json"}),
        (["--seed", "5"], {"seed": 5}),
    ],
)
def test_known_names_of_engine_options(flags: list[str], expected: dict[str, Any]) -> None:
    config = options.engine_config(build_parser().parse_args(["run", "m", "-p", "x", *flags]), "m")
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--temp", "0.5"], SamplerConfig(temperature=0.5)),
        (["--repeat-penalty", "1.5"], SamplerConfig(repetition_penalty=1.5)),
        (["--repeat-window", "-1"], SamplerConfig(repetition_window=-1)),
        (["--top-k", "0", "--top-p", "1", "--min-p", "0"], SamplerConfig(top_k=0, top_p=1.0, min_p=0.0)),
        (["--greedy"], SamplerConfig.greedy()),
        (["--greedy", "--temp", "0"], SamplerConfig.greedy()),
        (["--greedy", "--repeat-penalty", "2"], replace(SamplerConfig.greedy(), repetition_penalty=2.0)),
    ],
)
def test_sampling_options(flags: list[str], expected: SamplerConfig) -> None:
    assert options.sampler_config(build_parser().parse_args(["run", "m", "-p", "x", *flags])) == expected


def test_greedy_and_what_undoes_it_are_refused() -> None:
    args = build_parser().parse_args(["run", "m", "-p", "x", "--greedy", "--temp", "1"])
    with pytest.raises(ConfigError, match=r"greedy: means temperature 0\.0"):
        options.sampler_config(args)


def test_types_that_make_options() -> None:
    assert options.argument_kind(int | None) == {"type": int}
    assert options.argument_kind(str | os.PathLike[str] | None) == {"type": str}
    assert options.argument_kind(tuple[str, ...]) == {"action": "append", "type": str}
    assert options.argument_kind(bool) == {"action": argparse.BooleanOptionalAction}
    assert options.argument_kind(dict[int, float]) is None
    assert options.argument_kind(SamplerConfig) is None


def test_help_of_an_option_is_its_fields_documentation() -> None:
    text = " ".join(output("run", "--help").split())
    assert "keep this many of the highest; 0 keeps all. [0, inf) (default: 40)" in text
    assert "most tokens in a sequence; without it what the model was trained with" in text
