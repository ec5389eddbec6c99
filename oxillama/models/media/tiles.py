"""From a picture to the 8-bit tiles that an encoder takes and the text around them, by a projector's rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from oxillama.errors import MediaError
from oxillama.models.media.facts import VisionFacts
from oxillama.models.media.resize import BLACK, pad, resize
from oxillama.models.media.sizes import (
    Size,
    best_pins,
    fit_area,
    longer_to,
    nearest_grid,
    slice_grid,
    smart,
    up_to_multiples,
)

LLAVA_COLOUR = (122, 116, 104)
"""The mean colour of CLIP's training pictures."""

LFM2_SIDE, LFM2_TILES = 512, (2, 10)
MINICPM_TILES = 9


class Name(str):
    """The text of one token of the vocabulary."""


@dataclass
class Tiles:
    """A picture as an encoder takes it.

    Attributes:
        pixels: uint8 (h, w, 3) of each tile, in the order of the prompt.
        texts: what stands before each tile, and behind the last one: texts to tokenize, and names of tokens.
    """

    pixels: list[np.ndarray] = field(default_factory=list)
    texts: list[list[str]] = field(default_factory=lambda: [[]])

    def add(self, pixels: np.ndarray) -> None:
        """Adds a tile."""
        self.pixels.append(np.ascontiguousarray(pixels))
        self.texts.append([])

    def say(self, *texts: str) -> None:
        """Adds text behind the last tile."""
        self.texts[-1] += texts


def cut(picture: np.ndarray, width: int, height: int) -> list[list[np.ndarray]]:
    """Tiles of (height, width) by row and column."""
    h, w = picture.shape[:2]
    return [
        [picture[y : y + height, x : x + width] for x in range(0, w - width + 1, width)]
        for y in range(0, h - height + 1, height)
    ]


def size_of(picture: np.ndarray) -> Size:
    """(width, height)."""
    return picture.shape[1], picture.shape[0]


def square(facts: VisionFacts, picture: np.ndarray, tiles: Tiles) -> None:
    """The whole picture in a square."""
    colour = LLAVA_COLOUR if facts.projector.colour == "llava" else BLACK
    side = facts.image_size
    tiles.add(pad(picture, side, side, facts.projector.kernel, colour))


def dynamic(facts: VisionFacts, picture: np.ndarray, tiles: Tiles) -> None:
    """The whole picture in about its own size."""
    low, high = facts.pixel_limits
    longest = facts.longest_edge
    width, height = smart(size_of(picture), facts.unit, low, high, longest, not longest)
    tiles.add(pad(picture, width, height, facts.projector.kernel))


def pinned(facts: VisionFacts, picture: np.ndarray, tiles: Tiles) -> None:
    """Square tiles, then the whole picture in one; small pictures in one alone."""
    side, size = facts.image_size, size_of(picture)
    if max(size) > side and facts.pins:
        whole = pad(picture, *best_pins(size, facts.pins), facts.projector.kernel)
        for row in cut(whole, side, side):
            for tile in row:
                tiles.add(tile)
    tiles.add(resize(picture, side, side, facts.projector.kernel))


def llava(facts: VisionFacts, picture: np.ndarray, tiles: Tiles) -> None:
    """Fits the picture in a square, or in tiles if the file lists sizes of pictures."""
    (pinned if facts.pins else square)(facts, picture, tiles)


def idefics3(facts: VisionFacts, picture: np.ndarray, tiles: Tiles) -> None:
    """Always tiles, by row and column, and the whole picture."""
    side, size = facts.image_size, size_of(picture)
    if facts.longest_edge:
        first = longer_to(size, facts.longest_edge)
        if not min(first):
            raise MediaError(f"picture: expected sides in a proportion that {first} keeps, got {size}")
        large = resize(picture, *first, "lanczos")
        large = resize(large, *up_to_multiples(size_of(large), side), "lanczos")
        overview = resize(large, side, side, "lanczos")
    else:
        large = pad(picture, *smart(size, side, 0, 0, always_between=False), "bicubic")
        overview = resize(picture, side, side, "bicubic")
    rows = cut(large, side, side)
    for y, row in enumerate(rows, 1):
        for x, tile in enumerate(row, 1):
            tiles.say(Name("<fake_token_around_image>"), Name(f"<row_{y}_col_{x}>"))
            tiles.add(tile)
        if y < len(rows):
            tiles.say(Name("\n"))
    tiles.say(Name("\n\n"), Name("<fake_token_around_image>"), Name("<global-img>"))
    tiles.add(overview)
    tiles.say(Name("<fake_token_around_image>"))


def lfm2(facts: VisionFacts, picture: np.ndarray, tiles: Tiles) -> None:
    """The whole picture, for large ones behind tiles."""
    size, unit = size_of(picture), facts.unit
    low, high = facts.pixel_limits
    w, h = (max(facts.patch_size, round(np.float32(n) / np.float32(unit)) * unit) for n in size)
    if w * h > 2 * high:
        columns, rows = nearest_grid(size, *LFM2_TILES, LFM2_SIDE)
        whole = pad(picture, LFM2_SIDE * columns, LFM2_SIDE * rows, "bilinear")
        for y, row in enumerate(cut(whole, LFM2_SIDE, LFM2_SIDE), 1):
            for x, tile in enumerate(row, 1):
                tiles.say(Name(f"<|img_row_{y}_col_{x}|>"))
                tiles.add(tile)
        tiles.say(Name("<|img_thumbnail|>"))
    tiles.add(resize(picture, *smart(size, unit, low, high), "bilinear"))


def minicpmv(facts: VisionFacts, picture: np.ndarray, tiles: Tiles) -> None:
    """The whole picture; large ones also in tiles."""
    side, size, unit = facts.image_size, size_of(picture), facts.patch_size
    is_first = facts.version == 2
    is_small = max(size) <= side
    overview = (side, side) if is_small else fit_area(size, side, unit, False)
    tiles.say(Name("<image>"))
    tiles.add(resize(picture, *overview, "bicubic"))
    tiles.say(Name("</image>"))
    if is_small:
        return
    columns, rows = slice_grid(size, side, MINICPM_TILES)
    begin, end = (Name("<image>"), Name("</image>")) if is_first else (Name("<slice>"), Name("</slice>"))
    width, height = fit_area(_tile_size(size, columns, rows), side, unit, True)
    whole = pad(picture, width * columns, height * rows, "bicubic")
    if is_first:
        tiles.say(Name("<slice>"))
    for y, row in enumerate(cut(whole, width, height)):
        if y:
            tiles.say(Name("\n"))
        for tile in row:
            tiles.say(begin)
            tiles.add(tile)
            tiles.say(end)
    if is_first:
        tiles.say(Name("</slice>"))


def _tile_size(size: Size, columns: int, rows: int) -> Size:
    """The size of a tile before it is brought to the area of a square."""
    w, h = size
    width = max(columns, int(np.float32(w) / np.float32(columns) + np.float32(0.5)) * columns)
    height = max(rows, int(np.float32(h) / np.float32(rows) + np.float32(0.5)) * rows)
    return width // columns, height // rows


RULES: dict[str, Callable[[VisionFacts, np.ndarray, Tiles], None]] = {
    "square": square,
    "dynamic": dynamic,
    "pinned": pinned,
    "llava": llava,
    "idefics3": idefics3,
    "lfm2": lfm2,
    "minicpmv": minicpmv,
}


def prepare(facts: VisionFacts, picture: np.ndarray) -> Tiles:
    """The tiles of a picture, uint8 (h, w, 3)."""
    tiles = Tiles()
    if facts.projector.begin:
        tiles.say(facts.projector.begin)
    RULES[facts.projector.rule](facts, picture, tiles)
    if facts.projector.end:
        tiles.say(facts.projector.end)
    return tiles
