"""The API pages: each public name is on one, and the site's renderer can read its docstring."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import oxillama
from tests.support.paths import DOCS, ROOT

griffe = pytest.importorskip("griffe", reason="comes with the extra test")
if not DOCS.is_dir():
    pytest.skip("only the package was unpacked", allow_module_level=True)

PAGES = {path: path.read_text(encoding="utf-8") for path in [DOCS / "api.md", *DOCS.glob("api/*.md")]}
RENDERED = [
    name for text in PAGES.values() for name in re.findall(r"^::: oxillama\.(\S+)$", text, re.MULTILINE)
]
ELSEWHERE = {"EngineConfig", "GenerationOptions", "SamplerConfig", "SchedulerConfig", "config"}
"""Options, which have a page that is made from them."""

MODULE = '''
class A:
    """{0}"""

    known: int = 0

    def __init__(self, first: int, **more: int) -> None:
        """Makes it."""

    def f(self, first: int, **more: int) -> int:
        """{1}"""
'''


@pytest.fixture(scope="module")
def package() -> Any:
    return griffe.load("oxillama", search_paths=[ROOT], allow_inspection=False)


def shown(found: Any) -> Iterator[Any]:
    """What a page shows of an object: itself and its public members, as far as they have docstrings."""
    target = found.final_target if found.is_alias else found
    if target.docstring:
        yield target
    if target.is_class or target.is_module:
        for name, member in target.all_members.items():
            if not name.startswith("_") and not (target.is_module and member.is_alias):
                yield from shown(member)


def defined(found: Any) -> Iterator[Any]:
    """All objects with docstrings that are defined in a module or a class."""
    for member in found.members.values():
        if not member.is_alias:
            yield from [member] if member.docstring else []
            yield from defined(member) if member.is_module or member.is_class else []


def faults(found: Any, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the renderer warns of, attributes that it cannot find or that have no type, and other forms."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "griffe"):
        sections = found.docstring.parse("google", returns_named_value=False)
    kinds = griffe.DocstringSectionKind
    attributes = [each.name for part in sections if part.kind is kinds.attributes for each in part.value]
    unknown = [name for name in attributes if name not in found.all_members or not found[name].annotation]
    notes = [part.title for part in sections if part.kind is kinds.admonition]
    return [record.getMessage() for record in caplog.records] + unknown + notes


def test_each_docstring_of_the_pages_is_read(package: Any, caplog: pytest.LogCaptureFixture) -> None:
    n, wrong = 0, {}
    for each in (each for name in RENDERED for each in shown(package[name])):
        n, wrong[each.path] = n + 1, faults(each, caplog)
    assert n > 400 and not {path: found for path, found in wrong.items() if found}


def test_what_other_docstrings_document_exists(package: Any) -> None:
    """Where several parameters have one description, too: "width, height: of it"."""
    n, wrong = 0, []
    for each in defined(package):
        for part in each.docstring.parse("google", warnings=False):
            if part.kind is griffe.DocstringSectionKind.parameters:
                names = [name for item in part.value for name in item.name.split(", ")]
                known = getattr(each, "parameters", ())  # of a function or a class
                wrong += [f"{each.path}: {name}" for name in names if name not in known]
                n += len(names)
        if re.search(r"^ *-{4,}$", each.docstring.value, re.MULTILINE):
            wrong.append(each.path)
    assert n > 800 and not wrong


@pytest.mark.parametrize(
    ("of_class", "of_method"),
    [
        ("A.\n\nAttributes:\n    unknown: of it.", "f."),
        ("A.\n\nAttributes:\n    known, first: of it.", "f."),
        ("A.\n\nArgs:\n    unknown: of it.", "f."),
        ("A.", "f.\n\nArgs:\n    unknown: of it."),
        ("A.", "f.\n\nArgs:\n    first, more: of it."),
        ("A.", "f.\n\nArgs:\n    first\n        of it."),
        ("A.", "f.\n\nArgs:\n    first: goes\n      on."),
        ("A.", "f.\n\nRaises:\n    what others raise"),
        ("A.", "f.\n\nArguments of it:\n    first: of it."),
    ],
)
def test_a_fault_is_found(of_class: str, of_method: str, caplog: pytest.LogCaptureFixture) -> None:
    right = MODULE.format(
        "A.\n\nArgs:\n    first: of it.\n\nAttributes:\n    known: of it.", "f.\n\nArgs:\n    more: of it."
    )
    for text, is_right in ((right, True), (MODULE.format(of_class, of_method), False)):
        with griffe.temporary_visited_module(text) as module:
            found = [fault for name in ("A", "A.f") for fault in faults(module[name], caplog)]
        assert (found == []) is is_right


def test_each_public_name_is_on_one_page() -> None:
    names = {name for name in oxillama.__all__ if not (name.startswith("_") or name.isupper())} - ELSEWHERE
    paths = [path.rsplit(".")[-1] for path in RENDERED]
    errors = {name for name in vars(oxillama.errors) if name in names}
    assert names - errors <= set(paths) and not [path for path, n in Counter(RENDERED).items() if n > 1]


def test_twenty_names_come_first() -> None:
    listed = re.findall(r"^\| \[`(\w+)`\]\(\S+\) \| .+ \|$", PAGES[DOCS / "api.md"], re.MULTILINE)
    assert len(set(listed)) == len(listed) == 20
