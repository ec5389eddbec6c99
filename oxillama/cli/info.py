"""``info`` and ``tokenize``: what a file holds, and what its vocabulary makes of a text. Nothing is run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from oxillama import TokenizerError
from oxillama.cli.console import human_bytes, human_count, print_json, print_rows, read_text, say

if TYPE_CHECKING:
    from oxillama.tokenizer.vocabulary import TokenType


def add_commands(commands: Any) -> None:
    info = commands.add_parser(
        "info",
        help="describe a model file",
        description="Describes a model file: what it needs, and whether that is supported (exit code 1). "
        "Its header and vectors are read, matrices are not.",
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


# --- info -------------------------------------------------------------------------------------------


def run_info(args: argparse.Namespace) -> int:
    from oxillama.cli.facts import describe
    from oxillama.gguf.model_file import ModelFile

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
    for reason in facts["missing"]:
        say("error", reason)
    return 1 if facts["missing"] else 0


def print_facts(facts: dict[str, Any]) -> None:
    tokenizer, memory = facts["tokenizer"], facts["memory"]
    kind = ", ".join(str(tokenizer[key]) for key in ("kind", "model", "pre") if tokenizer[key] is not None)
    tokens = "unusable" if tokenizer["tokens"] is None else f"{tokenizer['tokens']} tokens"
    rows = {
        "file": ", ".join(facts["files"]),
        "size": f"{human_bytes(facts['file_bytes'])}, GGUF version {facts['gguf_version']}",
        "architecture": facts["architecture"],
        "name": facts["name"],
        "parameters": f"{human_count(facts['parameters'])}, {facts['bits_per_weight'] or 0} bits per weight",
        **{label: facts[key] for label, key in SIZES.items()},
        "attention": sentence(facts["attention"]),
        "rotation": facts["rotation"],
        "recurrent": sentence(facts["recurrent"]),
        "routing": sentence(facts["experts"]),
        "pooling": facts["pooling"],
        "vocabulary": f"{tokens} ({kind})" if kind else "none",
        "chat template": template_words(tokenizer),
        **({} if memory is None else memory_rows(memory)),
        "unused tensors": facts["surplus"] or None,
        "supported": "yes" if facts["supported"] else "no: " + "; ".join(facts["missing"]),
    }
    print_rows([label, shortened(value)] for label, value in rows.items() if value is not None)
    print()
    heading = ("format", "tensors", "bytes", "bits per weight", "kernel")
    numbers = [
        (
            *(f["format"], str(f["tensors"]), human_bytes(f["bytes"]), f"{f['bits_per_weight']:g}"),
            f"{f['layout']} x {f['activation']}" if f["supported"] else "none",
        )
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


def template_words(tokenizer: dict[str, Any]) -> str | None:
    """Whether there are chat templates, and what is wrong with them."""
    if tokenizer["chat_template_error"] is not None:
        return f"cannot be used: {tokenizer['chat_template_error']}"
    names = tokenizer["chat_templates"]
    return {True: f"yes ({', '.join(names)})", False: "no", None: None}[tokenizer["chat_template"]]


def memory_rows(memory: dict[str, Any]) -> dict[str, str]:
    """What the model takes, in lines."""
    rows = {
        "weights": f"{human_bytes(memory['weights'])} packed, {human_bytes(memory['tables'])} in the file"
    }
    if any(memory["kv_per_token"].values()):
        each = ", ".join(f"{kind} {human_bytes(n)}" for kind, n in memory["kv_per_token"].items())
        rows["keys and values"] = f"{each} a token"
        whole = ", ".join(f"{kind} {human_bytes(n)}" for kind, n in memory["kv_at_context"].items())
        rows["full context"] = f"{whole} for {memory['context']} tokens"
    return rows


def sentence(facts: dict[str, Any] | None) -> str | None:
    """Facts in one line: those that are set, numbers and texts behind their names."""
    if facts is None:
        return None
    words = [str(facts["kind"])]
    for key, value in facts.items():
        name = key.replace("_", " ").removesuffix(" bytes")
        if key.endswith("_bytes"):
            value = human_bytes(value)
        if key != "kind" and value not in (None, False, 0, 0.0, ""):
            words.append(name if value is True else f"{name} {shortened(value)}")
    return ", ".join(words)


def shortened(value: Any) -> str:
    """A value in one line; of a long list (heads of each layer) the extremes."""
    if isinstance(value, list) and len(value) > 8:
        if isinstance(value[0], str):
            return f"{', '.join(value[:4])} and {len(value) - 4} more"
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
