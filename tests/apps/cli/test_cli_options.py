"""The options made of the configuration dataclasses."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from oxillama import ConfigError, EngineConfig, GenerationOptions, SamplerConfig
from oxillama.apps.cli import build_parser, options
from oxillama.base.config.option import Option, declared, option
from tests.support.command_line import COMMANDS, output


def other_value(cls: type, name: str) -> Any:
    """A value that the field takes and that is not its default."""
    default: Any = getattr(cls(), name)
    special = {
        "kv_type": "f32", "quantize": "Q8_0", "compute": "f32", "tokenizer_path": "tokenizer.json",
        "chat_template": "chatml", "prefix_cache_dir": "blocks", "mirostat": 2, "dry_base": 2.0,
        "dry_range": 50, "dry_sequence_breakers": ("x",), "logit_bias": {15043: 1.5}, "banned_tokens": (3,),
        "allowed_tokens": (3,), "regex": "a*", "choices": ("x",), "stop": ("x",),
        "adapters": (("a=b.gguf", 0.5),), "offload_pinned": ("output.weight",), "offload_budget": 4096,
        "packed": "make", "packed_access": "read", "offload_access": "direct", "speculate": "lookup",
        "numa": "split", "draft_corpus": ("notes.txt",), "trace": "trace.json", "mmproj": "mmproj.gguf",
        "draft_acceptance": "rejection", "order": ("top_k", "typical_p", "temperature"),
    }  # fmt: skip
    if name in special:
        return special[name]
    if isinstance(default, bool):
        return not default
    if default is None:
        return 3
    if isinstance(default, int):
        return default * 2 or 1
    return default / 2 or 0.5


def texts_of(value: Any) -> list[str]:
    """How the value is said on the command line."""
    if isinstance(value, dict):
        return [f"{token}{bias:+}" for token, bias in value.items()]
    if isinstance(value, tuple) and isinstance(value[0], tuple):
        return [f"{path}={scale}" for path, scale in value]
    if isinstance(value, tuple):
        return [";".join(map(str, value))]
    return [] if isinstance(value, bool) else [str(value)]


CLASSES = (EngineConfig, SamplerConfig, GenerationOptions)
FIELDS = [(cls, name) for cls in CLASSES for name, each in declared(cls).items() if each.cli]
READ = ("grammar", "json_schema", "structural_tag")  # from files
NEEDED = {"run": ["m", "-p", "x"], "chat": ["m"], "demo": [], "quantize": ["a", "b", "Q4_K"]}
"""Arguments without which a command is refused."""

HELPS = ("chat", "run", "serve", "batch", "decide", "calibrate", "eval", "perplexity", "compare", "bench")


@pytest.mark.parametrize("name", HELPS)
def test_a_help_is_short_and_another_one_whole(name: str) -> None:
    short, whole = output(name, "--help"), output(name, "--help-all")
    assert short.count("\n") <= options.MOST_LINES and whole.count("\n") > options.MOST_LINES
    assert f"'oxillama {name} --help-all' shows all" in short
    flags = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", short, re.MULTILINE))
    assert {"--ctx", "--threads", "--help"} <= flags <= set(re.findall(r"--[\w-]+", whole))


@pytest.mark.parametrize("name", COMMANDS)
def test_no_help_has_values_of_python(name: str) -> None:
    text = output(name, "--help-all")
    words = r"%%|\bNone\b|\bTrue\b|\bFalse\b|\(\) for|\w(?:Config|Options)\b|\ba dict\b|tuples"
    assert not re.search(words, text), re.findall(f".*(?:{words}).*", text)


@pytest.mark.parametrize(("cls", "name"), [f for f in FIELDS if f[1] not in READ])
@pytest.mark.parametrize("verb", ["run", "chat"])
def test_every_field_has_an_option_that_sets_it(verb: str, cls: type, name: str) -> None:
    value = other_value(cls, name)
    flag = f"--{'no-' * (value is False)}{name.replace('_', '-')}"
    args = build_parser(verb).parse_args([verb, *NEEDED[verb], flag, *texts_of(value)])
    config = options.engine_config(args, "m")
    made: Any = {EngineConfig: config, SamplerConfig: config.sampler}.get(cls)
    assert getattr(made or options.generation_options(args), name) == value
    usual = EngineConfig(model_path="m")
    changed = [f.name for f in fields(config) if getattr(config, f.name) != getattr(usual, f.name)]
    assert set(changed) <= {name, "sampler"}


def test_only_fields_made_of_other_arguments_have_no_option() -> None:
    shared = {"model_path", "sampler", "scheduler", "priority", "max_decode_wait_ms", "salt", "window"}
    shared |= {"tenant"}
    of_chats = {"tools", "tool_choice", "parallel_tool_calls", "message_format"}
    excluded = {name for cls in CLASSES for name, each in declared(cls).items() if not each.cli}
    assert excluded == shared | of_chats | {
        "logprobs", "top_logprobs", "keep_logits", "receipt", "request_id", "response_format",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "flags", "expected"),
    [
        ("run", [], GenerationOptions()),
        ("chat", [], GenerationOptions(max_tokens=1024)),
        ("demo", [], GenerationOptions(max_tokens=400)),
        ("demo", ["-n", "-1"], GenerationOptions(max_tokens=None)),
        ("chat", ["--max-tokens", "0"], GenerationOptions(max_tokens=0)),
        ("run", ["--stop", "a", "--stop", "b"], GenerationOptions(stop=("a", "b"))),
        ("run", ["--timeout", "1.5"], GenerationOptions(timeout=1.5)),
    ],
)
def test_generation_options(verb: str, flags: list[str], expected: GenerationOptions) -> None:
    args = build_parser(verb).parse_args([verb, *NEEDED[verb], *flags])
    assert options.generation_options(args) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["-t", "3"], {"num_threads": 3}),
        (["--threads", "3"], {"num_threads": 3}),
        (["-c", "99"], {"context_size": 99}),
        (["--ctx", "99"], {"context_size": 99}),
        (["--ctx-size", "99"], {"context_size": 99}),
        (["--prefill-chunk", "7"], {"prefill_chunk_size": 7}),
        (["--tokenizer", "t.json"], {"tokenizer_path": "t.json"}),
        (["--seed", "5"], {"seed": 5}),
        (["--draft-corpus", "a.txt", "--draft-corpus", "b"], {"draft_corpus": ("a.txt", "b")}),
        *(
            (["--offload-budget", text], {"offload_budget": n_bytes})
            for text, n_bytes in (
                *(("4096", 4096), ("10k", 10 << 10), ("512M", 512 << 20)),
                *(("1.5G", 3 << 29), ("2GiB", 2 << 30), ("1TB", 1 << 40)),
            )
        ),
    ],
)
def test_engine_options(flags: list[str], expected: dict[str, Any]) -> None:
    config = options.engine_config(build_parser("run").parse_args(["run", "m", "-p", "x", *flags]), "m")
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["-s", "5"], SamplerConfig(seed=5)),
        (["--temp", "0.5"], SamplerConfig(temperature=0.5)),
        (["--repeat-penalty", "1.5"], SamplerConfig(repetition_penalty=1.5)),
        (["--repeat-window", "-1"], SamplerConfig(repetition_window=-1)),
        (["--top-k", "0", "--top-p", "1", "--min-p", "0"], SamplerConfig(top_k=0, top_p=1.0, min_p=0.0)),
        (["--greedy"], SamplerConfig.greedy()),
        (["--typical", "0.5", "--top-nsigma", "2"], SamplerConfig(typical_p=0.5, top_n_sigma=2.0)),
        (["--repeat-last-n", "5"], SamplerConfig(repetition_window=5)),
        (["--dry-penalty-last-n", "50"], SamplerConfig(dry_range=50)),
        (["--mirostat", "2", "--mirostat-ent", "3"], SamplerConfig(mirostat=2, mirostat_tau=3.0)),
        (
            ["--mirostat-lr", "0.2", "--dynatemp-exp", "2"],
            SamplerConfig(mirostat_eta=0.2, dynatemp_exponent=2.0),
        ),
        (["--dry-sequence-breaker", "none"], SamplerConfig(dry_sequence_breakers=())),
        (
            ["--dry-sequence-breaker", ".", "--dry-sequence-breaker", "!"],
            SamplerConfig(dry_sequence_breakers=(".", "!")),
        ),
        (
            ["--logit-bias", "3+1.5", "--logit-bias", "4-inf", "--logit-bias", "5-2"],
            SamplerConfig(logit_bias={3: 1.5, 4: float("-inf"), 5: -2.0}),
        ),
        (["--samplers", "typ_p;temperature"], SamplerConfig(order=("typical_p", "temperature"))),
        (["--choice", "yes", "--choice", "no"], SamplerConfig(choices=("yes", "no"))),
        (["--banned-tokens", "3", "--banned-tokens", "4"], SamplerConfig(banned_tokens=(3, 4))),
        (["--greedy", "--temp", "0"], SamplerConfig.greedy()),
        (["--greedy", "--repeat-penalty", "2"], replace(SamplerConfig.greedy(), repetition_penalty=2.0)),
    ],
)
def test_sampling_options(flags: list[str], expected: SamplerConfig) -> None:
    assert options.sampler_config(build_parser("run").parse_args(["run", "m", "-p", "x", *flags])) == expected


@pytest.mark.parametrize("name", READ)
def test_grammars_and_schemas_are_read_from_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text('{"type": "number"}')
    flags = ["run", "m", "-p", "x", f"--{name.replace('_', '-')}"]
    args = build_parser().parse_args([*flags, str(path)])
    assert getattr(options.sampler_config(args), name) == '{"type": "number"}'
    with pytest.raises(ConfigError, match=name):
        options.sampler_config(build_parser().parse_args([*flags, str(tmp_path / "none")]))


REFUSED = [
    ("run", "--offload-budget", "bytes, as 4096, 512M or 1.5G", "|G|-1G|1.5.1|50%|1 G|1e9"),
    ("run", "--logit-bias", "a token id and its bias, as 15043+1.5", "5|+1|5+|5+x|a+1|5 1"),
    ("quantize", "--tensor-type", "NAME=FORMAT", "attn|=Q4_K|attn="),
]


@pytest.mark.parametrize(
    ("verb", "flag", "said", "text"),
    [(verb, flag, said, text) for verb, flag, said, texts in REFUSED for text in texts.split("|")],
)
def test_values_that_are_refused(
    verb: str, flag: str, said: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        build_parser(verb).parse_args([verb, *NEEDED[verb], f"{flag}={text}"])
    assert f"expected {said}, got {text!r}" in capsys.readouterr().err


def test_greedy_and_what_undoes_it_are_refused() -> None:
    args = build_parser("run").parse_args(["run", "m", "-p", "x", "--greedy", "--temp", "1"])
    with pytest.raises(ConfigError, match=r"greedy: means temperature 0\.0"):
        options.sampler_config(args)


def test_a_format_stands_behind_the_last_equals_sign() -> None:
    for text, found in (("attn=Q2_K", ("attn", "Q2_K")), ("(?=ffn).*=q5_k", ("(?=ffn).*", "q5_k"))):
        args = build_parser("quantize").parse_args(["quantize", *NEEDED["quantize"], "--tensor-type", text])
        assert args.tensor_types == [found]


@pytest.mark.parametrize(
    ("type", "more", "kind"),
    [
        ("int | None", {}, {"type": options.integer, "metavar": "N"}),
        ("float", {}, {"type": options.number, "metavar": "X"}),
        ("AnyPath | None", {}, {"type": str, "metavar": "FILE"}),
        ("AnyPath", {"choices": ("a", "b")}, {"type": str, "metavar": "a|b|FILE"}),
        ("str", {"choices": ("a", "b")}, {"type": str, "metavar": "a|b"}),
        ("str", {}, {"type": str, "metavar": "TEXT"}),
        ("tuple[str, ...]", {}, {"action": "append", "type": str, "metavar": "TEXT"}),
        ("tuple[int, ...] | None", {}, {"action": "append", "type": options.integer, "metavar": "N"}),
        ("tuple[str, ...]", {"is_list": False}, {"type": str, "metavar": "TEXT"}),
        ("int", {"argument": "BYTES"}, {"type": options.byte_count, "metavar": "BYTES"}),
        ("bool", {}, {"action": argparse.BooleanOptionalAction}),
    ],
)
def test_the_argument_of_an_option_follows_from_its_type(type: str, more: Any, kind: dict[str, Any]) -> None:
    assert options.argument_kind(Option("", type=type, **more)) == kind


def test_help_of_an_option_is_its_fields_documentation() -> None:
    text = " ".join(output("run", "--help-all").split())
    assert "keep this many of the highest; 0 keeps all. [0, inf) (default: 40)" in text
    assert "max tokens in a sequence; without it what the model was trained with" in text
    assert "max tokens to generate; -1 for as many as the context holds. [0, inf) (default: 256)" in text
    assert "--kv-type TYPE|KEYS:VALUES" in text


@pytest.mark.parametrize("verb", ["run", "chat"])
def test_a_new_field_is_an_option_of_its_own(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Wider(GenerationOptions):
        patience: int = option(3, low=0, help="how long to wait")

    monkeypatch.setattr(options, "GenerationOptions", Wider)
    args = build_parser(verb).parse_args([verb, *NEEDED[verb], "--patience", "7"])
    assert options.generation_options(args).patience == 7  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="patience: expected an integer >= 0, got -1"):
        Wider(patience=-1)
