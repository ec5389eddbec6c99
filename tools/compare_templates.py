"""Renders chat templates with this library and with `transformers`, and tries their tool formats.

    python tools/compare_templates.py FOLDER [--calls]

FOLDER holds published templates, *.jinja, which are not part of this repository; `transformers` must be
installed. Each template is rendered with the conversations of tests/support/conversations.py; both renderings
must be equal, or both must fail. With ``--calls`` three more things are checked: the format that is chosen
for a template parses the calls that the template writes in an assistant's turn; the format's grammar accepts
the turn; a tiny random model with the template and ``tool_choice="required"`` makes valid calls.

Prints a line for each template, its differences, and the sums. The exit code is 1 if a difference is not in
`KNOWN`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import jsonschema

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from oxillama import InferenceEngine
from oxillama.errors import OxiLlamaError
from oxillama.text.chat.fitting import tool_variables
from oxillama.text.chat.template import ChatTemplate
from oxillama.text.toolcalls import grammar_of_template
from tests.support.conversations import ASK, CONVERSATIONS, TOOLS
from tests.support.tiny_file import write_tiny_model
from tests.support.written_calls import read_calls

KNOWN = (
    (
        "llama-cpp-deepseek-r1",
        "only there it fails: TypeError('Object of type generator",
        "lists of filters are lists here",
    ),
    ("Kimi-K2-", "SecurityError: access to attribute 'append'", "no template changes a list, there as here"),
    ("ByteDance-Seed-OSS", "'units': \"[", "the template writes lists as Python does"),
    ("openbmb-MiniCPM5-1B", "'units': \"[", "the template writes lists as Python does"),
    (
        "LFM2.5-8B-A1B",
        "its grammar has not",
        "the template writes texts in single quotes, the grammar in double",
    ),
    ("NVIDIA-Nemotron-Nano-v2", "<SPECIAL_12>\\n<SPECIAL_11>Assistant", "the template makes two turns of it"),
    ("llama-cpp-deepseek-r1", "of 'I look.<", "the template leaves calls behind text out"),
    ("upstage-Solar-Open-100B", "begin|>call0000", "ids of the model itself have ten characters"),
)
"""Known differences: a part of the template's name, a part of the printed line, and the reason."""

ENOUGH = 3
"""Calls of the random model that are checked for each template."""


def ours(source: str, given: dict[str, Any]) -> str | None:
    """The text that this library renders; None if the template fails."""
    try:
        return ChatTemplate(source, "<s>", "</s>").render(**given)
    except OxiLlamaError as error:
        ours.error = str(error)  # type: ignore[attr-defined]
        return None


def theirs(source: str, given: dict[str, Any]) -> str | None:
    """The text that `transformers` renders; None if the template fails."""
    from transformers.utils.chat_template_utils import render_jinja_template

    plain = {"add_generation_prompt": True, **given}
    try:
        texts, _ = render_jinja_template(
            [plain.pop("messages")], chat_template=source, bos_token="<s>", eos_token="</s>", **plain
        )
    except Exception as error:
        theirs.error = repr(error)  # type: ignore[attr-defined]
        return None
    return str(texts[0])


def compare(name: str, source: str) -> tuple[int, int, list[str]]:
    """The number of equal renderings, how many of these are failures of both, and the differences."""
    same = both_fail = 0
    differing = []
    for title, given in CONVERSATIONS.items():
        mine, other = ours(source, given), theirs(source, given)
        if mine == other:
            same += 1
            both_fail += mine is None
            continue
        if mine is None:
            shown = f"only here it fails: {ours.error}"  # type: ignore[attr-defined]
        elif other is None:
            shown = f"only there it fails: {theirs.error}"  # type: ignore[attr-defined]
        else:
            at = next(i for i, pair in enumerate(zip(mine + "\0", other + "\0")) if pair[0] != pair[1])
            shown = f"at {at}: {mine[at - 20 : at + 40]!r} here, {other[at - 20 : at + 40]!r} there"
        differing.append(f"{name}: {title}: {shown}")
    return same, both_fail, differing


def sweep(name: str, source: str, n: int = 30) -> tuple[int, list[str]]:
    """The number of calls of a random model that has to call a tool, and their faults."""
    made, wrong = 0, []
    form = replace(grammar_of_template(source), reasoning=None)  # a random model does not end its reasoning
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "m.gguf"
        model = write_tiny_model(file, chat_template=source, n_layers=1, context_length=16384)
        with InferenceEngine(model) as engine:
            for seed in range(n):
                if made >= ENOUGH:
                    break
                choice = ("required", "clock", "weather")[seed % 3]
                generation = engine.stream_chat(
                    [ASK],
                    tools=TOOLS,
                    tool_choice=choice,
                    message_format=form,
                    seed=seed,
                    max_tokens=400,
                    temperature=1.5,
                    top_k=0,
                )
                found = generation.result()
                for call in found.tool_calls:
                    jsonschema.validate(call.args, schemas[call.name])
                    made += 1
                whole = found.finish_reason != "length"
                if whole and (found.failed_calls or found.finish_reason != "tool_calls"):
                    wrong.append(f"{name}: seed {seed}: {found.finish_reason} {found.failed_calls}")
    return made, wrong if made else [*wrong, f"{name}: no calls"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--calls", action="store_true", help="try the tool formats, too")
    parser.add_argument("--only", default="", help="templates whose names have this text")
    options = parser.parse_args()
    total = agree = n_unknown = 0
    print(f"templates of {options.folder.name}, {datetime.now():%Y-%m-%d}")
    for path in sorted(options.folder.glob("*.jinja")):
        if options.only not in path.name:
            continue
        source = path.read_text(encoding="utf-8")
        same, both_fail, lines = compare(path.stem, source)
        total, agree = total + len(CONVERSATIONS), agree + same
        form = grammar_of_template(source)
        row = f"{path.stem:55} {same:3} of {len(CONVERSATIONS)} ({both_fail} fail in both)  {form.name}"
        if options.calls and form.has_calls:
            try:
                tool_variables(ChatTemplate(source), TOOLS)
            except OxiLlamaError:
                row += ", tells of no tools"
            else:
                lines += read_calls(path.stem, source, form)
                made, wrong = sweep(path.stem, source)
                lines += wrong
                row += f", {made} calls"
        print(row, flush=True)
        for line in lines:
            why = next((why for known, part, why in KNOWN if known in line and part in line), "")
            n_unknown += not why
            print(f"    {line[:500]} ({why or 'NOT KNOWN'})")
    print(f"{agree} of {total} renderings agree; {n_unknown} faults are not known")
    return int(n_unknown > 0)


if __name__ == "__main__":
    sys.exit(main())
