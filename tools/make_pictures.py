"""Draws two pictures in ``docs/images``: the speeds relative to llama.cpp, and the lane rule.

    python tools/make_pictures.py          # writes the pictures
    python tools/make_pictures.py --check  # exit code 1 if a picture would change

The plot shows the first table of `benchmarks/results/llama_cpp.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
OURS, PREFILL, GREY, INK = "#0b62a4", "#d9822b", "#e3e3e3", "#333333"


def text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", fill: str = INK) -> str:
    place = f'x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {place} fill="{fill}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, stroke: str = "none") -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{stroke}"/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = INK, more: str = "") -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}"{more}/>'


def document(width: int, height: int, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
    return "\n".join([head, box(0, 0, width, height, "white"), *parts, "</svg>"]) + "\n"


Ratio = tuple[float, float, float]
"""Median, first and third quartile."""


def measured() -> tuple[str, list[tuple[str, Ratio, Ratio]]]:
    """Machine, versions and date; of each model the ratios of prefill and decoding, in tokens/s."""
    table = json.loads((ROOT / "benchmarks" / "results" / "llama_cpp.json").read_text(encoding="utf-8"))[0]
    ratios = [i for i, name in enumerate(table["columns"]) if name.startswith("ratio")]
    where = f"{table['machine']}; {table['date']}, oxillama at {table['commit']}"
    return where, [(row[0], *(tuple(row[i]) for i in ratios)) for row in table["rows"]]


def plot() -> str:
    where, rows = measured()
    left, right, top, step = 130, 700, 62, 36
    scale = (right - left) / 3.2
    height = top + step * len(rows) + 52
    parts = [
        text(20, 24, "Speed beside llama.cpp: tokens/s of oxillama / tokens/s of llama.cpp", size=15),
        box(left, 36, 10, 10, PREFILL),
        text(left + 16, 45, "prompt"),
        box(left + 90, 36, 10, 10, OURS),
        text(left + 106, 45, "decoding one sequence"),
        text(20, height - 4, where, size=11),
    ]
    for at in (0, 1, 2, 3):
        x = left + at * scale
        parts.append(line(x, top - 6, x, height - 48, INK if at == 1 else GREY))
        parts.append(text(x, height - 32, f"{at}" if at != 1 else "1: as fast", size=11, anchor="middle"))
    for i, (name, prefill, decode) in enumerate(rows):
        y = top + i * step
        parts.append(text(left - 10, y + 18, name, anchor="end"))
        for offset, (median, low, high), colour in ((2, prefill, PREFILL), (15, decode, OURS)):
            middle = y + offset + 5.5
            parts.append(box(left, y + offset, median * scale, 11, colour))
            parts.append(line(left + low * scale, middle, left + high * scale, middle, INK))
            parts.append(text(left + max(high, median) * scale + 6, middle + 4, f"{median:.2f}", size=11))
    return document(760, height, parts)


LANES = ("#0b62a4", "#d9822b", "#2e8b57", "#8e44ad")


LANE_RULE = (
    "Each lane adds the blocks of its own row, in order: integers inside a block (exact), then a float fma.",
    "No sum runs across lanes, and no row is divided among threads. So threads, tiles and instruction sets",
    "decide who computes a row, and never in which order its numbers are added: the bits are the same.",
)


def lane_rule() -> str:
    """Draws a matrix, the panel that it is packed into, and the sums, with 4 rows instead of 16."""
    cell, rows, blocks = 30, 4, 4
    parts = [
        text(20, 26, "The lane rule: one vector lane is one output row", size=15),
        text(20, 58, "rows of the matrix, in the file"),
        text(280, 58, "a panel, as packed: rows interleaved"),
        text(590, 58, "one step of the product"),
    ]
    for row in range(rows):
        y = 70 + row * (cell + 6)
        parts.append(text(20, y + 20, f"row {row}", size=11))
        for block in range(blocks):
            x = 66 + block * cell
            parts += [
                box(x, y, cell - 2, cell - 2, LANES[row]),
                text(x + 14, y + 19, f"b{block}", size=11, anchor="middle", fill="white"),
            ]
    for block in range(blocks):
        for row in range(rows):
            x, y = 280 + row * cell, 70 + block * (cell + 6)
            parts += [
                box(x, y, cell - 2, cell - 2, LANES[row]),
                text(x + 14, y + 19, f"b{block}", size=11, anchor="middle", fill="white"),
            ]
        parts.append(
            text(
                280 + rows * cell + 8,
                70 + block * (cell + 6) + 20,
                f"read {['first', 'second', 'third', 'fourth'][block]}",
                size=11,
            )
        )
    parts.append(line(210, 140, 268, 140, INK, ' marker-end="url(#tip)"'))
    parts.append(line(500, 140, 570, 140, INK, ' marker-end="url(#tip)"'))
    for row in range(rows):
        x = 590 + row * 44
        parts += [
            box(x, 70, 40, cell - 2, LANES[row]),
            text(x + 20, 89, f"lane {row}", size=10, anchor="middle", fill="white"),
            text(x + 20, 124, "+ b \u00b7 x", size=11, anchor="middle"),
            line(x + 20, 132, x + 20, 154, LANES[row], ' stroke-width="2" marker-end="url(#tip)"'),
            box(x, 162, 40, cell - 2, "white", LANES[row]),
            text(x + 20, 181, f"y{row}", size=11, anchor="middle"),
        ]
    parts += [text(20, 246 + 20 * i, words) for i, words in enumerate(LANE_RULE)]
    parts += [
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="6" refY="4" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>',
    ]
    return document(790, 304, parts)


MADE = {"against-llama-cpp.svg": plot, "lane-rule.svg": lane_rule}


def main() -> int:
    stale = False
    for name, draw in MADE.items():
        path, made = DOCS / "images" / name, draw()
        if "--check" in sys.argv[1:]:
            stale = stale or not path.exists() or path.read_text(encoding="utf-8") != made
        else:
            path.write_text(made, encoding="utf-8")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
