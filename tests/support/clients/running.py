"""Runs the loops of clients in their environments, and makes the table of `docs/server-clients.md`.

`OXILLAMA_CLIENTS` names the folder that `tools/fetch_clients.py` has made: the environments ``python-1`` and
``python-2``, and ``node`` with its packages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.clients import words
from tests.support.clients.wiretap import Exchange, Tap
from tests.support.scripted_model import ANSWER, REASONING

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PACKAGES: dict[str, dict[str, str]] = json.loads((HERE / "packages.json").read_text())
"""The packages and their versions, by environment."""

NODE_LOOPS = (
    "openai (chat completions)",
    "openai (responses)",
    "@anthropic-ai/sdk",
    "ollama",
    "@ai-sdk/openai (chat completions)",
    "@ai-sdk/openai (responses)",
    "@ai-sdk/openai-compatible",
    "@ai-sdk/anthropic",
    "ollama-ai-provider-v2",
    "@openai/agents (chat completions)",
    "@openai/agents (responses)",
)
"""The loops of `node_loops.mjs`."""

TEMPLATES = {
    "Qwen 3.5": "Qwen3.5-4B",
    "Mistral": "Mistral-Small-3.2-24B-Instruct-2506",
    "gpt-oss": "openai-gpt-oss-120b",
    "GLM": "GLM-4.7-Flash",
    "Llama 3": "meta-llama-Llama-3.3-70B-Instruct",
}
"""The templates of the table, and their files among llama.cpp's."""

NEEDLE = re.compile(r"needle\w+")
RETURNED = re.compile(r'"(?:reasoning\w*|thinking|text)": "\s*' + REASONING + r'\s*"')
"""Reasoning that a body returns, in any of the forms of the interfaces."""


def package_of(client: str) -> str:
    """The package of a client, whose name may have a variant in brackets."""
    return client.partition(" (")[0]


def environment_of(client: str, language: str) -> Path | None:
    """The environment in which a client's package is installed; None if no environment has the package."""
    folder = Path(os.environ.get("OXILLAMA_CLIENTS", "nowhere")).absolute()
    if language == "node":
        found = folder / "node"
        return (
            found if (found / "node_modules" / package_of(client)).is_dir() and shutil.which("node") else None
        )
    for name in ("python-1", "python-2"):
        wanted = {re.sub(r"\[.*", "", package) for package in PACKAGES[name]}
        pattern = f"lib/*/site-packages/{package_of(client).replace('-', '_')}-*.dist-info"
        if package_of(client) in wanted and any((folder / name).glob(pattern)):
            return folder / name
    return None


def run_loops(client: str, language: str, tap: Tap) -> dict[tuple[str, bool], dict[str, Any]]:
    """What a client found, by the name of the server and by whether the loop was a stream.

    Each has "answers" or "error", and the "exchanges".
    """
    environment = environment_of(client, language)
    assert environment is not None
    if language == "node":
        given = json.dumps({name: value for name, value in vars(words).items() if name.isupper()})
        command, folder = ["node", str(HERE / "node_loops.mjs"), client, given], environment
    else:
        python = environment / "bin" / "python"
        command, folder = [str(python), "-m", "tests.support.clients.python_loops", client], ROOT
    tap.exchanges.clear()
    names = {url: name for name, url in tap.urls.items()}
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*command, *names], cwd=folder, env=plain, capture_output=True, text=True, timeout=150
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"url"')]
    assert len(lines) == 2 * len(names), done.stdout[-2000:] + done.stderr[-2000:]
    parts: dict[str, list[list[Exchange]]] = {name: [] for name in tap.urls}
    for exchange in tap.exchanges:
        if words.RESULT not in json.dumps(exchange.body):  # a loop begins
            parts[exchange.server].append([])
        parts[exchange.server][-1].append(exchange)
    found = {}
    for line in lines:
        name = names[line["url"]]
        here = parts[name].pop(0) if parts[name] else []
        found[name, line["stream"]] = {**line, "exchanges": here}
    return found


def check_loop(exchanges: Sequence[Exchange], answers: Sequence[str]) -> bool:
    """Checks a loop on both sides. Returns whether the prompt with the result shows the call's reasoning."""
    assert [exchange.status for exchange in exchanges] == [200] * len(exchanges)
    assert len(answers) == 2 and all(answer.strip() == ANSWER for answer in answers), answers
    assert len(exchanges) == 3, [exchange.body for exchange in exchanges]
    for exchange in exchanges:
        check_prompt(exchange)
    _, second, last = exchanges
    said = set(NEEDLE.findall(json.dumps(last.body["messages" if "messages" in last.body else "input"])))
    assert said >= set(NEEDLE.findall(f"{words.QUESTION} {words.RESULT} {words.FURTHER}")), said
    assert ANSWER in last.prompts[-1].partition(words.RESULT)[2]
    sent, is_shown = json.dumps(second.body), REASONING in second.prompts[-1]
    is_returned = RETURNED.search(sent) is not None or '"item_reference"' in sent
    # templates leave out the reasoning before a user's text, and a text beside a result is a user's
    assert is_shown == is_returned or words.BESIDE in sent, second.prompts[-1]
    return is_shown


def check_prompt(exchange: Exchange) -> None:
    """Checks that a prompt has each word of its request, and that each result belongs to a call."""
    (prompt,) = set(exchange.prompts)
    lost = set(NEEDLE.findall(json.dumps(exchange.body))) - set(NEEDLE.findall(prompt))
    assert not lost, f"{lost} of {exchange.body} in {prompt}"
    calls: set[str] = set()
    results: set[str] = set()
    for item in objects_of(exchange.body):
        kind = item.get("type")
        calls |= {
            item[name]
            for name in ("id", "call_id")
            if kind in ("tool_use", "function_call", "function") and item.get(name)
        }
        if kind == "function_call_output":
            results.add(item["call_id"])
        results |= {item[name] for name in ("tool_call_id", "tool_use_id") if item.get(name)}
    if calls and '"item_reference"' not in json.dumps(exchange.body):  # a call may lack an id (Ollama)
        assert results <= calls, (calls, results)


def objects_of(value: Any) -> list[Any]:
    """All objects in a JSON value."""
    if isinstance(value, list):
        return [found for item in value for found in objects_of(item)]
    if isinstance(value, dict):
        return [value, *(found for item in value.values() for found in objects_of(item))]
    return []


# --- the table ----------------------------------------------------------------------------------------


def version_of(client: str, language: str) -> str:
    """The version of a client's package in `packages.json`; "" for recorded requests."""
    for name, packages in PACKAGES.items():
        if (name == "node") == (language == "node"):
            for package, version in packages.items():
                if re.sub(r"(?<=.)\[.*", "", package) == package_of(client):
                    return version
    return ""


def row(client: str, language: str, cells: Mapping[str, str]) -> str:
    """A row of the table: the client, its language and version, a cell for each template."""
    about = f"{language} {version_of(client, language)}".strip()
    return " | ".join(["", client, about, *(cells[name] for name in TEMPLATES), ""]).strip()


def table_rows(page: str) -> list[str]:
    """The rows of the table on a page."""
    return [
        line for line in page.splitlines() if line.startswith("| ") and line.count("|") == len(TEMPLATES) + 3
    ][1:]
