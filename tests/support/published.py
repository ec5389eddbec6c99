"""The rooms that publish files: each writes a target in a folder, in one of three variants, and reads it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from oxillama import demo, pack_model, quantize_model
from oxillama.apps.batch.tables import write_parquet
from oxillama.apps.cli.conversation import Conversation
from oxillama.apps.convert import convert
from oxillama.apps.quantize.imatrix import Entry, ImportanceMatrix
from oxillama.compat.engine import InferenceEngine
from oxillama.gguf import fingerprint, known_hashes
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.gguf.model_file import ModelFile
from oxillama.models.weights.packed_file import PackedFile
from oxillama.sessions.receipt import Receipt
from oxillama.sessions.snapshot import read as read_snapshot
from tests.support import huggingface as hf
from tests.support.tiny_file import write_tiny_model

VARIANTS = 3
TARGET = "out"
OLD = (1e9, 1e9)
"""Times of a source that was not changed recently."""


@dataclass(frozen=True)
class Room:
    """What publishes a file.

    Attributes:
        prepare: writes the sources into a folder.
        write: writes `TARGET` in the folder, in one of `VARIANTS` variants.
        read: reads the target; raises an error of the library if it is not whole.
        overwrites: whether a target that is there is replaced.
    """

    prepare: Callable[[Path], object]
    write: Callable[[Path, int], object]
    read: Callable[[Path], object]
    overwrites: bool = True


def tiny_model(folder: Path) -> None:
    os.utime(write_tiny_model(folder / "m.gguf", n_layers=1), OLD)


def pack(folder: Path, variant: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(known_hashes, "SETTLE_SECONDS", 1e9)  # whether the model is old is a fact in the file
        kind = ("int8", "f32", "bf16")[variant]
        pack_model(folder / "m.gguf", folder / TARGET, compute=kind, num_threads=1)


def read_packed(path: Path) -> None:
    with PackedFile(path) as packed:
        packed.verify()


def quantize(folder: Path, variant: int) -> None:
    quantize_model(folder / "m.gguf", folder / TARGET, ("Q8_0", "Q4_0", "F16")[variant], num_threads=1)


def read_model(path: Path) -> None:
    fingerprint.KNOWN.forget()
    with ModelFile.open(path) as file:
        ModelFingerprint.compute(file)


def hf_folder(folder: Path) -> None:
    config = {"architectures": ["LlamaForCausalLM"], **hf.SIZES, "vocab_size": hf.N_VOCAB}
    config["num_hidden_layers"] = 1
    weights = hf.decoder_weights(config)
    hf.write_folder(folder / "hf", config, weights, shards=2, settings={"chat_template": "{{ messages }}"})


def converted(folder: Path, variant: int) -> None:
    convert(folder / "hf", folder / TARGET, ("F32", "F16", "BF16")[variant])


def converted_once(folder: Path, variant: int) -> None:
    convert(folder / "hf", folder / TARGET, ("F32", "F16", "BF16")[variant], overwrite=False)


def write_imatrix(folder: Path, variant: int) -> None:
    entry = Entry(np.full((1, 32), variant + 1, np.float32), np.ones(1, np.float32))
    ImportanceMatrix({"blk.0.ffn_up.weight": entry}, ("text",), 1, 1).write(folder / TARGET)


def snapshots(folder: Path) -> None:
    with InferenceEngine.from_gguf(demo.DRAFT, num_threads=1) as engine:
        for variant in range(VARIANTS):
            with engine.session() as session:
                session.prefill([5, 6, 7 + variant])
                session.snapshot_to_file(folder / f"snapshot-{variant}")


def write_snapshot(folder: Path, variant: int) -> None:
    read_snapshot(folder / f"snapshot-{variant}").write(folder / TARGET)


def receipts(folder: Path) -> None:
    with InferenceEngine.from_gguf(demo.DRAFT, num_threads=1) as engine:
        for variant in range(VARIANTS):
            done = engine.stream("Once", max_tokens=2 + variant, temperature=0, receipt=True)
            done.result()
            assert done.receipt is not None
            done.receipt.save(folder / f"receipt-{variant}")


def write_receipt(folder: Path, variant: int) -> None:
    Receipt.load(folder / f"receipt-{variant}").save(folder / TARGET)


def write_conversation(folder: Path, variant: int) -> None:
    conversation = Conversation(None)
    conversation.messages = [{"role": "user", "content": f"question {variant}"}]
    conversation.save(str(folder / TARGET))


def read_conversation(path: Path) -> None:
    Conversation(None).load(str(path))


def rows(folder: Path) -> None:
    for variant in range(VARIANTS):
        (folder / f"rows-{variant}").write_text("".join(f'{{"text": "{variant}{i}"}}\n' for i in range(5)))


def write_table(folder: Path, variant: int) -> None:
    write_parquet(folder / f"rows-{variant}", folder / TARGET, overwrite=False)


def read_table(path: Path) -> None:
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(path).num_rows == 5


def nothing(folder: Path) -> None:
    pass


ROOMS = {
    "pack": Room(tiny_model, pack, read_packed),
    "quantize": Room(tiny_model, quantize, read_model),
    "convert": Room(hf_folder, converted, read_model),
    "convert-new": Room(hf_folder, converted_once, read_model, overwrites=False),
    "imatrix": Room(nothing, write_imatrix, ImportanceMatrix.read),
    "snapshot": Room(snapshots, write_snapshot, read_snapshot),
    "receipt": Room(receipts, write_receipt, Receipt.load),
    "conversation": Room(nothing, write_conversation, read_conversation),
    "table": Room(rows, write_table, read_table, overwrites=False),
}


def write_slowly(room: str, folder: Path, variant: int) -> None:
    """Writes a target; when it is complete and has not its name yet, says so, and waits for a line."""
    for name in ("replace", "link"):
        real = getattr(os, name)

        def call(source: Path, target: Path, real: Callable[..., None] = real) -> None:
            if Path(target).name == TARGET:
                print("complete", flush=True)
                sys.stdin.readline()
            real(source, target)

        setattr(os, name, call)
    ROOMS[room].write(folder, variant)


def write_again_and_again(room: str, folder: Path, n: int) -> None:
    """Writes all variants in turn, ``n`` times, from a line on stdin on."""
    print("ready", flush=True)
    sys.stdin.readline()
    for i in range(n):
        ROOMS[room].write(folder, i % VARIANTS)


if __name__ == "__main__":
    job, room, folder, number = sys.argv[1:]
    {"slowly": write_slowly, "often": write_again_and_again}[job](room, Path(folder), int(number))
