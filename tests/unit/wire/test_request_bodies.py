"""The wrong create requests of tests/support/bad_bodies.py, from their bytes to the error."""

import itertools
import json
from typing import Any

import orjson
import pytest

from models.errors import InvalidRequest
from models.wire.items import referenced_ids, substitute_references
from models.wire.json_input import decode_body
from models.wire.pairing import require_outputs
from models.wire.request import CreateRequest, parse_create
from tests.support.bad_bodies import BODIES, BadBody

STORED_ELSEWHERE = ("an id of no response",)
"""Rows whose fault only the database shows. tests/contract/test_bad_input.py sends them."""


def parse(raw: bytes) -> CreateRequest:
    """The request as a web process reads it, in an empty database. Raises InvalidRequest."""
    numbers = itertools.count()
    request = parse_create(decode_body(raw), new_id=lambda prefix: f"{prefix}_new{next(numbers)}")
    if referenced_ids(request.input):
        substitute_references(request.input, {})
    require_outputs(request.input)
    return request


def _by_place() -> dict[str, list[BadBody]]:
    """The rows by the place that their error names: one test for each place, not for each of 800
    rows."""
    by_place: dict[str, list[BadBody]] = {}
    for case in BODIES:
        if case.name not in STORED_ELSEWHERE:
            by_place.setdefault((case.param or "body").split("\0")[0][:80], []).append(case)
    return by_place


@pytest.mark.parametrize("cases", _by_place().values(), ids=_by_place())
def test_the_error_names_what_is_wrong_in_a_body(cases: list[BadBody]) -> None:
    for case in cases:
        body: dict[str, Any] = {"model": "m", "input": "Hi.", **case.body}
        with pytest.raises(InvalidRequest) as refusal:
            parse(json.dumps(body).encode())
        error = refusal.value
        assert (error.status, error.type) == (400, "invalid_request_error"), case.name
        assert (error.param, error.code, error.message) == (case.param, case.code, case.message)
        orjson.dumps(error.body())


def test_the_body_without_the_fault_is_accepted() -> None:
    assert parse(b'{"model": "m", "input": "Hi."}').model == "m"
