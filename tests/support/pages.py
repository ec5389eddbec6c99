"""The code blocks of the pages, and a folder in which they run."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oxillama import InferenceEngine, demo, quantize_model
from oxillama.apps.server.models import Hosted
from tests.support import hub
from tests.support.paths import DOCS, ROOT
from tests.support.server import serving_models

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
LANGUAGES = {"python", "sh", "console", "json", "text", "yaml", "ini", "dockerfile", "toml"}
ADDRESS = "127.0.0.1:8080"
"""Of the server that some pages talk to."""

REPOS = {
    "Qwen/Qwen3-4B-GGUF": {"Qwen3-4B-Q4_K_M.gguf": demo.STORY},
    "user/repo": {"model-Q4_K_M.gguf": demo.STORY},
}
"""What the hub of this machine has."""

ANSWERS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
SHIM = f'#!/bin/sh\nexec "{sys.executable}" -W ignore -m oxillama "$@"\n'
INHERITED = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OXILLAMA_", "HF_"))}


@dataclass(frozen=True)
class Block:
    """A code block: its page, the number of its first line, its language ("" for none) and its text."""

    page: Path
    line: int
    language: str
    text: str


def blocks(page: Path, *languages: str) -> list[Block]:
    """The code blocks of a page in these languages, or all."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL):
        indent, language, body = match.groups()
        body = re.sub(rf"^{indent}", "", body, flags=re.MULTILINE)
        found.append(Block(page, text.count("\n", 0, match.start()) + 2, language, body))
    return [block for block in found if not languages or block.language in languages]


def command_lines(text: str) -> list[str]:
    """The lines of a shell block, those that end in a backslash joined with the next, without comments."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = (re.sub(r"\s+# .*$", "", line).rstrip() for line in joined.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def programs(line: str) -> Iterator[str]:
    """The calls of oxillama in a command line, without pipes and redirections."""
    for part in re.split(r"\s(?:\||&&|;)\s", line):
        found = re.search(r"(?:^|\s)oxillama\s(.*?)(?:\s[<>]|$)", part)
        if found and not part.startswith(("pip ", "docker ", "journalctl ", "systemctl ")):
            yield found[1]


def fill(folder: Path) -> None:
    """Makes the files that the pages name."""
    for source, name in (
        (demo.STORY, "model.gguf"),
        (demo.DRAFT, "small.gguf"),
        (demo.DRAFT, "other.gguf"),
        (demo.PIRATE, "pirate.gguf"),
    ):
        shutil.copyfile(source, folder / name)
    quantize_model(demo.STORY, folder / "model-f16.gguf", "F16", allow_requantize=True)
    text = demo.HELDOUT.read_text(encoding="utf-8")
    (folder / "text.txt").write_text(text[:3000], encoding="utf-8")
    (folder / "long.txt").write_text(text[:9000], encoding="utf-8")
    (folder / "prompt.txt").write_text("Once upon a time", encoding="utf-8")
    (folder / "regex.json").write_text('{"properties": {"a": {"format": "regex"}}}', encoding="utf-8")
    (folder / "schema.json").write_text('{"enum": ["red", "blue"]}', encoding="utf-8")
    (folder / "in.jsonl").write_text('{"prompt": "Once upon a time", "max_tokens": 5}\n', encoding="utf-8")


@contextmanager
def hub_of_this_machine() -> Iterator[str]:
    """The address of a hub with `REPOS`."""
    repos = {repo: {name: path.read_bytes() for name, path in files.items()} for repo, files in REPOS.items()}
    with hub.serving(hub.Hub(repos)) as found:
        yield found.url


@contextmanager
def served(texts: list[str], folder: Path) -> Iterator[str]:
    """The address of a server of model.gguf, if one of the texts talks to `ADDRESS`."""
    if not any(ADDRESS in text for text in texts):
        yield ADDRESS
        return
    with serving_models(Hosted("model", InferenceEngine.from_gguf(folder / "model.gguf"))) as client:
        yield f"127.0.0.1:{client.port}"


def run_python(block: Block, text: str, names: dict[str, Any]) -> None:
    """Runs a block in a namespace: as doctests if it has prompts. Raises what the block raises."""
    if ">>> " not in text:
        exec(compile("\n" * (block.line - 1) + text, str(block.page), "exec"), names)
        return
    place = f"{block.page.name}:{block.line}"
    test = doctest.DocTestParser().get_doctest(text, names, place, str(block.page), block.line - 1)
    test.globs = names
    doctest.DebugRunner(optionflags=ANSWERS).run(test, clear_globs=False)


def shell(script: str, folder: Path, endpoint: str) -> subprocess.CompletedProcess[str]:
    """Runs a script with bash in a folder, with this oxillama and that hub."""
    shim = folder / "bin" / "oxillama"
    shim.parent.mkdir(exist_ok=True)
    shim.write_text(SHIM)
    shim.chmod(0o755)
    environment = {
        **INHERITED,
        "PATH": f"{shim.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(folder / "hf"),
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=300,
    )  # fmt: skip
