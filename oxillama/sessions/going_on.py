"""Continues a session with a whole prompt, such as a conversation with one more message."""

from __future__ import annotations

from typing import Any

from oxillama.engine.cache.radix import common_length
from oxillama.sessions.session import Session


def go_on(session: Session, prompt: Any) -> None:
    """Give a session the tokens of a prompt; the common prefix is not run again.

    The last token is always run, for its logits. A picture or a sound is kept as a whole, or not at all.

    Args:
        prompt: token ids, or a `MediaPrompt`.

    Raises PromptError as `Session.append` does; the session then holds the common prefix. Raises ConfigError
    while a generation goes on; one that was cancelled ends first.
    """
    theirs = getattr(prompt, "embeddings", None)
    tokens = list(prompt if theirs is None else prompt.tokens)
    with session.idle():
        ours = session.embeddings
        n = common_length(marked(session.tokens, ours), marked(tokens, theirs)[:-1])
        media = [embeddings for embeddings in (ours, theirs) if embeddings is not None]
        while (before := min((embeddings.outside(n) for embeddings in media), default=n)) < n:
            n = before
        if n < len(session):
            session.rewind(n)
        session.append(tokens[n:] if theirs is None else prompt.behind(n))


def marked(tokens: list[int], embeddings: Any) -> list[int]:
    """Token ids in which positions of different input embeddings differ, too."""
    found: list[int] = tokens if embeddings is None else embeddings.marked(tokens)
    return found
