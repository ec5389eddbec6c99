"""Writes what is made from the declared options: `docs/options.md` and `oxillama/config/fields.py`.

`python tools/make_options.py` writes both; with ``--check`` it only says whether one is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from oxillama.config import EngineConfig, GenerationOptions, SamplerConfig, SchedulerConfig
from oxillama.config.option import Option, Options, declared
from oxillama.config.option_texts import interval
from oxillama.config.server import ServerConfig

PAGE = """# All options: Python, command line and server

Every option, its values, its default, and its names. `python tools/make_options.py` makes this page from the
declarations in `oxillama/config/`. A value that an option does not take is a `ConfigError` that names the
option.

On the command line an option is `--name-of-the-option`, and has the further names of its column; "no" means
that it is no argument. The column "request" has its names in the body of a request to the server
([server.md](server.md)).
"""

SECTIONS = (
    (EngineConfig, "`EngineConfig`: what an engine is made with"),
    (SchedulerConfig, "`SchedulerConfig`: how requests share an engine"),
    (GenerationOptions, "`GenerationOptions`: one request"),
    (SamplerConfig, "`SamplerConfig`: how tokens are chosen"),
    (ServerConfig, "`ServerConfig`: `oxillama serve`"),
)

REQUESTS = (GenerationOptions, SamplerConfig)
"""The classes whose options the body of a request can set."""

FIELDS = '''"""The options as keyword arguments, for type checkers; made by tools/make_options.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from oxillama.config.adapters import Adapters
from oxillama.config.engine import SchedulerConfig, Texts
from oxillama.config.offload import OffloadPolicy
from oxillama.config.option import AnyPath
from oxillama.config.sampler import SamplerConfig
'''


def page() -> str:
    """The text of `docs/options.md`."""
    parts = [PAGE]
    for cls, title in SECTIONS:
        columns = [
            "option",
            "values",
            "default",
            "command line",
            *(["request"] if cls in REQUESTS else []),
            "",
        ]
        rows = [row(option, cls in REQUESTS) for option in declared(cls).values()]
        lines = [columns, ["---"] * len(columns), *rows]
        parts.append(f"\n## {title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines))
    return "".join(parts)


def row(option: Option, in_requests: bool) -> list[str]:
    """The cells of an option."""
    names = ([option.name] if option.server else []) + option.names.split()
    requests = [", ".join(map(code, names)) or "no"] if in_requests else []
    return [
        code(option.name),
        values(option),
        default(option),
        flags(option),
        *requests,
        escaped(option.help),
    ]


def values(option: Option) -> str:
    """The values of an option, as short as they can be said."""
    none = ", None" if option.type.endswith("| None") else ""
    if option.choices:
        words = ", ".join(code(f'"{word}"') for word in option.choices)
        return f"{words}{', a path' if option.kind == 'AnyPath' else ''}{none}"
    return f"{TYPES.get(option.kind) or code(option.kind)} {escaped(interval(option))}".strip() + none


TYPES = {
    "int": "integer",
    "float": "number",
    "bool": "True, False",
    "str": "text",
    "AnyPath": "path",
    "tuple[str, ...]": "texts",
    "tuple[int, ...]": "token ids",
    "Any": "see right",
}


def default(option: Option) -> str:
    """The default of an option."""
    value = option.default
    return code(f"{type(value).__name__}()" if isinstance(value, Options) else repr(value))


def flags(option: Option) -> str:
    """The names of an option on the command line other than its own."""
    return ", ".join(map(code, option.flags.split())) if option.cli else "no"


def code(text: str) -> str:
    return f"`{escaped(text)}`"


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("``", "`")


def keyword_types() -> str:
    """The text of `oxillama/config/fields.py`."""
    sampler, generation = declared(SamplerConfig), declared(GenerationOptions)
    engine = {name: option for name, option in declared(EngineConfig).items() if name != "model_path"}
    return "".join(
        [
            FIELDS,
            *keyword_class("SamplerFields(TypedDict", "The options of `SamplerConfig`.", sampler),
            *keyword_class(
                "GenerationFields(SamplerFields", "The options of a request, and its sampler's.", generation
            ),
            *keyword_class(
                "EngineFields(TypedDict", "The options of `EngineConfig` but ``model_path``.", engine
            ),
            "    offload_policy: OffloadPolicy | None\n",
        ]
    )


def keyword_class(head: str, text: str, options: dict[str, Option]) -> list[str]:
    """The lines of a class of keyword arguments."""
    fields = [f"    {name}: {option.type}\n" for name, option in options.items()]
    return [f'\n\nclass {head}, total=False):\n    """{text}"""\n\n', *fields]


MADE = {"docs/options.md": page, "oxillama/config/fields.py": keyword_types}


def stale() -> list[str]:
    """The files that are not what the declarations make."""
    return [name for name, make in MADE.items() if not is_made(ROOT / name, make())]


def is_made(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def main() -> None:
    found = stale()
    if "--check" in sys.argv[1:]:
        sys.exit(f"out of date: {', '.join(found)}" if found else 0)
    for name in found:
        (ROOT / name).write_text(MADE[name](), encoding="utf-8")
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
