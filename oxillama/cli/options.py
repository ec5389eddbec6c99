"""Arguments made from the fields of the configuration dataclasses, and the dataclasses made from arguments.

The dataclasses are `EngineConfig`, `SamplerConfig` and `GenerationOptions`. A field's type says how its
argument is parsed; the class's docstring is its help. So a new field of a plain type becomes an option of
every command without a line here. ``--field-name`` always works; `NAMES` lists other common names. `SPECIAL`
and `MADE_OF` are for fields whose types are not plain.
"""

from __future__ import annotations

import argparse
import os
import re
import types
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, Union, get_args, get_origin, get_type_hints

from oxillama import EngineConfig, GenerationOptions, SamplerConfig, SchedulerConfig
from oxillama.cli.console import read_text
from oxillama.config.server import ServerConfig
from oxillama.errors import ConfigError

NAMES: dict[str, tuple[str, ...]] = {
    "adapters": ("--lora",),
    "context_size": ("-c", "--ctx", "--ctx-size"),
    "max_tokens": ("-n",),
    "num_threads": ("-t", "--threads"),
    "seed": ("-s",),
    "speculate": ("--draft-model",),
    "prefill_chunk_size": ("--prefill-chunk",),
    "repetition_penalty": ("--repeat-penalty",),
    "repetition_window": ("--repeat-window", "--repeat-last-n"),
    "temperature": ("--temp",),
    "tokenizer_path": ("--tokenizer",),
    "typical_p": ("--typical",),
    "top_n_sigma": ("--top-nsigma",),
    "dry_range": ("--dry-penalty-last-n",),
    "dry_sequence_breakers": ("--dry-sequence-breaker",),
    "dynatemp_exponent": ("--dynatemp-exp",),
    "mirostat_tau": ("--mirostat-ent",),
    "mirostat_eta": ("--mirostat-lr",),
    "choices": ("--choice",),
    "order": ("--samplers",),
    "api_keys": ("--api-key",),
    "cors_origins": ("--cors-origin",),
    "allowed_hosts": ("--allowed-host",),
    "model_name": ("--alias",),
}


def integer(text: str) -> int:
    """An argument that is an integer."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected an integer, got {text!r}") from None


def number(text: str) -> float:
    """An argument that is a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None


def byte_count(text: str) -> int:
    """A number of bytes: 4096, 512M, 1.5G; M and G are powers of 1024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected bytes, as 4096, 512M or 1.5G, got {text!r}")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def token_bias(text: str) -> tuple[int, float]:
    """A token id and its bias: 15043+1.5, 15043-1, 15043-inf."""
    parts = re.fullmatch(r"(\d+)([+-].+)", text)
    try:
        return int(parts[1]), float(parts[2])  # type: ignore[index]
    except (TypeError, ValueError):
        message = f"expected a token id and its bias, as 15043+1.5, got {text!r}"
        raise argparse.ArgumentTypeError(message) from None


def stage_names(text: str) -> tuple[str, ...]:
    """Names of stages with semicolons between them."""
    return tuple({"typ_p": "typical_p"}.get(name, name) for name in text.split(";") if name)


def scaled_path(text: str) -> tuple[str, float]:
    """The path of an adapter, and its scale behind the last "=": pirate.gguf, pirate.gguf=0.5."""
    path, _, scale = text.rpartition("=")
    try:
        return (path, float(scale)) if path else (text, 1.0)
    except ValueError:
        return text, 1.0


SPECIAL: dict[str, dict[str, Any]] = {
    "adapters": {"action": "append", "type": scaled_path, "metavar": "FILE[=SCALE]"},
    "dry_sequence_breakers": {"action": "append", "type": str},
    "logit_bias": {"action": "append", "type": token_bias, "metavar": "ID+BIAS"},
    "order": {"type": stage_names, "metavar": "A;B;..."},
    "grammar": {"type": str, "metavar": "FILE"},
    "json_schema": {"type": str, "metavar": "FILE"},
    "structural_tag": {"type": str, "metavar": "FILE"},
    "packed": {"type": str, "metavar": "auto|make|off|FILE"},
    "quantize": {"type": str, "metavar": "FORMAT"},
    "models_memory": {"type": byte_count, "metavar": "BYTES"},
    "offload_budget": {"type": byte_count, "metavar": "BYTES"},
    "offload_pinned": {"action": "append", "type": str, "metavar": "NAME"},
    "speculate": {"type": str, "metavar": "auto|lookup|self|FILE"},
    "draft_corpus": {"action": "append", "type": str, "metavar": "FILE"},
    "tokenizer_path": {"type": str, "metavar": "FILE"},
    "slot_save_path": {"type": str, "metavar": "FOLDER"},
    "ssl_certfile": {"type": str, "metavar": "FILE"},
    "ssl_keyfile": {"type": str, "metavar": "FILE"},
    "prefix_cache_dir": {"type": str, "metavar": "FOLDER"},
    "trace": {"type": str, "metavar": "FILE"},
}
"""How argparse parses the fields whose types do not say how, or whose values need a name of their own."""

MADE_OF: dict[str, Callable[[Any], Any]] = {
    "dry_sequence_breakers": lambda texts: () if texts == ["none"] else texts,
    "logit_bias": dict,
    "grammar": lambda path: read_text(path, "grammar"),
    "json_schema": lambda path: read_text(path, "json_schema"),
    "structural_tag": lambda path: read_text(path, "structural_tag"),
    "max_tokens": lambda n: None if n == -1 else n,
}
"""From the parsed argument to the field's value, where the two differ."""

EXCLUDED = (
    *("model_path", "sampler", "scheduler"),  # set by MODEL, by the sampling options, and for servers only
    *("priority", "salt", "window"),  # no effect on a single request
    *("logprobs", "top_logprobs", "keep_logits", "request_id"),  # no effect on the text
    "receipt",  # it takes a file here
    *("tools", "tool_choice", "parallel_tool_calls", "message_format"),  # of chats, which have their own
    "response_format",  # --json-schema and --structural-tag say the same
)
"""Fields without an option."""

SCALARS = (int, float, str, bool)
PARSERS: dict[type, Callable[[str], Any]] = {int: integer, float: number}
METAVARS = {int: "N", float: "X"}


def add_command(commands: Any, name: str, verbose: str = "show the log on stderr", **texts: Any) -> Any:
    """A parser for a command, with the options that all commands have; ``texts`` as for argparse."""
    parser = commands.add_parser(name, allow_abbrev=False, **texts)
    parser.add_argument("-v", "--verbose", action="store_true", help=verbose)
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="only errors and warnings on stderr: no bars, no summary"
    )
    return parser


def add_engine_options(parser: argparse.ArgumentParser, skip: Container[str] = ()) -> None:
    """Every option of `EngineConfig` (its seed is the sampler's) but those to ``skip``."""
    group = parser.add_argument_group("model")
    shared = _names(SamplerConfig)
    _add_fields(group, EngineConfig, [n for n in _names(EngineConfig) if n not in shared and n not in skip])
    add_progress_option(group)


def add_progress_option(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    group.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show progress bars (default: if stderr is a terminal)",
    )


def add_sampler_options(parser: argparse.ArgumentParser) -> None:
    """Every option of `SamplerConfig`, and --greedy."""
    group = parser.add_argument_group("sampling")
    _add_fields(group, SamplerConfig, _names(SamplerConfig))
    group.add_argument("--greedy", action="store_true", help="always the most likely token")


def add_generation_options(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """Every option of `GenerationOptions`; ``defaults`` replace those of the class."""
    group = parser.add_argument_group("generation")
    shared = _names(EngineConfig)  # a single request takes the engine's
    _add_fields(group, GenerationOptions, [n for n in _names(GenerationOptions) if n not in shared], defaults)


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Every option of `ServerConfig` and of `SchedulerConfig`."""
    group = parser.add_argument_group("server")
    for cls in (ServerConfig, SchedulerConfig):
        _add_fields(group, cls, _names(cls))


def add_named_options(parser: argparse.ArgumentParser, names: Container[str]) -> None:
    """The options of `EngineConfig`, `SamplerConfig` and `SchedulerConfig` that are named."""
    shared = _names(SamplerConfig)
    _add_fields(parser, SchedulerConfig, [n for n in _names(SchedulerConfig) if n in names])
    _add_fields(parser, SamplerConfig, [n for n in shared if n in names])
    _add_fields(parser, EngineConfig, [n for n in _names(EngineConfig) if n in names and n not in shared])


def engine_config(args: argparse.Namespace, model: str | os.PathLike[str] | None = None) -> EngineConfig:
    """The `EngineConfig` that the arguments ask for. Raises ConfigError for a value out of range."""
    return EngineConfig(model_path=model, sampler=sampler_config(args), **given(args, EngineConfig))


def generation_options(args: argparse.Namespace) -> GenerationOptions:
    """The `GenerationOptions` that the arguments ask for. Raises ConfigError for a value out of range."""
    return GenerationOptions(**given(args, GenerationOptions))


def sampler_config(args: argparse.Namespace) -> SamplerConfig:
    """The `SamplerConfig` that the arguments ask for.

    Raises ConfigError for a value out of range, and for --greedy together with an option that contradicts it.
    """
    chosen = given(args, SamplerConfig)
    if not getattr(args, "greedy", False):
        return SamplerConfig(**chosen)
    greedy, usual = SamplerConfig.greedy(), SamplerConfig()
    fixed = {n: getattr(greedy, n) for n in _names(SamplerConfig) if getattr(greedy, n) != getattr(usual, n)}
    for name, value in chosen.items():
        if name in fixed and fixed[name] != value:
            raise ConfigError(f"greedy: means {name} {fixed[name]}, cannot be combined with {name} {value}")
    return SamplerConfig(**{**fixed, **chosen})


def given(args: argparse.Namespace, cls: type) -> dict[str, Any]:
    """The fields of ``cls`` that the command line sets."""
    values = {name: getattr(args, name, None) for name in _names(cls)}
    made = {name: MADE_OF.get(name, lambda v: v)(v) for name, v in values.items() if v is not None}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in made.items()}


def _names(cls: type) -> list[str]:
    return [field.name for field in fields(cls) if field.name not in EXCLUDED]


def _add_fields(parser: Any, cls: type, names: Container[str], defaults: Mapping[str, Any] = {}) -> None:
    types_of, meanings = get_type_hints(cls), dict(_meanings(cls.__doc__ or ""))
    for field in fields(cls):
        kind = SPECIAL.get(field.name) or argument_kind(types_of[field.name])
        if field.name not in names or kind is None:
            continue
        how = dict(kind)
        if "type" in how:
            how.setdefault("metavar", METAVARS.get(how["type"], "TEXT"))
            how["type"] = PARSERS.get(how["type"], how["type"])
        default = defaults.get(field.name, None if field.default is MISSING else field.default)
        none = "without it" if default in (None, ()) else "-1 for"
        meaning = re.sub(r"\bNone (for|takes)\b", none, meanings.get(field.name, "")).replace("`", "")
        help = f"{meaning.removesuffix('.')}{_default(default)}".replace("%", "%%")
        flags = (*NAMES.get(field.name, ()), "--" + field.name.replace("_", "-"))
        parser.add_argument(*flags, dest=field.name, help=help, default=defaults.get(field.name), **how)


def argument_kind(hint: Any) -> dict[str, Any] | None:
    """How argparse parses a value of this type; None for a type that is not plain."""
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in map(argument_kind, get_args(hint)) if kind]
        return max(kinds, key=lambda kind: "action" in kind, default=None)  # a repeatable one first
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if hint in SCALARS:
        return {"type": hint}
    if get_origin(hint) is tuple and get_args(hint)[1:] == (...,) and get_args(hint)[0] in SCALARS:
        return {"action": "append", "type": get_args(hint)[0]}
    return None


def _default(value: Any) -> str:
    if value in (None, ()):
        return ""
    if isinstance(value, tuple):
        return " (default: " + " ".join(repr(x) if x.strip() != x else x for x in value) + ")"
    return f" (default: {value})"


def _meanings(docstring: str) -> Iterator[tuple[str, str]]:
    """(name, text) of each entry ``name : text`` or ``name, name : text`` below "Attributes"."""
    lines = docstring.partition("Attributes\n")[2].splitlines()[1:]
    names: list[str] = []
    text = ""
    for line in lines:
        entry = re.match(r" {4}([a-z][\w, ]*) : (.*)", line)
        if entry or not line.strip():
            yield from ((name, text) for name in names)
            names, text = (entry[1].split(", "), entry[2]) if entry else ([], "")
            if not entry:
                return
        else:
            text += " " + line.strip()
    yield from ((name, text) for name in names)
