"""The core knows features through protocols and one table: its imports, and what it does without a module."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import oxillama
from oxillama import EngineConfig, GenerationOptions, InferenceEngine, demo
from oxillama.engine import features

ROOT = Path(oxillama.__file__).parent
GREEDY = """
from oxillama import EngineConfig, GenerationOptions, InferenceEngine, demo
engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
text = engine.generate("Once upon a time", temperature=0, max_tokens=8)
assert text == {text!r}, text
"""
FEATURES = ROOT / "engine" / "features"
OPTIONAL = (
    *("compat", "gguf.hub", "models.adapters", "models.media", "models.offload", "reference", "sessions"),
    *("speculation", "text.chat.prompt", "text.grammar", "text.toolcalls"),
    *(f"apps.{path.stem}" for path in (ROOT / "apps").iterdir() if path.stem not in ("__init__", "demo")),
    *(f"engine.features.{path.stem}" for path in FEATURES.iterdir() if path.stem[0] != "_"),
)
"""Rooms that a greedy text does without."""

MOST_LINES = 16_100
"""Lines of the Python modules that a greedy text imports; to be lowered, never raised."""

WORDS = r"specul|draft|jump.?forward|pipeline|\bdisk|shared.?prompt|grammar|snapshot|receipt|trace"
"""Words of features."""

BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name in {modules!r}:
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
    names = {".".join(path.with_suffix("").parts) for path in modules}
    loaded = {module for module in OPTIONAL for name in names if f"{name}.".startswith(f"{module}.")}
    assert loaded <= {"engine.features.observability"}
    assert sum(len((ROOT / path).read_text().splitlines()) for path in modules) <= MOST_LINES


def test_the_core_runs_without_the_modules(text: str) -> None:
    modules = tuple(f"oxillama.{module}" for module in OPTIONAL)
    run(BLOCK.format(modules=modules) + GREEDY.format(text=text))


@pytest.mark.parametrize(
    ("module", "use", "option"),
    [
        ("speculation", "engine.generate('Once', speculate='lookup')", "speculate"),
        ("engine.features.constraints", "engine.generate('Once', regex='[a-z]+')", "grammar"),
        ("text.toolcalls", "engine.generate('Once', message_format='hermes')", "tools"),
        ("models.adapters", "engine.generate('Once', adapters='a.gguf')", "adapters"),
        ("sessions", "engine.session()", "session"),
        ("sessions", "engine.generate('Once', receipt=True)", "receipt"),
        ("engine.features.beam_search", "engine.beam_search('Once')", "beam_search"),
        ("engine.features.observability", "engine.metrics", "metrics"),
        (
            "engine.features.disk_prefixes",
            "InferenceEngine.from_gguf(demo.STORY, prefix_cache_dir='x')",
            "prefix_cache_dir",
        ),
        ("models.offload", "InferenceEngine.from_gguf(demo.STORY, offload_budget=2 << 20)", "offload_budget"),
        ("text.chat.prompt", "engine.chat([])", "chat"),
        ("gguf.hub", "InferenceEngine.from_pretrained('a/b')", "from_pretrained"),
        ("engine.features.media", "InferenceEngine.from_gguf(demo.STORY, mmproj='x')", "mmproj"),
        ("engine.features.packed_files", "InferenceEngine.from_gguf(demo.STORY, packed='make')", "packed"),
        ("engine.features.sample_seeds", "engine.generate_n('Once', n=2)", "best_of"),
        ("engine.features.embeddings", "engine.embed('Once')", "embed"),
    ],
)
def test_a_missing_module_is_named(module: str, use: str, option: str, text: str) -> None:
    after = f"""
from oxillama import ConfigError
try:
    {use}
except ConfigError as error:
    assert str(error) == "{option}: needs oxillama.{module}, which is not installed", error
else:
    raise AssertionError("no error")
assert engine.generate("Once upon a time", temperature=0, max_tokens=8) == {text!r}
"""
    run(BLOCK.format(modules=(f"oxillama.{module}",)) + GREEDY.format(text=text) + after)


@pytest.mark.parametrize("name", features.FEATURES)
def test_the_table_names_what_exists(name: str) -> None:
    assert callable(features.load(name))


def test_an_error_inside_a_room_is_not_taken_for_its_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = features.Feature(("broken",), "tests.engine.broken_room:nothing")
    monkeypatch.setitem(features.FEATURES, "broken", broken)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        features.load("broken")


@pytest.mark.parametrize(
    ("names", "most"), [(("loop", "scheduler"), 12), (("loading",), 2), (("generation",), 2)]
)
def test_the_core_hardly_names_features(names: tuple[str, ...], most: int) -> None:
    lines = [
        line
        for name in names
        for line in (ROOT / "engine" / f"{name}.py").read_text().splitlines()
        if re.search(WORDS, line, re.IGNORECASE)
    ]
    assert len(lines) <= most, "\n".join(lines)


def test_options_ask_for_features() -> None:
    default, off = GenerationOptions(), GenerationOptions(speculate="off")
    lookup = EngineConfig(speculate="lookup")
    assert features.asked(features.REQUEST, default, EngineConfig()) == []
    assert features.asked(features.REQUEST, default, lookup) == ["speculation"]
    assert features.asked(features.REQUEST, off, lookup) == []
    asked = GenerationOptions(receipt=True, reasoning_budget=0)
    assert features.asked(features.REQUEST, asked, lookup) == ["reasoning budget", "speculation", "receipts"]
    assert features.asked(features.OBSERVER, EngineConfig()) == ["metrics", "log"]
    assert features.asked(features.OBSERVER, EngineConfig(trace="t.json"))[-1] == "trace"
    assert features.asked(features.LOAD, EngineConfig(adapters=())) == []


def test_the_engine_has_few_public_names() -> None:
    engine = InferenceEngine(None)
    names = {name for name in (*dir(InferenceEngine), *vars(engine)) if not name.startswith("_")}
    assert len(names) <= 28, sorted(names)
    assert InferenceEngine.__mro__[1].__name__ == "NotCopied"


def test_the_core_is_small() -> None:
    files = sorted((ROOT / "engine").glob("*.py"))
    assert len(files) <= 20
    assert sum(len(path.read_text().splitlines()) for path in files) <= 5_105


CALLS = 145
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
    rounds = ((calls(60) - calls(10)) / 50 for _ in range(20))  # a step that waits, or logs, makes some more
    assert any(found <= CALLS for found in rounds)
