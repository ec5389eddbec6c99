"""Whether a model reasons before it answers: how a client's wish reaches the chat template."""

from __future__ import annotations

from typing import Any

from oxillama.conversations.prompt import template_of
from oxillama.engine.engine import InferenceEngine
from oxillama.server.errors import ApiError
from oxillama.toolcalls.formats import grammar_of_template

SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates switch reasoning on and off."""

BUDGET = "thinking_budget"
"""The variable by which some templates name a number of tokens for it; 0 for none."""

EFFORT = "reasoning_effort"
"""The variable by which templates say how much of it there is."""


def thinking_variables(
    engine: InferenceEngine, has_tools: bool, wanted: bool, name: str | None, budget: int | None = None
) -> dict[str, Any]:
    """Variables of the template that switch reasoning on or off; {} if it has none.

    Without a switch a model reasons, or does not, as it was trained.

    Parameters
    ----------
    name : of the field that asks for it; None where a template without a switch will do.
    budget : tokens that it may take, for templates that tell the model so; None for any number.

    Raises
    ------
    ApiError : a field asks for no reasoning, and the template has reasoning without a switch.
    ChatTemplateError : there is no template.
    """
    template = template_of(engine.tokenizer, has_tools)
    switch = next((variable for variable in SWITCHES if variable in template.variables), None)
    variables: dict[str, Any] = {} if switch is None else {switch: wanted}
    if BUDGET in template.variables and (budget is not None or not wanted):
        variables[BUDGET] = budget if wanted else 0
    if variables or wanted or name is None:
        return variables
    if grammar_of_template(template.source).reasoning is not None:
        message = f"{name}: expected a chat template that switches reasoning off, this one does not"
        raise ApiError(400, message, param=name, code="unsupported_value")
    return {}


def effort_variables(engine: InferenceEngine, has_tools: bool, effort: str, name: str) -> dict[str, Any]:
    """Variables of the template for an effort of reasoning: "none" is none at all.

    Raises as `thinking_variables`.
    """
    variables = thinking_variables(engine, has_tools, effort != "none", name)
    return variables if effort == "none" else {**variables, EFFORT: effort}
