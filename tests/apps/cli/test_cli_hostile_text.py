"""Texts of models and files cannot steer the terminal: of no command, on neither stream."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oxillama import InferenceEngine
from oxillama.apps import cli
from tests.support.command_line import Screen, called, save_receipt
from tests.support.tiny_file import write_tiny_model

SAYS = "a\x1b[2Jb\x07\x9bc\rd"
"""Clears the screen, rings the bell, and goes back in the line."""
GRAMMAR = 'root ::= "' + "".join(f"\\x{ord(c):02x}" for c in SAYS) + '"'
STEERS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A model whose file and name have control characters."""
    path = write_tiny_model(tmp_path / f"{SAYS}.gguf")
    path.write_bytes(path.read_bytes().replace(b"tiny", b"\x1b[2J", 1))
    return path


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Runs a command on a terminal; returns what it wrote to both streams."""
    monkeypatch.setenv("NO_COLOR", "1")

    def written(*args: object) -> str:
        screen = Screen()
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", screen)
            patched.setattr(sys, "stderr", screen)
            called(*args)
        return screen.getvalue()

    yield written


def receipt_of(model: Path, path: Path) -> Path:
    with InferenceEngine.from_gguf(model) as engine:
        save_receipt(engine, path, grammar=GRAMMAR, seed=1)
    return path


def fingerprint_of(path: Path) -> Path:
    path.write_text(json.dumps({"model": SAYS, "logits": SAYS, "library": SAYS}))
    return path


Command = Callable[[Path, Path], list[object]]


def rules(folder: Path) -> Path:
    (folder / "rules.gbnf").write_text(GRAMMAR)
    return folder / "rules.gbnf"


COMMANDS: dict[str, Command] = {
    "run": lambda model, folder: ["run", model, "-p", SAYS, "--grammar", rules(folder)],
    "demo": lambda model, folder: ["demo", "-p", SAYS, "-n", 1],
    "chat": lambda model, folder: ["chat", model, SAYS, "--grammar", rules(folder)],
    "chat, plain": lambda model, folder: ["chat", model, SAYS, "--no-markdown", "--grammar", rules(folder)],
    "tokenize": lambda model, folder: ["tokenize", model, "65 27 155 7", "--decode"],
    "tokenize, pieces": lambda model, folder: ["tokenize", model, SAYS, "--pieces"],
    "info": lambda model, folder: ["info", model, "--tensors"],
    "info, formulas": lambda model, folder: ["info", model, "--explain"],
    "verify": lambda model, folder: [
        *("verify", receipt_of(model, folder / f"{SAYS}.json")), "--model", model, "--text"
    ],
    "verify, two": lambda model, folder: [
        *("verify", receipt_of(model, folder / f"{SAYS}.json"), folder / f"{SAYS}.json", "--model", model)
    ],
    "fingerprint": lambda model, folder: ["fingerprint", model, "--compare", fingerprint_of(folder / "f")],
    "quantize": lambda model, folder: ["quantize", model, folder / f"{SAYS}.out", "Q8_0", "--verbose"],
    "pack": lambda model, folder: ["pack", model],
    "missing": lambda model, folder: ["info", folder / f"{SAYS} missing"],
    "option": lambda model, folder: ["run", model, "-p", "x", f"--{SAYS}"],
}  # fmt: skip
"""Command lines by what they write."""


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_steers_the_terminal(
    name: str, hostile: Path, tmp_path: Path, shown: Callable[..., str]
) -> None:
    text = shown(*COMMANDS[name](hostile, tmp_path), "--no-progress")
    assert not STEERS.search(text), ascii(text)
    assert name in ("info, formulas", "tokenize", "tokenize, pieces") or "[2J" in text, text


@pytest.mark.parametrize("name", ["run", "chat, plain", "tokenize", "verify"])
def test_a_pipe_has_the_text_unchanged(
    name: str, hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    called(*COMMANDS[name](hostile, tmp_path))
    wanted = "\x1b" if name == "tokenize" else SAYS
    assert wanted in capsys.readouterr().out


# --- the commands' code -------------------------------------------------------------------------------------
SAFE = {"printable", "shown_text", "styled", "human_bytes", "titled"}
"""Functions whose results have no control characters, or whose arguments have none."""
REVIEWED = {
    "sys.stderr.write(text)",  # the end of the reasoning, of printable characters, in one line
    "print('\\n'.join([*rows, NOTES]), file=sys.stderr, flush=True)",  # the help
    "print(json.dumps(value, indent=2))",  # JSON, in ASCII
    "print(line, file=sys.stderr, flush=True)",
    r"sys.stdout.write('\n\n'.join((f'{title}:\n{text}' for title, text in self.lists.items())) + '\n')",
    "print('  '.join((f'{c:>{w}}' if i in right else f'{c:{w}}' for i, (c, w) in sized)).rstrip())",
    "print(prompt, end='', file=sys.stderr, flush=True)",
    "sys.stdout.write(shown_text(text) if is_terminal(sys.stdout) else text)",
    "print(id, type_names(tokenizer.token_type(id)), str(tokenizer.token_bytes(id))[1:], sep='\\t')",
    "print(*ids)",
    "print(summary(generation, interrupted), file=sys.stderr, flush=True)",  # the summary of a generation
    "print(f'tensors: {formats}')",
    "print(f'signed: {signed}, {len(chain):,} in the chain, key {chain[-1].key}')",
    "print(f'[{number}] {value:.4f}')",
    "print(f'the model ran {k} of {n} receipts: false scores in one are missed with a probability of "
    "{missed(n, k):.3g}')",
}
"""Calls that write numbers, constants, or what was made printable before."""


def unsafe(node: ast.expr) -> bool:
    """Whether the written value may be text of a file or a model."""
    if isinstance(node, ast.Constant):
        return False
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        return name not in SAFE
    if isinstance(node, ast.JoinedStr):
        return any(
            isinstance(part, ast.FormattedValue) and part.format_spec is None and unsafe(part.value)
            for part in node.values
        )
    return True


def test_what_the_commands_write_cannot_hold_control_characters() -> None:
    found = []
    for path in Path(cli.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "print", "sys.stdout.write", "sys.stderr.write"
            ):  # fmt: skip
                found += [ast.unparse(node)] if any(map(unsafe, node.args)) else []
    assert {each for each in found if not each.startswith("print(f'perplexity: ")} == REVIEWED
