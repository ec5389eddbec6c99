"""``run`` and ``demo``: continue a prompt. The text goes to stdout as it is made, a summary to stderr."""

from __future__ import annotations

import argparse
import secrets
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from oxillama import ConfigError, OxiLlamaError, PromptError
from oxillama.apps.cli import options
from oxillama.apps.cli.console import read_text, say
from oxillama.apps.cli.media import add_media_options, media_prompt
from oxillama.apps.cli.models import add_model, load_engine, model_path
from oxillama.apps.cli.progress import prefill_bar, shows_bars
from oxillama.apps.cli.sessions import KeptSession, add_session_option
from oxillama.apps.cli.terminal import is_terminal, write_text
from oxillama.apps.cli.verify import add_receipt_option, receipt_wanted, write_receipt
from oxillama.base.atomic_file import exists

if TYPE_CHECKING:
    from oxillama import Generation

INTERRUPTED = 130


def add_commands(commands: Any) -> None:
    run = options.add_command(
        commands,
        "run",
        help="continue a text",
        description="Writes the model's continuation of a prompt to stdout, piece by piece; its speed, "
        "why it ended and the seed go to stderr.",
        examples="""\
  oxillama run model.gguf -p "Once upon a time"
  oxillama run model.gguf -f prompt.txt -n 500 --temp 0
  oxillama run model.gguf -p "Three colours, as JSON:" --json-schema schema.json
  oxillama run model.gguf -p "Once upon a time" --receipt receipt.json
  oxillama run model.gguf --image cat.png -p "<__media__> shows"
""",
    )
    add_model(run)
    prompt = run.add_mutually_exclusive_group()
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt; - reads it from stdin")
    prompt.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file, exactly as it is")
    options.add_generation_options(run)
    options.add_engine_options(run)
    options.add_sampler_options(run)
    add_session_option(run)
    add_receipt_option(run)
    add_media_options(run, "in the place of <__media__> in the prompt, or before it")
    run.add_argument("--no-special", action="store_true", help="add no BOS or EOS to the prompt")
    run.add_argument(
        "--parse-special", action="store_true", help="names of control tokens in the prompt stand for them"
    )
    run.set_defaults(command=run_model)

    demo = options.add_command(
        commands,
        "demo",
        help="tell a story with the model the package ships",
        description="Tells a story with a small model that is part of the package: nothing is downloaded.",
    )
    demo.add_argument("-p", "--prompt", metavar="TEXT", help="how it begins (default: one the seed picks)")
    demo.add_argument("--pirate", action="store_true", help="a pirate tells it: with the package's adapter")
    add_receipt_option(demo)
    options.add_generation_options(demo, max_tokens=400)
    options.add_named_options(demo, ("num_threads", "seed", "temperature"))
    options.add_progress_option(demo)
    demo.set_defaults(command=run_demo)


def run_model(args: argparse.Namespace) -> int:
    goes_on = args.session is not None and exists(args.session)
    prompt = read_prompt(args, needed=not (goes_on or args.media))
    if args.media and args.no_special:
        raise ConfigError("--no-special: cannot be combined with --image and --audio")
    chosen = replace(options.generation_options(args), receipt=receipt_wanted(args))
    engine = load_engine(options.engine_config(args, model_path(args.model, args, bool(args.media))), args)
    asked: Any = []
    if args.media:
        asked = media_prompt(engine, prompt, args.media, opens=not goes_on)
    elif prompt:
        special = not args.no_special and not goes_on
        asked = engine.tokenizer.encode(prompt, add_special=special, parse_special=args.parse_special)
    is_plain = not (args.media or goes_on or args.parse_special or args.quiet)
    if engine.tokenizer.templates and is_plain:
        tell_of_template(args.model)
    if args.session is None:
        return finish(engine.stream(asked, chosen), args)
    kept = KeptSession(engine, args.session, "run")
    before = len(kept.session.tokens)
    if len(asked):
        kept.session.append(asked)
    try:
        return finish(kept.session.stream(chosen), args)
    except OxiLlamaError:
        kept.session.rewind(before)  # who asks again asks the whole
        raise
    finally:
        kept.save()


def tell_of_template(model: str) -> None:
    """Prints a note on a terminal: ``run`` does not apply the model's chat template."""
    if is_terminal(sys.stderr):
        say("note", f"the file has a chat template, which run does not apply: oxillama chat {model}")


def run_demo(args: argparse.Namespace) -> int:
    from oxillama.apps.demo import PIRATE, PROMPTS, STORY

    if args.seed is None:
        args.seed = secrets.randbelow(2**32)
    chosen, wants_receipt = options.generation_options(args), receipt_wanted(args)
    args.adapters = [(str(PIRATE), 1.0)] if args.pirate else None
    config = options.engine_config(args, STORY)
    prompt = PROMPTS[args.seed % len(PROMPTS)] if args.prompt is None else args.prompt
    engine = load_engine(config, args)
    generation = engine.stream(prompt, chosen, receipt=wants_receipt)
    write_text(prompt)
    return finish(generation, args)


def read_prompt(args: argparse.Namespace, needed: bool = True) -> str:
    """The prompt of -p or -f, "" without them. Raises PromptError if a prompt is ``needed`` and missing or an
    empty one, ConfigError if it cannot be read."""
    if args.file is None and args.prompt != "-":
        prompt: str = args.prompt or ""
    else:
        prompt = read_text(args.file or "-", "prompt")
    if needed and not prompt:
        raise PromptError("prompt: expected text, got none")
    return prompt


def show(generation: Generation, args: argparse.Namespace) -> bool:
    """Writes the text as it is made, then the summary. Returns whether Ctrl-C ended it."""
    interrupted = False
    try:
        with prefill_bar(generation, shows_bars(args)):
            first = next(generation, "")
        write_text(first)
        for piece in generation:
            write_text(piece)
    except KeyboardInterrupt:
        interrupted = True
        generation.close()
    except OxiLlamaError:
        write_text("\n")  # the error has its own line
        raise
    write_text("" if generation.text.endswith("\n") else "\n")
    if not args.quiet:
        print(summary(generation, interrupted), file=sys.stderr, flush=True)
    return interrupted


def finish(generation: Generation, args: argparse.Namespace) -> int:
    """Writes the text and, if one is wanted, its receipt; the exit code."""
    interrupted = show(generation, args)
    write_receipt(generation, args)
    return INTERRUPTED if interrupted else 0


def summary(generation: Generation, interrupted: bool = False) -> str:
    """The tokens that were run and their speeds, the finish reason and the seed, in one line.

    The time of the first token counts as prefill.
    """
    parts, known, timings = [], generation.usage.cached_tokens, generation.timings
    for name, n, seconds in (
        ("prefill", timings.prefill_tokens, timings.prefill),
        ("decode", timings.decode_tokens, timings.decode),
    ):
        speed = f", {n / seconds:.1f} tokens/s" if seconds and n else ""
        parts.append(f"{name} {n} tokens{speed}")
    parts[0] += f" ({known} known from before)" if known else ""
    reason = "interrupted" if interrupted else generation.finish_reason
    return " | ".join([*parts, f"finish {reason}", f"seed {generation.seed}"])
