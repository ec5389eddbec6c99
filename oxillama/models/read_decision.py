"""Reads what a file says of its decision head, and checks it."""

from __future__ import annotations

from oxillama.errors import LoadError
from oxillama.models.metadata import Reader
from oxillama.models.sizes import Decision

IN_BLOCKS = ("laya", "lfm2-d1-omni")
"""Kinds whose head is the last of the file's blocks."""

MAX_BLOCKS = 256
TEMPERATURES = (1e-3, 1e3)


def head_blocks(read: Reader) -> int:
    """How many of the file's blocks, the last ones, belong to a decision head."""
    if read.text("decision.type") not in IN_BLOCKS:
        return 0
    return read.size("decision.block_count")


def read_decision(read: Reader, n_layers: int) -> Decision | None:
    """The decision head of a model with ``n_layers`` layers; None where the file states none.

    Raises LoadError for a temperature or a size that is out of bounds.
    """
    kind = read.text("decision.type")
    if not kind:
        return None
    n_blocks = read.size("decision.block_count", 0, least=0)
    routing = read.size("decision.routing_block_count", 0, least=0)
    most = max(n_blocks, routing)
    read.expect(most <= MAX_BLOCKS, "decision.block_count", f"at most {MAX_BLOCKS}", most)
    heads: tuple[int, ...] = (read.size("decision.head_count", 1),)
    widths: tuple[int, ...] = ()
    if kind in IN_BLOCKS:
        all_blocks = n_layers + n_blocks
        heads = tuple(read.per_layer("attention.head_count", all_blocks)[n_layers:])
        widths = tuple(read.per_layer("feed_forward_length", all_blocks)[n_layers:])
    has_eps = kind in (*IN_BLOCKS, "clef")
    return Decision(
        kind=kind,
        temperatures=tuple(sorted(read_temperatures(read).items())),
        n_blocks=n_blocks,
        routing_blocks=routing,
        heads=heads,
        widths=widths,
        head_tokens=read.size("decision.max_head_tokens") if kind == "laya" else 0,
        eps=read.number("attention.layer_norm_epsilon") if has_eps else 0.0,
        pointer_width=read.size("embedding_length_out") if kind == "kev" else 0,
    )


def read_temperatures(read: Reader) -> dict[str, float]:
    """Temperatures by type of question, "choice", or by type and bucket, "choice.3_5"."""
    prefix, (least, most) = f"{read.prefix}.decision.temperature.", TEMPERATURES
    found = {}
    for key in read.file.metadata:
        if key.startswith(prefix):
            value: float = read.file.get(key, float)
            if not least <= value <= most:
                raise LoadError(f"{key}: expected a number from {least:g} to {most:g}, got {value}")
            found[key.removeprefix(prefix)] = value
    return found
