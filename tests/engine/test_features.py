"""The core knows features through protocols and one table: its imports, and what it does without a room."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import oxillama
from oxillama import InferenceEngine, demo
from oxillama.engine import features

ROOT = Path(oxillama.__file__).parent
GREEDY = """
from oxillama import InferenceEngine, demo
engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
text = engine.generate("Once upon a time", temperature=0, max_tokens=8)
assert text == {text!r}, text
"""
OPTIONAL = (
    *("adapters", "batch", "beams", "cli", "compat", "conversations", "disk_prefixes", "grammar", "hub"),
    *(
        "offload",
        "packing",
        "pipeline",
        "ray",
        "records",
        "server",
        "sessions",
        "speculation",
        "structured",
        "toolcalls",
    ),
)
"""Rooms that a greedy text does without."""

MOST_LINES = 16_000
"""Lines of the Python modules that a greedy text imports; to be lowered, never raised."""

WORDS = r"specul|draft|jump.?forward|pipeline|\bdisk|shared.?prompt|grammar|snapshot|receipt|trace"
"""Words of features."""

BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name in {rooms!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""


def run(program: str) -> str:
    """What a program prints, run by itself."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def text() -> str:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    return engine.generate("Once upon a time", temperature=0, max_tokens=8)


def test_a_greedy_text_imports_the_core_alone(text: str) -> None:
    imported = (
        "\nimport sys\nprint(*(m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', '')))"
    )
    paths = [Path(path) for path in run(GREEDY.format(text=text) + imported).split()]
    modules = {path.relative_to(ROOT) for path in paths if path.is_relative_to(ROOT) and path.suffix == ".py"}
    rooms = {path.parts[0] for path in modules}
    assert not rooms & set(OPTIONAL)
    assert sum(len((ROOT / path).read_text().splitlines()) for path in modules) <= MOST_LINES


def test_the_core_runs_without_the_rooms(text: str) -> None:
    rooms = tuple(f"oxillama.{room}" for room in (*OPTIONAL, "observability"))
    run(BLOCK.format(rooms=rooms) + GREEDY.format(text=text))


@pytest.mark.parametrize(
    ("room", "use", "option"),
    [
        ("speculation", "engine.generate('Once', speculate='lookup')", "speculate"),
        ("structured", "engine.generate('Once', regex='[a-z]+')", "grammar"),
        ("toolcalls", "engine.generate('Once', message_format='hermes')", "tools"),
        ("adapters", "engine.generate('Once', adapters='a.gguf')", "adapters"),
        ("sessions", "engine.session()", "session"),
        ("sessions", "engine.generate('Once', receipt=True)", "receipt"),
        ("beams", "engine.beam_search('Once')", "beam_search"),
        ("observability", "engine.metrics", "metrics"),
        ("disk_prefixes", "InferenceEngine.from_gguf(demo.STORY, prefix_cache_dir='x')", "prefix_cache_dir"),
        ("offload", "InferenceEngine.from_gguf(demo.STORY, offload_budget=2 << 20)", "offload_budget"),
        ("conversations", "engine.chat([])", "chat"),
        ("hub", "InferenceEngine.from_pretrained('a/b')", "from_pretrained"),
        ("media", "InferenceEngine.from_gguf(demo.STORY, mmproj='x')", "mmproj"),
        ("packing", "InferenceEngine.from_gguf(demo.STORY, packed='make')", "packed"),
        ("samples", "engine.generate_n('Once', n=2)", "best_of"),
        ("embeddings", "engine.embed('Once')", "embed"),
    ],
)
def test_a_room_that_is_not_there_is_named(room: str, use: str, option: str, text: str) -> None:
    after = f"""
from oxillama import ConfigError
try:
    {use}
except ConfigError as error:
    assert str(error) == "{option}: needs oxillama.{room}, which is not installed", error
else:
    raise AssertionError("no error")
assert engine.generate("Once upon a time", temperature=0, max_tokens=8) == {text!r}
"""
    run(BLOCK.format(rooms=(f"oxillama.{room}",)) + GREEDY.format(text=text) + after)


@pytest.mark.parametrize("name", features.FEATURES)
def test_the_table_names_what_exists(name: str) -> None:
    assert callable(features.load(name))


def test_an_error_inside_a_room_is_not_taken_for_its_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = features.Feature(("broken",), "tests.engine.broken_room:nothing")
    monkeypatch.setitem(features.FEATURES, "broken", broken)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        features.load("broken")


def test_the_loop_and_the_scheduler_hardly_name_features() -> None:
    lines = [
        line
        for name in ("loop", "scheduler")
        for line in (ROOT / "engine" / f"{name}.py").read_text().splitlines()
        if re.search(WORDS, line, re.IGNORECASE)
    ]
    assert len(lines) <= 12, "\n".join(lines)


def test_the_engine_has_few_public_names() -> None:
    engine = InferenceEngine(None)
    names = {name for name in (*dir(InferenceEngine), *vars(engine)) if not name.startswith("_")}
    assert len(names) <= 25, sorted(names)
    assert InferenceEngine.__mro__[1].__name__ == "NotCopied"


def test_the_core_is_small() -> None:
    files = sorted((ROOT / "engine").glob("*.py"))
    assert len(files) <= 20
    assert sum(len(path.read_text().splitlines()) for path in files) <= 5_000


CALLS = 146
"""Python calls of a step with one sequence of the demo model (4 layers)."""


def test_a_step_makes_few_python_calls() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    counted = [0]

    def profile(frame: object, event: str, argument: object) -> None:
        counted[0] += event == "call"

    def calls(n: int) -> int:
        counted[0] = 0
        engine.model.call(lambda: sys.setprofile(profile))
        list(engine.stream("Once upon a time there was", temperature=0, max_tokens=n, ignore_eos=True))
        engine.model.call(lambda: sys.setprofile(None))
        return counted[0]

    calls(10)
    found = [(calls(60) - calls(10)) / 50 for _ in range(3)]  # a step that waits, or logs, makes some more
    assert min(found) <= CALLS
