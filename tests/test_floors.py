"""The folders of the package are floors: imports go down only, and no two files import each other.

The docstring of `oxillama` lists the folders from the top floor to the bottom one.
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
FLOORS = re.findall(r"^    (\w+) {2,}\w", oxillama.__doc__ or "", re.MULTILINE)
"""From the top to the bottom."""

PUBLIC = FLOORS.index("apps") + 0.5
"""The public names of `oxillama` lie between `apps` and the other folders."""

APART = {
    "engine.cache": ("engine",),
    "engine.sampling": ("engine",),
    "text.tokenizer": ("text",),
    "text.grammar": ("text.chat", "text.toolcalls"),
}
"""Folders, and the folders beside them that they never import, apart from themselves."""


def module_name(path: Path) -> str:
    """The dotted name under the package; "" for the package itself."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def floor_of(name: str) -> float:
    """The number of a module's floor from the top; `errors` lies below all folders."""
    folder = name.split(".")[0]
    return {"": PUBLIC, "__main__": -1, "errors": len(FLOORS)}.get(folder) or FLOORS.index(folder)


FACADE = {
    "engine.engine",
    "engine.async_engine",
    "engine.generation",
    "engine.completion",
}
"""Modules whose annotations name types of features, for type checkers alone. `engine.features` plugs the
features in; `tests/engine/test_features.py` checks that the core runs without them."""


def without_types(tree: ast.Module) -> ast.Module:
    """A module without the blocks ``if TYPE_CHECKING:`` at its top."""
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


def is_in(name: str, folder: str) -> bool:
    """Whether a module lies in a folder."""
    return f"{name}.".startswith(f"{folder}.")


def faults(name: str, imported: set[str]) -> list[str]:
    """The wrong imports of a module."""
    found = []
    for other in sorted(imported):
        if floor_of(other) < floor_of(name):
            found.append(f"oxillama.{name} imports oxillama.{other}, which lies above")
        for folder, others in APART.items():
            if is_in(name, folder) and not is_in(other, folder) and any(is_in(other, o) for o in others):
                found.append(f"oxillama.{name} imports its sibling oxillama.{other}")
    return found


@functools.cache
def all_imports() -> dict[str, set[str]]:
    """The imports of each module without the module itself."""
    return {name: imports(name, path.read_text()) - {name} for name, path in MODULES.items()}


def test_the_folders_are_the_floors_and_few() -> None:
    entries = {path.name for path in ROOT.iterdir() if path.is_file() or any(path.rglob("*.py"))}
    assert {path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file()} == set(FLOORS)
    assert len(entries) <= 16, sorted(entries)


def test_imports_go_down_only() -> None:
    found = {name: faults(name, all_imports()[name]) for name in MODULES}
    assert found and {name: fault for name, fault in found.items() if fault} == {}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.pyx")), ids=lambda path: path.stem)
def test_compiled_modules_import_downwards_only(path: Path) -> None:
    imported = re.findall(r"^ *(?:from|c?import) oxillama\.([\w.]+)", path.read_text(), re.MULTILINE)
    assert not faults("_kernels", set(imported))


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The nodes of a circle; [] for a graph without one."""
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_files_import_each_other() -> None:
    compiled = {name: found - {"_kernels"} for name, found in all_imports().items()}  # a package, its parts
    assert not circle(compiled)


@pytest.mark.parametrize("floor", ["apps", "text"])
def test_no_folders_of_a_floor_import_each_other(floor: str) -> None:
    graph: dict[str, set[str]] = {}
    for name, found in all_imports().items():
        if is_in(name, floor) and name != floor:
            room = name.split(".")[1]
            graph.setdefault(room, set()).update(
                o.split(".")[1] for o in found if is_in(o, floor) and o != floor
            )
            graph[room].discard(room)
    assert len(graph) > 2 and not circle(graph)


@pytest.mark.parametrize(
    ("name", "source", "fault"),
    [
        ("errors", "import oxillama.gguf.header", "imports oxillama.gguf.header"),
        ("models.weights.linear", "from oxillama.engine import Decoder", "imports oxillama.engine"),
        ("models.weights.linear", "from oxillama import engine", "imports oxillama.engine"),
        (
            "models.spec",
            "def f():\n    from oxillama.engine.engine import x",
            "imports oxillama.engine.engine",
        ),
        ("models.decoder", "from ..engine import runner", "imports oxillama.engine.runner"),
        ("models.decoder", "from .. import engine", "imports oxillama.engine"),
        ("engine.cache.pages", "from oxillama.engine.sampling.sampler import Sampler", "imports its sibling"),
        ("engine.cache.pages", "from oxillama.engine.request import Request", "imports its sibling"),
        ("text.tokenizer.tokenizer", "from oxillama.text.chat.template import x", "imports its sibling"),
        ("base.config.engine", "from oxillama.engine.runner import Runner", "imports oxillama.engine"),
        ("gguf.header", "from oxillama import GGUFError", "imports oxillama., which lies above"),
        ("engine.runner", "from oxillama.apps.cli import main", "imports oxillama.apps.cli"),
        ("engine.engine", "if 1:\n    from oxillama.apps.cli import main", "imports oxillama.apps.cli"),
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
            "from .spec import Spec\nfrom ..gguf.header import Header\nimport numpy as np",
        ),
        ("apps.bench.run", "from oxillama import InferenceEngine\nfrom oxillama.errors import ConfigError"),
        ("", "from oxillama.engine.engine import InferenceEngine"),
    ):
        assert not faults(name, imports(name, source))
