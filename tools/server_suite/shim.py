"""Replaces llama-server in its test suite: accepts its flags and runs `oxillama serve`.

`run.py` sets the environment: SUITE_MODELS is the folder with the models of `models.py`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.server_suite import models

TODAY = datetime.date.today()
"""llama-server passes the date to every chat template."""

MODELS = {
    "ggml-org/test-model-stories260K": "story.gguf",
    "ggml-org/test-model-stories260K-infill": "infill.gguf",
    "stories15M_MOE-F16.gguf": "story.gguf",
    "ggml-org/tinygemma3-GGUF:Q8_0": "vision/story.gguf",
    "bert-bge-small/ggml-model-f16.gguf": "embed.gguf",
    "jina-reranker-v1-tiny-en/ggml-model-f16.gguf": "rank.gguf",
    "tinyllamas/split/stories15M-q8_0-00001-of-00003.gguf": "story.gguf",
}
"""Models of the suite, by file or repository, and the models that replace them."""

SAME = {
    "--port": "--port",
    "--temp": "--temp",
    "--seed": "--seed",
    "--threads": "--threads",
    "--batch-size": "--prefill-chunk",
    "--parallel": "--max-sequences",
    "--api-key": "--api-key",
    "--n-predict": "--max-tokens",
    "--slot-save-path": "--slot-save-path",
    "--host": "--host",
    "--tags": "--tags",
    "--pooling": "--pooling",
    "--media-path": "--media-path",
}
"""Flags with a value, and the flags of `oxillama serve` for them."""

WITHOUT_EFFECT = {
    "--ubatch-size": "a step is divided as the kernels need it",
    "--n-gpu-layers": "there is no GPU",
    "-fa": "attention never holds the whole matrix of scores",
    "-ctk": "keys and values are of one type",
    "-ctv": "keys and values are of one type",
    "--spec-draft-n-min": "drafts are as long as is fastest",
    "--spec-type": "the draft model says it",
    "--reasoning-format": "a matter of the request",
    "--cache-ram": "the prefix cache is one for all sequences",
}
"""Flags with a value that have no counterpart, and why."""

SWITCHES = (
    *("--offline", "--cont-batching", "--embedding", "--reranking", "--swa-full", "--slots", "--verbose"),
    *("--jinja", "--no-jinja", "--context-shift", "--backend_sampling"),
    *("--no-cache-idle-slots", "--no-models-autoload"),
)
"""Flags without a value, and without an effect."""

WITH_EFFECT = ("--metrics", "--no-slots", "--no-ui", "--no-mmproj", "--kv-unified")
"""Flags without a value that have an effect."""


def parser() -> argparse.ArgumentParser:
    """The flags that the suite uses. Any other is an error."""
    made = argparse.ArgumentParser(prog="llama-server", allow_abbrev=False)
    for flag in (*SAME, *WITHOUT_EFFECT):
        made.add_argument(flag)
    for flag in (*SWITCHES, *WITH_EFFECT):
        made.add_argument(flag, action="store_true")
    for flag in (
        *("--reasoning", "--alias", "--hf-repo", "--hf-file", "--ctx-size", "--model-draft"),
        *("--spec-draft-n-max", "--chat-template", "--chat-template-file", "--cors-origins"),
    ):
        made.add_argument(flag)
    made.add_argument("--lora", action="append", default=[])
    return made


def command(flags: list[str], folder: Path) -> list[str]:
    """The command line of `oxillama serve` for flags of llama-server."""
    args = parser().parse_args(flags)
    given = {flag: getattr(args, flag.lstrip("-").replace("-", "_")) for flag in SAME}
    if given["--n-predict"] == "-1":  # no limit but the context
        given["--n-predict"] = None
    found = [part for flag, value in given.items() if value is not None for part in (SAME[flag], value)]
    slots = int(args.parallel or 4)
    context = int(args.ctx_size or 0)
    if context and not args.kv_unified:
        context //= slots
    if context:
        found += ["--ctx-size", str(context)]
    template = args.chat_template or models.CHATML
    if args.chat_template_file:
        template = Path(args.chat_template_file).read_text(encoding="utf-8")
    name = MODELS[args.hf_file or args.hf_repo or "ggml-org/test-model-stories260K"]
    if args.no_mmproj:  # a folder that has the same model but no encoder
        name = Path(name).name
    path = models.with_template(folder / name, models.NAMED_TEMPLATES.get(template, template))
    found += ["--alias", ",".join(sorted((args.alias or "model").split(",")))]
    found += [] if args.metrics else ["--no-metrics"]
    found += ["--no-slots"] if args.no_slots else []
    found += ["--no-ui"] if args.no_ui else []
    variables: dict[str, object] = {"date_string": f"{TODAY:%d %b %Y}", "datetime": f"{TODAY:%b %d %Y}"}
    variables["enable_thinking"] = args.reasoning != "off"  # llama-server passes it to templates, too
    found += ["--chat-template-kwargs", json.dumps(variables)]
    for origin in (args.cors_origins or "*").split(","):
        found += ["--cors-origin", origin]
    found += ["--cors-credentials", "--prefill-assistant"]  # llama-server's defaults
    for adapter in args.lora:
        found += ["--lora", adapter]
    if args.model_draft:
        found += ["--speculate", args.model_draft]
        found += ["--draft-max", args.spec_draft_n_max] if args.spec_draft_n_max else []
    return [sys.executable, "-m", "oxillama", "serve", str(path), *found, "-t", "1"]


def main() -> None:
    words = command(sys.argv[1:], Path(os.environ["SUITE_MODELS"]))
    # the suite starts this in another folder
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    os.execv(words[0], words)


if __name__ == "__main__":
    main()
