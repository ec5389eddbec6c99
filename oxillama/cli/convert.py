"""``convert``: a Hugging Face folder as a GGUF file."""

from __future__ import annotations

import argparse
from typing import Any

from oxillama.cli.console import human_bytes, printable, say
from oxillama.cli.options import add_command


def add_commands(commands: Any) -> None:
    convert = add_command(
        commands,
        "convert",
        help="write a Hugging Face model as a GGUF file",
        description="Writes the model of a folder (config.json, safetensors, tokenizer.json) as a GGUF file: "
        "llama, mistral, mixtral, qwen2 and qwen3 (with experts, too), gemma 1 to 3, phi3, olmo2, olmo3, "
        "olmoe, starcoder2 and bert models.",
    )
    convert.add_argument("source", metavar="DIR", help="folder of the model")
    convert.add_argument("target", metavar="OUT.gguf", help="file to write, in place of one that is there")
    convert.add_argument(
        "--type", metavar="TYPE", default="F16", help="of the matrices: F32, F16 (default), BF16 or Q8_0"
    )
    convert.set_defaults(command=run_convert)


def run_convert(args: argparse.Namespace) -> int:
    from oxillama.convert import convert

    done = convert(args.source, args.target, args.type)
    formats = ", ".join(f"{n} {name}" for name, n in done.formats.items())
    print(printable(f"wrote {args.target}: {done.architecture}, {human_bytes(done.nbytes)}"))
    print(f"tensors: {formats}")
    if done.left_out and not args.quiet:
        say("note", f"not part of the model: {', '.join(done.left_out)}")
    return 0
