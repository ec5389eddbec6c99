"""Names that are going still work, and say what they are called now."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

import oxillama
from oxillama import AsyncEngine, demo
from oxillama.compat.engine import InferenceEngine


@pytest.mark.parametrize(("old", "new"), [("Busy", "QueueFull"), ("SsmStatePool", "RecurrentStatePool")])
def test_renamed_classes(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"oxillama.{old} is called {new} now"):
        assert getattr(oxillama, old) is getattr(oxillama, new)
    assert old not in oxillama.__all__


def test_moved_modules() -> None:
    program = """
import importlib, warnings
import oxillama, oxillama.demo
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from oxillama.chat.template import ChatTemplate
    from oxillama.hub.names import model_files
    from oxillama.batch.job import Job
    from oxillama.media import encode_media
assert {str(each.message) for each in caught} == {
    f"oxillama.{old} is called oxillama.{new} now"
    for old, new in (
        ("chat", "text.chat"),
        ("hub", "gguf.hub"),
        ("batch", "apps.batch"),
        ("media", "engine.features.media"),
    )
}
from oxillama.text.chat import template
assert ChatTemplate is template.ChatTemplate and template.__spec__.name == "oxillama.text.chat.template"
assert oxillama.demo is importlib.import_module("oxillama.apps.demo")
for name in ("oxillama.absent", "oxillama.chat.absent", "oxillama.base.absent"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name == name, (error.name, name)
    else:
        raise AssertionError(name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_renamed_methods() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY)
    with pytest.warns(DeprecationWarning, match="stream_batch"):
        ((text, logprobs),) = engine.generate_batch_with_logprobs(["Once"], temperature=0, max_tokens=3)
    assert text == engine.generate("Once", temperature=0, max_tokens=3)
    assert len(logprobs) == 3

    async def main() -> str:
        async with AsyncEngine(engine) as many:
            with pytest.warns(DeprecationWarning, match="is called stream now"):
                generation = many.submit("Once", temperature=0, max_tokens=3)
            return (await generation).text

    assert asyncio.run(main()) == text
