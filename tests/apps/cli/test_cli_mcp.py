"""`oxillama chat --mcp`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from oxillama.apps.cli.mcp import NOBODY, REFUSED, AskingDispatcher, in_short, listed, status
from oxillama.base.events import ToolCall
from oxillama.errors import ConfigError
from tests.support.command_line import ENVIRONMENT, Terminal, error, has_terminals, run
from tests.support.paths import ROOT
from tests.support.tool_models import NO_THOUGHTS, tool_model

RAW = str(ROOT / "tests/support/raw_mcp_server.py")


def test_a_configuration_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"mcpServers": {"a": {"comand": "x"}}}')
    assert "'comand' is no key; did you mean command?" in error("chat", "--mcp", path)


def test_without_the_package(tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ImportError('no', name='mcp')")
    path = tmp_path / "config.json"
    path.write_text('{"mcpServers": {}}')
    said = error("chat", "--mcp", path, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert "mcp: expected the package mcp (pip install 'oxillama-cpu[mcp]'), got none of mcp" in said


def test_results_are_shown_in_short() -> None:
    assert in_short("a\nb") == "a\nb"
    assert in_short("\x1b[31mred") == "[31mred"
    assert in_short("x" * 700) == "x" * 600 + " ... (100 more characters)"
    assert in_short("a\n" * 20).startswith("a\n" * 7 + "a ... (")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mcp", reason="needs the package mcp: pip install 'oxillama-cpu[mcp]'")
    folder = tmp_path_factory.mktemp("mcp")
    tool_model(folder / "m.gguf", NO_THOUGHTS)
    server = {"command": sys.executable, "args": [RAW, "plain"]}
    (folder / "config.json").write_text(json.dumps({"mcpServers": {"raw": server}}))
    return folder


def test_the_user_is_asked(folder: Path) -> None:
    from oxillama.apps.mcp import connect

    answers = iter(["n", "", "y", "maybe", None, "a", "n"])
    asked: list[str] = []

    def ask(question: str) -> str | None:
        asked.append(question)
        return next(answers)

    with connect(folder / "config.json") as client:
        dispatcher = AskingDispatcher(client, ask)
        call = ToolCall("raw__echo", {"a": 1})
        found = [dispatcher.dispatch(call) for _ in range(8)]
        assert [result.error for result in found[:6]] == [REFUSED, REFUSED, None, REFUSED, NOBODY, None]
        assert [result.value for result in found[5:]] == ['{"a": 1}'] * 3
        assert len(asked) == 6
        assert dispatcher.owns(call) and not dispatcher.owns(ToolCall("other"))
        assert listed(client.tools())[0] == "raw__echo  A tool."
        assert status(client, "") == ["raw: 6 tools"]
        assert status(client, "raw") == ["raw wrote nothing to stderr"]
        with pytest.raises(ConfigError, match="/mcp: expected one of raw, got x"):
            status(client, "x")
        client._tools["raw__echo"] = replace(client._tools["raw__echo"], description="Another tool.")
        assert dispatcher.dispatch(call).error == REFUSED  # "a" has allowed the tool as it was


def site() -> str:
    """The paths of the tests and of the package `mcp`."""
    import mcp

    return os.pathsep.join([str(ROOT), str(Path(mcp.__file__).parents[1])])


def test_over_a_pipe_nothing_runs(folder: Path) -> None:
    options = (
        "--mcp", folder / "config.json", "--tool-choice", "raw__echo", "-n", "100", "--seed", "1", "-q",
    )  # fmt: skip
    done = run("chat", folder / "m.gguf", *options, stdin=b"hello\n/tools\n/mcp\n", PYTHONPATH=site())
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert "-> raw__echo {}\n<- Error: refused: the chat is on no terminal" in text, text


@has_terminals
def test_on_a_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", site())
    options = ("--mcp", folder / "config.json", "--tool-choice", "raw__echo", "-n", "100", "--seed", "1")
    terminal = Terminal("chat", folder / "m.gguf", *options)
    terminal.expect("> ", 60)
    terminal.send("hello\n")
    terminal.expect(r"-> raw__echo \{\}\r\n", 60)
    terminal.expect(r"run it\? \[y\]es, \[n\]o, \[a\]lways for this tool: ")
    terminal.send("y\n")
    terminal.expect(r"<- \{\}\r\n")
    assert terminal.exit_code(60, interrupting=True) is not None
