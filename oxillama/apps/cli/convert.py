"""``convert``: a Hugging Face folder as a GGUF file, a model or an adapter."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from oxillama.apps.cli.console import human_bytes, printable, say
from oxillama.apps.cli.options import add_command
from oxillama.errors import ModelFileError


def add_commands(commands: Any) -> None:
    convert = add_command(
        commands,
        "convert",
        help="write a Hugging Face model, its projector file, or a LoRA adapter, as a GGUF file",
        description="Writes the model of a folder (config.json, safetensors, tokenizer.json), or the LoRA "
        "adapter of one (adapter_config.json, adapter_model.safetensors), as a GGUF file: llama, mistral, "
        "mixtral, qwen2 and qwen3 (with experts, too), gemma 1 to 3, phi3, olmo2, olmo3, olmoe, starcoder2 "
        "and bert models. With --mmproj the encoder of pictures or sounds of a model is written, as a "
        "projector file.",
        examples="""\
  oxillama convert folder model-f16.gguf
  oxillama convert folder mmproj-f16.gguf --mmproj
  oxillama convert adapter adapter.gguf --base folder
""",
    )
    convert.add_argument("source", metavar="DIR", help="folder of the model or the adapter")
    convert.add_argument(
        "target",
        metavar="OUT.gguf",
        nargs="?",
        help="file to write, in place of one that is there (default: DIR.gguf, or mmproj-DIR.gguf with "
        "--mmproj, if there is none)",
    )
    convert.add_argument(
        "--type",
        metavar="TYPE",
        help="of the matrices: F32 (default of adapters), F16 (default of models), BF16, Q8_0 (not adapters)",
    )
    convert.add_argument(
        "--mmproj",
        action="store_true",
        help="write the model's encoder of pictures or sounds, not its text model",
    )
    convert.add_argument(
        "--base",
        metavar="PATH",
        help="model of an adapter: a folder with a config.json, or a GGUF file (default: what "
        "adapter_config.json names, if it is a folder)",
    )
    convert.set_defaults(command=run_convert)


def run_convert(args: argparse.Namespace) -> int:
    from oxillama.apps.convert import convert

    is_named = args.target is not None
    target = Path(args.target) if is_named else unused_target(Path(args.source), args.mmproj)
    done = convert(args.source, target, args.type, args.base, mmproj=args.mmproj, overwrite=is_named)
    formats = ", ".join(f"{n} {name}" for name, n in done.formats.items())
    kind = "adapter of " if done.is_adapter else ""
    print(printable(f"wrote {target}: {kind}{done.architecture}, {human_bytes(done.nbytes)}"))
    print(f"tensors: {formats}")
    if done.left_out and not args.quiet:
        what = "copies of the base's weights" if done.is_adapter else "not part of the model"
        what = "not part of the encoder" if args.mmproj else what
        say("note", f"{what}: {', '.join(done.left_out)}")
    if done.folded and not args.quiet:
        say("note", f"{len(done.folded)} lora_b hold a factor of their own and are F32 for its sake")
    return 0


def unused_target(source: Path, is_projector: bool = False) -> Path:
    """The path of the folder with ".gguf" appended. Raises ModelFileError if such a file exists."""
    beginning = "mmproj-" if is_projector else ""
    target = source.resolve().parent / f"{beginning}{source.resolve().name}.gguf"
    if target.exists():
        raise ModelFileError(f"{target}: expected no such file, or its name as OUT.gguf, got one")
    return target
