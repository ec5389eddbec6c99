"""The files of the page: what is sent, with which headers, to whom; and that they lead nowhere else."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import oxillama.apps.server.page.files as page_files
from oxillama import demo
from oxillama.apps.server.page.files import FOLDER, INDEX, NOTICES, PLACEHOLDER, TYPES, the_page
from oxillama.base.config.server import ServerConfig
from tests.support.server import Client, serving

MODEL = demo.DRAFT
FILES = sorted(path for path in FOLDER.rglob("*") if path.is_file() and path.suffix != NOTICES)
VENDOR = FOLDER / "vendor"
OWN = [path for path in FILES if path.parent != VENDOR]
NAMES = [path.relative_to(FOLDER).as_posix() for path in FILES]
ASSETS = [path for path in the_page() if path != "/"]


def references(path: Path) -> list[str]:
    """The files that a file names in links, scripts and imports, relative to the folder."""
    text = path.read_text(encoding="utf-8")
    if path.name == INDEX:
        return re.findall(r'(?:href|src)="page/@VERSION@/([^"]+)"', text)
    found = re.findall(r'^(?:import|export) .*?"(\.[^"]+)"', text, re.MULTILINE | re.DOTALL)
    found += re.findall(r'new URL\("(\.[^"]+)", import\.meta\.url\)', text)
    return [(path.parent / name).resolve().relative_to(FOLDER).as_posix() for name in found]


def test_every_file_is_served_with_its_type_and_headers(client: Client) -> None:
    assert len(ASSETS) == len(FILES) - 1
    for path in the_page():
        answer = client.ask(path)
        suffix = path.rpartition(".")[2] if "." in path else "html"
        assert (answer.status, answer.headers["content-type"]) == (200, TYPES[suffix]), path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == page_files.POLICY
        assert int(answer.headers["content-length"]) == len(answer.text.encode())


def test_the_policy_allows_the_servers_own_files_alone(client: Client) -> None:
    parts = client.ask("/").headers["content-security-policy"].split("; ")
    policy = dict(part.split(" ", 1) for part in parts)
    assert policy["default-src"] == "'none'"
    for kind in ("script-src", "style-src", "img-src", "connect-src"):
        assert policy[kind] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in str(policy) and "http" not in str(policy)


def test_browsers_keep_the_files_for_good_but_ask_for_the_page(client: Client) -> None:
    assert client.ask("/").headers["cache-control"] == "no-cache"
    for path in ASSETS:
        assert client.ask(path).headers["cache-control"] == "public, max-age=31536000, immutable"
    for path in ("/", ASSETS[0]):
        tag = client.ask(path).headers["etag"]
        for known in (tag, f'"other", W/{tag}'):
            again = client.ask(path, headers={"If-None-Match": known})
            assert (again.status, again.text, again.headers["etag"]) == (304, "", tag)
        assert client.ask(path, headers={"If-None-Match": '"other"'}).status == 200
    assert client.ask("/", method="HEAD").status == 200


def test_the_version_changes_with_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_files, "FOLDER", tmp_path)
    (tmp_path / INDEX).write_bytes(b"<p>" + PLACEHOLDER)
    script = tmp_path / "js" / "a.js"
    script.parent.mkdir()

    def paths(text: str) -> frozenset[str]:
        script.write_text(text)
        the_page.cache_clear()
        return frozenset(the_page())

    try:
        first, second, again = paths("1"), paths("2"), paths("1")
        index = the_page()["/"].data.decode()
    finally:
        the_page.cache_clear()
    assert first == again and not (first & second) - {"/"}
    (path,) = first - {"/"}
    assert path == f"/page/{index.removeprefix('<p>')}/js/a.js"


def test_no_path_leads_out_of_the_folder(client: Client) -> None:
    version = ASSETS[0].split("/")[2]
    for path in (
        f"/page/{version}/../files.py",
        f"/page/{version}/js/../../files.py",
        f"/page/{version}/%2e%2e/files.py",
        f"/page/{version}/..%2f..%2f__init__.py",
        f"/page/{version}//etc/passwd",
        f"/page/{version}/",
        f"/page/{version}/{INDEX}",
        "/page/0000000000000000/js/main.js",
        "/index.html",
        "//",
    ):
        assert client.ask(path).refusal("type") == (404, "not_found_error"), path
    assert client.ask("/", method="POST").status == 405


def test_no_file_names_another_host() -> None:
    names = {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}  # which nobody fetches
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        found = set(re.findall(r"(?:https?:)?//[a-z0-9][\w.-]*\.[a-z]{2,}[^\s\"'`)]*", text, re.IGNORECASE))
        assert found <= names, (path.name, found - names)
        assert "@import" not in text and not re.search(r"url\(", text), path.name


def test_the_files_of_others_are_unchanged_and_have_their_notices() -> None:
    notices = (VENDOR / f"README{NOTICES}").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `([\w.-]+)` \|.*\| `([0-9a-f]{64})` \|$", notices, re.MULTILINE))
    assert listed == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in FILES if path.parent == VENDOR
    }
    assert (
        notices.count("Permission is hereby granted") == 7 and notices.count("Redistributions of source") == 1
    )


def test_no_script_makes_markup_or_code_of_text() -> None:
    risky = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser"
    risky += r"|setHTML|srcdoc|\beval\(|new Function|setAttribute\(\"on|\.style\.cssText"
    for path in FILES:
        if path.suffix == ".js":
            more = "|javascript:" if path in OWN else ""
            assert not re.search(risky + more, path.read_text(encoding="utf-8")), path.name
    markup = (FOLDER / INDEX).read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]+src=)", markup)


def test_files_name_files_that_there_are_and_none_is_left_over() -> None:
    named = {INDEX}
    for path in FILES:
        for name in references(path):
            assert name in NAMES, (path.name, name)
            named.add(name)
    assert named == set(NAMES)


def test_a_key_is_not_needed_for_the_files_alone() -> None:
    with serving(demo.DRAFT, api_keys=("secret",)) as client:
        for path in the_page():
            assert client.ask(path).status == 200
        for path in ("/v1/models", "/props", "/page/x/y", "/page", "//", "/index.html"):
            assert client.ask(path).status == 401


def test_the_page_can_be_left_out() -> None:
    with serving(demo.DRAFT, page=False) as client:
        for path in the_page():
            assert client.ask(path).status == 404
        assert client.ask("/v1/models").status == 200
    with serving(demo.DRAFT, page=False, api_keys=("secret",)) as client:
        assert client.ask("/").status == 401
    assert ServerConfig().page


IMPORT = """
import { fromJson } from "./transfer.js";
import { shown } from "./tree.js";
const m = (id, parent, chosen, more) =>
  ({ id, role: "user", content: id, parent, chosen, created: 1, ...more });
const text = (chosen, messages, more) => JSON.stringify({
  format: "oxillama-conversations", version: 1,
  conversations: [{ version: 1, id: "c", title: "t", created: 1, updated: 1, chosen, messages, ...more }] });
const good = text("a", [m("a", null, "b"), m("b", "a", null), m("c", null, null)]);
console.log(shown(fromJson(good)[0]).length);
for (const [chosen, messages] of [
  ["a", [m("a", null, "a")]],
  ["b", [m("a", null, "b"), m("b", "a", "a")]],
  ["b", [m("a", null, null), m("b", "a", null)]],
  ["a", [m("a", null, "c"), m("b", null, null), m("c", "b", null)]],
  [5, [m("a", null, null)]],
  ["a", [m("a", null, {})]],
  ["z", []],
  ["a", [m("a", null, null, { stats: { rate: "<b>" } })]],
  ["a", [m("a", null, null, { stats: [1] })]],
  ["a", [m("a", null, null, { tokens: [{ text: "a", logprob: "1", top: [] }] })]],
  ["a", [m("a", null, null, { tokens: [{ text: "a", logprob: 0, top: [5] }] })]],
  ["a", [m("a", null, null, { calls: [{ id: "x", name: {}, arguments: "" }] })]],
  ["a", [m("a", null, null, { name: "x".repeat(1001) })]],
  ["a", [m("a".repeat(2000), null, null)]],
  [null, Array.from({ length: 10001 }, (_, i) => m(`m${i}`, null, null))],
]) {
  try { console.log("accepted", shown(fromJson(text(chosen, messages))[0]).length); }
  catch (error) { console.log(error.constructor.name); }
}
const deep = "[".repeat(100000) + "]".repeat(100000);
const more = { extra: 1, settings: { temperature: 1, system: "s" } };
const one = [m("a", null, null, { onclick: "x" })];
const nested = text("a", one, more).replace('"extra":1', `"extra":${deep}`);
const [{ extra = "none", messages, settings }] = fromJson(nested);
console.log(extra, "onclick" in messages[0], "temperature" in settings, settings.system);
try { console.log(fromJson(text("a", [m("a", null, null)], { id: '"]' }))); }
catch (error) { console.log(error.constructor.name); }
"""


def printed(script: str, folder: Path) -> str:
    """What a script prints that has the page's modules beside it. Skips the test without node."""
    if shutil.which("node") is None:
        pytest.skip("needs node")
    for file in (FOLDER / "js").glob("*.js"):
        shutil.copy(file, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "test.mjs").write_text(script)
    run = subprocess.run(
        ["node", "--max-old-space-size=300", "test.mjs"],
        cwd=folder, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return run.stdout


def test_an_import_that_is_none_is_refused(tmp_path: Path) -> None:
    wanted = f"2 {'FormatError ' * 15}none false false s FormatError"
    assert printed(IMPORT, tmp_path).split() == wanted.split()


MERGE = """
import { merge, shown } from "./tree.js";
import { check } from "./transfer.js";
const m = (id, parent, chosen, changed, more) =>
  ({ id, role: "user", content: id, parent, chosen, created: 1, changed, ...more });
const c = (title, chosen, changed, ...messages) =>
  ({ version: 1, id: "c", title, created: 1, updated: changed, changed, chosen, messages });
const told = (mine, theirs) => {
  const [one] = mine.messages, came = merge(mine, theirs);
  const texts = mine.messages.map(({ id, content, error = "" }) => `${id}=${content}${error}`).join(" ");
  check(mine, "merged"); // can be kept and shown
  return console.log(came, mine.title, mine.updated, texts, shown(mine).length, mine.messages[0] === one);
};
// both have written below the same message
told(c("old", "a", 1, m("a", null, "b", 2), m("b", "a", null, 2)),
     c("new", "a", 5, m("a", null, "d", 3), m("d", "a", null, 3)));
// the other one is older, but shows what is below
told(c("mine", "a", 5, m("a", null, null, 9, { content: "longer" })),
     c("theirs", "a", 4, m("a", null, "b", 3), m("b", "a", null, 3)));
// a text that grows elsewhere, without an error that it had
told(c("t", "a", 1, m("a", null, "b", 1), m("b", "a", null, 1, { error: "x" })),
     c("t", "a", 1, m("a", null, "b", 1), m("b", "a", null, 7, { content: "grown" })));
// the other one is later, without what is below here
told(c("t", "a", 1, m("a", null, "b", 1), m("b", "a", null, 1)),
     c("t", "a", 1, m("a", null, null, 9, { content: "longer" })));
told(c("same", "a", 1, m("a", null, null, 1)), c("same", "a", 1, m("a", null, null, 1)));
"""


def test_two_states_of_a_conversation_become_one(tmp_path: Path) -> None:
    assert printed(MERGE, tmp_path).splitlines() == [
        "true new 5 a=a b=b d=d 2 true",
        "true mine 5 a=longer b=b 2 true",
        "true t 1 a=a b=grown 2 true",
        "true t 1 a=longer b=b 2 true",
        "false same 1 a=a 1 true",
    ]


FILES_AND_ERRORS = """
import { textOf } from "./attachments.js";
import { ServerError, events, helpFor, inWords } from "./api.js";
import { requestOf } from "./request.js";
import { usual } from "./settings.js";
const file = { name: "a.py", text: "print('```')" };
const asked = { role: "user", content: "What?", files: [file] };
console.log(JSON.stringify(textOf(asked)));
const facts = { model: "m", thinking: { switch: null } };
const chat = requestOf([asked], usual(), { ...facts, chats: true }).body.messages[0].content;
const plain = requestOf([asked], usual(), { ...facts, chats: false }).body.prompt;
console.log(chat === textOf(asked), plain === textOf(asked));
for (const [status, code, more] of [
  [401, "", {}],
  [400, "context_length_exceeded", { n_prompt_tokens: 5120, n_ctx: 4096 }],
  [400, "invalid_value", { param: "temprature" }],
  [503, "hub_unreachable", {}],
]) {
  const error = new ServerError(status, "so it is", code, more);
  console.log(`${helpFor(error)}|${inWords(error)}`);
}
console.log(`${helpFor(new Error("x"))}|`);
"""


def test_files_and_errors_in_words(tmp_path: Path) -> None:
    text, same, *errors = printed(FILES_AND_ERRORS, tmp_path).splitlines()
    assert json.loads(text) == "What?\n\na.py:\n\n````py\nprint('```')\n````"
    assert same == "true true"
    assert errors == [
        "key|The server asks for an API key.",
        "new|The conversation has 5,120 tokens, and 4,096 fit.",
        "settings|The server refused: so it is",
        "|so it is",
        "|",
    ]
