"""The tool that puts faults in: it tells which of them tests do not notice, and when its list is stale."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "mutants.py"
pytestmark = pytest.mark.skipif(not TOOL.exists(), reason="an installed package has no tools")
SOURCE = "def clamp(x, low, high):\n    return max(low, min(x, high))\n"
TEST = "from limits import clamp\n\ndef test_high():\n    assert clamp(5, 0, 3) == 3\n"


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants_tool", TOOL)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def entry(name, old, new, extra=""):
    tests = 'tests = ["test_limits.py"]'
    return (
        f'[[mutant]]\nname = "{name}"\nfile = "limits.py"\nold = "{old}"\nnew = "{new}"\n{tests}\n{extra}\n'
    )


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "limits.py").write_text(SOURCE)
    (tmp_path / "test_limits.py").write_text(TEST)
    (tmp_path / "tools" / "mutants").mkdir(parents=True)
    return tmp_path


def run(mutants, checkout, entries, *arguments):
    (checkout / "tools" / "mutants" / "limits.toml").write_text("".join(entries))
    return mutants.main(list(arguments), checkout)


def test_killed_and_survivors(mutants, checkout, capsys):
    entries = [
        entry("no-high", "min(x, high)", "x"),
        entry("no-low", "max(low, min(x, high))", "min(x, high)"),
        entry("same", "max(low, ", "max(low, low, ", 'equivalent = "the maximum is the same"'),
    ]
    assert run(mutants, checkout, entries) == 1
    lines = capsys.readouterr().out.splitlines()
    verdicts = [(line.split()[0], line.split()[-1]) for line in lines[:2]]
    assert verdicts == [("killed", "no-high"), ("SURVIVED", "no-low")]
    assert lines[2:] == ["1 of 2 killed, 1 equivalent", "  survived: no-low"]
    assert (checkout / "limits.py").read_text() == SOURCE


def test_a_hang_is_noticed(mutants, checkout, capsys):
    entries = [
        entry("hangs", "return max", "while True: pass\\n    return max"),
        entry("no-low", "max", "min"),
    ]
    assert run(mutants, checkout, entries, "--timeout", "1", "ha*") == 0
    assert "1 of 1 killed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "entries, message",
    [
        ([entry("gone", "sum(x)", "x")], "gone: expected its text once"),
        ([entry("twice", "high", "low")], "got it 2 times"),
        ([entry("nothing", "max", "max")], "and another one"),
        ([entry("a", "max", "min"), entry("a", "min(", "max(")], "got a"),
        ([entry("a", "max", "min", "colour = 3")], "colour"),
    ],
)
def test_stale_list(mutants, checkout, capsys, entries, message):
    assert run(mutants, checkout, entries, "--list") == 1
    assert message in capsys.readouterr().err


def test_tests_must_pass_without_a_fault(mutants, checkout, capsys):
    (checkout / "test_limits.py").write_text(TEST + "    assert clamp(5, 0, 3) == 4\n")
    assert run(mutants, checkout, [entry("no-high", "min(x, high)", "x")]) == 1
    assert "without a fault" in capsys.readouterr().err


SLOW_TEST = """import pytest
from limits import clamp

@pytest.mark.slow
def test_low():
    assert clamp(-5, 0, 3) == 0
"""


def test_slow_tests_count_unless_fast(mutants, checkout, capsys):
    """Also where the options of pyproject.toml leave them out."""
    (checkout / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = \"-q -m 'not slow'\"\n")
    (checkout / "test_slow.py").write_text(SLOW_TEST)
    low = entry("no-low", "max(low, min(x, high))", "min(x, high)")
    only_slow = entry("no-low", "max(low, ", "max(x, ").replace("test_limits.py", "test_slow.py")
    both = low.replace('["test_limits.py"]', '["test_limits.py", "test_slow.py::test_low"]')
    for entries, fast_code in (([only_slow], 1), ([both], 1), ([entry("no-high", "min(x, high)", "x")], 0)):
        assert run(mutants, checkout, entries) == 0
        assert run(mutants, checkout, entries, "--fast") == fast_code
    capsys.readouterr()
    assert run(mutants, checkout, [only_slow, both.replace("no-low", "both")], "--list", "--fast") == 0
    assert capsys.readouterr().out.endswith("1 of 2 have fast tests\n  only slow: no-low\n")


@pytest.mark.slow
def test_most_faults_have_fast_tests(mutants, capsys):
    assert mutants.main(["--list", "--fast"]) == 0
    found = re.search(r"^(\d+) of (\d+) have fast tests$", capsys.readouterr().out, re.MULTILINE)
    assert int(found[1]) >= 0.95 * int(found[2])


def test_unknown_name(mutants, checkout, capsys):
    assert run(mutants, checkout, [entry("no-high", "min(x, high)", "x")], "no-hihg") == 1
    assert "no-hihg" in capsys.readouterr().err
