"""`oxillama chat` over a pipe and on a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from oxillama import ConfigError, InferenceEngine
from oxillama.apps.cli.chat_commands import COMMANDS
from oxillama.apps.cli.conversation import Conversation
from oxillama.text.chat.known_templates import CHAT_FORMATS
from oxillama.text.chat.template import ChatTemplate
from tests.support.command_line import Terminal, error, has_terminals, output, run
from tests.support.fitted import chat_tokens
from tests.support.tiny_file import CHATML, write_tiny_model
from tests.support.waiting import asleep


def answers(engine: InferenceEngine, system: str | None, *turns: str) -> list[str]:
    """What the engine answers in one conversation."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    said = []
    for text in turns:
        messages.append({"role": "user", "content": text})
        said.append(engine.generate(chat_tokens(engine.tokenizer, messages), max_tokens=12))
        messages.append({"role": "assistant", "content": said[-1]})
    return said


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_a_command_attaches_a_medium_of_its_kind(kind: str) -> None:
    talk = Mock()
    COMMANDS[kind].run(talk, "a.bin")
    talk.attach.assert_called_once_with({"type": kind, "path": "a.bin"})


def test_chat_over_a_pipe_keeps_the_history(model: Path, engine: InferenceEngine) -> None:
    first = answers(engine, "be kind", "hello", "once upon")
    again = answers(engine, "be kind", "hello there")
    stdin = b"hello\n\nonce upon\n/reset\nhello there\n/exit\nnever said\n"
    text = output("chat", model, "-n", "12", "--greedy", "--system", "be kind", stdin=stdin)
    assert text == "".join(f"{answer}\n" for answer in first + again)


def test_a_later_turn_does_not_run_the_history_again(model: Path) -> None:
    done = run("chat", model, "-n", "12", "--greedy", "-v", stdin=b"hello\nonce upon\n")
    assert "prefill" not in run("chat", model, "-n", "2", "--greedy", stdin=b"hello\n").stderr.decode()
    prompts = re.findall(
        r"prefill (\d+) tokens[^|]*?(?:\((\d+) known from before\))? \|", done.stderr.decode()
    )
    (first, known_first), (_, known_second) = prompts
    assert known_first == ""
    assert int(known_second) >= int(first)  # and the part of the answer whose spelling has the same tokens


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


def test_a_question_in_the_place_of_the_model_is_told() -> None:
    said = error("chat", "What is a llama?")
    assert "got 'What is a llama?'; a QUESTION stands behind MODEL" in said and said.count("\n") == 1


@has_terminals
def test_chat_on_a_terminal(model: Path) -> None:
    terminal = Terminal("chat", model, "-n", "900000", "-c", "999999", "--greedy", "-v")
    terminal.expect("/help lists.*> ")
    terminal.send("hello\n")
    terminal.expect("are known\r\n.{20}")  # behind the log
    terminal.send("\x03")
    assert "finish interrupted" in terminal.expect("seed \\d+\r\n.*> ")
    terminal.send("a" * 999 + "\n")  # the history goes on
    terminal.expect("are known\r\n.{20}")
    terminal.send("\x03")
    assert "finish interrupted" in terminal.expect("seed \\d+\r\n.*> ")
    assert terminal.exit_code(interrupting=True) == 130


@has_terminals
def test_chat_on_a_terminal_survives_an_error(model: Path) -> None:
    terminal = Terminal("chat", model, "-n", "3", "-c", "60", "--greedy", "-v")
    terminal.expect("> ")
    terminal.send("a" * 100 + "\n")
    terminal.expect("oxillama: error: prompt: expected at most 59 tokens.*> ")
    terminal.send("hello\n")
    terminal.expect("finish length.*> ")
    terminal.send("/exit\n")
    assert terminal.exit_code() == 0


# --- messages of several lines --------------------------------------------------------------------
def test_lines_that_continue_and_blocks(model: Path, engine: InferenceEngine) -> None:
    flags = ("chat", model, "-n", "12", "--greedy")
    expected = answers(engine, None, "hello\nthere") * 3
    for stdin in (b"hello\\\nthere\n", b'"""hello\nthere"""\n', b'"""\nhello\nthere\n"""\n'):
        assert output(*flags, stdin=stdin) == expected[0] + "\n"
    (block,) = answers(engine, None, "/reset\nends \\")
    assert output(*flags, stdin=b'"""\n/reset\nends \\\n"""') == block + "\n"
    (lines,) = answers(engine, None, "hello\nthere\n\nfox")
    assert output(*flags, stdin=b"hello\\\nthere\\\n\\\nfox\n") == lines + "\n"
    assert output(*flags, stdin=b'"""hello\nthere') == expected[0] + "\n"  # the input ends before the block
    assert output(*flags, stdin=b"hello\nthere\\") == "".join(
        f"{answer}\n" for answer in answers(engine, None, "hello", "there\n")
    )


@has_terminals
def test_a_paste_is_one_message(model: Path, tmp_path: Path) -> None:
    readline = pytest.importorskip("readline")
    if "libedit" in (readline.__doc__ or ""):
        pytest.skip("libedit has no bracketed paste")
    path = tmp_path / "saved.json"
    terminal = Terminal("chat", model, "-n", "3", "--greedy", "-v", term="xterm")
    terminal.expect("\x1b\\[\\?2004h> ")  # asks the terminal to mark pastes
    terminal.send("\x1b[200~hello\n/exit\nthere\x1b[201~\n")
    terminal.expect("finish length.*> ")
    terminal.send(f"/save {path}\n")
    terminal.expect("> ")
    terminal.send("/exit\n")
    assert terminal.exit_code() == 0
    assert json.loads(path.read_text())[0] == {"role": "user", "content": "hello\n/exit\nthere"}


# --- commands -------------------------------------------------------------------------------------
def test_a_conversation_is_saved_and_continued(model: Path, engine: InferenceEngine, tmp_path: Path) -> None:
    path = tmp_path / "a talk.json"
    flags = ("chat", model, "-n", "12", "--greedy")
    first, second = answers(engine, "be kind", "hello", "once upon")
    text = output(*flags, "--system", "be kind", stdin=f"hello\n/save {path}\n".encode())
    assert text == first + "\n"
    assert json.loads(path.read_text()) == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": first},
    ]
    assert output(*flags, stdin=f"/load {path}\nonce upon\n".encode()) == second + "\n"
    asked_again = answers(engine, "be kind", "once upon")
    assert output(*flags, stdin=f"/load {path}\n/undo\nonce upon\n".encode()) == asked_again[0] + "\n"


def test_undo_takes_back_one_exchange() -> None:
    conversation = Conversation("be kind")
    conversation.add("a", "b")
    conversation.add("c", "d")
    conversation.undo()
    assert [message["content"] for message in conversation.messages] == ["be kind", "a", "b"]
    conversation.undo()
    with pytest.raises(ConfigError, match="/undo: expected an exchange to take back"):
        conversation.undo()
    assert conversation.messages == [{"role": "system", "content": "be kind"}]


@pytest.mark.parametrize(
    "text", ["", "{", "{}", "[1]", '[{"role": "user"}]', '[{"role": "user", "content": 1}]']
)
def test_a_file_that_is_no_conversation_changes_nothing(text: str, tmp_path: Path) -> None:
    conversation = Conversation()
    conversation.add("a", "b")
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match="/load: expected"):
        conversation.load(str(tmp_path / "x.json"))
    assert len(conversation.messages) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/undo", "/undo: expected an exchange"),
        ("/rest", "/rest: is no command; did you mean /reset?"),
        ("/xyzzy", "/xyzzy: is no command; /help lists the commands"),
        ("/reset now", "/reset: expected no argument, got now"),
        ("/save", "/save: expected a file name, got none"),
        ("/save /", "expected a file to write to, got a directory"),
        ("/load absent", "/load: absent cannot be read"),
    ],
)
def test_commands_that_cannot_be_run(model: Path, line: str, message: str) -> None:
    assert message in error("chat", model, stdin=f"{line}\n".encode())


def test_a_path_is_a_message_and_no_command(model: Path, engine: InferenceEngine) -> None:
    text = output("chat", model, "-n", "12", "--greedy", stdin=b"/etc/hosts\n")
    assert text == answers(engine, None, "/etc/hosts")[0] + "\n"


# --- chat templates -------------------------------------------------------------------------------
def test_templates_by_name(tmp_path: Path, model: Path, engine: InferenceEngine) -> None:
    plain = write_tiny_model(tmp_path / "plain.gguf", chat_template=None, ends=False)
    expected = answers(engine, None, "hello")[0] + "\n"
    flags = ("-n", "12", "--greedy", "--chat-template")
    assert output("chat", plain, *flags, "chatml", stdin=b"hello\n") == expected
    key = "tokenizer.chat_template."
    named = write_tiny_model(
        tmp_path / "named.gguf",
        chat_template="{{ raise_exception('the default') }}",
        metadata={f"{key}plain": CHATML, f"{key}gemma": CHATML},
        ends=False,
    )
    for name in ("plain", "gemma"):  # a template of the file comes before a well-known one
        assert output("chat", named, *flags, name, stdin=b"hello\n") == expected
    assert "--chat-template: nonsense cannot be read" in error("chat", model, "--chat-template", "nonsense")


TALK = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "A"},
    {"role": "assistant", "content": "B"},
    {"role": "user", "content": "C"},
]
RENDERED = {
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n"
    "<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n",
    "gemma": "<s><start_of_turn>user\nS\n\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n"
    "<start_of_turn>user\nC<end_of_turn>\n<start_of_turn>model\n",
    "llama2": "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST]",
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral-v1": "<s> [INST] S\n\nA [/INST] B</s> [INST] C [/INST]",
    "mistral-v3": "<s>[INST] S\n\nA[/INST] B</s>[INST] C[/INST]",
    "mistral-v3-tekken": "<s>[INST]S\n\nA[/INST]B</s>[INST]C[/INST]",
    "mistral-v7": "<s>[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] A[/INST] B</s>[INST] C[/INST]",
    "phi3": "<|system|>\nS<|end|>\n<|user|>\nA<|end|>\n<|assistant|>\nB<|end|>\n"
    "<|user|>\nC<|end|>\n<|assistant|>\n",
    "vicuna": "<s>S\n\nUSER: A\nASSISTANT: B</s>\nUSER: C\nASSISTANT:",
    "zephyr": "<|system|>\nS</s>\n<|user|>\nA</s>\n<|assistant|>\nB</s>\n<|user|>\nC</s>\n<|assistant|>\n",
}


@pytest.mark.parametrize("name", CHAT_FORMATS)
def test_well_known_formats(name: str) -> None:
    template = ChatTemplate(CHAT_FORMATS[name], "<s>", "</s>")
    assert template.render(TALK, add_generation_prompt=True) == RENDERED[name]
    alone = template.render(TALK[1:2], add_generation_prompt=True)
    assert "A" in alone and "S\n" not in alone


# --- Ctrl-C, quiet --------------------------------------------------------------------------------
@has_terminals
def test_ctrl_c_at_the_prompt_clears_the_line_and_twice_exits(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    terminal = Terminal("chat", model, "-n", "3", "--greedy", "-v")
    terminal.expect("> ")
    terminal.send("never sent")
    terminal.expect("never sent")
    asleep(terminal.pid)  # CPython does not see a signal just before it waits for a key
    terminal.send("\x03")
    terminal.expect(r"\(Ctrl-C again or Ctrl-D exits\).*> ")
    terminal.send("hello\n")
    terminal.expect("finish length.*> ")
    terminal.send(f"/save {path}\n")
    terminal.expect("> ")
    assert json.loads(path.read_text())[0]["content"] == "hello"
    asleep(terminal.pid)
    terminal.send("\x03")
    terminal.expect(r"exits\).*> ")
    assert terminal.exit_code(interrupting=True) == 130


@has_terminals
def test_ctrl_d_exits_and_help_lists_the_commands(model: Path) -> None:
    terminal = Terminal("chat", model)
    terminal.expect("> ")
    terminal.send("/help\n")
    text = terminal.expect("clears the line, twice it exits.*> ")
    assert all(name in text for name in ("/help", "/save FILE", "/load FILE", "/undo", "/reset", "/exit"))
    terminal.send("\x04")
    assert terminal.exit_code() == 0


@has_terminals
def test_an_interrupted_answer_stays_in_the_conversation(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    terminal = Terminal("chat", model, "-n", "-1", "-c", "999999", "--greedy")
    terminal.expect("> ")
    terminal.send("hello\n")
    terminal.expect("hello\r\n.{20}")
    terminal.send("\x03")
    terminal.expect("\r\n> ")
    terminal.send(f"/save {path}\n")
    terminal.expect("> ")
    question, answer = json.loads(path.read_text())
    assert question == {"role": "user", "content": "hello"}
    assert answer["role"] == "assistant"
    assert len(answer["content"]) >= 20
    terminal.send("/exit\n")
    assert terminal.exit_code() == 0


@has_terminals
def test_quiet_leaves_hints_bars_and_summaries_out(model: Path) -> None:
    terminal = Terminal("chat", model, "-n", "3", "--greedy", "--quiet")
    assert "/help" not in terminal.expect("> ")
    terminal.send("hello\n")
    assert "finish" not in terminal.expect("hello\r\n.*> ")
    terminal.send("/undo\n/undo\n")
    assert "oxillama: error: /undo" in terminal.expect("error: .*> ")
    terminal.send("/exit\n")
    assert terminal.exit_code() == 0
