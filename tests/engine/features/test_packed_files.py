"""Engines with packed files: which file they take, the same bits, and errors where a file has changed."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from blake3 import blake3

from oxillama import (
    ConfigError,
    EngineConfig,
    LoadError,
    ModelFileError,
    OxiLlamaError,
    RequestFailed,
    demo,
    pack_model,
)
from oxillama.base.formats import FORMATS
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.features import packed_files as packing
from oxillama.gguf import fingerprint, known_hashes, writer
from oxillama.gguf.model_file import ModelFile
from oxillama.models.weights import packed_file, packed_store, packer
from tests.engine.test_changed_file import overwrite
from tests.support.adapters import adapter_of
from tests.support.paths import ROOT
from tests.support.tiny_file import write_tiny_model

TOKENS = list(range(5, 40))
OPTIONS: list[dict[str, Any]] = [
    {},
    {"quantize": "q8_0"},
    {"compute": "f32"},
    {"compute": "bf16"},
    {"compute": "w8a8"},
    {"compute": "w8a8-128"},
]
CHANGED = "changed while it was in use"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fingerprint.KNOWN.forget()
    packed_file.VERIFIED.forget()
    path = write_tiny_model(tmp_path / "m.gguf", format="F16")
    os.utime(path, (1e9, 1e9))
    return path


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's file counts as one that has not been changed recently."""
    monkeypatch.setattr(known_hashes, "SETTLE_SECONDS", -3600.0)


@pytest.fixture
def packs_nothing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets no engine pack a matrix from now on."""
    refuse = Mock(side_effect=AssertionError("a matrix was packed"))
    return lambda: monkeypatch.setattr(packer.Packer, "pack", refuse)


def logits(path: Path, **options: Any) -> bytes:
    with InferenceEngine.from_gguf(path, **options) as engine:
        return engine.logits(TOKENS).tobytes()


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_bits_are_those_without(
    path: Path, options: dict[str, Any], access: str, packs_nothing: Callable[[], None]
) -> None:
    expected = logits(path, packed="off", **options)
    packed = pack_model(path, **options)
    ending = {"q8_0": ".Q8_0", "int8": ""}.get(setting := next(iter(options.values()), "int8"), f".{setting}")
    assert packed == path.with_name(f"m.gguf{ending}.packed")
    packs_nothing()
    for chosen in ("auto", "make", packed, str(packed)):
        assert logits(path, packed=chosen, packed_access=access, **options) == expected
    with pytest.raises(RequestFailed, match="a matrix was packed"):
        logits(path, packed="off", **options)


def test_scales_of_matrices_are_read_from_the_model(path: Path, packs_nothing: Callable[[], None]) -> None:
    plain = logits(path, packed="off")
    with ModelFile.open(path) as file:
        kinds = [writer.Tensor(name, t.format, t.shape) for name, t in file.tensors.items()]
        pairs, data = [*file.raw_metadata().values()], [file.data(t.name) for t in kinds]
    kinds.append(writer.Tensor("blk.0.attn_output.scale", FORMATS["F32"], (1,)))
    data.append(np.array([0.5], "<f4").view(np.uint8))
    with path.open("wb") as out:
        out.write(writer.header(pairs, kinds))
        for kind, blocks in zip(kinds, data, strict=True):
            writer.write_tensor(out, kind, [blocks], writer.DEFAULT_ALIGNMENT)
    scaled = logits(path, packed="off")
    pack_model(path)
    packs_nothing()
    assert logits(path) == scaled != plain


@pytest.mark.parametrize("compute", ["int8", "w8a8", "w8a8-128"])
def test_adapters_drafts_embeddings_and_forks(path: Path, tmp_path: Path, compute: str) -> None:
    adapter, results = tmp_path / "a.gguf", []
    model = Path(shutil.copy(demo.DRAFT, tmp_path / "story.gguf"))
    with ModelFile.open(model) as file, InferenceEngine(model) as engine:
        adapter.write_bytes(adapter_of(file, engine.model.runner.model, 4, 0))
    for packed in ("off", "make"):
        options: dict[str, Any] = {"packed": packed, "adapters": adapter, "compute": compute}
        with InferenceEngine.from_gguf(model, **options) as engine:
            text = engine.generate("Once upon a time", max_tokens=20, temperature=0, speculate="self")
            session = engine.session()
            session.prefill("Once")
            found = session.fork().generate(max_tokens=8, temperature=0)
            results.append((text, found, engine.embed("a bear").tobytes()))
    assert results[0] == results[1]


def test_a_file_is_made_when_asked_and_once(
    path: Path, settled: None, packs_nothing: Callable[[], None]
) -> None:
    expected = logits(path)
    assert not list(path.parent.glob("*.packed"))
    assert logits(path, packed="make") == expected
    made = path.with_name("m.gguf.packed").stat()
    packs_nothing()
    assert logits(path, packed="make") == expected
    assert logits(path) == expected
    assert path.with_name("m.gguf.packed").stat().st_mtime_ns == made.st_mtime_ns


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[ModelFile]:
    """The models that were hashed."""
    found = []

    def compute(file: ModelFile) -> fingerprint.ModelFingerprint:
        found.append(file)
        return fingerprint.ModelFingerprint(fingerprint._hashed(file, None))

    monkeypatch.setattr(packing.ModelFingerprint, "compute", compute)
    return found


def test_the_model_is_not_read_if_it_is_the_file_that_was_packed(
    path: Path, settled: None, hashed: list[ModelFile]
) -> None:
    pack_model(path)
    hashed.clear()
    logits(path)
    assert not hashed
    os.utime(path, (1e9, 1e9 + 1))  # perhaps another content: only the hash can tell
    logits(path)
    assert len(hashed) == 1


def test_a_model_that_was_just_written_is_hashed(path: Path, hashed: list[ModelFile]) -> None:
    """Another change within the clock's tick would leave its times as they are."""
    packed = pack_model(path)
    with packing.PackedFile(packed) as file:
        assert not file.facts.settled
    hashed.clear()
    logits(path)
    assert len(hashed) == 1
    write_tiny_model(path, format="F16", seed=1)  # a model of the same size
    with pytest.warns(UserWarning, match=r"expected panels of model .*; the model is loaded without"):
        logits(path)


def test_a_check_reads_the_model_and_the_panels(
    path: Path, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_files", lambda file: ((1, 2, 3, 4),))  # as if all files were the same
    packed = pack_model(path)
    assert packing.check_packed(path) == packed
    with pytest.raises(LoadError, match="compute f32"):
        packing.check_packed(path, packed, compute="f32")
    write_tiny_model(path, format="F16", seed=1)
    with pytest.raises(LoadError, match=r"expected panels of model \w+, got another"):
        packing.check_packed(path)


def test_a_copy_of_both_files_fits(path: Path, tmp_path: Path) -> None:
    pack_model(path)
    folder = tmp_path / "copy"
    folder.mkdir()
    copied = [Path(shutil.copy2(each, folder)) for each in (path, path.with_name("m.gguf.packed"))]
    assert logits(copied[0], packed=copied[1]) == logits(path, packed="off")


def test_bytes_have_no_file_beside_them(path: Path) -> None:
    packed = pack_model(path)
    data = path.read_bytes()
    other = write_tiny_model(path.with_name("other.gguf"), format="F16", seed=1).read_bytes()
    with ModelFile.open(data) as file:
        assert packing.open_packed(file, EngineConfig()) == (None, "")
        found, note = packing.open_packed(file, EngineConfig(packed=packed))
        assert (found.path if found else None, note) == (packed, "")
        with pytest.raises(ConfigError, match="packed: expected the path of a model"):
            packing.open_packed(file, EngineConfig(packed="make"))
    with ModelFile.open(other) as file, pytest.raises(LoadError, match="expected panels of model"):
        packing.open_packed(file, EngineConfig(packed=packed))


def other_model(path: Path) -> dict[str, Any]:
    write_tiny_model(path, format="F16", n_layers=3)
    return {}


def damaged_header(path: Path) -> dict[str, Any]:
    packed = path.with_name("m.gguf.packed")
    data = packed.read_bytes()
    packed.unlink()
    packed.write_bytes(data[:60] + b"x" + data[61:])
    return {}


def other_options(path: Path) -> dict[str, Any]:
    path.with_name("m.gguf.packed").rename(path.with_name("m.gguf.f32.packed"))
    return {"compute": "f32"}


def damaged_panels(path: Path, change: Callable[[bytearray, int], None] | None = None) -> dict[str, Any]:
    """One bit of a matrix, or what ``change`` makes of the bytes, given the first of the panels."""
    packed = path.with_name("m.gguf.packed")
    with packing.PackedFile(packed) as file:
        start = file.panels.start
    times, data = packed.stat(), bytearray(packed.read_bytes())
    if change is None:
        data[start + 1000] ^= 4
    else:
        change(data, start)
    packed.chmod(0o644)
    packed.write_bytes(data)  # the inode stays
    os.utime(packed, ns=(times.st_atime_ns, times.st_mtime_ns))
    return {}


def lost_page(path: Path) -> dict[str, Any]:
    """As after a crash of a system that had the size of the file on the disk, and not yet this page."""
    return damaged_panels(path, lambda data, start: data.__setitem__(slice(start, start + 4096), bytes(4096)))


def exchanged_matrices(path: Path) -> dict[str, Any]:
    def change(data: bytearray, start: int) -> None:
        data[start : start + 4096], data[start + 4096 : start + 8192] = (
            data[start + 4096 : start + 8192],
            data[start : start + 4096],
        )

    return damaged_panels(path, change)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (damaged_panels, "expected its checksum"),
        (lost_page, "expected its checksum"),
        (exchanged_matrices, "expected its checksum"),
        (other_model, "expected panels of a model of"),
        (damaged_header, "header: expected its checksum"),
        (other_options, "expected panels of quantize None, compute f32, got quantize None, compute int8"),
    ],
)
def test_a_file_that_does_not_fit(path: Path, change: Callable[[Path], dict[str, Any]], text: str) -> None:
    """Beside the model: a warning, and the model is packed in memory. Named: an error. "make": a new one."""
    pack_model(path)
    options = change(path)
    expected = logits(path, packed="off", **options)
    with pytest.warns(UserWarning, match=f"{text}.*; the model is loaded without it"):
        assert logits(path, **options) == expected
    named = next(path.parent.glob("*.packed"))
    with pytest.raises((LoadError, ModelFileError), match=text):
        logits(path, packed=named, **options)
    assert logits(path, packed="make", **options) == expected
    assert logits(path, **options) == expected


@pytest.mark.parametrize("options", [{"packed_access": "read"}, {"offload_budget": 1 << 20}], ids=str)
def test_damaged_panels_are_found_however_they_are_read(path: Path, options: dict[str, Any]) -> None:
    pack_model(path)
    damaged_panels(path)
    with pytest.raises(ModelFileError, match="expected its checksum"):
        logits(path, packed=path.with_name("m.gguf.packed"), **options)


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The packed files whose panels were read and compared."""
    found, verify = [], packing.PackedFile.verify

    def noted(packed: packing.PackedFile, *given: Any) -> None:
        found.append(packed.path)
        verify(packed, *given)

    monkeypatch.setattr(packing.PackedFile, "verify", noted)
    return found


def test_panels_are_read_once_for_each_copy_of_the_file(
    path: Path, settled: None, verified: list[Path]
) -> None:
    packed, read = pack_model(path), verified
    for forgets in (False, False, True):
        if forgets:
            packed_file.VERIFIED.forget()  # as another process
        logits(path)
        assert read == [packed]
    copy = packed.with_name("copy")
    shutil.copy2(packed, copy)
    logits(path, packed=copy)
    assert read == [packed, copy]
    damaged_panels(path)
    for _ in range(2):
        with pytest.raises(ModelFileError, match="expected its checksum"):
            logits(path, packed=packed)
    assert read == [packed, copy, packed, packed]
    damaged_panels(path)  # the bit as it was
    logits(path, packed=packed)
    assert read == [packed, copy, *[packed] * 3]
    assert packing.check_packed(path) == packed  # which always reads
    assert read == [packed, copy, *[packed] * 4]


def test_panels_that_were_just_written_are_read_again(
    path: Path, verified: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another change within the clock's tick would leave their times as they are."""
    packed = pack_model(path)
    monkeypatch.setattr(known_hashes, "SETTLE_SECONDS", 1e6)
    for n in (1, 2):
        logits(path)
        assert verified == [packed] * n


def test_a_file_of_other_panels(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack_model(path)
    found = packing.PANELS_VERSION
    monkeypatch.setattr(packing, "PANELS_VERSION", found + 1)
    with pytest.raises(LoadError, match=f"expected panels of version {found + 1}, got {found}"):
        logits(path, packed=packed)


def test_a_matrix_that_the_file_does_not_have_is_packed_and_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, packed = logits(path, packed="off"), pack_model(path)
    find = packing.PackedFile.find

    def without(self: Any, key: tuple[str, int, int], *args: Any) -> Any:
        return find(self, ("none", 0, 0) if key[0] == "blk.1.ffn_up.weight" else key, *args)

    monkeypatch.setattr(packing.PackedFile, "find", without)
    with pytest.warns(UserWarning, match=r"m\.gguf\.packed: has no panels of blk\.1\.ffn_up\.weight"):
        assert logits(path) == expected
    assert packed.exists()


def test_where_mapping_is_not_possible_the_file_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, packs_nothing: Callable[[], None]
) -> None:
    expected = logits(path, packed="off")
    pack_model(path)
    packs_nothing()
    monkeypatch.setattr(packed_store.mmap, "mmap", Mock(side_effect=OSError(19, "No such device")))
    assert logits(path) == expected


@pytest.mark.parametrize("wrong", [None, 3, True, b"auto"])
def test_options_that_cannot_be(path: Path, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="packed: expected"):
        InferenceEngine.from_gguf(path, packed=wrong)
    with pytest.raises(ConfigError, match="packed_access: expected one of map, read"):
        InferenceEngine.from_gguf(path, packed_access="reads")
    with pytest.raises(ModelFileError, match="none"):
        InferenceEngine.from_gguf(path, packed=path.with_name("none"))


def test_a_folder_that_cannot_be_written_to(path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be written"):
        pack_model(path, path.parent / "none" / "m.packed")


# --- a file that changes while it is in use ----------------------------------------------------------


def cut(path: Path) -> None:
    os.truncate(path, 5000)


CHANGES = [cut, overwrite]


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_before_the_first_use(path: Path, change: Callable[[Path], None], access: str) -> None:
    packed = pack_model(path)
    with InferenceEngine.from_gguf(path, packed_access=access) as engine:
        packed.chmod(0o644)
        change(packed)
        for _ in range(2):
            with pytest.raises(ModelFileError, match=f"m.gguf.packed: {CHANGED}"):
                engine.generate("once", max_tokens=2)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_during_a_generation(path: Path, change: Callable[[Path], None]) -> None:
    packed = pack_model(path)
    packed.chmod(0o644)
    with InferenceEngine.from_gguf(path, packed_access="map") as engine:
        stream = engine.stream("once upon", max_tokens=500, temperature=0, ignore_eos=True)
        next(stream)
        engine.model.call(lambda: change(packed))
        with pytest.raises(ModelFileError, match=CHANGED):
            stream.result()
        with pytest.raises(ModelFileError, match=CHANGED):
            engine.embed("once")


def test_a_change_during_a_pass_gives_no_token(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The panels may have been new ones in part: the check behind the pass finds it."""
    packed = pack_model(path)
    packed.chmod(0o644)
    with InferenceEngine.from_gguf(path) as engine:
        decoder = engine.model.runner.model
        run = type(decoder.layers[1]).run

        def changing(self: Any, *args: Any) -> None:
            run(self, *args)
            if self is decoder.layers[1]:
                os.utime(packed, ns=(0, 1))

        monkeypatch.setattr(type(decoder.layers[1]), "run", changing)
        with pytest.raises(ModelFileError, match=CHANGED):
            engine.logits([1, 2, 3])


@pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux's")
def test_a_program_that_cuts_it_during_a_pass_waits_for_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the pass would read pages that are gone, which ends the process."""
    packed = pack_model(path)
    packed.chmod(0o644)
    size = packed.stat().st_size
    other = threading.Thread(target=cut, args=(packed,))
    with InferenceEngine.from_gguf(path) as engine:
        decoder = engine.model.runner.model
        run, sizes = type(decoder.layers[0]).run, []

        def cutting(self: Any, *args: Any) -> None:
            if self is decoder.layers[0]:
                other.start()
                other.join(0.2)
            run(self, *args)
            sizes.append(packed.stat().st_size)

        monkeypatch.setattr(type(decoder.layers[0]), "run", cutting)
        with suppress(ModelFileError):  # it is cut before the output matrix is read, or behind that
            engine.logits([1, 2, 3])
        assert sizes == [size, size]
        other.join(60)
        assert not other.is_alive()
        monkeypatch.undo()
        with pytest.raises(ModelFileError, match=CHANGED):
            engine.logits([1, 2, 3])
    assert packed.stat().st_size < size


def test_a_pass_that_fails_gives_the_lease_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack_model(path)
    packed.chmod(0o644)
    with InferenceEngine.from_gguf(path) as engine:
        decoder = engine.model.runner.model
        monkeypatch.setattr(type(decoder.layers[1]), "run", Mock(side_effect=RuntimeError("on purpose")))
        with pytest.raises(RequestFailed, match="on purpose"):
            engine.logits([1, 2, 3])
        fd = os.open(packed, os.O_WRONLY | os.O_NONBLOCK)  # raises an error if it is leased
        os.close(fd)


def test_a_file_that_somebody_may_write_to_is_used_without_a_lease(path: Path) -> None:
    expected, packed = logits(path, packed="off"), pack_model(path)
    packed.chmod(0o644)
    with packed.open("r+b"):
        assert logits(path) == expected


def test_a_file_that_is_read_is_in_memory(path: Path) -> None:
    packed = pack_model(path)
    with InferenceEngine.from_gguf(path, packed_access="read") as engine:
        expected = engine.generate("once", max_tokens=8, temperature=0)
        packed.chmod(0o644)
        cut(packed)
        assert engine.generate("once", max_tokens=8, temperature=0) == expected


@pytest.mark.skipif(os.name == "nt", reason="an open file is not replaced there")
def test_a_file_that_is_replaced_or_deleted_goes_on(path: Path) -> None:
    packed = pack_model(path)
    with InferenceEngine.from_gguf(path) as engine:
        expected = engine.generate("once", max_tokens=8, temperature=0)
        pack_model(path)
        assert engine.generate("once", max_tokens=8, temperature=0) == expected
        packed.unlink()
        assert engine.generate("once", max_tokens=8, temperature=0) == expected


OTHER_PROCESS = """
import sys
from oxillama import ModelFileError
from oxillama import OxiLlamaError
from oxillama.compat.engine import InferenceEngine
engine = InferenceEngine.from_gguf(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(engine.generate("once", max_tokens=4, temperature=0).encode(), flush=True)
    except ModelFileError as error:
        print("ModelFileError", error, flush=True)
"""


@pytest.mark.parametrize("change", CHANGES)
def test_another_process_that_changes_it(path: Path, change: Callable[[Path], None]) -> None:
    """The engine runs in another process, which reading a removed page would end."""
    packed = pack_model(path)
    with InferenceEngine.from_gguf(path, packed="off") as engine:
        expected = engine.generate("once", max_tokens=4, temperature=0)
    command = [sys.executable, "-X", "faulthandler", "-c", OTHER_PROCESS, str(path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None

        def ask() -> str:
            print(file=other.stdin, flush=True)
            return other.stdout.readline().strip()  # type: ignore[union-attr]

        assert other.stdout.readline() == "ready\n"
        assert ask() == str(expected.encode())
        packed.chmod(0o644)
        change(packed)
        for _ in range(2):
            assert CHANGED in ask()
        other.stdin.close()
        assert other.wait(60) == 0


def changed_header(path: Path, change: Callable[[Any], object]) -> None:
    """Changes the header of a packed file, whose checksum is then right."""
    data = path.read_bytes()
    n = struct.unpack_from("<8sII", data)[2]
    header = json.loads(data[48 : 48 + n])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (n - len(text))
    start = struct.pack("<8sII", data[:8], struct.unpack_from("<8sII", data)[1], len(text))
    path.chmod(0o644)
    path.write_bytes(start + blake3(start + text).digest() + text + data[48 + n :])


WRONG: tuple[Any, ...] = ([], {}, None, "x", -1, 1.5, True, 10**30, [[]], "\ud800")


@pytest.mark.parametrize(
    "place", [("matrices", 0, i) for i in range(8)] + [("matrices", -1, i) for i in range(8)]
)
def test_a_header_of_wrong_types_is_an_error_of_the_library(place: tuple[Any, ...], tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(demo.DRAFT.read_bytes())
    packed = pack_model(model)
    good = packed.read_bytes()
    for wrong in WRONG:
        packed.chmod(0o644)
        packed.write_bytes(good)

        def change(header: Any, wrong: Any = wrong) -> None:
            name, which, field = place
            header[name][which][field] = wrong

        changed_header(packed, change)
        with suppress(OxiLlamaError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            InferenceEngine.from_gguf(model, num_threads=1, packed=packed).close()
