"""``chat``: turns with a model, in its own chat template, over a terminal or a pipe."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oxillama import ChatTemplateError, OxiLlamaError
from oxillama.cli import options
from oxillama.cli.console import read_text, say
from oxillama.cli.generate import add_length_options, load_engine, show, start

if TYPE_CHECKING:
    from oxillama import InferenceEngine, TokenizerBridge

Message = dict[str, str]

HELP = "/reset forgets the conversation, /exit leaves, Ctrl-C stops an answer"


def add_commands(commands: Any) -> None:
    chat = commands.add_parser(
        "chat",
        help="talk to a model",
        description=f"Talks to a model line by line, in the chat template of its file. {HELP}.",
        allow_abbrev=False,
    )
    chat.add_argument("model", metavar="MODEL", help="GGUF file (of a split one: the first)")
    chat.add_argument("--system", metavar="TEXT", help="what the model is told before the first turn")
    chat.add_argument("--template", metavar="FILE", help="Jinja chat template to use in place of the file's")
    add_length_options(chat, 1024)
    options.add_engine_options(chat)
    options.add_sampler_options(chat)
    chat.set_defaults(command=run_chat)


def run_chat(args: argparse.Namespace) -> int:
    template = None if args.template is None else read_text(args.template, "--template")
    engine = load_engine(options.engine_config(args, args.model), args)
    tokenizer = chat_tokenizer(engine, template)
    opening = [] if args.system is None else [{"role": "system", "content": args.system}]
    history = list(opening)
    interactive = sys.stdin.isatty()
    if interactive:
        print(HELP, file=sys.stderr)
    for line in lines(interactive):
        if line.strip() == "/exit":
            break
        if line.strip() == "/reset":
            history = list(opening)
            continue
        if not line.strip():
            continue
        try:
            history = turn(engine, tokenizer, history, line, args)
        except OxiLlamaError as error:
            if not interactive:
                raise
            say("error", str(error))
    return 0


def chat_tokenizer(engine: InferenceEngine, template: str | None) -> TokenizerBridge:
    """The engine's tokenizer, or its like with this template. Raises ChatTemplateError if there is none."""
    tokenizer = engine.tokenizer
    if template is not None:
        from oxillama import TokenizerBridge

        metadata = {**engine.metadata, "tokenizer.chat_template": template}
        path = engine.config.tokenizer_path
        tokenizer = (
            TokenizerBridge.from_metadata(metadata)
            if path is None
            else TokenizerBridge.from_file(path, metadata)
        )
    elif "default" not in tokenizer.chat_template_names:
        raise ChatTemplateError("the model file has no chat template; give one with --template FILE")
    tokenizer.chat_template()
    return tokenizer


def lines(interactive: bool) -> Iterator[str]:
    """What the user writes, line by line, until the input ends."""
    if interactive:
        with suppress(ImportError):  # not on every system
            import readline  # noqa: F401  # gives `input` editing and a history
    while True:
        try:
            line = input("> ") if interactive else next(sys.stdin).rstrip("\n")
        except (EOFError, StopIteration):
            return
        yield line


def turn(
    engine: InferenceEngine,
    tokenizer: TokenizerBridge,
    history: list[Message],
    text: str,
    args: argparse.Namespace,
) -> list[Message]:
    """Answers one message; the history with both added. Ctrl-C ends the answer, what was said stays."""
    asked = [*history, {"role": "user", "content": text}]
    generation = start(engine, tokenizer.encode_chat(asked), args)
    show(generation)
    return [*asked, {"role": "assistant", "content": generation.text}]
