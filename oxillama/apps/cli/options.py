"""Arguments made from the declared options, and the classes of options made from arguments.

Each declared option that the command line can set is ``--name-of-the-option``, and has its further flags.
`PARSERS` says how the text of an argument is parsed, by the placeholder that its help shows.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from oxillama import EngineConfig, GenerationOptions, SamplerConfig, SchedulerConfig
from oxillama.apps.cli.console import read_text
from oxillama.apps.cli.program import ShortHelp
from oxillama.base.config.option import Option, declared
from oxillama.base.config.option_texts import help_text, placeholder, repeats
from oxillama.base.config.server import ServerConfig
from oxillama.errors import ConfigError


def integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected an integer, got {text!r}") from None


def number(text: str) -> float:
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
    """The path of an adapter, and its scale after the last "=": pirate.gguf, pirate.gguf=0.5."""
    path, _, scale = text.rpartition("=")
    try:
        return (path, float(scale)) if path else (text, 1.0)
    except ValueError:
        return text, 1.0


PARSERS: dict[str, Callable[[str], Any]] = {
    "N": integer,
    "X": number,
    "BYTES": byte_count,
    "ID+BIAS": token_bias,
    "A;B;...": stage_names,
    "FILE[=SCALE]": scaled_path,
}
"""What parses an argument, by its placeholder; others are texts."""


COMMON = {
    "max_tokens": "max tokens of a text",
    "context_size": "max tokens of a sequence (default: the model's)",
    "num_threads": "threads (default: as many as there are CPUs)",
    "temperature": "0 for the likeliest tokens (default: 0.8)",
    "seed": "the same seed gives the same text",
    "chat_template": "a name, a Jinja file, or a format as chatml",
    "host": "address to listen at; 0.0.0.0 for all of them",
    "port": "port to listen at (default: 8080)",
    "api_keys": "key of which a client must send one (repeatable)",
    "max_sequences": "max requests that run together",
}
"""Options that most users set, with their texts in a short help: the help lists them before its groups."""

LISTED = {
    "top_p": "keep the likeliest of this sum (default: 0.95)",
    "json_schema": "the text is JSON that fits this schema",
    "adapters": "LoRA adapter (repeatable)",
    "speculate": "drafts tokens: faster, the same text",
    "tools": "tools that the model may call (repeatable)",
    "run_tools": "run the Python functions that it calls",
    "mcp": "file with MCP servers, whose tools may be called",
    "media": None,
    "model_name": "what clients call the model",
    "models_memory": "max bytes of weights that are loaded",
    "cors_origins": "origin whose pages may use it (repeatable)",
    "ssl_certfile": "PEM file of the certificate for HTTPS",
    "ssl_keyfile": "PEM file of its key",
    "actors": "engines on a cluster of Ray (with --ray)",
    "ray": "run on a cluster of Ray",
}
"""Options of groups that a short help lists, too; None for the usual text, as far as it is one line."""

SHORT = {
    **LISTED,
    **COMMON,
    "model": "a GGUF file, user/repo:Q4_K_M of the hub, or demo",
    "question": "what to answer; - for all of stdin",
    "think": "whether the model reasons",
    "quantize": "format to quantize float matrices to, as Q4_K",
    "compute": "how matrices are multiplied (default: int8)",
    "session": "go on with this file's session, and save it",
    "files": "a text or PDF that the first message ends with",
    "receipt": "write a receipt, which oxillama verify checks",
    "markdown": "show Markdown (default: on a terminal)",
    "more_models": "a further model (repeatable)",
    "quiet": "only errors and warnings on stderr",
    "help": "show this help and exit",
}
"""What a short help says of arguments, by their names."""

SHORT_VALUES = {"tools": "FILE", "mcp": "FILE", "compute": "KIND", "speculate": "FILE"}
"""What stands for values there."""

MOST_LINES = 45
"""Lines of a help; where there are more, ``--help`` shows a short one, and ``--help-all`` the whole."""


SHARED = {"max_tokens": "-n"}
"""Flags of options that several classes have by one name, and one declares."""


def add_command(
    commands: Any,
    name: str,
    help: str,
    verbose: str = "show the log on stderr",
    examples: str = "",
    **texts: Any,
) -> Any:
    """A parser for a command; `add_message_options` completes it after the command's own options.

    ``help`` : the line of the command in the list of commands. ``examples`` : command lines, one in a line,
    each indented by two spaces. ``texts`` as for argparse.
    """
    if examples:
        texts["epilog"] = f"examples:\n{examples}"
    parser = commands.add_parser(name, allow_abbrev=False, add_help=False, **texts)
    parser.summary, parser.verbose = help, verbose
    return parser


def add_message_options(parser: Any) -> None:
    """The options that all commands have; the help lists them after the command's own."""
    parser.add_argument("-v", "--verbose", action="store_true", help=parser.verbose)
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="only errors and warnings on stderr: no bars, no summary"
    )
    parser.add_argument("-h", "--help", action="help", help="show this help message and exit")
    parser.add_argument("--help-all", action=HelpAll, help="show all options, with their values, and exit")
    words = {action.dest: action.option_strings[-1] for action in parser._actions if action.option_strings}
    parser.set_defaults(flags={dest: word.replace("--no-", "--") for dest, word in words.items()})
    parser.short = ShortHelp({*COMMON, *LISTED}, SHORT, SHORT_VALUES, MOST_LINES)


class HelpAll(argparse.Action):
    """Prints the whole help, and ends the program."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: Any, *_: Any) -> None:
        parser.short = None
        parser.print_help()
        parser.exit()


def add_engine_options(parser: argparse.ArgumentParser, skip: Container[str] = ()) -> None:
    """Every option of `EngineConfig` (its seed is the sampler's) except for ``skip``."""
    group = parser.add_argument_group("model")
    names = [name for name in declared(EngineConfig) if name not in declared(SamplerConfig)]
    _add_options(group, EngineConfig, names=[name for name in names if name not in skip], common=parser)
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
    _add_options(group, SamplerConfig, common=parser)
    group.add_argument("--greedy", action="store_true", help="always the most likely token")


def add_generation_options(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """Every option of `GenerationOptions`; ``defaults`` replace the defaults of the class."""
    group = parser.add_argument_group("generation")
    own = [name for name in declared(GenerationOptions) if name not in declared(EngineConfig)]
    _add_options(group, GenerationOptions, names=own, defaults=defaults, common=parser)


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Every option of `ServerConfig` and of `SchedulerConfig`."""
    _add_options(parser.add_argument_group("server"), ServerConfig, SchedulerConfig, common=parser)


def add_named_options(parser: argparse.ArgumentParser, names: Container[str]) -> None:
    """The options of `EngineConfig`, `SamplerConfig` and `SchedulerConfig` that are named."""
    _add_options(parser, SchedulerConfig, SamplerConfig, EngineConfig, names=names)


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
    fixed = {name: value for name, value in vars(greedy).items() if value != getattr(usual, name)}
    for name, value in chosen.items():
        if name in fixed and fixed[name] != value:
            flag = getattr(args, "flags", {}).get(name, name)
            raise ConfigError(f"greedy: means {name} {fixed[name]}, cannot be combined with {flag} {value}")
    return SamplerConfig(**{**fixed, **chosen})


def given(args: argparse.Namespace, cls: type) -> dict[str, Any]:
    """The fields of ``cls`` that the command line sets."""
    said = {name: getattr(args, name, None) for name, option in declared(cls).items() if option.cli}
    return {name: value_of(declared(cls)[name], value) for name, value in said.items() if value is not None}


def value_of(option: Option, said: Any) -> Any:
    """The value of an option, from its parsed argument. Raises ConfigError for a file that cannot be read."""
    if option.is_read:
        return read_text(said, option.name)
    if isinstance(said, list):
        listed = () if said == ["none"] and option.default else tuple(said)
        return dict(listed) if isinstance(option.default, dict) else listed
    return None if said == -1 and option.takes_none and option.default is not None else said


def _add_options(
    group: Any,
    *classes: type,
    names: Container[str] | None = None,
    defaults: Mapping[str, Any] = {},
    common: Any = None,
) -> None:
    """The options of ``classes``, or the named ones; the first of options with the same name.

    ``common`` : the parser that lists the options in `COMMON` before its groups; None: the group lists them.
    """
    found: dict[str, Option] = {}
    for cls in classes:
        found = {**found, **declared(cls), **found}
    for name, option in found.items():
        if option.cli and (names is None or name in names):
            default = defaults.get(name, option.default)
            none = "without it" if default in (None, ()) else "-1 for"
            meaning = re.sub(r"\bNone (for|takes)\b", none, help_text(option)).replace("`", "")
            meaning = meaning.replace(". without it", ". Without it")
            help = f"{meaning}{_default(default)}".replace("%", "%%")
            flags = (*(option.flags or SHARED.get(name, "")).split(), "--" + name.replace("_", "-"))
            how = argument_kind(option)
            place = common if common is not None and name in COMMON else group
            place.add_argument(*flags, dest=name, help=help, default=defaults.get(name), **how)


def argument_kind(option: Option) -> dict[str, Any]:
    """How argparse parses the value of an option."""
    if option.type == "bool":
        return {"action": argparse.BooleanOptionalAction}
    kind = {"type": PARSERS.get(placeholder(option), str), "metavar": placeholder(option)}
    return {"action": "append", **kind} if repeats(option) else kind


def _default(value: Any) -> str:
    if value in (None, (), {}):
        return ""
    if isinstance(value, bool):
        return f" (default: {'yes' if value else 'no'})"
    if isinstance(value, tuple):
        return " (default: " + " ".join(repr(x) if x.strip() != x else x for x in value) + ")"
    return f" (default: {value})"
