"""The codec: types say how values are encoded, and what is refused when they are decoded."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest

from oxillama import ConfigError, SamplerConfig
from oxillama.engine import features
from oxillama.engine.sampling.logprobs import SampledToken, TokenLogprobs
from oxillama.engine.sampling.state import LogprobArrays, SamplerState
from oxillama.sessions.codec import ANY_TEXT, TOKENS, Hooks, check_fields, decode, encode, parse_json
from oxillama.sessions.recorder import ReceiptState
from oxillama.sessions.request_state import RequestState
from oxillama.speculation.state import SpeculationState


class Span(NamedTuple):
    first: int
    last: int


@dataclass(frozen=True)
class Inner:
    numbers: Annotated[np.ndarray, "<i4", 1]
    name: str = "x"


@dataclass(frozen=True)
class Every:
    """A field of every kind."""

    count: Annotated[int, (0, 9)]
    share: float
    sure: bool
    word: Annotated[str, ("a", "b")]
    digest: Annotated[str, 4]
    file: Annotated[str, ANY_TEXT]
    data: Annotated[bytes, 2]
    ids: Annotated[list[int], TOKENS]
    spans: tuple[Span, ...]
    pair: tuple[str, int]
    inner: Inner
    more: Inner | None
    rows: Annotated[np.ndarray, "<f4", 2] | None
    free: dict[str, Any] = field(default_factory=dict)
    path: str | Path | None = None


EVERY = Every(
    3, 0.5, True, "b", "00ff", "\udc80", b"\1\2", [5, 2**31 - 1], (Span(1, 2), Span(3, 4)), ("é", -1),
    Inner(np.array([1, -2], np.int32)), None, np.eye(2, 3, dtype=np.float32), {"k": [1, None]}, Path("/tmp"),
)  # fmt: skip


def parts() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    arrays: dict[str, np.ndarray] = {}
    plain = encode(Every, EVERY, arrays=arrays, name="all")
    return json.loads(json.dumps(plain)), arrays


def read(plain: Any, arrays: dict[str, np.ndarray]) -> Every:
    def array(name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        return np.frombuffer(arrays[name].tobytes(), dtype).reshape(shape)

    return decode(Every, plain, array=array, name="all")


def test_every_kind_comes_back() -> None:
    plain, arrays = parts()
    assert plain["data"] == "0102" and plain["spans"] == [[1, 2], [3, 4]] and plain["path"] == "/tmp"
    assert plain["rows"] == [2, 3] and plain["inner"] == {"numbers": [2], "name": "x"}
    assert {name: array.dtype.str for name, array in arrays.items()} == {
        "all.inner.numbers": "<i4", "all.rows": "<f4"
    }  # fmt: skip
    found = read(plain, arrays)
    assert found.rows is not None and found.rows.tolist() == np.eye(2, 3).tolist()
    assert found.inner.numbers.tolist() == [1, -2]
    same = replace(found, rows=EVERY.rows, inner=EVERY.inner, path=EVERY.path)
    assert same == EVERY and isinstance(found.spans[0], Span) and isinstance(found.pair, tuple)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 10}, "all: count: expected an integer >= 0 and <= 9, got 10"),
        ({"count": True}, "all: count: expected an integer"),
        ({"count": None}, "all: count: expected an integer"),
        ({"share": "1"}, "all: share: expected a number"),
        ({"share": math.inf}, "all: share: expected a number"),
        ({"sure": 1}, "all: sure: expected True or False"),
        ({"word": "c"}, "all: word: expected one of a, b, got 'c'"),
        ({"digest": "00FF"}, "all: digest: expected 4 hexadecimal digits"),
        ({"digest": "00ff\n"}, "all: digest: expected 4 hexadecimal digits"),
        ({"file": 3}, "all: file: expected a str"),
        ({"data": "01"}, "all: data: expected 2 bytes"),
        ({"data": "0"}, "all: data: expected hexadecimal digits"),
        ({"ids": [1, -1]}, "all: ids: expected token ids"),
        ({"ids": [True]}, "all: ids: expected token ids"),
        ({"ids": 3}, "all: ids: expected a list"),
        ({"spans": [[1, 2, 3]]}, "all: spans: expected 2 values"),
        ({"spans": [[1, "2"]]}, "all: spans: expected an integer"),
        ({"pair": ["x"]}, "all: pair: expected 2 values"),
        ({"pair": ["\ud800", 1]}, "all: pair: expected text that UTF-8 can express"),
        ({"inner": None}, "all: inner: expected a Inner, got NoneType"),
        ({"inner": {"numbers": [1], "nam": 1}}, "all: inner: 'nam': no such field"),
        ({"inner": {"name": "y"}}, "all: inner: 'numbers': is missing"),
        ({"inner": {"numbers": [1, 1]}}, "all: inner: numbers: expected a shape of 1 numbers"),
        ({"inner": {"numbers": [-1]}}, "all: inner: numbers: expected an integer"),
        ({"rows": 6}, "all: rows: expected a list"),
        ({"free": []}, "all: free: expected a dict"),
    ],
)
def test_other_values_are_refused(change: dict[str, Any], message: str) -> None:
    plain, arrays = parts()
    with pytest.raises(ConfigError, match=f"^{message}"):
        read({**plain, **change}, arrays)


def test_hooks_and_fields_that_are_left_out() -> None:
    hooks: Hooks = {"seed": (str, int), "top_k": None}
    plain = encode(SamplerConfig, SamplerConfig(seed=5, temperature=1), hooks)
    assert plain["seed"] == "5" and "top_k" not in plain and type(plain["temperature"]) is float
    assert decode(SamplerConfig, {"seed": "7"}, hooks) == SamplerConfig(seed=7)
    with pytest.raises(ConfigError, match="'top_k': no such field"):
        decode(SamplerConfig, {"top_k": 3}, hooks)


@dataclass(frozen=True)
class Choice:
    word: Annotated[str, ("a", "b")]
    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        check_fields(self)


def test_fields_of_what_is_made_are_checked() -> None:
    Choice("a", (Span(1, 2),))
    with pytest.raises(ConfigError, match=r"^word: expected one of a, b, got 'c'"):
        Choice("c", ())
    with pytest.raises(ConfigError, match=r"^spans: expected 2 values"):
        Choice("a", ((1,),))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', "NaN", "[-Infinity]", "{"])
def test_json_that_readers_may_disagree_about_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_the_state_of_a_request_needs_no_line_of_the_codec() -> None:
    """All that a request has comes back, whatever its parts are called."""
    sampled = [
        SampledToken(3, TokenLogprobs(3, -0.5, ((3, -0.5), (1, -2.0))), TokenLogprobs(3, 0.0, ((3, 0.0),))),
        SampledToken(1, TokenLogprobs(1, -math.inf), TokenLogprobs(1, -1.0)),
    ]
    state = RequestState(
        n_prompt=1, n_known=0, limit=9, n_read=1, read="é", unread="b", held="", undecoded=b"\xe2",
        seconds_left=-1.5, grammar="", logprobs=LogprobArrays.of(sampled),
        logits=np.arange(6, dtype=np.float32).reshape(2, 3),
        sampler=SamplerState(2**64 - 1, 7, 0.1, np.array([1, 2**64 - 1], np.uint64), np.array([0.1, 0.2])),
        links=np.ones((2, 32), np.uint8),
    )  # fmt: skip
    arrays: dict[str, np.ndarray] = {}
    plain = json.loads(json.dumps(encode(RequestState, state, arrays=arrays)))
    found = decode(RequestState, plain, array=lambda name, dtype, shape: arrays[name].reshape(shape))
    again: dict[str, np.ndarray] = {}
    assert encode(RequestState, found, arrays=again) == plain
    assert {name: array.tobytes() for name, array in again.items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }
    assert found.logprobs is not None and found.logprobs.sampled([3, 1], 4) == sampled
    assert (found.seconds_left, found.undecoded) == (-1.5, b"\xe2")


def test_states_of_features_come_back() -> None:
    for part in (SpeculationState(None, 3, 2, 1), ReceiptState(2**64 - 1, 9, bytes(range(32)))):
        plain = json.loads(json.dumps(encode(type(part), part)))
        assert decode(type(part), plain) == part
    assert {name: features.state(name) for name in features.STATES} == {
        "speculation": SpeculationState, "receipt": ReceiptState
    }  # fmt: skip
