"""Checks of libraries for agents and structured answers, with their classes for OpenAI servers.

An agent's loop does not end on the text of random weights, so the checks require calls and answers by
grammar.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from tools.server_clients.checks import CALLS, LONG, USER, Answer, Server, check, check_called, weather

# --- pydantic-ai --------------------------------------------------------------------------------------


def pydantic_agent(server: Server, kind: str = "OpenAIChatModel", **how: Any) -> Any:
    import pydantic_ai.models.openai as models
    from pydantic_ai import Agent
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="none")
    return Agent(getattr(models, kind)(server.model, provider=provider), **how)


@check("pydantic-ai-slim", "chat")
def _(server: Server) -> None:
    done = pydantic_agent(server, model_settings={"max_tokens": 8}).run_sync("hello")
    assert done.output and done.usage.output_tokens > 0


@check("pydantic-ai-slim", "stream")
def _(server: Server) -> None:
    async def main() -> str:
        settings = {"max_tokens": 8, "seed": 1}
        async with pydantic_agent(server, model_settings=settings).run_stream("hello") as stream:
            return "".join([part async for part in stream.stream_text(delta=True)])

    whole = pydantic_agent(server, model_settings={"max_tokens": 8, "seed": 1}).run_sync("hello").output
    assert asyncio.run(main()) == whole


@check("pydantic-ai-slim", "tools")
def _(server: Server) -> None:
    # the library requires a call, whose arguments are the answer
    assert isinstance(pydantic_agent(server, output_type=Answer).run_sync("hello").output, Answer)


@check("pydantic-ai-slim", "schema")
def _(server: Server) -> None:
    from pydantic_ai import NativeOutput

    agent = pydantic_agent(server, output_type=NativeOutput(Answer))
    assert isinstance(agent.run_sync("hello").output, Answer)


@check("pydantic-ai-slim", "responses")
def _(server: Server) -> None:
    kind = "OpenAIResponsesModel"
    done = pydantic_agent(server, kind, model_settings={"max_tokens": 16}).run_sync("hello")
    assert done.usage.output_tokens > 0
    assert isinstance(pydantic_agent(server, kind, output_type=Answer).run_sync("hello").output, Answer)


@check("pydantic-ai-slim", "leaving")
def _(server: Server) -> None:
    settings = {"max_tokens": LONG, "extra_body": {"ignore_eos": True}}
    agent = pydantic_agent(server, model_settings=settings)
    server.check_leaving(lambda: agent.run("hello"))


# --- openai-agents ------------------------------------------------------------------------------------


def openai_agent(server: Server, kind: str, settings: dict[str, Any], **how: Any) -> Any:
    import agents
    import openai

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    model = getattr(agents, kind)(model=server.model, openai_client=client)
    return agents.Agent(
        name="helper",
        instructions="Be brief.",
        model=model,
        model_settings=agents.ModelSettings(**settings),
        **how,
    )


AGENT_MODELS = ("OpenAIChatCompletionsModel", "OpenAIResponsesModel")


@check("openai-agents", "chat")
def _(server: Server) -> None:
    from agents import Runner

    for kind in AGENT_MODELS:
        done = Runner.run_sync(openai_agent(server, kind, {"max_tokens": 16}), "hello")
        assert done.raw_responses[0].usage.output_tokens > 0


@check("openai-agents", "stream")
def _(server: Server) -> None:
    from agents import Runner

    async def main(kind: str) -> None:
        # this client raises an error if the text of a response is cut
        settings = {"extra_body": {"guided_regex": "[a-z]{9}"}}
        done = Runner.run_streamed(openai_agent(server, kind, settings), "hello")
        text = ""
        async for event in done.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        assert text == done.final_output

    for kind in AGENT_MODELS:
        asyncio.run(main(kind))


@check("openai-agents", "tools")
def _(server: Server) -> None:
    from agents import Runner, function_tool

    how = {"tools": [function_tool(weather)], "tool_use_behavior": "stop_on_first_tool"}

    async def streamed(kind: str) -> None:
        done = Runner.run_streamed(openai_agent(server, kind, {"tool_choice": "required"}, **how), "hello")
        async for _ in done.stream_events():
            pass
        assert str(done.final_output).startswith("sunny")

    for kind in AGENT_MODELS:
        n_before = len(CALLS)
        done = Runner.run_sync(openai_agent(server, kind, {"tool_choice": "required"}, **how), "hello")
        assert str(done.final_output).startswith("sunny")
        asyncio.run(streamed(kind))
        check_called(n_before)


@check("openai-agents", "tool results")
def _(server: Server) -> None:
    """The body of the second turn has the call and its result."""
    from agents import Runner, function_tool

    for kind in AGENT_MODELS:
        settings = {"tool_choice": "required", "max_tokens": 300}
        agent = openai_agent(server, kind, settings, tools=[function_tool(weather)])
        done = Runner.run_sync(agent, "hello", max_turns=9)
        assert len(done.raw_responses) > 1


@check("openai-agents", "schema")
def _(server: Server) -> None:
    from agents import Runner

    for kind in AGENT_MODELS:
        done = Runner.run_sync(openai_agent(server, kind, {}, output_type=Answer), "hello")
        assert isinstance(done.final_output, Answer)


# --- instructor ---------------------------------------------------------------------------------------


@check("instructor", "schema")
def _(server: Server) -> None:
    import instructor
    import openai

    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    for mode in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "JSON", "RESPONSES_TOOLS"):
        made = instructor.from_openai(client, mode=getattr(instructor.Mode, mode))
        # the mode JSON alone sends no schema, and the library would ask again until the answer fits
        wanted = {"type": "json_object", "schema": Answer.model_json_schema()}
        schema = {"extra_body": {"response_format": wanted}} if mode == "JSON" else {}
        done = made.chat.completions.create(
            model=server.model, messages=USER, response_model=Answer, max_retries=0, **schema
        )
        assert isinstance(done, Answer), mode


@check("instructor", "stream")
def _(server: Server) -> None:
    import instructor
    import openai

    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    made = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    parts = list(
        made.chat.completions.create_partial(model=server.model, messages=USER, response_model=Answer)
    )
    assert isinstance(parts[-1].good, bool) and isinstance(parts[-1].level, int)


# --- dspy ---------------------------------------------------------------------------------------------


def dspy_model(server: Server, **options: Any) -> Any:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # instead of downloading a list of prices
    import dspy

    return dspy.LM(
        f"openai/{server.model}",
        api_base=f"{server.url}/v1",
        api_key="none",
        cache=False,
        num_retries=0,
        **options,
    )


@check("dspy", "chat")
def _(server: Server) -> None:
    assert len(dspy_model(server, max_tokens=8)("hello")) == 1
    assert len(dspy_model(server, max_tokens=8)(messages=USER, n=2)) == 2


@check("dspy", "schema")
def _(server: Server) -> None:
    # dspy's JSONAdapter sends a schema only for models of its catalog
    schema = {"name": "answer", "schema": Answer.model_json_schema(), "strict": True}
    model = dspy_model(server, response_format={"type": "json_schema", "json_schema": schema})
    Answer.model_validate_json(model("hello")[0])


@check("dspy", "responses")
def _(server: Server) -> None:
    assert dspy_model(server, model_type="responses", max_tokens=16)("hello")


# --- smolagents ---------------------------------------------------------------------------------------


def smol_model(server: Server, **options: Any) -> Any:
    from smolagents import OpenAIModel

    return OpenAIModel(model_id=server.model, api_base=f"{server.url}/v1", api_key="none", **options)


@check("smolagents", "chat")
def _(server: Server) -> None:
    done = smol_model(server, max_tokens=8)(
        [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    )
    assert done.token_usage.output_tokens > 0


@check("smolagents", "stream")
def _(server: Server) -> None:
    ask = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    model = smol_model(server, max_tokens=8, seed=1)
    parts = list(model.generate_stream(ask))
    assert "".join(part.content or "" for part in parts) == model(ask).content


@check("smolagents", "tools")
def _(server: Server) -> None:
    from smolagents import tool

    ask = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    done = smol_model(server).generate(ask, tools_to_call_from=[tool(weather)])
    assert done.tool_calls[0].function.name == "weather"


@check("smolagents", "schema")
def _(server: Server) -> None:
    ask = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    schema = {"name": "answer", "schema": Answer.model_json_schema(), "strict": True}
    wanted = {"type": "json_schema", "json_schema": schema}
    Answer.model_validate_json(smol_model(server).generate(ask, response_format=wanted).content)


@check("smolagents", "agent")
def _(server: Server) -> None:
    """Two steps: a call of a tool, its result, and the next call."""
    from smolagents import ToolCallingAgent, tool

    agent = ToolCallingAgent(
        tools=[tool(weather)], model=smol_model(server, max_tokens=200), max_steps=2, verbosity_level=0
    )
    agent.run("What is the weather in Paris?")
    assert len(agent.memory.steps) > 1


# --- crewai -------------------------------------------------------------------------------------------


def crew_model(server: Server, **options: Any) -> Any:
    os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}
    from crewai import LLM

    return LLM(model=f"openai/{server.model}", base_url=f"{server.url}/v1", api_key="none", **options)


@check("crewai", "chat")
def _(server: Server) -> None:
    assert crew_model(server, max_tokens=8).call("hello")
    assert crew_model(server, max_tokens=8).call(USER)


@check("crewai", "stream")
def _(server: Server) -> None:
    assert crew_model(server, max_tokens=8, stream=True).call(USER)


@check("crewai", "schema")
def _(server: Server) -> None:
    found = crew_model(server, response_format=Answer).call(USER)
    assert isinstance(found, Answer) or Answer.model_validate_json(found)


@check("crewai", "crew")
def _(server: Server) -> None:
    model = crew_model(server, max_tokens=16)
    from crewai import Agent, Crew, Task

    agent = Agent(role="helper", goal="help", backstory="a helper", llm=model, max_iter=2)
    task = Task(description="Say hello.", expected_output="hello", agent=agent)
    assert Crew(agents=[agent], tasks=[task], verbose=False).kickoff().raw is not None


# --- inspect-ai ---------------------------------------------------------------------------------------


def inspect_model(server: Server, **how: Any) -> Any:
    from inspect_ai.model import GenerateConfig, get_model

    config = GenerateConfig(**{"max_retries": 0, "max_connections": 4, **how})
    os.environ |= {"HERE_API_KEY": "none", "HERE_BASE_URL": f"{server.url}/v1"}
    return get_model(f"openai-api/here/{server.model}", config=config)


@check("inspect-ai", "chat")
def _(server: Server) -> None:
    done = asyncio.run(inspect_model(server, max_tokens=8, seed=1).generate("hello"))
    assert done.usage.output_tokens > 0


@check("inspect-ai", "log-probabilities")
def _(server: Server) -> None:
    model = inspect_model(server, max_tokens=4, logprobs=True, top_logprobs=2)
    done = asyncio.run(model.generate("hello"))
    assert done.choices[0].logprobs.content


@check("inspect-ai", "tools")
def _(server: Server) -> None:
    from inspect_ai.tool import ToolFunction, ToolInfo, ToolParams
    from inspect_ai.util import JSONSchema

    params = ToolParams(
        properties={
            "city": JSONSchema(type="string", description="a city"),
            "days": JSONSchema(type="integer", description="days"),
        },
        required=["city", "days"],
    )
    tool = ToolInfo(name="weather", description="Tells the weather.", parameters=params)
    asked = inspect_model(server).generate("hello", tools=[tool], tool_choice=ToolFunction("weather"))
    (call, *_) = asyncio.run(asked).message.tool_calls
    assert call.function == "weather" and call.parse_error is None


@check("inspect-ai", "schema")
def _(server: Server) -> None:
    from inspect_ai.model import ResponseSchema
    from inspect_ai.util import json_schema

    schema = ResponseSchema(name="answer", json_schema=json_schema(Answer))
    done = asyncio.run(inspect_model(server, response_schema=schema).generate("hello"))
    Answer.model_validate_json(done.completion)


@check("inspect-ai", "eval")
def _(server: Server) -> None:
    import tempfile

    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes

    samples = [Sample(input=f"hello {i}", target="x") for i in range(4)]
    model = inspect_model(server, max_tokens=8)
    with tempfile.TemporaryDirectory() as folder:
        (log,) = eval(Task(dataset=samples, scorer=includes()), model=model, log_dir=folder, display="none")
    assert log.status == "success", log.error
