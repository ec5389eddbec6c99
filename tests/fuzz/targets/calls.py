"""What callers give: options, prompts and messages, command lines."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import re
import shutil
import sys
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from oxillama import EngineConfig, GenerationOptions, OxiLlamaError, SamplerConfig, SchedulerConfig
from oxillama.apps.cli import build_parser, main
from oxillama.apps.cli.options import integer, number
from oxillama.base.config.sampler import ORDER
from oxillama.compat.engine import InferenceEngine
from tests.fuzz.harness import Target
from tests.fuzz.mutate import FLOATS, INTEGERS, STRANGE, SkipInput, built, hostile, mutated, words
from tests.fuzz.targets.containers import model_file
from tests.fuzz.targets.texts import MESSAGES
from tests.support.tiny_file import write_tiny_model

CLASSES: dict[str, Any] = {
    cls.__name__: cls for cls in (SamplerConfig, GenerationOptions, EngineConfig, SchedulerConfig)
}
CALLERS = (OxiLlamaError, TypeError)
"""A caller's wrong type may be a TypeError, as Python has it."""


@functools.cache
def model_path() -> Path:
    return write_tiny_model(Path("tiny.gguf").absolute(), context_length=64, n_layers=1)


@functools.cache
def encoder_data() -> bytes:
    return model_file({"base": "bert", "changes": []})


@functools.cache
def engine() -> InferenceEngine:
    return InferenceEngine(EngineConfig(model_path=model_path(), num_threads=1))


# --- options ----------------------------------------------------------------------------------------

OPTION_VALUES: list[Any] = [
    *INTEGERS, *FLOATS, 5, 0.9, 2.0, True, False, None, "", "f16", "q8_0", "bf16", "Q4_K", "q8_0", "int8",
    "f32", *ORDER, list(ORDER), list(ORDER)[::-1], ["top_k"], {"@tuple": ["temperature"]}, ["\n", ""],
    [["a"]], {"@tuple": [{"@tuple": [1, 2]}, "x"]}, [1, 2], [1e9], {"@tuple": [1, 300, 2]}, {"1": -5.0},
    "root ::= [a-z]+", "[0-9]+", {"type": "boolean"}, True, ["yes", "no"], [""], ["\ud800"], *STRANGE,
]  # fmt: skip


class OptionsTarget(Target):
    name = "options"
    allowed = CALLERS
    per_run = 300

    def seeds(self) -> list[Any]:
        return [{"class": name, "fields": {}} for name in CLASSES] + [
            {"class": "SamplerConfig", "fields": {"mirostat": 2, "temperature": 1.0}},
            {
                "class": "SamplerConfig",
                "fields": {"dry_multiplier": 0.5, "xtc_probability": 0.5, "typical_p": 0.5},
            },
            {
                "class": "SamplerConfig",
                "fields": {"regex": "[0-9]+", "top_n_sigma": 1.0, "dynatemp_range": 0.5},
            },
            {
                "class": "SamplerConfig",
                "fields": {"allowed_tokens": [5, 6, 7], "min_tokens": 2, "ignore_eos": True},
            },
            {"class": "GenerationOptions", "fields": {"stop": ["a"], "top_logprobs": 3, "keep_logits": True}},
            {"class": "EngineConfig", "fields": {"quantize": "Q8_0", "kv_type": "f32", "page_size": 4}},
        ]

    def mutate(self, value: Any, rng: Random) -> Any:
        names = [field.name for field in fields(CLASSES[value["class"]])]
        chosen = dict(value["fields"])
        for _ in range(rng.choice([1, 1, 2, 3, 5])):
            name = rng.choice(names)
            old = getattr(CLASSES[value["class"]](), name)
            plain = old if isinstance(old, (int, float, str)) else None
            chosen[name] = (
                rng.choice(OPTION_VALUES) if rng.random() < 0.5 else hostile(rng, plain, strange=True)
            )
        return {"class": value["class"], "fields": chosen}

    def run(self, value: Any) -> None:
        chosen = built(value["fields"])
        if isinstance(bias := chosen.get("logit_bias"), dict):
            chosen["logit_bias"] = {int(k) if k.lstrip("-").isdigit() else k: v for k, v in bias.items()}
        cls = CLASSES.get(value["class"])
        if cls is None or "model_path" in chosen:
            raise SkipInput
        made = cls(**chosen)
        repr(made)
        if cls is SamplerConfig:
            engine().generate([1, 2, 3], sampler=made, max_tokens=4)
            engine().generate_batch([[1, 2, 3], [4, 5]], sampler=made, max_tokens=2)
        elif cls is GenerationOptions:
            most = None if made.max_tokens is None else min(made.max_tokens, 4)
            engine().stream([1, 2, 3], made, max_tokens=most).result()
        elif cls is SchedulerConfig:
            with InferenceEngine(
                EngineConfig(model_path=model_path(), num_threads=1, scheduler=made)
            ) as other:
                other.generate_batch([[1, 2], [3, 4, 5]], max_tokens=2)
        else:
            if (made.num_threads or 0) > 8:
                raise SkipInput
            with InferenceEngine(made) as other:
                other.load_model(model_path())
                other.generate([1, 2, 3] * 7, max_tokens=2)
                other.embed([1, 2, 3])
                other.check_integrity()


# --- prompts ----------------------------------------------------------------------------------------

METHODS = words(
    "generate embed embed_batch tokenize detokenize decode_token logits hidden_states chat generate_batch "
    "stream_batch rerank prime_with_prefix session is_eos generate_with_logits encode decode token_bytes"
)
PROMPTS: list[Any] = [
    "the fox", [1, 2, 3], {"@array": ["int64", [1, 2, 3]]}, {"@tuple": [4, 5]}, MESSAGES[:2], ["the", "fox"],
    [[1, 2], "a"], 7, {"@array": ["float32", [1.0, 2.0]]}, {"@array": ["uint8", [1, 2]]},
    {"@repeat": ["the ", 100]}, [300], [-1], [1.0], ["1"], [True], {"@array": ["int64", [[1, 2]]]},
    {"@bytes": "616263"}, None, "\ud800", {"a": 1}, [None], [2**70], "<|im_end|>",
]  # fmt: skip


class PromptTarget(Target):
    name = "prompt"
    allowed = CALLERS
    per_run = 300

    def seeds(self) -> list[Any]:
        return [{"method": method, "prompt": prompt} for method in METHODS for prompt in PROMPTS[:7]]

    def mutate(self, value: Any, rng: Random) -> Any:
        new = mutated(
            value,
            rng,
            keys=("role", "content", "type", "text"),
            values=PROMPTS,
            fixed=("method",),
            strange=True,
        )
        new["method"] = rng.choice(METHODS) if rng.random() < 0.3 else value["method"]
        new["options"] = rng.choice(
            [{}, {}, {"max_tokens": 0}, {"add_special": False}, {"pooling": "x"}, {"normalize": True}]
        )
        return new

    def run(self, value: Any) -> None:
        if "prompt" not in value:
            raise SkipInput
        method, prompt, options = value["method"], built(value["prompt"]), dict(value.get("options", {}))
        own = engine()
        if method in ("generate", "chat", "generate_batch", "stream_batch", "generate_with_logits"):
            options = {"max_tokens": options.get("max_tokens", 2)}
        elif method.startswith("embed"):
            options = {k: v for k, v in options.items() if k in ("pooling", "normalize")}
        else:
            options = {}
        if method == "session":
            with own.session() as session:
                session.prefill(prompt)
                session.forward(prompt[0])
                session.rewind(1)
                session.generate(prompt, max_tokens=1)
        elif method == "rerank":
            own.rerank(prompt, prompt)
        elif method == "stream_batch":
            for generation in own.stream_batch(prompt, **options):
                generation.result()
        elif method in ("encode", "decode", "token_bytes"):
            getattr(own.tokenizer, method)(prompt)
        else:
            found = getattr(own, method)(prompt, **options)
            if method == "tokenize":
                assert all(0 <= id < own.tokenizer.n_vocab for id in found)
            elif method in ("embed", "embed_batch"):
                assert np.isfinite(found).all()
        own.check_integrity()


# --- command lines ----------------------------------------------------------------------------------

FILES = (
    "tiny.gguf", "small.gguf", "bert.gguf", "text.txt", "none.gguf", "broken.gguf", "folder", "empty",
    "schema.json", "words.gguf",
)  # fmt: skip
ARGUMENTS = words(
    "run chat info tokenize quantize imatrix convert doctor -p -f --prompt --file -n -t -c -s -q -v --json "
    "--tensors --decode --pieces --no-special --parse-special --system --temp --top-k --top-p --min-p --seed "
    "--max-tokens --stop --timeout --kv-type --page-size --quantize --compute --tokenizer --grammar "
    "--json-schema --regex --choice --samplers --logit-bias --banned-tokens --mirostat --repeat-penalty "
    "--dry-multiplier --greedy --ignore-eos --progress --no-progress --imatrix --pure --dry-run --keep-split "
    "--type --version --help --chunks --chunk-size --process-output -o out.gguf --allow-requantize "
    "--output-tensor Q4_K_M Q8_0 F16 IQ2_XXS q4_0 0 1 2 3 -1 4 99999999999999999999 nan inf 1e999 0.5 f16 "
    "f32 bf16 x=1 5+1.5 5-inf - -- a top_k;temperature [0-9]+ once the fox 1,2,3 [1] --threads=1 --ctx=16 "
    "--ctx=0 --template chatml --format"
)
ARGUMENTS += ["", " ", "\u00e9", "\ud800", "a b", "\0", "once upon a time"]
LINES = [
    ["run", "tiny.gguf", "-p", "the fox"],
    ["run", "tiny.gguf", "-f", "text.txt", "--json-schema", "schema.json"],
    ["run", "tiny.gguf", "-p", "-", "--temp", "0.5", "--top-k", "3", "--logit-bias", "5+1.5"],
    ["chat", "tiny.gguf", "--system", "a"], ["info", "tiny.gguf", "--json", "--tensors"],
    ["info", "bert.gguf"], ["info", "broken.gguf"], ["tokenize", "tiny.gguf", "the fox", "--pieces"],
    ["tokenize", "words.gguf", "1,2,3", "--decode"], ["quantize", "tiny.gguf", "out.gguf", "Q8_0"],
    ["quantize", "small.gguf", "out.gguf", "Q4_K_M", "--pure", "--dry-run"],
    ["imatrix", "tiny.gguf", "text.txt", "-o", "out.gguf", "--chunks", "1", "--chunk-size", "16"],
    ["convert", "folder", "out.gguf"], ["doctor", "--json"],
]  # fmt: skip
TAME = {"run": ["-n", "2", "-t", "1"], "chat": ["-n", "2", "-t", "1"]}
"""What keeps a command short; later arguments win."""


def write_files() -> None:
    """The files that command lines name."""
    path = model_path()
    for name in os.listdir():
        if name not in FILES:
            shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink()
    if Path("folder").is_dir():
        return
    shutil.copy(path, "small.gguf")
    Path("bert.gguf").write_bytes(encoder_data())
    Path("words.gguf").write_bytes(model_file({"base": "llama", "changes": [["drop", "token_embd.weight"]]}))
    Path("broken.gguf").write_bytes(path.read_bytes()[:5000])
    Path("text.txt").write_text("once upon a time there was a little fox. " * 8)
    Path("schema.json").write_text(json.dumps({"enum": [1, "a"]}))
    Path("empty").write_text("")
    Path("folder").mkdir()


@functools.cache
def options_of(command: str) -> list[tuple[list[str], type | None]]:
    """(names, type of the value; None without one) of the options of a command."""
    (commands,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    found = []
    for action in commands.choices.get(command, commands.choices["run"])._actions:
        if action.option_strings and action.dest != "help":
            named = {integer: int, number: float}.get(action.type, str)  # type: ignore[call-overload]
            found.append((list(action.option_strings), None if action.nargs == 0 else named))
    return found


SUITABLE: dict[type | None, list[str]] = {
    None: [""],
    int: ["0", "1", "2", "3", "8", "16", "-1", "63", "64", "1000", "4294967296"],
    float: ["0", "0.1", "0.5", "1", "1.5", "2", "-1", "1e-9", "1e38", "nan", "inf"],
    str: [
        *FILES, "Q8_0", "Q4_K", "f32", "q8_0", "f32", "a", "[a-z]+", "yes", "5+1.5", "top_k;min_p", "none",
        "int8",
    ],
}  # fmt: skip


class CommandTarget(Target):
    name = "command"
    per_run = 40

    def seeds(self) -> list[Any]:
        return [{"line": line, "input": "the fox\n/help\nhello\n"} for line in LINES]

    def mutate(self, value: Any, rng: Random) -> Any:
        line = list(value["line"])
        if rng.random() < 0.7:  # an option of the command, with a value of the kind that it takes
            for _ in range(rng.randint(1, 3)):
                flags, kind = rng.choice(options_of(line[0]))
                given = rng.choice(SUITABLE[kind] if rng.random() < 0.9 else ARGUMENTS)
                flag = rng.choice(flags)
                at = rng.randrange(1, len(line) + 1) if line[-1:] != ["--"] else 1
                line[at:at] = [flag] if kind is None else [f"{flag}={given}"]
            return {"line": line, "input": value["input"]}
        for _ in range(rng.randint(1, 4)):
            at, how = rng.randrange(1 if rng.random() < 0.9 else 0, len(line) + 1), rng.random()
            new = rng.choice(FILES) if rng.random() < 0.2 else rng.choice(ARGUMENTS)
            if how < 0.5:
                line[at:at] = [new]
            elif how < 0.8:
                line[at : at + 1] = [new]
            else:
                del line[at : at + 1]
        text = rng.choice(
            [
                value["input"],
                "",
                "\ud800",
                '"""a\nb',
                "/save x\n/load x\n",
                "\\\n",
                "/regen\n/undo\n",
                "/template x\n",
            ]
        )
        return {"line": line, "input": text}

    def run(self, value: Any) -> None:
        line = [str(argument) for argument in value["line"]]
        if any("/" in argument for argument in line) or line[:1] in (["bench"], ["demo"]):
            raise SkipInput
        if any(re.fullmatch(r"(-t|--(num-)?threads)=\d{3,4}", argument) for argument in line):
            raise SkipInput  # OpenMP ends a process that cannot have so many
        write_files()
        line = [*line[:1], *TAME.get(line[0] if line else "", []), *line[1:]]
        out, err = io.StringIO(), io.StringIO()
        saved, handler = (sys.stdin, sys.stdout, sys.stderr), dict(os.environ)
        sys.stdin = io.TextIOWrapper(
            io.BytesIO(value["input"].encode("utf-8", "surrogatepass")), "utf-8", "surrogateescape"
        )
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main(line)
        finally:
            sys.stdin, sys.stdout, sys.stderr = saved
            os.environ.clear()
            os.environ.update(handler)
        assert code in (0, 1, 2), f"exit code {code}"
        assert "Traceback" not in err.getvalue(), err.getvalue()
        if code == 2:
            assert "error: " in err.getvalue(), f"no error line: {err.getvalue()!r}"
        if code:
            raise OxiLlamaError(err.getvalue())
