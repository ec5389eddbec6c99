"""Golden texts: files with the expected text of an answer, and its receipt."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from oxillama.apps.testing.answers import Answer
from oxillama.base.atomic_file import replaced_file
from oxillama.sessions.receipt import Receipt

FOLDER = "goldens"
"""The name of the folder, next to the test's file."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

PASSING = ("library",)
"""Fields of a receipt that may differ."""


class Goldens:
    """The golden texts of a test module.

    Args:
        folder: folder of the files: NAME.txt, and NAME.receipt.json if the text has a receipt.
        updates: whether to write files instead of comparing.
        seen: texts written in this session, by file.
    """

    def __init__(self, folder: Path, updates: bool, seen: dict[Path, str]) -> None:
        self.folder = folder
        self._updates = updates
        self._seen = seen

    def check(self, text: str, name: str) -> None:
        """Compare a text with its file, or write the file. Raises AssertionError if they differ, ValueError
        for an invalid name."""
        if not NAME.fullmatch(name):
            raise ValueError(f"name: expected letters, digits, '_', '.' and '-', got {name!r}")
        path, receipt = self.folder / f"{name}.txt", getattr(text, "receipt", None)
        proof = self.folder / f"{name}.receipt.json"
        if self._updates:
            self._write(str(text), receipt, path, proof)
        else:
            compare(str(text), receipt, path, proof)

    def _write(self, text: str, receipt: Receipt | None, path: Path, proof: Path) -> None:
        if self._seen.setdefault(path, text) != text:
            raise AssertionError(f"{path}: this session has another text of that name already")
        self.folder.mkdir(parents=True, exist_ok=True)
        with replaced_file(path, synced=False) as file:
            file.write(text.encode())
        if receipt is not None:
            receipt.save(proof)
        else:
            proof.unlink(missing_ok=True)


def compare(text: str, receipt: Receipt | None, path: Path, proof: Path) -> None:
    """Raise AssertionError unless the files have this text and this receipt."""
    __tracebackhide__ = True
    if not path.exists():
        raise AssertionError(f"{path}: there is no golden text yet; --llm-update writes it")
    golden = path.read_bytes().decode()
    if golden != text:
        lines = difflib.unified_diff(golden.splitlines(), text.splitlines(), "golden", "answer", lineterm="")
        raise AssertionError("\n".join([f"{path}: the answer differs", *lines]))
    if receipt is None and not proof.exists():
        return
    if receipt is None or not proof.exists():
        has, has_not = ("the answer", "the golden text") if receipt else ("the golden text", "the answer")
        raise AssertionError(f"{proof}: {has} has a receipt, {has_not} has none; --llm-update writes both")
    known = Receipt.load(proof)
    changed = [
        name for name in vars(known) if name not in PASSING and vars(known)[name] != vars(receipt)[name]
    ]
    if changed:
        raise AssertionError(
            f"{proof}: the text is the same, but what it follows from is not: {', '.join(changed)}; "
            "--llm-update accepts that"
        )


def golden_of(answer: str | Answer, name: str | None, node: str) -> tuple[str, str]:
    """The text, and the name of its golden text: by default the test's name."""
    return answer, re.sub(r"[^A-Za-z0-9_.-]+", "-", node).strip("-") if name is None else name
