"""Packs whole models into files, and finds the packed file of a model that is loaded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from oxillama import _kernels
from oxillama._kernels.openmp_thread import in_openmp_thread
from oxillama.base.config import EngineConfig
from oxillama.base.formats import PACKED_SUFFIX
from oxillama.engine.building import load_weights
from oxillama.errors import ConfigError, LoadError, ModelFileError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.gguf.known_hashes import is_settled
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, read_spec
from oxillama.models.weights.linear import PanelStore
from oxillama.models.weights.packed_file import PANELS_VERSION, PackedFacts, PackedFile, write_packed
from oxillama.models.weights.packer import Progress, Source

if TYPE_CHECKING:
    from oxillama._kernels.linear.linear import Linear


def packed_path(model: Path, config: EngineConfig) -> Path:
    """The packed file beside a model: ``m.gguf.packed``, or ``m.gguf.Q8_0.packed`` with quantize Q8_0."""
    setting = config.quantize_format or config.compute
    return model.with_name(f"{model.name}{'' if setting == 'int8' else f'.{setting}'}{PACKED_SUFFIX}")


def pack_model(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    quantize: str | None = None,
    compute: str = "int8",
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes the packed file of a model: its matrices as the kernels take them.

    Args:
        source: GGUF file (of a split one: the first).
        target: file to write or to replace; None for the file next to the model, which engines find.
        quantize: as in `EngineConfig`; engines with another value need a file of their own.
        compute: as ``quantize``.
        num_threads: as in `EngineConfig`.
        progress: called with (tensor name, bytes) for each matrix that is written.

    Returns:
        The file that was written.

    Raises:
        ConfigError: an option is outside its range.
        ModelFileError: a file cannot be read or written.
        GGUFError, LoadError: the model cannot be loaded, and why.
    """
    config = EngineConfig(quantize=quantize, compute=compute, num_threads=num_threads)
    with ModelFile.open(source) as file:
        assert file.path is not None
        path = packed_path(file.path, config) if target is None else Path(os.fsdecode(target))
        in_openmp_thread(partial(_pack, file, path, config, progress))
    return path


def check_packed(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    quantize: str | None = None,
    compute: str = "int8",
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Reads a packed file and its model, and compares all checksums. Loading compares checksums of the panels
    once for each copy of the file.

    Args:
        source, target, quantize, compute: as for `pack_model`.
        progress: called with the bytes of panels that were read, and the bytes in all.

    Returns:
        The packed file.

    Raises:
        ConfigError: an option is outside its range.
        ModelFileError: a file cannot be read, or the packed file is damaged.
        GGUFError: the model's file is malformed.
        LoadError: the packed file is of another model, or has other panels.
    """
    config = EngineConfig(quantize=quantize, compute=compute)
    with ModelFile.open(source) as file:
        assert file.path is not None
        path = packed_path(file.path, config) if target is None else Path(os.fsdecode(target))
        with _fitting(path, file, config, verified=False) as packed:
            if not ModelFingerprint(bytes.fromhex(packed.facts.content)).verify(file):
                raise LoadError(f"{path}: expected panels of model {packed.facts.content[:16]}, got another")
            packed.verify(progress)
    return path


def packed_files(file: ModelFile) -> list[tuple[Path, PackedFacts | None, str]]:
    """The packed files beside a model: their facts, and why an engine would not take them, or "".

    The model's matrices are not read, so a file that only they can tell is said to be perhaps another's.
    """
    if file.path is None:
        return []
    found: list[tuple[Path, PackedFacts | None, str]] = []
    folder, start = file.path.parent, f"{file.path.name}."
    for path in sorted(p for p in folder.iterdir() if p.name.startswith(start) and p.suffix == PACKED_SUFFIX):
        try:
            with PackedFile(path) as packed:
                config = EngineConfig(quantize=packed.facts.quantize, compute=packed.facts.compute)
                found.append((path, packed.facts, misfit(packed, file, config, hashes=False)))
        except (ConfigError, ModelFileError) as error:
            found.append((path, None, str(error)))
    return found


def _pack(file: ModelFile, path: Path, config: EngineConfig, progress: Progress | None) -> None:
    start = time.time()
    facts = PackedFacts(
        model=file.path.name if file.path else "",
        content=ModelFingerprint.compute(file).content.hex(),
        files=_files(file),
        settled=is_settled(file.identity, start),
        quantize=config.quantize_format,
        compute=config.compute,
    )
    matrices: list[tuple[Source, int]] = []
    weights = load_weights(file, _kernels.best(), config, progress, lambda packer: _Collecting(matrices))
    Decoder(read_spec(file), weights)
    write_packed(path, facts, matrices, weights.packer.pack)


def open_packed(file: ModelFile, config: EngineConfig) -> tuple[PackedFile | None, str]:
    """The packed file that a model is to be loaded with, if any.

    Returns:
        The file, or None; and why the file that is there was not taken, or "".

    Raises:
        ConfigError: a packed file is to be made for a model that has no path.
        ModelFileError: the packed file that ``config`` names cannot be read or is damaged; or none can be
            made.
        LoadError: the packed file that ``config`` names is of another model, or has other panels.
    """
    wanted = config.packed
    if wanted == "off" or (wanted == "auto" and file.path is None):
        return None, ""
    if wanted not in ("auto", "make"):
        return _fitting(Path(wanted), file, config), ""
    if file.path is None:
        raise ConfigError("packed: expected the path of a model beside which to make a file, got its bytes")
    path, note = packed_path(file.path, config), ""
    if path.exists():
        try:
            return _fitting(path, file, config), ""
        except (ModelFileError, LoadError) as error:
            note = f"{error}; the model is loaded without it"
    if wanted == "make":
        in_openmp_thread(partial(_pack, file, path, config, None))
        return PackedFile(path), ""
    return None, note


def _fitting(path: Path, file: ModelFile, config: EngineConfig, *, verified: bool = True) -> PackedFile:
    """The packed file at a path. Raises ModelFileError as `PackedFile`, and LoadError if it does not fit.

    With ``verified`` its panels were read and compared with their checksums since the file was changed.
    """
    packed = PackedFile(path)
    try:
        reason = misfit(packed, file, config)
        if reason:
            raise LoadError(f"{path}: {reason}")
        if verified and not packed.is_verified:
            packed.verify()
    except BaseException:
        packed.close()
        raise
    return packed


def misfit(packed: PackedFile, file: ModelFile, config: EngineConfig, *, hashes: bool = True) -> str:
    """Why a packed file is not one of this model and configuration; "" if it is.

    The file that was packed, by inode, size and times, is not read again; any other is hashed, unless it has
    another size, or ``hashes`` is False.
    """
    facts = packed.facts
    quantize = config.quantize_format
    if facts.panels != PANELS_VERSION:
        return f"expected panels of version {PANELS_VERSION}, got {facts.panels}"
    if (facts.quantize, facts.compute) != (quantize, config.compute):
        found = f"quantize {facts.quantize}, compute {facts.compute}"
        return f"expected panels of quantize {quantize}, compute {config.compute}, got {found}"
    files = _files(file)
    if facts.settled and files == facts.files:
        return ""
    sizes, packed_sizes = ([size for _, size, *_ in each] for each in (files, facts.files))
    if files and sizes != packed_sizes:
        return f"expected panels of a model of {sum(sizes)} bytes, got one of {sum(packed_sizes)}"
    if not hashes:
        return "perhaps another model's: the file is not the one that was packed, or had just been written"
    content = ModelFingerprint.compute(file).content.hex()
    if content != facts.content:
        return f"expected panels of model {content[:16]}, got {facts.content[:16]}"
    return ""


def _files(file: ModelFile) -> tuple[tuple[int, int, int, int], ...]:
    """As `PackedFacts.files`. The device is left out: its number may change when the system starts."""
    return tuple((one.inode, one.size, one.mtime_ns, one.ctime_ns) for one in file.identity)


class _Collecting(PanelStore):
    """A `PanelStore` that notes which matrices a model is made of; its layers cannot be applied."""

    def __init__(self, matrices: list[tuple[Source, int]]) -> None:
        self._matrices = matrices

    def panels(self, sources: list[Source], cols: int) -> _Collecting:
        self._matrices += [(source, cols) for source in sources]
        return self

    def place(self, linear: Linear) -> NoReturn:
        raise NotImplementedError("the layers of a model that is packed into a file are not applied")
