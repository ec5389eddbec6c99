"""Tiny decision models of every kind: random weights, a vocabulary of bytes, templates of their own."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from oxillama.text.tokenizer.segmenters.byte_pair import BYTE_TO_CHAR
from tests.support import gguf_writer as ggufwriter
from tests.support.zoo import Model, stored

WORDS = ["yes", "no", "Yes", "No", "AB", "CD", "ĠA", "Ġa", "01", "in", "Ġthe"]
CONTROL = (
    "<|end|>", "<|turn|>", "<|open|>", "<|stop|>", "<|ask|>", "<|box_end|>", "[MASK]", "[SEP]", "[CLS]",
)  # fmt: skip
SHOWN = "{% macro show(v) %}{{ v if v is string else v | tojson }}{% endmacro %}"
LISTED = (
    "{% for o in options %}{{ o.label }}: {{ o.key }}"
    "{% if o.description is not none %} ({{ show(o.description) }}){% endif %}\n{% endfor %}"
)
PLAIN = (
    SHOWN
    + "<|turn|>{{ show(state) }}\n{{ id if not instructions else show(instructions) }}\n"
    + LISTED
    + "<|end|>"
)
TEMPLATES = {
    "openjev": PLAIN.replace("o.label", "'ABCDEFGH'[loop.index0]"),
    "lev": PLAIN,
    "pplx-decider": PLAIN,
    "lfm2-d1": PLAIN.replace("{{ show(state) }}", "{% if state is not none %}{{ show(state) }}{% endif %}"),
    "nimble": SHOWN + "<|turn|>{{ show(state) }}\n{% for q in questions %}{{ q.id }}={% for o in q.options %}"
    "{{ o.label }}:{{ o.key }} {% endfor %}{% endfor %}\n{{ id }}<|end|>",
    "kev": "<|turn|>{{ state }}<|ask|>{{ instructions }}{% for o in options %}<|open|>{{ o.key }}"
    "{% if o.description is not none %}: {{ o.description }}{% endif %}<|box_end|>{% endfor %}<|end|>",
    "laya": SHOWN + "[CLS]{{ type }} {{ show(instructions) }}[SEP]{% for o in options %}[MASK]{{ o.key }}"
    "{% if o.description is not none %}: {{ show(o.description) }}{% endif %}{% endfor %}[SEP]"
    "{{ show(state) }}[SEP]",
    "lfm2-d1-omni": SHOWN + "{{ sep }}<|turn|>{{ sep }}{{ mark_state }}"
    "{{ '' if state is none else show(state) }}{{ sep }}{{ mark_question }}{{ show(instructions) }}"
    "{% for o in options %}{{ sep }}[MASK]{{ sep }}"
    "{{ mark_option }}{{ o.key }}{% endfor %}{{ sep }}<|end|>",
    "clef": SHOWN + "<|turn|>{{ sep }}{{ show(state) }}{{ sep }}\n{% for q in questions %}{{ sep }}"
    "{{ q.id }} {{ sep }}{{ mark_question }}{{ show(q.instructions) }}{{ sep }}\n{% for o in q.options %}"
    "{{ sep }}- {{ sep }}{{ mark_option }}{{ o.key }}{{ sep }}\n{% endfor %}{% endfor %}{{ sep }}<|end|>",
}  # fmt: skip
"""By kind."""

TOKENS = [*BYTE_TO_CHAR.values(), *WORDS, *CONTROL]
N = len(TOKENS)
KEYS = {"decision.temperature.choice.3_5": 1.25, "decision.temperature.score": 0.75}
DELTA = {"n_layers": 2, "n_vocab": N, "context": 2048}
HEAD = {"decision.block_count": 2, "attention.layer_norm_epsilon": 1e-5, "decision.max_head_tokens": 96}
TRUNKS = {
    **dict.fromkeys(
        ("openjev", "lev", "nimble", "pplx-decider"), Model("qwen35", **DELTA, keys=KEYS, seed=11)
    ),
    "kev": Model("qwen35", **DELTA, keys=KEYS | {"embedding_length_out": 12}, seed=12),
    "clef": Model(
        "clef", **DELTA, seed=13,
        keys=KEYS | HEAD | {"decision.routing_block_count": 1, "decision.head_count": 2},
    ),
    "lfm2-d1": Model("lfm2", n_layers=2, n_vocab=N, context=2048, keys=KEYS, seed=14),
    "lfm2-d1-omni": Model(
        "lfm2", n_layers=2, n_vocab=N, context=2048, seed=15,
        keys=KEYS | HEAD | {
            "attention.causal": False, "block_count": 4, "feed_forward_length": [40, 40, 24, 28],
            "attention.head_count_kv": [0, 2, 4, 4],
        },
    ),
    "laya": Model(
        "modern-bert", n_layers=2, n_vocab=N, context=2048, seed=16,
        keys=KEYS | HEAD | {"block_count": 4, "feed_forward_length": [40, 40, 24, 28]},
    ),
}  # fmt: skip


def head_tensors(kind: str, d: int, seed: int = 5) -> dict[str, np.ndarray]:
    """The tensors of a kind's head."""
    rng, made = np.random.default_rng(seed), dict[str, np.ndarray]()

    def add(name: str, *shape: int, bias: bool = True) -> None:
        values = rng.standard_normal(shape)
        made[f"{name}.weight"] = (values * shape[-1] ** -0.5 if len(shape) > 1 else 1 + 0.2 * values).astype(
            "f4"
        )
        if bias:
            made[f"{name}.bias"] = (0.3 * rng.standard_normal(shape[:1])).astype("f4")

    if kind == "kev":
        add("cls.output", 12, d)
    if kind in ("laya", "lfm2-d1-omni"):
        add("token_types", 3, d, bias=False)
        for i, width in ((2, 24), (3, 28)):
            add(f"blk.{i}.attn_norm", d)
            add(f"blk.{i}.attn_qkv", 3 * d, d)
            add(f"blk.{i}.attn_output", d, d)
            add(f"blk.{i}.ffn_norm", d)
            add(f"blk.{i}.ffn_up", width, d)
            add(f"blk.{i}.ffn_down", d, width)
        add("cls.norm", d)
        add("cls", d, d)
        add("cls.output", 1, d)
    if kind == "clef":
        e = 20
        for name, width in (("hidden", d), ("option_summary", e), ("field", e), ("option", e)):
            add(f"decision.{name}_norm", width)
        for name in ("memory", "question", "option_question", "global", "option_context", "option_lexical"):
            add(f"decision.proj_{name}", e, d, bias=False)
        add("decision.scorer", e, 4 * e)
        add("decision.scorer_out", 1, e)
        add("token_types", 3, e, bias=False)
        made["decision.scales"] = np.array([3.0, 2.0, 0.7], "f4")
        for i in range(3):
            block = f"dec.blk.{i}"
            add(f"{block}.cross_attn_norm" if i else f"{block}.cross_attn_norm_kv", e)
            for part in ("attn",) * (i > 0) + ("cross_attn",):
                add(f"{block}.{part}_norm", e)
                for each in "qkvo":
                    add(f"{block}.{part}_{each}", e, e)
            add(f"{block}.ffn_norm", e)
            add(f"{block}.ffn_up", 24, e)
            add(f"{block}.ffn_down", e, 24)
    return made


@functools.cache
def decision_file(kind: str) -> bytes:
    """A GGUF file of a decision model."""
    return made_file(kind)


def made_file(kind: str, template: str | None = None, **keys: Any) -> bytes:
    """`decision_file` with another template and other metadata."""
    model = TRUNKS[kind]
    model = replace(model, keys=model.keys | {"decision.type": kind} | keys)
    tensors = model.tensors() | head_tensors(kind, model.n_embd)
    return written(model, tensors, "systemone", TEMPLATES[kind] if template is None else template)


CHAT = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def chat_file(template: str = CHAT, architecture: str = "llama", **sizes: Any) -> bytes:
    """A GGUF file of a chat model."""
    model = Model(architecture, n_layers=2, n_vocab=N, context=2048, seed=17, **sizes)
    return written(model, model.tensors(), "", template)


def written(model: Model, tensors: dict[str, np.ndarray], name: str, template: str) -> bytes:
    """A GGUF file with a vocabulary and a chat template of this name."""
    merges = [
        "y e", "ye s", "n o", "Y e", "Ye s", "N o", "A B", "C D", "Ġ A", "Ġ a", "0 1", "i n", "Ġ t", "Ġt h",
        "Ġth e",
    ]  # fmt: skip
    types = [3 if token in CONTROL else 1 for token in TOKENS]
    special = {"mask": "[MASK]", "seperator": "[SEP]", "cls": "[CLS]", "bos": "[CLS]", "eos": "<|end|>"}
    pairs = [
        ("general.architecture", "str", model.architecture),
        ("tokenizer.ggml.model", "str", "gpt2"),
        ("tokenizer.ggml.pre", "str", "qwen2"),
        ("tokenizer.ggml.add_bos_token", "bool", False),
        ("tokenizer.ggml.tokens", "[str]", TOKENS),
        ("tokenizer.ggml.token_type", "[i32]", types),
        ("tokenizer.ggml.merges", "[str]", merges),
        *((f"tokenizer.ggml.{each}_token_id", "u32", TOKENS.index(token)) for each, token in special.items()),
        ("tokenizer.chat_template" + (f".{name}" if name else ""), "str", template),
        *((model.full_key(key), *pair) for key, pair in model.metadata().items()),
    ]
    return ggufwriter.write(pairs, [stored(each, values, "F32") for each, values in tensors.items()])
