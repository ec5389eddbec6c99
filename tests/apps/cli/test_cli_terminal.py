"""Colours, Markdown, commands and completion of a chat."""

from __future__ import annotations

import argparse
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from oxillama import ConfigError, EngineConfig, InferenceEngine, SamplerConfig, demo
from oxillama.apps.cli import build_parser, chat_commands, options, terminal
from oxillama.apps.cli.answers import last_columns
from oxillama.apps.cli.chat_commands import completions, run_command
from oxillama.apps.cli.talk import Talk
from tests.support.command_line import Screen, Terminal, error, has_terminals, output, run
from tests.support.tiny_file import CHATML, write_tiny_model

OPENED = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif") + "{# </think> #}"
SWITCHED = CHATML.replace(
    "assistant\n{% endif", "assistant\n{% if enable_thinking != false %}<think>{% endif %}{% endif"
)


# --- the shipped model ----------------------------------------------------------------------------
def test_chat_alone_talks_to_the_shipped_model() -> None:
    with InferenceEngine(EngineConfig(model_path=demo.STORY, sampler=SamplerConfig.greedy())) as engine:
        expected = [engine.generate(f"{title}\n\n", max_tokens=9) for title in ("Two Riddles", "Mia")]
    assert output("chat", "-n", "9", "--greedy", stdin=b"Two Riddles\nMia\n") == "".join(
        f"{x}\n" for x in expected
    )
    assert output("chat", demo.STORY, "Mia", "-n", "9", "--greedy") == expected[1] + "\n"
    assert output("chat", demo.STORY, "-", "-n", "9", "--greedy", stdin=b"Mia\n\n") == expected[1] + "\n"
    assert "question: expected text, got none" in error("chat", demo.STORY, "-", stdin=b" \n")
    assert "question: stdin is not UTF-8" in error("chat", demo.STORY, "-", stdin=b"\xff")


# --- colours --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "on_terminal", "in_pipe"),
    [
        ({}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_colours(
    settings: dict[str, str], on_terminal: bool, in_pipe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"NO_COLOR": "", "FORCE_COLOR": "", "TERM": "xterm", **settings}.items():
        monkeypatch.setenv(name, value)
    assert [terminal.has_colours(stream) for stream in (Screen(), io.StringIO())] == [on_terminal, in_pipe]
    assert terminal.styled("a", "dim", Screen()) == ("\x1b[2ma\x1b[0m" if on_terminal else "a")


def test_a_model_cannot_steer_the_terminal() -> None:
    assert terminal.shown_text("a\x1b[2Jb\x07\r\x9bc\td\ne\u00e9") == "a[2Jbc\td\ne\u00e9"


@pytest.mark.parametrize(
    ("text", "width", "line"),
    [
        ("one two\nthree", 9, "two three"),
        ("\u4e2d\u6587\u5b57", 5, "\u6587\u5b57"),
        ("", 5, ""),
        ("abc", 0, ""),
    ],
)
def test_the_last_words_of_reasoning(text: str, width: int, line: str) -> None:
    assert last_columns(text, width) == line


# --- Markdown -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("a\n\nb", "a\n\n"), ("a\nb", ""), ("a\n\n", "a\n\n"), ("```\na\n\nb", ""),
        ("```\na\n\nb\n```\n\nc", "```\na\n\nb\n```\n\n"), ("~~~~\n~~~\n\na", ""), ("- a\n\n- b\n", ""),
        ("- a\n\n- b\n\nc", "- a\n\n- b\n\n"), ("1. a\n\n   b\n\nc\n\nd", "1. a\n\n   b\n\nc\n\n"),
    ],
)  # fmt: skip
def test_blocks_that_are_whole(text: str, whole: str) -> None:
    assert terminal.split_blocks(text) == (whole, text[len(whole) :])


def test_markdown_is_shown_as_it_comes() -> None:
    console = pytest.importorskip("rich.console").Console
    text, screen = (
        "# One\n\n**two** three\n\n```python\nx = 1\n\n" + "y = 2\n" * 50 + "```\n\n- four\n",
        Screen(),
    )
    with terminal.MarkdownView(console(file=screen, width=80, height=24, force_terminal=True)) as view:
        for i in range(0, len(text), 7):
            view.add(text[i : i + 7])
        view.live.refresh()
        assert "four" in screen.getvalue()
    shown = screen.getvalue()
    assert "\x1b[1mtwo\x1b[0m three" in shown and "**" not in shown
    assert "\u2022" in shown[shown.rindex("three") :]


def test_markdown_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert isinstance(terminal.new_view(True), terminal.PlainView)


# --- commands -------------------------------------------------------------------------------------
def talk_with(model: Path, *flags: str) -> Talk:
    args = build_parser("chat").parse_args(["chat", str(model), "-q", "-n", "12", *flags])
    return Talk(args, options.generation_options(args))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    templates = {"plain": CHATML, "opened": OPENED, "switched": SWITCHED + "{# </think> #}"}
    return {
        name: write_tiny_model(folder / f"{name}.gguf", chat_template=template, ends=False)
        for name, template in templates.items()
    }


def test_commands_change_the_next_answer(models: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    talk = talk_with(models["plain"], "--seed", "5", "--temp", "2")
    talk.answer("hello")
    first = talk.conversation.last_answer
    assert run_command(talk, "/regen")
    second = talk.conversation.last_answer
    assert first != second and len(talk.conversation.messages) == 2
    for line in ("/set temperature 0", "/set top-k 1", "/set --temp=0", "/set stop x", "/set ignore_eos on"):
        assert run_command(talk, line)
    assert (talk.chosen.stop, chat_commands.sampler_of(talk).temperature) == (("x",), 0)
    talk.args.quiet = False
    for line, told in {
        "/set": "temperature 0.0",
        "/system be kind": "system message: be kind",
        "/system": "system message: be kind",
        "/tools": "tools: none",
        "/think": "the last answer has no reasoning",
        "/model": "tiny: ",
        "/undo": "took back: hello",
        "/reset": "the conversation is empty",
        "/help": "/regen",
        f"/model {models['opened']}": "context 4096 tokens",
    }.items():
        assert run_command(talk, line)
        assert told in capsys.readouterr().err
    assert talk.conversation.messages == [{"role": "system", "content": "be kind"}]
    assert not run_command(talk, "/etc/hosts") and not run_command(talk, "hello /undo")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/regen", "/regen: expected a question"),
        ("/copy", "/copy: expected an answer"),
        ("/set temprature 1", "temprature: is no option; did you mean temperature"),
        ("/set temperature", "temperature: expected a value, got none"),
        ("/set temperature hot", "temperature: expected a number, got 'hot'"),
        ("/set temperature -1", "temperature: expected a number >= 0"),
        ("/set ignore_eos maybe", "ignore_eos: expected on or off, got maybe"),
        ("/think on", "--think: expected a chat template with reasoning"),
        ("/think hard", "/think: expected on, off or a number of tokens, got hard"),
        ("/tools absent.json", "--tools: absent.json cannot be read"),
        ("/model absent.gguf", "absent.gguf"),
        ("/sytem x", "/sytem: is no command; did you mean /system?"),
    ],
)
def test_commands_that_are_refused_change_nothing(models: dict[str, Path], line: str, message: str) -> None:
    talk = talk_with(models["plain"])
    before = (talk.chosen, talk.engine, talk.variables, talk.box, talk.args.tools)
    with pytest.raises(Exception, match=message.replace("?", r"\?")):
        run_command(talk, line)
    assert (talk.chosen, talk.engine, talk.variables, talk.box, talk.args.tools) == before


def test_the_answer_is_copied_by_the_terminal(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = talk_with(models["plain"])
    talk.conversation.add("a", "b\u00e9")
    monkeypatch.setattr(sys, "stdout", Screen())
    assert run_command(talk, "/copy")
    assert sys.stdout.getvalue() == "\x1b]52;c;YsOp\a"
    talk.conversation.add("a", "b" * 74_995)
    with pytest.raises(ConfigError, match="/copy: expected a terminal and up to 74,994 bytes"):
        run_command(talk, "/copy")


# --- reasoning ------------------------------------------------------------------------------------
def test_reasoning_is_not_part_of_the_conversation(
    models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    talk = talk_with(models["opened"], "--seed", "5", "--temp", "2", "--reasoning-budget", "4", "-n", "40")
    talk.answer("hello")
    shown = capsys.readouterr().out
    assert talk.reasoning and "<think>" not in shown
    _, answer = talk.conversation.messages
    assert answer["content"] + "\n" == shown and talk.reasoning not in answer["content"]
    run_command(talk, "/think")
    assert terminal.shown_text(talk.reasoning) in capsys.readouterr().err
    run_command(talk, "/think off")  # there is no switch: a budget of 0
    talk.answer("again")
    assert talk.reasoning == ""
    run_command(talk, "/think 2")
    assert talk.chosen.reasoning_budget == 2


def test_the_switch_of_a_template(models: dict[str, Path]) -> None:
    for flags, variables in (
        ((), {}),
        (("--think",), {"enable_thinking": True}),
        (("--no-think",), {"enable_thinking": False}),
    ):
        assert talk_with(models["switched"], *flags).variables == variables
    assert "--think: expected a chat template with reasoning" in error(
        "chat", models["plain"], "x", "--think"
    )
    with pytest.raises(ConfigError, match="--think"):
        talk_with(models["plain"], "--think")
    talk_with(models["plain"], "--no-think").answer("hello")


@has_terminals
def test_reasoning_is_one_dim_line_on_a_terminal(models: dict[str, Path]) -> None:
    flags = ("--greedy", "--reasoning-budget", "9", "-n", "60", "--no-markdown")
    screen = Terminal("chat", models["opened"], "hello", *flags, term="xterm")
    text = screen.expect("thought for ", 60)
    assert "\r\x1b[K\x1b[2mthinking: " in text
    assert "\r\x1b[K\x1b[2mthought for " in text
    assert "<think>" not in text
    assert screen.exit_code(60) == 0


# --- the line editor ------------------------------------------------------------------------------
def test_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "story [1].json").touch()
    (tmp_path / "stories").mkdir()
    assert completions("/re", "/re") == ["/regen", "/reset"]
    assert completions("/load st", "st") == ["stories/", "story [1].json"]
    assert completions("/set temp", "temp") == ["temperature"]
    assert completions("/set temperature ", "") == completions("hello", "hello") == completions("", "") == []


@has_terminals
def test_history_is_kept_for_the_next_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readline = pytest.importorskip("readline")
    if "libedit" in (readline.__doc__ or ""):
        pytest.skip("libedit writes another form")
    from tests.support import command_line

    monkeypatch.setitem(command_line.ENVIRONMENT, "XDG_STATE_HOME", str(tmp_path))
    screen = Terminal("chat", "-n", "3", "--greedy")
    screen.expect("context 512 tokens.*/help lists.*> ", 60)
    screen.send("/sys\t be kind\n")
    screen.expect("system message: be kind.*> ", 60)
    screen.send("/quit\n")
    assert screen.exit_code(60) == 0
    kept = tmp_path / "oxillama" / "chat_history"
    assert kept.read_text() == "/system be kind\n/quit\n"
    assert kept.stat().st_mode & 0o777 == 0o600
    screen = Terminal("chat", "-n", "3", "--greedy")
    screen.expect("> ", 60)
    screen.send("\x1b[A\x1b[A\n")
    screen.expect("system message: be kind.*> ", 60)
    assert screen.exit_code(60, interrupting=True) == 130


@has_terminals
def test_ctrl_c_with_something_typed_between_does_not_exit() -> None:
    pytest.importorskip("readline")
    screen = Terminal("chat", "-n", "3")
    screen.expect("> ", 60)
    for typed in ("once", "upon"):
        screen.send(typed)
        screen.expect(typed, 60)
        for _ in range(60):  # CPython does not see a signal just before it waits for a key
            screen.send("\x03")
            if screen_has(screen, r"exits\).*> "):
                break
    screen.send("/quit\n")
    assert screen.exit_code(60) == 0


def screen_has(screen: Terminal, pattern: str) -> bool:
    try:
        screen.expect(pattern, 1)
    except pytest.fail.Exception:
        return False
    return True


# --- run, and help --------------------------------------------------------------------------------
@has_terminals
def test_run_says_that_it_applies_no_template(models: dict[str, Path]) -> None:
    screen = Terminal("run", models["plain"], "-p", "hello", "-n", "3")
    assert "oxillama chat" in screen.expect("chat template, which run does not apply.*seed", 60)
    assert b"template" not in run("run", models["plain"], "-p", "hello", "-n", "3").stderr


@pytest.mark.parametrize("command", ["run", "chat", "serve", "batch"])
def test_common_options_come_first(command: str) -> None:
    text = output(command, "--help-all")
    first = text.index("--chat-template") if command != "run" else text.index("--temp ")
    assert first < text.index("\nsampling:") and text.index("--context-size") < text.index("\nmodel:")
    assert text.startswith(f"usage: oxillama {command} [options]")


def test_models_of_serve_and_batch_have_the_same_options() -> None:
    serve, batch = (
        {
            action.dest
            for action in choices(build_parser())[name]._actions
            if action.option_strings
            and any(flag in ("-m", "-n", "--chat-template") for flag in action.option_strings)
        }
        for name in ("serve", "batch")
    )
    assert serve - {"more_models"} == batch - {"model"} == {"max_tokens", "chat_template"}


def choices(parser: argparse.ArgumentParser) -> dict[str, Any]:
    (found,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(found.choices)


def test_a_message_that_is_refused_detaches_its_files(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk, part = talk_with(models["plain"]), {"type": "image", "path": "fox.png"}
    talk.parts = [part]

    def answer(content: object) -> None:
        asked.append(content)
        raise ConfigError("no")

    asked: list[object] = []
    monkeypatch.setattr(talk, "answer", answer)
    with pytest.raises(ConfigError):
        talk.ask("what is it?")
    assert talk.parts == [] and "fox.png" in str(asked[0])
    monkeypatch.setattr(talk, "answer", asked.append)
    talk.ask("and now?")
    assert asked[1] == "and now?"


def test_a_drawn_answer_leaves_room_for_the_echo_of_a_key() -> None:
    console = pytest.importorskip("rich.console").Console
    screen = io.StringIO()
    with terminal.MarkdownView(console(file=screen, width=40, height=24, force_terminal=True)) as view:
        view.add("one two three four five six seven " * 5)
    lines = re.split(r"[\r\n]|\x1b\[[0-9;?]*[A-Za-z]", screen.getvalue())
    assert 30 < max(map(len, lines)) <= 40 - len("^C") - 1
