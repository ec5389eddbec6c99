"""The special tokens of a vocabulary, from the keys of the file, else from their texts."""

from __future__ import annotations

import re
import warnings

from oxillama.gguf.metadata import Metadata
from oxillama.text.tokenizer.vocabulary import (
    CONTROL,
    LSTRIP,
    NORMAL,
    PREFIX,
    RSTRIP,
    SPECIAL,
    USER_DEFINED,
    Vocab,
)

INTEGERS = ("int32", "uint32", "int8", "uint8", "int16", "uint16", "int64", "uint64")
"""Types of arrays that hold ids."""

# Keys of special ids, in the order in which later ones win. seperator is GGUF's own spelling.
_ID_KEYS = (
    ("bos", "bos_token_id"), ("eos", "eos_token_id"), ("eot", "eot_token_id"), ("eom", "eom_token_id"),
    ("unk", "unknown_token_id"), ("sep", "seperator_token_id"), ("pad", "padding_token_id"),
    ("mask", "mask_token_id"), ("cls", "cls_token_id"),
    ("fim_pre", "fim_pre_token_id"), ("fim_suf", "fim_suf_token_id"), ("fim_mid", "fim_mid_token_id"),
    ("fim_pad", "fim_pad_token_id"), ("fim_rep", "fim_rep_token_id"), ("fim_sep", "fim_sep_token_id"),
    ("fim_pre", "prefix_token_id"), ("fim_suf", "suffix_token_id"), ("fim_mid", "middle_token_id"),
)  # fmt: skip

# Texts by which a token is recognised where the file does not name its id; the first present wins.
_ID_TEXTS = {
    "eot": (
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>",
        "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>", "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>", "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip

# Texts of tokens after which generation ends.
_END_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<|ifm|im_end|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip

_HARMONY_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # always shown


def read_special_ids(vocab: Vocab, meta: Metadata) -> None:
    """Read the ids that the file names; ids that a kind implies count only inside the vocabulary.

    An id outside the vocabulary is left out with a warning: the id that the kind implies stays, as in
    llama.cpp.
    """
    n_vocab = len(vocab.tokens)
    vocab.special = {name: id for name, id in vocab.special.items() if id < n_vocab}
    for name, suffix in _ID_KEYS:
        key = PREFIX + suffix
        id = meta.get(key, int, None)
        if id is not None and 0 <= id < n_vocab:
            vocab.special[name] = id
        elif id is not None:
            known = vocab.special.get(name)
            used = "it is left out" if known is None else f"{known} is used"
            _leave_out(key, id, n_vocab, used)
    suppress = meta.numbers(PREFIX + "suppress_tokens", INTEGERS)
    ids = [] if suppress is None else suppress.tolist()
    vocab.suppress_ids = frozenset(id for id in ids if 0 <= id < n_vocab)
    for id in ids:
        if id not in vocab.suppress_ids:
            _leave_out(f"{PREFIX}suppress_tokens", id, n_vocab, "it is left out")
            break


def _leave_out(key: str, id: int, n_vocab: int, what: str) -> None:
    """Warns of an id outside the vocabulary."""
    complaint = f"{key}: expected a token id from 0 to {n_vocab - 1}, got {id}; {what}"
    warnings.warn(complaint, stacklevel=5)


def recognise_ids(vocab: Vocab) -> None:
    """Find special ids that the file does not name, by the texts of tokens."""
    for name, texts in _ID_TEXTS.items():
        if name in vocab.special:
            continue
        found = next((vocab.ids[text] for text in texts if text in vocab.ids), None)
        if found is not None:
            vocab.special[name] = found
            vocab.types[found] |= CONTROL


def find_end_tokens(vocab: Vocab) -> None:
    """Collect `eog_ids`, and correct the types of tokens that are known by their text."""
    ends = {vocab.special[name] for name in ("fim_pad", "fim_rep", "fim_sep") if name in vocab.special}
    for id in vocab.present(_END_TEXTS):
        ends.add(id)
        vocab.types[id] |= CONTROL
    for id in vocab.present(_HARMONY_TEXTS):
        vocab.types[id] = USER_DEFINED
    ends |= {vocab.special[name] for name in ("eos", "eot", "eom") if name in vocab.special}
    texts = {vocab.tokens[id]: id for id in ends}
    # Formats with several closing tokens, in which these are not the end of a turn.
    calls = texts.keys() & {"<|call|>", "<|calls|>"}
    if "<|end|>" in texts and calls and texts.keys() & {"<|return|>", "<|flush|>"}:
        ends.discard(texts["<|end|>"])
        vocab.types[texts["<|end|>"]] = USER_DEFINED
    if "</s>" in texts and texts.keys() & {"<|tool_response>", "<|plamo:eos|>"}:
        ends.discard(texts["</s>"])
        vocab.types[texts["</s>"]] = NORMAL
    vocab.eog_ids = frozenset(ends)


def mark_space_swallowers(vocab: Vocab, meta: Metadata) -> None:
    """Mark the tokens that swallow spaces. GGUF has no key for them, so the model's name decides."""
    pre = meta.get(PREFIX + "pre", str, None) or ""
    architecture = meta.get("general.architecture", str, None) or ""
    name = (meta.get("general.name", str, None) or "").lower()
    if re.search("jina-v2-(de|es|code)", pre) or re.search("nomic-bert-moe|jina-bert-v3", architecture):
        for id in vocab.present(("<mask>",)):
            vocab.types[id] |= LSTRIP
    elif "phi-3" in name or "phi3" in name:
        swallowing = {id for id, kind in enumerate(vocab.types) if kind & SPECIAL}
        swallowing.update(vocab.present(("</s>",)))
        swallowing.difference_update(vocab.present(("<unk>", "<s>", "<|endoftext|>")))
        for id in swallowing:
            vocab.types[id] |= RSTRIP
    elif "modern-bert" in name:
        for id in vocab.present(("[MASK]",)):
            vocab.types[id] |= LSTRIP
