"""What the projector files of a family have in common, and what one file states: its sizes and numbers.

`VISION` and `AUDIO` have one entry for each projector: a family of facts, as `oxillama.models.family` has
them for text models. The code that runs an encoder reads the facts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from oxillama.errors import LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.models.media.reading import Reading
from oxillama.models.media.spectrum import WHISPER_FRAMES


@dataclass(frozen=True)
class VisionProjector:
    """How a family of picture encoders differs from CLIP with two matrices behind it.

    Attributes:
        rule: of `tiles.RULES`, from a picture to tiles.
        merge_key, merge: the key of the patches that are merged along each side, and its default.
        unit: patches along a side that sizes are multiples of; 0 for the merged ones.
        tokens: min and max tokens of a picture; () without such limits.
        limits: keys of the fewest and most pixels, in place of ``tokens``.
        longest: keys of the longest edge, the first that the file has.
        kernel: by which pictures are resized.
        colour: beside padded pictures: "black" or "llava".
        begin, end: text around a picture.
        norm: "rms" or "layer".
        order: of the patches, "rows" or "blocks" of 2 x 2.
        positions: how the table is used: "" none, "table" as it is, "antialias", "corners" or "bicubic"
            resized, "coarse" 70 x 70 places, "axes" one table for each axis.
        rope: "" none, "vision", "2d" with x first, "2d yx" with y first, "halves".
        rope_first: position of the first row and column.
        has_windows: attention within windows in some layers.
        bare: blocks fewer than the file has.
        swaps: old files name up and down the wrong way round.
        merger: of `projectors.MERGERS`.
        both_ways: text layers in which the rows of a picture see each other: "", "all" or "windowed".
        causal_widths: widths of the text model for which ``both_ways`` is "".
        grid: the text model takes its positions from the grid of tokens.
        doubled: pixels are mapped from 0..1 to -1..1.
        v_norm: values are normed.
        scale: of the scores, 0 for 1 / sqrt(head width).
    """

    rule: str = "dynamic"
    merge_key: str = "projector.scale_factor"
    merge: int = 1
    unit: int = 0
    tokens: tuple[int, int] | tuple[()] = ()
    limits: tuple[str, str] | tuple[()] = ()
    longest: tuple[str, ...] = ()
    kernel: str = "bicubic"
    colour: str = "black"
    begin: str = ""
    end: str = ""
    norm: str = "layer"
    order: str = "rows"
    positions: str = "table"
    rope: str = ""
    rope_base: float = 10000.0
    rope_first: int = 0
    has_windows: bool = False
    bare: int = 0
    swaps: bool = False
    merger: str = ""
    both_ways: str = ""
    causal_widths: tuple[int, ...] = ()
    grid: bool = False
    doubled: bool = False
    v_norm: bool = False
    scale: float = 0.0


QWEN2VL = VisionProjector(
    merge=2, tokens=(8, 4096), begin="<|vision_start|>", end="<|vision_end|>", order="blocks", positions="",
    rope="vision", swaps=True, merger="two", merge_key="", grid=True,
)  # fmt: skip
PIXTRAL = VisionProjector(
    merge_key="spatial_merge_size", tokens=(8, 1024), end="[IMG_END]", norm="rms", positions="", rope="2d yx",
    merger="pixtral",
)  # fmt: skip
GEMMA4 = VisionProjector(
    merge=3, tokens=(70, 1120), begin="<|image>", end="<image|>", norm="rms", positions="axes", rope="halves",
    rope_base=100.0, merger="gemma4", both_ways="windowed",
    causal_widths=(1536, 2560), doubled=True, v_norm=True, scale=1.0,
)  # fmt: skip

VISION: dict[str, VisionProjector] = {
    "mlp": VisionProjector(rule="llava", colour="llava", bare=1, swaps=True, merger="llava"),
    "gemma3": VisionProjector(
        rule="square", merge=4, kernel="bilinear", begin="<start_of_image>", end="<end_of_image>", swaps=True,
        merger="gemma3", both_ways="all",
    ),
    "qwen2vl_merger": QWEN2VL,
    "qwen2.5vl_merger": replace(QWEN2VL, norm="rms", has_windows=True),
    "qwen3vl_merger": replace(QWEN2VL, merge_key="spatial_merge_size", positions="corners", swaps=False),
    "gemma4v": GEMMA4,
    "gemma4uv": replace(GEMMA4, rope="", doubled=False, v_norm=False, norm="layer"),
    "idefics3": VisionProjector(
        rule="idefics3", longest=("preproc_image_size",), swaps=True, merger="shuffle one",
    ),
    "pixtral": PIXTRAL,
    "lightonocr": replace(
        PIXTRAL, tokens=(), longest=("preproc_image_size", "image_size"), begin="<|im_start|>",
        end="<|im_end|>",
    ),
    "internvl": VisionProjector(rule="pinned", begin="<img>", end="</img>", merger="internvl"),
    "lfm2": VisionProjector(
        rule="lfm2", merge=2, tokens=(64, 256), kernel="bilinear", begin="<|image_start|>",
        end="<|image_end|>", positions="antialias", merger="shuffle two",
    ),
    "resampler": VisionProjector(rule="minicpmv", positions="coarse", swaps=True, merger="resampler"),
    "llama4": VisionProjector(
        rule="pinned", begin="<|image_start|>", end="<|image_end|>", rope="2d", rope_first=1, merger="llama4",
    ),
    "glm4v": replace(
        QWEN2VL, norm="rms", positions="bicubic", swaps=False, merger="glm4v", begin="<|begin_of_image|>",
        end="<|end_of_image|>",
    ),
    "kimivl": VisionProjector(
        merge=2, tokens=(8, 1024), begin="<|media_start|>", end="<|media_end|>", positions="antialias",
        rope="2d", merger="norm shuffle",
    ),
    "paddleocr": VisionProjector(
        merge=2, merge_key="", limits=("image_min_pixels", "image_max_pixels"), begin="<|IMAGE_START|>",
        end="<|IMAGE_END|>", positions="antialias", rope="vision", merger="norm shuffle", grid=True,
    ),
}  # fmt: skip
"""By ``projector_type``."""


@dataclass(frozen=True)
class AudioProjector:
    """How a family of sound encoders differs from others.

    Attributes:
        encoder: "whisper", "conformer" or "frames", the samples themselves.
        begin, end: text around each piece of a sound.
        pools: neighbouring rows are averaged before the last norm (but see `AudioFacts.pools`).
        stacks: rows are joined, as many as ``projector.stack_factor``.
        merger: of `audio.MERGERS`.
    """

    encoder: str = "whisper"
    begin: str = ""
    end: str = ""
    pools: bool = False
    stacks: bool = False
    merger: str = ""


AUDIO: dict[str, AudioProjector] = {
    "qwen2a": AudioProjector(begin="<|audio_bos|>", end="<|audio_eos|>", pools=True, merger="one"),
    "ultravox": AudioProjector(stacks=True, merger="ultravox"),
    "voxtral": AudioProjector(begin="[BEGIN_AUDIO]", pools=True, stacks=True, merger="two"),
    "gemma4a": AudioProjector(encoder="conformer", begin="<|audio>", end="<audio|>", merger="projected"),
    "gemma4ua": AudioProjector(encoder="frames", begin="<|audio>", end="<audio|>", merger="projected"),
}
"""By ``projector_type``."""


MOST_PATCHES = 1 << 16
"""Most patches of a tile."""


class EncoderFacts:
    """The sizes that encoders of pictures and of sounds have both.

    Attributes:
        name: of the projector.
        width, n_ff, n_blocks, n_heads, n_kv_heads, head_dim: of the blocks.
        eps: of the norms.
        out_width: of an embedding.
    """

    name: str

    def __init__(self, file: ModelFile, modality: str) -> None:
        self.read: Reading = Reading(file, f"clip.{modality}")
        read = self.read
        self.width: int = read.size("embedding_length", most=1 << 16)
        self.n_ff: int = read.size("feed_forward_length", least=0, most=1 << 20)
        self.n_blocks: int = read.size("block_count", least=0, most=1 << 10)
        self.out_width: int = read.size("projection_dim", most=1 << 20)
        self.n_heads: int = read.size("attention.head_count", least=0, most=1 << 10)
        self.n_kv_heads: int = read.size("attention.head_count_kv", self.n_heads, least=0, most=1 << 10)
        self.eps: float = read.epsilon("attention.layer_norm_epsilon")
        heads = max(1, self.n_heads)
        self.head_dim: int = read.size("attention.head_dim", max(1, self.width // heads), most=1 << 12)
        have = self.n_heads and self.n_kv_heads and not self.n_heads % self.n_kv_heads
        counts = f"{self.n_heads} and {self.n_kv_heads}"
        read.expect(
            have or not self.n_blocks, "attention.head_count", "heads that share key heads evenly", counts
        )


class VisionFacts(EncoderFacts):
    """What a file states about its encoder of pictures.

    Attributes:
        image_size: pixels along a side of a square tile.
        patch_size: pixels along a side of a patch.
        merge: patches along a side of a token.
        unit: pixels of which sizes are multiples.
        mean, std: float32 (3,).
        activation: of the feed-forward blocks.
        pins: sizes of pictures in tiles.
        longest_edge: of a picture, 0 for no such rule.
        pixel_limits: fewest and most pixels.
        version, n_queries: of MiniCPM-V.
        drops_class_row: the rows of patches alone are taken (LLaVA), a key of our own.
        goes_by_rows: tokens follow each other row by row (Llama 4), a key of our own.
    """

    def __init__(self, file: ModelFile, name: str) -> None:
        super().__init__(file, "vision")
        read = self.read
        self.name: str = name
        self.projector: VisionProjector = VISION[name]
        if "clip.vision.feature_layer" in file.metadata:
            raise LoadError("clip.vision.feature_layer: encoders that join several layers are not supported")
        projector = self.projector
        self.image_size: int = read.size("image_size", most=1 << 14)
        self.patch_size: int = read.size("patch_size", most=1 << 10)
        self.mean: np.ndarray = read.three("image_mean")
        self.std: np.ndarray = read.three("image_std")
        read.expect((self.std > 0).all(), "image_std", "numbers above 0", self.std.tolist())
        key = projector.merge_key
        self.merge: int = read.size(key, projector.merge, most=64) if key else projector.merge
        self.unit: int = self.patch_size * self.merge
        general = Reading(file, "clip")
        self.activation: str = read_activation(general)
        self.version: int = general.size("minicpmv_version", 0, least=0) or 2
        self.n_queries: int = general.size("minicpmv_query_num", 0, least=0, most=1 << 16)
        self.drops_class_row: bool = read.flag("drops_class_row")
        self.goes_by_rows: bool = read.flag("goes_by_rows")
        self.window_period: int = read.size("n_wa_pattern", 0, least=0, most=1 << 16)
        edges = (read.size(key, 0, least=0) for key in projector.longest)
        self.longest_edge: int = next(filter(None, edges), 0)

    @cached_property
    def pixel_limits(self) -> tuple[int, int]:
        """Fewest and most pixels of a picture of any size."""
        if self.projector.limits:
            low, high = (self.read.size(key, most=1 << 31) for key in self.projector.limits)
        else:
            low, high = (n * self.unit**2 for n in self.projector.tokens or (1, 1 << 20))
        if not 1 <= low <= high:
            raise LoadError(f"clip.vision: expected fewer pixels at least than at most, got {low} and {high}")
        return low, high

    @cached_property
    def pins(self) -> list[tuple[int, int]]:
        """Sizes that pictures in tiles may have."""
        if self.projector.rule == "llava":
            flat = self.read.sizes("image_grid_pinpoints")
            return list(zip(flat[::2], flat[1::2]))
        if self.name == "llama4":
            counts = [(x, y) for x in (1, 2, 3) for y in (1, 2, 3) if x * y > 1]
        else:
            low = self.read.size("preproc_min_tiles", 1, most=64)
            high = self.read.size("preproc_max_tiles", 12, most=64)
            counts = [
                (x, y)
                for x in range(low, high + 1)
                for y in range(max(math.ceil(low / x), low), min(high // x, high) + 1)
            ]
        return [(x * self.image_size, y * self.image_size) for x, y in counts]


class AudioFacts(EncoderFacts):
    """What a file states about its encoder of sounds.

    Attributes:
        n_mels: bins of a spectrogram.
        stack: rows that are joined to a token.
        pools: neighbouring rows are averaged before; not where the averages do not fill the last token
            (Voxtral's published files, llama.cpp#25496).
    """

    def __init__(self, file: ModelFile, name: str) -> None:
        super().__init__(file, "audio")
        self.name: str = name
        self.projector: AudioProjector = AUDIO[name]
        self.n_mels: int = self.read.size("num_mel_bins", most=1 << 10)
        self.stack: int = self.read.size("projector.stack_factor", most=100) if self.projector.stacks else 1
        self.pools: bool = self.projector.pools and WHISPER_FRAMES // 4 % self.stack == 0


def read_activation(general: Reading) -> str:
    """The activation of the feed-forward blocks. Raises LoadError for a file that states two."""
    has_gelu, has_silu = general.flag("use_gelu"), general.flag("use_silu")
    if has_gelu and has_silu:
        raise LoadError("clip.use_gelu, clip.use_silu: expected one of them at most to be true, got both")
    return "gelu" if has_gelu else "silu" if has_silu else "gelu_quick"


def projector_name(file: ModelFile, modality: str) -> str | None:
    """The projector of "vision" or "audio"; None for a file without such an encoder.

    Raises LoadError for a file that is no projector file, or for an unknown projector.
    """
    general = Reading(file, "clip")
    if file.get("general.architecture", str, "") != "clip":
        raise LoadError("general.architecture: expected clip, the architecture of projector files (mmproj)")
    if not general.flag(f"has_{modality}_encoder"):
        return None
    name = general.text("projector_type") or general.text(f"{modality}.projector_type")
    known = VISION if modality == "vision" else AUDIO
    general.expect(name in known, "projector_type", f"one of {', '.join(known)}", repr(name))
    return name
