"""JSON-Schema-Test-Suite, draft 2020-12, where it lies beside the repository."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from oxillama.errors import GrammarError
from oxillama.text.grammar import Grammar, JsonSchemaCompiler
from tests.support.paths import SHARED

SUITE = SHARED / "suites" / "json-schema-test-suite"
CORE = SUITE / "tests/draft2020-12"

pytestmark = pytest.mark.skipif(not CORE.is_dir(), reason="the suite is not beside the repository")

# What no grammar here can say: see docs/json-schema.md.
NOT_ENFORCED = "cannot be enforced|is neither in the schema nor in the registry"
# Valid strings of a format that are not in the regular part of it that is written.
REJECTED = {"hostname.json": 15, "date-time.json": 1, "time.json": 4}


def remotes() -> dict[str, object]:
    found = {}
    for path in (SUITE / "remotes").rglob("*.json"):
        found[f"http://localhost:1234/{path.relative_to(SUITE / 'remotes')}"] = json.loads(path.read_text())
    return found


def cases(paths: list[Path]) -> Iterator[tuple[Path, dict[str, object]]]:
    for path in paths:
        for group in json.loads(path.read_text()):
            yield path, group


def run(paths: list[Path], **options: object) -> tuple[Counter[str], Counter[str]]:
    """How many cases came out how, and how many valid ones of each file were rejected."""
    outcome: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    registry = remotes()
    for path, group in cases(paths):
        grammar: Grammar | None = None
        try:
            compiler = JsonSchemaCompiler(registry=registry, any_order=True, **options)  # type: ignore[arg-type]
            grammar = Grammar.from_json_schema(group["schema"], compiler=compiler)
        except GrammarError as error:
            if "no value meets" not in str(error):
                assert re.search(NOT_ENFORCED, str(error)), (path.name, group["description"], error)
                outcome["refused"] += len(group["tests"])
                continue
        both = [] if grammar is None else [grammar, Grammar.from_rules(grammar.rules)]  # on demand, at once
        for case in group["tests"]:
            texts = (
                json.dumps(case["data"]),
                json.dumps(case["data"], separators=(",", ":"), ensure_ascii=False),
            )
            accepted = {one.matches(text) for one in both for text in texts} or {False}
            assert len(accepted) == 1, (path.name, group["description"], case)
            if accepted == {case["valid"]}:
                outcome["passed"] += 1
            else:
                assert case["valid"], (path.name, group["description"], case)
                outcome["rejected"] += 1
                rejected[path.name] += 1
    return outcome, rejected


def test_the_core_is_enforced_to_the_letter() -> None:
    outcome, rejected = run(sorted(CORE.glob("*.json")))
    assert not rejected
    assert outcome["passed"] >= 1_298 and outcome["refused"] <= 1


def test_what_is_not_of_a_format_is_none_of_its_strings() -> None:
    compiler = JsonSchemaCompiler(formats=True)
    n = 0
    for _, group in cases(sorted((CORE / "optional/format").glob("*.json"))):
        valid = [case["data"] for case in group["tests"] if case["valid"] and isinstance(case["data"], str)]
        try:
            grammar = Grammar.from_json_schema({"not": group["schema"]}, compiler=compiler)
        except GrammarError as error:
            assert re.search(f"{NOT_ENFORCED}|no value meets", str(error))
            continue
        assert not [text for text in valid if grammar.matches(json.dumps(text))], group["schema"]
        n += len(valid)
    assert n > 100


def test_formats_are_enforced() -> None:
    outcome, rejected = run(sorted((CORE / "optional/format").glob("*.json")), formats=True)
    assert all(count <= REJECTED.get(name, 0) for name, count in rejected.items()), rejected
    assert outcome["passed"] >= 634


def test_the_optional_parts() -> None:
    outcome, rejected = run(sorted((CORE / "optional").glob("*.json")))
    assert set(rejected) <= {"float-overflow.json"}
    assert outcome["passed"] >= 161
