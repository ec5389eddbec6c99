"""The prefix cache on the disk: what another process has run of a prompt is not run again; no bit changes."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from oxillama import ConfigError, EngineConfig, OxiLlamaError, demo
from oxillama.base.formats import KV_TYPES
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.features.disk_prefixes import store as disk_prefixes
from oxillama.engine.features.disk_prefixes.folder import BLOCK, KV, STATE, BlockFolder
from tests.sessions.test_snapshots import FAMILIES
from tests.support.adapters import activated_adapter
from tests.support.faults import OTHERS, every_fault
from tests.support.kernels import PRESENT, same_bits
from tests.support.serving import zoo_engine
from tests.support.spread import slow
from tests.support.waiting import stopped, until
from tests.support.zoo import VOCAB

SYSTEM = [3 + i * 7 % 200 for i in range(4 * BLOCK + 20)]
"""A beginning that prompts share: four blocks and some tokens."""
OPTIONS: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "keep_logits": True}


def engine_of(folder: Path | None, **config: Any) -> InferenceEngine:
    config = {"num_threads": 1, **config}
    return InferenceEngine.from_gguf(demo.DRAFT, prefix_cache_dir=folder, **config)


@dataclass
class Answer:
    """What a request came to: its tokens, their logits, and the tokens of the prompt that were not run."""

    tokens: list[int]
    logits: np.ndarray
    cached: int


def answer(engine: InferenceEngine, prompt: list[int], **options: Any) -> Answer:
    generation = engine.stream(prompt, **{**OPTIONS, **options})
    done = generation.result()
    assert generation.logits is not None
    return Answer(done.tokens, np.array(generation.logits), done.usage.cached_tokens)


def disk_of(engine: InferenceEngine) -> disk_prefixes.DiskPrefixes:
    """The store on the disk, which is the outermost one."""
    found = engine.model.scheduler.queues.prefixes
    assert isinstance(found, disk_prefixes.DiskPrefixes)
    return found


def same(found: Answer, expected: Answer) -> None:
    assert found.tokens == expected.tokens
    assert same_bits(found.logits, expected.logits)


def run(folder: Path | None, prompt: list[int], config: dict[str, Any] | None = None) -> tuple[Answer, int]:
    """An engine of its own, as a process of its own would have; what it answered, and what it read."""
    with engine_of(folder, **(config or {})) as engine:
        done = answer(engine, prompt)
        engine.model.check_integrity()
        read = engine.metrics.snapshot().disk_prompt_tokens
    return done, read


def test_a_prompt_is_paid_for_once(tmp_path: Path) -> None:
    expected, _ = run(None, [*SYSTEM, 5, 6])
    first, read = run(tmp_path, [*SYSTEM, 5, 6])
    assert (first.cached, read, len(list(tmp_path.iterdir()))) == (0, 0, 4)
    again, read = run(tmp_path, [*SYSTEM, 5, 6])
    assert (again.cached, read) == (4 * BLOCK, 4 * BLOCK)
    for done in (first, again):
        same(done, expected)
    other, read = run(tmp_path, [*SYSTEM, 9])
    assert read == 4 * BLOCK
    same(other, run(None, [*SYSTEM, 9])[0])
    parts = [*SYSTEM[: 2 * BLOCK + 5], 9, 9, 9, *SYSTEM[2 * BLOCK :]]
    other, read = run(tmp_path, parts)
    assert (other.cached, read) == (2 * BLOCK, 2 * BLOCK)
    same(other, run(None, parts)[0])
    # the last token is run for its logits
    assert run(tmp_path, SYSTEM[: 4 * BLOCK])[1] == 3 * BLOCK
    assert run(tmp_path, SYSTEM[: 4 * BLOCK + 1])[1] == 4 * BLOCK
    assert run(tmp_path, SYSTEM[:BLOCK])[1] == 0


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    kv_type=st.sampled_from(sorted(KV_TYPES)),
    pages=st.tuples(*(st.sampled_from([1, 4, 16, 64, 128, 256, 2**14]),) * 2),
    chunks=st.tuples(*(st.sampled_from([7, 64, 100, 512]),) * 2),
    threads=st.tuples(*(st.sampled_from([1, 2]),) * 2),
    n=st.tuples(*(st.integers(1, len(SYSTEM)),) * 3),
)
def test_any_process_reads_what_any_has_written(
    kv_type: str,
    pages: tuple[int, int],
    chunks: tuple[int, int],
    threads: tuple[int, int],
    n: tuple[int, int, int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("blocks")
    prompts = [[*SYSTEM[:each], 5, 6, 7] for each in n]
    here, there = (
        {"kv_type": kv_type, "page_size": size, "prefill_chunk_size": chunk, "num_threads": many}
        for size, chunk, many in zip(pages, chunks, threads)
    )
    run(folder, prompts[0], here)
    with engine_of(folder, **there) as engine, engine_of(None, kv_type=kv_type) as alone:
        answer(engine, prompts[1])  # memory has some of it, the disk more
        done = answer(engine, prompts[2])
        same(done, answer(alone, prompts[2]))
        known = max(min(n[2], n[0]) // BLOCK * BLOCK, 0)
        assert done.cached >= known
        engine.model.check_integrity()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_kind_of_state(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = [1 + i * 5 % (VOCAB - 2) for i in range(3 * BLOCK + 9)]
    options = {"ignore_eos": True}
    found = []
    for folder, page_size, chunk in (
        (None, 16, 512),
        (tmp_path, 16, 512),
        (tmp_path, 4, 50),
        (tmp_path, 128, 512),
    ):
        sizes = {"page_size": page_size, "prefill_chunk_size": chunk, "context_size": 256}
        engine = zoo_engine(monkeypatch, name, prefix_cache_dir=folder, **sizes)
        found.append(answer(engine, prompt, **options))
        recurrent = engine.model.pool.recurrent_states is not None
        read = engine.metrics.snapshot().disk_prompt_tokens
        assert read == (3 * BLOCK if len(found) > 3 else 0)
        # what goes on from what was read, and turns off in the middle
        later = answer(engine, [*prompt[: 2 * BLOCK + 3], 7, 7, 9], **options)
        if folder is not None:
            assert recurrent or later.cached == 2 * BLOCK + 3
        engine.model.check_integrity()
        if recurrent and folder is not None:  # memory has the pages, and only the disk a state
            disk_of(engine).flush()
            cache = engine.model.prefix_cache
            engine.model.call(lambda cache=cache: [cache._forget(s) for s in [*cache._states.values()]])
            again = answer(engine, prompt, **options)
            same(again, found[0])
            assert again.cached == 3 * BLOCK
            engine.model.check_integrity()
        engine.close()
        found.append(later)
    for done, other in zip(found[2::2], found[3::2]):
        same(done, found[0])
        same(other, found[1])
    kinds = {path.suffix for path in tmp_path.iterdir()}
    assert (STATE in kinds) == recurrent


@pytest.mark.parametrize("name", ["gemma3", "gpt-oss", "glm-dsa"])
def test_blocks_are_whole_though_windows_pass_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block is written when it ends; what the windows have passed of it until then is kept."""
    prompt = [1 + i * 5 % (VOCAB - 2) for i in range(3 * BLOCK + 9)]
    found = []
    for chunk in (20, 512):
        sizes = {"page_size": 4, "prefill_chunk_size": chunk, "context_size": 256}
        engine = zoo_engine(monkeypatch, name, prefix_cache_dir=tmp_path, **sizes)
        found.append(answer(engine, prompt, ignore_eos=True))
        read = engine.metrics.snapshot().disk_prompt_tokens
        assert read == (3 * BLOCK if len(found) > 1 else 0)
        engine.model.check_integrity()
        engine.close()
    same(*found)


@pytest.mark.parametrize(
    "change",
    [
        {"kv_type": "q8_0"},
        {"compute": "f32"},
        {"quantize": "Q4_0"},
        {"model": demo.STORY},
        {"version": "0"},
        {"salt": "b"},
    ],
    ids=str,
)
def test_what_decides_bits_is_in_the_key(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, SYSTEM)
    salt, version = change.pop("salt", ""), change.pop("version", None)
    if version is not None:
        monkeypatch.setattr(disk_prefixes, "__version__", version)
    model = change.pop("model", demo.DRAFT)
    with InferenceEngine.from_gguf(model, prefix_cache_dir=tmp_path, **change) as engine:
        assert answer(engine, SYSTEM, salt=salt).cached == 0
    if version is None:
        assert run(tmp_path, SYSTEM)[1] == 4 * BLOCK


@pytest.mark.parametrize(("kv_type", "read"), [("bf16", 0), ("f16", 4 * BLOCK)])
def test_blocks_of_another_contract_are_run_again(
    kv_type: str, read: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("oxillama.gguf.fingerprint.bits_since", lambda *facts: 1)
        run(tmp_path, SYSTEM, {"kv_type": kv_type})
    assert run(tmp_path, SYSTEM, {"kv_type": kv_type})[1] == read
    assert run(tmp_path, SYSTEM, {"kv_type": kv_type})[1] == 4 * BLOCK


def test_the_context_is_in_the_key_where_it_decides_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, SYSTEM, {"context_size": 400})
    assert run(tmp_path, SYSTEM, {"context_size": 500})[1] == 4 * BLOCK
    monkeypatch.setattr("oxillama.models.Spec.depends_on_context", True)
    assert run(tmp_path, SYSTEM, {"context_size": 400})[1] == 0
    assert run(tmp_path, SYSTEM, {"context_size": 400})[1] == 4 * BLOCK
    assert run(tmp_path, SYSTEM, {"context_size": 500})[1] == 0


def test_adapters_are_told_apart(tmp_path: Path) -> None:
    start = 2 * BLOCK + 3
    activated = activated_adapter(tmp_path / "activated.gguf", SYSTEM[start : start + 9])
    wanted = ([], demo.PIRATE, (demo.PIRATE, 0.5), activated)
    for adapters, read in zip(wanted, (0, 0, 0, 2 * BLOCK)):
        for n in (read, 4 * BLOCK):
            with InferenceEngine.from_gguf(demo.STORY, prefix_cache_dir=tmp_path / "blocks") as engine:
                done = answer(engine, SYSTEM, adapters=adapters)
                assert engine.metrics.snapshot().disk_prompt_tokens == n
            with InferenceEngine.from_gguf(demo.STORY) as engine:
                same(done, answer(engine, SYSTEM, adapters=adapters))


@pytest.mark.parametrize("damage", ["cut", "flipped", "another's", "gone"])
def test_damaged_blocks_are_run_again(damage: str, tmp_path: Path) -> None:
    expected, _ = run(tmp_path, SYSTEM)
    with engine_of(tmp_path) as engine:
        names = disk_prefixes.chain(root_of(engine), SYSTEM)
    file, content = tmp_path / (names[2] + KV), b""
    assert file.exists()
    if damage == "cut":
        content = file.read_bytes()[:-1]
    elif damage == "flipped":
        content = file.read_bytes()[:-1] + b"\xff"
    elif damage == "another's":
        content = (tmp_path / (names[1] + KV)).read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content)
    done, read = run(tmp_path, SYSTEM)
    assert (done.cached, read) == (2 * BLOCK, 2 * BLOCK)
    same(done, expected)
    assert run(tmp_path, SYSTEM)[1] == 4 * BLOCK  # it was written again


def root_of(engine: InferenceEngine) -> bytes:
    return disk_prefixes.blake3(disk_of(engine)._root + engine.model.prefix_key("")).digest()


def test_a_block_that_cannot_be_read_delays_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected, _ = run(tmp_path, SYSTEM)
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    monkeypatch.setattr(disk_prefixes, "from_positions", Mock(side_effect=error))
    with caplog.at_level(logging.ERROR, "oxillama"):
        done, read = run(tmp_path, SYSTEM)
    assert "blocks could not be read" in caplog.text
    assert read == 0
    same(done, expected)


def test_a_full_disk_is_no_error_of_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected, _ = run(None, SYSTEM)
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr("tempfile.mkstemp", Mock(side_effect=error))
    with caplog.at_level(logging.WARNING, "oxillama"), engine_of(tmp_path) as engine:
        for prompt in (SYSTEM, [*SYSTEM, 9], list(range(4, 200))):
            done = answer(engine, prompt)
            if prompt is SYSTEM:
                same(done, expected)
    told = [record.message for record in caplog.records if record.message.startswith("prefix cache")]
    assert [message.rpartition(": ")[2] for message in told] == ["No space left on device"]
    assert not list(tmp_path.iterdir())


def test_a_writer_that_falls_behind_leaves_blocks_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_prefixes, "MOST_PENDING", 1000)
    with engine_of(tmp_path) as engine:
        answer(engine, SYSTEM)
        disk = disk_of(engine)
        disk.flush()
        assert disk._pending == 0 and not list(tmp_path.iterdir())
        monkeypatch.setattr(disk_prefixes, "MOST_PENDING", 1 << 30)
        answer(engine, SYSTEM)  # from memory, and written all the same
        disk.flush()
        assert disk._pending == 0 and len(list(tmp_path.iterdir())) == 4


def test_what_is_used_in_memory_stays_on_the_disk(tmp_path: Path) -> None:
    with engine_of(tmp_path) as engine:
        disk = disk_of(engine)
        answer(engine, SYSTEM)
        disk.flush()
        for file in tmp_path.iterdir():
            os.utime(file, (1, 1))
        answer(engine, [*SYSTEM, 5])
        disk.flush()
        assert all(file.stat().st_mtime > 1e6 for file in tmp_path.iterdir())
        gone = sorted(tmp_path.iterdir())[0]
        gone.unlink()
        answer(engine, [*SYSTEM, 6])  # notices
        disk.flush()
        answer(engine, [*SYSTEM, 7])  # writes it again
        disk.flush()
        assert gone.exists()


def test_the_folder_keeps_to_its_limit(tmp_path: Path) -> None:
    with engine_of(tmp_path) as engine:
        answer(engine, SYSTEM)
    size = max(file.stat().st_size for file in tmp_path.iterdir())
    with engine_of(tmp_path, prefix_cache_dir_bytes=3 * size) as engine:
        for i in range(5):
            answer(engine, [*range(10 + i, 10 + i + 2 * BLOCK), 9])
            disk_of(engine).flush()
            assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 3 * size
    assert run(tmp_path, [*range(14, 14 + 2 * BLOCK), 9], {"prefix_cache_dir_bytes": 3 * size})[1] > 0


@pytest.mark.parametrize("page_size", [16, 128])
def test_a_long_beginning_is_read_in_parts(
    page_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = run(tmp_path, SYSTEM)
    monkeypatch.setattr(disk_prefixes, "PART_BYTES", 1)
    parts, laid_out = [], disk_prefixes.from_positions

    def count(*args: Any) -> np.ndarray:
        parts.append(args[-1])
        return laid_out(*args)

    monkeypatch.setattr(disk_prefixes, "from_positions", count)
    done, read = run(tmp_path, SYSTEM, {"page_size": page_size})
    assert (read, parts) == (4 * BLOCK, [max(BLOCK, page_size)] * (4 * BLOCK // max(BLOCK, page_size)))
    same(done, expected)


def test_the_folder_is_read_into_the_room_there_is(tmp_path: Path) -> None:
    expected, _ = run(tmp_path, SYSTEM)
    with engine_of(None) as engine:
        stride = engine.model.pool.page_stride
    done, read = run(tmp_path, SYSTEM, {"prefix_cache_bytes": 9 * stride})
    assert read == done.cached == 2 * BLOCK
    same(done, expected)
    done, read = run(tmp_path, SYSTEM, {"kv_memory_limit": 18 * stride})
    same(done, expected)


def test_requests_that_begin_alike_read_once(tmp_path: Path) -> None:
    expected = [run(tmp_path, [*SYSTEM, 5 + i])[0] for i in range(4)]
    with engine_of(tmp_path) as engine:
        with stopped(engine):
            going = [engine.stream([*SYSTEM, 5 + i], **OPTIONS) for i in range(4)]
            other = engine.stream([7, 8, 9], **OPTIONS)
        for generation, done in zip(going, expected):
            found = generation.result()
            assert found.tokens == done.tokens
            assert found.usage.cached_tokens >= 4 * BLOCK
        assert other.result().tokens
        assert engine.metrics.snapshot().disk_prompt_tokens == 4 * BLOCK
        engine.model.check_integrity()


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Blocks of a prompt are in the folder, and are read once this is set."""
    run(tmp_path, SYSTEM)
    found, real = threading.Event(), BlockFolder.read
    monkeypatch.setattr(BlockFolder, "read", lambda *args: found.wait(60) and real(*args))
    return found


def test_others_run_while_one_waits_for_its_blocks(tmp_path: Path, gate: threading.Event) -> None:
    with engine_of(tmp_path) as engine:
        waits, dropped = (engine.stream([*SYSTEM, i], **OPTIONS) for i in (5, 6))
        assert answer(engine, [7, 8, 9]).tokens
        assert engine.metrics.snapshot().waiting == 2
        dropped.cancel()
        until(lambda: engine.metrics.snapshot().waiting == 1)
        late = engine.stream([*SYSTEM, 7], timeout=0.01, **OPTIONS).result()
        assert late.finish_reason == "timeout"
        gate.set()
        assert waits.result().usage.cached_tokens == 4 * BLOCK
        engine.model.check_integrity()


def test_closing_ends_what_waits_for_its_blocks(tmp_path: Path, gate: threading.Event) -> None:
    engine = engine_of(tmp_path)
    waits = engine.stream(SYSTEM, **OPTIONS)
    until(lambda: engine.metrics.snapshot().waiting == 1)
    engine.close()
    gate.set()
    with pytest.raises(Exception, match="engine: is closed"):
        waits.result()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_reads_and_writes(tmp_path: Path, gate: threading.Event) -> None:
    with engine_of(tmp_path) as engine:
        waits = engine.stream(SYSTEM, **OPTIONS)
        until(lambda: engine.metrics.snapshot().waiting == 1)
        child = os.fork()
        if not child:
            code = 1
            try:
                gate.set()
                found = engine.stream(SYSTEM, **OPTIONS).result()
                engine.stream(list(range(5, 5 + BLOCK + 1)), **OPTIONS).result()
                engine.close()
                code = 0 if found.usage.cached_tokens == 4 * BLOCK else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        gate.set()
        assert waits.result().usage.cached_tokens == 4 * BLOCK
    assert len(list(tmp_path.iterdir())) == 5


OTHER_PROCESS = """
import json, sys
from oxillama import demo
from oxillama.compat.engine import InferenceEngine
engine = InferenceEngine.from_gguf(demo.DRAFT, prefix_cache_dir=sys.argv[1], num_threads=1)
assert engine.model.kernels.target == sys.argv[2]
done = engine.stream(json.loads(sys.argv[3]), temperature=0, max_tokens=6).result()
print(json.dumps([done.tokens, done.usage.cached_tokens]))
"""


def test_processes_with_other_instructions_share_a_folder(tmp_path: Path) -> None:
    """The first writes at its exit what is left to be written, though nobody closed its engine."""
    import json

    expected, _ = run(None, SYSTEM)
    for target, n in ((PRESENT[0], 0), ("portable", 4 * BLOCK)):
        done = subprocess.run(
            [sys.executable, "-c", OTHER_PROCESS, str(tmp_path), target, json.dumps(SYSTEM)],
            capture_output=True, check=True, env={**os.environ, "OXILLAMA_TARGET": target}, timeout=120,
        )  # fmt: skip
        assert json.loads(done.stdout) == [expected.tokens, n]


def test_options_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="prefix_cache_dir: needs prefix_cache_bytes"):
        EngineConfig(prefix_cache_dir=tmp_path, prefix_cache_bytes=0)
    with pytest.raises(ConfigError, match="prefix_cache_dir: expected a path"):
        EngineConfig(prefix_cache_dir=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="prefix_cache_dir_bytes: expected an integer >= 0"):
        EngineConfig(prefix_cache_dir_bytes=-1)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="prefix_cache_dir: expected a folder"):
        engine_of(tmp_path / "file")


def test_no_snapshot_has_files_written(tmp_path: Path) -> None:
    with engine_of(tmp_path / "a") as engine:
        data = engine.snapshot()
    with InferenceEngine.resume(data, num_threads=1) as again:
        assert again.config.prefix_cache_dir is None
    with InferenceEngine.resume(data, num_threads=1, prefix_cache_dir=tmp_path / "b") as again:
        answer(again, SYSTEM)
    assert not list((tmp_path / "a").iterdir()) and len(list((tmp_path / "b").iterdir())) == 4


# --- calls of the system that fail, and other processes that write -------------------------------------


def block(n: int) -> np.ndarray:
    return np.full(1000, n, np.uint8)


def blocks_in(path: Path) -> set[int]:
    """The numbers of the blocks in a folder, which are whole. There is nothing else in it."""
    names = sorted(os.listdir(path))
    assert all(name.endswith(KV) for name in names), names
    folder = BlockFolder(path, 1 << 20)
    for name in names:
        found = folder.read(name, 1000)
        assert found is not None and (found == block(int(name.removesuffix(KV)))).all()
    return {int(name.removesuffix(KV)) for name in names}


@pytest.mark.slow  # every call of every kind; the next test has the calls that change the folder
def test_a_call_that_fails_leaves_whole_blocks(tmp_path: Path) -> None:
    path = tmp_path / "blocks"

    def before() -> None:
        shutil.rmtree(path, ignore_errors=True)
        for n in range(3):
            BlockFolder(path, 1 << 20).write(f"{n}{KV}", block(n))

    def use() -> None:
        folder = BlockFolder(path, 4200)  # four blocks fit
        for n in range(2, 6):
            if not folder.has(f"{n}{KV}"):
                folder.write(f"{n}{KV}", block(n))
            found = folder.read(f"{n}{KV}", 1000)
            assert found is None or (found == block(n)).all()
        folder.touch([f"{n}{KV}" for n in range(6)])

    def after(error: OxiLlamaError | None) -> None:
        found = blocks_in(path)
        assert error is None or found == {0, 1, 2}  # the folder could not be looked at
        use()
        assert len(blocks_in(path)) == 4
        BlockFolder(path, 1 << 20).write(f"9{KV}", block(9))
        assert blocks_in(path) >= {9}

    counts = every_fault("disk prefixes", path, before, use, after)
    assert counts.keys() >= {"open", "read", "write", "close", "rename", "unlink", "stat", "list", "change"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "operations", [("open", "write", "rename"), slow((OTHERS,))], ids=["changing", "others"]
)
def test_a_call_that_fails_changes_no_answer(tmp_path: Path, operations: tuple[str, ...]) -> None:
    expected, _ = run(None, [*SYSTEM, 5, 6])
    path, few = tmp_path / "blocks", SYSTEM[: 2 * BLOCK]

    def before() -> None:
        shutil.rmtree(path, ignore_errors=True)
        run(path, few)

    def use() -> None:
        same(run(path, [*SYSTEM, 5, 6])[0], expected)

    def after(error: OxiLlamaError | None) -> None:
        same(run(path, [*SYSTEM, 5, 6])[0], expected)

    counts = every_fault("engine with disk prefixes", path, before, use, after, operations)
    assert counts.keys() >= {"open", "write", "rename", "stat", "list"} & set(operations)
