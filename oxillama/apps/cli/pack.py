"""``pack``: writes the packed file of a model, from which the model loads at once."""

from __future__ import annotations

import argparse
from typing import Any

from oxillama.apps.cli import options
from oxillama.apps.cli.console import human_bytes, printable
from oxillama.apps.cli.models import add_model, model_path
from oxillama.apps.cli.progress import count_bar, loading_bar, shows_bars


def add_commands(commands: Any) -> None:
    pack = options.add_command(
        commands,
        "pack",
        help="write a model's matrices as the kernels take them, for quick starts",
        description="Writes a packed file beside a model: its matrices as the kernels take them. A model "
        "with such a file starts at once, and all processes that run it share one copy of its weights.",
    )
    add_model(pack)
    pack.add_argument(
        "-o", "--output", metavar="FILE", help="file to write (default: the one that engines look for)"
    )
    pack.add_argument(
        "--check", action="store_true", help="write nothing; compare all checksums of the file that is there"
    )
    options.add_named_options(pack, ("quantize", "compute", "num_threads"))
    options.add_progress_option(pack)
    pack.set_defaults(command=run_pack)


def run_pack(args: argparse.Namespace) -> int:
    from oxillama.base.config import EngineConfig
    from oxillama.engine.features.packed_files import check_packed, pack_model

    config, model = options.given(args, EngineConfig), model_path(args.model, args)
    if args.check:
        config.pop("num_threads", None)
        with count_bar(shows_bars(args), "checking", "B") as counted:
            path = check_packed(model, args.output, **config, progress=counted)
        print(printable(f"{path}: sound, and of this model"))
        return 0
    with loading_bar(model, shows_bars(args), "packing") as progress:
        path = pack_model(model, args.output, **config, progress=progress)
    print(printable(f"wrote {path}: {human_bytes(path.stat().st_size)}"))
    return 0
