"""Slots: sequences that stay under a number, and files of them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from oxillama import ConfigError, demo
from oxillama.apps.server.models import Hosted
from oxillama.base.config import SchedulerConfig
from oxillama.base.config.server import ServerConfig
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.cache.radix import common_length
from tests.support.server import Client, answer_of, bearer, serving, serving_models
from tests.support.waiting import idle, stopped, until

PROMPT = "Once upon a time there was a fox."
OTHER = "Once upon a time there was an owl."
BODY = {"prompt": PROMPT, "temperature": 0, "n_predict": 8}


def new_engine(**options: Any) -> InferenceEngine:
    scheduler = SchedulerConfig(max_sequences=4)
    return InferenceEngine.from_gguf(demo.STORY, num_threads=1, scheduler=scheduler, **options)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with serving(new_engine(), slot_save_path=tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    with new_engine() as engine:
        return {text: engine.generate(text, temperature=0, max_tokens=8) for text in (PROMPT, OTHER)}


def complete(client: Client, prompt: str = PROMPT, id_slot: int = 1, **fields: Any) -> Any:
    answer = client.ask("/completion", {**BODY, "prompt": prompt, "id_slot": id_slot, **fields}, status=200)
    return answer.json


def busy(client: Client) -> list[bool]:
    """Which slots are processing."""
    return [slot["is_processing"] for slot in client.ask("/slots").json]


def test_a_slot_goes_on(client: Client, texts: dict[str, str]) -> None:
    tokens = {text: client.hosted.ready().tokenizer.encode(text) for text in (PROMPT, OTHER)}
    n, shared = len(tokens[PROMPT]), common_length(*tokens.values())
    assert 0 < shared < n
    found = complete(client)
    assert (found["content"], found["id_slot"]) == (texts[PROMPT], 1)
    assert (found["timings"]["cache_n"], found["timings"]["prompt_n"]) == (0, n)
    for prompt, n_cached in ((OTHER, shared), (OTHER, len(tokens[OTHER]) - 1), (PROMPT, shared)):
        found = complete(client, prompt)
        assert found["content"] == texts[prompt]
        assert found["timings"]["cache_n"] == n_cached
    longer = complete(client, PROMPT + texts[PROMPT], n_predict=1)
    assert longer["timings"]["cache_n"] >= n + 6  # the text stays, too


def test_a_stream_in_a_slot(client: Client, texts: dict[str, str]) -> None:
    events = client.ask("/completion", {**BODY, "id_slot": 3, "stream": True}).events
    assert "".join(event["content"] for event in events) == texts[PROMPT]
    assert {event["id_slot"] for event in events} == {3}
    assert client.ask("/slots").json[3]["n_tokens"] == events[-1]["tokens_evaluated"] + 8


def test_save_restore_erase(client: Client, texts: dict[str, str], tmp_path: Path) -> None:
    n = complete(client)["tokens_evaluated"]
    saved = client.ask("/slots/1?action=save", {"filename": "fox.bin"}).json
    assert (saved["id_slot"], saved["filename"], saved["n_saved"]) == (1, "fox.bin", n + 7)
    assert saved["n_written"] == (tmp_path / "fox.bin").stat().st_size
    assert saved["timings"]["save_ms"] > 0
    complete(client, OTHER)
    restored = client.ask("/slots/0?action=restore", {"filename": "fox.bin"}).json
    assert (restored["id_slot"], restored["n_restored"]) == (0, n + 7)
    assert restored["n_read"] == saved["n_written"]
    found = complete(client, PROMPT, 0)
    assert (found["content"], found["timings"]["prompt_n"]) == (texts[PROMPT], 1)
    assert client.ask("/slots/0?action=erase", method="POST").json == {"id_slot": 0, "n_erased": n + 8}
    assert complete(client, PROMPT, 0)["timings"]["prompt_n"] == n
    assert client.ask("/slots/2?action=erase", method="POST").json["n_erased"] == 0


def test_a_file_takes_the_place_and_the_memory_of_a_slot(client: Client) -> None:
    complete(client)
    client.ask("/slots/1?action=save", {"filename": "fox.bin"})
    (hosted,) = client.models
    slot = hosted.slots.find(hosted.engine, 1, "")
    before = slot.session
    assert before is not None
    assert client.ask("/slots/1?action=restore", {"filename": "fox.bin"}).status == 200
    assert slot.session is not before
    with pytest.raises(ConfigError, match="closed"):
        before.append([5])


def test_a_slot_goes_on_in_another_process(client: Client, texts: dict[str, str], tmp_path: Path) -> None:
    complete(client)
    client.ask("/slots/1?action=save", {"filename": "fox.bin"})
    with serving(new_engine(), slot_save_path=tmp_path) as other:
        assert other.ask("/slots/2?action=restore", {"filename": "fox.bin"}).status == 200
        found = complete(other, PROMPT, 2)
        assert (found["content"], found["timings"]["prompt_n"]) == (texts[PROMPT], 1)
    with serving(demo.DRAFT, slot_save_path=tmp_path) as other:
        answer = other.ask("/slots/2?action=restore", {"filename": "fox.bin"})
        assert answer.refusal("param") == (400, "filename")


def test_files_are_in_the_folder(client: Client, tmp_path: Path) -> None:
    complete(client)
    outside = ["../x", "/etc/passwd", "a/b", "a\\b", "..", ".hidden", "-a", "", "a" * 201]
    for name in (*outside, "a\0b", "ä", "é", "a\n", "a b", "a:b"):
        for action in ("save", "restore"):
            answer = client.ask(f"/slots/1?action={action}", {"filename": name})
            assert answer.refusal("param") == (400, "filename"), name
            assert "letters, digits" in answer.error["message"]
    client.ask("/slots/1?action=save", {"filename": "a" * 200}, status=200)
    assert (tmp_path / ("a" * 200)).exists()


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/slots/1?action=load", {"filename": "x"}, "action: expected one of save, restore, erase, got"),
        ("/slots/1", {"filename": "x"}, "action: expected one of"),
        ("/slots/4?action=erase", {}, "id_slot: expected -1, or a number below 4, got 4"),
        ("/slots/-1?action=erase", {}, "id_slot: expected a number, got -1"),
        ("/slots/1?action=save", {"filename": "x"}, "id_slot: expected a slot with tokens, 1 has none"),
        ("/slots/1?action=restore", {"filename": "none"}, "filename: expected a saved slot of this model"),
        ("/slots/1?action=save", {}, "filename: expected a value, got none"),
        ("/slots/1?action=save", {"filename": "x", "path": "y"}, "path: is no option"),
    ],
)
def test_what_is_refused(client: Client, path: str, body: Any, message: str, tmp_path: Path) -> None:
    answer = client.ask(path, body, status=400)
    assert answer.error["message"].startswith(message)
    assert str(tmp_path) not in answer.text


def test_damaged_files(client: Client, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"no snapshot")
    assert client.ask("/slots/1?action=restore", {"filename": "x.bin"}).refusal("param") == (400, "filename")
    several = {**BODY, "prompt": [PROMPT, OTHER], "id_slot": 1}
    assert client.ask("/completion", several).error["param"] == "id_slot"


def test_a_server_without_a_folder(texts: dict[str, str]) -> None:
    with serving(new_engine()) as client:
        assert complete(client)["content"] == texts[PROMPT]
        answer = client.ask("/slots/1?action=save", {"filename": "x"})
        assert answer.refusal("type") == (501, "not_supported_error")
        page = {"Origin": "https://page.example"}
        assert client.ask("/slots/1?action=erase", method="POST", headers=page).status == 415
        assert client.ask("/slots/1?action=erase", method="POST").json["n_erased"] > 0
    with pytest.raises(ConfigError, match="slot_save_path: expected a folder, got '/nowhere'"):
        ServerConfig(slot_save_path="/nowhere")


def test_requests_in_one_slot_run_one_after_the_other(client: Client, texts: dict[str, str]) -> None:
    engine = client.hosted.ready()
    complete(client)
    prompts = (PROMPT, OTHER, PROMPT)
    with stopped(engine):
        asked = [client.begin("/completion", {**BODY, "prompt": each, "id_slot": 1}) for each in prompts]
        until(lambda: client.hosted.n_running == 3)
        until(lambda: busy(client) == [False, True, False, False])
    assert [answer_of(each).json["content"] for each in asked] == [texts[each] for each in prompts]


SMALL = 1 << 20
"""Bytes of keys and values: the room of four of the sequences below."""


def test_slots_give_way_to_others_and_go_on(tmp_path: Path) -> None:
    prompt = "Once upon a time " * 20
    body = {"prompt": prompt, "n_predict": 5, "temperature": 0}
    alice, bob = map(bearer, ("alice", "bob"))
    with new_engine() as alone:
        text = alone.generate(prompt, temperature=0, max_tokens=5)
    scheduler = SchedulerConfig(max_sequences=8)
    engine = InferenceEngine.from_gguf(
        demo.STORY, num_threads=1, kv_memory_limit=SMALL, prefix_cache_bytes=0, scheduler=scheduler
    )
    with serving(engine, api_keys=("alice", "bob"), slot_save_path=tmp_path) as client:
        found = [
            client.ask("/completion", {**body, "id_slot": id}, headers=alice).json for id in (*range(8), 7, 0)
        ]
        assert [each["content"] for each in found] == [text] * 10
        n = found[0]["tokens_evaluated"]
        assert found[8]["timings"]["cache_n"] == n - 1
        assert found[9]["timings"]["cache_n"] == 0  # its pages went to others
        assert client.ask("/completion", body, headers=bob).json["content"] == text
        for slot in client.ask("/slots", headers=alice).json:
            assert slot["n_tokens"] == n + 5
        for id in range(8):
            name = {"filename": "s"}
            saved = client.ask(f"/slots/{id}?action=save", name, headers=alice)
            assert saved.status == 200 and saved.json["n_saved"] in (n + 4, n + 5)
            assert client.ask("/slots/3?action=restore", name, headers=alice).status == 200
        for n_cached in (n - 1, 0):
            again = client.ask("/completion", {**body, "id_slot": 3}, headers=alice).json
            assert (again["content"], again["timings"]["cache_n"]) == (text, n_cached)
            assert client.ask("/slots/3?action=restore", name, headers=alice).status == 200
            for id in (0, 1, 2, 4, 5):  # which take its pages
                client.ask("/completion", {**body, "id_slot": id}, headers=alice)
        engine.model.check_integrity()


def test_busy_slots_of_a_key_leave_memory_to_others() -> None:
    """Requests that wait have the pages of their slots, beside the slots themselves."""
    body = {"prompt": "Once upon a time " * 20, "n_predict": 300, "ignore_eos": True, "stream": True}
    alice, bob = map(bearer, ("alice", "bob"))
    engine = InferenceEngine.from_gguf(
        demo.STORY, num_threads=1, kv_memory_limit=SMALL, scheduler=SchedulerConfig(max_sequences=6)
    )
    with serving(engine, api_keys=("alice", "bob")) as client:
        for id in range(6):
            client.ask("/completion", {**body, "id_slot": id, "n_predict": 1}, headers=alice)
        held = []
        for id in range(6):
            held.append(client.begin("/completion", {**body, "id_slot": id}, headers=alice))
        until(lambda: len(engine.model.scheduler.waiting) >= 2)
        for _ in range(5):
            found = client.ask("/v1/completions", {"prompt": body["prompt"], "max_tokens": 1}, headers=bob)
            assert found.status == 200, found.text
        assert len(engine.model.scheduler.waiting) >= 2
        for connection in held:
            connection.close()
        idle(engine)
        engine.model.check_integrity()


def test_a_client_that_leaves_its_slot(client: Client, texts: dict[str, str]) -> None:
    engine = client.hosted.ready()
    with stopped(engine):
        connection = client.begin("/completion", {**BODY, "id_slot": 1, "n_predict": 400, "ignore_eos": True})
        until(lambda: client.hosted.n_running == 1)
        connection.close()
    until(lambda: client.hosted.n_running == 0)
    idle(engine)
    found = complete(client)
    assert found["content"] == texts[PROMPT]
    engine.model.check_integrity()


def test_a_slot_with_other_adapters_begins_anew() -> None:
    with serving(new_engine(adapters=[(str(demo.PIRATE), 1.0)])) as client:
        with new_engine() as alone:
            expected = alone.generate(PROMPT, temperature=0, max_tokens=8)
            pirate = alone.generate(PROMPT, temperature=0, max_tokens=8, adapters=[demo.PIRATE])
        first = complete(client)
        assert first["content"] == pirate
        plain = complete(client, lora=[])
        assert (plain["content"], plain["timings"]["cache_n"]) == (expected, 0)
        assert complete(client, lora=[])["timings"]["prompt_n"] == 1


def test_how_many_are_busy(client: Client) -> None:
    complete(client)  # slot 1 is not empty
    assert client.ask("/slots?fail_on_no_slot=1").status == 200
    endless = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 4}
    connection, response = client.open("/v1/completions", endless)
    response.read(100)
    until(lambda: busy(client) == [True, False, True, True])
    connection.close()


def test_slots_go_with_their_model() -> None:
    def load() -> InferenceEngine:
        return new_engine()

    with serving_models(Hosted("a", load=load), Hosted("b", load=load), models_max=1) as client:
        assert complete(client)["timings"]["cache_n"] == 0
        found = client.ask("/slots?model=b")  # which loads nothing
        assert found.refusal("code") == (503, "not_loaded")
        assert client.ask("/completion", {"prompt": "a", "n_predict": 1, "model": "b"}).status == 200
        assert client.ask("/slots?model=b").json[1]["n_tokens"] == 0
        assert complete(client)["timings"]["cache_n"] == 0


def test_chats_in_a_slot(client: Client) -> None:
    path, body = "/v1/chat/completions", {"messages": [{"role": "user", "content": "A fox"}], "max_tokens": 6}
    body |= {"seed": 5, "n": 2}
    alone = [choice["message"] for choice in client.ask(path, body).json["choices"]]
    assert alone[0] != alone[1]
    for _ in range(2):
        answer = client.ask(path, {**body, "id_slot": 2})
        assert [choice["message"] for choice in answer.json["choices"]] == alone
    slot = client.ask("/slots").json[2]
    assert slot["n_tokens"] > 6 and not slot["is_processing"]
    one = {**body, "n": 1, "id_slot": 2}
    events = client.ask(path, {**one, "stream": True}).events
    assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events[:-1]) == alone[0]["content"]
    assert client.ask(path, one).json["timings"]["prompt_n"] == 1
    connection, response = client.open(path, {**one, "stream": True, "max_tokens": 400, "ignore_eos": True})
    assert b"role" in response.readline()
    connection.close()
    until(lambda: not any(busy(client)))
    assert client.ask(path, one).choice["message"] == alone[0]
    assert client.ask(path, {**body, "id_slot": 4}).error["param"] == "id_slot"


# --- clients that leave -------------------------------------------------------------------------------


def left(client: Client, seconds: float, body: dict[str, Any]) -> None:
    """A client that sends a request, and leaves after some seconds, answered or not."""
    connection = client.begin("/completion", body)
    time.sleep(seconds)
    connection.close()


def test_a_client_that_leaves_finds_its_slot_free(client: Client, texts: dict[str, str]) -> None:
    """The next request of the slot, sent at once, waits for the end of a text that nobody reads."""
    engine = client.hosted.ready()
    complete(client, n_predict=1)
    for stream in (False, True):
        connection = client.begin("/completion", {**BODY, "id_slot": 1, "n_predict": 400, "stream": stream})
        until(lambda: bool(engine.model.scheduler.running) and busy(client)[1])
        with stopped(engine):
            connection.close()
            asked = [
                client.begin("/completion", {**BODY, "prompt": prompt, "id_slot": 1})
                for prompt in (PROMPT + texts[PROMPT], OTHER)
            ]
            time.sleep(0.2)
        found = [answer_of(each).json for each in asked]
        assert found[1]["content"] == texts[OTHER]
        assert found[0]["content"] == complete(client, PROMPT + texts[PROMPT], -1)["content"]


def random_slot_use(client: Client, seed: int, n: int) -> int:
    """``n`` random operations on three slots; each whole text is that of a request without a slot.

    Returns the number of texts that were compared.
    """
    draw = random.Random(seed)
    beginnings = [PROMPT, OTHER, "Once upon a time", "The fox and the owl " * 8]
    alone: dict[str, str] = {}
    compared = 0
    for _ in range(n):
        id, kind = draw.randrange(3), draw.random()
        prompt = draw.choice(beginnings) + draw.choice(["", " One day", " He was red. One day he saw a bird"])
        if kind < 0.45:
            body = {**BODY, "prompt": prompt, "id_slot": id, "n_predict": 400, "stream": draw.random() < 0.5}
            left(client, draw.random() ** 3 * 0.1, body)
        elif kind < 0.9:
            if prompt not in alone:
                alone[prompt] = complete(client, prompt, -1)["content"]
            found = complete(client, prompt, id, stream=False)
            assert found["content"] == alone[prompt], prompt
            compared += 1
        else:
            action = draw.choice(["erase", "save", "restore"])
            answer = client.ask(f"/slots/{id}?action={action}", {"filename": "kept"})
            assert answer.status in (200, 400), answer.text
            assert "goes on" not in answer.text
    return compared


@pytest.mark.parametrize("n", [60, pytest.param(600, marks=pytest.mark.slow)])
def test_random_clients_that_leave_and_come_back(client: Client, n: int) -> None:
    """Four clients at a time, of which some leave in the middle of a text and go on at once."""
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: random_slot_use(client, seed, n), range(4)))
    assert sum(found) > n
    idle(client.hosted.ready())
    client.hosted.ready().model.check_integrity()
