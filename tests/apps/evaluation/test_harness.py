"""Tasks of lm-evaluation-harness, from local files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oxillama import ConfigError, InferenceEngine, PromptError, Receipt, demo
from tests.support.command_line import run
from tests.support.fitted import chat_tokens
from tests.support.kernels import PRESENT
from tests.support.media import WIDTH, picture, projector_file
from tests.support.paths import ROOT
from tests.support.tiny_file import write_tiny_model

pytest.importorskip("lm_eval", reason="comes with the extra eval")
pytest.importorskip("datasets", reason="comes with the extra eval")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the harness and its imports

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.registry import get_model  # noqa: E402

from oxillama.apps.evaluation.harness import OxillamaLM  # noqa: E402
from oxillama.apps.evaluation.score_receipt import ScoreReceipt, verify_score  # noqa: E402

STORIES = demo.HELDOUT.read_text().split(demo.SEPARATOR)
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
target_delimiter: ""
{more}
"""
MORE = {
    "multiple_choice": 'doc_to_choice: "{{choices}}"\ndoc_to_target: answer\nmetric_list: [{metric: acc}]',
    "generate_until": (
        'doc_to_target: "{{answer}}"\ngeneration_kwargs: {until: ["."], max_gen_toks: 9}\n'
        "metric_list: [{metric: exact_match}]"
    ),
    "loglikelihood_rolling": 'doc_to_target: "{{page}}"\nmetric_list: [{metric: byte_perplexity}]',
}


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder with a task of each kind."""
    rows = []
    for story in STORIES[:4]:
        words = story.split(" ")
        right = " " + " ".join(words[20:23])
        choices = [right, " of the the", " the dog", " the cat"]
        rows.append({"question": " ".join(words[:20]), "choices": choices, "answer": 0, "page": story})
    folder = tmp_path / "tasks"
    folder.mkdir()
    data = folder / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    for kind, more in MORE.items():
        text = TASK.format(name=f"local_{kind}", path=data, kind=kind, more=more)
        if kind == "loglikelihood_rolling":
            text = text.replace("{{question}}", "")
        (folder / f"{kind}.yaml").write_text(text)
    return folder


def evaluated(tasks: Path, *args: str, **environment: str) -> dict[str, Any]:
    names = ",".join(f"local_{kind}" for kind in MORE)
    home = {"HF_HOME": str(tasks.parent / "hf"), **environment}
    done = run(
        *("eval", demo.STORY, "--tasks", names, "--include", str(tasks), "--offline", "--json", *args), **home
    )
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


PROGRAM = """
import json, sys
from oxillama.apps.evaluation.tasks import evaluate
model, include, names = sys.argv[1:]
for size, threads in ((1, 1), (7, 2), (64, 1)):
    found = evaluate(model, names.split(","), include=[include], batch_size=size, num_threads=threads)
    print(json.dumps(found.results, sort_keys=True))
"""


@pytest.mark.slow  # each process imports the harness, for seconds
def test_every_figure_is_the_same_for_all_batches_threads_and_targets(tasks: Path) -> None:
    names = ",".join(f"local_{kind}" for kind in MORE)
    command = [sys.executable, "-c", PROGRAM, str(demo.STORY), str(tasks), names]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tasks.parent / "hf")}
    lines = []
    for target in PRESENT:
        environment = {**os.environ, **offline, "PYTHONPATH": str(ROOT), "OXILLAMA_TARGET": target}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        lines += done.stdout.splitlines()
    assert len(lines) == 3 * len(PRESENT) and len(set(lines)) == 1
    assert set(json.loads(lines[0])) == {f"local_{kind}" for kind in MORE}


def test_the_command_writes_receipts_and_samples(tasks: Path, tmp_path: Path) -> None:
    found = evaluated(
        tasks, *("--receipts", str(tmp_path / "receipts"), "--samples", str(tmp_path / "samples.json"))
    )
    assert found["local_multiple_choice"]["acc,none"] >= 0.5
    samples = json.loads((tmp_path / "samples.json").read_text())
    assert len(samples["local_generate_until"]) == 4
    scored = sorted((tmp_path / "receipts" / "local_multiple_choice").iterdir())
    assert len(scored) == 4 * 4
    texts = sorted((tmp_path / "receipts" / "local_generate_until").iterdir())
    with InferenceEngine.from_gguf(demo.STORY) as engine:
        assert verify_score(engine, ScoreReceipt.load(scored[5])) == []
        assert engine.verify(Receipt.load(texts[1]))
        (answer,) = samples["local_generate_until"][1]["resps"][0]
        assert (
            answer == engine.tokenizer.decode(Receipt.load(texts[1]).tokens, continuing=True)[: len(answer)]
        )
    rolling = [
        ScoreReceipt.load(path) for path in (tmp_path / "receipts" / "local_loglikelihood_rolling").iterdir()
    ]
    assert sum(len(receipt.tokens) for receipt in rolling) > 400


def test_what_the_command_refuses(tasks: Path) -> None:
    done = run("eval", demo.STORY, "--tasks", "no_such_task", "--include", str(tasks), "--offline")
    assert done.returncode == 2 and b"tasks: expected names of tasks, got no_such_task" in done.stderr
    done = run("eval", demo.STORY, "--tasks", "x", "--system", "y")
    assert done.returncode == 2 and b"system: needs --chat" in done.stderr


# --- the model --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lm() -> OxillamaLM:
    return OxillamaLM(InferenceEngine.from_gguf(demo.STORY, num_threads=1))


def ask(lm: OxillamaLM, kind: str, *requests: tuple[Any, ...]) -> list[Any]:
    """What a model answers to requests of a kind."""
    made = [Instance(kind, {}, each, i) for i, each in enumerate(requests)]  # type: ignore[arg-type]
    found: list[Any] = getattr(lm, kind)(made, disable_tqdm=True)
    return found


def test_it_is_registered() -> None:
    assert get_model("oxillama") is OxillamaLM
    made = OxillamaLM.create_from_arg_string(
        f"model={demo.STORY},num_threads=1", {"batch_size": "auto", "device": None}
    )
    assert made.batch_size == 64 and made.engine.model.runner.n_threads == 1
    made.close()


def test_loglikelihoods_are_those_of_the_logits(lm: OxillamaLM) -> None:
    context, continuation = STORIES[1][:60].rstrip(), STORIES[1][len(STORIES[1][:60].rstrip()) :][:12]
    found = ask(lm, "loglikelihood", (context, continuation), ("", "Once upon"))
    engine, encode = lm.engine, lm.engine.tokenizer.encode
    bos = [engine.tokenizer.bos_id]
    whole = bos + encode(context + continuation, add_special=False)
    n = len(bos + encode(context, add_special=False))
    for tokens, first, (logprob, _) in (
        (whole, n, found[0]),
        (bos + encode("Once upon", add_special=False), 1, found[1]),
    ):
        rows = engine.session().logits(tokens[:-1]).astype(float)[first - 1 :]
        wanted = sum(row[t] - logsumexp(row) for row, t in zip(rows, tokens[first:]))
        assert logprob == pytest.approx(wanted, abs=1e-5)


def logsumexp(row: Any) -> float:
    import numpy as np

    return float(row.max() + np.log(np.exp(row - row.max()).sum()))


def test_a_long_text_is_rolled_over_its_windows(lm: OxillamaLM) -> None:
    text = "\n".join(STORIES[:6])
    tokens = lm.tok_encode(text, add_special_tokens=False)
    assert len(tokens) > lm.max_length
    (total,) = ask(lm, "loglikelihood_rolling", (text,))
    run, first = [lm.prefix_token_id, *tokens], 0
    wanted = 0.0
    while first < len(tokens):  # each token once, after as many as fit
        end = min(first + lm.max_length, len(tokens))
        start = max(0, end - lm.max_length)
        rows = lm.engine.session().logits(run[start:end]).astype(float)
        wanted += sum(rows[i - start][tokens[i]] - logsumexp(rows[i - start]) for i in range(first, end))
        first = end
    assert total == pytest.approx(wanted, abs=1e-3)


def test_answers_end_as_the_task_says(lm: OxillamaLM) -> None:
    options = {"until": ["."], "max_gen_toks": 30, "do_sample": False}
    short = {**options, "max_gen_toks": 3}
    found = ask(lm, "generate_until", ("Once upon a time", options), ("The dog", short))
    engine = lm.engine
    assert found[0] == engine.generate("Once upon a time", temperature=0, max_tokens=30, stop=["."])
    assert found[1] == engine.generate("The dog", temperature=0, max_tokens=3, stop=["."])
    hot = {"until": [], "max_gen_toks": 8, "do_sample": True, "temperature": 1.0}
    twice = ask(lm, "generate_until", *[("Once", hot)] * 2)
    assert twice == [engine.generate("Once", temperature=1, max_tokens=8, seed=seed) for seed in (0, 1)]
    with pytest.raises(ConfigError, match="num_beams"):
        ask(lm, "generate_until", ("Once", {**hot, "num_beams": 4}))


def test_chat_templates(lm: OxillamaLM) -> None:
    messages = [{"role": "user", "content": "A Goat"}]
    assert lm.apply_chat_template(messages) == lm.engine.tokenizer.apply_chat_template(messages)
    begun = [*messages, {"role": "assistant", "content": "There was"}]
    assert lm.apply_chat_template(begun, False) == lm.apply_chat_template(messages) + "There was"
    with pytest.raises(ConfigError, match="expected an answer to go on with, got a message of user"):
        lm.apply_chat_template(messages, False)
    assert lm.chat_template(True) == lm.engine.tokenizer.chat_template_source("default")
    assert lm.tok_encode(lm.apply_chat_template(messages)) == chat_tokens(lm.engine.tokenizer, messages)


@pytest.fixture(scope="module")
def sighted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OxillamaLM]:
    folder = tmp_path_factory.mktemp("sighted")
    model = write_tiny_model(folder / "tiny.gguf", n_embd=WIDTH, ends=False, context_length=256)
    (folder / "mmproj-tiny.gguf").write_bytes(projector_file())
    found = OxillamaLM(str(model), num_threads=1)
    yield found
    found.close()


def test_pictures_stand_where_the_text_names_them(sighted: OxillamaLM, tmp_path: Path) -> None:
    options, pictures = {"until": [], "max_gen_toks": 6}, [picture(40, 30, seed) for seed in (1, 2)]
    text = "hello <image> world <image>"
    requests = [(text, options, {"visual": each}) for each in (pictures, pictures[::-1])]
    found = ask(sighted, "generate_until", *requests)
    media = sighted.engine.model.feature("media")
    prompt = media.prompt(text.replace("<image>", "<__media__>"), pictures)
    assert found[0] == sighted.engine.generate(prompt, temperature=0, max_tokens=6)
    assert found[0] != found[1]
    one = ("hello <image>", {**options, "do_sample": True, "temperature": 1.0}, {"visual": pictures[0]})
    kept = OxillamaLM(sighted.engine, receipts=tmp_path)
    (answer,) = ask(kept, "generate_until", one)
    receipt = Receipt.load(tmp_path / "requests" / "0-0-0.json")
    checked = sighted.engine.verify(receipt, media=[pictures[0]])
    assert checked.verified and checked.text == answer
    assert sighted.engine.verify(receipt, media=[pictures[1]]).cause == "media"


def test_media_that_cannot_be_shown(sighted: OxillamaLM, lm: OxillamaLM) -> None:
    shown, long = {"visual": [picture()]}, {"until": [], "max_gen_toks": 250}
    options = {"until": [], "max_gen_toks": 6}
    slow = {"audio": [{"array": [0.0] * 99, "sampling_rate": 8000}]}
    for model, request, message in (
        (sighted, ("no place", options, shown), "request 0: expected 1 <image>, one for each of its media"),
        (sighted, ("<image><image>", options, shown), "expected 1 <image>, .* got 2"),
        (sighted, ("<audio>", options, slow), "no encoder of sounds"),
        (lm, ("<image>", options, shown), "the model takes no pictures"),
        (OxillamaLM(sighted.engine, truncate=True), ("<image>", long, shown), "expected at most 6 tokens"),
    ):
        with pytest.raises((ConfigError, PromptError), match=message):
            ask(model, "generate_until", request)


@pytest.mark.parametrize(
    ("kind", "rest", "most"),
    [("loglikelihood", " a", 513), ("generate_until", {"until": [], "max_gen_toks": 12}, 500)],
)
def test_a_prompt_is_cut_only_where_that_is_asked_for(
    lm: OxillamaLM, kind: str, rest: object, most: int
) -> None:
    request = (STORIES[0] * 9, rest)
    with pytest.raises(PromptError, match=f"request 0: expected at most {most} tokens"):
        ask(lm, kind, request)
    assert ask(OxillamaLM(lm.engine, truncate=True), kind, request)


def test_options_that_do_not_fit(lm: OxillamaLM) -> None:
    for options, message in (
        ({"device": "cuda"}, "device: expected cpu"),
        ({"max_batch_size": 4}, "max_batch_size: expected none"),
        ({"batch_size": 0}, "batch_size: expected"),
        ({"num_threads": 2}, "num_threads: expected no options of an engine that is given"),
    ):
        with pytest.raises(ConfigError, match=message):
            OxillamaLM(lm.engine, **options)  # type: ignore[arg-type]


def test_the_benchmark_asks_the_same_of_all(tmp_path: Path) -> None:
    from lm_eval import evaluate
    from lm_eval.tasks import TaskManager, get_task_dict

    from benchmarks.harness import CHOICES, model_of, write_tasks

    with InferenceEngine.from_gguf(demo.DRAFT, num_threads=1) as engine:
        write_tasks(tmp_path, engine, 2, 2, 5)
        manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
        found = []
        for model in (model_of(engine, 8), model_of(engine, 1, alone=True)):
            answers = evaluate(model, get_task_dict(["choices1"], manager), bootstrap_iters=0)
            found.append([sample["filtered_resps"] for sample in answers["samples"]["choices1"]])
        questions = [(tmp_path / f"choices{number}.jsonl").read_text("utf-8") for number in range(2)]
    assert found[0] == found[1] and [len(each) for each in found[0]] == [CHOICES] * 2
    assert questions[0] != questions[1]
