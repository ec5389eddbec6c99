"""A talk: a model, a conversation, and the options of the next answer; it answers questions."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from oxillama import ChatTemplateError, ConfigError
from oxillama.cli import options
from oxillama.cli.answers import show_answer
from oxillama.cli.console import human_bytes, human_count, printable, say
from oxillama.cli.conversation import Conversation, Message
from oxillama.cli.generate import load_engine
from oxillama.cli.mcp import connected
from oxillama.cli.media import Part, check_unchanged, content_of, kept_part, media_of, read_part
from oxillama.cli.models import model_path
from oxillama.cli.sessions import KeptSession
from oxillama.cli.terminal import styled
from oxillama.cli.text_files import block_of
from oxillama.cli.tools import MAX_STEPS, ToolBox
from oxillama.cli.verify import write_receipt

if TYPE_CHECKING:
    from oxillama import Generation, GenerationOptions, InferenceEngine


class Talk:
    """A conversation with a model.

    Parameters
    ----------
    args : of ``chat``.
    chosen : the options of answers.

    Attributes
    ----------
    reasoning : of the last answer.
    n_again : answers to the last question before this one.
    was_stopped : whether Ctrl-C ended the last answer.
    thinks : whether the model is to reason; None for what its template says.
    parts : media and texts of files, which the next message has, too.

    Raises as loading a model, and ChatTemplateError if there is no template, or it is malformed.
    """

    engine: InferenceEngine

    def __init__(self, args: argparse.Namespace, chosen: GenerationOptions) -> None:
        self.args = args
        self.chosen: GenerationOptions = chosen
        self.reasoning: str = ""
        self.n_again: int = 0
        self.was_stopped: bool = False
        self.thinks: bool | None = args.think
        self.parts: list[Part] = []
        for path in args.files or ():  # before a model is loaded for nothing
            self.attach_text(path, "--file")
        self.load(args.model)
        self.servers = None if args.mcp is None else connected(args.mcp)
        self.box: ToolBox | None = None
        self.set_tools(args.tools)
        self.conversation: Conversation = Conversation(args.system)
        self.kept: KeptSession | None = None
        if args.session is not None:
            self.kept = KeptSession(self.engine, args.session, "chat")
            if not self.kept.is_new:
                self.conversation.resume(self.kept.notes.get("messages"))
                self._resume_media(self.kept)
        for part in args.media or ():
            self.attach(part)

    def load(self, model: str | None) -> None:
        """Loads a model in the place of the one there is, if it can be loaded; None for the shipped one."""
        from oxillama.demo import STORY

        path = str(STORY) if model is None else model_path(model, self.args, bool(self.args.media))
        engine = load_engine(options.engine_config(self.args, path), self.args)
        try:
            template = default_template(engine)
            self.variables: dict[str, Any] = thinking_variables(template, self.thinks)
        except BaseException:
            engine.close()
            raise
        if hasattr(self, "engine"):
            self.engine.close()
        self.engine = engine
        self.template: Any = template

    def set_tools(self, tools: list[str] | None) -> None:
        """Has these tools, as ``--tools`` names them, beside those of servers. Raises ConfigError."""
        before, self.args.tools = self.args.tools, tools
        try:
            self.box = None if tools is None and self.servers is None else ToolBox(self.args, self.servers)
        except BaseException:
            self.args.tools = before
            raise

    def close(self) -> None:
        """Ends the tool servers."""
        if self.servers is not None:
            self.servers.close()

    def save(self) -> None:
        """Writes the session, if it is kept."""
        if self.kept is not None:
            self.kept.save(messages=self.conversation.messages)

    def banner(self) -> str:
        """The model in one line: its name, size and context."""
        model, tensors = self.engine.model, self.engine.model.file.tensors.values()
        size = human_bytes(sum(tensor.nbytes for tensor in tensors))
        n = human_count(sum(tensor.n_elements for tensor in tensors))
        return printable(f"{model.name}: {n} parameters, {size}, context {self.engine.context_size} tokens")

    def tell(self, text: str) -> None:
        """Says what a command has done."""
        if not self.args.quiet:
            print(styled(printable(text), "dim", sys.stderr), file=sys.stderr, flush=True)

    def set_thinking(self, thinks: bool) -> None:
        """Switches reasoning on or off. Raises ConfigError if the model has none."""
        self.variables = thinking_variables(self.template, thinks)
        self.thinks = thinks

    def attach(self, part: Part) -> None:
        """Has the next message begin with a picture or a sound. Raises MediaError, ConfigError."""
        self.engine.model.feature("media").check_takes(part["path"], part["type"])
        read_part(part)
        self.parts.append(part if self.kept is None else kept_part(part))

    def attach_text(self, path: str, option: str) -> None:
        """Has the next message end with the text of a file. Raises ConfigError naming ``option``."""
        self.parts.append({"type": "text", "text": block_of(path, option)})

    def _resume_media(self, kept: KeptSession) -> None:
        """Checks the files of a session's pictures and sounds, and keeps their embeddings.

        Raises MediaError, and ConfigError for a file that has changed.
        """
        for message in self.conversation.messages:
            check_unchanged(message["content"])
        if kept.session.given is not None:
            self.engine.model.feature("media").keep(kept.session.given)

    def ask(self, text: str) -> None:
        """Answers a message with the files that were attached to it."""
        parts, self.parts = self.parts, []
        try:
            self.answer(content_of(text, parts))
        except BaseException:
            self.parts = parts
            raise

    def answer(self, text: str | list[Part], seed: int | None = None) -> None:
        """Answers a question, a text or parts; ``seed`` replaces that of the options."""
        chosen = self.chosen
        if seed is not None:
            chosen = with_fields(chosen, self.engine, seed=seed)
        if self.thinks is False and not self.variables and has_reasoning(self.template):
            chosen = with_fields(chosen, self.engine, reasoning_budget=0)
        if self.box is not None:
            self._answer_with_tools(text, self.box, chosen)
            return
        from oxillama.conversations.prompt import chat_prompt

        sampler = chosen.sampler or self.engine.config.sampler
        is_free = sampler.constraint in (None, "structural_tag")  # else a grammar rules the whole text
        messages = self.conversation.asking(text)
        generation = self._stream(
            *chat_prompt(
                self.engine.tokenizer,
                messages,
                chosen,
                self.variables,
                parse=is_free,
                media=media_of(self.engine),
            )
        )
        if generation.text or generation.finish_reason != "cancelled":
            self.conversation.add(text, generation.text)

    def _stream(self, prompt: Any, chosen: GenerationOptions) -> Generation:
        """Shows an answer; `was_stopped` says whether Ctrl-C ended it."""
        generation = (self.kept or self.engine).stream(prompt, chosen)
        self.was_stopped = show_answer(generation, self.args)
        self.reasoning = generation.reasoning
        write_receipt(generation, self.args)
        return generation

    def _answer_with_tools(self, text: str | list[Part], box: ToolBox, chosen: GenerationOptions) -> None:
        """Answers a question, and goes on with the results of the calls that were run."""
        messages: list[Message] = self.conversation.asking(text)
        for step in range(MAX_STEPS):
            generation = self._stream(*box.prompt(messages, chosen, self.engine, step, self.variables))
            n_before = sum(len(message.get("tool_calls") or ()) for message in messages)
            told = box.told(generation, n_before)
            messages = [*messages, *told]
            if self.was_stopped or len(told) == 1:  # nothing was run
                break
        else:
            say("warning", f"stopped after {MAX_STEPS} answers with calls")
        self.conversation.messages = [without_reasoning(message) for message in messages]


def without_reasoning(message: Message) -> Message:
    """A message as the conversation keeps it."""
    return {key: value for key, value in message.items() if key != "reasoning_content"}


def with_fields(chosen: GenerationOptions, engine: Any, **fields: Any) -> GenerationOptions:
    """Options with other values, of the sampler too. Raises ConfigError."""
    return type(chosen).of(chosen, fields, engine.config.sampler)


def default_template(engine: Any) -> Any:
    """The chat template of a model. Raises ChatTemplateError if there is none, or it is malformed."""
    names = engine.tokenizer.chat_template_names
    if "default" not in names:
        found = f"the model file has {', '.join(names)}" if names else "the model file has none"
        raise ChatTemplateError(f"chat template: expected one, {found}; choose one with --chat-template")
    return engine.tokenizer.chat_template()


def has_reasoning(template: Any) -> bool:
    """Whether a chat template has reasoning."""
    from oxillama.toolcalls.formats import grammar_of_template

    return grammar_of_template(template.source).reasoning is not None


def thinking_variables(template: Any, thinks: bool | None) -> dict[str, Any]:
    """The variables by which a template switches reasoning on or off; {} without a switch.

    Raises ConfigError if the template has no reasoning to switch on.
    """
    from oxillama.conversations.prompt import BUDGET, SWITCHES

    switch = next((name for name in SWITCHES if name in template.variables), None)
    if thinks is None:
        return {}
    if thinks and switch is None and not has_reasoning(template):
        raise ConfigError("--think: expected a chat template with reasoning, got one without")
    variables: dict[str, Any] = {} if switch is None else {switch: thinks}
    return variables if thinks or BUDGET not in template.variables else {**variables, BUDGET: 0}
