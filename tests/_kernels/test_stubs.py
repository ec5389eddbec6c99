"""The type stubs that the build writes for the kernels: up to date, and equal to the compiled modules."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from oxillama import _kernels
from oxillama._kernels import generate_stubs
from oxillama.base.targets import PER_TARGET, TARGETS
from tests.support.kernels import PRESENT, refuses

KERNELS = Path(_kernels.__file__).parent
MODULES = [".".join(p.relative_to(KERNELS).with_suffix("").parts) for p in sorted(KERNELS.rglob("*.pyx"))]
ONCE = [module for module in MODULES if module not in PER_TARGET]


def stubs(module: str) -> dict[str, str]:
    """The arguments of each function and method in the stub of a module; methods are ``Class.method``."""
    body = ast.parse((KERNELS / f"{module.replace('.', '/')}.pyi").read_text()).body
    found = {n.name: ast.unparse(n.args) for n in body if isinstance(n, ast.FunctionDef)}
    for node in (n for n in body if isinstance(n, ast.ClassDef)):
        for method in (n for n in node.body if isinstance(n, ast.FunctionDef) and not n.decorator_list):
            protocol = node.name == f"{module.rpartition('.')[2].title()}Module"
            arguments = ast.unparse(method.args).removeprefix("self").removeprefix(", ")
            name = method.name if protocol else f"{node.name}.{method.name}"
            found[name] = re.sub(r"\b([A-Z]\w*)_\b", r"\1", arguments) if protocol else arguments
    return {name: arguments for name, arguments in found.items() if not name.endswith(".__init__")}


def compiled(module: str, built: ModuleType) -> dict[str, str]:
    """The arguments of each function and method of a compiled module, by the first lines of docstrings."""
    found = {}
    for key, thing in vars(built).items():
        if key.startswith("_") or getattr(thing, "__module__", "") != f"oxillama._kernels.{module}":
            continue
        if isinstance(thing, type):
            for name, method in vars(thing).items():
                if not name.startswith("_") and callable(method):
                    found[f"{thing.__name__}.{name}"] = arguments_of(method)
        elif type(thing).__name__ == "cython_function_or_method":
            found[thing.__name__] = arguments_of(thing)
    return found


def arguments_of(function: object) -> str:
    """The arguments in the first line of a docstring, which Cython writes, as Python's."""
    line = (function.__doc__ or "").partition("\n")[0]
    match = re.fullmatch(r"[\w.]+\((.*)\)(?: -> .*)?", line)
    assert match, f"{function}: no signature in {line!r}"
    arguments = [text for text in generate_stubs.split(match[1]) if not text.endswith("self")]
    in_c = [re.sub(r"^bool ", "bint ", re.sub(r"^ndarray ", "cnp.ndarray ", text)) for text in arguments]
    texts = [generate_stubs.argument("", text) for text in in_c]
    return ast.unparse(ast.parse(f"def f({', '.join(texts)}): ...").body[0].args)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("module", "name"),
    [(m, m) for m in ONCE]
    + sorted({(m, f"{m}_{of}") for t in TARGETS if t.name in PRESENT for m, of in t.modules().items()}),
)
def test_a_stub_has_the_functions_of_the_compiled_module(module: str, name: str) -> None:
    assert stubs(module) == compiled(module, importlib.import_module(f"oxillama._kernels.{name}"))


def test_the_stubs_are_written_from_the_sources_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    shutil.copytree(KERNELS, folder, ignore=shutil.ignore_patterns("*.pyi", "*.so", "*.pyd", "__pycache__"))
    generate_stubs.write(folder, PER_TARGET)
    for path in folder.rglob("*.pyi"):
        same = KERNELS / path.relative_to(folder)
        assert same.read_text() == path.read_text(), f"{same.name} is out of date: build again"
    assert len(list(folder.rglob("*.pyi"))) == len(MODULES)


def test_every_module_of_a_target_has_a_type() -> None:
    annotations = {name.rpartition(".")[2]: f"{name.rpartition('.')[2].title()}Module" for name in PER_TARGET}
    others = {"target": "str", "tile_tokens": "tuple[int, ...] | None", "unpacks_quick": "bool"}
    assert {**annotations, **others} == _kernels.Kernels.__annotations__


SOURCE = """
LIMIT: int = 3

cdef class Box(Base):
    cdef readonly Py_ssize_t n, m  # two sizes
    cdef readonly tuple names  # type: tuple[str, ...]; in order
    cdef object hidden

    def __cinit__(self, list names not None: list[str], *_arguments, **_named):
        pass

    @property
    def size(self) -> int:
        return self.n

    def put(self, cnp.ndarray x, cnp.ndarray bias=None, *, bint fast=True):
        self.n = 1

cpdef enum:
    # two kinds
    A = 1
    B = 2

def boxes(list given not None: list[Box],
          int n=2) -> tuple[Box, int]:
    return given[0], n
"""
CLASS = """\
class Box(Base):
    n: int
    m: int
    names: tuple[str, ...]
    def __init__(self, names: list[str]) -> None: ...
    @property
    def size(self) -> int: ...
    def put(self, x: np.ndarray, bias: np.ndarray | None = None, *, fast: bool = True) -> None: ...
"""


def test_a_module_that_is_compiled_once() -> None:
    text = generate_stubs.stub(
        "a.box", SOURCE, {"np": "import numpy as np", "Base": "from x import Base"}, False
    )
    function = "def boxes(given: list[Box], n: int = 2) -> tuple[Box, int]: ..."
    constants = "LIMIT: int\nA: int\nB: int"
    assert (
        text.partition("\n\n")[2]
        == f"from x import Base\nimport numpy as np\n\n{constants}\n{CLASS}\n{function}\n"
    )


def test_a_module_of_a_target() -> None:
    text = generate_stubs.stub("a.box", SOURCE, {}, True)
    function = "def boxes(self, given: list[Box_], n: int = 2) -> tuple[Box_, int]: ..."
    protocol = ["Box: type[Box_]", "LIMIT: int", "A: int", "B: int", function]
    lines = ["Box_ = Box\n", "class BoxModule(Protocol):", *(f"    {line}" for line in protocol)]
    assert text.partition("\n\n")[2] == "\n".join(["", CLASS, *lines, "", ""])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(list x):\n    pass\n", "a.b: f: x: expected a type of C, a class or an annotation, got list"),
        (
            "def f(x=None):\n    pass\n",
            "a.b: f: x: expected a type of C, a class or an annotation, got no type",
        ),
        ("def f(int n):\n    return n\n", "a.b: f: expected '-> ...' for the value that it returns"),
        (
            "cdef class A:\n    cdef public list x\n",
            "a.b: x: expected a type of C, a class or a comment '# type",
        ),
    ],
)
def test_a_type_that_is_missing(source: str, message: str) -> None:
    refuses(re.escape(message), generate_stubs.stub, "a.b", source, {}, False)
