"""Messages in the forms that a chat template needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.chat.fitting import rules_for
from oxillama.text.chat.messages import canonical
from oxillama.text.chat.prompt import escaped_text
from oxillama.text.chat.rules import applied
from oxillama.text.chat.template import ChatTemplate


def fitted(messages: Sequence[Any], template: ChatTemplate) -> list[Any]:
    """The messages of a client as a template reads them."""
    found = canonical(messages, template)
    return applied(rules_for(template, found) or (), found, template.format)


def rule_names(messages: Sequence[Any], template: ChatTemplate) -> set[str]:
    """The names of the rules that a template needs for some messages."""
    return {rule.name for rule in rules_for(template, canonical(messages, template)) or ()}


def chat_tokens(tokenizer: TokenizerBridge, messages: Sequence[Any], **variables: Any) -> list[int]:
    """The token ids of a chat's prompt."""
    return tokenizer.encode_rendered(escaped_text(tokenizer, messages, variables=variables), escaped=True)
