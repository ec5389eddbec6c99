"""``chat``: a conversation with a model in a chat template, on a terminal or over a pipe."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from oxillama import ChatTemplateError, ConfigError, OxiLlamaError
from oxillama.cli import options
from oxillama.cli.chat_formats import CHAT_FORMATS
from oxillama.cli.console import read_text, say
from oxillama.cli.conversation import Conversation, Message
from oxillama.cli.generate import load_engine, show
from oxillama.cli.message_input import MessageInput
from oxillama.cli.models import add_model, model_path
from oxillama.cli.sessions import KeptSession, add_session_option
from oxillama.cli.tools import MAX_STEPS, ToolBox, add_tool_options
from oxillama.cli.verify import add_receipt_option, receipt_wanted, write_receipt

if TYPE_CHECKING:
    from oxillama import GenerationOptions, InferenceEngine, TokenizerBridge

HINT = "/help lists the commands, Ctrl-C stops an answer"
HELP = '''\
/help       shows this list
/save FILE  writes the conversation to a JSON file
/load FILE  continues the conversation of such a file
/undo       takes the last question and its answer back
/reset      forgets the conversation
/exit       exits, as Ctrl-D does
A line that ends in \\ continues in the next line; """ starts and ends a block of lines.
Ctrl-C stops an answer and keeps what was said; at the prompt it clears the line, twice it exits.'''


def add_commands(commands: Any) -> None:
    chat = options.add_command(
        commands,
        "chat",
        help="talk to a model",
        description="Talks to a model in the chat template of its file. A line is a message, or a command: "
        f"{HINT}.",
    )
    add_model(chat)
    chat.add_argument("--system", metavar="TEXT", help="system message")
    chat.add_argument(
        *("--chat-template", "--template"),
        metavar="NAME|FILE",
        dest="template",
        help="a template of the model file by name, a Jinja file, or a well-known format: "
        f"{', '.join(CHAT_FORMATS)} (default: the file's default template)",
    )
    add_session_option(chat)
    add_tool_options(chat)
    add_receipt_option(chat, "write a receipt of each answer, in the place of that of the answer before")
    options.add_generation_options(chat, max_tokens=1024)
    options.add_engine_options(chat)
    options.add_sampler_options(chat)
    chat.set_defaults(command=run_chat)


def run_chat(args: argparse.Namespace) -> int:
    chosen = replace(options.generation_options(args), receipt=receipt_wanted(args))
    engine = load_engine(options.engine_config(args, model_path(args.model, args)), args)
    tokenizer = chat_tokenizer(engine, args.template)
    if args.tools is None and (args.run_tools or args.tool_choice is not None):
        raise ConfigError("--tools: expected tools, got none for --run-tools or --tool-choice")
    box = None if args.tools is None else ToolBox(args)
    conversation = Conversation(args.system)
    kept = None
    if args.session is not None:
        kept = KeptSession(engine, args.session, "chat")
        if not kept.is_new:
            conversation.resume(kept.notes.get("messages"))
    source = MessageInput(sys.stdin.isatty())
    if source.interactive and not args.quiet:
        print(HINT, file=sys.stderr, flush=True)
    try:
        converse(source, conversation, engine, tokenizer, chosen, kept, box, args)
    finally:
        if kept is not None:
            kept.save(messages=conversation.messages)
    return 0


def converse(
    source: MessageInput,
    conversation: Conversation,
    engine: InferenceEngine,
    tokenizer: TokenizerBridge,
    chosen: GenerationOptions,
    kept: KeptSession | None,
    box: ToolBox | None,
    args: argparse.Namespace,
) -> None:
    """Answers messages and runs commands until the input ends."""
    from oxillama.conversations.prompt import chat_prompt

    while (text := source.read()) is not None:
        try:
            if command := re.fullmatch(r"/([a-z]+)(?: +(.*\S))? *", text):
                if not run_command(conversation, command[1], command[2]):
                    break
            elif text.strip() and box is not None:
                answer_with_tools(conversation, text, box, kept or engine, tokenizer, chosen, args)
            elif text.strip():
                prompt, _ = chat_prompt(tokenizer, conversation.asking(text), chosen, parse=False)
                generation = (engine if kept is None else kept).stream(prompt, chosen)
                show(generation, args)
                write_receipt(generation, args)
                if generation.text or generation.finish_reason != "cancelled":
                    conversation.add(text, generation.text)
        except KeyboardInterrupt:  # between two answers: nothing was said
            if not source.interactive:
                raise
        except OxiLlamaError as error:
            if not source.interactive:
                raise
            say("error", str(error))


def answer_with_tools(
    conversation: Conversation,
    text: str,
    box: ToolBox,
    engine: Any,
    tokenizer: TokenizerBridge,
    chosen: GenerationOptions,
    args: argparse.Namespace,
) -> None:
    """Answers a message, and goes on with the results of the calls that were run."""
    messages: list[Message] = conversation.asking(text)
    for step in range(MAX_STEPS):
        generation = engine.stream(*box.prompt(messages, chosen, tokenizer, step))
        interrupted = show(generation, args)
        write_receipt(generation, args)
        n_before = sum(len(message.get("tool_calls") or ()) for message in messages)
        told = box.told(generation, n_before)
        messages = [*messages, *told]
        if interrupted or len(told) == 1:  # nothing was run
            break
    else:
        say("warning", f"stopped after {MAX_STEPS} answers with calls")
    conversation.messages = messages


def run_command(conversation: Conversation, name: str, argument: str | None) -> bool:
    """Runs a /command. Returns whether the chat goes on. Raises ConfigError for an unknown command."""
    with_file = {"save": conversation.save, "load": conversation.load}
    alone = {"undo": conversation.undo, "reset": conversation.reset}
    if name in with_file:
        if argument is None:
            raise ConfigError(f"/{name}: expected a file name, got none")
        with_file[name](argument)
    elif argument is not None or name not in ("help", "exit", *alone):
        known = "/help, /save FILE, /load FILE, /undo, /reset or /exit"
        raise ConfigError(
            f"command: expected {known}, got /{name}{'' if argument is None else ' ' + argument}"
        )
    elif name == "help":
        print(HELP, file=sys.stderr, flush=True)
    elif name in alone:
        alone[name]()
    return name != "exit"


def chat_tokenizer(engine: InferenceEngine, wanted: str | None) -> TokenizerBridge:
    """A tokenizer whose default chat template is the one that is wanted.

    ``wanted`` is the name of a template of the model file or of `CHAT_FORMATS`, or a path; None is the file's
    default. Raises ChatTemplateError if there is no such template or it is malformed, ConfigError if the path
    cannot be read.
    """
    tokenizer = engine.tokenizer
    names = tokenizer.chat_template_names
    if wanted is None and "default" not in names:
        found = f"the model file has {', '.join(names)}" if names else "the model file has none"
        raise ChatTemplateError(f"chat template: expected one, {found}; choose one with --chat-template")
    if wanted not in (None, "default"):
        assert wanted is not None
        tokenizer = with_template(engine, template_text(tokenizer, wanted))
    tokenizer.chat_template()
    return tokenizer


def template_text(tokenizer: TokenizerBridge, wanted: str) -> str:
    """The Jinja text of a template by name or path."""
    if wanted in tokenizer.chat_template_names:
        return tokenizer.chat_template(wanted).source
    if wanted in CHAT_FORMATS:
        return CHAT_FORMATS[wanted]
    return read_text(wanted, "--chat-template")


def with_template(engine: InferenceEngine, text: str) -> TokenizerBridge:
    """A tokenizer like the engine's whose only chat template is this text."""
    from oxillama import TokenizerBridge

    key = "tokenizer.chat_template"
    metadata = {k: v for k, v in engine.model.file.metadata.items() if not k.startswith(key)} | {key: text}
    path = engine.config.tokenizer_path
    if path is None:
        return TokenizerBridge.from_metadata(metadata)
    return TokenizerBridge.from_file(path, metadata)
