"""The table of the /commands of a chat."""

from __future__ import annotations

import difflib
import glob
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from textwrap import shorten
from typing import Any

from oxillama import ConfigError, GenerationOptions, SamplerConfig
from oxillama.apps.cli import mcp, options
from oxillama.apps.cli.console import printable
from oxillama.apps.cli.media import part_of, shown_content
from oxillama.apps.cli.talk import Talk, with_fields
from oxillama.apps.cli.terminal import copy_to_clipboard, shown_text, styled
from oxillama.apps.cli.text_files import block_of
from oxillama.base.config.checks import MAX_SEED
from oxillama.base.config.option import declared, no_option

NOTES = '''\
A line that ends in \\ continues in the next line; """ starts and ends a block of lines.
Ctrl-C stops an answer and keeps what was said; at the prompt it clears the line, twice it exits.'''


@dataclass(frozen=True)
class Command:
    """A /command: its name, its arguments and its function.

    Attributes:
        argument: its placeholder: "" for none, in brackets if it may be missing.
        help: what it does.
        run: takes the talk and the argument, None without an argument.
    """

    argument: str
    help: str
    run: Callable[[Talk, str], object]

    def check(self, name: str, given: str | None) -> None:
        """Raises ConfigError for an argument too many or too few."""
        if given is None and self.argument and self.argument[0] != "[":
            raise ConfigError(f"/{name}: expected {WORDS.get(self.argument, self.argument)}, got none")
        if given is not None and not self.argument:
            raise ConfigError(f"/{name}: expected no argument, got {given}")


WORDS = {"FILE": "a file name"}


def show_help(talk: Talk, argument: str) -> None:
    width = max(len(f"/{name} {each.argument}") for name, each in COMMANDS.items())
    rows = [f"{f'/{name} {each.argument}':{width}}  {each.help}" for name, each in COMMANDS.items()]
    print("\n".join([*rows, NOTES]), file=sys.stderr, flush=True)


def set_system(talk: Talk, text: str) -> None:
    if text:
        talk.conversation.set_system(text)
    found = talk.conversation.system
    talk.tell("there is no system message" if found is None else f"system message: {found}")


def set_option(talk: Talk, text: str) -> None:
    """Sets an option of answers, or lists the options that were set."""
    if not text:
        for name, option in OPTIONS.items():
            owner = talk.chosen if hasattr(talk.chosen, name) else sampler_of(talk)
            if getattr(owner, name) != option.default:
                talk.tell(f"{name} {getattr(owner, name)}")
        return
    name, _, value = text.replace("=", " ", 1).partition(" ")
    name = name.lstrip("-").replace("-", "_")
    name = FLAGS.get(name, name)
    if name not in OPTIONS:
        raise no_option(name, GenerationOptions, SamplerConfig)
    talk.chosen = with_fields(talk.chosen, talk.engine, **{name: parsed(name, value.strip())})
    talk.n_again = -1 if name == "seed" else talk.n_again
    talk.tell(f"{name} {getattr(talk.chosen, name, getattr(sampler_of(talk), name, None))}")


def sampler_of(talk: Talk) -> SamplerConfig:
    """The options of the sampler in use."""
    return talk.chosen.sampler or talk.engine.config.sampler


def parsed(name: str, text: str) -> Any:
    """The value of an option. Raises ConfigError for an invalid text."""
    option = OPTIONS[name]
    how = options.argument_kind(option)
    if option.type == "bool":
        if text not in TRUTHS:
            raise ConfigError(f"{name}: expected on or off, got {text or 'none'}")
        return TRUTHS[text]
    if not text:
        raise ConfigError(f"{name}: expected a value, got none")
    try:
        value = how["type"](text)
    except Exception as error:  # argparse's way to refuse
        raise ConfigError(f"{name}: {error}") from error
    return options.value_of(option, [value] if how.get("action") == "append" else value)


def regenerate(talk: Talk, argument: str) -> None:
    """Answers the last question again; with the next seed, if a seed was given."""
    question = talk.conversation.last_question
    if question is None:
        raise ConfigError("/regen: expected a question to answer again, got none")
    kept, seed = list(talk.conversation.messages), sampler_of(talk).seed
    talk.conversation.undo()
    rest = list(talk.conversation.messages)
    talk.n_again += 1
    try:
        talk.answer(question, None if seed is None else (seed + talk.n_again) & MAX_SEED)
    finally:
        if talk.conversation.messages == rest:  # nothing was said
            talk.conversation.messages = kept


def undo(talk: Talk, argument: str) -> None:
    talk.tell(f"took back: {shorten(shown_content(talk.conversation.undo()), 200, placeholder='...')}")


def reset(talk: Talk, argument: str) -> None:
    talk.conversation.reset()
    talk.detach()
    talk.tell("the conversation is empty")


def save(talk: Talk, path: str) -> None:
    talk.conversation.save(path)
    talk.tell(f"saved {len(talk.conversation.messages)} messages to {path}")


def load(talk: Talk, path: str) -> None:
    talk.conversation.load(path)
    talk.tell(f"loaded {len(talk.conversation.messages)} messages from {path}")


def set_model(talk: Talk, model: str) -> None:
    if model and talk.kept is not None:
        raise ConfigError("/model: expected the model of the session, got another")
    if model:
        talk.load(model)
    talk.tell(talk.banner())


def set_tools(talk: Talk, spec: str) -> None:
    """Adds tools, or lists the tools."""
    if spec:
        talk.set_tools([*(talk.args.tools or ()), spec])
    names = [] if talk.box is None else [tool["function"]["name"] for tool in talk.box.definitions]
    talk.tell("tools: " + (", ".join(names) or "none"))
    if talk.servers is not None:
        for line in mcp.listed(talk.servers.client.tools()):
            talk.tell(line)


def show_servers(talk: Talk, name: str) -> None:
    """Prints the states of the tool servers, or the stderr of one."""
    if talk.servers is None:
        raise ConfigError("/mcp: expected servers, got none; --mcp names their file")
    for line in mcp.status(talk.servers.client, name):
        talk.tell(line)


def think(talk: Talk, text: str) -> None:
    """Switches reasoning, sets its budget, or shows the last."""
    if text in TRUTHS:
        talk.set_thinking(TRUTHS[text])
        talk.tell(f"reasoning is {'on' if TRUTHS[text] else 'off'}")
    elif text.isdecimal():
        talk.chosen = with_fields(talk.chosen, talk.engine, reasoning_budget=int(text))
        talk.tell(f"at most {int(text)} tokens of reasoning")
    elif text:
        raise ConfigError(f"/think: expected on, off or a number of tokens, got {text}")
    elif talk.reasoning:
        print(styled(shown_text(talk.reasoning), "dim", sys.stderr), file=sys.stderr, flush=True)
    else:
        talk.tell("the last answer has no reasoning")


def copy(talk: Talk, argument: str) -> None:
    text = talk.conversation.last_answer
    if text is None:
        raise ConfigError("/copy: expected an answer to copy, got none")
    if not copy_to_clipboard(text, sys.stdout):
        raise ConfigError("/copy: expected a terminal and up to 74,994 bytes, got another output or more")
    talk.tell(f"copied {len(text)} characters, if the terminal allows it (OSC 52)")


def attach(kind: str, talk: Talk, path: str) -> None:
    talk.attach(part_of(kind, path))
    talk.tell(f"the next message begins with {path}")


def attach_text(talk: Talk, path: str) -> None:
    """Attaches a text; without a path lists what is attached, "-" detaches all."""
    if path == "-":
        talk.tell(f"detached: {', '.join(talk.detach()) or 'nothing was attached'}")
    elif path:
        talk.attach_text(path, block_of(path, "/file"))
        talk.tell(f"the next message ends with the text of {path}")
    else:
        talk.tell(f"attached: {', '.join(part['path'] for part in talk.parts) or 'nothing'}")


def leave(talk: Talk, argument: str) -> None:
    raise EOFError


COMMANDS = {
    "help": Command("", "shows this list", show_help),
    "system": Command("[TEXT]", "sets the system message, or shows it", set_system),
    "set": Command("[NAME VALUE]", "sets an option, as /set temperature 0.5, or lists those set", set_option),
    "regen": Command("", "answers the last question again", regenerate),
    "undo": Command("", "takes the last question and its answer back", undo),
    "reset": Command("", "forgets the conversation", reset),
    "save": Command("FILE", "writes the conversation to a JSON file", save),
    "load": Command("FILE", "continues the conversation of such a file", load),
    "image": Command("FILE", "has the next message begin with a picture", partial(attach, "image")),
    "audio": Command("FILE", "has the next message begin with a sound", partial(attach, "audio")),
    "file": Command(
        "[FILE|-]", "ends the next message with a text, lists files, or detaches them", attach_text
    ),
    "model": Command("[MODEL]", "goes on with another model, or shows which one it is", set_model),
    "tools": Command("[TOOL]", "adds tools, as --tools does, or lists them", set_tools),
    "mcp": Command("[SERVER]", "lists the tool servers, or what one wrote to its stderr", show_servers),
    "think": Command("[on|off|N]", "shows the last reasoning, switches it, or sets its budget", think),
    "copy": Command("", "copies the last answer to the clipboard", copy),
    "exit": Command("", "exits, as /quit and Ctrl-D do", leave),
}
ALIASES = {"quit": "exit", "clear": "reset"}
TRUTHS = {"on": True, "true": True, "off": False, "false": False}
OPTIONS = {
    name: option
    for cls in (SamplerConfig, GenerationOptions)
    for name, option in declared(cls).items()
    if option.cli and name != "adapters"
}
FLAGS = {
    flag.lstrip("-").replace("-", "_"): name for name, each in OPTIONS.items() for flag in each.flags.split()
}


def run_command(talk: Talk, line: str) -> bool:
    """Runs a line if it is a /command; returns whether it is a /command.

    Raises EOFError for the end of the chat, ConfigError for an unknown command and a wrong argument, and what
    the command raises.
    """
    found = re.fullmatch(r"/([a-z]+)(?: +(.*\S))? *", line)
    if found is None:
        return False
    name = ALIASES.get(found[1], found[1])
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, [*COMMANDS, *ALIASES], 1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists the commands"
        raise ConfigError(f"/{printable(name)}: is no command; {hint}")
    COMMANDS[name].check(name, found[2])
    COMMANDS[name].run(talk, found[2] or "")
    return True


def completions(line: str, word: str) -> list[str]:
    """Completions of the last word of a line: commands, options, paths."""
    if line == word:
        return [f"/{name}" for name in sorted([*COMMANDS, *ALIASES]) if f"/{name}".startswith(word or " ")]
    name = line.split(maxsplit=1)[0].lstrip("/")
    if name == "set" and len(line.split()) <= 1 + bool(word):
        return [option for option in sorted(OPTIONS) if option.startswith(word)]
    if name not in ("save", "load", "model", "tools", "image", "audio", "file"):
        return []
    paths = glob.glob(glob.escape(os.path.expanduser(word)) + "*")
    return [path + "/" * os.path.isdir(path) for path in sorted(paths)]
