"""``chat``: a conversation with a model in a chat template, on a terminal or over a pipe."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from oxillama.apps.cli import options
from oxillama.apps.cli.console import read_text, say
from oxillama.apps.cli.media import add_media_options
from oxillama.apps.cli.message_input import MessageInput
from oxillama.apps.cli.models import add_model
from oxillama.apps.cli.sessions import add_session_option
from oxillama.apps.cli.tools import add_tool_options
from oxillama.apps.cli.verify import add_receipt_option, receipt_wanted
from oxillama.errors import ConfigError, OxiLlamaError

if TYPE_CHECKING:
    from oxillama.apps.cli.talk import Talk

HINT = "/help lists the commands, Ctrl-C stops an answer"
STORIES = "This small model tells stories and knows nothing else: a message is a title, or a beginning."
TITLES = ("The Fox and the Bear", "Mia and the Golden Drum")
INTERRUPTED = 130


def add_commands(commands: Any) -> None:
    chat = options.add_command(
        commands,
        "chat",
        help="talk to a model",
        verbose="show the log, and the speed of each answer, on stderr",
        description="Talks to a model in the chat template of its file. A line is a message, or a command: "
        f"{HINT}.",
        examples="""\
  oxillama chat                                    the story model that the package ships
  oxillama chat model.gguf --system "Be brief."    a conversation
  oxillama chat model.gguf "What is a llama?"      one question, then the end
  oxillama chat model.gguf "What is this?" --image cat.png
  oxillama chat model.gguf "What is this about?" --file text.txt
  git diff | oxillama chat model.gguf "What does this change do?" -
""",
    )
    add_model(chat, nargs="?", default="the model that the package ships")
    chat.add_argument(
        "question",
        metavar="QUESTION",
        nargs="*",
        help="a question to answer, after which the command ends; - stands for all of stdin",
    )
    chat.add_argument("--system", metavar="TEXT", help="system message")
    chat.add_argument(
        "--think",
        action=argparse.BooleanOptionalAction,
        help="whether the model reasons (default: what its chat template says)",
    )
    add_tool_options(chat)
    options.add_generation_options(chat, max_tokens=1024)
    options.add_engine_options(chat)
    options.add_sampler_options(chat)
    add_session_option(chat)
    chat.add_argument(
        "--file",
        action="append",
        dest="files",
        metavar="FILE",
        help="a text or PDF whose text the first message ends with (repeatable)",
    )
    add_media_options(chat, "of the first message")
    add_receipt_option(chat, "write a receipt of each answer, in the place of that of the answer before")
    chat.add_argument(
        "--markdown",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="show Markdown on a terminal with colours, which needs `rich` (default: yes)",
    )
    chat.set_defaults(command=run_chat)


def run_chat(args: argparse.Namespace) -> int:
    from oxillama.apps.cli.talk import Talk

    if args.tools is None and (args.run_tools or (args.tool_choice is not None and args.mcp is None)):
        raise ConfigError("--tools: expected tools, got none for --run-tools or --tool-choice")
    question = question_of(args.question)
    if args.model is not None and " " in args.model and not os.path.exists(args.model):
        raise ConfigError(
            f"MODEL: expected a file or a name of the hub, got {args.model!r}; a QUESTION stands behind MODEL"
        )
    talk = Talk(args, replace(options.generation_options(args), receipt=receipt_wanted(args)))
    try:
        if question is not None:
            talk.ask(question)
            return INTERRUPTED if talk.was_stopped else 0
        source = MessageInput(sys.stdin.isatty())
        if source.interactive:
            talk.tell(talk.banner())
            if talk.tells_stories:
                talk.tell(f"{STORIES} Try: {' or '.join(TITLES)}")
            talk.tell(HINT)
        converse(source, talk)
    finally:
        talk.close()
        talk.save()
    return 0


def question_of(parts: list[str]) -> str | None:
    """The question of the command line; None without a question. Raises ConfigError for an empty one."""
    if not parts:
        return None
    text = "\n\n".join(read_text("-", "question").rstrip("\n") if part == "-" else part for part in parts)
    if not text.strip():
        raise ConfigError("question: expected text, got none")
    return text


def converse(source: MessageInput, talk: Talk) -> None:
    """Answers messages and runs commands until the input ends."""
    from oxillama.apps.cli.chat_commands import run_command

    while (text := source.read()) is not None:
        try:
            if not run_command(talk, text) and text.strip():
                talk.n_again = 0
                talk.ask(text)
        except EOFError:  # the command to exit
            break
        except KeyboardInterrupt:  # between two answers: nothing was said
            if not source.interactive:
                raise
        except OxiLlamaError as error:
            if not source.interactive:
                raise
            say("error", str(error))
