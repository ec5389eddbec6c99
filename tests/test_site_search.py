"""The site's search finds the page that answers a user's question first.

The site is built. Its own search worker, which runs in a reader's browser, ranks the pages in node.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import DOCS, ROOT

if not DOCS.is_dir():
    pytest.skip("only the package was unpacked", allow_module_level=True)

QUESTIONS = {
    "install": "get-started",
    "which model fits": "choose-a-model",
    "how much memory": "choose-a-model",
    "long context": "choose-a-model",
    "download a model": "models",
    "gpu?": "supported",
    "out of memory": "troubleshooting",
    "error message": "troubleshooting",
    "chat": "chat",
    "system prompt": "chat",
    "stop a generation": "python",
    "streaming": "python",
    "embeddings": "python",
    "structured output": "structured",
    "how to use json schema": "json-schema",
    "tool calling": "toolcalls",
    "function calls": "toolcalls",
    "mcp server": "mcp",
    "image input": "media",
    "lora adapter": "adapters",
    "speculative decoding": "speculation",
    "quantize": "quantize",
    "importance matrix": "quantize",
    "convert from hugging face": "convert",
    "perplexity": "evaluation",
    "pytest plugin": "testing",
    "make it faster": "tuning",
    "number of threads": "tuning",
    "openai api": "server",
    "serve with https": "server-access",
    "api key": "server-access",
    "docker": "deploy",
    "anthropic": "server-anthropic",
    "ollama": "from-ollama",
    "batch": "batch",
    "prometheus metrics": "observability",
    "temperature": "options",
    "same text every time": "how-it-works",
    "verify a text": "receipts",
    "save a session": "sessions",
}
"""What a user types, and the page that answers it."""

MISSES = 4


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The pages that each question finds, the best first."""
    material = pytest.importorskip("material", reason="comes with the extra docs")
    pytest.importorskip("mkdocstrings", reason="comes with the extra docs")
    node = shutil.which("node")
    if node is None:
        pytest.skip("the site's search is a script: it needs node")
    site = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "-q", "-d", site], cwd=ROOT, check=True)
    workers = Path(material.__file__).parent / "templates" / "assets" / "javascripts" / "workers"
    (worker,) = workers.glob("search.*.min.js")
    script = ROOT / "tests" / "support" / "site_search.js"
    done = subprocess.run(
        [node, script, worker, site / "search" / "search_index.json"],
        input=json.dumps(list(QUESTIONS)), stdout=subprocess.PIPE, check=True, text=True,
    )  # fmt: skip
    locations: dict[str, list[str]] = json.loads(done.stdout)
    return {
        question: list(dict.fromkeys(each.partition("#")[0].strip("/") for each in pages))
        for question, pages in locations.items()
    }


@pytest.mark.slow
def test_a_question_finds_its_page_first(found: dict[str, list[str]]) -> None:
    missed = {q: found[q][:3] for q, page in QUESTIONS.items() if found[q][:1] != [page]}
    assert len(missed) <= MISSES, missed


@pytest.mark.slow
def test_no_question_finds_a_design_decision_first(found: dict[str, list[str]]) -> None:
    first = {question: pages[0] for question, pages in found.items() if pages}
    assert len(first) == len(QUESTIONS)
    assert not [question for question, page in first.items() if page.startswith("decisions/")]


def test_words_of_the_search_belong_to_pages() -> None:
    import tomllib

    words = tomllib.loads((ROOT / "tools" / "search_words.toml").read_text(encoding="utf-8"))
    assert not [name for name in words if not (DOCS / f"{name}.md").is_file()]
    assert set(QUESTIONS.values()) <= words.keys()
