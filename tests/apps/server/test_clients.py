"""Clients over a loop of a tool in two turns, with five chat templates: what `docs/server-clients.md` shows.

A client asks a question, gets reasoning and a call, returns the call and the tool's result, gets an answer,
asks a further question, and gets an answer: whole and as streams. The clients run in environments of their
own (`tests/support/clients/running.py`); a client that is not installed is skipped by name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.agents import AGENTS, run_agent
from tests.support.clients.python_loops import LOOPS
from tests.support.clients.running import (
    NODE_LOOPS,
    TEMPLATES,
    check_loop,
    environment_of,
    row,
    run_loops,
    table_rows,
)
from tests.support.clients.wiretap import Tap, tapped_servers
from tests.support.tool_models import AS_IT_IS

FOLDER = Path(os.environ.get("OXILLAMA_VOCABS", "nowhere")) / "templates"
PAGE = Path(__file__).parents[3] / "docs" / "server-clients.md"
CLIENTS = [*((name, "Python") for name in sorted(LOOPS)), *((name, "node") for name in NODE_LOOPS)]
CELLS: dict[tuple[str, str], dict[str, str]] = {}
"""The cells of the clients that ran, by the name of the client and its language."""


@pytest.fixture(scope="module")
def tap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tap]:
    if not FOLDER.is_dir():
        pytest.skip(
            "OXILLAMA_VOCABS: names no folder with the templates of llama.cpp (tools/fetch_vocabs.py)"
        )
    templates = {name: (FOLDER / f"{file}.jinja").read_text() for name, file in TEMPLATES.items()}
    with tapped_servers(tmp_path_factory.mktemp("models"), templates) as found:
        yield found


@pytest.fixture(scope="module")
def loops(tap: Tap) -> Any:
    """What a client found, run once for all templates."""
    return cache(lambda client, language: run_loops(client, language, tap))


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(("client", "language"), CLIENTS)
def test_a_client(client: str, language: str, template: str, loops: Any) -> None:
    if environment_of(client, language) is None:
        pytest.skip(f"{client} for {language}: is not installed in OXILLAMA_CLIENTS (tools/fetch_clients.py)")
    returned = []
    for stream in (False, True):
        found = loops(client, language)[template, stream]
        assert "error" not in found, found["error"]
        returned.append(check_loop(found["exchanges"], found["answers"]))
    CELLS.setdefault((client, language), {})[template] = "call, reasoning" if all(returned) else "call"


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("agent", AGENTS)
def test_the_requests_of_an_agent(agent: str, template: str, tap: Tap) -> None:
    exchanges, answers = run_agent(agent, template, tap)
    is_returned = check_loop(exchanges, answers)
    CELLS.setdefault((agent, "recorded"), {})[template] = "call, reasoning" if is_returned else "call"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tap]:
    """A server of a template of this project, whose prompts open reasoning."""
    template = AS_IT_IS.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    with tapped_servers(tmp_path_factory.mktemp("models"), {"own": template}) as found:
        yield found


@pytest.mark.parametrize("agent", AGENTS)
def test_the_requests_of_an_agent_with_a_plain_template(agent: str, own: Tap) -> None:
    exchanges, answers = run_agent(agent, "own", own)
    check_loop(exchanges, answers)


@pytest.mark.slow
def test_the_table_has_what_the_clients_did(tap: Tap) -> None:
    rows = table_rows(PAGE.read_text())
    made = [row(*key, cells) for key, cells in CELLS.items() if len(cells) == len(TEMPLATES)]
    missing = [each for each in made if each not in rows]
    assert not missing, "expected in docs/server-clients.md:\n" + "\n".join(made)


def test_the_table_has_a_row_for_each_client() -> None:
    found = [[cell.strip() for cell in each.split("|")[1:3]] for each in table_rows(PAGE.read_text())]
    named = [(name, about.partition(" ")[0]) for name, about in found]
    assert named == [*CLIENTS, *((agent, "recorded") for agent in AGENTS)]
