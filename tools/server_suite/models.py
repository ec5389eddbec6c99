"""Models that replace the models of llama-server's test suite: the story model and random encoders."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # functions import gguf and numpy when they need them, so that the shim starts fast
    import gguf

CHATML = (
    "{% for t in tools or [] %}<tools>{{ t | tojson }}</tools>\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    '{% for c in m.tool_calls or [] %}\n<tool_call>\n{"name": "{{ c.function.name }}", '
    '"arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}'
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
COMMAND_R = (
    "{% for m in messages %}<|START_OF_TURN_TOKEN|><|{{ {'user': 'USER', 'assistant': 'CHATBOT'}"
    ".get(m.role, 'SYSTEM') }}_TOKEN|>{{ m.content }}<|END_OF_TURN_TOKEN|>{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
)
NAMED_TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "command-r": COMMAND_R}
"""Templates that llama-server knows by name."""

CONTEXT = 8192
"""Context length in the files' metadata; the story model was trained with 512 tokens."""

RANK_SEED = 14
"""Seed of the reranker's weights, chosen so that the suite's documents have the expected order."""

WIDTH, FEED, LAYERS, HEADS, POSITIONS = 64, 96, 2, 4, 512


def make_all(folder: Path, texts: list[str]) -> None:
    """Writes all models into a folder.

    Args:
        texts: each word of them is a token in the vocabulary of the encoders.
    """
    from oxillama import demo

    folder.mkdir(parents=True, exist_ok=True)
    rewrite(demo.STORY, folder / "story.gguf", {"llama.context_length": CONTEXT})
    marks = {f"tokenizer.ggml.fim_{mark}_token_id": 1000 + i for i, mark in enumerate(("pre", "suf", "mid"))}
    rewrite(demo.STORY, folder / "infill.gguf", {"llama.context_length": CONTEXT, **marks})
    words = sorted({word for text in texts for word in re.findall(r"[a-z]+|[0-9]|[^\sa-z0-9]", text.lower())})
    write_encoder(folder / "embed.gguf", words, ranks=False)
    write_encoder(folder / "rank.gguf", words, ranks=True, seed=RANK_SEED)
    rewrite(demo.STORY, folder / "vision" / "story.gguf", {"llama.context_length": CONTEXT})
    write_projector(folder / "vision" / "mmproj-story.gguf", width=256)


def rewrite(source: Path, target: Path, changed: dict[str, int | str]) -> Path:
    """Copies a GGUF file with other metadata."""
    import gguf

    target.parent.mkdir(exist_ok=True)
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    own = ("general.architecture", "GGUF.version", "GGUF.tensor_count", "GGUF.kv_count")
    for name, field in reader.fields.items():
        if name not in (*own, *changed):
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, inner)
    for name, value in changed.items():
        kind = gguf.GGUFValueType.STRING if isinstance(value, str) else gguf.GGUFValueType.UINT32
        writer.add_key_value(name, value, kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    finish(writer)
    return target


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def with_template(model: Path, template: str) -> Path:
    """The path of a copy of a model with a chat template; the copy is made once."""
    digest = hashlib.sha256(template.encode()).hexdigest()[:12]
    target = model.with_name(f"{model.stem}-{digest}.gguf")
    if not target.exists():
        made = rewrite(model, target.with_suffix(".new"), {"tokenizer.chat_template": template})
        made.rename(target)
    return target


def write_encoder(path: Path, words: list[str], *, ranks: bool, seed: int = 0) -> None:
    """Writes a BERT of random weights. Its tokens are whole words, single letters and marks."""
    import gguf
    import numpy as np

    letters = [chr(code) for code in range(33, 127)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    starts = dict.fromkeys(f"\u2581{word}" for word in (*letters, *words))
    tokens = [*special, *starts, *letters]
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name(path.stem)
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.RANK if ranks else gguf.PoolingType.CLS)
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(special) + [1] * (len(tokens) - len(special)))
    writer.add_token_type_count(2)
    for name, token in (("pad", 0), ("unk", 1), ("sep", 3), ("mask", 4), ("bos", 2)):
        getattr(writer, f"add_{name}_token_id")(token)
    rng = np.random.default_rng(seed)

    def add(name: str, *shape: int, spread: float | None = None) -> None:
        spread = shape[-1] ** -0.5 if spread is None else spread
        writer.add_tensor(name, (rng.standard_normal(shape) * spread).astype(np.float32))

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
        writer.add_tensor(f"{name}.bias", np.zeros(WIDTH, np.float32))

    def add_linear(name: str, n_out: int, n_in: int) -> None:
        add(f"{name}.weight", n_out, n_in)
        add(f"{name}.bias", n_out, spread=0.1)

    add("token_embd.weight", len(tokens), WIDTH, spread=1.0)
    add("token_types.weight", 2, WIDTH, spread=0.1)
    add("position_embd.weight", POSITIONS, WIDTH, spread=0.1)
    add_norm("token_embd_norm")
    for i in range(LAYERS):
        for part in ("q", "k", "v", "output"):
            add_linear(f"blk.{i}.attn_{part}", WIDTH, WIDTH)
        add_norm(f"blk.{i}.attn_output_norm")
        add_linear(f"blk.{i}.ffn_up", FEED, WIDTH)
        add_linear(f"blk.{i}.ffn_down", WIDTH, FEED)
        add_norm(f"blk.{i}.layer_output_norm")
    if ranks:
        add_linear("cls", WIDTH, WIDTH)
        add_linear("cls.output", 1, WIDTH)
    finish(writer)


def write_projector(path: Path, width: int) -> None:
    """Writes a picture encoder of LLaVA's form with random weights: 64 rows for a picture.

    Args:
        width: of the token embeddings of the language model.
    """
    import gguf
    import numpy as np

    inner, feed, patch, side = 32, 48, 7, 56
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    for name, value in (
        ("image_size", side),
        ("patch_size", patch),
        ("embedding_length", inner),
        ("feed_forward_length", feed),
        ("projection_dim", width),
        ("block_count", 2),
        ("attention.head_count", 2),
    ):
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    for name in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{name}", [0.5, 0.5, 0.5])
    shapes: dict[str, tuple[int, ...]] = {"v.patch_embd": (inner, 3, patch, patch), "v.post_ln": (inner,)}
    for i in range(2):
        shapes |= {f"v.blk.{i}.ln{n}": (inner,) for n in (1, 2)}
        shapes |= {f"v.blk.{i}.attn_{part}": (inner, inner) for part in ("q", "k", "v", "out")}
        shapes |= {f"v.blk.{i}.ffn_up": (feed, inner), f"v.blk.{i}.ffn_down": (inner, feed)}
    shapes |= {
        "v.position_embd": ((side // patch) ** 2, inner),
        "mm.0": (inner, inner),
        "mm.2": (width, inner),
    }
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        spread = float(np.prod(shape[1:])) ** -0.5
        writer.add_tensor(f"{name}.weight", (rng.standard_normal(shape) * spread).astype(np.float32))
    finish(writer)


def texts_of(folder: Path) -> list[str]:
    """The quoted texts in the suite's files, whose words the encoders have as tokens."""
    found: list[str] = []
    for path in sorted(folder.glob("test_*.py")):
        found += re.findall(r'"([^"\n]{1,600})"', path.read_text(encoding="utf-8"))
    return found
