"""``info``: describes a model file without loading it."""

from __future__ import annotations

import argparse
from typing import Any

from oxillama.cli.console import human_bytes, human_count, print_json, print_rows, say
from oxillama.cli.models import add_model, model_path
from oxillama.cli.options import add_command, add_named_options, add_progress_option


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
    add_named_options(info, ("offload_budget", "offload_pinned"))
    add_progress_option(info)
    info.set_defaults(command=run_info)


def run_info(args: argparse.Namespace) -> int:
    from oxillama.cli.facts import describe, describe_adapter
    from oxillama.gguf.model_file import ModelFile
    from oxillama.media.describe import describe_projector, is_projector

    model = model_path(args.model, args)
    with ModelFile.open(model) as file:
        is_adapter = file.metadata.get("general.type") == "adapter"
        pinned = tuple(args.offload_pinned or ())
        is_part = is_adapter or is_projector(file)
        if is_adapter:
            facts = describe_adapter(model)
        elif is_part:
            facts = describe_projector(model, file)
        else:
            facts = describe(file, args.offload_budget, pinned)
    if args.tensors:
        facts["tensors"] = [
            {"name": t.name, "format": t.format.name, "shape": list(t.shape), "bytes": t.nbytes}
            for t in file.tensors.values()
        ]
    if args.json:
        print_json(facts)
    elif is_part:
        shown = {key: value for key, value in facts.items() if key not in ("tensors", "missing")}
        rows = {key.replace("_", " "): value for key, value in shown.items()}
        words = {key: sentence(value) if isinstance(value, dict) else value for key, value in rows.items()}
        print_rows([key, shortened(value)] for key, value in words.items() if value is not None)
    else:
        print_facts(facts)
    missing = facts.get("missing", [])
    for reason in missing:
        say("error", reason)
    return 1 if missing else 0


def print_facts(facts: dict[str, Any]) -> None:
    from oxillama.cli.facts import SIZES

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
        "packed file": "; ".join(map(packed_words, facts["packed"])) or None,
        "unused tensors": facts["surplus"] or None,
        "ignored tensors": facts["ignored"] or None,
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


def packed_words(packed: dict[str, Any]) -> str:
    """A packed file in one line."""
    size, options = human_bytes(packed["bytes"]), []
    if packed["quantize"] is not None:
        options.append(f"quantize {packed['quantize']}")
    if packed["compute"] not in (None, "int8"):
        options.append(f"compute {packed['compute']}")
    words = ", ".join([packed["file"], size, *options])
    return words if packed["misfit"] is None else f"{words}, not taken: {packed['misfit']}"


def memory_rows(memory: dict[str, Any]) -> dict[str, str]:
    """What the model takes, in lines."""
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
