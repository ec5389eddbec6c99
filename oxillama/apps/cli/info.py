"""``info``: describes a model file without loading it."""

from __future__ import annotations

import argparse
from typing import Any

from oxillama.apps.cli.console import human_bytes, human_count, print_json, print_rows, printable, say
from oxillama.apps.cli.models import add_model, model_path
from oxillama.apps.cli.options import add_command, add_named_options, add_progress_option
from oxillama.apps.cli.program import with_flag
from oxillama.apps.cli.terminal import write_text


def add_commands(commands: Any) -> None:
    info = add_command(
        commands,
        "info",
        help="describe a model file",
        description="Describes a model file: what it needs, and whether that is supported (exit code 1). "
        "Its header and vectors are read, matrices are not.",
    )
    add_model(info)
    info.add_argument("--tensors", action="store_true", help="list every tensor")
    info.add_argument("--json", action="store_true", help="write JSON")
    info.add_argument(
        "--explain", action="store_true", help="write the model's layers as formulas with shapes"
    )
    add_named_options(info, ("offload_budget", "offload_pinned"))
    add_progress_option(info)
    info.set_defaults(command=run_info)


PROJECTOR = "clip"
"""The architecture of projector files (mmproj)."""


def run_info(args: argparse.Namespace) -> int:
    from oxillama.apps.cli.facts import describe, describe_adapter, describe_projector
    from oxillama.gguf.model_file import ModelFile

    model = model_path(args.model, args)
    with ModelFile.open(model) as file:
        is_adapter = file.metadata.get("general.type") == "adapter"
        is_projector = file.metadata.get("general.architecture") == PROJECTOR
        if args.explain:
            return print_formulas(file, is_adapter or is_projector)
        pinned = tuple(args.offload_pinned or ())
        if is_adapter:
            facts = describe_adapter(model)
        elif is_projector:
            facts = describe_projector(file)
        else:
            facts = describe(file, args.offload_budget, pinned)
    if args.tensors:
        facts["tensors"] = [
            {"name": t.name, "format": t.format.name, "shape": list(t.shape), "bytes": t.nbytes}
            for t in file.tensors.values()
        ]
    if args.json:
        print_json(facts)
    elif is_projector:
        print_projector(facts)
    elif is_adapter:
        rows = {key.replace("_", " "): value for key, value in facts.items() if key != "tensors"}
        print_rows([key, shortened(value)] for key, value in rows.items() if value is not None)
    else:
        print_facts(facts)
    missing = facts.get("missing", [])
    if not (args.json or missing) and facts.get("memory"):
        print()
        print(printable(f"memory: {fit_words(facts['memory'])}"))
    for reason in missing:
        say("error", with_flag(reason, args.flags))
    return 1 if missing else 0


def print_formulas(file: Any, is_part: bool) -> int:
    """The layers of a model file as formulas. Raises ConfigError for an adapter or a projector file."""
    from oxillama.errors import ConfigError
    from oxillama.models.explain import explain

    if is_part:
        raise ConfigError("--explain: expected the file of a whole model")
    write_text(explain(file))
    return 0


def print_projector(facts: dict[str, Any]) -> None:
    rows = {
        "file": ", ".join(facts["files"]),
        "size": f"{human_bytes(facts['file_bytes'])}, GGUF version {facts['gguf_version']}",
        "projector file": f"takes {' and '.join(facts['takes']) or 'nothing'}",
        "name": facts["name"],
        "parameters": f"{human_count(facts['parameters'])}, {facts['bits_per_weight'] or 0} bits per weight",
        **{each["kind"]: encoder_words(each) for each in facts["encoders"]},
        "supported": "yes" if facts["supported"] else "no: " + "; ".join(facts["missing"]),
    }
    print_rows([label, shortened(value)] for label, value in rows.items() if value is not None)
    print()
    print_formats(facts)


def encoder_words(encoder: dict[str, Any]) -> str:
    words = [str(encoder["projector"]), f"{encoder['layers']} layers of width {encoder['width']}"]
    words.append(f"{encoder['heads']} heads")
    if encoder["image_size"] is not None:
        words.append(f"tiles of {encoder['image_size']} pixels, patches of {encoder['patch_size']}")
    return ", ".join([*words, f"embeddings of width {encoder['embedding']}"])


def print_facts(facts: dict[str, Any]) -> None:
    from oxillama.apps.cli.facts import SIZES

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
        "projector file": projector_words(facts["projector"]),
        "packed file": "; ".join(map(packed_words, facts["packed"])) or None,
        "unused tensors": facts["surplus"] or None,
        "ignored tensors": facts["ignored"] or None,
        "supported": "yes" if facts["supported"] else "no: " + "; ".join(facts["missing"]),
    }
    print_rows([label, shortened(value)] for label, value in rows.items() if value is not None)
    print()
    print_formats(facts)


def print_formats(facts: dict[str, Any]) -> None:
    """Tensors by format, and each one if they are listed."""
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
    """The chat templates, and their faults."""
    if tokenizer["chat_template_error"] is not None:
        return f"cannot be used: {tokenizer['chat_template_error']}"
    names = tokenizer["chat_templates"]
    return {True: f"yes ({', '.join(names)})", False: "no", None: None}[tokenizer["chat_template"]]


def projector_words(projector: dict[str, Any] | None) -> str | None:
    """The projector file beside a model in one line."""
    if projector is None:
        return None
    takes = " and ".join(projector["takes"])
    return f"{projector['file']}, {f'takes {takes}' if takes else 'not supported (oxillama info says why)'}"


def packed_words(packed: dict[str, Any]) -> str:
    size, options = human_bytes(packed["bytes"]), []
    if packed["quantize"] is not None:
        options.append(f"quantize {packed['quantize']}")
    if packed["compute"] not in (None, "int8"):
        options.append(f"compute {packed['compute']}")
    words = ", ".join([packed["file"], size, *options])
    return words if packed["misfit"] is None else f"{words}, not taken: {packed['misfit']}"


def memory_rows(memory: dict[str, Any]) -> dict[str, str]:
    """The memory that a model needs, in lines."""
    rows = {
        "weights": f"{human_bytes(memory['weights'])} packed, {human_bytes(memory['tables'])} in the file",
        "in memory": f"{human_bytes(memory['resident'])} of weights at a time, the least offload budget is "
        f"{human_bytes(memory['least_budget'])}",
    }
    if any(memory["kv_per_token"].values()):
        each = ", ".join(f"{kind} {human_bytes(n)}" for kind, n in memory["kv_per_token"].items())
        rows["keys and values"] = f"{each} a token"
        whole = ", ".join(f"{kind} {human_bytes(n)}" for kind, n in memory["kv_at_context"].items())
        rows["full context"] = f"{whole} for {memory['context']} tokens"
    return rows


USUAL_TOKENS = 8192
"""Tokens of a sequence for which memory is counted, if the context has as many."""


def fit_words(memory: dict[str, Any]) -> str:
    """Weights, keys and values of a usual sequence, and whether the machine's free memory holds them."""
    from oxillama.apps.doctor.machine import read_machine

    n = min(memory["context"], USUAL_TOKENS)
    kept = min(n * memory["kv_per_token"]["f16"], memory["kv_at_context"]["f16"]) + (memory["state"] or 0)
    needed, free = memory["resident"] + kept, read_machine().free_memory
    words = f"{human_bytes(memory['resident'])} + {human_bytes(kept)} at {n:,} tokens = {human_bytes(needed)}"
    if free is None:
        return words
    fits = "fits" if needed <= free else "does not fit (docs/offload.md, or a file with fewer bits)"
    return f"{words} of {human_bytes(free)} free: {fits}"


def sentence(facts: dict[str, Any] | None) -> str | None:
    """Facts in one line: flags that are set, and numbers and texts after their names."""
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
    """A value in one line; a long list (heads of each layer) becomes its extremes."""
    if isinstance(value, list) and len(value) > 8:
        if isinstance(value[0], str):
            return f"{', '.join(value[:4])} and {len(value) - 4} more"
        return f"{min(value)} to {max(value)}, {len(value)} values"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
