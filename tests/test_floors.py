"""The house has floors: a module imports from its own floor or from below, and never in a circle.

7 faces       the command line and whatever else uses the library
6 the name    `oxillama` itself: public names
5 engine      and the options it is made with
4 cache | sampling | grammar        siblings, which never import each other
3 models
2 data        files, vocabularies, weights in memory, batches
1 _kernels    the compiled floor
0 facts       tables, errors
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import oxillama

ROOT = Path(oxillama.__file__).parent

# The longest prefix of a module's name (without "oxillama.") that is listed decides.
FLOORS = {
    0: "_version errors filetypes formats targets",
    1: "_kernels",
    2: "batch conversion gguf ggufwriter imatrix modelfile tensor "
    "characters chat chat_sandbox detokenizer pretokenizers segmenters special_tokens "
    "tokenizer tokenizer_json unicode_table vocab",
    3: "models",
    4: "cache grammar sampling",
    # config is what an engine is made with, sampling options included: only the engine and its users know it
    5: "attention config convert engine outline quantize",
    7: "__main__ benchmark cli demo measurements",
}
FLOOR_OF = {name: floor for floor, names in FLOORS.items() for name in names.split()} | {"": 6}
SIBLINGS = FLOORS[4].split()


def module_name(path: Path) -> str:
    """The dotted name under the package; "" for the package itself."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is imported: not function bodies, nor what is for type checkers."""
    for node in ast.iter_child_nodes(tree):
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not for_types:
            yield node
            yield from at_import(node)


def imports(name: str, source: str, walk: Callable[[ast.AST], Iterator[ast.AST]] = ast.walk) -> set[str]:
    """Modules of the package that ``source`` imports in the nodes walked, by names as in MODULES."""
    package = name if name in MODULES and MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in walk(ast.parse(source)):
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


def floor_of(name: str) -> int:
    top = name.split(".")[0]
    assert top in FLOOR_OF, f"oxillama.{name}: give it a floor in {Path(__file__).name}"
    return FLOOR_OF[top]


def faults(name: str, wanted: set[str]) -> list[str]:
    """What is wrong with a module's imports."""
    found = []
    for other in sorted(wanted):
        if floor_of(other) > floor_of(name):
            found.append(
                f"oxillama.{name} (floor {floor_of(name)}) imports oxillama.{other} ({floor_of(other)})"
            )
        here, there = name.split(".")[0], other.split(".")[0]
        if here != there and here in SIBLINGS and there in SIBLINGS:
            found.append(f"oxillama.{name} imports its sibling oxillama.{other}")
    return found


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_down_only(name: str) -> None:
    assert not faults(name, imports(name, MODULES[name].read_text()))


def test_no_imports_go_in_a_circle() -> None:
    graph = {
        name: imports(name, path.read_text(), at_import) - {name, "_kernels"}
        for name, path in MODULES.items()
    }
    list(TopologicalSorter(graph).static_order())  # raises CycleError


@pytest.mark.parametrize(
    ("name", "source", "fault"),
    [
        ("errors", "import oxillama.gguf.header", "imports oxillama.gguf.header"),
        ("tensor", "from oxillama.models import Decoder", "imports oxillama.models"),
        ("tensor", "from oxillama import models", "imports oxillama.models"),
        (
            "models.spec",
            "def f():\n    from oxillama.engine.engine import x",
            "imports oxillama.engine.engine",
        ),
        ("models.decoder", "from ..engine import runner", "imports oxillama.engine.runner"),
        ("models.decoder", "from .. import engine", "imports oxillama.engine"),
        ("cache.pages", "from oxillama.config.sampler import SamplerConfig", "imports its sibling"),
        (
            "sampling.chain",
            "from oxillama.config.engine import EngineConfig",
            "imports oxillama.config.engine",
        ),
        ("gguf", "from oxillama import GGUFError", r"imports oxillama\. \(6\)"),
        ("engine.runner", "from oxillama.cli import main", "imports oxillama.cli"),
    ],
)
def test_a_wrong_import_is_found(name: str, source: str, fault: str) -> None:
    assert re.search(fault, "\n".join(faults(name, imports(name, source))))


def test_right_imports_are_left_alone() -> None:
    for name, source in (
        ("engine.engine", "from oxillama import _kernels\nfrom oxillama.models import Decoder"),
        ("models.decoder", "from .spec import Spec\nfrom ..tensor import Weights\nimport numpy as np"),
        ("benchmark", "from oxillama import InferenceEngine\nfrom oxillama.errors import ConfigError"),
        ("", "from oxillama.engine.engine import InferenceEngine"),
    ):
        assert not faults(name, imports(name, source))
