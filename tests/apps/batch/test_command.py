"""``oxillama batch``: from a file to its answers, through kills."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oxillama import ConfigError, InferenceEngine
from oxillama.apps.batch.sources import Source
from oxillama.apps.cli import main
from tests.support.command_line import ENVIRONMENT, command, error, output, run
from tests.support.waiting import until

PROMPTS = ["once upon a time", "hello world", "the little fox", "there was"]


def write_rows(path: Path, n: int, **fields: Any) -> Path:
    rows = [{"prompt": f"{PROMPTS[i % 4]} {i}", "id": i, "max_tokens": 8, **fields} for i in range(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def answers(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_of_prompts(model: Path, tmp_path: Path) -> None:
    source, target = write_rows(tmp_path / "in.jsonl", 6), tmp_path / "out.jsonl"
    done = run("batch", source, target, "-m", model, "--temp", "0.7", "--seed", "3")
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert done.stderr.decode() == f"{target}: 6 answers\n"
    engine = InferenceEngine.from_gguf(model)
    assert [(row["id"], row["text"]) for row in answers(target)] == [
        (i, engine.generate(f"{PROMPTS[i % 4]} {i}", max_tokens=8, seed=3, temperature=0.7)) for i in range(6)
    ]
    assert "which exists" in error("batch", source, target, "-m", model)
    first = target.read_bytes()
    assert output("batch", source, target, "-m", model, "--temp", "0.7", "-s", "3", "-q", "--overwrite") == ""
    assert target.read_bytes() == first


def test_errors_are_counted(model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = {"prompt": "a", "max_tokens": 2, "model": "short"}
    row = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    source.write_text(f'{json.dumps(row)}\n{{"prompt": "a", "x": 1}}\n\n{{"prompt": "a", "x": 1')
    done = run("batch", source, target, "-m", model, "--alias", "short", "--keep", "x", "-n", "2")
    assert done.returncode == 1
    assert done.stderr.decode() == f"{target}: 4 answers, 2 of them errors\n"
    found = answers(target)
    assert found[0]["response"]["status_code"] == 200
    assert (found[1]["x"], len(found[1]["tokens"])) == (1, 2)
    assert found[2]["error"] and found[3]["error"]


def test_bad_arguments(model: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 1)
    target = tmp_path / "out.jsonl"
    assert "-m" in error("batch", source, target)
    assert "input: " in error("batch", tmp_path / "none.jsonl", target, "-m", model)
    assert "expected a file, which can be read twice" in error("batch", "/dev/null", target, "-m", model)
    assert "cannot be written" in error("batch", source, tmp_path / "no" / "out.jsonl", "-m", model)
    assert "no such file" in error("batch", source, target, "-m", tmp_path / "none.gguf").lower()
    assert not list(tmp_path.glob("out*"))


def test_a_killed_run_goes_on(model: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 200, max_tokens=20)
    whole, target = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    common = ("-m", model, "--max-sequences", "4", "-t", "1")
    output("batch", source, whole, *common)
    part, draw = tmp_path / "out.jsonl.part", random.Random(1)
    for least in sorted(draw.sample(range(150), 3)):
        process = subprocess.Popen(
            command("batch", source, target, *common), stderr=subprocess.PIPE, env=ENVIRONMENT
        )
        until(lambda least=least: part.exists() and part.read_bytes().count(b"\n") > least, 60)  # type: ignore[misc]
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert not target.exists()
    done = run("batch", source, target, *common)
    assert b"known from before" in done.stderr
    assert target.read_bytes() == whole.read_bytes()


def test_an_interrupt_ends_it_and_keeps_what_was_answered(model: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 3000, max_tokens=50)
    part = tmp_path / "out.jsonl.part"
    process = subprocess.Popen(
        command("batch", source, tmp_path / "out.jsonl", "-m", model), stderr=subprocess.PIPE, env=ENVIRONMENT
    )
    until(lambda: part.exists() and b"\n" in part.read_bytes(), 60)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in said
    assert answers(part)[0]["id"] == 0


WITHOUT_SERVER = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("starlette", "uvicorn", "pydantic", "prometheus_client"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from oxillama.apps.cli import main
sys.exit(main())
"""


def test_plain_rows_need_no_packages_of_the_server(model: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-c", WITHOUT_SERVER, "batch", "in", "out", "-m", str(model)]
    rows = {"prompt": "once"}, {"url": "/v1/completions", "body": {"prompt": "once"}}
    done = []
    for row in rows:
        (tmp_path / "in").write_text(json.dumps({**row, "max_tokens": 2}) + "\n")
        done.append(subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, env=ENVIRONMENT))
        (tmp_path / "out").unlink(missing_ok=True)
    assert done[0].returncode == 0, done[0].stderr
    assert done[1].returncode == 2 and "[server]" in done[1].stderr and "OpenAI" in done[1].stderr


def test_without_ray(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import oxillama.apps.ray

    source, target = write_rows(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl"
    assert "expected --ray beside them" in error("batch", source, target, "-m", model, "--actors", "2")
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    for name in ("sizing", "predictor"):
        monkeypatch.delitem(sys.modules, f"oxillama.apps.ray.{name}", raising=False)
    with pytest.raises(
        ConfigError,
        match=r"oxillama\.apps\.ray: expected Ray and .* \(pip install 'oxillama-cpu\[ray\]'\), got none of",
    ):
        oxillama.apps.ray.resources  # noqa: B018
    assert main(["batch", str(source), str(target), "-m", str(model), "--ray"]) == 2
    with pytest.raises(AttributeError):
        oxillama.apps.ray.Predicto  # noqa: B018


def test_parquet(model: Path, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet as parquet

    rows = [
        {"prompt": "once upon", "seed": 1, "id": 5, "metadata": {"a": 1}, "logprobs": True, "label": "x"},
        {"prompt": "hello", "json_schema": '{"const": {"k": 1}}', "id": None, "label": "y"},
        {"prompt": "a", "temperature": -1.0, "id": 7, "label": None},
    ]
    table = pa.Table.from_pylist(rows, pa.unify_schemas([pa.Table.from_pylist([row]).schema for row in rows]))
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    parquet.write_table(table, source)
    done = run("batch", source, target, "-m", model, "-n", "4", "--keep", "label", "-q")
    assert done.returncode == 1, done.stderr
    found = parquet.read_table(target).to_pylist()
    engine = InferenceEngine.from_gguf(model)
    assert found[0]["text"] == engine.generate("once upon", max_tokens=4, seed=1)
    assert (found[0]["id"], found[0]["metadata"], len(found[0]["logprobs"])) == (5, '{"a": 1}', 4)
    assert [row["label"] for row in found] == ["x", "y", None]
    assert found[1]["error"] is None and found[1]["logprobs"] is None
    assert found[2]["text"] is None and found[2]["error"]["param"] == "temperature"
    lines = tmp_path / "out.jsonl"
    run("batch", source, lines, "-m", model, "-n", "4", "--keep", "label", "-q")
    assert [row["text"] for row in answers(lines)] == [row["text"] for row in found]


def test_a_table_of_many_rows(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from oxillama.apps.batch import tables

    lines = tmp_path / "lines"
    rows = [{"id": i if i < 5000 else i / 2, "text": str(i), "error": None} for i in range(9000)]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tables.write_parquet(lines, tmp_path / "out.parquet")
    import pyarrow.parquet as parquet

    found = parquet.read_table(tmp_path / "out.parquet")
    assert found["id"].to_pylist() == [row["id"] for row in rows]
    assert found["text"].to_pylist() == [row["text"] for row in rows]


def test_parquet_without_pyarrow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"input: expected pyarrow for Parquet \(.*oxillama.*\), got none"):
        Source.of(tmp_path / "rows.parquet")
