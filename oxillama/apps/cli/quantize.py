"""``quantize`` and ``imatrix``: smaller model files, and the importance matrix for them."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxillama.apps.cli import options
from oxillama.apps.cli.console import check_writable, human_bytes, print_rows, printable, say
from oxillama.apps.cli.models import add_model, model_path
from oxillama.apps.cli.progress import count_bar, loading_bar, shows_bars
from oxillama.base.formats import WRITABLE
from oxillama.gguf.file_types import ALIASES, FILE_TYPES, UNWEIGHTED

if TYPE_CHECKING:
    from oxillama import Quantization


def add_commands(commands: Any) -> None:
    quantize = options.add_command(
        commands,
        "quantize",
        verbose="list every tensor, and show the log on stderr",
        help="write a model in a smaller format",
        description="Writes a model file in another file type: most matrices in the type's format, those "
        "that lose most in a better one, all else unchanged.",
        epilog=f"types: {', '.join((*FILE_TYPES, *ALIASES))}; formats: {', '.join(WRITABLE)}",
    )
    add_model(quantize, "source", metavar="IN.gguf")
    quantize.add_argument("target", metavar="OUT.gguf", help="file to write, in place of one that is there")
    quantize.add_argument("type", metavar="TYPE", help="e.g. Q4_K_M")
    quantize.add_argument("--imatrix", metavar="FILE", help="importance matrix, see 'oxillama imatrix'")
    quantize.add_argument("--pure", action="store_true", help="the same format for every matrix")
    for flag, what in (
        ("--output-tensor-type", "the output matrix"),
        ("--token-embedding-type", "the embedding"),
    ):
        quantize.add_argument(flag, metavar="FORMAT", help=f"format of {what}")
    quantize.add_argument(
        "--tensor-type",
        dest="tensor_types",
        metavar="NAME=FORMAT",
        type=name_and_format,
        action="append",
        default=[],
        help="format of the matrices in whose names this regular expression is found; may be repeated, "
        "the first that is found counts",
    )
    quantize.add_argument(
        "--leave-output-tensor", action="store_true", help="do not quantize the output matrix"
    )
    quantize.add_argument(
        "--allow-requantize", action="store_true", help="quantize what is quantized already: costs quality"
    )
    quantize.add_argument("--dry-run", action="store_true", help="only tell what would be written")
    options.add_named_options(quantize, ("num_threads",))
    options.add_progress_option(quantize)
    quantize.set_defaults(command=run_quantize)

    imatrix = options.add_command(
        commands,
        "imatrix",
        help="find out which weights matter for a text",
        description="Runs a text through a model and writes the mean squared input of every matrix's "
        "columns, for 'oxillama quantize --imatrix' and for llama.cpp.",
    )
    add_model(imatrix)
    imatrix.add_argument("text", metavar="TEXTFILE", help="UTF-8 text of the kind the model is to be good at")
    imatrix.add_argument("-o", "--output", metavar="OUT.gguf", required=True, help="file to write")
    imatrix.add_argument(
        "--chunk",
        dest="chunk_size",
        metavar="N",
        type=options.integer,
        default=512,
        help="tokens run together (default: 512)",
    )
    imatrix.add_argument(
        "--chunks", metavar="N", type=options.integer, help="max chunks to run (default: the whole text)"
    )
    imatrix.add_argument("--process-output", action="store_true", help="record the output matrix too")
    options.add_named_options(imatrix, ("num_threads",))
    options.add_progress_option(imatrix)
    imatrix.set_defaults(command=run_imatrix)


def name_and_format(text: str) -> tuple[str, str]:
    name, equals, found = text.rpartition("=")
    if not name or not equals or not found:
        raise argparse.ArgumentTypeError(f"expected NAME=FORMAT, got {text!r}")
    return name, found


def run_quantize(args: argparse.Namespace) -> int:
    from oxillama import quantize_model

    source = model_path(args.source, args)
    with loading_bar(source, shows_bars(args), "quantizing") as progress:
        done = quantize_model(
            source,
            None if args.dry_run else args.target,
            args.type,
            imatrix=args.imatrix,
            pure=args.pure,
            output_tensor_type=args.output_tensor_type,
            token_embedding_type=args.token_embedding_type,
            tensor_types=args.tensor_types,
            leave_output_tensor=args.leave_output_tensor,
            allow_requantize=args.allow_requantize,
            num_threads=args.num_threads,
            progress=progress,
        )
    report(done, args)
    return 0


def report(done: Quantization, args: argparse.Namespace) -> None:
    """Prints sizes and formats of the written file to stdout, notes to stderr."""
    if args.verbose:
        print_rows(
            (t.source.name, " x ".join(map(str, t.source.shape)), t.source.format.name, t.format.name)
            for t in done.tensors
        )
    counts = Counter(tensor.format.name for tensor in done.tensors)
    formats = ", ".join(f"{n} {name}" for name, n in counts.most_common())
    sizes = f"{human_bytes(done.source_bytes)} -> {human_bytes(done.nbytes)}"
    where = "would write" if args.dry_run else "wrote"
    print(
        printable(
            f"{where} {args.target}: {done.file_type}, {sizes}, {done.bits_per_weight:.2f} bits a weight"
        )
    )
    print(f"tensors: {formats}")
    if not args.quiet:
        for note in notes(done, args.imatrix is not None):
            say("note", note)


def notes(done: Quantization, has_imatrix: bool) -> Iterator[str]:
    """The differences between the file and the arguments."""
    from oxillama.apps.quantize.mixes import NEEDS_IMPORTANCE

    for tensor in done.tensors:
        if tensor.wanted is not tensor.format:
            finding = f"rows of {tensor.source.shape[0]} do not fit {tensor.wanted.name}"
            yield f"{tensor.source.name}: {finding}, it is {tensor.format.name}"
    if has_imatrix:
        looking = [t for t in done.tensors if t.changes and t.format.name not in UNWEIGHTED]
        without = [t.source.name for t in looking if not t.weighted]
        if not looking:
            yield f"nothing in {done.file_type} uses the importance matrix"
        elif without:
            yield f"the importance matrix has nothing about {', '.join(without)}"
    elif done.file_type in NEEDS_IMPORTANCE:
        yield f"{done.file_type} loses much without an importance matrix (--imatrix)"


def run_imatrix(args: argparse.Namespace) -> int:
    from oxillama import collect_imatrix

    check_writable("--output", Path(args.output))
    model = model_path(args.model, args)
    with count_bar(shows_bars(args), "running", " chunks") as progress:
        found = collect_imatrix(
            model,
            args.text,
            chunk_size=args.chunk_size,
            chunks=args.chunks,
            process_output=args.process_output,
            num_threads=args.num_threads,
            progress=progress,
        )
    found.write(args.output)
    size = f"{found.chunk_count} chunks of up to {found.chunk_size} tokens"
    print(printable(f"wrote {args.output}: {len(found.entries)} matrices, {size}"))
    return 0
