"""The page of the reference's names: each path resolves, each name without one has a reason."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import oxillama
from tests.support.paths import DOCS

PAGE = DOCS / "reference-names.md"
if not PAGE.exists():
    pytest.skip("only the package was unpacked", allow_module_level=True)

TEXT = PAGE.read_text(encoding="utf-8")


def listed(text: str) -> Iterator[list[str]]:
    """A row for each name of the lists of names that are the same here."""
    for module, items in re.findall(
        r"^The same names in `([\w.]+)`:\n\n((?:[- ] .+\n)+)", text, re.MULTILINE
    ):
        for item in re.split(r"^- ", items, flags=re.MULTILINE)[1:]:
            owner, colon, names = item.rpartition(":")
            for name in re.findall(r"`(\w+)`", names):
                full = f"{owner.strip('`')}.{name}" if colon else name
                yield [f"`{full}`", f"`{module}.{full}`", "", ""]


ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")] + [""] * (3 - line.strip("| ").count(" | "))
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| reference")
] + list(listed(TEXT))
PATHS = sorted({path for row in ROWS for cell in row[1:3] for path in re.findall(r"`([\w.]+)`", cell)})


def resolved(path: str) -> Any:
    """The object at an import path, or the class of an attribute that only its objects have."""
    parts = path.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError as error:
            assert error.name is not None and ".".join(parts[:n]).startswith(error.name), path
        else:
            break
    *others, last = parts[n:]
    owner = reduce(getattr, others, found)
    if inspect.isclass(owner) and not hasattr(owner, last):
        assert last in attributes(owner), f"{path}: {owner} has no such attribute"
        return owner
    return getattr(owner, last)


def attributes(owner: type) -> set[str]:
    """Fields and documented attributes of the objects of a class."""
    fields = {name for cls in owner.__mro__ for name in vars(cls).get("__annotations__", ())}
    text = "".join(inspect.cleandoc(cls.__doc__ or "") for cls in owner.__mro__[:-1])
    listed = re.findall(r"^    ([\w, ]+): ", text, re.MULTILINE)
    slots = {name for cls in owner.__mro__ for name in vars(cls).get("__slots__", ())}
    return fields | slots | {name.strip() for names in listed for name in names.split(",")}


def test_the_page_has_its_rows() -> None:
    assert len(ROWS) > 250
    assert all(len(row) == 4 and row[0] for row in ROWS)
    names = [row[0] for row in ROWS]
    assert len(names) == len(set(names))


def test_each_path_resolves() -> None:
    assert len(PATHS) > 300
    for path in PATHS:
        assert path.startswith("oxillama.")
        resolved(path)


def test_what_is_missing_has_a_reason() -> None:
    for name, ours, _, note in ROWS:
        assert ours == "none" or re.findall(r"`oxillama\.[\w.]+`", ours), name
        assert note or ours != "none", name


def test_the_third_column_has_the_reference_s_name() -> None:
    paths = [(row[0], path) for row in ROWS for path in re.findall(r"`([\w.]+)`", row[2])]
    assert paths
    for name, path in paths:
        assert path.startswith("oxillama.compat.")
        assert path.split(".")[-1] == name.strip("`").split(".")[-1]


FORMER = {
    *("capture", "check_integrity", "generate_batch_with_logprobs", "load_adapter", "metadata"),
    *("prime_with_prefix", "restore_session", "resume_generation", "spec", "unload_adapter"),
}
"""Methods of the engine of `compat` that are former names of ours, not names of the reference."""


def test_each_public_name_of_compat_is_on_the_page() -> None:
    folder = Path(oxillama.__file__).parent / "compat"
    modules = [importlib.import_module(f"oxillama.compat.{path.stem}") for path in folder.glob("[a-z]*.py")]
    names = {
        f"{module.__name__}.{name}"
        for module in modules
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
    }
    engine = "oxillama.compat.engine.InferenceEngine"
    known = {*dir(oxillama.InferenceEngine), *FORMER}
    names |= {f"{engine}.{name}" for name in dir(resolved(engine)) if name[0] != "_" and name not in known}
    assert len(names) > 60
    assert sorted(names - set(PATHS)) == []


@pytest.mark.parametrize("path", ["oxillama.Nonsense", "oxillama.Session.nonsense", "oxillama.x.y"])
def test_a_wrong_path_is_found(path: str) -> None:
    with pytest.raises((AssertionError, AttributeError)):
        resolved(path)
