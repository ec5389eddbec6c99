"""The parser of `python -m benchmarks`: all commands and their options."""

from __future__ import annotations

import argparse

from benchmarks import (
    adapters,
    attention,
    busy,
    curves,
    decisions,
    delta,
    disk_prefixes,
    end_to_end,
    generation,
    grammar,
    handover,
    harness,
    kernels,
    kv_types,
    loading,
    make_model,
    media,
    neighbours,
    observing,
    offload,
    pipeline,
    quantizers,
    receipts,
    runs,
    sampling,
    scaling,
    server,
    server_load,
    serving,
    speculation,
    starting,
    structured,
)
from oxillama.apps.bench.report import Row
from oxillama.apps.cli.program import Parser
from oxillama.errors import ConfigError


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = Parser(prog="python -m benchmarks", description="Measures speeds, alone and beside other engines.")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    speed = commands.add_parser("end-to-end", help="prefill and decode speed of models, engines alternating")
    _add_common(speed, new=32)
    what = "N prompts at once: new tokens a second of a batch job"
    speed.add_argument("--job", type=runs.positive, default=0, metavar="N", help=what)
    what = "of --job: prompts of 200 to 1,500 tokens, and 20 to 200 new ones behind them"
    speed.add_argument("--mixed", action="store_true", help=what)
    what = "of the engine's keys and values (default: f16)"
    speed.add_argument("--kv-type", default="f16", metavar="TYPE", help=what)
    speed.add_argument("--peer-kv-type", default="f16", metavar="TYPE", help="of the peer's")
    speed.set_defaults(run=run_end_to_end, command="end-to-end")

    load = commands.add_parser("load", help="load time and peak memory, each load in a fresh process")
    _add_common(load, new=8)
    load.set_defaults(run=run_load, command="load")

    begin = commands.add_parser("start", help="the first token of a new process, and memory of several")
    starting.add_arguments(begin)
    begin.set_defaults(run=starting.run)

    alone = commands.add_parser("kernels", help="speed of the matrix products alone, by format and tokens")
    kernels.add_arguments(alone)
    alone.set_defaults(run=kernels.run)

    masks = commands.add_parser("grammar", help="compiling grammars and finding the tokens they allow")
    grammar.add_arguments(masks)
    masks.set_defaults(run=grammar.run)

    bound = commands.add_parser("generation", help="what a grammar costs a whole generation")
    generation.add_arguments(bound)
    bound.set_defaults(run=generation.run)

    objects = commands.add_parser("structured", help="objects of a schema with jump-forward, and free text")
    structured.add_arguments(objects)
    objects.set_defaults(run=structured.run)

    turns = commands.add_parser("handover", help="what the engine thread costs a stream, and waits for turns")
    handover.add_arguments(turns)
    turns.set_defaults(run=handover.run)

    over_http = commands.add_parser("server", help="what HTTP costs a text, and a client that goes away")
    server.add_arguments(over_http)
    over_http.set_defaults(run=server.run)

    pressed = commands.add_parser("server-load", help="many clients, some of whom go away: what must hold")
    server_load.add_arguments(pressed)
    pressed.set_defaults(run=server_load.run)

    beside = commands.add_parser("neighbours", help="what others' heavy requests cost a client")
    neighbours.add_arguments(beside)
    beside.set_defaults(run=neighbours.run)

    told = commands.add_parser("observing", help="what metrics, the log of requests and a trace cost")
    observing.add_arguments(told)
    told.set_defaults(run=observing.run)

    attending = commands.add_parser(
        "attention", help="attention alone, decoding and prefill, beside a roofline"
    )
    attention.add_arguments(attending)
    attending.set_defaults(run=attention.run)
    kept = commands.add_parser("kv-types", help="what the types of keys and values cost in perplexity")
    kv_types.add_arguments(kept)
    kept.set_defaults(run=kv_types.run)

    what = "right answers and log loss of typed decisions, by readout and orders"
    decided = commands.add_parser("decisions", help=what)
    decisions.add_arguments(decided)
    decided.set_defaults(run=decisions.run)
    recurring = commands.add_parser(
        "delta", help="the gated delta rule alone, decoding and prefill, beside a roofline"
    )
    delta.add_arguments(recurring)
    recurring.set_defaults(run=delta.run)
    both = commands.add_parser("quantizers", help="quantizers' errors and perplexities, beside llama.cpp's")
    quantizers.add_arguments(both)
    both.set_defaults(run=quantizers.run)
    asked = commands.add_parser("harness", help="a task of lm-evaluation-harness, beside llama-cpp-python")
    harness.add_arguments(asked)
    asked.set_defaults(run=harness.run)
    choosing = commands.add_parser(
        "sampling", help="time to choose a token, by stage, and for many sequences"
    )
    sampling.add_arguments(choosing)
    choosing.set_defaults(run=sampling.run)
    many = commands.add_parser("serving", help="many requests at once: batches, prefixes, long prompts")
    serving.add_arguments(many)
    many.set_defaults(run=serving.run)

    seen = commands.add_parser("media", help="chats with pictures: first tokens, and many clients")
    media.add_arguments(seen)
    seen.set_defaults(run=media.run)

    low_rank = commands.add_parser("adapters", help="what LoRA adapters cost while decoding")
    adapters.add_arguments(low_rank)
    low_rank.set_defaults(run=adapters.run)

    drafts = commands.add_parser("speculation", help="drafts, look-ups and beams, beside plain decoding")
    speculation.add_arguments(drafts)
    drafts.set_defaults(run=speculation.run)

    larger = commands.add_parser("offload", help="decoding under a memory budget, beside the storage's speed")
    offload.add_arguments(larger)
    larger.set_defaults(run=offload.run)

    stages = commands.add_parser("pipeline", help="a model in two stages beside one process (needs Ray)")
    pipeline.add_arguments(stages)
    stages.set_defaults(run=pipeline.run)

    proofs = commands.add_parser("receipts", help="what receipts cost, and verifying them")
    receipts.add_arguments(proofs)
    proofs.set_defaults(run=receipts.run)

    blocks = commands.add_parser("disk-prefixes", help="the first token of a prompt that the disk has")
    disk_prefixes.add_arguments(blocks)
    blocks.set_defaults(run=disk_prefixes.run)

    sizes = commands.add_parser("curves", help="cost against size: context, batch, model; drawn as SVG")
    curves.add_arguments(sizes)
    sizes.set_defaults(run=curves.run)
    shared = commands.add_parser("busy", help="the share of the speed kept while a process spins on a core")
    busy.add_arguments(shared)
    shared.set_defaults(run=busy.run)

    cores = commands.add_parser("scaling", help="tokens/s by number of threads, predicted and measured")
    scaling.add_arguments(cores)
    cores.set_defaults(run=scaling.run)

    make = commands.add_parser("make-model", help="write a GGUF of random weights in a real shape")
    make_model.add_arguments(make)
    make.set_defaults(run=make_model.run)
    return top


def _add_common(command: argparse.ArgumentParser, new: int) -> None:
    runs.add_engine_arguments(command)
    command.add_argument("--prompt", type=runs.positive, default=512, help="tokens (default: 512)")
    command.add_argument(
        "--new", type=runs.positive, default=new, help="tokens decoded (default: %(default)s)"
    )
    runs.add_arguments(command)


def run_end_to_end(args: argparse.Namespace) -> int:
    """`end-to-end`: see `benchmarks.end_to_end`."""
    if args.mixed and not args.job:
        raise ConfigError("--mixed: expected --job N, whose prompts it makes")
    run = _prepare(args)
    results: list[Row] = []
    for model in args.model:
        found, agreement = end_to_end.measure(
            model,
            run.engines,
            job=args.job,
            mixed=args.mixed,
            kv_types=(args.kv_type, args.peer_kv_type)[: len(run.engines)],
            **_measured(args),
        )
        results += found
        if agreement is not None:
            print(f"{model.stem}: cosine of the engines' logits after the prompt: {agreement:.5f}")
    return run.finish(results)


def run_load(args: argparse.Namespace) -> int:
    """`load`: see `benchmarks.loading`."""
    run = _prepare(args)
    results: list[Row] = []
    for model in args.model:
        results += loading.measure(model, run.engines, **_measured(args))
    return run.finish(results)


def _prepare(args: argparse.Namespace) -> runs.Run:
    engines = runs.engines(args)
    runs.check_models(args.model)
    conditions = {name: getattr(args, name) for name in ("threads", "prompt", "new")}
    return runs.Run(args.command, args, conditions, engines)


def _measured(args: argparse.Namespace) -> dict[str, int]:
    return {name: getattr(args, name) for name in ("threads", "rounds", "warmup", "prompt", "new")}
