"""`oxillama chat --tools`."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from oxillama.apps import cli
from oxillama.text.toolcalls import openai_form
from tests.support.command_line import error, output, run
from tests.support.tool_models import NO_THOUGHTS, tool_model

DIGIT = "tests.support.tool_models:digit"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tool_model(tmp_path_factory.mktemp("model") / "m.gguf", NO_THOUGHTS)


def test_calls_are_printed(model: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"name": "ping"}, {"name": "pong"}]))
    options = ("--tools", tools, "--tool-choice", "pong", "-n", "100", "--seed", "1", "-q")
    assert output("chat", model, *options, stdin=b"hello\n").split("\n")[-2:] == ["-> pong {}", ""]


def test_functions_are_run_only_if_the_user_says_so(model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    options = ("--tools", DIGIT, "--tool-choice", "required", "-n", "100", "--seed", "7", "-q")
    text = output("chat", model, *options, stdin=b"hello\n")
    assert re.search(r'^-> digit \{"n": ?[123](\.0)?\}$', text, re.MULTILINE) and "<-" not in text
    text = output("chat", model, *options, "--run-tools", stdin=f"hello\n/save {saved}\n".encode())
    (n,) = re.findall(r'^-> digit \{"n": ?([123])(?:\.0)?\}$', text.partition("<-")[0], re.MULTILINE)[:1]
    assert f"<- digit {n}\n" in text
    messages = json.loads(saved.read_text())
    assert [message["role"] for message in messages[:4]] == ["user", "assistant", "tool", "assistant"]
    assert messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"]
    goes_on = run("chat", model, *options, stdin=f"/load {saved}\nhello\n".encode())
    assert goes_on.returncode == 0, goes_on.stderr


def test_a_call_that_is_cut_is_told(model: Path) -> None:
    done = run(
        "chat", model, "--tools", DIGIT, "--tool-choice", "digit", "-n", "45", "-q", "--seed", "1",
        stdin=b"hello\n",
    )  # fmt: skip
    assert b"->" not in done.stdout and b"call failed: " in done.stderr


def test_wrong_tools(model: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    assert "--tools: expected JSON in" in error("chat", model, "--tools", bad)
    assert "expected a Python function, got no.such:thing" in error("chat", model, "--tools", "no.such:thing")
    assert "--tools: expected tools, got none" in error("chat", model, "--run-tools")
    bad.write_text('{"name": "ping"}')
    assert "tools[0]: expected a function, got dict" in error("chat", model, "--tools", bad, "--run-tools")
    said = error("chat", model, "--tools", DIGIT, "--tool-choice", "x", stdin=b"hello\n")
    assert "--tool-choice: expected one of auto, none, required, digit" in said


def test_reasoning_is_never_part_of_the_conversation(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = openai_form.answer_message
    monkeypatch.setattr(
        openai_form, "answer_message", lambda text, _, *more: message(text, "secret thoughts", *more)
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"hello\n/save {tmp_path / 'chat.json'}\n"))
    options = ("--tools", DIGIT, "--tool-choice", "required", "-n", "100", "--seed", "7", "-q", "--run-tools")
    assert cli.main(["chat", str(model), *options]) == 0
    saved = json.loads((tmp_path / "chat.json").read_text())
    assert len(saved) > 2 and "secret thoughts" not in json.dumps(saved)
