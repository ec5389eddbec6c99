"""Tools of MCP servers on the page, in a real browser."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oxillama.apps.server import tool_servers
from tests.support.browser import Page
from tests.support.paths import ROOT
from tests.support.server import Client, serving
from tests.support.tool_models import NO_THOUGHTS, tool_model

pytest.importorskip("mcp", reason="needs the package mcp: pip install 'oxillama-cpu[mcp]'")

RAW = str(ROOT / "tests/support/raw_mcp_server.py")
ONE_CALL = {"tool_choice": "m__shown", "parallel_tool_calls": False}


@pytest.fixture(scope="module")
def client(folder: Path, browser: Page) -> Iterator[Client]:
    servers = {
        "m": {"command": sys.executable, "args": [RAW, "markup"]},
        "gone": {"command": "no-such-program"},
    }
    (folder / "config.json").write_text(json.dumps({"mcpServers": servers}))
    with serving(tool_model(folder / "m.gguf", NO_THOUGHTS), "caller", mcp=folder / "config.json") as found:
        yield found


def ready(page: Page, client: Client) -> None:
    page.ready(client.server.url)
    page.until(lambda: page.run("return document.querySelectorAll('.served-tools code').length") == 2)
    page.record()
    page.set(more=ONE_CALL, seed="1", max_tokens="300")


@pytest.mark.slow
def test_the_tools_are_listed_as_text(page: Page, client: Client) -> None:
    ready(page, client)
    page.run("document.querySelector('#settings').hidden = false")
    text = page.one(".served-tools").text
    assert "m__shown" in text and "<script>document.title='script'</script>" in text
    assert "Cannot be used: " in text and "gone expected a program" in text
    assert not page.all(".served-tools img, .served-tools script")
    assert len(page.all(".served-tools input")) == 1


def test_a_call_runs_when_it_is_allowed(page: Page, client: Client) -> None:
    ready(page, client)
    page.send("go")
    page.until(lambda: bool(page.all(".call-buttons")))
    assert "m__shown" in page.one(".call").text and "The tool shown of m" in page.one(".call").text
    assert not page.all(".call textarea")
    assert len(page.sent) == 1  # nothing has run
    page.set(more={"tool_choice": "none"}, max_tokens="5")
    page.press("Allow once")
    page.ended(2)
    first, called, second = page.sent
    assert [tool["function"]["name"] for tool in first["tools"]] == ["m__shown"]
    assert called["name"] == "m__shown" and called["arguments"] == {}
    assert second["messages"][-1]["content"] == "<b>done</b>\n" * 20
    assert page.one(".message.tool summary").text == "<b>done</b> … (240 characters)"
    assert not page.all(".message.tool b")


def test_tools_that_are_listed_late(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_servers, "LIST_SECONDS", 0.1)
    gate, config = tmp_path / "gate", tmp_path / "config.json"
    servers = {"late": {"command": sys.executable, "args": [RAW, "late", str(gate)]}}
    config.write_text(json.dumps({"mcpServers": servers}))
    with serving(tool_model(tmp_path / "m.gguf", NO_THOUGHTS), mcp=config, mcp_connect_seconds=600) as client:
        page.ready(client.server.url)
        count = "return document.querySelectorAll('.served-tools {}').length"
        page.until(lambda: page.run(count.format("p")) == 1)  # the reason
        assert page.run(count.format("code")) == 0
        gate.touch()
        page.until(lambda: page.run(count.format("code")) == 6)
        assert page.run(count.format("p.about strong")) == 0


@pytest.mark.slow
def test_a_call_that_is_denied(page: Page, client: Client) -> None:
    ready(page, client)
    page.press("New conversation")
    page.send("go")
    page.until(lambda: bool(page.all(".call-buttons")))
    page.set(more={"tool_choice": "none"}, max_tokens="5")
    page.press("Deny")
    page.ended(2)
    _, second = page.sent
    assert second["messages"][-1]["content"] == "The user refused the call."


@pytest.mark.slow
def test_a_tool_that_is_always_allowed(page: Page, client: Client) -> None:
    ready(page, client)
    page.press("New conversation")
    page.send("go")
    page.until(lambda: bool(page.all(".call-buttons")))
    page.press("Always in this conversation")
    page.until(lambda: len([each for each in page.sent if "name" in each]) >= 3, 60)
    page.set(more={"tool_choice": "none"}, max_tokens="5")
    page.until(lambda: not page.is_writing, 60)
    page.press("New conversation")
    page.set(more=ONE_CALL, max_tokens="300")
    page.send("go")
    page.until(lambda: bool(page.all(".call-buttons")))  # another conversation asks


def test_a_tool_that_is_switched_off_is_not_offered(page: Page, client: Client) -> None:
    ready(page, client)
    page.press("New conversation")
    page.run("document.querySelector('.served-tools input').click()")
    page.set(more={}, max_tokens="5")
    page.ask("go")
    assert "tools" not in page.sent[-1]
    page.run("document.querySelector('.served-tools input').click()")
