"""Packages that are written for llama-cpp-python run over ours, in a process of their own.

Each script is as the package's documentation has it, on the story model.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

BEGIN = """
import warnings
warnings.simplefilter("ignore")
from oxillama.compat.llama_cpp import install
install()
from oxillama import demo
PATH, PROMPT = str(demo.STORY), demo.PROMPTS[0]
"""

SCRIPTS = {
    "langchain_community.llms": """
from langchain_community.llms import LlamaCpp
llm = LlamaCpp(model_path=PATH, temperature=0, max_tokens=6, n_ctx=256, verbose=False)
assert llm.invoke(PROMPT) == "".join(llm.stream(PROMPT)) == " Liam. Li"
assert llm.get_num_tokens("hi there") == 4
""",
    "langchain_community.chat_models": """
from langchain_community.chat_models import ChatLlamaCpp
from langchain_core.tools import tool
from pydantic import BaseModel

class Fox(BaseModel):
    "A fox."
    is_old: bool

@tool
def count(n: bool) -> int:
    "Counts."
    return 1

llm = ChatLlamaCpp(model_path=PATH, temperature=0, max_tokens=40, n_ctx=256, verbose=False)
whole = llm.invoke("Help for a Goat").content
assert whole.startswith("This is the story of")
assert "".join(chunk.content for chunk in llm.stream("Help for a Goat")) == whole
assert isinstance(llm.with_structured_output(Fox).invoke("Help for a Goat"), Fox)
one = {"type": "function", "function": {"name": "count"}}
(call,) = llm.bind_tools([count], tool_choice=one).invoke("Help for a Goat").tool_calls
assert call["name"] == "count" and set(call["args"]) == {"n"}
""",
    "langchain_community.embeddings": """
from langchain_community.embeddings import LlamaCppEmbeddings
embeddings = LlamaCppEmbeddings(model_path=PATH, verbose=False)
first, *others = embeddings.embed_documents(["a fox", "b"])
assert len(first) == len(embeddings.embed_query("a fox")) == 256
""",
    "llama_index.llms.llama_cpp": """
from llama_index.core.llms import ChatMessage
from llama_index.llms.llama_cpp import LlamaCPP
llm = LlamaCPP(model_path=PATH, temperature=0.0, max_new_tokens=6, context_window=256,
               model_kwargs={"n_gpu_layers": 0}, verbose=False)
assert llm.complete(PROMPT, formatted=True).text == " Liam. Li"
assert "".join(part.delta for part in llm.stream_complete(PROMPT, formatted=True)) == " Liam. Li"
assert llm.metadata.context_window == 256
assert llm.chat([ChatMessage(role="user", content="Hi")]).message.content
""",
    "instructor": """
import instructor
import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from pydantic import BaseModel

class Fox(BaseModel):
    is_old: bool

llm = llama_cpp.Llama(model_path=PATH, n_gpu_layers=-1, chat_format="chatml", n_ctx=512, logits_all=True,
                      draft_model=LlamaPromptLookupDecoding(num_pred_tokens=2), verbose=False)
create = instructor.patch(create=llm.create_chat_completion_openai_v1, mode=instructor.Mode.JSON_SCHEMA)
messages = [{"role": "user", "content": "Extract `an old fox`"}]
assert isinstance(create(messages=messages, response_model=Fox), Fox)
""",
    "outlines": """
from typing import Literal
import llama_cpp
import outlines
llm = llama_cpp.Llama(PATH, n_ctx=256, verbose=False)
model = outlines.from_llamacpp(llm)
assert model(PROMPT, max_tokens=6, temperature=0.0) == " Liam. Li"
assert model(PROMPT, Literal["fox", "goat"], max_tokens=10) in ("fox", "goat")
assert len("".join(model.stream(PROMPT, outlines.types.Regex("[ab]{3}"), max_tokens=9))) == 3
""",
    "lmformatenforcer": """
import re
import llama_cpp
from llama_cpp import LogitsProcessorList
from lmformatenforcer import RegexParser
from lmformatenforcer.integrations.llamacpp import (
    build_llamacpp_logits_processor, build_token_enforcer_tokenizer_data
)
llm = llama_cpp.Llama(PATH, n_ctx=256, verbose=False)
data = build_token_enforcer_tokenizer_data(llm)
processors = LogitsProcessorList([build_llamacpp_logits_processor(data, RegexParser(r" (fox|goat)s"))])
text = llm(PROMPT, logits_processor=processors, max_tokens=20)["choices"][0]["text"]
assert re.fullmatch(" (fox|goat)s", text), text
""",
}
"""By the module that a script needs."""

ALSO = {"outlines": ("numba",), "instructor": ("openai",)}
"""What a package does not bring along."""


def is_installed(name: str) -> bool:
    """Whether there is a module of a name; the packages around it are imported, it is not."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_published_script_runs(name: str) -> None:
    for needed in (name, *ALSO.get(name, ())):
        if not is_installed(needed):
            pytest.skip(f"{needed} is not installed")
    script = [sys.executable, "-c", BEGIN + SCRIPTS[name]]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
