"""``info`` and ``tokenize``: what a file holds, and what its vocabulary makes of a text. Nothing is run."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from oxillama import GGUFError, LoadError, TokenizerError
from oxillama.cli.console import human_bytes, human_count, print_json, print_rows, read_text

if TYPE_CHECKING:
    from oxillama.modelfile import ModelFile
    from oxillama.vocab import TokenType

SIZES = {
    "context length": "context_length",
    "layers": "block_count",
    "embedding": "embedding_length",
    "feed forward": "feed_forward_length",
    "heads": "attention.head_count",
    "key/value heads": "attention.head_count_kv",
    "experts": "expert_count",
}
"""Metadata keys, after the architecture's name, that most architectures have."""


def add_commands(commands: Any) -> None:
    info = commands.add_parser(
        "info",
        help="describe a model file",
        description="Describes a model file, runnable or not. Its header is read, tensors are not.",
        allow_abbrev=False,
    )
    info.add_argument("model", metavar="MODEL", help="GGUF file (of a split one: the first)")
    info.add_argument("--tensors", action="store_true", help="list every tensor")
    info.add_argument("--json", action="store_true", help="write JSON")
    info.set_defaults(command=run_info)

    tokenize = commands.add_parser(
        "tokenize",
        help="turn text into token ids, or back",
        description="Writes the token ids of a text, or with --decode the text of token ids.",
        allow_abbrev=False,
    )
    tokenize.add_argument("model", metavar="MODEL", help="GGUF file; one with a vocabulary alone will do")
    tokenize.add_argument("text", metavar="TEXT", help="text, or ids with --decode; - reads them from stdin")
    tokenize.add_argument("--pieces", action="store_true", help="a line for each token: id, type, bytes")
    tokenize.add_argument("--no-special", action="store_true", help="add no BOS or EOS")
    tokenize.add_argument(
        "--parse-special", action="store_true", help="names of control tokens in the text stand for them"
    )
    tokenize.add_argument("--decode", action="store_true", help="ids to text; control tokens are left out")
    tokenize.set_defaults(command=run_tokenize)


# --- info -------------------------------------------------------------------------------------------


def run_info(args: argparse.Namespace) -> int:
    from oxillama.modelfile import ModelFile

    with ModelFile.open(args.model) as file:
        facts = describe(file)
    if args.tensors:
        facts["tensors"] = [
            {"name": t.name, "format": t.format.name, "shape": list(t.shape), "bytes": t.nbytes}
            for t in file.tensors.values()
        ]
    if args.json:
        print_json(facts)
    else:
        print_facts(facts)
    return 0


def describe(file: ModelFile) -> dict[str, Any]:
    """What `info` tells, ready for JSON; None for what the file does not say."""
    architecture = file.metadata.get("general.architecture")
    n_elements = sum(tensor.n_elements for tensor in file.tensors.values())
    n_bytes = sum(tensor.nbytes for tensor in file.tensors.values())
    tokenizer, missing = describe_tokenizer(file)
    missing = reasons_not_to_run(file) + missing
    return {
        "files": [str(path) for path in file.paths],
        "file_bytes": file.file_size,
        "gguf_version": file.version,
        "architecture": plain(architecture),
        "name": plain(file.metadata.get("general.name")),
        "parameters": n_elements,
        "bits_per_weight": round(8 * n_bytes / n_elements, 3) if n_elements else None,
        **{key: plain(file.metadata.get(f"{architecture}.{key}")) for key in SIZES.values()},
        "rotation": describe_rotation(file),
        "formats": describe_formats(file),
        "tokenizer": tokenizer,
        "supported": not missing,
        "missing": missing,
    }


def describe_rotation(file: ModelFile) -> str | None:
    """How positions turn: pairing, base and scaling; None where nothing turns or the model cannot run."""
    from oxillama.models import read_spec

    try:
        spec = read_spec(file)
    except (LoadError, GGUFError):
        return None  # why is among the reasons not to run
    used = sorted({layer.rope for layer in spec.layers if layer.rope is not None})
    kinds = []
    for rope in (spec.ropes[i] for i in used):
        plain_turn = rope.kind == "none" or (rope.kind == "linear" and rope.factor == 1)
        scaling = "unscaled" if plain_turn else f"{rope.kind} by {rope.factor:g}"
        pairs = "halves" if rope.neox else "neighbours"
        kinds.append(f"{rope.n_rot} dimensions, {pairs}, base {rope.base:g}, {scaling}")
    factors = ", with factors" if any("rope_f" in name for name in file.tensors) else ""
    return "; ".join(dict.fromkeys(kinds)) + factors if kinds else None


def describe_formats(file: ModelFile) -> list[dict[str, Any]]:
    """Tensors and bytes of each format, most bytes first."""
    found: dict[str, dict[str, Any]] = {}
    for tensor in file.tensors.values():
        fmt = tensor.format
        row = found.setdefault(
            fmt.name,
            {"format": fmt.name, "tensors": 0, "bytes": 0, "bits_per_weight": fmt.bits_per_weight},
        )
        row["tensors"] += 1
        row["bytes"] += tensor.nbytes
    return sorted(found.values(), key=lambda row: (-row["bytes"], row["format"]))


def describe_tokenizer(file: ModelFile) -> tuple[dict[str, Any], list[str]]:
    """What the file says of its vocabulary, and why it cannot be used if so."""
    from oxillama import TokenizerBridge

    facts = {
        "model": plain(file.metadata.get("tokenizer.ggml.model")),
        "pre": plain(file.metadata.get("tokenizer.ggml.pre")),
        "kind": None,
        "tokens": None,
        "chat_template": None,
    }
    try:
        tokenizer = TokenizerBridge.from_metadata(file.metadata)
    except TokenizerError as error:
        return facts, [str(error)]
    names = tokenizer.chat_template_names
    facts |= {"kind": tokenizer.vocab.kind, "tokens": tokenizer.n_vocab, "chat_template": bool(names)}
    return facts, []


def reasons_not_to_run(file: ModelFile) -> list[str]:
    """What stands between this file and a run, as far as its header tells (shapes are checked by loading)."""
    from oxillama.models import read_spec

    reasons = []
    try:
        read_spec(file)
    except (LoadError, GGUFError) as error:
        reasons.append(str(error))
    without = {t.format.name for t in file.tensors.values() if t.format.layout is None}
    return reasons + [f"format {name} has no kernels" for name in sorted(without)]


def plain(value: Any) -> Any:
    """A metadata value as JSON takes it; an array of one number throughout as that number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (str, int)):
        return value
    if not hasattr(value, "dtype"):
        return f"array of {len(value)}"
    values = [plain(v) for v in value.tolist()]
    return values[0] if values and values.count(values[0]) == len(values) else values


def print_facts(facts: dict[str, Any]) -> None:
    tokenizer = facts["tokenizer"]
    kind = ", ".join(str(tokenizer[key]) for key in ("kind", "model", "pre") if tokenizer[key] is not None)
    rows = {
        "file": ", ".join(facts["files"]),
        "size": f"{human_bytes(facts['file_bytes'])}, GGUF version {facts['gguf_version']}",
        "architecture": facts["architecture"],
        "name": facts["name"],
        "parameters": f"{human_count(facts['parameters'])}, {facts['bits_per_weight'] or 0} bits per weight",
        **{label: facts[key] for label, key in SIZES.items()},
        "rotation": facts["rotation"],
        "vocabulary": f"{tokenizer['tokens']} tokens ({kind})" if kind else "none",
        "chat template": {True: "yes", False: "no", None: None}[tokenizer["chat_template"]],
        "supported": "yes" if facts["supported"] else "no: " + "; ".join(facts["missing"]),
    }
    print_rows([label, shortened(value)] for label, value in rows.items() if value is not None)
    print()
    heading = ("format", "tensors", "bytes", "bits per weight")
    numbers = [
        (f["format"], str(f["tensors"]), human_bytes(f["bytes"]), f"{f['bits_per_weight']:g}")
        for f in facts["formats"]
    ]
    print_rows([heading, *numbers], right=(1, 2, 3))
    if "tensors" in facts:
        print()
        print_rows(
            [
                ("tensor", "format", "shape", "bytes"),
                *(
                    (t["name"], t["format"], " x ".join(map(str, t["shape"])), human_bytes(t["bytes"]))
                    for t in facts["tensors"]
                ),
            ],
            right=(3,),
        )


def shortened(value: Any) -> str:
    """A value in one line; of a long list (heads of each layer) the extremes."""
    if isinstance(value, list) and len(value) > 8:
        return f"{min(value)} to {max(value)}, {len(value)} values"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


# --- tokenize ---------------------------------------------------------------------------------------


def run_tokenize(args: argparse.Namespace) -> int:
    from oxillama import TokenizerBridge

    text = read_text("-", "text") if args.text == "-" else args.text
    tokenizer = TokenizerBridge.from_gguf(args.model)
    if args.decode:
        ids = read_ids(text, tokenizer.n_vocab)
    else:
        ids = tokenizer.encode(text, add_special=not args.no_special, parse_special=args.parse_special)
    if args.pieces:
        for id in ids:
            print(id, type_names(tokenizer.token_type(id)), str(tokenizer.token_bytes(id))[1:], sep="\t")
    elif args.decode:
        print(tokenizer.decode(ids))
    else:
        print(*ids)
    return 0


def type_names(kinds: TokenType) -> str:
    """The names of a token's type bits: "control", "normal", ..."""
    return ",".join(str(kind.name).lower() for kind in type(kinds) if kind & kinds) or "undefined"


def read_ids(text: str, n_vocab: int) -> list[int]:
    """Token ids from text such as "1 2 3" or "[1, 2, 3]". Raises TokenizerError."""
    ids = []
    for word in text.replace(",", " ").strip().removeprefix("[").removesuffix("]").split():
        if not (word.isascii() and word.isdigit()) or len(word) > 10 or int(word) >= n_vocab:
            raise TokenizerError(f"token id: needs an integer from 0 to {n_vocab - 1}, got {word!r:.40}")
        ids.append(int(word))
    return ids
