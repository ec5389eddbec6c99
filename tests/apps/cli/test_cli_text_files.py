"""``chat --file`` and ``/file``: the text of a file is part of a message."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from oxillama import ConfigError, GenerationOptions, PromptError
from oxillama.apps.cli import text_files
from oxillama.apps.cli.text_files import block_of
from oxillama.apps.server.page import pdf_text
from tests.apps.server.test_page_pdf import made, shown
from tests.support.command_line import error, run
from tests.support.tiny_file import write_tiny_model

GREEDY = ("-n", "6", "--greedy", "-c", "200")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("files")
    write_tiny_model(found / "tiny.gguf", ends=False)
    (found / "a.py").write_text("fox = 1\n")
    (found / "b").write_text("```\nfox\n```")
    return found


@pytest.mark.parametrize(
    ("name", "block"),
    [("a.py", "a.py:\n\n```py\nfox = 1\n```"), ("b", "b:\n\n````\n```\nfox\n```\n````")],
)
def test_a_file_is_a_block_of_code_below_its_name(folder: Path, name: str, block: str) -> None:
    assert block_of(str(folder / name), "--file") == block


def test_files_are_in_the_messages(folder: Path) -> None:
    saved = folder / "said.json"
    lines = f"once\n/file {folder / 'b'}\nupon\nthe\n/save {saved}\n/undo\n/undo\n"
    done = run("chat", folder / "tiny.gguf", "--file", folder / "a.py", *GREEDY, stdin=lines.encode())
    asked = [m["content"] for m in json.loads(saved.read_text()) if m["role"] == "user"]
    blocks = [block_of(str(folder / name), "--file") for name in ("a.py", "b")]
    assert asked == [f"once\n\n{blocks[0]}", f"upon\n\n{blocks[1]}", "the"]
    told = done.stderr.decode()
    assert f"the next message ends with the text of {folder / 'b'}" in told and "took back: upon b:" in told


def test_an_answer_to_a_file_is_the_answer_to_its_text(folder: Path) -> None:
    model, path = folder / "tiny.gguf", folder / "a.py"
    asked = run("chat", model, "once", "--file", path, *GREEDY)
    typed = run("chat", model, f"once\n\n{block_of(str(path), '--file')}", *GREEDY)
    assert asked.stdout == typed.stdout and asked.stdout.strip()
    assert run("chat", model, "once", *GREEDY).stdout != asked.stdout


def test_a_file_that_does_not_fit_is_not_attached(folder: Path) -> None:
    (folder / "long").write_text("fox " * 300)
    model, long = folder / "tiny.gguf", folder / "long"
    assert re.search(
        r"error: long has \d+ tokens, 199 fit", error("chat", model, "once", "--file", long, *GREEDY)
    )


def test_files_are_listed_and_detached(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from oxillama.apps.cli import build_parser
    from oxillama.apps.cli.chat_commands import run_command
    from oxillama.apps.cli.talk import Talk

    talk = Talk(
        build_parser("chat").parse_args(["chat", str(folder / "tiny.gguf"), *GREEDY]), GenerationOptions()
    )

    def told(line: str) -> str:
        run_command(talk, line)
        return capsys.readouterr().err

    assert "attached: nothing" in told("/file")
    for ending in ("/file -", "/reset"):
        told(f"/file {folder / 'a.py'}")
        told(f"/file {folder / 'b'}")
        assert f"attached: {folder / 'a.py'}, {folder / 'b'}" in told("/file")
        told(ending)
        assert talk.parts == []
    (folder / "half").write_text("fox " * 40)
    for _ in range(2):
        told(f"/file {folder / 'half'}")
    with pytest.raises(PromptError, match=r"at most 199 tokens"):
        talk.ask("once")  # each fits, both do not
    assert talk.parts == [] and f"detached: {folder / 'half'}" in capsys.readouterr().err
    talk.ask("once")


def test_what_is_no_text_is_refused_before_the_model_is_loaded(folder: Path) -> None:
    for name, data in (("latin", b"caf\xe9"), ("zero", b"a\0b"), ("empty", b" \n")):
        (folder / name).write_bytes(data)
    refused = {
        "absent": "absent cannot be read: No such file",
        "latin": "latin is not UTF-8 (at byte 3)",
        "zero": "got a zero at character 1",
        "empty": "expected text in",
    }
    for name, message in refused.items():
        with pytest.raises(ConfigError, match=r"^/file: ") as found:
            block_of(str(folder / name), "/file")
        assert message in str(found.value)
    assert "--file: " in error("chat", folder / "no-model.gguf", "once", "--file", folder / "absent")


@pytest.mark.skipif(find_spec("pypdf") is None, reason="pypdf is not installed")
def test_a_pdf(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "two.pdf"
    path.write_bytes(made(shown(b"hello there"), shown(b"the second page")))
    assert block_of(str(path), "--file") == "two.pdf:\n\n```\nhello there\n\nthe second page\n```"
    path.write_bytes(made(b""))
    with pytest.raises(ConfigError, match=r"two\.pdf: expected a PDF with text, got another: it has"):
        block_of(str(path), "--file")
    monkeypatch.setattr(pdf_text, "COMMAND", (str(folder / "no-python"),))
    with pytest.raises(ConfigError, match="no process to read it: No such file"):
        block_of(str(path), "--file")


def test_a_pdf_without_pypdf(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "one.pdf").write_bytes(b"%PDF-1.4")
    monkeypatch.setattr(text_files, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"is a PDF, .* missing \(pip install 'oxillama-cpu\[pdf\]'\)"):
        block_of(str(folder / "one.pdf"), "--file")
