"""The notes of docs/decisions: numbers that rise, a complete index, titles that usual queries find."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import DOCS, ROOT

if not DOCS.is_dir():
    pytest.skip("only the package was unpacked", allow_module_level=True)

FOLDER = DOCS / "decisions"
NOTES = sorted(FOLDER.glob("[0-9]*.md"))
INDEX = FOLDER / "README.md"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]

QUERIES = {
    "typed decisions": 68, "activation quantization": 1, "W8A8": 62, "GEMM tile size": 2,
    "server isolation": 56, "packed file checksum verification": 22, "token embeddings": 3, "OpenMP spin": 4,
    "BPE tokenizer implementation": 5, "weight packing": 6, "weight repacking": 6, "int8 blocks of 128": 69,
    "memory layout of packed panels": 7, "software prefetch": 7, "flash decoding split KV": 8,
    "KV quantization": 8, "KV cache q8_0": 8, "quantization search": 9, "imatrix": 9,
    "grammar mask cache": 10, "graph structured stack": 10, "MLA latent attention": 11, "chunked prefill": 13,
    "copy on write": 14, "prefix caching": 14, "radix tree": 14, "preemption": 15, "swap or recompute": 15,
    "recurrent state checkpoints": 16, "AVX2 / AVX-512 dispatch": 17, "compile time": 17,
    "continuous batching": 18, "engine thread": 18, "mmap": 19, "speculative decoding": 20,
    "Mamba / linear attention state rollback": 20, "LoRA": 21, "several LoRA adapters per batch": 21,
    "shared memory packed weights": 22, "weight offloading": 23, "expert offloading": 23, "tool calling": 24,
    "chat template messages": 65, "control tokens in text": 65, "disk KV cache": 25, "observability": 26,
    "metrics and tracing": 26, "model architecture": 27, "gated delta net": 28, "ASGI server framework": 29,
    "paged attention": 30, "sliding window KV": 30, "lazy grammar compilation": 55, "Anthropic API": 32,
    "multi-model serving": 33, "model eviction": 33, "web UI without build step": 34,
    "Markdown parser of the web UI": 34, "LaTeX formulas": 34, "llama-server compatibility": 35,
    "batch inference fault tolerance": 36, "Ray": 36, "at-least-once delivery": 36,
    "pipeline parallelism": 37, "tensor parallelism": 37, "sparse attention indexer": 38, "MTP": 39,
    "multi-token prediction": 39, "jump-forward decoding": 40, "tokenizer pre-tokenization": 41,
    "thread pinning / affinity": 42, "thread affinity": 42, "oneOf allOf": 55, "uniqueItems": 45,
    "regex lookahead": 46, "minLength maxLength": 46, "structural tags": 55, "JSON schema number bounds": 48,
    "minimum maximum multipleOf": 48, "first mask latency": 10, "parser table compression": 10,
    "JSON schema property order": 52, "integer spelling": 58, "job processes": 60, "engine core": 54,
    "features behind protocols": 54, "multimodal embeddings": 61, "encoder steps": 61,
}  # fmt: skip
"""Query: the number of the note that must come first."""


def number(note: Path) -> int:
    return int(note.name.split("-")[0])


def title(note: Path) -> str:
    """The title without its number."""
    return note.read_text(encoding="utf-8").splitlines()[0].split(". ", 1)[1]


def words(text: str) -> set[str]:
    """The words of a text in lower case, without the smallest ones; "uniqueItems" is one word."""
    return set(re.findall(r"[a-z0-9]+", text.casefold())) - {"a", "an", "and", "of", "or", "in", "is", "the"}


def alike(asked: str, offered: str) -> bool:
    """Whether a word begins with the stem of another: its first five letters, without a final "s"."""
    return offered.startswith(asked.rstrip("s")[:5])


def score(query: str, note: Path) -> tuple[float, float]:
    """The share of the query's words in title and file name; then the share of those words in the query."""
    asked, offered = words(query), words(f"{title(note)} {note.stem[5:]}")
    found = sum(any(alike(word, other) for other in offered) for word in asked)
    used = sum(any(alike(other, word) for other in asked) for word in offered)
    return found / len(asked), used / len(offered)


def test_numbers_are_used_once_and_titles_bear_them() -> None:
    numbers = [number(note) for note in NOTES]
    assert numbers[0] == 1 and len(set(numbers)) == len(numbers)
    for note in NOTES:
        assert note.read_text(encoding="utf-8").startswith(f"# {number(note)}. "), note.name


def test_the_index_has_each_note_once_by_its_title() -> None:
    row = re.compile(r"^\| (\d+) \| \[(.+?)\]\(([\w.-]+)\) \| .+\. \| .+ \|$", re.MULTILINE)
    rows = row.findall(INDEX.read_text(encoding="utf-8"))
    assert sorted(rows) == sorted((str(number(note)), title(note), note.name) for note in NOTES)


def test_no_note_is_superseded_as_a_whole() -> None:
    """Its successor says what still holds, and the note is deleted."""
    assert not re.search(r"\| superseded by ", INDEX.read_text(encoding="utf-8"))
    assert not [
        note.name for note in NOTES if re.search("^Superseded", note.read_text(encoding="utf-8"), re.M)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_link_to_a_note_has_its_number_and_leads_there(page: Path) -> None:
    link = re.compile(r"\[([^][]*)\]\(([^)\s]*\d{4}-[\w-]+\.md)\)")
    for shown, target in link.findall(page.read_text(encoding="utf-8")):
        note = (page.parent / target).resolve()
        assert note in NOTES, target
        stated = re.fullmatch(r"(?:[Dd]ecision\s+)?(\d+)", shown)
        assert shown == title(note) or (stated and int(stated[1]) == number(note)), (shown, target)


def test_notes_that_code_names_exist() -> None:
    for ending in ("*.py", "*.pyx", "*.pxd"):
        for source in (ROOT / "oxillama").rglob(ending):
            for named in re.findall(r"\bdecisions?[ /](\d+)\b", source.read_text(encoding="utf-8")):
                assert int(named) in map(number, NOTES), f"{source}: decision {named}"


@pytest.mark.parametrize("query", QUERIES)
def test_a_usual_query_finds_its_note_by_title(query: str) -> None:
    ranked = sorted(NOTES, key=lambda note: score(query, note), reverse=True)
    best = [note.name for note in ranked if score(query, note) == score(query, ranked[0])]
    assert [int(name[:4]) for name in best] == [QUERIES[query]], best
    assert score(query, ranked[0])[0] >= 0.75, "most of the query's words are in the title or file name"


def test_the_queries_are_many_and_reach_most_notes() -> None:
    assert len(QUERIES) >= 40
    assert len(set(QUERIES.values())) >= 40
