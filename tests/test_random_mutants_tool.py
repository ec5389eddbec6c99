"""Random faults: which faults the tool draws, which tests it runs, how many faults the fast tests notice."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[1] / "tools"
pytestmark = pytest.mark.skipif(not TOOLS.exists(), reason="an installed package has no tools")
SOURCE = '''"""Limits."""

from __future__ import annotations

__all__ = ["clamp"]


def clamp(x: int, low: int, high: int = 9) -> int:
    """The nearest value between two bounds."""
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
    return import_module("tools.random_mutants")


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
        assert fault.line >= 8 and fault.names == (("clamp",) if fault.line > 8 else ()), fault
    first = list(map(str, tool.drawn(checkout, faults, 1)))
    assert first == list(map(str, tool.drawn(checkout, faults, 1)))
    assert len({line.split()[0] for line in first}) == len(first)  # each line once
    assert any(list(map(str, tool.drawn(checkout, faults, seed))) != first for seed in range(2, 6))


@pytest.mark.parametrize(
    "statement",
    ["return", "return None", "raise NotImplementedError", "...", "Ids = Sequence[int]", "assert f()"],
)
def test_statements_without_effect_are_not_drawn(tool, statement):
    finder = tool.Finder("f.py", f"def f():\n    {statement}\n".encode())
    finder.visit(ast.parse(finder.data))
    assert finder.found == []


def test_what_is_noticed(tool, checkout, capsys):
    assert tool.main(["--n", "3", "--seed", "2", "--goal", "1"], checkout) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("seed 2\n") and "tests/limits/test_clamp.py::test_high" in shown, shown
    assert (checkout / "oxillama" / "limits" / "clamp.py").read_text() == SOURCE
    (checkout / "tests" / "limits" / "test_clamp.py").write_text("def test_nothing():\n    pass\n")
    assert tool.main(["--n", "1", "--seed", "2"], checkout) == 1
    assert "0 of 1 noticed; 0 undecided, 0 skipped\n  survived " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("test", "kind", "budget"),
    [
        ("import time\n\ndef test_clamp():\n    time.sleep(60)\n", "undecided", 1),
        ("import pytest\n\ndef test_clamp():\n    pytest.skip()\n", "skipped", 60),
        ("import pytest\n\n@pytest.mark.slow\ndef test_clamp():\n    assert False\n", "skipped", 60),
        ("def test_clamp():\n    assert False\n", "unsound", 60),
    ],
)
def test_tests_that_tell_nothing_of_a_fault(tool, checkout, test, kind, budget):
    (checkout / "tests" / "limits" / "test_clamp.py").write_text(test)
    faults = tool.faults_of(checkout)[:1]
    assert [verdict.kind for verdict in tool.try_all(checkout, faults, budget)] == [kind]


def test_a_test_that_hangs_notices_the_fault(tool, checkout, monkeypatch):
    monkeypatch.setattr(tool, "HANG", 2)
    test = TEST.replace("def test_high", "def helper")
    test = test.replace("assert True", "while clamp(5, 0, 3) != 3: pass")
    (checkout / "tests" / "limits" / "test_clamp.py").write_text(test)
    faults = [fault for fault in tool.faults_of(checkout) if fault.old.startswith("return min")]
    (verdict,) = tool.try_all(checkout, faults)
    assert (verdict.kind, verdict.test) == ("noticed", "tests/limits/test_clamp.py::test_other")


def test_a_run_that_fails_without_a_fault_ends(tool, checkout):
    (checkout / "tests" / "conftest.py").write_text("def pytest_unknown_hook():\n    pass\n")
    with pytest.raises(SystemExit, match="pytest fails without a fault"):
        tool.try_all(checkout, tool.faults_of(checkout)[:1])


def test_tests_near_a_module_come_first(tool, checkout):
    for path, text in (
        ("oxillama/limits/user.py", "import oxillama.limits.clamp\n"),
        ("tests/limits/test_folder.py", ""),
        ("tests/test_import.py", "from oxillama.limits.clamp import clamp\n"),
        ("tests/test_user.py", "from oxillama.limits import user\n"),
        ("tests/test_far.py", "import oxillama\n"),
    ):
        (checkout / path).write_text(text)
    fault = next(fault for fault in tool.faults_of(checkout) if fault.names)
    names = [Path(test).stem for test in tool.Tests(checkout).nearest(fault)]
    assert names == ["test_clamp", "test_import", "test_folder", "test_user"]


CASES = """import pytest

@pytest.mark.parametrize("x", [1, 2])
def test_other(x):
    pass

@pytest.mark.parametrize("x", [1, 2])
def test_clamp(x):
    clamp = None
"""


def test_tests_with_the_name_of_the_function_come_first(tool, checkout, tmp_path_factory):
    (checkout / "tests" / "limits" / "test_clamp.py").write_text(CASES)
    (checkout / "tests" / "test_far.py").write_text("def test_far():\n    pass\n")
    copy = tool.Checkout(checkout, tmp_path_factory.mktemp("copies") / "copy")
    output = copy.test(["tests/limits/test_clamp.py", "tests/test_far.py"], names=["clamp"])[1]
    order = re.findall(r"::test_(\S+) PASSED", output)
    assert order == ["clamp[1]", "other[1]", "other[2]", "clamp[2]", "far"]
    output = copy.test(["tests/limits/test_clamp.py"], one_case=True)[1]
    assert re.findall(r"::test_(\S+) PASSED", output) == ["other[1]", "clamp[1]"]


KERNEL = """[[mutant]]
name = "no-high"
file = "clamp.pyx"
old = "min(x, high)"
new = "x"
tests = ["test_clamp.py::test_high"]
"""


def test_faults_of_kernels(tool, checkout, capsys):
    (checkout / "tools").mkdir()
    (checkout / "oxillama" / "_kernels").mkdir()
    source = checkout / "oxillama" / "_kernels" / "clamp.pyx"
    source.write_text("def clamp(x, high):\n    return min(x, high)\n")
    (checkout / tool.KERNEL_FAULTS).write_text(KERNEL)
    ((fault, tests),) = tool.kernel_faults(checkout, [])
    assert fault.within(source.read_bytes()).endswith(b"    return x\n") and fault.line == 2
    assert tests == ["tests/limits/test_clamp.py::test_high"]
    assert tool.main(["--kernels", "no-high", "--list"], checkout) == 0
    for stale in ("def clamp(x, high):\n    return high\n", "min(x, high)\n" * 2):
        source.write_text(stale)
        with pytest.raises(SystemExit, match="no-high"):
            tool.main(["--kernels"], checkout)
    with pytest.raises(SystemExit, match="no-low"):
        tool.main(["--kernels", "no-low"], checkout)
