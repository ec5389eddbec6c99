"""Quantizing files: what is converted, what is carried over, what is refused, and running the result."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from oxillama import ConfigError, GGUFError, ImportanceMatrix, LoadError, ModelFileError, demo, quantize_model
from oxillama.apps.quantize.imatrix import Entry
from oxillama.apps.quantize.mixes import ModelFacts, mixed
from oxillama.base.formats import FORMATS, WRITABLE
from oxillama.compat.engine import InferenceEngine
from oxillama.gguf.model_file import ModelFile
from tests.support import gguf_writer as ggufwriter
from tests.support.file_type_cases import pure_type
from tests.support.kernels import dequantized, normal
from tests.support.tiny_models import WIDE


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quantize") / "f16.gguf"
    path.write_bytes(WIDE.but(formats=("F16",)).file())
    return path


def matrix_file(
    path: Path, x: np.ndarray, name: str = "blk.0.attn_q.weight", kind: str = "F32", **rest: int
) -> Path:
    """A file of one tensor in F32 or F16."""
    dtype = {"F32": "<f4", "F16": "<f2"}[kind]
    tensor = ggufwriter.Tensor(name, x.shape[::-1], FORMATS[kind].file_id, x.astype(dtype).tobytes())
    metadata = [("general.architecture", "str", "llama"), *((k, "u32", v) for k, v in rest.items())]
    path.write_bytes(ggufwriter.write(metadata, [tensor]))
    return path


def contents(path: Path) -> dict[str, tuple[str, bytes]]:
    with ModelFile.open(path) as file:
        return {name: (t.format.name, file.data(name).tobytes()) for name, t in file.tensors.items()}


CLOSE = {"F32": 0.0, "F16": 0.001, "BF16": 0.004, "Q8_0": 0.012, "Q6_K": 0.035, "Q5_K": 0.065, "Q5_1": 0.065}
CLOSE |= {"Q5_0": 0.08, "Q4_K": 0.12, "Q4_1": 0.13, "Q4_0": 0.14, "Q3_K": 0.25, "Q2_K": 0.42}
CLOSE |= {"IQ4_NL": 0.115, "IQ4_XS": 0.12, "IQ3_S": 0.19, "IQ3_XXS": 0.27, "IQ2_S": 0.42, "IQ2_XS": 0.46}
CLOSE |= {"IQ2_XXS": 0.52, "IQ1_M": 0.66, "IQ1_S": 0.76, "TQ2_0": 1.3, "TQ1_0": 1.3}
CLOSE |= {"Q2_0": 1.3, "Q2_0_G128": 1.3, "NVFP4": 0.165}
"""Relative error of the draft model's logits, about 1.3 times what it was."""


@pytest.mark.parametrize("name", WRITABLE)
def test_a_quantized_file_runs(name: str, tmp_path: Path) -> None:
    source, target = tmp_path / "draft.gguf", tmp_path / "out.gguf"
    quantize_model(demo.DRAFT, source, "F32", allow_requantize=True)
    done = quantize_model(source, target, pure_type(name), pure=True)
    assert done.nbytes == sum(len(data) for _, data in contents(target).values())
    assert {fmt for n, (fmt, _) in contents(target).items() if "norm" not in n} == {name}
    plain, engine = InferenceEngine.from_gguf(source), InferenceEngine.from_gguf(target)
    ids = plain.tokenizer.encode("Once upon a time, there was a little fox named Tom. He lived by the sea.")
    expected, logits = plain.logits(ids), engine.logits(ids)
    assert np.linalg.norm(logits - expected) <= CLOSE[name] * np.linalg.norm(expected)


def test_blocks_are_those_of_the_kernel_for_tensors_of_many_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = normal(100, 512, seed=4)
    path = matrix_file(tmp_path / "in.gguf", x, kind="F16")
    quantize_model(path, tmp_path / "one.gguf", "Q4_K_M", num_threads=1)
    monkeypatch.setattr("oxillama.models.weights.requantize.CHUNK_ELEMENTS", 512 * 16)
    quantize_model(path, tmp_path / "many.gguf", "Q4_K_M", num_threads=3)
    assert contents(tmp_path / "one.gguf") == contents(tmp_path / "many.gguf")
    (fmt, data) = contents(tmp_path / "many.gguf")["blk.0.attn_q.weight"]
    assert fmt == "Q4_K"
    found = dequantized("Q4_K", np.frombuffer(data, np.uint8).reshape(100, -1))
    assert np.abs(found - x).max() < 0.4


def test_metadata_and_other_tensors_are_carried_over_bit_for_bit(tmp_path: Path) -> None:
    odd = [
        ("general.architecture", "str", "llama"),
        ("general.file_type", "u8", 3),
        ("a.text", "str", "caf\udce9 \x00 \n"),
        ("a.small", "i8", -3),
        ("a.wide", "u64", 2**63 + 1),
        ("a.nan", "f32", float("nan")),
        ("a.flags", "[bool]", [True, False]),
        ("a.words", "[str]", ["", "x" * 300, "\udcff"]),
        ("a.nested", "[[i16]]", [[1, 2], []]),
        ("a.empty", "[f64]", []),
    ]
    norm = ggufwriter.Tensor("blk.0.attn_norm.weight", (7,), 0, b"\xff" * 28)
    ids = ggufwriter.Tensor("ids.weight", (5, 3), 26, bytes(range(60)))
    matrix = ggufwriter.Tensor("blk.0.attn_q.weight", (32, 3), 0, normal(3, 32).tobytes())
    path, target = tmp_path / "in.gguf", tmp_path / "out.gguf"
    path.write_bytes(ggufwriter.write(odd, [norm, ids, matrix], alignment=64))
    quantize_model(path, target, "Q4_0", pure=True)
    with ModelFile.open(path) as a, ModelFile.open(target) as b:
        before, after = a.raw_metadata(), b.raw_metadata()
        assert list(after) == [*before, "general.quantization_version"]
        for key, raw in before.items():
            assert key == "general.file_type" or (after[key] == raw).all()
        assert (b.metadata["general.file_type"], b.metadata["general.quantization_version"]) == (2, 2)
        assert list(b.tensors) == list(a.tensors)
        assert b.alignment == 64
        for name in ("blk.0.attn_norm.weight", "ids.weight"):
            assert b.tensors[name].format is a.tensors[name].format
            assert (b.data(name) == a.data(name)).all()


def test_a_split_file_becomes_one(tmp_path: Path, source: Path) -> None:
    with ModelFile.open(source) as file:
        names = list(file.tensors)
        parts, n = [names[::2], names[1::2]], len(names)
        for i, part in enumerate(parts):
            tensors = [
                ggufwriter.Tensor(
                    n, file.tensors[n].shape, file.tensors[n].format.file_id, file.data(n).tobytes()
                )
                for n in part
            ]
            own = [
                ("split.no", "u16", i),
                ("split.count", "u16", 2),
                ("split.tensors.count", "i32", n),
            ]
            pairs = [ggufwriter.pair(*item) for item in own]
            if i == 0:
                pairs += [raw.tobytes() for raw in file.raw_metadata().values()]
            entries, data = [], b""
            for t in tensors:
                data += bytes(-len(data) % 32)
                entries.append(ggufwriter.entry(t.name, t.shape, t.type_id, len(data)))
                data += t.data
            whole = ggufwriter.assemble(pairs, entries, data)
            (tmp_path / f"m-0000{i + 1}-of-00002.gguf").write_bytes(whole)
    first = tmp_path / "m-00001-of-00002.gguf"
    quantize_model(first, tmp_path / "joined.gguf", "Q6_K")
    quantize_model(source, tmp_path / "whole.gguf", "Q6_K")
    assert contents(tmp_path / "joined.gguf") == contents(tmp_path / "whole.gguf")
    with ModelFile.open(tmp_path / "joined.gguf") as file:
        assert not [key for key in file.metadata if key.startswith("split.")]
    with pytest.raises(ConfigError, match=r"target: expected another file .*00002\.gguf"):
        quantize_model(first, tmp_path / "m-00002-of-00002.gguf", "Q6_K")


def test_options_choose_formats(source: Path) -> None:
    def formats(**options: object) -> dict[str, str]:
        plan = quantize_model(source, None, "Q4_K_M", **options)  # type: ignore[arg-type]
        return {tensor.source.name: tensor.format.name for tensor in plan.tensors}

    usual = formats()
    assert usual["output.weight"] == "Q6_K"
    assert usual["token_embd.weight"] == "Q4_K"
    chosen = formats(
        output_tensor_type="q8_0",
        token_embedding_type="F16",
        tensor_types=[(r"blk\.0\.ffn", "q2_k"), ("ffn_down", "Q5_K")],
    )
    assert (chosen["output.weight"], chosen["token_embd.weight"]) == ("Q8_0", "F16")
    assert (chosen["blk.0.ffn_down.weight"], chosen["blk.1.ffn_down.weight"]) == ("Q2_K", "Q5_K")
    assert formats(leave_output_tensor=True)["output.weight"] == "F16"
    pure = formats(pure=True, tensor_types=[("attn_v", "Q8_0")])
    assert {f for n, f in pure.items() if "norm" not in n and "attn_v" not in n} == {"Q4_K"}
    assert pure["blk.1.attn_v.weight"] == "Q8_0"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "MXFP4"}, "type: expected one of F32, .* got 'MXFP4'"),
        ({"output_tensor_type": "Q1_0"}, "output_tensor_type: expected one of F32, .* got 'Q1_0'"),
        ({"token_embedding_type": "Q9"}, "token_embedding_type: expected one of F32, .* got 'Q9'"),
        ({"tensor_types": [("attn_q", "Q4_K_M")]}, "tensor_types: expected one of F32, .* got 'Q4_K_M'"),
        ({"tensor_types": [("(", "Q4_K")]}, "tensor_types: expected a regular expression, got '\\('"),
        (
            {"tensor_types": [("attn_zebra", "Q4_K")]},
            "tensor_types: expected part of a matrix name, got 'attn_zebra'",
        ),
        ({"num_threads": 0}, "num_threads: expected an integer from 1 to 1024, got 0"),
        (
            {"leave_output_tensor": True, "output_tensor_type": "F16"},
            "leave_output_tensor: expected no output_tensor_type",
        ),
        (
            {"imatrix": ImportanceMatrix({"x": Entry(np.ones((1, 8)), np.ones(1))})},
            "imatrix: expected entries of",
        ),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(
    options: dict[str, object], message: str, source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out.gguf"
    with pytest.raises(ConfigError, match=message):
        quantize_model(source, target, **{"type": "Q4_K", **options})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("heads", "kv_heads", "expected"),
    [
        (("u32", 8), ("u32", 2), "Q4_K"),
        (("u32", 6), ("u32", 2), "Q3_K"),
        (("u32", 8), ("[u32]", [0, 2]), "Q4_K"),  # the first layer has no keys
        (("[u32]", [2, 8]), ("u32", 2), "Q4_K"),
        (("[u32]", [8, 8]), ("[u32]", [1, 4]), "Q3_K"),
        (("u32", 8), None, "Q3_K"),
    ],
)
def test_the_largest_number_of_heads_of_a_layer_counts(
    heads: tuple[str, object], kv_heads: tuple[str, object] | None, expected: str, tmp_path: Path
) -> None:
    """Q2_K gives attention values that four heads or more share a better format."""
    pairs = [("general.architecture", "str", "llama"), ("llama.attention.head_count", *heads)]
    pairs += [("llama.attention.head_count_kv", *kv_heads)] if kv_heads else []
    values = ggufwriter.Tensor("blk.0.attn_v.weight", (256, 4), 0, bytes(4096))
    (tmp_path / "in.gguf").write_bytes(ggufwriter.write(pairs, [values]))
    (tensor,) = quantize_model(tmp_path / "in.gguf", None, "Q2_K").tensors
    assert tensor.format.name == expected


def test_a_file_without_what_is_asked_for_is_refused(tmp_path: Path) -> None:
    path = matrix_file(tmp_path / "in.gguf", normal(4, 256))
    for options, message in (
        ({"leave_output_tensor": True}, "leave_output_tensor: expected a file with output"),
        ({"output_tensor_type": "F16"}, "output_tensor_type: expected an output matrix"),
        ({"token_embedding_type": "F16"}, "token_embedding_type: expected an embedding"),
    ):
        with pytest.raises(ConfigError, match=message):
            quantize_model(path, None, "Q4_0", **options)  # type: ignore[arg-type]
    matrix_file(path, normal(4, 256), name="output_norm.weight")
    with pytest.raises(LoadError, match=r"in\.gguf: expected matrices to quantize"):
        quantize_model(path, None, "Q4_0")
    matrix_file(path, normal(4, 256))
    path.write_bytes(path.read_bytes().replace(b"general.architecture", b"general.architectura"))
    with pytest.raises(GGUFError, match=r"general\.architecture: expected a string, got no such key"):
        quantize_model(path, None, "Q4_K_M")


def test_a_format_named_for_rows_it_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = matrix_file(tmp_path / "in.gguf", normal(4, 64))
    with pytest.raises(ConfigError, match=r"expected rows of a multiple of 256 for Q6_K, got 64"):
        quantize_model(path, None, "Q4_0", pure=True, tensor_types=[("attn_q", "Q6_K")])


def test_quantizing_again_has_to_be_allowed(tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    with pytest.raises(ConfigError, match=r"allow_requantize: token_embd\.weight is Q8_0 already"):
        quantize_model(demo.DRAFT, target, "Q4_K")
    assert not target.exists()
    quantize_model(demo.DRAFT, target, "Q4_K", allow_requantize=True)
    assert InferenceEngine.from_gguf(target).logits([1, 50]).shape == (2, 1024)
    quantize_model(demo.DRAFT, target, "Q8_0")  # nothing changes: nothing to allow
    assert contents(target) == contents(demo.DRAFT)


def test_formats_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "in.gguf"
    tensor = ggufwriter.Tensor("blk.0.attn_q.weight", (4, 2), FORMATS["F64"].id, bytes(64))
    path.write_bytes(ggufwriter.write([("general.architecture", "str", "llama")], [tensor]))
    with pytest.raises(LoadError, match=r"blk.0.attn_q.weight: expected one of F32, .*, got F64"):
        quantize_model(path, None, "F16")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 70000.0, -1e30])
def test_values_that_no_scale_can_hold_are_named(value: float, tmp_path: Path) -> None:
    x = normal(3, 256)
    x[1, 77] = value
    path, target = matrix_file(tmp_path / "in.gguf", x), tmp_path / "out.gguf"
    target.write_bytes(b"before")
    for name in ("F16", "Q8_0", "Q4_K"):
        with pytest.raises(GGUFError, match=r"attn_q.weight: expected values from -65504 to 65504 for \w+"):
            quantize_model(path, target, name, pure=True)
    assert target.read_bytes() == b"before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.gguf", "out.gguf"]
    quantize_model(path, target, "BF16")


def test_files_that_cannot_be_written_are_errors(source: Path, tmp_path: Path) -> None:
    for bad in (tmp_path, tmp_path / "no" / "out.gguf", "/dev/null", "a\0b"):
        with pytest.raises(ModelFileError):
            quantize_model(source, bad, "Q4_0")
    with pytest.raises(ConfigError, match="target: expected another file than the source"):
        quantize_model(source, source, "Q4_0")
    link = tmp_path / "link.gguf"
    link.symlink_to(tmp_path / "real.gguf")
    quantize_model(source, link, "Q4_0")
    assert link.is_symlink()
    assert (tmp_path / "real.gguf").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_progress_tells_every_tensor_and_all_bytes(source: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []
    done = quantize_model(
        source, tmp_path / "out.gguf", "Q5_K_S", progress=lambda name, n: told.append((name, n))
    )
    assert [name for name, _ in told] == [tensor.source.name for tensor in done.tensors]
    assert sum(n for _, n in told) == done.source_bytes


def test_importance_is_used_for_its_tensor_and_expert(tmp_path: Path) -> None:
    x = normal(2 * 16, 256, seed=2).reshape(2, 16, 256)
    name = "blk.0.ffn_up_exps.weight"
    path = tmp_path / "in.gguf"
    tensor = ggufwriter.Tensor(name, (256, 16, 2), 0, x.tobytes())
    path.write_bytes(ggufwriter.write([("general.architecture", "str", "llama")], [tensor]))
    sums = np.full((2, 256), 1e-3, np.float32)
    sums[0, ::8], sums[1, 4::8] = 1, 1
    entry = Entry(sums, np.ones(2, np.float32))
    quantize_model(path, tmp_path / "out.gguf", "Q2_K", pure=True, imatrix=ImportanceMatrix({name: entry}))
    data = np.frombuffer(contents(tmp_path / "out.gguf")[name][1], np.uint8)
    error = ((dequantized("Q2_K", data.reshape(32, -1)).reshape(x.shape) - x) ** 2).mean(axis=1)
    assert error[0, ::8].mean() < 0.5 * error[1, ::8].mean()
    assert error[1, 4::8].mean() < 0.5 * error[0, 4::8].mean()
    # a row of both, as older files have it
    flat = ImportanceMatrix({name: Entry(sums.reshape(1, -1), np.ones(1, np.float32))})
    quantize_model(path, tmp_path / "flat.gguf", "Q2_K", pure=True, imatrix=flat)
    assert contents(tmp_path / "flat.gguf") == contents(tmp_path / "out.gguf")
    wrong = ImportanceMatrix({name: Entry(sums[:, :200], np.ones(2, np.float32))})
    with pytest.raises(ConfigError, match="expected 2 x 256 numbers, got 2 x 200"):
        quantize_model(path, None, "Q2_K", pure=True, imatrix=wrong)


@pytest.mark.parametrize(
    ("n_experts", "better"), [(8, {0, 1, 4, 7, 10, 13, 14, 15}), (4, {0, 1}), (0, {0, 1})]
)
def test_down_matrices_of_models_of_eight_experts(n_experts: int, better: set[int]) -> None:
    """IQ3_M: a better format in the first eighth, and for eight experts in the last one and between, too."""
    facts = ModelFacts(
        "llama", 16, n_heads=8, n_kv_heads=2, n_experts=n_experts, tied=False, has_importance=True
    )
    found = [mixed("IQ3_M", f"blk.{i}.ffn_down_exps.weight", 256, (i, 16), facts) for i in range(16)]
    assert {i for i, name in enumerate(found) if name == "Q4_K"} == better
    assert {name for i, name in enumerate(found) if i not in better} == {"IQ3_S"}


def test_down_matrices_of_three_bits_without_importance() -> None:
    facts = ModelFacts("llama", 16, 8, 2, 0, tied=False, has_importance=False)
    found = [mixed("IQ3_XXS", f"blk.{i}.ffn_down.weight", 256, (i, 16), facts) for i in range(16)]
    assert found == ["Q4_K"] * 2 + ["Q3_K"] * 14
