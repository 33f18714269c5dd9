"""Requests that Schemathesis generates from the API document."""

from functools import cache
from typing import Any

import hypothesis
import schemathesis
from hypothesis import Phase
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi.schemas import OpenApiSchema

from tests.support.openapi_document import document
from tests.support.properties import examples

Case = schemathesis.Case[Any]


@cache
def generated(operation: str, mode: GenerationMode) -> st.SearchStrategy[Case]:
    """Requests of one operation. They have no API key: each test adds one."""
    return st.deferred(
        lambda: _schema().find_operation_by_id(operation).as_strategy(generation_mode=mode)
    )


def request(operation: str, path_parameters: dict[str, str], query: Any, body: Any) -> Case:
    """A request that is not generated. `body`: None for an operation without one."""
    described = _schema().find_operation_by_id(operation)
    parts: dict[str, Any] = {} if body is None else {"body": body}
    if body is not None:
        parts["media_type"] = next(iter(described.body)).media_type
    return described.Case(path_parameters=path_parameters, query=query, headers={}, **parts)


@cache
def _schema() -> OpenApiSchema:
    """The document without keys, read once: each reading takes 50 ms."""
    paths = {
        path: {method: _without_key(each) for method, each in methods.items()}
        for path, methods in document()["paths"].items()
    }
    config = schemathesis.Config.from_dict({"max-stream-events": 10_000})
    return schemathesis.openapi.from_dict(
        {**_without_key(document()), "paths": paths}, config=config
    )


def _without_key(described: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in described.items() if name != "security"}


def generated_examples(count: int) -> hypothesis.settings:
    """Without the other phases: to shrink a request of this size takes minutes."""
    return hypothesis.settings(examples(count), phases=[Phase.generate])


def with_integers(value: Any) -> Any:
    """The value with 16 for 16.0. JSON Schema accepts both as an integer, this API only the first,
    which is what most encoders write."""
    if isinstance(value, dict):
        return {name: with_integers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_integers(inner) for inner in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if is_whole else value
