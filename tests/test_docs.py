"""The pages: their code blocks run, their links lead somewhere, their titles say what they are about."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import oxillama
from oxillama import InferenceEngine, demo
from oxillama.apps.cli import build_parser
from tests.support.media import picture, projector_file
from tests.support.paths import DOCS, ROOT
from tests.support.tiny_file import write_tiny_model

if not DOCS.is_dir():
    pytest.skip("only the package was unpacked", allow_module_level=True)

pytest.importorskip("starlette", reason="comes with the extra test")
constants = pytest.importorskip("huggingface_hub.constants", reason="comes with the extra test")

from tests.support.pages import (  # noqa: E402  # after what may skip the module
    ADDRESS,
    LANGUAGES,
    PAGES,
    blocks,
    command_lines,
    fill,
    hub_of_this_machine,
    programs,
    run_python,
    served,
    shell,
)
from tests.support.spread import few  # noqa: E402

BY_NAME = {page.relative_to(ROOT).as_posix(): page for page in PAGES}
QUOTED = {"docs/adding-an-architecture.md": "oxillama/models/families/olmo.py"}
"""Pages whose blocks are parts of a file, and that file."""

NEED_RAY = ("docs/pipeline.md", "docs/scaling.md")
"""Pages whose Python runs on a cluster: `tests/apps/ray` has the same calls."""

LINES_NOT_RUN = {
    r"^pip install ": "changes the environment",
    r"^(ray|srun|docker|systemctl|journalctl|numactl|chrt|head=)\b|^sleep ": "needs what a test has not",
    r"--ray ": "needs a cluster",
    r"^([A-Z_]+=\S+ )*python -m benchmarks |^python tools/": "measures, for minutes",
    r"^oxillama serve\b": "runs until it is stopped: tests/apps/server/test_command.py",
    r"^oxillama convert ": "needs a model of Hugging Face: tests/apps/convert",
    r"--mcp ": "needs a tool server: tests/apps/cli/test_cli_mcp.py",
    r"tools/build_wheel": "builds for minutes",
    r"^(python -m venv|mkdir /tmp)": "needs a wheel",
    r"^oxillama eval |receipts/mine": "needs lm_eval: tests/apps/evaluation/test_harness.py",
    r"^oxillama (decide|calibrate) .*jsonl|receipts/\*": "need data: tests/apps/decisions",
    r"^schemathesis ": "needs the package: tests/apps/server/test_openapi.py draws bodies, too",
    r"^pytest --llm": "needs the package to be installed: tests/testing",
    r"tools/server_clients/langchain": "needs the packages of clients and a server",
    r"OXILLAMA_CLIENTS=": "needs the packages of clients: tests/apps/server/test_clients.py",
    r"^oxillama doctor\b": "exits with 1 where it finds something: tests/doctor",
}
"""Command lines that are parsed, where they are ours, but not run, and why."""


def needs_media(folder: Path) -> None:
    """A model with a projector file beside it, and a picture."""
    image = pytest.importorskip("PIL.Image", reason="comes with the extra test")
    write_tiny_model(folder / "model.gguf")
    (folder / "mmproj-F16.gguf").write_bytes(projector_file())
    image.fromarray(picture(40, 30)).save(folder / "cat.png")


def needs_mcp(folder: Path) -> None:
    pytest.importorskip("mcp", reason="comes with the extra test")


NEEDS = {
    "docs/mcp.md": needs_mcp,
    "docs/media.md": needs_media,
    "docs/chat.md": needs_media,
    "docs/typed-decisions.md": needs_media,
}
"""What the examples of a page need beside the files that all have."""


def names_of(*languages: str) -> list[str]:
    return [name for name, page in BY_NAME.items() if blocks(page, *languages)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(tmp_path)
    return tmp_path


# --- code ------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:context_size")  # the model of these names has 512
@pytest.mark.filterwarnings("ignore:Unknown pytest.mark.llm")  # of a plugin that these tests do not load
@pytest.mark.parametrize("name", [name for name in names_of("python") if name not in (*NEED_RAY, *QUOTED)])
def test_python_of_a_page_runs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    NEEDS.get(name, lambda folder: None)(folder)
    monkeypatch.chdir(folder)
    found = blocks(BY_NAME[name], "python")
    names: dict[str, Any] = {"__name__": "page"}
    with hub_of_this_machine() as url, served([block.text for block in found], folder) as address:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        for block in found:
            run_python(block, block.text.replace(ADDRESS, address), names)
        for value in names.values():
            if isinstance(value, InferenceEngine):
                value.close()


@pytest.mark.parametrize("name", QUOTED)
def test_a_quoted_block_is_in_its_file(name: str) -> None:
    source = "".join((ROOT / QUOTED[name]).read_text(encoding="utf-8").split())
    for block in blocks(BY_NAME[name], "python"):
        code = "\n".join(line for line in block.text.splitlines() if not line.startswith("#"))
        assert "".join(code.split()) in source


@pytest.mark.parametrize("name", names_of("sh"))
def test_command_lines_of_a_page_parse(name: str) -> None:
    for block in blocks(BY_NAME[name], "sh"):
        for line in command_lines(block.text):
            for program in programs(line):
                words = shlex.split(program)
                if words[0] not in ("--version", "--help"):
                    build_parser(words[0]).parse_args(words)


def test_command_lines_of_the_files_for_deployment_parse() -> None:
    text = BY_NAME["docs/deploy.md"].read_text(encoding="utf-8")
    found = [json.loads(words) for words in re.findall(r'(?:CMD|args:) (\["serve".*\])', text)]
    found += [shlex.split(words) for words in re.findall("^ExecStart=.*/oxillama (.*)", text, re.MULTILINE)]
    assert len(found) == 3
    for words in found:
        build_parser("serve").parse_args(words)


@pytest.mark.parametrize("name", few(names_of("sh"), ("docs/chat.md",)))
def test_command_lines_of_a_page_run(name: str, folder: Path) -> None:
    NEEDS.get(name, lambda folder: None)(folder)
    for block in blocks(BY_NAME[name], "sh"):
        if block.text.startswith("#!"):
            continue  # a script for a cluster
        kept = [
            line for line in command_lines(block.text) if not any(re.search(p, line) for p in LINES_NOT_RUN)
        ]
        with hub_of_this_machine() as url, served(kept, folder) as address:
            script = "set -e\n" + "\n".join(kept).replace(ADDRESS, address)
            done = shell(script, folder, url)
        assert done.returncode == 0, f"{name}:{block.line}\n{script}\n{done.stdout}"


@pytest.mark.parametrize("name", names_of("console"))
def test_a_transcript_is_what_happens(name: str, folder: Path) -> None:
    for block in blocks(BY_NAME[name], "console"):
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            line, _, shown = part.partition("\n")
            said = shell(line, folder, "http://127.0.0.1:9").stdout
            expected = re.escape(shown.strip()).replace(r"\.\.\.", ".*")
            assert re.fullmatch(expected, said.strip(), re.DOTALL), f"{line}\n{said}"


def test_every_block_has_a_language() -> None:
    for page in PAGES:
        for block in blocks(page):
            assert block.language in LANGUAGES, f"{page.name}:{block.line}: {block.language!r}"


@pytest.mark.parametrize("name", [name for name in BY_NAME if "/from-" in name])
def test_calls_of_the_tables_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the second column: expressions are evaluated, command lines are parsed."""
    monkeypatch.chdir(folder)
    table = re.findall(r"^\| .+? \| (.+?) \|$", BY_NAME[name].read_text(encoding="utf-8"), re.MULTILINE)
    codes = [code.replace(r"\|", "|") for cell in table for code in re.findall(r"`([^`]+)`", cell)]
    commands = [code for code in codes if code.startswith("oxillama ")]
    calls = [code for code in codes if re.match(r"(\[?each|engine|InferenceEngine|oxillama)\.", code)]
    assert len(commands) + len(calls) > 10
    for command in commands:
        build_parser().parse_args(shlex.split(command)[1:])
    monkeypatch.setattr(
        InferenceEngine,
        "from_pretrained",
        classmethod(lambda cls, *_, **given: cls.from_gguf(demo.STORY, **given)),
    )
    with InferenceEngine.from_gguf("model.gguf") as engine:
        names = {
            "oxillama": oxillama,
            "InferenceEngine": InferenceEngine,
            "engine": engine,
            "prompt": "Once upon a time",
            "prompts": ["Once upon a time", "The old toad"],
            "messages": [{"role": "user", "content": "Mia and the Golden Drum"}],
        }
        for call in calls:
            made = eval(call, names)
            if isinstance(made, InferenceEngine):
                made.close()


# --- what is made ----------------------------------------------------------------------------------
@pytest.mark.parametrize("tool", few(["make_pictures.py", "make_size_tables.py"], ["make_pictures.py"]))
def test_what_a_tool_makes_is_up_to_date(tool: str) -> None:
    pytest.importorskip("gguf", reason="comes with the extra test")
    done = subprocess.run([sys.executable, ROOT / "tools" / tool, "--check"])
    assert done.returncode == 0, f"run tools/{tool}"


# --- the site --------------------------------------------------------------------------------------
def test_titles_are_unique_and_say_what_a_page_is_about() -> None:
    titles = [page.read_text(encoding="utf-8").splitlines()[0] for page in PAGES[1:]]
    assert len(set(titles)) == len(titles)
    for title in titles:
        assert title.startswith("# ") and "`" not in title, title
        assert len(title.split()) >= 4, f"{title}: a title needs the words that a search would use"


def test_each_page_has_one_title() -> None:
    for page in PAGES:
        text = re.sub(
            r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
        )
        assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1, page.name


def test_the_navigation_has_each_page_once() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    entries = re.findall(r"^ +- (?:(.+): )?([\w/-]+\.md)$", config, re.MULTILINE)
    assert all(len(label.split()) <= 3 for label, _ in entries)
    listed = [page for _, page in entries]
    pages = [page.relative_to(DOCS).as_posix() for page in PAGES[1:]]
    listed.remove("tour.md")  # tools/site_hooks.py makes it
    assert sorted(listed) == sorted(name for name in pages if not name.startswith("decisions/0"))


def test_the_icon_of_the_site_is_that_of_the_page() -> None:
    page = Path(oxillama.__file__).parent / "apps" / "server" / "page" / "static" / "icon.svg"
    assert (DOCS / "images" / "icon.svg").read_bytes() == page.read_bytes()


def test_readme_has_the_line_that_ci_runs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.splitlines().count("pip install -e '.[test]' && pytest") == 1


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"(?:\]\(|\bsrc=\")([^)#\s\"]+)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_architecture_lists_the_folders() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    block = text[text.index("```text\napps ") :].partition("\n```")[0]
    package = Path(oxillama.__file__).parent
    folders = re.findall(r"^(\w+) {2,}\w", block, re.MULTILINE)
    assert folders == re.findall(r"^    (\w+) {2,}\w", oxillama.__doc__ or "", re.MULTILINE)
    apps = next(line for line in block.splitlines() if line.startswith("apps ")).split()[1:]
    assert set(apps) == {path.parent.name for path in package.glob("apps/*/__init__.py")}
    nested = re.findall(r"(\w+)/(?= |$)", block)
    assert nested and all(list(package.glob(f"*/{name}")) for name in nested)


def test_the_glossary_has_each_term_once_in_order() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    row = re.compile(r"^\| (.+?) \| [A-Z0-9].*\. \| [^|]*\|$", re.MULTILINE)
    terms = [term.casefold() for term in row.findall(text)]
    assert len(terms) > 70 and len(terms) + 2 == len(re.findall(r"^\|", text, re.MULTILINE))
    assert terms == sorted(set(terms))
