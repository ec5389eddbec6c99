"""Names that are going still work, and say what they are called now."""

from __future__ import annotations

import asyncio

import pytest

import oxillama
from oxillama import AsyncEngine, demo
from oxillama.compat.engine import InferenceEngine


@pytest.mark.parametrize(("old", "new"), [("Busy", "QueueFull"), ("SsmStatePool", "RecurrentStatePool")])
def test_renamed_classes(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"oxillama.{old} is called {new} now"):
        assert getattr(oxillama, old) is getattr(oxillama, new)
    assert old not in oxillama.__all__


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
