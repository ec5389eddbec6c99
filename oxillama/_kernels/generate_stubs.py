"""Writes the type stubs of the kernels (``.pyi``) from the signatures in their sources. Run by setup.py.

A stub is written next to each ``.pyx`` and is not under version control. Types of C become types of Python;
all other types are annotations in the source, which Cython ignores. A module that is compiled for each target
is not imported by its plain name: its stub has a protocol of the compiled modules, such as ``LinearModule``
in ``linear.pyi``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from textwrap import indent

TYPES = {
    **dict.fromkeys(("int", "int32_t", "int64_t", "long long", "Py_ssize_t"), "int"),
    **dict.fromkeys(("float", "double"), "float"),
    **{"bint": "bool", "cnp.ndarray": "np.ndarray", "str": "str", "bytes": "bytes"},
}
IMPORTS = {
    "np": "import numpy as np",
    **{name: f"from typing import {name}" for name in ("Any", "Protocol")},
    **{name: f"from collections.abc import {name}" for name in ("Iterable", "Sequence")},
    **{name: f"from oxillama._kernels.grammar.node_types import {name}" for name in ("Node", "Tokens")},
    "GrammarError": "from oxillama.errors import GrammarError",
}
"""The statement for each name that annotations use, besides the names of the classes of kernels."""

ARGUMENT = re.compile(
    r"(?:(?P<type>[\w.]+|long long) )?(?P<name>\w+)(?: not None)?"
    r"(?:: (?P<note>.+?))?(?: ?= ?(?P<default>.+))?"
)
CLASS = re.compile(r"^(?:cdef )?class (\w+)(?:\((\w+)\))?:.*\n((?:(?: {4}.*)?\n)*)", re.MULTILINE)
CONSTANT = re.compile(r"^([A-Z]\w*): (.+?) =", re.MULTILINE)
DEF = re.compile(r"^( *)def (\w+)\(([\s\S]*?)\)(?: -> (.+?))?:\n((?:(?:\1 +.*)?\n)*)", re.MULTILINE)
ENUM = re.compile(r"^cpdef enum:\n((?: {4}.*\n)*)", re.MULTILINE)
FIELDS = re.compile(
    r"^    cdef (?:readonly|public) (?P<type>\w+) (?P<names>\w+(?:, \w+)*)(?: *# type: (?P<note>[^;\n]+))?",
    re.MULTILINE,
)


def write(kernels: Path, per_target: Collection[str]) -> None:
    """Writes a stub for each ``.pyx`` below the folder; leaves a file alone whose text would not change.

    Raises:
        ValueError: an argument, a field or a result has neither a type of C nor an annotation.
    """
    sources = {
        ".".join(path.relative_to(kernels).with_suffix("").parts): read(path)
        for path in sorted(kernels.rglob("*.pyx"))
    }
    classes = {
        name: f"from oxillama._kernels.{module} import {name}"
        for module, source in sources.items()
        if module not in per_target
        for name, _, _ in CLASS.findall(source)
    }
    for module, source in sources.items():
        text = stub(module, source, IMPORTS | classes, module in per_target)
        path = kernels / f"{module.replace('.', '/')}.pyi"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def read(path: Path) -> str:
    """The source of a module: the ``.pxd`` of its name, the ``.pyx``, and the files that this includes."""
    source = path.read_text()
    included = re.findall(r'^include "(.+)"', source, re.MULTILINE)
    parts = [path.with_suffix(".pxd"), *(path.parent / name for name in included)]
    return "\n".join([source, *(part.read_text() for part in parts if part.exists()), ""])


def stub(module: str, source: str, imports: Mapping[str, str], per_target: bool) -> str:
    """The stub of a module; ``imports`` has the statement for each name of another module."""
    contents: dict[str, list[str]] = {}
    bases: dict[str, str] = {}
    for name, base, body in CLASS.findall(source):  # a class can be in the .pxd and in the .pyx
        contents[name] = [*fields(module, body), *contents.get(name, []), *functions(module, body, 4)]
        bases[name] = base or bases.get(name, "")
    constants = [f"{name}: {kind}" for name, kind in CONSTANT.findall(source)]
    for body in ENUM.findall(source):
        constants += [f"{name}: int" for name in re.findall(r"^    (\w+) =", body, re.MULTILINE)]
    classes = [
        f"class {name}{f'({bases[name]})' if bases[name] else ''}:\n{block(lines)}"
        for name, lines in contents.items()
    ]
    if per_target:
        inner = block([*constants, *functions(module, source, 0, "self")])
        for name in contents:  # the protocol has a field of this name, which hides the class
            inner = re.sub(rf"\b{name}\b", f"{name}_", inner)
        own = block([f"{name}: type[{name}_]" for name in contents]) if contents else ""
        classes += [f"{name}_ = {name}\n" for name in contents]
        classes += [f"class {module.rpartition('.')[2].title()}Module(Protocol):\n{own}{inner}"]
    else:
        classes = [*constants, *classes, *functions(module, source, 0)]
    text = "\n".join(classes)
    used = set(re.findall(r"[A-Za-z_]\w*", text)) - contents.keys()
    statements = sorted({imports[name] for name in used if name in imports})
    head = f'"""Written by generate_stubs.py from {module.rpartition(".")[2]}.pyx."""'
    return "\n".join([head, "", *statements, "", text, ""])


def block(lines: list[str]) -> str:
    """Lines as the body of a class."""
    return indent("\n".join([*lines, ""]) if lines else "...\n", "    ")


def fields(module: str, body: str) -> list[str]:
    """The fields of a class that Python code can read."""
    found = []
    for match in FIELDS.finditer(body):
        kind, names, note = match.group("type", "names", "note")
        if note is None:
            note = python_type(f"{module}: {names}", kind, "a comment '# type: ...'")
        found += [f"{name}: {note}" for name in names.split(", ")]
    return found


def functions(module: str, body: str, depth: int, first: str = "") -> list[str]:
    """The public functions that are indented by ``depth``; ``first`` is put in front of their arguments."""
    found = []
    for start, name, arguments, result, code in DEF.findall(body):
        if len(start) != depth or (name.startswith("_") and name != "__cinit__"):
            continue
        where = f"{module}: {name}"
        if not result and re.search(r"^\s+return [^\s#]", code, re.MULTILINE):
            raise ValueError(f"{where}: expected '-> ...' for the value that it returns, got no annotation")
        texts = [first] if first else []
        texts += [argument(where, text) for text in split(arguments) if not re.match(r"\*\w|\*\*", text)]
        if name == "__cinit__" and "**" in arguments and texts == ["self"]:
            continue  # the arguments of the base class
        if depth and re.search(rf"@property\n    def {name}\(", body):
            found.append("@property")
        name = "__init__" if name == "__cinit__" else name
        found.append(f"def {name}({', '.join(texts)}) -> {result or 'None'}: ...")
    return found


def argument(where: str, text: str) -> str:
    """An argument of Cython as an argument of Python."""
    match = ARGUMENT.fullmatch(text)
    if text in ("self", "*") or match is None:
        return text
    kind, name, note, default = match.group("type", "name", "note", "default")
    if note is None:
        note = python_type(f"{where}: {name}", kind or "", "an annotation")
        note += " | None" if default == "None" else ""
    return f"{name}: {note}" + (f" = {default}" if default else "")


def python_type(where: str, kind: str, otherwise: str) -> str:
    """The type of Python for a type of Cython; names of classes are capitalized."""
    if kind not in TYPES and not kind[:1].isupper():
        raise ValueError(f"{where}: expected a type of C, a class or {otherwise}, got {kind or 'no type'}")
    return TYPES.get(kind, kind)


def split(arguments: str) -> list[str]:
    """Arguments, split at the commas that no bracket encloses."""
    found, depth = [""], 0
    for char in " ".join(arguments.split()):
        depth += (char in "[(") - (char in "])")
        if char == "," and depth == 0:
            found.append("")
        else:
            found[-1] += char
    return [text.strip() for text in found if text.strip()]
