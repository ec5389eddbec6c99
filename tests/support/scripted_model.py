"""A model for any chat template that writes the same words each time: reasoning, then an answer.

The next token depends on the last token alone. Attention and the feed-forward network add nothing, so the
output table is a table of pairs. Calls of tools have to be required: then a grammar leads the model, which
ends texts, lists and objects as soon as the grammar lets it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.tiny_file import BOS, tiny_vocabulary, write_tiny_model

ANSWER = "once upon time"
"""The text of each answer. A space precedes it in the model's own text."""

REASONING, N_REASONING = "once upon", 2
"""The text of reasoning, and the budget of reasoning with which the model writes the text."""

WORDS = (" once", " upon", " time")
TAGS = ("\n</parameter>\n", "\n</parameter>", "</arg_value>", "<tool_call>")
"""What ends a text in calls whose arguments are written between tags, and what begins such a call."""

ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>"
"""What gpt-oss writes before reasoning and before an answer."""

HARMONY = (ANALYSIS, FINAL, "<|end|>", "<|call|>", "<|return|>")
"""Tokens of gpt-oss's vocabulary: with the last two of them the first of these three ends no text."""

EOS = "<eos>"
"""The end of a text, which no template has in a prompt."""

N_EMBD = 64
MOST = 300


def scripted_model(path: Path, template: str, context_length: int = 16384) -> Path:
    """Writes a model with a chat template to ``path`` and returns it."""
    tags = [tag for tag in TAGS if tag.strip() in template]
    pieces = (*tags, *(HARMONY if "<|channel|>" in template else ()))
    tokens = tiny_vocabulary(pieces, EOS)[0]
    ids = {token.replace("Ġ", " ").replace("Ċ", "\n"): i for i, token in enumerate(tokens)}
    after = dict(zip(WORDS, (*WORDS[1:], EOS), strict=True))
    if ANALYSIS in pieces:
        after |= {"t": ANALYSIS, "<|end|>": FINAL}  # the prompt ends with "assistant"
    classes = {ids[text]: n for n, text in enumerate(after, 1)}
    embeddings = np.zeros((len(tokens), N_EMBD), np.float32)
    output = np.zeros((len(tokens), N_EMBD), np.float32)
    for i in range(len(tokens)):
        embeddings[i, classes.get(i, 0)] = 1
    wishes = [EOS, *tags, '"', "}", "]", ",", "1"]  # where a grammar allows them
    for rank, text in enumerate(wishes):
        output[ids[text]] = 20 * (len(wishes) - rank)
    output[ids[BOS]] = -20
    output[ids[WORDS[0]], 0] = MOST
    for number, text in enumerate(after.values(), 1):
        output[ids[text], number] = MOST
    nothing = {
        f"blk.0.{name}.weight": np.zeros(shape, np.float32)
        for name, shape in (("attn_output", (N_EMBD, N_EMBD)), ("ffn_down", (N_EMBD, 96)))
    }
    tables = {"token_embd.weight": embeddings, "output.weight": output / np.float32(N_EMBD**0.5)}
    return write_tiny_model(
        path,
        n_layers=1,
        context_length=context_length,
        chat_template=template,
        pieces=pieces,
        eos=EOS,
        tensors={**tables, **nothing},
    )
