"""A session goes on with a whole prompt, such as that of a conversation with one more message."""

from __future__ import annotations

from typing import Any

from oxillama.sessions.session import Session


def go_on(session: Session, prompt: Any) -> None:
    """Gives a session the tokens of a prompt; what it begins with as the session does is not run again.

    The last token is, for its logits are wanted. A picture or a sound is kept as a whole, or not at all.

    Parameters
    ----------
    prompt : token ids, or a `MediaPrompt`.

    Raises PromptError, as `Session.append`; the session then has what it has in common with the prompt.
    """
    ours, theirs = session.given, getattr(prompt, "given", None)
    tokens = list(prompt if theirs is None else prompt.tokens)
    n = common(marked(session.tokens, ours), marked(tokens, theirs)[:-1])
    media = [given for given in (ours, theirs) if given is not None]
    while (before := min((given.outside(n) for given in media), default=n)) < n:
        n = before
    if n < len(session):
        session.rewind(n)
    session.append(tokens[n:] if theirs is None else prompt.behind(n))


def marked(tokens: list[int], given: Any) -> list[int]:
    """Ids that tell given rows apart, too."""
    found: list[int] = tokens if given is None else given.marked(tokens)
    return found


def common(ours: list[int], theirs: list[int]) -> int:
    """How many tokens two sequences have in common at their beginnings."""
    for n, (one, other) in enumerate(zip(ours, theirs)):
        if one != other:
            return n
    return min(len(ours), len(theirs))
