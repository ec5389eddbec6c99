"""Recorded results: tables in `benchmarks/results/SUBJECT.json`, and the Markdown that pages draw from them.

    python -m benchmarks.results SUBJECT REPORT.json TITLE

appends the report that a benchmark wrote with ``--json`` to a subject. A subject is a list of tables. A table
has a title, the command, the machine, the commit and the date at which it was recorded (or null), perhaps
notes, the names of its columns, and rows. A cell is a text, a number, or a median with its quartiles:
[median, low, high].
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
LINK = re.compile(r"^\[.+?\]\((?:\.\./)*benchmarks/results/([\w-]+)\.json\)$", re.MULTILINE)
"""A line of a page that is nothing but a link to a subject: the site shows the tables in its place."""


def read(subject: str) -> list[dict[str, Any]]:
    """The tables of a subject, with each number as its text in the file: "1.10" keeps its zero."""
    text = (FOLDER / f"{subject}.json").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(text, parse_float=str, parse_int=str)
    return found


def write(subject: str, tables: Sequence[Mapping[str, Any]]) -> None:
    """Writes tables whose numbers are texts, a line for each row."""
    parts = []
    for table in tables:
        facts = [
            f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in table.items() if k != "rows"
        ]
        rows = ",\n".join(f" [{', '.join(map(_literal, row))}]" for row in table["rows"])
        parts.append("{" + ",\n ".join([*facts, f'"rows": [\n{rows}\n ]']) + "}")
    (FOLDER / f"{subject}.json").write_text("[\n" + ",\n".join(parts) + "\n]\n", encoding="utf-8")


def _literal(cell: str | Sequence[str]) -> str:
    if not isinstance(cell, str):
        return f"[{', '.join(map(_literal, cell))}]"
    return (
        cell
        if re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?(e-?\d+)?", cell)
        else json.dumps(cell, ensure_ascii=False)
    )


def shown(cell: str | Sequence[str]) -> str:
    """A cell as a page shows it: "1.10 [1.05 - 1.12]"."""
    if isinstance(cell, str):
        return cell.replace("|", "\\|")
    median, low, high = cell
    return f"{median} [{low} - {high}]"


def markdown(table: Mapping[str, Any]) -> str:
    """A table with its title, command, machine, date and notes."""
    lines = [f"**{table['title']}**", ""]
    if table.get("command"):
        lines += ["```text", table["command"], "```", ""]
    recorded = " ".join(
        filter(None, [table.get("date"), table.get("commit") and f"(commit {table['commit']})"])
    )
    facts = [table.get("machine"), f"recorded {recorded}" if recorded else None, table.get("notes")]
    if any(facts):
        lines += ["; ".join(filter(None, facts)).rstrip(".") + ".", ""]
    lines.append(f"| {' | '.join(table['columns'])} |")
    lines.append("|---" * len(table["columns"]) + "|")
    lines += [f"| {' | '.join(map(shown, row))} |" for row in table["rows"]]
    return "\n".join(lines)


def drawn(page: str) -> str:
    """A page with the tables of each subject in the place of the line that links to the subject."""
    return LINK.sub(lambda link: "\n\n".join(map(markdown, read(link[1]))), page)


def table_of(report: Mapping[str, Any], title: str, commit: str | None) -> dict[str, Any]:
    """The table of a report that `--json` wrote: a row for each measurement, a column for each engine."""
    from oxillama.apps.bench.machine import machine_text
    from oxillama.apps.bench.report import Summary, spread

    def cell(summary: Mapping[str, float] | None) -> str | list[str]:
        return "" if summary is None else re.findall(r"[\d.]+", spread(Summary(**summary)))  # type: ignore[arg-type]

    engines = list(report["results"][0]["summary"])
    ratio = [f"{engines[0]} / {engines[1]}"] if len(engines) > 1 else []
    return {
        "title": title,
        "command": f"python -m benchmarks {report['command']}",
        "machine": "; ".join(machine_text(report["machine"]).splitlines()),
        "commit": commit,
        "date": report["time"][:10],
        "notes": ", ".join(f"{name} {value}" for name, value in report["options"].items()),
        "columns": ["model", "metric", *engines, *ratio],
        "rows": [
            [
                row["model"],
                f"{row['metric']}, {row['unit']}",
                *(cell(row["summary"].get(engine)) for engine in engines),
                *([cell(row["ratio"])] if ratio else []),
            ]
            for row in report["results"]
        ],
    }


def main(arguments: Sequence[str]) -> int:
    """Appends a report to a subject."""
    if len(arguments) != 3:
        print("usage: python -m benchmarks.results SUBJECT REPORT.json TITLE", file=sys.stderr)
        return 2
    subject, path, title = arguments
    report = json.loads(Path(path).read_text(encoding="utf-8"))
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=FOLDER)
    known = read(subject) if (FOLDER / f"{subject}.json").exists() else []
    write(subject, [*known, table_of(report, title, done.stdout.strip() or None)])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
