"""Writes `docs/server-fields.md` from the tables of `oxillama/apps/server/no_effect.py`.

With ``--check`` nothing is written; the exit code is 1 if the page is out of date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from oxillama.apps.server.no_effect import NO_EFFECT, REFUSED

PAGE = ROOT / "docs" / "server-fields.md"

INTRO = """\
# Fields of requests without an effect, and refused ones

OpenAI, Anthropic and Ollama publish the fields of their requests in packages, vLLM and llama-server in their
sources. The server honours each field and each value, accepts it without an effect, or refuses the field by
name with status 400. Tests take the fields from there. `python tools/make_fields.py` makes this page.

## Accepted without an effect

These fields are taken in bodies that ask for text, and in Ollama's `options`. A field with values takes these
values alone; another value is refused.

| field | why |
|---|---|
"""

REFUSED_INTRO = """
## Refused

`a<b>.c=d` is the value d of the field c of those objects in `a` whose `type`, or `role`, is b; `*` is any
text. All fields inside a refused field are refused.

| field | interface | why |
|---|---|---|
"""


def page() -> str:
    """The text of the page."""
    rows: dict[str, list[str]] = {}
    for name, each in NO_EFFECT.items():
        values = "" if each.values is None else f" {', '.join(map(written, each.values))}"
        rows.setdefault(each.reason, []).append(f"`{name}`{values}")
    refused: dict[str, list[str]] = {}
    for interface, places in REFUSED.items():
        for place, reason in places.items():
            refused.setdefault(f"{interface} | {reason}", []).append(f"`{place}`")
    return INTRO + table(rows) + REFUSED_INTRO + table(refused)


def table(rows: dict[str, list[str]]) -> str:
    """Rows of fields, by the other columns."""
    return "".join(f"| {'; '.join(names)} | {columns} |\n" for columns, names in rows.items())


def written(value: object) -> str:
    return f"`{json.dumps(value)}`"


def stale() -> bool:
    """Whether the page is not what the tables say."""
    return not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page()


if __name__ == "__main__":
    is_stale = stale()
    if "--check" in sys.argv[1:]:
        sys.exit(f"{PAGE.name} is out of date" if is_stale else 0)
    if is_stale:
        PAGE.write_text(page(), encoding="utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")
