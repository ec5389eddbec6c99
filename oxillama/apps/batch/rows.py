"""Answers rows of any format, and turns faults of a row into error answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NoReturn

from oxillama.apps.batch import plain
from oxillama.apps.batch.api import Api, is_api_row
from oxillama.apps.batch.plain import CARRIED, Settings
from oxillama.apps.server.errors import ApiError, api_error
from oxillama.engine.engine import InferenceEngine
from oxillama.errors import OxiLlamaError

MISSING: dict[str, Any] = {"text": None, "tokens": None, "finish_reason": None, "usage": None}
"""The fields of a plain row's answer that has no text."""


class Rows:
    """Answers the rows of a job with one engine."""

    def __init__(self, engine: InferenceEngine, settings: Settings) -> None:
        self.engine: InferenceEngine = engine
        self.settings: Settings = settings

    @cached_property
    def _api(self) -> Api:
        return Api(self.engine, self.settings)

    async def line(self, number: int, line: bytes) -> bytes:
        """The answer to a line of JSON, as a line of JSON.

        Args:
            number: number of the line, from 0.

        Raises:
            OxiLlamaError: the engine failed. Faults of the row are in the answer instead.
        """
        try:
            row = read_line(line)
        except ApiError as error:
            return as_line(plain_failure({}, error, self.settings))
        return as_line(await self.answer(number, row))

    async def answer(self, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a row. Raises as `line`."""
        if is_api_row(row):
            return await self._api_answer(number, row)
        try:
            found = await plain.answer(self.engine, row, self.settings)
        except (ApiError, OxiLlamaError) as error:
            return plain_failure(row, of_row(error), self.settings)
        return {**carried(row, self.settings), **found, "error": None}

    async def _api_answer(self, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
        response, fault = None, None
        try:
            response = await self._api.answer(number, row)
        except ApiError as error:
            fault = error.body()["error"]
        custom_id = row.get("custom_id")
        return {"id": f"batch_req_{number}", "custom_id": custom_id, "response": response, "error": fault}


def read_line(line: bytes) -> dict[str, Any]:
    """The row in a line. Raises ApiError if the line is not a JSON object."""
    try:
        value = json.loads(line.decode(), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"line: expected JSON, got {error}"[:300], code="invalid_json") from error
    if not isinstance(value, dict):
        raise ApiError(400, f"line: expected an object, got {type(value).__name__}", code="invalid_json")
    return value


def refuse(name: str) -> NoReturn:
    raise ValueError(f"{name}, which JSON does not have")


def as_line(value: Any) -> bytes:
    """A value as one line of JSON in UTF-8."""
    form: dict[str, Any] = {"allow_nan": False, "separators": (",", ":")}
    try:
        return json.dumps(value, ensure_ascii=False, **form).encode()
    except UnicodeEncodeError:  # a lone surrogate must be escaped
        return json.dumps(value, **form).encode()


def of_row(error: ApiError | OxiLlamaError) -> ApiError:
    """The error of a row as ApiError. Raises the error itself if the engine is at fault."""
    found = api_error(error)
    if found.status >= 500 and found.code != "out_of_memory":
        raise error
    return found


def carried(row: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The fields that are copied from a plain row to its answer."""
    return {name: row[name] for name in (*CARRIED, *settings.keep) if name in row}


def plain_failure(row: Mapping[str, Any], error: ApiError, settings: Settings) -> dict[str, Any]:
    """The answer to a plain row that failed."""
    return {**carried(row, settings), **MISSING, "error": error.body()["error"]}


def has_failed(answer: Mapping[str, Any]) -> bool:
    response = answer.get("response")
    return answer["error"] is not None or (response is not None and response["status_code"] >= 400)
