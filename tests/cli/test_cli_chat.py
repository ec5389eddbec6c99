"""`oxillama chat` over a pipe and on a terminal."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from oxillama import EngineConfig, InferenceEngine, SamplerConfig
from tests.support.command_line import (
    Terminal,
    error,
    output,
    run,
)
from tests.support.tiny_file import CHATML, write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never ends by itself."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", ends=False)


@pytest.fixture(scope="module")
def engine(model: Path) -> InferenceEngine:
    return InferenceEngine(EngineConfig(model_path=model, sampler=SamplerConfig.greedy()))


def answers(engine: InferenceEngine, system: str | None, *turns: str) -> list[str]:
    """What the engine answers in one conversation."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    said = []
    for text in turns:
        messages.append({"role": "user", "content": text})
        said.append(engine.generate(engine.tokenizer.encode_chat(messages), max_tokens=12))
        messages.append({"role": "assistant", "content": said[-1]})
    return said


def test_chat_over_a_pipe_keeps_the_history(model: Path, engine: InferenceEngine) -> None:
    first = answers(engine, "be kind", "hello", "once upon")
    again = answers(engine, "be kind", "hello there")
    stdin = b"hello\n\nonce upon\n/reset\nhello there\n/exit\nnever said\n"
    text = output("chat", model, "-n", "12", "--greedy", "--system", "be kind", stdin=stdin)
    assert text == "".join(f"{answer}\n" for answer in first + again)


def test_a_later_turn_does_not_run_the_history_again(model: Path) -> None:
    done = run("chat", model, "-n", "12", "--greedy", stdin=b"hello\nonce upon\n")
    prompts = re.findall(
        r"prefill (\d+) tokens[^|]*?(?:\((\d+) known from before\))? \|", done.stderr.decode()
    )
    (first, known_first), (_, known_second) = prompts
    assert known_first == ""
    assert int(known_second) >= int(
        first
    )  # and of the answer, what is spelled with the tokens it was made of


def test_chat_ends_with_its_input(model: Path, engine: InferenceEngine) -> None:
    assert (
        output("chat", model, "-n", "12", "--greedy", stdin=b"hello")
        == answers(engine, None, "hello")[0] + "\n"
    )
    assert output("chat", model) == ""


def test_chat_with_a_template_of_the_users(tmp_path: Path, model: Path, engine: InferenceEngine) -> None:
    plain = write_tiny_model(tmp_path / "plain.gguf", chat_template=None, ends=False)
    assert "chat template: expected one, the model file has none" in error("chat", plain, stdin=b"hello\n")
    (tmp_path / "chatml.jinja").write_text(CHATML)
    flags = ("--template", str(tmp_path / "chatml.jinja"), "-n", "12", "--greedy")
    assert output("chat", plain, *flags, stdin=b"hello\n") == answers(engine, None, "hello")[0] + "\n"
    (tmp_path / "bad.jinja").write_text("{% for %}")
    assert "chat template" in error("chat", model, "--template", tmp_path / "bad.jinja", stdin=b"hello\n")
    assert "--chat-template: absent cannot be read" in error(
        "chat", model, "--chat-template", "absent", stdin=b"hello\n"
    )


def test_chat_refuses_what_is_no_text_or_too_long(model: Path) -> None:
    assert "surrogate" in error("chat", model, stdin=b"\xff\n")
    assert "expected at most 29 tokens" in error("chat", model, "-c", "30", stdin=b"a" * 50 + b"\n")


@pytest.mark.skipif(sys.platform == "win32", reason="has no pseudo-terminals")
def test_chat_on_a_terminal(model: Path) -> None:
    terminal = Terminal("chat", model, "-n", "900000", "-c", "999999", "--greedy")
    terminal.expect("/help lists.*> ")
    terminal.send("hello\n")
    terminal.expect("hello\r\n.{20}")
    terminal.send("\x03")
    assert "finish interrupted" in terminal.expect("seed \\d+\r\n> ")
    terminal.send("a" * 999 + "\n")  # the history goes on
    terminal.expect("a\r\n.{20}")
    terminal.send("\x03")
    assert "finish interrupted" in terminal.expect("seed \\d+\r\n> ")
    assert terminal.exit_code(interrupting=True) == 130


@pytest.mark.skipif(sys.platform == "win32", reason="has no pseudo-terminals")
def test_chat_on_a_terminal_survives_an_error(model: Path) -> None:
    terminal = Terminal("chat", model, "-n", "3", "-c", "60", "--greedy")
    terminal.expect("> ")
    terminal.send("a" * 100 + "\n")
    terminal.expect("oxillama: error: prompt: expected at most 59 tokens.*> ")
    terminal.send("hello\n")
    terminal.expect("finish length.*> ")
    terminal.send("/exit\n")
    assert terminal.exit_code() == 0
