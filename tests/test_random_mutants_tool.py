"""The tool that draws faults at random: what it draws, and that it tells those that tests notice."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

import oxillama

TOOLS = Path(__file__).parents[1] / "tools"
pytestmark = pytest.mark.skipif(not TOOLS.exists(), reason="an installed package has no tools")
SOURCE = '''"""Limits."""

from __future__ import annotations

__all__ = ["clamp"]


def clamp(x: int, low: int, high: int = 9) -> int:
    """A value between two others."""
    if x < low and low:
        return low
    total = (x
             + 1)
    return min(total - 1, high)
'''
TEST = """from oxillama.limits.clamp import clamp

def test_high():
    assert clamp(5, 0, 3) == 3 and clamp(2, 0) == 2 and clamp(1, 2) == 2 and clamp(99, 0) == 9

def test_other():
    assert True
"""


@pytest.fixture(scope="module")
def tool():
    sys.path.insert(0, str(TOOLS))
    spec = importlib.util.spec_from_file_location("random_mutants", TOOLS / "random_mutants.py")
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name], sys.modules["mutants"]
    sys.path.remove(str(TOOLS))


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # these tests need no plugin
    for folder in ("oxillama", "oxillama/limits", "tests", "tests/limits"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("")
    (tmp_path / "oxillama" / "limits" / "clamp.py").write_text(SOURCE)
    (tmp_path / "tests" / "limits" / "test_clamp.py").write_text(TEST)
    return tmp_path


def test_what_is_drawn(tool, checkout):
    faults = tool.faults_of(checkout)
    kinds = {fault.kind for fault in faults}
    assert kinds == {"and/or", "comparison", "condition negated", "constant", "left out", "operator"}
    for fault in faults:
        text = fault.within(SOURCE.encode())
        assert text != SOURCE.encode() and text.count(b"\n") == SOURCE.count("\n"), fault
        ast.parse(text)
        assert fault.line > 5 and (fault.function == 8) == (fault.line > 8), fault
    first = list(map(str, tool.drawn(checkout, faults, 1)))
    assert first == list(map(str, tool.drawn(checkout, faults, 1)))
    assert len({line.split()[0] for line in first}) == len(first)  # a line once
    assert any(list(map(str, tool.drawn(checkout, faults, seed))) != first for seed in range(2, 6))


def test_an_equivalent_fault_is_known_by_its_texts_and_perhaps_its_line(tool, checkout):
    fault, *_ = tool.faults_of(checkout)
    entry = {"file": fault.file, "old": fault.old, "new": fault.new, "why": "none"}
    assert fault.is_of(entry) and fault.is_of({**entry, "where": SOURCE.splitlines()[fault.line - 1]})
    assert not fault.is_of({**entry, "where": "another line"}) and not fault.is_of({**entry, "new": "z"})


def test_every_fault_of_the_list_is_one(tool):
    sources = Path(oxillama.__file__).parents[1]
    for entry in tool.equivalents(TOOLS.parent):
        finder = tool.Finder(entry["file"], (sources / entry["file"]).read_bytes())
        finder.visit(ast.parse(finder.data))
        assert any(fault.is_of(entry) for fault in finder.found), entry


def test_what_is_noticed(tool, checkout, capsys, tmp_path):
    (checkout / "tools").mkdir()
    (checkout / "tools" / "random_mutants.toml").write_text(
        '[[equivalent]]\nfile = "oxillama/limits/clamp.py"\nold = "x"\nnew = "y"\nwhy = "none"\n'
    )
    noticed = tool.main(["--n", "3", "--seed", "2", "--goal", "1"], checkout)
    told = capsys.readouterr().out
    assert noticed == 0 and "noticed" in told and "tests/limits/test_clamp.py::test_high" in told, told
    assert (checkout / "oxillama" / "limits" / "clamp.py").read_text() == SOURCE
    (checkout / "tests" / "limits" / "test_clamp.py").write_text("def test_nothing():\n    pass\n")
    assert tool.main(["--n", "1", "--seed", "2"], checkout) == 1
    assert "seed 2: 0 of 1 noticed, 0 equivalent, 0 undecided\n  survived: " in capsys.readouterr().out


def test_calls_are_recorded_after_a_test_that_ends_the_tracing(tool, checkout, tmp_path_factory):
    text = TEST.replace(
        "def test_high", "import sys\n\ndef test_a():\n    sys.settrace(None)\n\ndef test_high"
    )
    (checkout / "tests" / "limits" / "test_clamp.py").write_text(text)
    work = tmp_path_factory.mktemp("work")
    trial = tool.Trial(checkout, work, 60, tool.Users(checkout), work)
    calls = {name.partition("::")[2]: found[1] for name, found in trial.calls("tests/limits").items()}
    assert ["limits/clamp.py", 8] in calls["test_high"] and calls["test_other"] == []


def test_tests_near_a_module_come_first(tool, checkout):
    (checkout / "tests" / "limits" / "test_far.py").write_text("")
    users, file = tool.Users(checkout), "oxillama/limits/clamp.py"
    assert users.is_near("tests/limits/test_clamp.py", file)
    assert not users.is_near("tests/limits/test_far.py", file)
    (checkout / "tests" / "limits" / "test_uses.py").write_text("from oxillama.limits.clamp import clamp\n")
    assert users.is_near("tests/limits/test_uses.py", file)
