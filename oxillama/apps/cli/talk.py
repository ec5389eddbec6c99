"""A talk: a model, a conversation, and the options of the next answer; it answers questions."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from oxillama import ChatTemplateError, ConfigError, OxiLlamaError, PromptError
from oxillama.apps.cli import options
from oxillama.apps.cli.answers import show_answer
from oxillama.apps.cli.console import human_bytes, human_count, printable, say
from oxillama.apps.cli.conversation import Conversation, Message
from oxillama.apps.cli.mcp import connected
from oxillama.apps.cli.media import ContentPart, check_unchanged, content_of, kept_part, media_of, read_part
from oxillama.apps.cli.models import load_engine, model_path
from oxillama.apps.cli.sessions import KeptSession
from oxillama.apps.cli.terminal import styled
from oxillama.apps.cli.text_files import block_of
from oxillama.apps.cli.tools import MAX_STEPS, ToolBox
from oxillama.apps.cli.verify import write_receipt
from oxillama.errors import in_short

if TYPE_CHECKING:
    from oxillama import Generation, GenerationOptions, InferenceEngine


class Talk:
    """A conversation with a model.

    Args:
        args: of ``chat``.
        chosen: the options of answers.

    Attributes:
        reasoning: of the last answer.
        n_again: answers to the last question before this one.
        was_stopped: whether Ctrl-C ended the last answer.
        thinks: whether the model is to reason; None for what its template says.
        parts: media and texts of files, which the next message has, too.

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
        self.parts: list[ContentPart] = []
        # read before a model is loaded for nothing
        texts = [(path, block_of(path, "--file")) for path in args.files or ()]
        self.load(args.model)
        for path, text in texts:
            self.attach_text(path, text)
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
        """Loads a model in the place of the current one, if possible; None: the shipped model."""
        from oxillama.apps.demo import STORY

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
        """Takes these tools of ``--tools``, in addition to the tools of servers. Raises ConfigError."""
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

    @property
    def tells_stories(self) -> bool:
        """Whether the model is the one that the package ships."""
        from oxillama.apps.demo import STORY

        return str(self.engine.config.model_path) == str(STORY)

    def banner(self) -> str:
        """The model in one line: its name, size and context."""
        model, tensors = self.engine.model, self.engine.model.file.tensors.values()
        size = human_bytes(sum(tensor.nbytes for tensor in tensors))
        n = human_count(sum(tensor.n_elements for tensor in tensors))
        return printable(f"{model.name}: {n} parameters, {size}, context {self.engine.context_size} tokens")

    def tell(self, text: str) -> None:
        """Prints the effect of a command."""
        if not self.args.quiet:
            print(styled(printable(in_short(text)), "dim", sys.stderr), file=sys.stderr, flush=True)

    def set_thinking(self, thinks: bool) -> None:
        """Switches reasoning on or off. Raises ConfigError for a model without reasoning."""
        self.variables = thinking_variables(self.template, thinks)
        self.thinks = thinks

    def attach(self, part: ContentPart) -> None:
        """Puts a picture or a sound before the next message. Raises MediaError, ConfigError."""
        self.engine.model.feature("media").check_takes(part["path"], part["type"])
        read_part(part)
        self.parts.append(part if self.kept is None else kept_part(part))

    def attach_text(self, path: str, text: str) -> None:
        """Puts the text of a file after the next message. Raises PromptError for a text that cannot fit."""
        n, most = len(self.engine.tokenizer.encode(text, add_special=False)), self.engine.context_size - 1
        if n > most:
            raise PromptError(f"{os.path.basename(path)} has {n:,} tokens, {most:,} fit")
        self.parts.append({"type": "text", "text": text, "path": path})

    def detach(self) -> list[str]:
        """Forgets the files that the next message would have; returns their paths."""
        paths = [part["path"] for part in self.parts]
        self.parts = []
        return paths

    def _resume_media(self, kept: KeptSession) -> None:
        """Checks the files of a session's pictures and sounds, and keeps their embeddings.

        Raises MediaError, and ConfigError for a file that has changed.
        """
        for message in self.conversation.messages:
            check_unchanged(message["content"])
        if kept.session.embeddings is not None:
            self.engine.model.feature("media").keep(kept.session.embeddings)

    def ask(self, text: str) -> None:
        """Answers a message with the files that were attached to it.

        A message that is refused detaches them, so that they do not have the next one refused, too.
        """
        parts, self.parts = self.parts, []
        try:
            self.answer(content_of(text, parts))
        except OxiLlamaError:
            if parts:
                self.tell(f"detached: {', '.join(part['path'] for part in parts)}")
            raise
        except BaseException:
            self.parts = parts
            raise

    def answer(self, text: str | list[ContentPart], seed: int | None = None) -> None:
        """Answers a question, a text or parts; ``seed`` replaces the seed of the options."""
        chosen = self.chosen
        if seed is not None:
            chosen = with_fields(chosen, self.engine, seed=seed)
        if self.thinks is False and not self.variables and has_reasoning(self.template):
            chosen = with_fields(chosen, self.engine, reasoning_budget=0)
        if self.box is not None:
            self._answer_with_tools(text, self.box, chosen)
            return
        from oxillama.text.chat.prompt import chat_prompt

        messages, chosen = self.conversation.asking(text), with_fields(chosen, self.engine)
        media = media_of(self.engine)
        generation = self._stream(
            *chat_prompt(self.engine.tokenizer, messages, chosen, self.variables, media=media)
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

    def _answer_with_tools(
        self, text: str | list[ContentPart], box: ToolBox, chosen: GenerationOptions
    ) -> None:
        """Answers a question, and continues with the results of the calls that were run."""
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
    """A message in the form that the conversation keeps."""
    return {key: value for key, value in message.items() if key != "reasoning_content"}


def with_fields(chosen: GenerationOptions, engine: Any, **fields: Any) -> GenerationOptions:
    """Options with other values, of the sampler too. Raises ConfigError."""
    return type(chosen).of(chosen, fields, engine.config.sampler)


def default_template(engine: Any) -> Any:
    """The chat template of a model. Raises ChatTemplateError if it is missing or malformed."""
    names = list(engine.tokenizer.templates)
    if "default" not in names:
        found = f"the model file has {', '.join(names)}" if names else "the model file has none"
        raise ChatTemplateError(f"chat template: expected one, {found}; choose one with --chat-template")
    return engine.tokenizer.chat_template()


def has_reasoning(template: Any) -> bool:
    return template.format.reasoning is not None


def thinking_variables(template: Any, thinks: bool | None) -> dict[str, Any]:
    """The variables by which a template switches reasoning on or off; {} without a switch.

    Raises ConfigError if the template has no reasoning to switch on.
    """
    from oxillama.text.chat.prompt import BUDGET, SWITCHES

    switch = next((name for name in SWITCHES if name in template.variables), None)
    if thinks is None:
        return {}
    if thinks and switch is None and not has_reasoning(template):
        raise ConfigError("--think: expected a chat template with reasoning, got one without")
    variables: dict[str, Any] = {} if switch is None else {switch: thinks}
    return variables if thinks or BUDGET not in template.variables else {**variables, BUDGET: 0}
