"""How long the parts of a request took, as llama-server's clients read it."""

from __future__ import annotations

import math

from oxillama.engine.generation import Generation


def timings(generation: Generation) -> dict[str, float]:
    """Tokens and milliseconds of the prompt and of the text.

    The first token of a text comes from the last step of the prompt, and so does not count for its speed.
    """
    usage, seconds = generation.usage, generation.timings
    n_run, n_text = usage.prompt_tokens - usage.cached_tokens, usage.generated_tokens
    found: dict[str, float] = {"cache_n": usage.cached_tokens}
    parts = (("prompt", n_run, n_run, seconds.prefill), ("predicted", n_text, n_text - 1, seconds.decode))
    for name, n, n_steps, spent in parts:
        spent = 0.0 if math.isnan(spent) else spent
        found[f"{name}_n"] = n
        found[f"{name}_ms"] = 1000 * spent
        found[f"{name}_per_token_ms"] = 1000 * spent / n_steps if n_steps > 0 else 0.0
        found[f"{name}_per_second"] = n_steps / spent if spent and n_steps > 0 else 0.0
    drafts = generation.speculation
    if drafts is not None:
        found |= {"draft_n": drafts.drafted, "draft_n_accepted": drafts.accepted}
    return found
