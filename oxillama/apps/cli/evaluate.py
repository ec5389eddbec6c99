"""``perplexity`` and ``compare``: a model's perplexity on a text, and its divergence from another model."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxillama.apps.cli import options
from oxillama.apps.cli.console import check_writable, print_json, print_rows, printable, read_text, say
from oxillama.apps.cli.models import add_model, load_engine, model_path
from oxillama.apps.cli.progress import count_bar, shows_bars
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama import InferenceEngine
    from oxillama.apps.evaluation.comparison import Comparison

DEFAULT_WINDOW = 512


def add_commands(commands: Any) -> None:
    perplexity = options.add_command(
        commands,
        "perplexity",
        help="measure how well a model predicts a text",
        description="Perplexity of a text, in the windows of llama-perplexity: each has --window tokens, and "
        "the second half of each is scored.",
        examples="""\
  oxillama perplexity model.gguf text.txt
  oxillama perplexity model-f16.gguf text.txt --logits base.kld
  oxillama perplexity model-q4.gguf --base base.kld
""",
    )
    add_model(perplexity)
    perplexity.add_argument("text", metavar="TEXTFILE", nargs="?", help="UTF-8 text; - reads it from stdin")
    add_windows(perplexity)
    perplexity.add_argument(
        "--logits",
        metavar="FILE",
        help="write the logits of the scored tokens here, as llama-perplexity does",
    )
    perplexity.add_argument(
        "--exact",
        action="store_true",
        help="write them as float32, without rounding; llama.cpp reads no such",
    )
    perplexity.add_argument(
        "--base", metavar="FILE", help="compare with the logits in this file, over the text that it holds"
    )
    add_report(perplexity)
    perplexity.set_defaults(command=run_perplexity)

    compare = options.add_command(
        commands,
        "compare",
        help="measure how far one model is from another",
        description="Kullback-Leibler divergence of a model from a base, and how often both have the same "
        "likeliest token, over the scored tokens of a text. Options of the model are for both.",
        examples="""\
  oxillama compare model-f16.gguf model-q4.gguf text.txt
  oxillama compare model-f16.gguf model-q4.gguf text.txt --plot kl.svg
""",
    )
    add_model(compare, "base", metavar="A")
    add_model(compare, "model", metavar="B")
    compare.add_argument("text", metavar="TEXTFILE", nargs="?", help="UTF-8 text; - reads it from stdin")
    compare.add_argument("--text", dest="text_option", metavar="FILE", help=argparse.SUPPRESS)
    add_windows(compare)
    add_report(compare)
    compare.set_defaults(command=run_compare)


def add_windows(parser: Any) -> None:
    parser.add_argument(
        "--window",
        metavar="N",
        type=options.integer,
        help=f"tokens of a window (default: {DEFAULT_WINDOW})",
    )
    parser.add_argument(
        "--windows", metavar="N", type=options.integer, help="max windows to run (default: the whole text)"
    )


def add_report(parser: Any) -> None:
    parser.add_argument("--json", action="store_true", help="write all figures as JSON")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw the divergences here")
    options.add_engine_options(parser)


def engine_of(args: argparse.Namespace, model: str) -> InferenceEngine:
    """An engine for a model with the options of the command line."""
    return load_engine(options.engine_config(args, model_path(model, args)), args)


def run_perplexity(args: argparse.Namespace) -> int:
    from oxillama.apps.evaluation.logits_file import LogitsFile, written
    from oxillama.apps.evaluation.perplexity import perplexity

    check_perplexity(args)
    if args.base is not None:
        from oxillama.apps.evaluation.comparison import compare

        with (
            LogitsFile(args.base) as base,
            engine_of(args, args.model) as engine,
            count_bar(shows_bars(args), "running", " windows") as progress,
        ):
            found = compare(base, engine, windows=args.windows, progress=progress)
        report(found, args, f"{args.model} from {args.base}")
        return 0
    text = text_of(args.text)
    with (
        engine_of(args, args.model) as engine,
        count_bar(shows_bars(args), "running", " windows") as progress,
    ):
        n_vocab = engine.tokenizer.n_vocab
        with nullcontext() if args.logits is None else written(args.logits, args.exact, n_vocab) as writer:
            measured = perplexity(
                engine,
                text,
                window=args.window or DEFAULT_WINDOW,
                windows=args.windows,
                writer=writer,
                progress=progress,
            )
    n_windows, n_scored = measured.losses.shape
    if args.json:
        print_json(
            {
                "perplexity": measured.value,
                "error": measured.error,
                "mean_loss": measured.mean_loss,
                "tokens": n_windows * n_scored,
                "window": measured.window,
                "windows": n_windows,
                "running": measured.running,
            }
        )
    else:
        if args.verbose:
            for number, value in enumerate(measured.running, 1):
                print(f"[{number}] {value:.4f}")
        print(
            f"perplexity: {measured.value:.4f} +/- {measured.error:.5f} "
            f"({n_windows * n_scored} tokens of {n_windows} windows of {measured.window})"
        )
    return 0


def check_perplexity(args: argparse.Namespace) -> None:
    """Raises ConfigError for arguments that exclude each other, or a file that cannot be written."""
    if (args.text is None) == (args.base is None):
        raise ConfigError("text: expected a text, or --base with a file that holds one")
    for name, value, other, needed in (
        ("exact", args.exact, "logits", args.logits is not None),
        ("plot", args.plot, "base", args.base is not None),
    ):
        if value and not needed:
            raise ConfigError(f"{name}: needs --{other}")
    if args.base is not None and (args.logits is not None or args.window is not None):
        name = "logits" if args.logits is not None else "window"
        raise ConfigError(f"{name}: cannot be combined with --base, whose windows are run")
    for option in ("logits", "plot"):
        if getattr(args, option) is not None:
            check_writable(f"--{option}", Path(getattr(args, option)))


def run_compare(args: argparse.Namespace) -> int:
    from oxillama.apps.evaluation.comparison import compare

    if args.plot is not None:
        check_writable("--plot", Path(args.plot))
    if (args.text is None) == (args.text_option is None):
        raise ConfigError("TEXTFILE: expected a text, got none, or two")
    text = text_of(args.text or args.text_option)
    with (
        engine_of(args, args.base) as base,
        engine_of(args, args.model) as engine,
        count_bar(shows_bars(args), "running", " windows") as progress,
    ):
        found = compare(
            base,
            engine,
            text,
            window=args.window or DEFAULT_WINDOW,
            windows=args.windows,
            progress=progress,
        )
    report(found, args, f"{args.model} from {args.base}")
    return 0


def text_of(source: str) -> str:
    """A text without a newline at its end, which llama.cpp's tools also remove."""
    return read_text(source, "text").removesuffix("\n")


def report(found: Comparison, args: argparse.Namespace, title: str) -> None:
    """Prints the figures of a comparison, and draws its chart."""
    from oxillama.apps.evaluation.chart import chart

    figures = found.summary()
    if args.json:
        print_json(figures)
    else:
        print_figures(figures)
    if args.plot is not None:
        Path(args.plot).write_text(chart(found, title), encoding="utf-8")
        if not args.quiet:
            say("note", f"wrote {args.plot}")


def print_figures(figures: dict[str, Any]) -> None:
    print(printable(f"{figures['tokens']} tokens, in windows of {figures['window']}"))
    rows = [("", "value", "+/-")]
    for label, name, error in (
        ("perplexity of the base", "perplexity_base", "perplexity_base_error"),
        ("perplexity", "perplexity", "perplexity_error"),
        ("ratio", "perplexity_ratio", "perplexity_ratio_error"),
        ("mean KL in nats", "mean_kl", "mean_kl_error"),
        ("same likeliest token", "top1", "top1_error"),
    ):
        rows.append((label, f"{figures[name]:.6f}", f"{figures[error]:.6f}"))
    rows.append(("mean difference of p", f"{figures['mean_difference']:.6f}", ""))
    rows.append(("root mean square of it", f"{figures['rms_difference']:.6f}", ""))
    print_rows(rows, right=(1, 2))
    print("\ndivergences by quantile")
    print_rows(
        [(f"{float(q):.1%}", f"{value:.6f}") for q, value in figures["kl_quantiles"].items()], right=(0, 1)
    )
    print("\ntokens by the probability of the base's likeliest token")
    grouped = [("from", "to", "mean KL", "same likeliest")]
    for group in figures["by_confidence"]:
        low, high = f"{group['low']:.4f}", f"{group['high']:.4f}"
        grouped.append((low, high, f"{group['mean_kl']:.6f}", f"{group['top1']:.2%}"))
    print_rows(grouped, right=range(4))
