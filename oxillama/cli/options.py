"""Arguments made of the fields of `EngineConfig` and `SamplerConfig`, and these made of the arguments.

A field's type says how its argument is read and the class's docstring says what it means, so a new
field of a plain type is an option of every command without a line here. `NAMES` holds the names the
field is known by elsewhere; ``--field-name`` always works too. `SPECIAL` and `MADE_OF` are for the few of
other types.
"""

from __future__ import annotations

import argparse
import os
import re
import types
from collections.abc import Callable, Container, Iterator
from dataclasses import MISSING, Field, fields
from typing import Any, Union, get_args, get_origin, get_type_hints

from oxillama import EngineConfig, SamplerConfig
from oxillama.cli.console import read_text
from oxillama.errors import ConfigError

NAMES: dict[str, tuple[str, ...]] = {
    "context_size": ("-c", "--ctx"),
    "num_threads": ("-t", "--threads"),
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
}


def token_bias(text: str) -> tuple[int, float]:
    """A token id and its bias: 15043+1.5, 15043-1, 15043-inf."""
    parts = re.fullmatch(r"(\d+)([+-].+)", text)
    try:
        return int(parts[1]), float(parts[2])  # type: ignore[index]
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"needs a token id and its bias, as 15043+1.5, got {text}") from None


def stage_names(text: str) -> tuple[str, ...]:
    """Names of stages with semicolons between them."""
    return tuple({"typ_p": "typical_p"}.get(name, name) for name in text.split(";") if name)


SPECIAL: dict[str, dict[str, Any]] = {
    "dry_sequence_breakers": {"action": "append", "type": str},
    "logit_bias": {"action": "append", "type": token_bias, "metavar": "ID+BIAS"},
    "order": {"type": stage_names, "metavar": "A;B;..."},
    "grammar": {"type": str, "metavar": "FILE"},
    "json_schema": {"type": str, "metavar": "FILE"},
}
"""How argparse reads the fields whose type does not say it."""

MADE_OF: dict[str, Callable[[Any], Any]] = {
    "dry_sequence_breakers": lambda texts: () if texts == ["none"] else texts,
    "logit_bias": dict,
    "grammar": lambda path: read_text(path, "grammar"),
    "json_schema": lambda path: read_text(path, "json_schema"),
}
"""What a field is made of what was read, where that is something else."""

ELSEWHERE = ("model_path", "sampler", "scheduler")
"""Fields that are no option: the commands' MODEL, what sampling options make, what many requests share."""

SCALARS = (int, float, str, bool)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Every option of `EngineConfig` (its seed is the sampler's)."""
    group = parser.add_argument_group("model")
    _add_fields(group, EngineConfig, skip=(*ELSEWHERE, *_names(SamplerConfig)))
    add_progress_option(group)


def add_progress_option(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    group.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show a bar while the model loads (default: if stderr is a terminal)",
    )


def add_sampler_options(parser: argparse.ArgumentParser) -> None:
    """Every option of `SamplerConfig`, and --greedy."""
    group = parser.add_argument_group("sampling")
    _add_fields(group, SamplerConfig)
    group.add_argument("--greedy", action="store_true", help="always the most likely token")


def add_named_options(parser: argparse.ArgumentParser, names: Container[str]) -> None:
    """Those of both classes' fields that are named."""
    for cls in (SamplerConfig, EngineConfig):
        known = _names(SamplerConfig) if cls is EngineConfig else ()
        _add_fields(parser, cls, skip=[n for n in _names(cls) if n not in names or n in known])


def engine_config(args: argparse.Namespace, model: str | os.PathLike[str] | None = None) -> EngineConfig:
    """The configuration that the arguments ask for. Raises ConfigError for a value out of range."""
    given = _given(args, EngineConfig)
    return EngineConfig(model_path=model, sampler=sampler_config(args), **given)


def sampler_config(args: argparse.Namespace) -> SamplerConfig:
    """How the arguments want tokens chosen. Raises ConfigError, also for --greedy and what undoes it."""
    given = _given(args, SamplerConfig)
    if not getattr(args, "greedy", False):
        return SamplerConfig(**given)
    greedy, usual = SamplerConfig.greedy(), SamplerConfig()
    fixed = {n: getattr(greedy, n) for n in _names(SamplerConfig) if getattr(greedy, n) != getattr(usual, n)}
    for name, value in given.items():
        if fixed.get(name, value) != value:
            raise ConfigError(f"greedy: means {name} {fixed[name]}, cannot be combined with {name} {value}")
    return SamplerConfig(**{**fixed, **given})


def _names(cls: type) -> list[str]:
    return [field.name for field in fields(cls)]


def _given(args: argparse.Namespace, cls: type) -> dict[str, Any]:
    """The fields of ``cls`` that the command line sets."""
    values = {name: getattr(args, name, None) for name in _names(cls) if name not in ELSEWHERE}
    made = {name: MADE_OF.get(name, lambda v: v)(v) for name, v in values.items() if v is not None}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in made.items()}


def _add_fields(parser: Any, cls: type, skip: Container[str] = ()) -> None:
    types_of, meanings = get_type_hints(cls), dict(_meanings(cls.__doc__ or ""))
    for field in fields(cls):
        how = SPECIAL.get(field.name) or argument_kind(types_of[field.name])
        if field.name in skip or how is None:
            continue
        long = "--" + field.name.replace("_", "-")
        flags = (*NAMES.get(field.name, ()), long)
        meaning = re.sub(r"\bNone (for|takes)\b", "without it", meanings.get(field.name, "")).replace("`", "")
        help = f"{meaning.removesuffix('.')}{_default(field)}".replace("%", "%%")
        if "type" in how and "metavar" not in how:
            how = how | {"metavar": {int: "N", float: "X"}.get(how["type"], "TEXT")}
        if field.name.endswith("_path"):
            how["metavar"] = "FILE"
        if field.name == "quantize":
            how["metavar"] = "FORMAT"
        parser.add_argument(*flags, dest=field.name, help=help, **how)


def argument_kind(hint: Any) -> dict[str, Any] | None:
    """How argparse reads a value of this type; None for a type that is not plain."""
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in map(argument_kind, get_args(hint)) if kind]
        return kinds[0] if kinds else None
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if hint in SCALARS:
        return {"type": hint}
    if get_origin(hint) is tuple and get_args(hint)[1:] == (...,) and get_args(hint)[0] in SCALARS:
        return {"action": "append", "type": get_args(hint)[0]}
    return None


def _default(field: Field[Any]) -> str:
    if field.default is MISSING or field.default in (None, ()):
        return ""
    if isinstance(field.default, tuple):
        return " (default: " + " ".join(repr(x) if x.strip() != x else x for x in field.default) + ")"
    return f" (default: {field.default})"


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
