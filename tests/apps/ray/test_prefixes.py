"""Where a prompt is sent: to whom has run its beginning, but not at any price."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from oxillama.apps.ray.homes import Route, route_of, tag_of
from oxillama.apps.ray.prefixes import MOST_PAGES, PAGE, PrefixMap
from oxillama.apps.server.errors import ApiError

IDLE = {"a": 0, "b": 0, "c": 0}


def page_keys(body: bytes) -> list[bytes]:
    return list(route_of("/v1/completions", body).keys)


def keys_of(text: str, **more: Any) -> list[bytes]:
    return page_keys(json.dumps({"prompt": text, **more}).encode())


def test_keys_stand_for_whole_pages_and_all_before_them() -> None:
    text = "".join(map(str, range(1000)))
    keys = keys_of(text[: 3 * PAGE + 1])
    assert len(keys) == len(set(keys)) == 3
    assert keys_of(text[: 3 * PAGE - 1]) == keys[:2]
    assert keys_of(text[: 2 * PAGE] + "x" * PAGE)[:2] == keys[:2]
    assert keys_of("x" + text[: 3 * PAGE])[1] not in keys
    assert len(keys_of("x" * PAGE * 2 * MOST_PAGES)) == MOST_PAGES
    assert not set(keys_of(text, cache_salt="s")) & set(keys_of(text))
    assert len(keys_of("\ud800" * PAGE)) == 1


def test_a_conversation_that_goes_on_begins_alike() -> None:
    said = [{"role": "system", "content": "x" * 500}, {"role": "user", "content": "y" * 500}]
    more = [*said, {"role": "assistant", "content": "z" * 500}]
    short, long = (
        page_keys(json.dumps({"messages": each, "seed": len(each)}).encode()) for each in (said, more)
    )
    assert len(short) >= 3 and long[: len(short)] == short and len(long) > len(short)
    tools = page_keys(json.dumps({"messages": said, "tools": [{"name": "f"}]}).encode())
    assert not set(tools) & set(short)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b"{}", b"\xff", b'{"prompt": 5}', b"[" * 100_000])
def test_bodies_without_a_prompt_have_no_keys(body: bytes) -> None:
    assert page_keys(body) == []


def test_token_ids_have_keys() -> None:
    ids = list(range(1000))
    keys = page_keys(json.dumps({"prompt": ids}).encode())
    assert keys and page_keys(json.dumps({"prompt": [*ids, 5]}).encode())[: len(keys)] == keys


def test_a_known_beginning_is_preferred() -> None:
    prefixes, keys = PrefixMap(imbalance=4), keys_of("x" * PAGE * 5)
    prefixes.note(keys[:2], "b")
    prefixes.note(keys[:4], "c")
    assert prefixes.ranked(keys, {"a": 0, "b": 0, "c": 3})[:2] == ["c", "b"]
    assert prefixes.ranked(keys[:2], {"a": 0, "b": 2, "c": 1})[:2] == ["c", "b"]  # both have it


def test_a_replica_with_much_to_do_is_not_preferred() -> None:
    prefixes, keys = PrefixMap(imbalance=4), keys_of("x" * PAGE)
    prefixes.note(keys, "c")
    assert prefixes.ranked(keys, {"a": 2, "b": 1, "c": 4})[0] == "c"
    assert prefixes.ranked(keys, {"a": 2, "b": 1, "c": 5}) == ["b", "a", "c"]


def test_unknown_beginnings_are_spread_and_stay() -> None:
    chosen = [PrefixMap(4).ranked(keys_of(str(i) * PAGE), IDLE)[0] for i in range(300)]
    assert chosen == [
        PrefixMap(4).ranked(keys_of(str(i) * PAGE), dict(reversed(IDLE.items())))[0] for i in range(300)
    ]
    assert min(Counter(chosen).values()) > 60
    fewer = [PrefixMap(4).ranked(keys_of(str(i) * PAGE), {"a": 0, "b": 0})[0] for i in range(300)]
    assert all(now == before for now, before in zip(fewer, chosen) if before != "c")


def test_the_caches_are_filled_alike() -> None:
    prefixes, chosen = PrefixMap(4, most=50), Counter[str]()
    for i in range(90):
        keys = keys_of(str(i) * PAGE * 3)
        first = prefixes.ranked(keys, IDLE)[0]
        chosen[first] += 1
        prefixes.note(keys, first)
        prefixes.note(keys, first)
    assert set(chosen.values()) == {30}
    assert sum(prefixes._n_pages.values()) == 50
    prefixes.keep_only(["a", "b"])
    assert prefixes.ranked(keys_of("y" * PAGE), IDLE)[0] == "c"


def test_short_prompts_go_where_there_is_the_least_to_do() -> None:
    prefixes = PrefixMap(4)
    prefixes.note(keys_of("x" * PAGE), "a")
    assert prefixes.ranked([], {"a": 2, "b": 1, "c": 3}) == ["b", "a", "c"]


def test_replicas_that_went_are_forgotten() -> None:
    prefixes, keys = PrefixMap(4), keys_of("x" * PAGE * 2)
    prefixes.note(keys, "a")
    prefixes.note(keys[:1], "b")
    prefixes.keep_only(["b"])
    assert prefixes.ranked(keys, IDLE)[0] == "b"
    prefixes.keep_only([])
    assert not prefixes._known


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    prefixes = PrefixMap(4, most=3)
    first, second = keys_of("a" * PAGE * 2), keys_of("b" * PAGE)
    prefixes.note(first, "a")
    prefixes.note(second, "b")
    prefixes.note(first, "a")
    prefixes.note(keys_of("c" * PAGE), "c")
    assert set(prefixes._known) == {*first, *keys_of("c" * PAGE)}


def test_no_replicas() -> None:
    assert PrefixMap(4).ranked(keys_of("x" * PAGE), {}) == []


# --- where stored responses are -----------------------------------------------------------------------

ONE, TWO = tag_of("replica one"), tag_of("replica two")
UUID = "0123456789abcdef" * 2


def home(path: str, body: Any = None) -> str:
    return route_of(path, b"" if body is None else json.dumps(body).encode()).home


@pytest.mark.parametrize("base", ["/v1/responses", "/responses"])
def test_a_request_goes_to_the_replica_of_the_responses_that_it_names(base: str) -> None:
    id, item = f"resp_{ONE}{UUID}", f"msg_{ONE}{UUID}"
    for path in (f"{base}/{id}", f"{base}/{id}/input_items", f"{base}/{id}/cancel"):
        assert home(path) == ONE
    for path in (base, f"{base}/input_tokens"):
        assert home(path, {"input": "x", "previous_response_id": id}) == ONE
        assert home(path, {"input": [{"type": "item_reference", "id": item}]}) == ONE
        assert home(path, {"input": [{"id": item}], "previous_response_id": id}) == ONE
    other = f"rs_{TWO}{UUID}"
    with pytest.raises(ApiError, match="input: expected references to items of responses that one replica"):
        home(base, {"input": [{"id": other}], "previous_response_id": id})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "x"}),
        ("/v1/responses", {"input": "x", "previous_response_id": 5}),
        ("/v1/responses", {"input": "x", "previous_response_id": f"resp_{UUID}"}),
        ("/v1/responses", {"input": [{"type": "message", "id": f"msg_{ONE}{UUID}", "content": "x"}]}),
        ("/v1/responses", {"input": [5, None, {"id": 5}]}),
        ("/v1/completions", {"prompt": "x", "previous_response_id": f"resp_{ONE}{UUID}"}),
        (f"/page/resp_{ONE}{UUID}", None),
    ],
)
def test_other_requests_go_anywhere(path: str, body: Any) -> None:
    assert home(path, body) == "" == Route().home
