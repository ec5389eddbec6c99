"""Stacks of adapters: order, scales, and where an activated one begins."""

from __future__ import annotations

import pytest

from oxillama import ConfigError, LoadedLora, LoraStack, demo
from oxillama.models.adapters.stack import invocation_start


@pytest.mark.parametrize(
    ("invocation", "tokens", "start"),
    [
        ([1, 2], [1, 2, 3, 1, 2, 4], 3),  # the last of several
        ([1, 2], [5, 1, 2], 1),
        ([1, 1], [1, 1, 1], 1),
        ([7], [7], 0),
        ([1, 2], [2, 1], None),
        ([1, 2], [1], None),
    ],
)
def test_an_invocation_begins_where_it_last_occurs(
    invocation: list[int], tokens: list[int], start: int | None
) -> None:
    assert invocation_start(invocation, tokens) == start


def test_a_stack_keeps_its_order() -> None:
    pirate, stack = LoadedLora.load(demo.PIRATE), LoraStack()
    stack.push(pirate)
    stack.push(pirate, -0.5)
    assert stack.items == ((pirate, 1.0), (pirate, -0.5))
    assert (stack.scales, len(stack), list(stack)) == ([1.0, -0.5], 2, list(stack.items))
    assert stack.pop() is pirate
    assert stack.scales == [1.0]
    stack.clear()
    assert stack.pop() is None
    with pytest.raises(ConfigError, match="scale: expected"):
        stack.push(pirate, float("inf"))
    with pytest.raises(ConfigError, match="lora: expected"):
        stack.push("pirate.gguf")  # type: ignore[arg-type]
