"""The signatures that type checkers see are those of the compiled modules.

Modules of a target have theirs as a ``...Module`` protocol in the ``signatures.py`` of their folder, the
others in a ``.pyi``. Both are compared with the first lines of docstrings, which Cython writes
(``embedsignature``).
"""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from oxillama import _kernels
from oxillama.targets import PER_TARGET
from tests.support.kernels import PRESENT

KERNELS = Path(_kernels.__file__).parent
INNER = {
    "Allowed",
    "Slice",
    "Configurations.checked",
    "Product",
    "Speller",
    "Subsets",
    "Machine",
    "Comparison",
    "Remainders",
}  # which only kernels use
TYPES = {"Py_ssize_t": "int", "int": "int", "bool": "bool", "float": "float", "double": "float", "str": "str"}
ONCE = [".".join(p.relative_to(KERNELS).with_suffix("").parts) for p in sorted(KERNELS.rglob("*.pyi"))]

Argument = tuple[str, str | None, str]
"""Name, default, type."""


def declared(body: list[ast.stmt], prefix: str = "") -> dict[str, list[Argument]]:
    """The functions and methods of a stub; a class has the arguments of its ``__init__``."""
    found: dict[str, list[Argument]] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found |= declared(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef) and not node.decorator_list:
            arguments = node.args
            positional = arguments.args[1:] if prefix else arguments.args
            none: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
            pairs = [
                *zip(positional, [*none, *arguments.defaults], strict=True),
                *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
            ]
            name = prefix.removesuffix(".") if node.name == "__init__" else prefix + node.name
            found[name] = [
                (a.arg, ast.unparse(d) if d else None, ast.unparse(a.annotation) if a.annotation else "")
                for a, d in pairs
            ]
    return found


def stub(module: str) -> dict[str, list[Argument]]:
    """What type checkers see of a module below ``_kernels``."""
    if module not in PER_TARGET:
        return declared(ast.parse((KERNELS / f"{module.replace('.', '/')}.pyi").read_text()).body)
    folder, name = module.split(".")
    protocol = f"{name.title()}Module."
    body = ast.parse((KERNELS / folder / "signatures.py").read_text()).body
    mine = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == protocol[:-1])
    fields = {
        n.target.id for n in mine.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }
    found = declared(body)
    return {
        key.removeprefix(protocol): arguments
        for key, arguments in found.items()
        if key.startswith(protocol) or key.split(".")[0] in fields
    }


def from_docstring(thing: object) -> list[Argument]:
    """The arguments in the first line of a docstring."""
    line = (thing.__doc__ or "").partition("\n")[0]
    match = re.fullmatch(r"[\w.]+\((.*)\)(?: -> .*)?", line)
    assert match, f"{thing}: no signature in {line!r}"
    return from_text(match[1])


def from_source(module: str, name: str) -> list[Argument] | None:
    """The arguments of a class's ``__cinit__``, which is in no docstring; None: it takes its base's."""
    path = KERNELS / f"{module.replace('.', '/')}.pyx"
    source = path.read_text()
    for part in re.findall(r'^include "(.+)"', source, re.MULTILINE):
        source += (path.parent / part).read_text()
    body = source.partition(f"cdef class {name}")[2].partition("\ncdef class ")[0]
    match = re.search(r"def __cinit__\(([^)]*)\)", body)
    if not match:
        return None
    own, rest, _ = " ".join(match[1].split()).partition(", *_")  # the rest is for classes made of this one
    return None if rest and own == "self" else from_text(own)


def from_text(arguments: str) -> list[Argument]:
    """Cython's arguments."""
    found = []
    for part in arguments.split(", ") if arguments else []:
        left, _, default = part.removesuffix(" not None").partition("=")
        kind, _, name = left.rpartition(" ")
        if name not in ("self", "*") and (kind, name) != ("", "self"):
            found.append((name, default or None, kind))
    return found


def compiled(module: str, built: ModuleType) -> dict[str, list[Argument]]:
    """The functions and methods that a compiled module has."""
    found = {}
    for name, thing in vars(built).items():
        elsewhere = getattr(thing, "__module__", "") != f"oxillama._kernels.{module}"
        if name.startswith("_") or name in INNER or elsewhere:
            continue
        if isinstance(thing, type) and not issubclass(thing, Exception):
            own = from_source(module, name)
            if own is not None or thing.__base__ is object:  # or it is made as its base is
                found[name] = from_docstring(thing) if own is None else own
            for method, body in vars(thing).items():
                if not method.startswith("_") and callable(body) and f"{name}.{method}" not in INNER:
                    found[f"{name}.{method}"] = from_docstring(body)
        elif type(thing).__name__ == "cython_function_or_method":
            found[name] = from_docstring(thing)
    return found


def same(stub: list[Argument], real: list[Argument]) -> bool:
    """Whether names, defaults and, where C has them, types agree."""
    return [(n, d) for n, d, _ in stub] == [(n, d) for n, d, _ in real] and all(
        written == TYPES.get(kind, written) and ("ndarray" not in kind or written.startswith("np.ndarray"))
        for (_, _, written), (_, _, kind) in zip(stub, real, strict=True)
    )


@pytest.mark.parametrize("target", PRESENT)
@pytest.mark.parametrize("module", PER_TARGET)
def test_modules_of_a_target(module: str, target: str) -> None:
    check(module, importlib.import_module(f"oxillama._kernels.{module}_{target}"))


@pytest.mark.parametrize("module", ONCE)
def test_modules_built_once(module: str) -> None:
    check(module, importlib.import_module(f"oxillama._kernels.{module}"))


def check(module: str, built: ModuleType) -> None:
    wanted, real = stub(module), compiled(module, built)
    assert set(wanted) == set(real)
    assert {name: wanted[name] for name in real if not same(wanted[name], real[name])} == {}


def test_every_module_of_a_target_has_a_type() -> None:
    annotations = {name.rpartition(".")[2]: f"{name.rpartition('.')[2].title()}Module" for name in PER_TARGET}
    assert {**annotations, "target": "str"} == _kernels.Kernels.__annotations__


@pytest.mark.parametrize(
    ("name", "default", "kind"),
    [("cols", None, "int"), ("n", "1", "int"), ("n", None, "float"), ("n", None, "np.ndarray")],
)
def test_a_difference_is_found(name: str, default: str | None, kind: str) -> None:
    assert same([("n", None, "int")], [("n", None, "Py_ssize_t")])
    assert not same([(name, default, kind)], [("n", None, "Py_ssize_t")])
    assert not same([], [("n", None, "Py_ssize_t")])
