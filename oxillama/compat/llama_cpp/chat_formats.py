"""llama-cpp-python's named chat formats, for models whose files have no template.

A format is a row of a table: markers of each role, separators after messages, and the beginning. The prompts
equal llama-cpp-python's character by character, including the double colon of "intel".
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from oxillama.base.config import checks
from oxillama.compat.llama_cpp.processors import StoppingCriteria
from oxillama.errors import ConfigError


@dataclass(frozen=True)
class ChatFormatterResponse:
    """A formatter's prompt for a conversation.

    Attributes:
        prompt: the text of the prompt.
        stop: strings that end the answer.
        stopping_criteria: functions that end the answer.
        added_special: whether the prompt contains the BOS token.
    """

    prompt: str
    stop: str | list[str] | None = None
    stopping_criteria: Sequence[StoppingCriteria] | None = None
    added_special: bool = False


@dataclass(frozen=True)
class ChatFormat:
    """A chat format as data.

    Attributes:
        roles: the markers of the roles that messages may have, and of "assistant".
        style: format strings for a role's marker with a text, and for a marker without a text.
        ends: separators after messages, used in turn.
        system: format string of the system message; None: the format has none.
        usual: the default system message.
        after: follows the system message, or takes its place.
        stop: as in `ChatFormatterResponse`.
        opens: whether the prompt ends with the assistant's marker.
    """

    roles: Mapping[str, str]
    style: tuple[str, str]
    ends: tuple[str, ...]
    system: str | None = None
    usual: str = ""
    after: str = ""
    stop: str | None = None
    opens: bool = True
    shows_tools: bool = field(default=False, init=False)

    def __call__(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> ChatFormatterResponse:
        """The prompt of messages. Raises ConfigError for a role or part that the format does not support."""
        turns = [turn(i, message) for i, message in enumerate(messages)]
        system = next((text for role, text in turns if role == "system"), "")
        if system and self.system is None and "system" not in self.roles:
            warnings.warn(
                "chat_format: has no place for a system message, left out", UserWarning, stacklevel=2
            )
        for i, (role, _) in enumerate(turns):
            if role not in self.roles and role != "system":
                raise checks.refuse(f"messages[{i}].role", f"one of {', '.join(self.roles)}", role)
        texts = [(self.roles[role], text) for role, text in turns if role in self.roles]
        if self.opens:
            texts.append((self.roles["assistant"], ""))
        written = (self.system or "").format(system or self.usual) + self.after
        joined, empty = self.style
        for (role, text), end in zip(texts, cycle(self.ends)):
            written += joined.format(role, text) + end if text else empty.format(role)
        return ChatFormatterResponse(written, self.stop)


def turn(i: int, message: Mapping[str, Any]) -> tuple[str, str]:
    """The role and the text of a message. Raises ConfigError for a part that is not text."""
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        if not all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
            raise ConfigError(f"messages[{i}].content: expected parts of type text, got others")
        content = "\n".join(part["text"] for part in content)
    return str(message["role"]), content or ""


@dataclass(frozen=True)
class Llama2(ChatFormat):
    """Llama 2: the system message precedes the first message, which then has no role marker."""

    def __call__(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> ChatFormatterResponse:
        turns = [turn(i, message) for i, message in enumerate(messages)]
        system = next((text for role, text in turns if role == "system"), "")
        written = f"[INST] <<SYS>>\n{system}\n<</SYS>> " if system else " "
        texts = [(self.roles[role], text) for role, text in turns if role in self.roles]
        for i, (role, text) in enumerate(texts):
            if system and i == 0:
                written += text + self.ends[0]
            else:
                written += f"{role}{text} {self.ends[i % 2]}" if text else f"{role} "
        return ChatFormatterResponse(f"{written}[/INST]")


@dataclass(frozen=True)
class Mistral(ChatFormat):
    """Mistral's first format: instructions between [INST] markers, answers followed by the EOS text."""

    def __call__(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> ChatFormatterResponse:
        turns = [turn(i, message) for i, message in enumerate(messages)]
        if any(role == "system" for role, _ in turns):
            warnings.warn(
                "chat_format: has no place for a system message, left out", UserWarning, stacklevel=2
            )
        forms = {"user": "[INST] {}", "assistant": " [/INST]{}</s>"}
        written = "".join(forms[role].format(text) for role, text in turns if role in forms)
        return ChatFormatterResponse(f"{written} [/INST]", "</s>")


@dataclass(frozen=True)
class Saiga(ChatFormat):
    """Saiga: every role is written by name, including the system role."""

    def __call__(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> ChatFormatterResponse:
        turns = [turn(i, message) for i, message in enumerate(messages)]
        texts = [(role, text) for role, text in turns if role in self.roles]
        written = "".join(f"<s>{role}\n{text}</s>" if text else f"<s>{role}\n" for role, text in texts)
        return ChatFormatterResponse(f"{written}<s>bot".strip())


LINES = ("{}\n{}", "{}\n")
COLON = ("{}: {}", "{}:")
PLAIN = ("{}{}", "{}")

IM = {"user": "<|im_start|>user", "assistant": "<|im_start|>assistant"}
IM_END = ("<|im_end|>\n",)

VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
    "detailed, and polite answers to the user's questions. "
)
"""The sentence of the model's training data."""

CHAT_FORMATS: dict[str, ChatFormat] = {
    "llama-2": Llama2({"user": "<s>[INST]", "assistant": "[/INST]"}, PLAIN, (" ", "</s>")),
    "llama-3": ChatFormat(
        {role: f"<|start_header_id|>{role}<|end_header_id|>\n\n" for role in ("system", "user", "assistant")},
        PLAIN, ("<|eot_id|>",), stop="<|eot_id|>",
    ),
    "alpaca": ChatFormat(
        {"user": "### Instruction", "assistant": "### Response"}, COLON, ("\n\n", "</s>"), system="{}",
        after="\n\n", opens=False,
    ),
    "qwen": ChatFormat(
        IM, LINES, IM_END, system="<|im_start|>system\n{}", usual="You are a helpful assistant.",
        after="<|im_end|>\n", stop="<|endoftext|>",
    ),
    "vicuna": ChatFormat({"user": "USER", "assistant": "ASSISTANT"}, COLON, (" ", "</s>"), after=VICUNA),
    "oasst_llama": ChatFormat(
        {"user": "<|prompter|>", "assistant": "<|assistant|>"}, PLAIN, ("</s>",),
        system="[INST] <<SYS>>\n{}\n<</SYS>>\n\n",
    ),
    "baichuan-2": ChatFormat(
        {"user": "<reserved_106>", "assistant": "<reserved_107>"}, PLAIN, ("",), system="{}",
    ),
    "baichuan": ChatFormat(
        {"user": "<reserved_102>", "assistant": "<reserved_103>"}, PLAIN, ("",), system="{}",
    ),
    "redpajama-incite": ChatFormat(
        {"user": "<human>", "assistant": "<bot>"}, COLON, ("\n",), system="{}", after="\n", stop="<human>",
    ),
    "phind": ChatFormat(
        {"user": "### User Message", "assistant": "### Assistant"}, COLON, ("\n\n",),
        after="### System Prompt\nYou are an intelligent programming assistant.\n\n",
    ),
    "intel": ChatFormat(
        {"user": "### User:", "assistant": "### Assistant:"}, COLON, ("\n",), system="### System:\n{}",
        after="\n",
    ),
    "mistrallite": ChatFormat(
        {"user": "<|prompter|>", "assistant": "</s>\n<|assistant|>"}, PLAIN, (" ",),
        system="<|system|>{}</s>",
    ),
    "zephyr": ChatFormat(
        {"user": "<|user|>\n", "assistant": "<|assistant|>\n"}, LINES, ("</s>\n",), system="<|system|>\n{}",
        after="</s>\n", stop="</s>",
    ),
    "pygmalion": ChatFormat(
        {"user": "<|user|>", "assistant": "<|model|>"}, LINES, ("\n\n",), system="<|system|>{}", after="\n\n",
        stop="\n",
    ),
    "chatml": ChatFormat(
        IM, LINES, IM_END, system="<|im_start|>system\n{}", after="<|im_end|>\n", stop="<|im_end|>",
    ),
    "mistral-instruct": Mistral({"user": "", "assistant": ""}, PLAIN, ("",)),
    "chatglm3": ChatFormat(
        {"user": "<|user|>", "assistant": "<|assistant|>"}, ("{}\n {}", "{}"), ("",), system="<|system|>\n{}",
        stop="</s>",
    ),
    "openchat": ChatFormat(
        {"user": "GPT4 Correct User: ", "assistant": "<|end_of_turn|>GPT4 Correct Assistant: "}, LINES,
        ("<|end_of_turn|>\n",), system="{}<|end_of_turn|>", after="<|end_of_turn|>\n", stop="<|end_of_turn|>",
    ),
    "saiga": Saiga({"user": "user", "bot": "bot", "system": "system"}, LINES, ("</s>",)),
    "gemma": ChatFormat(
        {"user": "<start_of_turn>user\n", "assistant": "<start_of_turn>model\n"}, PLAIN, ("<end_of_turn>\n",),
        stop="<end_of_turn>\n",
    ),
}  # fmt: skip

NOT_OFFERED = {
    "openbuddy": "it has a long text of its own",
    "open-orca": "its prompt leaves out every message",
    "snoozy": "it has a long text of its own",
    "functionary": "its prompts are those of one family of models: its file's template has them",
    "functionary-v1": "its prompts are those of one family of models: its file's template has them",
    "functionary-v2": "its prompts are those of one family of models: its file's template has them",
}
"""Formats of llama-cpp-python that are not offered, and why."""
