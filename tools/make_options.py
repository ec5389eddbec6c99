"""Writes `docs/options.md` from the declarations of the options.

With ``--check`` nothing is written; the exit code is 1 if the page is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MADE = ROOT / "docs" / "options.md"
sys.path.insert(0, str(ROOT))

from oxillama.base.config import EngineConfig, GenerationOptions, SamplerConfig, SchedulerConfig
from oxillama.base.config.option import Option, Options, declared
from oxillama.base.config.option_texts import interval, python_text
from oxillama.base.config.server import ServerConfig

PAGE = """# All options: Python, command line and server

Every option, its values, its default, and its names. `python tools/make_options.py` makes this page from the
declarations in `oxillama/base/config/`. A value that an option does not take is a `ConfigError` that names
the option.

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
    """The cells of an option's row in the table."""
    names = ([option.name] if option.server else []) + option.names.split()
    requests = [", ".join(map(code, names)) or "no"] if in_requests else []
    return [
        code(option.name),
        values(option),
        default(option),
        flags(option),
        *requests,
        escaped(python_text(option)),
    ]


def values(option: Option) -> str:
    """A short text of the values that an option takes."""
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
    """The text of an option's default."""
    value = option.default
    return code(f"{type(value).__name__}()" if isinstance(value, Options) else repr(value))


def flags(option: Option) -> str:
    """The names of an option on the command line other than its own."""
    return ", ".join(map(code, option.flags.split())) if option.cli else "no"


def code(text: str) -> str:
    return f"`{escaped(text)}`"


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("``", "`")


def is_made() -> bool:
    """Whether the page is the text that the declarations make."""
    return MADE.exists() and MADE.read_text(encoding="utf-8") == page()


def main() -> None:
    if is_made():
        return
    if "--check" in sys.argv[1:]:
        sys.exit(f"out of date: {MADE.name}")
    MADE.write_text(page(), encoding="utf-8")
    print(f"wrote {MADE.name}")


if __name__ == "__main__":
    main()
