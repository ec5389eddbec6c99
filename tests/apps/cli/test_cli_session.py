"""``--session FILE`` and ``oxillama snapshot``: what a restart goes on with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from oxillama import demo
from oxillama.compat.engine import InferenceEngine
from oxillama.sessions.container import read_header
from oxillama.sessions.snapshot import EngineSnapshot
from tests.support.command_line import called, output, printed, refused
from tests.support.tiny_file import write_tiny_model

PROMPT = "Once upon a time"
Capture = pytest.CaptureFixture[str]


def test_run_goes_on(tmp_path: Path, capsys: Capture) -> None:
    path, options = tmp_path / "a.session", ("-n", "12", "--greedy", "-q")
    whole = InferenceEngine.from_gguf(demo.STORY).generate(PROMPT, temperature=0, max_tokens=36)
    texts = [printed(capsys, "run", demo.STORY, "-p", PROMPT, "--session", path, *options)]
    texts += [printed(capsys, "run", demo.STORY, "--session", path, "-t", "1", *options) for _ in range(2)]
    assert "".join(text.removesuffix("\n") for text in texts) == whole
    told = " The fox said:"
    text = printed(capsys, "run", demo.STORY, "--session", path, "-p", told, *options).removesuffix("\n")
    engine = InferenceEngine.from_gguf(demo.STORY)
    tokens = engine.tokenize(PROMPT)
    tokens += engine.stream(PROMPT, temperature=0, max_tokens=36).result().tokens
    tokens += engine.tokenize(told, add_special=False)
    assert text == engine.generate(tokens, temperature=0, max_tokens=12)
    assert list(tmp_path.iterdir()) == [path]
    assert EngineSnapshot.deserialize(path.read_bytes()).tokens.tolist()[: len(tokens)] == tokens


def test_run_without_a_session_needs_a_prompt(tmp_path: Path, capsys: Capture) -> None:
    for more in ((), ("--session", tmp_path / "none")):
        assert "prompt: expected text, got none" in refused(capsys, "run", demo.STORY, *more)
    assert list(tmp_path.iterdir()) == []
    assert "got the directory" in refused(capsys, "run", demo.STORY, "-p", "x", "--session", tmp_path)
    message = refused(capsys, "run", demo.STORY, "-p", "x", "--session", tmp_path / "no" / "where")
    assert "--session: expected a file in a folder that can be written to" in message


def test_a_session_is_of_one_model_and_command(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.session"
    printed(capsys, "run", demo.STORY, "-p", PROMPT, "--session", path, "-n", "3", "-q")
    before = path.read_bytes()
    for arguments, message in (
        (("run", demo.DRAFT), "snapshot: expected model"),
        (("run", demo.STORY, "--kv-type", "f32"), "kv_type: expected f16, got f32"),
        (("run", demo.STORY, "--lora", demo.PIRATE), "--lora: expected the adapters of the session"),
        (("chat", demo.STORY, "--chat-template", "chatml"), "--session: expected one of oxillama chat"),
    ):
        assert message in refused(capsys, *arguments, "--session", path, "-n", "3")
        assert path.read_bytes() == before
    path.write_bytes(before[:-5])
    assert "snapshot: section" in refused(capsys, "run", demo.STORY, "--session", path)


def test_adapters_are_the_sessions(tmp_path: Path, capsys: Capture) -> None:
    path, options = tmp_path / "a.session", ("-n", "10", "--greedy", "-q")
    engine = InferenceEngine.from_gguf(demo.STORY)
    whole = engine.generate(PROMPT, temperature=0, max_tokens=20, adapters=(demo.PIRATE, 0.5))
    lora = ("--lora", f"{demo.PIRATE}=0.5")
    first = printed(capsys, "run", demo.STORY, *lora, "-p", PROMPT, "--session", path, *options)
    again = printed(capsys, "run", demo.STORY, "--session", path, *options)
    assert first.removesuffix("\n") + again.removesuffix("\n") == whole


def test_chat_goes_on(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", ends=False)
    path = tmp_path / "a.session"

    def chat(said: str, *more: object) -> str:
        text = iter([*said.split("|"), None])
        monkeypatch.setattr("oxillama.apps.cli.chat.MessageInput.read", lambda self: next(text))
        return printed(capsys, "chat", model, "-n", "12", "--greedy", *more)

    whole = chat("hello|once upon|the fox|/undo|a time", "--system", "be kind")
    first = chat("hello|once upon", "--system", "be kind", "--session", path)
    again = chat("the fox|/undo|a time", "--session", path)
    assert first + again == whole
    saved = EngineSnapshot.deserialize(path.read_bytes()).notes["messages"]
    assert [message["role"] for message in saved] == ["system", *["user", "assistant"] * 3]
    message = refused(capsys, "chat", model, "--system", "be rude", "--session", path)
    assert "--system: expected the one that the session began with" in message
    assert "--session: expected one of oxillama run" in refused(capsys, "run", model, "--session", path)


def test_a_later_process_does_not_run_the_history_again(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = tmp_path / "plain.jinja"  # an answer of this model is the same tokens when it is read again
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    kept = ["--session", str(tmp_path / "a")]
    options = ["--chat-template", str(template), "-n", "30", "--greedy", "-v", *kept]
    for said in ("Once upon a time there was a little fox", " Then he"):
        text = iter([said, None])
        monkeypatch.setattr("oxillama.apps.cli.chat.MessageInput.read", lambda self, text=text: next(text))
        assert called("chat", demo.STORY, *options) == 0
        told = capsys.readouterr().err
    found = re.search(r"^prefill (\d+) tokens.*\((\d+) known", told, re.MULTILINE)
    assert found is not None
    prompt, known = map(int, found.groups())
    assert 0 < prompt < 30 < known


def test_info(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.session"
    engine = InferenceEngine.from_gguf(demo.STORY)
    with engine.session(adapters=(demo.PIRATE, 0.5)) as session:
        session.prefill(PROMPT)
        session.snapshot_to_file(path, compress=True)
    text = printed(capsys, "snapshot", path)
    for part in (
        "session",
        engine.model.fingerprint.display(),
        "6, of which 6",
        "f16, 12.0 KiB",
        " 0.5 (",
    ):
        assert part in text
    assert json.loads(printed(capsys, "snapshot", path, "--json")) == read_header(path)
    assert "checksums" in printed(capsys, "snapshot", path, "--check")
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    assert printed(capsys, "snapshot", path) == text
    assert printed(capsys, "snapshot", "info", path) == text  # the command's earlier form
    assert "FILE: expected one, got 2" in refused(capsys, "snapshot", path, path)
    assert "it is damaged" in refused(capsys, "snapshot", path, "--check")


def test_a_folder_of_prompts_is_for_runs_without_a_session(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "folder"
    asked = ("run", demo.STORY, "-p", PROMPT * 30, "-n", "3", "--greedy", "-q", "--prefix-cache-dir", folder)
    text = output(*asked)  # all is written when the process ends
    n_files = len(list(folder.iterdir()))
    assert n_files > 0
    assert output(*asked) == text
    assert len(list(folder.iterdir())) == n_files
    message = refused(capsys, *asked, "--session", tmp_path / "a")
    assert "--prefix-cache-dir: cannot be combined with --session" in message
