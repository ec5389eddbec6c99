"""Pictures on the command line: run, chat, batch and info."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oxillama import ConfigError, InferenceEngine
from oxillama.apps.cli import build_parser
from oxillama.apps.cli.conversation import Conversation, messages_of
from oxillama.apps.cli.media import content_of, part_of, shown_content
from oxillama.apps.cli.serve import hosted_models, server_config
from oxillama.engine.features.media import encode_media
from oxillama.models.media.beside import found_beside, missing_reason, takes
from oxillama.sessions.snapshot import read
from tests.support.command_line import error, output, run
from tests.support.media import WIDTH, picture, projector_file
from tests.support.sighted_models import recorded, write_model
from tests.support.tiny_file import write_tiny_model

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
GREEDY = ("-n", "6", "--greedy")
OPTIONS: dict[str, Any] = {"max_tokens": 6, "temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a projector file, two pictures, and a model without."""
    found = tmp_path_factory.mktemp("media")
    (found / "plain").mkdir()
    for path in (found / "tiny.gguf", found / "plain" / "plain.gguf"):
        write_tiny_model(path, n_embd=WIDTH, ends=False)
    (found / "mmproj-tiny.gguf").write_bytes(projector_file())
    for i in range(2):
        Image.fromarray(picture(40, 30, i)).save(found / f"{i}.png")
    (found / "none.png").write_bytes(b"none")
    return found


@pytest.fixture(scope="module")
def engine(folder: Path) -> InferenceEngine:
    return InferenceEngine.from_gguf(folder / "tiny.gguf", num_threads=1)


def prompt(engine: InferenceEngine, text: str, *paths: Path) -> Any:
    return engine.model.feature("media").prompt(text, paths)


def test_run(folder: Path, engine: InferenceEngine) -> None:
    paths = (folder / "0.png", folder / "1.png")
    flags = ("--image", paths[0], "--image", paths[1])
    text = "once <__media__> upon <__media__>"
    wanted = engine.generate(prompt(engine, text, *paths), **OPTIONS)
    assert output("run", folder / "tiny.gguf", *flags, "-p", text, *GREEDY) == wanted + "\n"
    before = engine.generate(prompt(engine, "<__media__>once", paths[0]), **OPTIONS)
    assert output("run", folder / "tiny.gguf", *flags[:2], "-p", "once", *GREEDY) == before + "\n"
    named = ("run", folder / "plain" / "plain.gguf", "--mmproj", folder / "mmproj-tiny.gguf")
    assert output(*named, *flags[:2], "-p", "once", *GREEDY) == before + "\n"


def test_run_of_a_session(folder: Path, engine: InferenceEngine, tmp_path: Path) -> None:
    """Pictures stay in the file of a session: it goes on with another, and with a text."""
    opening = engine.model.tokenizer.encode_rendered("")
    first = prompt(engine, "once <__media__> upon", folder / "0.png")
    second = prompt(engine, "the <__media__> said", folder / "1.png")
    assert opening and second.tokens[: len(opening)] == opening
    steps = [first, second.without(opening), engine.tokenizer.encode("and", add_special=False)]
    flags = [
        ("-p", "once <__media__> upon", "--image", folder / "0.png"),
        ("-p", "the <__media__> said", "--image", folder / "1.png"),
        ("-p", "and"),
    ]
    with engine.session() as session:
        for step, options in zip(steps, flags, strict=True):
            session.append(step)
            wanted = session.stream(**OPTIONS).result().text
            said = output("run", folder / "tiny.gguf", *options, *GREEDY, "--session", tmp_path / "s")
            assert said == wanted + "\n"
            assert list(read(tmp_path / "s").tokens) == session.tokens


def test_chat(folder: Path, engine: InferenceEngine) -> None:
    said: list[Any] = [
        {"role": "user", "content": content_of("once", [part_of("image", str(folder / "0.png"))])}
    ]
    first = engine.chat(said, **OPTIONS)
    model = folder / "tiny.gguf"
    assert output("chat", model, "once", "--image", folder / "0.png", *GREEDY) == f"{first}\n"
    said += [{"role": "assistant", "content": first}]
    said += [{"role": "user", "content": content_of("upon", [part_of("image", str(folder / "1.png"))])}]
    second = engine.chat(said, **OPTIONS)
    saved = folder / "said.json"
    lines = (
        f"/image {folder / '0.png'}\nonce\n/image {folder / '1.png'}\nupon\n/save {saved}\n/regen\n/undo\n"
    )
    done = run("chat", model, *GREEDY, stdin=lines.encode())
    assert done.stdout.decode() == f"{first}\n{second}\n{second}\n", done.stderr
    assert f"took back: [{folder / '1.png'}] upon" in done.stderr.decode()
    assert json.loads(saved.read_text()) == [*said, {"role": "assistant", "content": second}]
    again = Conversation()
    again.load(str(saved))
    assert again.messages == json.loads(saved.read_text())
    assert again.last_question == said[2]["content"]


def test_chat_of_a_session(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session continues in another process and folder as one conversation; another picture is refused."""
    model, kept = folder / "tiny.gguf", tmp_path / "s"
    shown = tmp_path / "shown.png"
    shown.write_bytes((folder / "0.png").read_bytes())
    lines = f"once\nupon\n/image {folder / '1.png'}\na time\n"
    whole = run("chat", model, "--image", shown, *GREEDY, stdin=lines.encode()).stdout.decode()
    assert len(whole.splitlines()) >= 3
    monkeypatch.chdir(tmp_path)
    found = output("chat", model, "once", "--image", "shown.png", *GREEDY, "--session", kept)
    monkeypatch.chdir(folder)
    found += output("chat", model, "upon", *GREEDY, "--session", kept)
    found += output("chat", model, "a time", "--image", "1.png", *GREEDY, "--session", kept)
    assert found == whole
    shown.write_bytes((folder / "1.png").read_bytes())
    message = error("chat", model, "and", *GREEDY, "--session", kept)
    assert "shown.png: expected what the session was shown, got another" in message
    shown.unlink()
    assert "shown.png" in error("chat", model, "and", *GREEDY, "--session", kept)


def test_what_chat_and_run_refuse(folder: Path) -> None:
    model, image = folder / "tiny.gguf", ("--image", folder / "0.png")
    for flags, message in (
        ((model, "a", "--image", folder / "none.png"), "picture: cannot be decoded"),
        ((model, "a", "--image", "https://a/b.png"), "nothing is fetched"),
        ((model, "a", "--audio", folder / "0.png"), "its projector file has no encoder of sounds"),
        ((folder / "plain" / "plain.gguf", "a", *image), "takes no pictures: it has no projector file"),
    ):
        assert message in error("chat", *flags)
    for flags, message in (
        ((model, *image, "-p", "a", "--no-special"), "--no-special: cannot be combined with --image"),
        ((model, *image, "-p", "<__media__><__media__>"), "once for each medium, or not at all, got it 2"),
    ):
        assert message in error("run", *flags)


def test_receipts(folder: Path, tmp_path: Path) -> None:
    model, receipt = folder / "tiny.gguf", tmp_path / "receipt.json"
    first, other = ("--image", folder / "0.png"), ("--image", folder / "1.png")
    output("run", model, *first, "-p", "once", *GREEDY, "--receipt", receipt)
    assert "verified" in output("verify", receipt, "--model", model, *first)
    assert run("verify", receipt, "--model", model, *other).returncode == 1
    plain = ("verify", receipt, "--model", folder / "plain" / "plain.gguf")
    assert "verified" in output(*plain, *first, "--mmproj", folder / "mmproj-tiny.gguf")
    assert "no media with reference" in error("verify", receipt, "--model", model, *first, "--reference")


def test_messages_of_a_file() -> None:
    assert shown_content("a") == "a"
    for content in (
        [],
        [5],
        [{"type": "image"}],
        [{"type": "text", "path": "a"}],
        [{"type": "video", "path": "a"}],
    ):
        with pytest.raises(ConfigError):
            messages_of([{"role": "user", "content": content}], "/load", "a")


def test_batch(folder: Path, engine: InferenceEngine, tmp_path: Path) -> None:
    path, url = str(folder / "0.png"), "data:image/png;base64,AAAA"
    content = content_of("once", [part_of("image", path)])
    rows: list[dict[str, Any]] = [
        {"prompt": "once <__media__>", "media": [path], **OPTIONS},
        {"messages": [{"role": "user", "content": content}], **OPTIONS},
        {"prompt": "once <__media__>", "media": [url]},
        {"prompt": "once", "media": [path]},
        {"prompt": [3], "media": [path]},
        {"input": "a", "media": [path]},
        {"prompt": "<__media__>", "media": ["http://a/b.png"]},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run("batch", tmp_path / "in.jsonl", tmp_path / "out.jsonl", "-m", folder / "tiny.gguf")
    assert done.returncode == 1  # some answers are errors
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert found[0]["text"] == engine.generate(
        prompt(engine, "once <__media__>", folder / "0.png"), **OPTIONS
    )
    assert found[1]["text"] == engine.chat(rows[1]["messages"], **OPTIONS)
    messages = [each["error"]["message"] for each in found[2:]]
    wanted = (
        "cannot be decoded",
        "0 markers",
        "beside a prompt",
        "media: is no option",
        "nothing is fetched",
    )
    assert all(map(str.__contains__, messages, wanted)), messages


def test_info(folder: Path, tmp_path: Path) -> None:
    text = output("info", folder / "mmproj-tiny.gguf")
    assert (
        "takes image" in text
        and "mlp, 2 layers of width 24, 2 heads, tiles of 28 pixels, patches of 7" in text
    )
    facts = json.loads(output("info", "--json", folder / "mmproj-tiny.gguf"))
    assert (facts["takes"], facts["supported"], facts["encoders"][0]["embedding"]) == (["image"], True, WIDTH)
    assert f"{folder / 'mmproj-tiny.gguf'}, takes image" in output("info", folder / "tiny.gguf")
    assert json.loads(output("info", "--json", folder / "plain" / "plain.gguf"))["projector"] is None
    other = tmp_path / "mmproj-other.gguf"
    other.write_bytes(projector_file(keys={"clip.projector_type": ("str", "other")}))
    done = run("info", other)
    assert done.returncode == 1 and b"clip.projector_type: expected one of" in done.stderr
    assert takes(other) == ()


def test_convert(tmp_path: Path) -> None:
    """Without a name the file is the one that is found beside the model."""
    config, shapes, _ = recorded("gemma3")
    write_model(tmp_path / "gemma", config, shapes)
    said = output("convert", tmp_path / "gemma") + output("convert", tmp_path / "gemma", "--mmproj")
    assert f"wrote {tmp_path / 'mmproj-gemma.gguf'}: clip" in said
    assert found_beside(tmp_path / "gemma.gguf") == tmp_path / "mmproj-gemma.gguf"
    assert "expected no such file" in error("convert", tmp_path / "gemma", "--mmproj")


def test_the_projector_file_of_a_model(tmp_path: Path) -> None:
    def made(*names: str) -> Path:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for name in names:
            (folder / name).touch()
        return folder

    def found(model: str, *names: str) -> str | None:
        path = found_beside(made(*names) / model)
        return None if path is None else path.name

    assert found("a.gguf") is None
    assert found("a.gguf", "mmproj-b.gguf") == "mmproj-b.gguf"  # the only one
    both = ("mmproj-a-b-F16.gguf", "mmproj-c-f16.gguf")
    assert found("a-b-Q4_K_M.gguf", *both) == both[0]
    assert found("c-IQ4_XS.gguf", *both) == both[1]
    assert found("d-Q8_0.gguf", *both) is None
    assert found("d.gguf", "mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf") == "mmproj-F16.gguf"
    assert found("d.gguf", "mmproj-F32.gguf", "mmproj-BF16.gguf") == "mmproj-BF16.gguf"
    assert "a.gguf" not in missing_reason([made("a.gguf", *both) / "a.gguf"]).replace(both[0], "")
    assert both[0] in missing_reason([made("d.gguf", *both) / "d.gguf"])
    parts = [made("e-1.gguf", *both) / "e-1.gguf", made("e-2.gguf") / "e-2.gguf"]
    assert both[0] in missing_reason(parts)  # beside the first file of a model
    top = tmp_path / "snapshots" / "0"
    (top / "Q4").mkdir(parents=True)
    (top / "mmproj.gguf").touch()
    assert found_beside(top / "Q4" / "a.gguf") == top / "mmproj.gguf"


def test_a_projector_file_is_for_the_default_model(folder: Path) -> None:
    model, other = str(folder / "tiny.gguf"), str(folder / "plain" / "plain.gguf")
    flags = ["--mmproj", str(folder / "mmproj-tiny.gguf"), "-q"]
    args = build_parser("serve").parse_args(["serve", other, "-m", model, "-m", f"again={other}", *flags])
    found = {each.name: each.takes for each in hosted_models(args, server_config(args))}
    assert found == {"plain": ("image",), "tiny": ("image",), "again": ()}


def test_encode_media(folder: Path, engine: InferenceEngine) -> None:
    found = encode_media(engine, folder / "0.png")
    assert [rows.values.shape for rows in found.rows] == [(16, WIDTH)]
    assert (found.rows[0].values == encode_media(engine, picture(40, 30)).rows[0].values).all()
    plain = InferenceEngine.from_gguf(folder / "plain" / "plain.gguf", num_threads=1)
    with plain, pytest.raises(ConfigError, match="it has no projector file"):
        encode_media(plain, folder / "0.png")
