"""Records llama-cpp-python's answers to the calls of tests/support/llama_cpp_calls.py, for its tests.

Needs the package llama-cpp-python (0.3.36 was used):

    python tools/record_llama_cpp.py

writes tests/data/llama_cpp_python.json: "answers" and "shapes" by the name of a call, "embeddings" by pooling
and call, "prompts" of conversations by chat format, and "signatures" of methods, with their defaults.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.support import llama_cpp_calls as calls
from tests.support.llama_cpp_calls import FEW, STORY, plain

METHODS = (
    *("__init__", "__call__", "create_completion", "create_chat_completion", "create_embedding", "embed"),
    *("tokenize", "detokenize", "eval", "sample", "generate", "reset", "save_state", "load_state"),
    *("set_cache", "set_seed", "from_pretrained"),
)


def signatures(package: Any) -> dict[str, Any]:
    """The signatures of `METHODS` of `Llama`."""
    return {name: calls.signature(getattr(package.Llama, name)) for name in METHODS}


def prompts(handlers: Any) -> dict[str, dict[str, Any]]:
    """The prompt and the stop strings that each chat format makes of each conversation."""
    found: dict[str, dict[str, Any]] = {}
    for name, handler in handlers._chat_handlers.items():
        if name in calls.NOT_COMPARED:
            continue
        cells = [cell.cell_contents for cell in handler.__closure__ or ()]
        for formatter in [cell for cell in cells if callable(cell)]:
            made = {key: formatter(messages=said) for key, said in calls.CONVERSATIONS.items()}
            found[name] = {key: [each.prompt, each.stop] for key, each in made.items()}
    return found


def main() -> None:
    import llama_cpp
    from llama_cpp.llama_chat_format import LlamaChatCompletionHandlerRegistry

    llm = llama_cpp.Llama(STORY, logits_all=True, verbose=False, **FEW)
    vectors = {str(number): {} for number in (-1, 1)}
    for number, into in vectors.items():
        model = llama_cpp.Llama(STORY, embedding=True, pooling_type=int(number), verbose=False, **FEW)
        into |= {name: plain(call(model)) for name, call in calls.EMBEDDINGS.items()}
    found = {
        "answers": {name: plain(call(fresh(llm))) for name, call in calls.CALLS.items()},
        "shapes": {name: calls.shape(plain(call(fresh(llm)))) for name, call in calls.SHAPES.items()},
        "embeddings": vectors,
        "prompts": prompts(LlamaChatCompletionHandlerRegistry()),
        "signatures": signatures(llama_cpp),
    }
    calls.RECORDS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def fresh(llm: Any) -> Any:
    """Clears the model's state; returns the model."""
    llm.reset()
    return llm


if __name__ == "__main__":
    main()
