"""The examples run, and do what they say."""

from __future__ import annotations

import runpy

import pytest

from oxillama import InferenceEngine, demo
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="only the package was unpacked")
def test_extract() -> None:
    pytest.importorskip("pydantic", reason="comes with the extra test")
    example = runpy.run_path(str(EXAMPLES / "extract.py"))
    found = example["extract"](InferenceEngine.from_gguf(demo.STORY), example["PORTRAITS"])
    assert [(p.name, p.kind, p.age, p.friend, p.wish) for p in found] == [
        ("Mia", "dragon", 7, "Tom", "a red kite"),
        ("Kai", "fox", 5, "Ada", "a new drum"),
    ]
