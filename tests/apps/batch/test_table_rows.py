"""A row of a table as a line of JSON: fields that are null were not said, at any depth."""

from __future__ import annotations

import json

from oxillama.apps.batch.sources import json_of, without_nulls


def test_nulls_are_left_out_at_any_depth() -> None:
    row = {"prompt": "a", "seed": None, "sampling": {"top_k": None, "top_p": 0.5}, "stop": ["x", None]}
    assert json.loads(json_of(row)) == {"prompt": "a", "sampling": {"top_p": 0.5}, "stop": ["x", None]}
    assert without_nulls([{"a": None}, {"b": [{"c": None, "d": 1}]}]) == [{}, {"b": [{"d": 1}]}]
    assert json_of({}) == b"{}"


def test_a_value_that_json_does_not_have_is_told() -> None:
    assert json_of({"prompt": b"a"}) == b"a table with Object of type bytes is not JSON serializable"
