"""The parser of `python -m benchmarks`: all commands and their options."""

from __future__ import annotations

import argparse
from importlib import import_module

from oxillama.apps.cli.program import Parser

COMMANDS = (
    ("end-to-end", "end_to_end", "prefill and decode speed of models, engines alternating"),
    ("load", "loading", "load time and peak memory, each load in a fresh process"),
    ("start", "starting", "the first token of a new process, and memory of several"),
    ("kernels", "kernels", "speed of the matrix products alone, by format and tokens"),
    ("grammar", "grammar", "compiling grammars and finding the tokens they allow"),
    ("generation", "generation", "what a grammar costs a whole generation"),
    ("structured", "structured", "objects of a schema with jump-forward, and free text"),
    ("handover", "handover", "what the engine thread costs a stream, and waits for turns"),
    ("server", "server", "what HTTP costs a text, and a client that goes away"),
    ("server-load", "server_load", "many clients, some of whom go away: what must hold"),
    ("neighbours", "neighbours", "what others' heavy requests cost a client"),
    ("observing", "observing", "what metrics, the log of requests and a trace cost"),
    ("attention", "attention", "attention alone, decoding and prefill, beside a roofline"),
    ("kv-types", "kv_types", "what the types of keys and values cost in perplexity"),
    ("decisions", "decisions", "right answers and log loss of typed decisions, by readout and orders"),
    ("delta", "delta", "the gated delta rule alone, decoding and prefill, beside a roofline"),
    ("quantizers", "quantizers", "quantizers' errors and perplexities, beside llama.cpp's"),
    ("harness", "harness", "a task of lm-evaluation-harness, beside llama-cpp-python"),
    ("sampling", "sampling", "time to choose a token, by stage, and for many sequences"),
    ("serving", "serving", "many requests at once: batches, prefixes, long prompts"),
    ("media", "media", "chats with pictures: first tokens, and many clients"),
    ("adapters", "adapters", "what LoRA adapters cost while decoding"),
    ("speculation", "speculation", "drafts, look-ups and beams, beside plain decoding"),
    ("offload", "offload", "decoding under a memory budget, beside the storage's speed"),
    ("pipeline", "pipeline", "a model in two stages beside one process (needs Ray)"),
    ("receipts", "receipts", "what receipts cost, and verifying them"),
    ("disk-prefixes", "disk_prefixes", "the first token of a prompt that the disk has"),
    ("curves", "curves", "cost against size: context, batch, model; drawn as SVG"),
    ("busy", "busy", "the share of the speed kept while a process spins on a core"),
    ("scaling", "scaling", "tokens/s by number of threads, predicted and measured"),
    ("make-model", "make_model", "write a GGUF of random weights in a real shape"),
)
"""Each command, the module that has its `add_arguments` and `run`, and its help."""


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = Parser(prog="python -m benchmarks", description="Measures speeds, alone and beside other engines.")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, module, what in COMMANDS:
        made, command = import_module(f"benchmarks.{module}"), commands.add_parser(name, help=what)
        made.add_arguments(command)
        command.set_defaults(run=made.run, command=name)
    return top
