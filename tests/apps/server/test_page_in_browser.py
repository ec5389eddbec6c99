"""The page in a real browser, against real engines: what a user does, and what can go wrong."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from oxillama import InferenceEngine, LoadError, demo
from oxillama.apps.server.models import Hosted
from tests.support.browser import Page
from tests.support.command_line import command, started
from tests.support.server import Client, serving, serving_models
from tests.support.tiny_file import write_tiny_model
from tests.support.tool_models import FRIEND as SCHEMA, ROOM
from tests.support.waiting import idle, stopped


@pytest.fixture(scope="module")
def chat(folder: Path, browser: Page) -> Iterator[Client]:
    """A model with a chat template, which goes on until it is stopped."""
    with serving(write_tiny_model(folder / "chat.gguf", ends=False, context_length=30_000), "tiny") as client:
        yield client


@pytest.fixture
def page(checked: Page, chat: Client) -> Page:
    """The page in a browser that has not opened the page before."""
    checked.ready(chat.server.url)
    return checked


@pytest.fixture
def there(checked: Page, chat: Client) -> Page:
    """The page of that model, which other tests may have used."""
    if not checked.driver.current_url.startswith(chat.server.url):
        checked.ready(chat.server.url)
    return checked


@pytest.fixture(scope="module")
def plain(folder: Path, browser: Page) -> Iterator[Client]:
    """The demo model without its chat template."""
    model = folder / "plain.gguf"
    model.write_bytes(demo.STORY.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_nothing_"))
    with serving(model) as client:
        yield client


def test_a_conversation_is_written_and_kept(page: Page) -> None:
    assert page.one("#model-name").text == "tiny"
    page.set(more={"choices": ["The **fox** said:\n\n- hello\n- world"]}, temperature=0)
    assert page.ask("hello there") == "The fox said:helloworld"
    assert [e.text for e in page.all(".message.assistant :is(strong, li)")] == ["fox", "hello", "world"]
    assert page.texts(".message.user .text") == ["hello there"]
    numbers = page.one(".numbers").text
    assert "tokens/s" in numbers and "prompt tokens cached" in numbers
    page.ask("again")
    before = [page.texts(".text"), page.texts(".numbers")]
    assert not page.texts(".numbers")[1].startswith("0 of")
    page.reload()
    assert [page.texts(".text"), page.texts(".numbers")] == before
    assert page.driver.title == "hello there – oxillama"
    assert page.one("#conversations li.current").text == "hello there"


@pytest.mark.slow
def test_conversations_are_found_renamed_and_deleted(page: Page) -> None:
    page.ask("the first", "zebra")
    page.press("New conversation")
    assert page.answers == []
    page.ask("the second", "giraffe")
    assert page.texts("#conversations .open") == ["the second", "the first"]
    page.one("#search").send_keys("zebr")
    page.until(lambda: page.texts("#conversations .open") == ["the first"])
    page.press("the first", "#conversations")
    page.until(lambda: page.answers == ["zebra"])
    page.one("#search").clear()
    page.press("Rename: the first")
    page.one("#new-title").clear()
    page.one("#new-title").send_keys("Stripes")
    page.press("Rename", "dialog")
    page.until(lambda: sorted(page.texts("#conversations .open")) == ["Stripes", "the second"])
    page.driver.back()
    page.until(lambda: page.answers == ["giraffe"])
    page.press("Delete: the second")
    page.press("Delete", "dialog")
    page.until(lambda: page.texts("#conversations .open") == ["Stripes"] and not page.answers)
    page.reload()
    assert page.texts("#conversations .open") == ["Stripes"]


def test_a_text_can_be_stopped_and_stays(page: Page, chat: Client) -> None:
    page.send("go on")
    page.until(lambda: page.answers and len(page.answers[0]) > 100)
    assert page.is_writing
    page.keys("Escape")
    text = page.ended()
    idle(chat.hosted.ready())
    assert len(text) > 100 and page.one(".numbers").text.endswith("stopped")
    page.reload()
    assert page.answers == [text]
    page.press("Another answer")
    page.until(lambda: len(page.answers[0]) > 10)
    page.one("#stop").click()
    page.ended()
    assert page.one(".branch-count").text == "2/2"


def test_an_empty_answer_is_told(page: Page) -> None:
    page.set(more={"regex": "(zq)?", "logit_bias": {"122": -100}})
    assert page.ask("hello") == "The model wrote nothing."
    assert not page.all(".message.assistant [aria-label=Copy]")


@pytest.mark.slow
def test_the_wait_for_the_first_token_is_told(page: Page, chat: Client) -> None:
    with stopped(chat.hosted.ready()):
        page.send("hello")
        page.until(lambda: re.search(r"The model reads: [1-9]\d* s", " ".join(page.texts(".waiting"))))
        page.one("#stop").click()
        assert page.ended() == ""
    idle(chat.hosted.ready())
    assert page.texts(".message.user .text") == ["hello"] and not page.all(".waiting")


@pytest.mark.slow
def test_what_was_written_when_the_page_was_left_is_kept(page: Page, chat: Client) -> None:
    page.send("go on")
    texts = "const [c] = await store.all(); return c ? c.messages.map((m) => m.content) : []"
    kept = page.until(lambda: [t for t in page.stored(texts)[1:] if len(t) > 100])
    page.reload()
    idle(chat.hosted.ready())
    page.until(lambda: page.texts(".message.user .text") == ["go on"] and not page.is_writing)
    answer = page.stored_apart(texts)[1]
    assert answer.startswith(kept[0]) and page.one(".numbers").text.endswith("stopped")
    assert page.texts(".fault-box") == ["", ""]  # nobody was at fault


@pytest.mark.slow
def test_a_reload_opens_the_conversation_that_another_tab_writes(page: Page, chat: Client) -> None:
    """News that come while the page begins draw it, and the empty conversation has no address."""
    page.ask("hello", "one")
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    page.driver.get(f"{chat.server.url}/health")
    page.run(
        """const channel = new BroadcastChannel("oxillama"), turn = new MessageChannel();
        const began = performance.now();
        let last = 0;
        turn.port1.onmessage = () => {
            const now = performance.now();
            if (now > last + 1) channel.postMessage({ id: "another", writing: true }), (last = now);
            if (now < began + 15000) turn.port2.postMessage(0); // at once: timers of a hidden tab are late
        };
        turn.port2.postMessage(0);"""
    )
    other = page.driver.current_window_handle
    page.driver.switch_to.window(first)
    page.reload()
    page.until(lambda: page.texts(".message.user .text") == ["hello"])
    page.driver.switch_to.window(other)
    page.driver.close()
    page.driver.switch_to.window(first)


@pytest.mark.slow
def test_a_conversation_that_cannot_be_read(page: Page) -> None:
    page.ask("hello", "one")
    page.press("New conversation")
    page.stored_apart("const [c] = await store.all(); c.version = 9; await store.save(c)")
    page.press("hello", "#conversations")
    page.until(lambda: "conversation.version: expected 1, got 9" in "".join(page.texts(".toast")))
    assert page.answers == [] and page.texts("#conversations .open") == ["hello"]


@pytest.mark.slow
def test_edits_and_other_answers_are_branches(page: Page) -> None:
    page.record()
    page.ask("first", "one")
    page.ask("next")
    page.set(more={"choices": ["two"]})
    page.press("Another answer", ".message:last-child")
    page.until(lambda: page.answers == ["one", "two"] and not page.is_writing)
    assert [m["content"] for m in page.sent[-1]["messages"]] == ["first", "one", "next"]
    page.hover(page.one(".message.user"))
    page.press("Edit", ".message.user")
    box = page.one("form.edit textarea")
    box.clear()
    box.send_keys("changed", "\ue007")
    page.until(lambda: page.answers == ["two"] and not page.is_writing)
    assert page.texts(".message.user .text") == ["changed"]
    page.press("Earlier version", ".message.user")
    page.until(lambda: page.answers == ["one", "two"])
    assert page.texts(".branch-count") == ["1/2", "2/2"]
    page.press("Earlier version", ".message:last-child")
    page.until(lambda: page.answers == ["one", "one"])
    page.reload()
    assert page.answers == ["one", "one"] and page.texts(".branch-count") == ["1/2", "1/2"]
    page.press("Edit the answer", ".message:last-child")
    box = page.one("form.edit textarea")
    box.clear()
    box.send_keys("mine")
    page.press("Keep")
    page.until(lambda: page.answers == ["one", "mine"])
    assert page.texts(".branch-count") == ["1/2", "3/3"]


@pytest.mark.slow
def test_settings_are_in_the_request(page: Page) -> None:
    page.record()
    page.press("Settings")
    assert float(page.one("#set-temperature").get_property("value")) == pytest.approx(0.8, abs=0.21)
    page.set(system="Be brief.", temperature="0.35", seed="7", max_tokens="3", stop="qq\nzz", top_k="1")
    page.one("#set-probabilities").click()
    page.ask("hello")
    body = page.sent[0]
    assert body.pop("messages") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
    ]
    assert body == {
        "model": "tiny",
        "return_progress": True,
        "temperature": 0.35,
        "seed": 7,
        "max_tokens": 3,
        "top_k": 1,
        "stop": ["qq", "zz"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    numbers = page.one(".numbers").text
    assert numbers.startswith("3 tokens") and "limit of tokens reached" in numbers
    chips = page.texts(".chip")
    assert "System prompt" in chips and "Temperature 0.35" in chips
    page.press("Back to the server's settings")
    assert page.texts(".chip") == []


def test_probabilities_give_way_to_jump_forward(page: Page) -> None:
    """The page asks for probabilities by default, but not if the user asks for what excludes them."""
    page.record()
    page.set(schema=SCHEMA, more={"jump_forward": True})
    jsonschema.validate(json.loads(page.ask("who?")), SCHEMA)
    page.set(more={"jump_forward": False})
    page.ask("who?")
    assert [body.get("logprobs") for body in page.sent] == [None, True]


def test_a_schema(page: Page) -> None:
    page.set(schema=SCHEMA)
    jsonschema.validate(json.loads(page.ask("who?")), SCHEMA)
    page.set(schema='{"type": ')
    page.send("who else?")
    fault = page.one("[data-fault=schema]")
    assert fault.text.startswith("Expected a JSON schema as JSON")
    assert page.run("return document.activeElement.name") == "schema"
    assert len(page.answers) == 1 and page.one("#prompt").get_property("value") == "who else?"


def test_calls_are_shown_and_answered(page: Page, caller: Client) -> None:
    page.ready(caller.server.url)
    page.record()
    more = {"tool_choice": "required", "parallel_tool_calls": False}
    page.set(tools=[ROOM], more=more, seed="1", max_tokens="300")
    page.send("open a room")
    call = page.one(".call")
    assert "room" in call.text and '"n":' in call.text
    page.set(more={"tool_choice": "none"}, max_tokens="5")
    page.until(lambda: not page.is_writing)
    page.one(".call textarea").send_keys("it is <open>")
    page.press("Send the result")
    page.ended(2)
    first, second = page.sent
    assert first["tools"] == [{"type": "function", "function": ROOM}]
    asked, answered = second["messages"][-2:]
    (made,) = asked["tool_calls"]
    assert made["function"]["name"] == "room"
    assert answered == {"role": "tool", "tool_call_id": made["id"], "content": "it is <open>"}
    assert page.texts(".message.tool .who, .message.tool .text") == ["Result of room", "it is <open>"]
    assert not page.all(".call textarea")
    page.reload()
    assert page.one(".call").text.count("room") and not page.all(".call textarea")


@pytest.mark.slow
def test_reasoning_is_folded(page: Page, reasoner: Client) -> None:
    page.ready(reasoner.server.url)
    page.set(max_tokens="12", seed="5")
    assert page.ask("why?") == ""
    assert page.one(".reasoning summary").text == "Thought"
    assert not page.all(".reasoning-text")
    page.one(".reasoning summary").click()
    assert page.one(".reasoning-text").text


@pytest.mark.slow
def test_thinking_is_switched_and_limited(page: Page, chat: Client, thinker: Client) -> None:
    page.ready(thinker.server.url)
    page.record()
    page.set(max_tokens="12", seed="5", reasoning_budget="3")
    assert page.ask("why?") and page.one(".reasoning summary").text.startswith("Thought")
    page.set(thinking="off")
    assert page.ask("why?") and len(page.all(".reasoning summary")) == 1
    assert "Thinking off" in page.texts(".chip")
    sent = page.sent
    assert [body.get("chat_template_kwargs") for body in sent] == [None, {"enable_thinking": False}]
    assert [body["reasoning_budget"] for body in sent] == [3, 3]
    page.ready(chat.server.url)  # whose template knows no reasoning
    assert not page.run("return document.querySelector('[name=thinking], [name=reasoning_budget]')")


@pytest.mark.slow
def test_an_answer_goes_on(page: Page, chat: Client) -> None:
    page.record()
    page.set(max_tokens="5", temperature="0")
    first = page.ask("hello")
    page.press("Continue")
    page.until(lambda: len(page.answers[0]) > len(first) and not page.is_writing)
    begun = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": first}]
    body = {"messages": begun, "continue_final_message": True, "temperature": 0, "max_tokens": 5}
    rest = chat.ask("/v1/chat/completions", body).choice["message"]["content"]
    assert page.answers == [first + rest]
    assert page.one(".numbers").text.startswith("10 tokens") and not page.all(".branch-count")
    asked = page.sent[1]
    assert asked["messages"][-1] == {"role": "assistant", "content": first}
    assert (asked["continue_final_message"], asked["add_generation_prompt"]) == (True, False)
    page.press("Probabilities of the tokens")
    assert len(page.all(".token")) == 10
    page.set(more={"choices": ["whole"]}, max_tokens="")
    page.ask("and")
    shown = "return [...document.querySelectorAll('.foot button')].filter((b) => b.checkVisibility())"
    assert "Continue" not in page.run(f"{shown}.map((b) => b.getAttribute('aria-label'))")


def test_the_context_in_use_and_the_servers_rates(page: Page, chat: Client) -> None:
    assert not page.all("#context")
    page.set(max_tokens="7")
    page.ask("hello world")
    body = {"messages": [{"role": "user", "content": "hello world"}], "max_tokens": 7}
    used = chat.ask("/v1/chat/completions", body).json["usage"]["total_tokens"]
    assert page.one("#context-text").text == f"{used} of 30,000 tokens"
    assert float(page.one("#context").get_property("value")) == used
    event = {"choices": [], "usage": {"completion_tokens": 9, "prompt_tokens": 5}}
    event["timings"] = {"predicted_per_second": 12.5, "prompt_per_second": 345.6}
    script = """const message = {content: ""}; new m.Answer(message).take(args[0]); return message.stats"""
    stats = page.call("./answer.js", script, event)
    assert (stats["rate"], stats["promptRate"], stats["used"]) == (12.5, 345.6, 14)
    assert "prompt" in page.one(".numbers").text.split(" · ")[2]


@pytest.mark.slow
def test_files_go_into_the_message(page: Page, folder: Path) -> None:
    page.record()
    page.set(more={"choices": ["read"]})
    texts = {"a.py": "print('```')\n", "notes é.md": "<b>x</b>", "gone.txt": "gone"}
    wrong = {
        "empty.txt": (b" \n", "is empty"),
        "data.bin": (b"\xff\xfe\x00", "is neither"),
        "zero.txt": (b"a\0b", "is neither"),
        "large.txt": (b"a" * 1_000_001, "has 1.0 MB of text"),
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())
    for name, (data, _) in wrong.items():
        (folder / name).write_bytes(data)
    attach = page.driver.find_element("css selector", "#attach-file")
    attach.send_keys("\n".join(str(folder / name) for name in (*texts, *wrong)))
    page.until(lambda: page.texts(".chip.file") == list(texts) and len(page.texts(".toast")) == 4)
    told = "".join(page.texts(".toast"))
    for name, (_, reason) in wrong.items():
        assert f"{name} {reason}" in told
    page.press("Remove gone.txt")
    page.one("#prompt").send_keys("What is it?", "\ue007")
    page.ended()
    expected = "What is it?\n\na.py:\n\n````py\nprint('```')\n````\n\nnotes é.md:\n\n```md\n<b>x</b>\n```"
    assert page.sent[0]["messages"][-1]["content"] == expected
    assert page.texts(".message.user .text") == ["What is it?"] and not page.all("#files .chip")
    assert page.texts(".message .chip.file") == ["a.py", "notes é.md"]
    page.press("a.py", ".message")
    assert page.one("dialog pre").text == texts["a.py"].strip()
    page.press("Close", "dialog")
    page.until(lambda: not page.all("dialog"))
    page.hover(page.one(".message.user"))
    page.press("Edit", ".message.user")
    page.one("form.edit textarea").send_keys("!", "\ue007")
    page.until(lambda: page.texts(".message.user .text") == ["What is it?!"] and not page.is_writing)
    assert page.sent[-1]["messages"][-1]["content"] == expected.replace("it?", "it?!")
    page.reload()
    assert page.texts(".message .chip.file") == ["a.py", "notes é.md"]
    attach = page.driver.find_element("css selector", "#attach-file")
    (folder / "x.pdf").write_bytes(b"%PDF-nothing")
    attach.send_keys(str(folder / "x.pdf"))
    page.until(lambda: "x.pdf was not read. pdf: expected " in "".join(page.texts(".toast")))
    assert not page.all("#files .chip")
    toast = page.one(".toast").rect
    for name in ("send", "context", "prompt"):
        place = page.run("return document.getElementById(arguments[0]).getBoundingClientRect().top", name)
        assert toast["y"] + toast["height"] < place, name


PASTE = """const data = new DataTransfer();
    data.setData("text/plain", arguments[0]);
    const event = new ClipboardEvent("paste", { bubbles: true, cancelable: true });
    Object.defineProperty(event, "clipboardData", { value: data });
    return document.getElementById("prompt").dispatchEvent(event)"""


@pytest.mark.slow
def test_a_long_text_that_is_pasted_becomes_a_file(page: Page) -> None:
    assert page.run(PASTE, "short")  # the browser inserts it
    for i, name in enumerate(("pasted.txt", "pasted-2.txt")):
        assert not page.run(PASTE, "line\n" * 2000)
        page.until(lambda n=i + 1: len(page.texts("#files .chip")) == n)  # type: ignore[misc]
        assert page.texts("#files .chip")[-1] == name
    page.press("Remove pasted-2.txt")
    page.press("pasted.txt", "#files")
    page.press("Put it into the text", "dialog")
    page.until(lambda: not page.all("#files .chip"))
    assert page.one("#prompt").get_property("value") == "line\n" * 2000


def test_a_question_in_the_address(page: Page, chat: Client) -> None:
    page.driver.get(f"{chat.server.url}/?q=What%20is%20%3Cb%3E%3F")
    page.one(".status.ready")
    assert page.one("#prompt").get_property("value") == "What is <b>?"
    assert not page.all(".message") and page.run("return location.search") == ""


@pytest.mark.slow
def test_an_error_has_the_button_that_helps(page: Page) -> None:
    page.set(more={"temprature": 1})
    page.send("hello")
    page.press("Open the settings", ".fault-box")
    assert page.all("#settings")
    page.set(more="")
    page.press("Close the settings")
    page.press("New conversation")
    error = {"code": "context_length_exceeded", "n_prompt_tokens": 40_000, "n_ctx": 30_000}
    page.run(
        "window.fetch = async () => new Response(arguments[0], { status: 400 })",
        json.dumps({"error": {"message": "so", **error}}),
    )
    page.send("hello")
    assert page.one(".fault-box p").text == "The conversation has 40,000 tokens, and 30,000 fit."
    page.press("Ask in a new conversation", ".fault-box")
    page.until(lambda: not page.all(".message"))
    assert page.one("#prompt").get_property("value") == "hello"


@pytest.mark.slow
def test_what_is_looked_at_stays_in_view(page: Page) -> None:
    page.set(more={"choices": ["- a\n" * 12]})
    page.run("document.getElementById('prompt').value = 'word '.repeat(300)")
    page.ask("end")
    left = """const e = document.getElementById("scroller");
        return e.scrollHeight - e.scrollTop - e.clientHeight"""
    page.until(lambda: page.run(left) < 2)
    page.press("Settings")
    page.until(lambda: page.run(left) < 2)
    inside = """const panel = document.getElementById("settings");
        const { right } = panel.getBoundingClientRect();
        return [...panel.querySelectorAll("input, select, textarea")]
            .filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > right).map((e) => e.id)"""
    assert page.run(inside) == []
    page.press("Close the settings")
    page.one("#prompt").click()
    page.keys("Arrow_Up")
    seen = """const { top, bottom } = document.querySelector("form.edit").getBoundingClientRect();
        const box = document.getElementById("scroller").getBoundingClientRect();
        return top >= box.top && bottom <= box.bottom"""
    page.until(lambda: page.all("form.edit") and page.run(seen))
    page.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.run(seen)


def test_a_text_that_grows_is_followed_unless_the_reader_has_scrolled_up(page: Page) -> None:
    page.set(more={"choices": ["- a\n" * 60]})
    page.ask("hello")
    scroll = """const e = document.getElementById("scroller"), tall = document.createElement("div");
        const ends = arguments[0];
        if (ends) document.getElementById("to-end").click();
        else e.scrollTop = 0;
        tall.style.height = "400px"; // grows before the event of the scrolling comes
        document.getElementById("thread").append(tall);
        return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() =>
            done([e.scrollTop, e.scrollHeight - e.scrollTop - e.clientHeight]))))"""
    above, below = page.run(scroll, False)
    assert above == 0 and below > 400
    page.until(lambda: page.one("#to-end").is_displayed())
    above, below = page.run(scroll, True)
    assert above > 400 and below < 2


@pytest.mark.slow
def test_slow_drawings_take_a_bounded_share_of_the_time(page: Page) -> None:
    page.ask("hello", "one")
    script = """const message = { id: "a", role: "assistant", content: "", parent: null, chosen: null };
        const open = { chosen: "a", messages: [message] };
        const thread = new m.Thread({});
        thread.show(open, "a", false, document.createElement("p"));
        const view = thread.views.get("a"), plain = view.draw, drawn = [];
        view.draw = function () {
            const began = performance.now();
            plain.call(this);
            while (performance.now() < began + args[0]); // a drawing that takes long
            drawn.push(performance.now() - began);
        };
        const began = performance.now();
        while (performance.now() < began + 2000) {
            message.content += "x";
            thread.update(message);
            await new Promise((done) => setTimeout(done, 5));
        }
        const share = drawn.slice(0, -1).reduce((a, b) => a + b, 0) / (performance.now() - began);
        message.content += "!";
        thread.show(open, "", false, document.createElement("p"));
        return [drawn.length, share, view.text.textContent === message.content]"""
    n, share, ended = page.call("./thread.js", script, 100)
    assert n >= 2 and share <= 0.25 and ended
    n, _, ended = page.call("./thread.js", script, 0)
    assert n >= 4 and ended


@pytest.mark.slow
def test_the_progress_of_a_long_prompt(page: Page, folder: Path) -> None:
    model = write_tiny_model(folder / "slow.gguf", ends=False, context_length=200_000)
    with serving(InferenceEngine.from_gguf(model, num_threads=1, prefill_chunk_size=4), "slow") as client:
        page.ready(client.server.url)
        page.set(max_tokens="3")
        page.run("document.getElementById('prompt').value = 'hello world '.repeat(15000)")
        page.one("#prompt").send_keys("\ue007")
        shown = page.until(lambda: [t for t in page.texts(".waiting") if " left" in t])[0]
        assert re.fullmatch(r"[\d,]+ of [\d,]+ prompt tokens · \d+ s left", shown), shown
        bar = page.run("const e = document.querySelector('.waiting progress'); return [e.value, e.max]")
        assert 0 < bar[0] < bar[1]
        page.one("#stop").click()
        page.ended()
        idle(client.hosted.ready())


@pytest.mark.slow
def test_the_probabilities_of_a_token(page: Page, chat: Client) -> None:
    page.set(seed="3", max_tokens="6")
    page.ask("hello")
    body = {"messages": [{"role": "user", "content": "hello"}], "seed": 3, "max_tokens": 6}
    body |= {"logprobs": True, "top_logprobs": 5}
    known = chat.ask("/v1/chat/completions", body).choice["logprobs"]["content"]
    page.press("Probabilities of the tokens")
    tokens = page.all(".token")
    assert len(tokens) == 6
    for i in (0, 4):
        page.hover(tokens[i])
        rows = [row.text for row in page.all(".tip tr")]
        assert len(rows) in (5, 6)
        (taken,) = [row.text for row in page.all(".tip .taken")]
        share = 100 * math.exp(known[i]["logprob"])
        assert taken.endswith("<0.1%" if share < 0.1 else f"{share:.1f}%")
        best = 100 * math.exp(known[i]["top_logprobs"][0]["logprob"])
        assert rows[0].endswith(f"{best:.1f}%")
    page.run("document.querySelector('.token').focus()")
    page.keys("Arrow_Right", "Arrow_Right")
    assert page.run("return document.activeElement === document.querySelectorAll('.token')[2]")
    assert page.run("return document.activeElement.getAttribute('aria-describedby')") == "tip"
    page.press("Probabilities of the tokens")
    assert not page.all(".token")


DANGEROUS = """<script>window.pwned = 1</script><img src=x onerror="window.pwned = 2">

[one](javascript:window.pwned=3) [two](data:text/html,<script>1</script>) ![three](https://example.org/x.png)
<a href="javascript:1" onclick="window.pwned=4">four</a> `<b>five</b>`

```html"><img src=x onerror=window.pwned=5>
<svg onload="window.pwned = 6">
```"""


def test_long_code_has_no_colours(there: Page) -> None:
    script = """const shown = m.codeView("python", "if True:\\n".repeat(args[0]));
        return [shown.querySelectorAll("code span").length, shown.textContent.includes("if True")]"""
    few, many = (there.call("./markdown_view.js", script, n) for n in (5, 12_000))
    assert few[0] >= 10 and many[0] == 0 and few[1] and many[1]


def test_text_of_a_model_is_text(page: Page) -> None:
    page.set(more={"choices": [DANGEROUS]}, system="<img src=x onerror='window.pwned = 7'>")
    shown = page.ask("<img src=x onerror='window.pwned = 8'>")
    for part in (
        "<script>window.pwned = 1</script>",
        '<img src=x onerror="window.pwned = 2">',
        "<svg onload=",
    ):
        assert part in shown
    for user in (".message.user .text", "#conversations .open"):
        assert page.texts(user)[0].startswith("<img src=x")
    page.press("Probabilities of the tokens")
    page.reload()
    inside = "return document.querySelectorAll('#thread :is(script, img, svg:not(.icon), b)').length"
    assert page.run(inside) == 0
    links = page.run("return [...document.querySelectorAll('#thread a')].map(a => [a.href, a.rel])")
    assert links == [["https://example.org/x.png", "noopener noreferrer nofollow"]]
    assert page.run("return window.pwned ?? null") is None


@pytest.mark.parametrize(
    ("source", "markup"),
    [
        ("a *b* **c** `d` ~~e~~", "<p>a <em>b</em> <strong>c</strong> <code>d</code> <del>e</del></p>"),
        ("***a*** **b *c* d**", "<p><em><strong>a</strong></em> <strong>b <em>c</em> d</strong></p>"),
        ("2 * 3 * 4, snake_case_name, \\*a\\*", "<p>2 * 3 * 4, snake_case_name, *a*</p>"),
        ("**open and *open", "<p>**open and *open</p>"),
        ("``a ` b`` `<i>` ``` `", "<p><code>a ` b</code> <code>&lt;i&gt;</code> ``` `</p>"),
        ("# A\ntext\n## B ##", "<h3>A</h3><p>text</p><h4>B</h4>"),
        ("a\nb\n\nc", "<p>a<br>b</p><p>c</p>"),
        (
            "- a\n- b\n  - c\n1. d\n2. e",
            '<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><ol start="1"><li>d</li><li>e</li></ol>',
        ),
        ("3. a\n\n4. b", '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>'),
        ("1. a\n\n   b\n2. c", '<ol start="1"><li><p>a</p><p>b</p></li><li><p>c</p></li></ol>'),
        ("> a\nb\n> - c", "<blockquote><p>a<br>b</p><ul><li>c</li></ul></blockquote>"),
        ("---\n***", "<hr><hr>"),
        ("<b>x</b> & y", "<p>&lt;b&gt;x&lt;/b&gt; &amp; y</p>"),
        ("[a](b) [c](javascript:x)", "<p><span>a</span> <span>c</span></p>"),
        ("[a", "<p>[a</p>"),
        ("", ""),
    ],
)
def test_markdown(there: Page, source: str, markup: str) -> None:
    assert drawn(there, [source]) == markup


def test_markdown_of_other_kinds(page: Page) -> None:
    table = drawn(page, ["| a | b\\|c |\n|---|--:|\n| `x\\|y` | 2 |\n| 3 |"])
    assert "<thead><tr><th>a</th><th>b|c</th></tr></thead>" in table
    assert "<tr><td><code>x|y</code></td><td>2</td></tr><tr><td>3</td><td></td></tr>" in table
    tasks = drawn(page, ["- [x] a\n- [ ] b"])
    assert tasks.count("<input") == 2 and tasks.count("checked") == 1
    code = drawn(page, ["```python\nif 1: # <x>\n```\nafter"])
    assert "<span>python</span>" in code and "<p>after</p>" in code
    assert "<span>if</span> <span>1</span>: <span># &lt;x&gt;</span>" in code
    links = drawn(page, ["See https://example.org/a_(b). <mailto:x> <a@b.org>"])
    assert 'href="https://example.org/a_(b"' in links or 'href="https://example.org/a_(b)"' in links
    assert 'href="mailto:a@b.org"' in links


def test_markdown_that_grows_is_the_markdown_of_the_whole(page: Page) -> None:
    text = DANGEROUS + "\n\n# A\n\n- a\n  - b\n\n| a | b |\n|--|--|\n| 1 | 2 |\n\n> q **x**\n\n1. z"
    parts = [text[:i] for i in range(0, len(text), 7)]
    assert drawn(page, [*parts, text]) == drawn(page, [text])


FORMULA = {
    r"\(a_1 b\)": "<math><mrow><msub><mi>a</mi><mn>1</mn></msub><mi>b</mi></mrow></math>",
    r"$x$": "<math><mi>x</mi></math>",
    r"\[x\]": '<span><math display="block"><mi>x</mi></math></span>',
}
INLINE, DOLLARS, DISPLAYED = FORMULA.values()


@pytest.mark.parametrize(
    ("source", "markup"),
    [
        (r"so \(a_1 b\) *is*", f"<p>so {INLINE} <em>is</em></p>"),
        ("$x$, **$x$**", f"<p>{DOLLARS}, <strong>{DOLLARS}</strong></p>"),
        ("a\n\\[\nx\n\\]\nb", f"<p>a</p>{DISPLAYED}<p>b</p>"),
        ("$$\n\nx\n\n$$", DISPLAYED),
        ("$$x$$ a", f"<p>{DISPLAYED} a</p>"),
        ("- a\n  $$\n  x\n  $$\n- b", f"<ul><li>a{DISPLAYED}</li><li>b</li></ul>"),
        (r"`\(a\)` `$x$`", r"<p><code>\(a\)</code> <code>$x$</code></p>"),
        (r"\(\) \[", r"<p><math></math> \[</p>"),
        (r"\(open *a*", r"<p>\(open <em>a</em></p>"),
        (r"a\) and \] $$", r"<p>a\) and \] $$</p>"),
        (r"\\(a\\) \$x$", r"<p>\(a\) $x$</p>"),
        ("$5 and $6", "<p>$5 and $6</p>"),
        ("$10-$20, US$5 in A$, $5, or 6$", "<p>$10-$20, US$5 in A$, $5, or 6$</p>"),
        (r"$\nope$ \[\frac\]", r"<p><code>$\nope$</code> <code>\[\frac\]</code></p>"),
        (r"$\href{javascript:x}{y}$", r"<p><code>$\href{javascript:x}{y}$</code></p>"),
        (r"$\def\a{b}\a$", r"<p><code>$\def\a{b}\a$</code></p>"),
    ],
)
def test_formulas(there: Page, source: str, markup: str) -> None:
    assert drawn(there, [source]) == markup


def test_formulas_and_diagrams_in_code_are_code(page: Page) -> None:
    for language in ("mermaid", "latex"):
        found = drawn(page, [f"```{language}\n$$x$$ \\(y\\)\n\\[\n```"])
        assert "<code>$$x$$ \\(y\\)\n\\[</code>" in found and f"<span>{language}</span>" in found


def test_a_formula_that_grows_is_plain_until_it_is_complete(page: Page) -> None:
    """Neither Markdown, nor a fault, nor a part of a formula is seen on the way."""
    script = """const element = document.createElement("div");
        return Array.from(args[0], (_, i) => {
            m.drawMarkdown(element, args[0].slice(0, i + 1), true);
            return [element.textContent, element.querySelectorAll("em, strong, del, code").length,
                element.querySelectorAll("math").length];
        })"""
    for source in (
        r"\(a_1 * b_2 * \frac{c_d}{e}\)",
        r"\[~~a~~ b\]",
        "$$\na_1 **b** c_2\n\n+ `d`\n$$",
        r"$a_1 *b*$",
    ):
        *steps, whole = page.call("./markdown_view.js", script, source)
        assert whole[1:] == [0, 1], source
        for i, (text, n_marks, n_formulas) in enumerate(steps, 1):
            assert (text.strip(), n_marks, n_formulas) == (source[:i].strip(), 0, 0)
    assert drawn(page, ["\\(a", "\\(a\\) *b*"]) == drawn(page, ["\\(a\\) *b*"])


BOMBS = {
    "braces": "$" + "{" * 2000 + "x" + "}" * 2000 + "$",
    "fractions": "$" + r"\frac{1}{" * 400 + "x" + "}" * 400 + "$",
    "macros": r"$\def\a{" + "x" * 4000 + "}" + r"\a" * 290 + "$",
    "rule": r"$\rule{99999em}{99999em}$",
    "stars": "*" * 50_000 + "a" + "*" * 50_000,
    "quotes": ">" * 50_000 + "a",
    "lists": "".join("  " * i + "- a\n" for i in range(300)),
    "formulas": "$x$ " * 20_000,
    "open": r"\( " * 30_000,
    "displays": "\\[\n" * 30_000,
    "links": "[" * 20_000 + "a" + "](b)" * 20_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_no_text_makes_deep_trees_or_takes_long(there: Page, name: str) -> None:
    script = """const element = document.createElement("div"), began = performance.now();
        m.drawMarkdown(element, args[0]);
        const seconds = (performance.now() - began) / 1000;
        let deepest = 0;
        for (let each of element.querySelectorAll("*")) {
            let depth = 0;
            for (; each !== element && depth < 1000; each = each.parentNode) depth += 1;
            deepest = Math.max(deepest, depth);
        }
        element.className = "text markdown";
        document.body.append(element);
        const width = element.scrollWidth;
        element.remove();
        return [seconds, deepest, width]"""
    assert len(BOMBS[name]) <= 100_001  # more is not drawn
    seconds, deepest, width = there.call("./markdown_view.js", script, BOMBS[name])
    assert seconds < 15 and deepest < 150 and width < 20_000


HARD = [
    *("*a", "**", "***a", "_a ", "~~a", "`", "``a`", "[", "[a](", "![", "<", "<a", "\\", "http://a "),
    *("> ", ">", "- ", "-", "- a\n\n", "1. a\n", "| ", "|", "|a|b\n|-|-\n"),
]


@pytest.mark.slow
def test_markdown_takes_time_in_proportion(page: Page) -> None:
    """Texts that make backtracking parsers hang."""
    for piece in HARD:
        assert drawn(page, [piece * (20000 // len(piece))]) is not None
    assert drawn(page, ["- a" + "\n" * 20000 + "  b"]) == "<ul><li><p>a</p><p>b</p></li></ul>"


def drawn(page: Page, sources: list[str]) -> str:
    """The markup of a text, without classes and the like, drawn after others in the same element."""
    script = """
        const element = document.createElement("div");
        for (const source of args[0]) m.drawMarkdown(element, source);
        const names = ["class", "target", "rel", "title", "tabindex"];
        for (const each of element.querySelectorAll("*"))
            for (const name of names) each.removeAttribute(name);
        return element.innerHTML;"""
    found: str = page.call("./markdown_view.js", script, sources)
    return found


def test_the_keyboard_is_enough(page: Page) -> None:
    page.set(more={"choices": ["one"]})
    page.until(lambda: page.run("return document.activeElement.id") == "prompt")
    page.keys(*"hi", "Shift+Enter", *"you", "Enter")
    page.ended()
    assert page.texts(".message.user .text") == ["hi\nyou"]
    page.until(lambda: page.texts("#live")[0].startswith("The answer has ended"))
    page.keys("Arrow_Up")
    page.until(lambda: page.run("return document.activeElement.matches('form.edit textarea')"))
    page.keys("!", "Enter")
    page.until(lambda: page.texts(".message.user .text") == ["hi\nyou!"] and not page.is_writing)
    page.keys("Control+k")
    assert page.run("return document.activeElement.id") == "search"
    page.keys("Arrow_Down")
    assert page.run("return document.activeElement.className") == "open"
    page.keys("Control+,")
    assert page.all("#settings")
    page.keys("Escape")
    assert not page.all("#settings")
    assert page.run("return document.activeElement.id") == "settings-open"
    page.keys("?")
    page.one("dialog .keys")
    page.keys("Escape")
    page.until(lambda: not page.all("dialog"))
    page.keys("Control+Shift+o")
    page.until(lambda: not page.answers)


@pytest.mark.slow
def test_every_control_is_reached_and_has_a_name(page: Page) -> None:
    page.ask("hi", "one")
    page.press("Another answer")
    page.until(lambda: page.texts(".branch-count") == ["2/2"] and not page.is_writing)
    page.press("Settings")
    page.one("#prompt").send_keys("more")
    controls = """return [...document.querySelectorAll("a, button, input, select, textarea, summary")]
        .filter(e => e.checkVisibility() && !e.disabled && e.tabIndex >= 0).length"""
    name = """const e = document.activeElement;
        return (e.getAttribute("aria-label") || e.labels?.[0]?.textContent || e.textContent).trim()"""
    page.run("document.querySelector('.skip').focus()")
    names = [page.run(name)]
    while len(names) < page.run(controls):
        page.keys("Tab")
        names.append(page.run(name))
        assert names[-1], page.run("return document.activeElement.outerHTML")
    wanted = ["Skip to the message box", "New conversation", "Search", "Settings", "Edit", "Earlier version"]
    wanted += [
        "Edit the answer", "Another answer", "Attach files", "Message", "Send", "Temperature", "JSON schema",
        "Functions",
    ]  # fmt: skip
    places = [
        next((i for i, each in enumerate(names) if each.startswith(each_wanted)), -1)
        for each_wanted in wanted
    ]
    assert -1 not in places and places == sorted(places), names


@pytest.mark.slow
def test_a_phone(page: Page, chat: Client) -> None:
    if not page.is_chromium:
        pytest.skip("a phone is emulated by Chromium's own protocol")
    metrics = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.ready(chat.server.url)
        row = " | ".join(["x" * 30] * 3)
        wide = f"| a | b | c |\n|--|--|--|\n| {row} |\n\n```\n{'y' * 200}\n```\n\n{'z' * 200}"
        page.set(more={"choices": [wide]}, temperature="0.5")
        assert not page.all("#sidebar") and not page.all("#settings")
        page.send("hello " * 20)
        page.ended()
        within = """return [document.documentElement, document.body, document.getElementById("scroller")]
            .every(e => e.scrollWidth <= 360)"""
        assert page.run(within)
        page.set(max_tokens="300")
        page.press("Another answer")
        page.until(lambda: page.texts(".branch-count") == ["2/2"] and not page.is_writing)
        page.run("document.getElementById('scroller').scrollTop = 0")
        covered = page.one("#to-end").rect["x"]
        buttons = [button.rect for button in page.all(".message.assistant .foot button")]
        assert len(buttons) >= 6 and all(each["x"] + each["width"] <= covered for each in buttons)
        page.press("Show the conversations")
        assert page.run(within) and page.run("return document.getElementById('main').inert")
        page.press("New conversation")
        page.until(lambda: not page.all("#sidebar") and not page.answers)
        page.press("Settings")
        assert page.run(within)
        assert page.one("#settings").rect["width"] <= 360
        cut_off = """const pen = document.createElement("canvas").getContext("2d");
            return [...document.querySelectorAll("#settings-form input[placeholder]")].filter(e => {
                const { font, paddingLeft, paddingRight } = getComputedStyle(e);
                pen.font = font;
                const room = e.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
                return pen.measureText(e.placeholder).width > room;
            }).map(e => e.placeholder)"""
        assert page.run(cut_off) == []
        page.press("Close the settings")
        too_small = """return [...document.querySelectorAll("main button, main summary, main textarea")]
            .filter(e => e.checkVisibility() && Math.min(e.offsetWidth, e.offsetHeight) < 24)
            .map(e => e.outerHTML)"""
        assert page.run(too_small) == []
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
def test_dark_and_light(page: Page, chat: Client) -> None:
    if not page.is_chromium:
        pytest.skip("the system's colours are emulated by Chromium's own protocol")

    def brightness() -> float:
        made = """const canvas = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
            const c = canvas.getContext("2d");
            c.fillStyle = getComputedStyle(document.body).backgroundColor; c.fillRect(0, 0, 1, 1);
            return c.getImageData(0, 0, 1, 1).data[1]"""
        return float(page.run(made))

    def system(scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    try:
        page.ready(chat.server.url)
        for scheme, dark in (("dark", True), ("light", False)):
            system(scheme)
            page.until(lambda dark=dark: (brightness() < 60) == dark)  # type: ignore[misc]
        page.one("#theme").click()
        page.one("#theme").click()
        assert brightness() < 60 and page.one("#theme").get_attribute("aria-label") == "Colours: dark"
        page.reload()
        assert brightness() < 60
        page.one("#theme").click()
        assert brightness() > 200
    finally:
        system("")


def test_a_server_that_dies(page: Page, folder: Path) -> None:
    model = write_tiny_model(folder / "dies.gguf", ends=False, context_length=30_000)
    with started(command("serve", str(model), "--port", "0"), text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split(" ready at ")[1].split()[0]
        page.ready(url)
        page.send("go on")
        page.until(lambda: page.answers and len(page.answers[0]) > 50)
    fault = page.one(".fault-box")
    text = page.ended()
    assert len(text) > 50 and "The text so far is kept." in fault.text
    page.send("are you there?")
    page.until(lambda: len(page.all(".fault-box")) == 2)
    assert "does not answer" in page.all(".fault-box")[1].text
    page.one(".status.gone")
    assert page.answers[0] == text and page.texts(".message.user .text")[1] == "are you there?"


@pytest.mark.slow
def test_a_server_that_refuses(page: Page) -> None:
    page.set(more={"temprature": 1})
    page.send("hello")
    assert "temprature: is no option" in page.one(".fault-box").text
    page.set(more={"choices": ["fine"]})
    page.press("Try again")
    page.until(lambda: page.answers == ["fine"] and not page.all(".fault-box") and not page.is_writing)
    assert not page.all(".branch-count")  # what failed before its first token is gone


def test_a_key(page: Page, chat: Client) -> None:
    with serving(demo.DRAFT, api_keys=("right",)) as client:
        page.open(client.server.url)
        page.one("dialog #key").send_keys("wrong", "\ue007")
        page.until(lambda: "does not know" in "".join(page.texts("dialog p")))
        page.one("dialog #key").send_keys("right", "\ue007")
        page.one(".status.ready")
        page.set(max_tokens="4")
        assert page.ask("Once upon")
        page.reload()
        assert page.run("return localStorage.getItem('oxillama.key')") is None


def test_a_model_that_is_loading(page: Page) -> None:
    may_load = threading.Event()

    def load() -> InferenceEngine:
        assert may_load.wait(60)
        return InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)

    with serving_models(Hosted("story", load=load)) as client:
        page.open(client.server.url)
        page.one(".status.loading")
        assert "is being loaded" in page.one(".welcome").text
        may_load.set()
        page.one(".status.ready")


@pytest.mark.slow
def test_the_models_of_a_server(page: Page, folder: Path) -> None:
    model = write_tiny_model(folder / "second.gguf")

    def load() -> InferenceEngine:
        return InferenceEngine.from_gguf(model, num_threads=1)

    def broken() -> InferenceEngine:
        raise LoadError("the file is cut")

    first = Hosted("story", InferenceEngine.from_gguf(demo.STORY, num_threads=1))
    with serving_models(first, Hosted("tiny", load=load), Hosted("broken", load=broken)) as client:
        page.ready(client.server.url)
        choice = page.one("#model-select")
        assert choice.text.split() == ["story", "tiny", "broken"]
        page.set(max_tokens="3")
        page.ask("Once upon a time")
        choice.send_keys("tiny")
        page.until(lambda: "llama · context 4,096" in page.texts("#model-facts")[0])
        page.press("New conversation")
        assert page.one("#prompt").get_attribute("placeholder") == "Write a message"
        page.ask("hi", "hello")
        assert page.texts(".message.assistant .who") == ["tiny"]
        page.reload()
        assert page.one("#model-select").get_property("value") == "tiny"
        page.one("#model-select").send_keys("broken")
        page.one(".status.failed")
        page.press("New conversation")
        assert "the file is cut" in page.one(".welcome").text


@pytest.mark.slow
def test_a_model_without_a_chat_template(page: Page, plain: Client) -> None:
    page.ready(plain.server.url)
    page.set(max_tokens="12", temperature="0")
    page.press("Once upon a time, there was a little fox named")
    page.keys("Enter")
    first = page.ended()
    page.press("Go on")
    second = page.ended(2)
    engine = plain.hosted.ready()
    prompt = "Once upon a time, there was a little fox named"
    assert first == engine.generate(prompt, temperature=0, max_tokens=12)
    assert second == engine.generate(prompt + first, temperature=0, max_tokens=12)
    page.press("Probabilities of the tokens", ".message:last-child")
    assert "".join(page.texts(".message:last-child .token")) == second
    assert not page.all("[name=tools]")


def test_the_shipped_model_tells_stories(page: Page) -> None:
    with serving(demo.STORY) as client:
        page.ready(client.server.url)
        assert "This model tells stories" in page.one(".welcome").text
        page.set(max_tokens="12", temperature="0")
        title = "Mia and the Golden Drum"
        page.press(title)
        page.keys("Enter")
        engine = client.hosted.ready()
        assert page.ended() == engine.generate(f"{title}\n\n", temperature=0, max_tokens=12)


@pytest.mark.slow
def test_two_tabs_have_the_same_conversations(page: Page, chat: Client) -> None:
    page.ask("hello", "one")
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    try:
        page.driver.get(chat.server.url + "/")
        page.one(".status.ready")
        page.press("hello", "#conversations")
        page.until(lambda: page.answers == ["one"])
        page.ask("again", "two")
    finally:
        page.driver.close()
        page.driver.switch_to.window(first)
    page.until(lambda: page.answers == ["one", "two"])
    page.ask("and here")
    assert page.answers == ["one", "two", "two"]


def test_two_tabs_lose_nothing_of_one_conversation(page: Page) -> None:
    script = """const { add, newConversation } = await import(new URL("./tree.js", main));
        const { usual } = await import(new URL("./settings.js", main));
        const [one, other] = [await m.openStore(), await m.openStore()];
        const first = newConversation(usual());
        add(first, null, { role: "user", content: "question" });
        await one.save(first);
        const second = await other.load(first.id);
        const [message] = first.messages;
        add(first, message.id, { role: "assistant", content: "left" });
        add(second, message.id, { role: "assistant", content: "right" });
        Object.assign(second.messages[0], { content: "changed", changed: Date.now() + 1 });
        await Promise.all([one.save(first), other.save(second)]);
        await one.save(first);
        const texts = (c) => c.messages.map((each) => each.content).sort();
        const kept = [first, await one.load(first.id)].map(texts);
        await other.remove(first.id);
        const refused = await one.save(first).catch((error) => error.message);
        return [...kept, refused, (await one.all()).length]"""
    texts = ["changed", "left", "right"]
    assert page.call("./store.js", script) == [texts, texts, "It was deleted in another tab.", 0]


@pytest.fixture
def long(folder: Path, browser: Page) -> Iterator[Client]:
    """As `chat`, with a text that does not end before a loaded machine's browser has looked at it."""
    model = write_tiny_model(folder / "long.gguf", ends=False, context_length=200_000)
    with serving(model, "tiny") as client:
        yield client


@pytest.mark.slow
def test_a_text_that_another_tab_writes(page: Page, long: Client) -> None:
    """The other tab is a store alone. `stored` would run the page's main module again in Firefox."""

    def other(script: str) -> Any:
        begin = "window.other ??= m.openStore(); const store = await window.other, [c] = await store.all();"
        return page.call("./store.js", f"{begin} {script}")

    page.ready(long.server.url)
    page.send("go on")
    page.until(lambda: page.answers and len(page.answers[0]) > 100)
    page.until(lambda: other("return Boolean(c);"))
    other("await store.save({ ...c, title: 'named', named: true, changed: Date.now() + 1 });")
    page.until(lambda: page.texts("#conversations .open") == ["named"])
    assert page.is_writing
    other("store.tell({ id: c.id, stops: true });")
    page.ended()
    page.until(lambda: page.one(".numbers").text.endswith("stopped"))
    page.until(lambda: other("return c.messages[1].finish;") == "stopped")
    other(
        """const answer = c.messages[1], changed = Date.now() + 1;
        Object.assign(answer, { content: 'from elsewhere', finish: null, changed });
        await store.save(c);
        store.tell({ id: c.id, writing: answer.id });"""
    )
    page.until(lambda: page.is_writing and page.answers == ["from elsewhere"])
    other("store.tell({ id: c.id, writing: '' });")
    page.until(lambda: not page.is_writing)
    page.reload()
    assert page.answers == ["from elsewhere"] and page.texts("#conversations .open") == ["named"]
    other("await store.remove(c.id);")
    page.until(lambda: not page.answers)


@pytest.mark.slow
def test_files_of_conversations(page: Page, chat: Client, folder: Path) -> None:
    page.set(more={"choices": ["one **two**"]}, system="Be brief.")
    page.ask("hello")
    page.press("Export this conversation")
    page.press("As JSON")
    page.press("Export this conversation")
    page.press("As Markdown")
    exported, text = folder / "downloads" / "hello.json", folder / "downloads" / "hello.md"
    page.until(lambda: exported.exists() and text.exists())
    assert text.read_text(encoding="utf-8") == (
        "# hello\n\n**System**\n\nBe brief.\n\n## You\n\nhello\n\n## Answer (tiny)\n\none **two**\n"
    )
    page.ready(chat.server.url)
    load = page.driver.find_element("css selector", "#import-file")
    load.send_keys(str(exported))
    page.until(lambda: page.answers == ["one two"])
    assert "System prompt" in page.texts(".chip")
    load.send_keys(str(exported))
    page.until(lambda: page.texts("#conversations .open") == ["hello", "hello"])
    data = json.loads(exported.read_text(encoding="utf-8"))
    for change, message in (
        (lambda d, c: d.update(format="x"), "file: expected the format"),
        (lambda d, c: c.update(version=2), "conversations[0].version: expected 1, got 2"),
        (lambda d, c: c["messages"][1].update(role="x"), "messages[1].role: expected user"),
        (lambda d, c: c["messages"][0].update(content=5), "messages[0].content: expected"),
        (lambda d, c: c["messages"][0].update(parent="q"), "messages[0].parent: expected"),
        (lambda d, c: c["settings"].update(system=None), "settings.system: expected"),
        (lambda d, c: c.update(title="x" * 1001), "conversations[0].title: expected a short"),
        (lambda d, c: c["messages"][1]["stats"].update(rate="<b>"), "stats: expected numbers"),
        (lambda d, c: c["messages"][1].update(tokens=[1]), "tokens: expected tokens"),
    ):
        wrong: dict[str, Any] = json.loads(json.dumps(data))
        change(wrong, wrong["conversations"][0])
        path = folder / "wrong.json"
        path.write_text(json.dumps(wrong), encoding="utf-8")
        load.send_keys(str(path))
        page.until(lambda message=message: message in "".join(page.texts(".toast")), message)  # type: ignore[misc]
    assert page.texts("#conversations .open") == ["hello", "hello"]


@pytest.mark.slow
def test_a_conversation_made_by_hand_harms_nobody(page: Page, folder: Path) -> None:
    """Markup in each field, texts of 10 MB, and lists within lists."""
    markup = "<img src=x onerror='window.pwned = 1'><a href='javascript:window.pwned = 2'>a</a>"
    long = f"{markup} [x](javascript:window.pwned=3) " * (10_000_000 // 120)
    made = {"created": 1, "finish": markup, "model": markup, "error": markup, "name": markup}
    call = {"id": "1", "name": markup, "arguments": long}
    token = {"text": markup, "logprob": 0, "top": [[markup, 0]]}
    messages = [
        {**made, "id": "a", "role": "user", "content": long, "parent": None, "chosen": "b"},
        {**made, "id": "b", "role": "assistant", "content": long, "parent": "a", "chosen": "c"},
        {**made, "id": "c", "role": "tool", "content": ">" * 1_000_000, "parent": "b", "chosen": "d"},
        {**made, "id": "d", "role": "assistant", "content": DANGEROUS, "parent": "c", "chosen": None}
        | {"reasoning": long, "calls": [call], "tokens": [token]},
    ]
    conversation = {"version": 1, "id": "hand", "title": markup, "created": 1, "updated": 1, "chosen": "a"}
    settings = {"system": markup, "stop": markup, "toolChoice": markup}
    conversation |= {"messages": messages, "settings": settings}
    file = {"format": "oxillama-conversations", "version": 1, "conversations": [conversation]}
    path = folder / "hostile.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    page.driver.find_element("css selector", "#import-file").send_keys(str(path))
    page.until(lambda: len(page.answers) == 2)
    sizes = page.run("return [...document.querySelectorAll('.message')].map(e => e.textContent.length)")
    assert max(sizes) < 1_000_000 and "Show all 9" in page.texts(".message.user .text button")[0]
    page.press("Settings")
    inside = "#thread :is(script, img, svg:not(.icon), b, [href^=javascript])"
    assert not page.texts(inside) and page.run("return window.pwned ?? null") is None
    page.press("New conversation")
    page.set(more={"choices": ["fine"]}, system="", stop="")
    assert page.ask("hello") == "fine"


def test_an_answer_of_its_events(page: Page) -> None:
    events = [
        {"choices": [{"delta": {"role": "assistant", "content": None}}]},
        {"choices": [{"delta": {"reasoning_content": "so", "reasoning": "so"}}]},
        {"choices": [{"delta": {"content": "a"}, "logprobs": {"content": [entry("a", -1)]}}]},
        {"choices": [{"delta": {"tool_calls": [call_part(0, "x", "f", "")]}}]},
        {"choices": [{"delta": {"tool_calls": [call_part(0, None, None, '{"y"')]}}]},
        {"choices": [{"delta": {"tool_calls": [call_part(0, None, None, ": 1}")]}}]},
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"completion_tokens": 9, "prompt_tokens": 5, "prompt_tokens_details": None}},
    ]
    script = """const message = {content: ""}, answer = new m.Answer(message);
        for (const event of args[0]) answer.take(event);
        return message"""
    made = page.call("./answer.js", script, events)
    assert made["reasoning"] == "so" and made["content"] == "a" and made["finish"] == "tool_calls"
    assert made["calls"] == [{"id": "x", "name": "f", "arguments": '{"y": 1}'}]
    assert made["tokens"] == [{"text": "a", "logprob": -1, "top": [["a", -1]]}]
    assert (made["stats"]["tokens"], made["stats"]["prompt"], made["stats"]["cached"]) == (9, 5, 0)
    assert made["stats"]["thought"] >= 0


def entry(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "top_logprobs": [{"token": token, "logprob": logprob}]}


def call_part(index: int, id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return {"index": index, "function": function, **({"id": id} if id else {})}


def test_tokens_that_are_parts_of_a_character(page: Page) -> None:
    tokens = [
        {"text": text, "logprob": 0, "top": []} for text in ("a", r"bytes:\xe2\x82", r"bytes:\xac", "end")
    ]
    script = "return m.pieces(args[0], args[1]).map(piece => piece.text)"
    assert page.call("./tokens_view.js", script, tokens, 2) == ["a", "", "€"]


def test_a_stream_that_breaks_is_no_answer(page: Page) -> None:
    script = r"""
        const plain = window.fetch, texts = [];
        const error = "data: {\"error\": {\"message\": \"so\", \"code\": \"x\"}}\n\n";
        for (const end of ["", "data: [DONE]\n\n", error]) {
            window.fetch = async () => new Response("data: {\"a\": 1}\n\n" + end);
            const found = [];
            try {
                for await (const event of new m.Api().stream("x", {}, null)) found.push(event);
            } catch (error) {
                found.push(`${error.constructor.name} ${m.inWords(error)}`);
            }
            texts.push(found);
        }
        window.fetch = plain;
        return texts"""
    broken, whole, failed = page.call("./api.js", script)
    assert broken == [{"a": 1}, "ConnectionLost The connection broke before the answer was complete."]
    assert whole == [{"a": 1}]
    assert failed == [{"a": 1}, "ServerError The server refused: so"]


def test_events_are_read_however_they_are_cut(page: Page) -> None:
    script = r"""
        const text = ": ping\n\ndata: {\"a\":\"€\"}\r\n\r\ndata:b\ndata: c\n\nevent: x\n\ndata: cut";
        const bytes = new TextEncoder().encode(text);
        const all = [];
        for (const size of [1, 2, 3, 7, 1000]) {
            const stream = new ReadableStream({ start(c) {
                for (let i = 0; i < bytes.length; i += size) c.enqueue(bytes.slice(i, i + size));
                c.close(); } });
            const found = [];
            for await (const data of m.events(stream)) found.push(data);
            all.push(found);
        }
        return all"""
    assert page.call("./api.js", script) == [['{"a":"€"}', "b\nc"]] * 5
