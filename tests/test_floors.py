"""The house has floors: imports go down or stay, and no two files or rooms import each other.

The package's docstring lists the floors from the top; the docstring of a room begins with the name of its
floor. Modules beside the rooms are facts, except the package itself, which lies between faces and work.
"""

from __future__ import annotations

import ast
import functools
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import oxillama

ROOT = Path(oxillama.__file__).parent
NAME = "the public names"
PLAN = re.findall(r"^    (\w+) {2,}\w", oxillama.__doc__ or "", re.MULTILINE)
FLOORS = [PLAN[0], NAME, *PLAN[1:]]
"""From the top to the bottom."""


def module_name(path: Path) -> str:
    """The dotted name under the package; "" for the package itself."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
ROOMS = {name for name, path in MODULES.items() if name and path.name == "__init__.py" and "." not in name}


def floor_of(name: str) -> str:
    """The floor of a module."""
    room = name.split(".")[0]
    if room in ROOMS:
        return (ast.get_docstring(ast.parse(MODULES[room].read_text())) or "").partition(":")[0]
    return {"": NAME, "__main__": "Faces"}.get(room, "Facts")


FACADE = {"engine.engine", "engine.async_engine", "engine.generation", "engine.snapshots"}
"""Modules whose annotations name types of feature rooms, for type checkers alone. The rooms are plugged in by
`engine.features`; `tests/engine/test_features.py` checks that the core runs without them."""


def without_types(tree: ast.AST) -> ast.AST:
    """A module without the blocks ``if TYPE_CHECKING:`` at its top."""
    assert isinstance(tree, ast.Module)
    tree.body = [
        node
        for node in tree.body
        if not (
            isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        )
    ]
    return tree


def imports(name: str, source: str) -> set[str]:
    """Modules of the package that ``source`` imports anywhere, lazily too; not for the facade's types."""
    package = name if name in MODULES and MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    tree = ast.parse(source)
    for node in ast.walk(without_types(tree) if name in FACADE else tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            up = ("oxillama." + package).rstrip(".").split(".")
            base = [*up[: len(up) + 1 - node.level], node.module or ""] if node.level else [node.module or ""]
            full = ".".join(part for part in base if part)
            for alias in node.names:  # a module of that name, or a name of the module
                inner = f"{full}.{alias.name}".removeprefix("oxillama.")
                is_module = inner in MODULES or inner.split(".")[0] == "_kernels"
                found.add(f"oxillama.{inner}" if full.split(".")[0] == "oxillama" and is_module else full)
    return {n.removeprefix("oxillama").removeprefix(".") for n in found if n.split(".")[0] == "oxillama"}


def faults(name: str, wanted: set[str]) -> list[str]:
    """What is wrong with a module's imports."""
    found, here = [], floor_of(name)
    for other in sorted(wanted):
        there = floor_of(other)
        if FLOORS.index(there) < FLOORS.index(here):
            found.append(f"oxillama.{name} ({here}) imports oxillama.{other} ({there})")
        if here == there == "State" and name.split(".")[0] != other.split(".")[0]:
            found.append(f"oxillama.{name} imports its sibling oxillama.{other}")
    return found


@functools.cache
def all_imports() -> dict[str, set[str]]:
    """The imports of each module, but of itself."""
    return {name: imports(name, path.read_text()) - {name} for name, path in MODULES.items()}


def test_every_room_has_a_floor() -> None:
    assert len(FLOORS) == 8
    assert {room: floor_of(room) for room in ROOMS if floor_of(room) not in PLAN} == {}


def test_imports_go_down_only() -> None:
    found = {name: faults(name, all_imports()[name]) for name in MODULES}
    assert found and {name: fault for name, fault in found.items() if fault} == {}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.pyx")), ids=lambda path: path.stem)
def test_compiled_modules_import_downwards_only(path: Path) -> None:
    imported = re.findall(r"^ *(?:from|c?import) oxillama\.([\w.]+)", path.read_text(), re.MULTILINE)
    assert not faults("_kernels", set(imported))


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The nodes of a circle, or none."""
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_files_import_each_other() -> None:
    compiled = {name: found - {"_kernels"} for name, found in all_imports().items()}  # a package, its parts
    assert not circle(compiled)


def test_no_rooms_import_each_other() -> None:
    graph: dict[str, set[str]] = {room: set() for room in ROOMS}
    for name, found in all_imports().items():
        if name.split(".")[0] in ROOMS:
            graph[name.split(".")[0]] |= {other.split(".")[0] for other in found} & ROOMS - {
                name.split(".")[0]
            }
    assert not circle(graph)


@pytest.mark.parametrize(
    ("name", "source", "fault"),
    [
        ("errors", "import oxillama.gguf.header", "imports oxillama.gguf.header"),
        ("weights.linear", "from oxillama.models import Decoder", "imports oxillama.models"),
        ("weights.linear", "from oxillama import models", "imports oxillama.models"),
        (
            "models.spec",
            "def f():\n    from oxillama.engine.engine import x",
            "imports oxillama.engine.engine",
        ),
        ("models.decoder", "from ..engine import runner", "imports oxillama.engine.runner"),
        ("models.decoder", "from .. import engine", "imports oxillama.engine"),
        ("cache.pages", "from oxillama.sampling.sampler import Sampler", "imports its sibling"),
        ("config.engine", "from oxillama.sampling.sampler import Sampler", "imports oxillama.sampling"),
        ("gguf.header", "from oxillama import GGUFError", r"imports oxillama\. \(the public names\)"),
        ("engine.runner", "from oxillama.cli import main", "imports oxillama.cli"),
        ("engine.engine", "if 1:\n    from oxillama.cli import main", "imports oxillama.cli"),
    ],
)
def test_a_wrong_import_is_found(name: str, source: str, fault: str) -> None:
    assert re.search(fault, "\n".join(faults(name, imports(name, source))))


def test_a_circle_is_found() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}


def test_right_imports_are_left_alone() -> None:
    for name, source in (
        ("engine.engine", "from oxillama import _kernels\nfrom oxillama.models import Decoder"),
        (
            "models.decoder",
            "from .spec import Spec\nfrom ..weights.loader import Weights\nimport numpy as np",
        ),
        ("bench.run", "from oxillama import InferenceEngine\nfrom oxillama.errors import ConfigError"),
        ("", "from oxillama.engine.engine import InferenceEngine"),
    ):
        assert not faults(name, imports(name, source))
