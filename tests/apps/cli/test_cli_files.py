"""The commands that tell: info, tokenize, bench, doctor; and the demo."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oxillama
from oxillama import LoadError
from oxillama.apps.cli import main
from oxillama.apps.cli.info import shortened
from oxillama.compat.engine import InferenceEngine
from oxillama.gguf import writer
from oxillama.gguf.model_file import ModelFile
from tests.support.command_line import PROMPT, ROOT, error, facts_of, output, run
from tests.support.tiny_file import write_tiny_model

KV_BYTES = {
    **{"f32": 512, "f16": 256, "bf16": 256, "q8_0": 8 * 34, "q5_1": 8 * 24, "q5_0": 8 * 22},
    **{"q4_1": 8 * 20, "q4_0": 8 * 18, "iq4_nl": 8 * 18},
}
"""Of a token: two layers with two key heads of 16; blocks have 32 dimensions."""


# --- info, tokenize -------------------------------------------------------------------------------
def test_info_as_json(model: Path) -> None:
    facts = json.loads(output("info", model, "--json", "--tensors"))
    tensors = facts.pop("tensors")
    assert [t for t in tensors if t["name"] == "blk.0.ffn_up.weight"] == [
        {"name": "blk.0.ffn_up.weight", "format": "F32", "shape": [64, 96], "bytes": 24576}
    ]
    assert facts == {
        "files": [str(model)],
        "file_bytes": model.stat().st_size,
        "gguf_version": 3,
        "architecture": "llama",
        "name": "tiny",
        "parameters": sum(t["shape"][0] * (t["shape"] + [1])[1] for t in tensors),
        "bits_per_weight": 32.0,
        "context_length": 4096,
        "block_count": 2,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "expert_count": None,
        "attention": {
            **{"kind": "grouped queries", "layers": 2, "key_width": 16, "value_width": 16},
            **{
                "windows": None,
                "windowed_layers": None,
                "chunk": None,
                "chosen_positions": None,
                "sinks": False,
                "soft_cap": None,
            },
            **{"linear_bias": None, "both_ways": False},
        },
        "rotation": "16 dimensions, neighbours, base 10000, unscaled",
        "recurrent": None,
        "experts": None,
        "pooling": None,
        "formats": [
            {
                "format": "F32",
                "tensors": len(tensors),
                "bytes": sum(t["bytes"] for t in tensors),
                "bits_per_weight": 32.0,
                **{"supported": True, "layout": "f32", "activation": "f32"},
            }
        ],
        "tokenizer": {
            "model": "gpt2",
            "pre": "gpt-2",
            "kind": "bpe",
            "tokens": facts["tokenizer"]["tokens"],
            "chat_template": True,
            "chat_templates": ["default"],
            "chat_template_error": None,
            "supported": True,
        },
        "memory": {
            "weights": facts["memory"]["weights"],
            "resident": facts["memory"]["weights"],
            "least_budget": 122880,
            "tables": 4 * 64 * tensors[0]["shape"][1],
            "kv_per_token": KV_BYTES,
            "context": 4096,
            "kv_at_context": {name: n << 12 for name, n in KV_BYTES.items()},
            "state": 0,
        },
        "packed": [],
        "projector": None,
        "surplus": [],
        "ignored": [],
        "supported": True,
        "missing": [],
    }
    assert facts["tokenizer"]["tokens"] == tensors[0]["shape"][1]


def test_long_lists_are_shortened() -> None:
    assert shortened([*"abcdefgh"]) == "a, b, c, d, e, f, g, h"
    assert shortened([*"abcdefghi"]) == "a, b, c, d and 5 more"
    assert shortened([3, 1, *range(2, 9)]) == "1 to 8, 9 values"


def test_info_explains_a_model(model: Path) -> None:
    lines = output("info", model, "--explain").splitlines()
    assert lines[0].startswith("llama: ")
    assert any(line.startswith("    f = silu(h @ ffn_gate) * (h @ ffn_up)") for line in lines)


def test_info_for_people(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "q8.gguf", format="Q8_0", chat_template=None)
    lines = [re.sub(" +", " ", line) for line in output("info", path, "--tensors").splitlines()]
    assert "architecture llama" in lines
    assert "context length 4096" in lines
    assert "key/value heads 2" in lines
    assert "chat template no" in lines
    assert "supported yes" in lines
    assert "F32 5 1.2 KiB 32 f32 x f32" in lines
    assert "Q8_0 16 108.8 KiB 8.5 c8 x q8_32" in lines
    assert "attention grouped queries, layers 2, key width 16, value width 16" in lines
    shown = ", ".join(f"{name} {n} B" for name, n in KV_BYTES.items())
    assert f"keys and values {shown} a token" in lines
    assert "blk.0.ffn_up.weight Q8_0 64 x 96 6.4 KiB" in lines


def test_info_tells_of_a_template_that_is_none(tmp_path: Path) -> None:
    """The file can be loaded all the same; only its template cannot be used."""
    path = write_tiny_model(tmp_path / "x.gguf", chat_template="{% for %}")
    assert re.search(r"chat template +cannot be used: chat template: .*line 1", output("info", path))
    facts = json.loads(output("info", path, "--json"))
    assert "chat template" in facts["tokenizer"]["chat_template_error"]
    assert facts["supported"] is True


def refused_facts(path: Path) -> dict[str, Any]:
    """What is told of a file that cannot be loaded: the reasons also on stderr, and 1 as the exit code."""
    done = run("info", path, "--json")
    assert done.returncode == 1
    facts: dict[str, Any] = json.loads(done.stdout, parse_constant=pytest.fail)
    told = done.stderr.decode().splitlines()
    assert told == [f"oxillama: error: {reason}" for reason in facts["missing"]]
    assert facts["supported"] is False
    return facts


def test_info_tells_how_positions_turn(tmp_path: Path) -> None:
    scaled = {
        "qwen2.rope.scaling.type": "yarn",
        "qwen2.rope.scaling.factor": 4.0,
        "qwen2.rope.freq_base": 1e6,
    }
    path = write_tiny_model(tmp_path / "yarn.gguf", architecture="qwen2", metadata=scaled)
    assert "16 dimensions, halves, base 1e+06, yarn by 4" in output("info", path)
    unknown = {"llama.rope.scaling.type": "spiral"}
    facts = refused_facts(write_tiny_model(tmp_path / "x.gguf", metadata=unknown))
    assert facts["rotation"] is None
    assert facts["missing"][0].startswith("llama.rope.scaling.type: expected one of")


def test_a_surplus_tensor_is_a_warning_that_names_it(tmp_path: Path) -> None:
    surplus = {"blk.0.attn_extra.weight": np.ones((4, 4), np.float32)}
    path = write_tiny_model(tmp_path / "more.gguf", tensors=surplus)
    with pytest.warns(UserWarning, match=r"does not use: blk\.0\.attn_extra\.weight$"):
        InferenceEngine.from_gguf(path)


def test_a_tensor_that_is_missing_or_of_a_wrong_shape_is_named(tmp_path: Path) -> None:
    for tensor, finding in ((None, "got none"), (np.ones((7, 64), np.float32), "7")):
        name = "blk.1.ffn_up.weight"
        path = write_tiny_model(tmp_path / "wrong.gguf", tensors={name: tensor})
        with pytest.raises(LoadError, match=rf"{name}.*{finding}"):
            InferenceEngine.from_gguf(path)


def test_info_of_models_that_cannot_be_run(tmp_path: Path) -> None:
    path = write_tiny_model(
        tmp_path / "strange.gguf",
        architecture="quantum",
        tensors={"blk.0.attn_q.weight": np.ones((64, 64), np.int32)},
        metadata={"quantum.expert_count": float("nan")},
    )
    facts = refused_facts(path)
    assert facts["supported"] is False
    assert facts["missing"][0].startswith("general.architecture: expected one of")
    assert facts["missing"][1:] == ["format I32 has no kernels"]
    assert facts["context_length"] == 4096
    assert facts["expert_count"] == "nan"
    assert b"no: general.architecture: expected one of" in run("info", path).stdout


PARITY = sorted((ROOT.parent / "shared" / "parity").glob("*.gguf"))


@pytest.mark.skipif(not PARITY, reason="there are no such files")
def test_info_of_every_architecture_at_hand(capsys: pytest.CaptureFixture[str]) -> None:
    for path in PARITY:
        assert main(["info", str(path)]) == 0, path
        told = capsys.readouterr()
        assert re.search(r"^architecture +\w", told.out, re.MULTILINE), path
        assert re.search(r"^supported +(yes|no: .)", told.out, re.MULTILINE), path
        assert told.err == ""


def test_tokenize_there_and_back(model: Path, engine: InferenceEngine) -> None:
    ids = output("tokenize", model, PROMPT)
    assert [int(id) for id in ids.split()] == engine.tokenize(PROMPT)
    assert output("tokenize", model, "-", stdin=PROMPT.encode()) == ids
    assert output("tokenize", model, "--decode", ids) == PROMPT + "\n"
    assert (
        output("tokenize", model, "--decode", "-", stdin=str(engine.tokenize(PROMPT)).encode())
        == PROMPT + "\n"
    )
    bare = output("tokenize", model, PROMPT, "--no-special").split()
    assert bare == ids.split()[1:]


def test_tokenize_shows_pieces(model: Path, engine: InferenceEngine) -> None:
    begin, once, end = engine.tokenize("once<|im_end|>", parse_special=True)
    expected = f"{begin}\tcontrol\t'<|begin|>'\n{once}\tnormal\t'once'\n{end}\tcontrol\t'<|im_end|>'\n"
    assert output("tokenize", model, "once<|im_end|>", "--parse-special", "--pieces") == expected


@pytest.mark.parametrize("text", ["5 x", "-1", "1.5", "339", "9" * 5000, "٣"])
def test_ids_that_are_none(model: Path, text: str) -> None:
    assert "token id: expected an integer from 0 to 338, got " in error(
        "tokenize", model, "--decode", "--", text
    )


def test_tokenize_refuses_what_is_no_text(model: Path) -> None:
    assert "lone surrogate" in error("tokenize", model, b"\xff")
    assert "text: stdin is not UTF-8 (at byte 1)" in error("tokenize", model, "-", stdin=b"a\xff")


# --- bench, doctor, demo --------------------------------------------------------------------------
def test_bench(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    text = output("bench", model, "--prompt", "8", "--new", "3", "--rounds", "2", "-t", "1", "--json", path)
    assert re.search(r"^prefill 8 +[\d.]+ ", text, re.MULTILINE)
    assert re.search(r"^decode 3 +[\d.]+ ", text, re.MULTILINE)
    found = json.loads(path.read_text())
    options = {"prompt": 8, "new": 3, "threads": 1, "rounds": 2, "warmup": 1}
    assert options.items() <= found["options"].items()
    assert [(row["metric"], len(row["samples"]["oxillama"])) for row in found["results"]] == [
        ("prefill", 2),
        ("decode", 2),
    ]
    assert found["machine"]["oxillama"] == oxillama.__version__
    assert [p.name for p in tmp_path.iterdir()] == ["speed.json"]
    for row in found["results"]:
        row["samples"]["oxillama"] = [1e12, 1e12]
    path.write_text(json.dumps(found))
    again = ("bench", model, "--prompt", "8", "--rounds", "2", "-t", "1", "--compare", path)
    same = output(*again, "--new", "3")
    assert same.count("WORSE") == 2
    assert " before, " not in same
    other = output(*again[:-4], "-t", "2", "--kv-type", "q8_0", "--new", "3", "--compare", path)
    assert "threads: 1 before, 2 now\nconfig: default before, kv_type=q8_0 now" in other
    assert "expected a report of bench with" in error(*again, "--new", "4")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rounds", "0"], "rounds: expected an integer >= 1, got 0"),
        (["--prompt", "-1"], "--prompt: expected an integer >= 1, got -1"),
        (["--threads", "0"], "--num-threads: expected an integer >= 1 and <= 1024, got 0"),
        (["--json", "."], "--json: expected a file, got the directory ."),
        (
            ["--json", "absent/x.json"],
            "--json: expected a file in a folder that can be written to, got absent/x.json",
        ),
    ],
)
def test_bad_arguments_of_bench(model: Path, flags: list[str], message: str) -> None:
    assert message in error("bench", model, *flags)


def test_doctor() -> None:
    facts = json.loads(output("doctor", "--json"))
    assert facts["oxillama"] == oxillama.__version__
    assert facts["targets"][facts["target"]] is None
    assert facts["targets"]["portable"] is None
    assert facts["dependencies"]["numpy"] == np.__version__
    assert re.fullmatch(r"3\.\d+\.\w+", facts["cython"])
    assert facts["cpus"] >= 1
    assert set(facts["demo_models"]) == {"story.gguf", "draft.gguf", "pirate.gguf"}
    assert facts["problems"] == []
    text = output("doctor")
    assert re.search(rf"^target {facts['target']} +used$", text, re.MULTILINE)


def test_doctor_and_the_targets() -> None:
    done = run("doctor", "--json", OXILLAMA_TARGET="portable")
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["target"], facts["OXILLAMA_TARGET"]) == (0, "portable", "portable")
    done = run("doctor", OXILLAMA_TARGET="sparkling")
    assert done.returncode == 1
    assert b"got 'sparkling'" in done.stdout


def test_demo_tells_a_story() -> None:
    done = run("demo", "--seed", "1", "-n", "40")
    assert done.returncode == 0, done.stderr
    from oxillama.apps.demo import PROMPTS, STORY

    prompt = PROMPTS[1 % len(PROMPTS)]
    story = InferenceEngine.from_gguf(STORY, seed=1).generate(prompt, max_tokens=40)
    assert done.stdout.decode().rstrip("\n") == (prompt + story).rstrip("\n")
    assert facts_of(done)[3] == "1"


def test_demo_continues_the_users_words() -> None:
    assert output("demo", "-p", "Once upon a time", "-n", "5").startswith("Once upon a time")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.rope.scaling.factor", 1e-30),
        ("llama.rope.freq_base", 0.5),
        ("llama.attention.layer_norm_rms_epsilon", 0.0),
        ("llama.context_length", 0),
        ("llama.rope.scaling.attn_factor", 1e5),
    ],
)
def test_info_says_what_loading_says(tmp_path: Path, key: str, value: float) -> None:
    path = write_tiny_model(tmp_path / "m.gguf")
    with ModelFile.open(path) as file:
        pairs = dict(file.raw_metadata()) | {key: writer.pair(key, value)}
        tensors = [writer.Tensor(t.name, t.format, t.shape) for t in file.tensors.values()]
        with (tmp_path / "bad.gguf").open("wb") as out:
            out.write(writer.header(list(pairs.values()), tensors))
            for tensor in tensors:
                writer.write_tensor(out, tensor, [file.data(tensor.name)], 32)
    done = run("info", tmp_path / "bad.gguf")
    told = done.stderr.decode()
    assert done.returncode == 1
    assert told.startswith(f"oxillama: error: {key}: expected ") or "attn_factor, yarn_attn_factor" in told
    assert told.count("\n") == 1
    assert error("run", tmp_path / "bad.gguf", "-p", "x") == told
