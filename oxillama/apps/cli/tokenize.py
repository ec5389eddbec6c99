"""``tokenize``: from text to token ids and back."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from oxillama import TokenizerError
from oxillama.apps.cli.console import read_text
from oxillama.apps.cli.models import add_model, model_path
from oxillama.apps.cli.options import add_command, add_progress_option
from oxillama.apps.cli.terminal import write_text

if TYPE_CHECKING:
    from oxillama.text.tokenizer.vocabulary import TokenType


def add_commands(commands: Any) -> None:
    tokenize = add_command(
        commands,
        "tokenize",
        help="turn text into token ids, or back",
        description="Writes the token ids of a text, or with --decode the text of token ids.",
    )
    add_model(tokenize)
    tokenize.add_argument("text", metavar="TEXT", help="text, or ids with --decode; - reads them from stdin")
    tokenize.add_argument("--pieces", action="store_true", help="a line for each token: id, type, bytes")
    tokenize.add_argument("--no-special", action="store_true", help="add no BOS or EOS")
    tokenize.add_argument(
        "--parse-special", action="store_true", help="names of control tokens in the text stand for them"
    )
    tokenize.add_argument("--decode", action="store_true", help="ids to text; control tokens are left out")
    add_progress_option(tokenize)
    tokenize.set_defaults(command=run_tokenize)


def run_tokenize(args: argparse.Namespace) -> int:
    from oxillama import TokenizerBridge

    text = read_text("-", "text") if args.text == "-" else args.text
    tokenizer = TokenizerBridge.from_gguf(model_path(args.model, args))
    if args.decode:
        ids = read_ids(text, tokenizer.n_vocab)
    else:
        ids = tokenizer.encode(text, add_special=not args.no_special, parse_special=args.parse_special)
    if args.pieces:
        for id in ids:
            print(id, type_names(tokenizer.token_type(id)), str(tokenizer.token_bytes(id))[1:], sep="\t")
    elif args.decode:
        write_text(tokenizer.decode(ids) + "\n")
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
            raise TokenizerError(f"token id: expected an integer from 0 to {n_vocab - 1}, got {word!r:.40}")
        ids.append(int(word))
    return ids
