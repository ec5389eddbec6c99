"""Which text is a name of the hub, and which files of a repository it means."""

from __future__ import annotations

import pytest

from oxillama import ConfigError
from oxillama.gguf.hub.names import HubName, hub_name, model_files

FILES = [
    "README.md", "tiny-Q4_K_M.gguf", "tiny-Q4_K_S.gguf", "tiny.Q8_0.gguf", "mmproj-tiny-Q8_0.gguf",
    "imatrix-Q4_K_M.gguf", "UD-Q2_K_XL/tiny-UD-Q2_K_XL-00001-of-00002.gguf",
    "UD-Q2_K_XL/tiny-UD-Q2_K_XL-00002-of-00002.gguf",
]  # fmt: skip
SPLIT = FILES[-2:]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("user/repo:Q4_K_M", HubName("user/repo", tag="Q4_K_M")),
        ("hf://user/repo:Q4_K_M", HubName("user/repo", tag="Q4_K_M")),
        ("hf://user/repo/a/b.gguf", HubName("user/repo", file="a/b.gguf")),
        ("hf://user/repo", HubName("user/repo")),
        ("hf://user/repo@v1/b.gguf", HubName("user/repo", file="b.gguf", revision="v1")),
    ],
)
def test_names(text: str, name: HubName) -> None:
    assert hub_name(text) == name
    assert hub_name(str(name)) == name


@pytest.mark.parametrize(
    "text", ["model.gguf", "models/tiny.gguf", "C:/models/tiny.gguf", "a/b/c:d", "user/repo", ":x", "a/b:"]
)
def test_paths(text: str) -> None:
    assert hub_name(text) is None


@pytest.mark.parametrize("text", ["hf://", "hf://repo", "hf://user/repo:", "hf://user/repo@"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="model: expected hf://user/repo/file"):
        hub_name(text)


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("user/repo:Q4_K_M", ["tiny-Q4_K_M.gguf"]),
        ("user/repo:q4_k_s", ["tiny-Q4_K_S.gguf"]),
        ("user/repo:Q8_0", ["tiny.Q8_0.gguf"]),
        ("user/repo:Q2_K_XL", SPLIT),
        ("hf://user/repo/mmproj-tiny-Q8_0.gguf", ["mmproj-tiny-Q8_0.gguf"]),
        ("hf://user/repo/*S.gguf", ["tiny-Q4_K_S.gguf"]),
        (f"hf://user/repo/{SPLIT[1]}", SPLIT),
        ("hf://user/repo/*00002*", SPLIT),
    ],
)
def test_files_of_a_name(text: str, files: list[str]) -> None:
    name = hub_name(text)
    assert name is not None
    assert model_files(name, FILES) == files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user/repo:Q4_K", r"user/repo:Q4_K: expected a model of the repository, it has UD.*, tiny-Q4_K_M"),
        ("user/repo:Q", "expected a model of the repository"),
        ("hf://user/repo/*Q4*", r"one model, 3 have it: imatrix-Q4_K_M.gguf, tiny-Q4_K_M.gguf, tiny-Q4_K_S"),
        ("hf://user/repo/tiny-q4_k_m.gguf", "expected a model of the repository"),
    ],
)
def test_none_or_several(text: str, message: str) -> None:
    name = hub_name(text)
    assert name is not None
    with pytest.raises(ConfigError, match=message):
        model_files(name, FILES)


COMPANIONS = [
    "mmproj-F16.gguf", "See-7B-mmproj-f16.gguf", "See-7B.mmproj-Q8_0.gguf", "see_mmproj.gguf",
    "MMPROJ-See.gguf", "Q8_0/See-7B-mmproj-Q8_0.gguf", "See-7B-mmproj-Q8_0-00001-of-00001.gguf",
    "See-7B.mmproj.gguf", "imatrix.gguf", "imatrix_unsloth.gguf", "See-7B-imatrix.gguf",
    "See-7B.imatrix.gguf", "See-7B.i1-imatrix.gguf", "See-7B-imatrix-Q8_0.gguf", "See-7B-Q8_0-IMatrix.gguf",
    "Q8_0/imatrix-See.gguf", "mtp-See-7B-Q8_0.gguf", "See-7B-mtp-Q8_0.gguf", "eagle3-See-7B-Q8_0.gguf",
    "dflash-See-Q8_0.gguf", "dspark-See-Q8_0.gguf", "MTP/mtp-See-7B.gguf", "ggml-vocab-see.gguf",
    "See-7B-vocab.gguf", "See-7B-Q8_0-LoRA.gguf", "See-7B-lora.gguf", "See-lora-00001-of-00001.gguf",
]  # fmt: skip


@pytest.mark.parametrize("model", ["See-7B.Q8_0.gguf", "Q8_0/See-7B-Q8_0-00001-of-00001.gguf"])
@pytest.mark.parametrize("companion", COMPANIONS)
def test_files_that_belong_to_a_model_are_no_models(companion: str, model: str) -> None:
    files = ["README.md", "imatrix.dat", "See-7B.imatrix.dat", companion, model]
    for text in ("hf://ann/see", "ann/see:Q8_0", f"hf://ann/see/{model}", "hf://ann/see/*Q8_0*.gguf"):
        name = hub_name(text)
        assert name is not None and model_files(name, files) == [model]
    assert model_files(HubName("ann/see", file=companion), files) == [companion]
    with pytest.raises(ConfigError, match="expected a model of the repository"):
        model_files(HubName("ann/see"), files[:-1])


@pytest.mark.parametrize(
    "model",
    [
        "See-7B-imat-Q8_0.gguf", "See-7B-Q8_0-imat.gguf", "See-7B-MTP-Q8_0.gguf", "See-0.5B-draft-Q8_0.gguf",
        "alpaca-lora-7b-Q8_0.gguf", "lora/See-7B-Q8_0.gguf", "imatrix/See-7B-Q8_0.gguf",
        "Eagle3-7B-Q8_0.gguf", "vocabulary-7B-Q8_0.gguf", "matrix-7B-Q8_0.gguf", "mtp/See-Q8_0.gguf",
    ],
)  # fmt: skip
def test_names_of_models_that_look_like_others(model: str) -> None:
    assert model_files(HubName("ann/see", tag="q8_0"), [model, "mmproj-Q8_0.gguf"]) == [model]


def test_a_file_of_a_split_model_is_missing() -> None:
    name = HubName("user/repo", tag="Q2_K_XL")
    with pytest.raises(ConfigError, match="expected all files of a split model, got UD"):
        model_files(name, FILES[:-1])
    with pytest.raises(ConfigError, match="it has no GGUF files"):
        model_files(name, ["README.md"])


def test_of_several_models_the_usual_format_is_taken() -> None:
    paths = ["a-Q8_0.gguf", "a-Q4_K_M.gguf", "a-Q4_K_S.gguf", "mmproj-Q4_K_M.gguf"]
    name = HubName("user/repo")
    assert model_files(name, paths) == ["a-Q4_K_M.gguf"]
    with pytest.raises(ConfigError, match="expected a name of one model, 2 have it"):
        model_files(name, ["a-Q8_0.gguf", "a-Q6_K.gguf"])
    with pytest.raises(ConfigError, match=r"\d have it"):
        model_files(name, [*paths, "b-Q4_K_M.gguf"])


def test_the_only_model_of_a_repository() -> None:
    assert model_files(HubName("user/repo"), FILES[:2]) == ["tiny-Q4_K_M.gguf"]
