"""The API document as tests read it: its schemas, operations and examples."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema_rs

from features.reference.openapi import document as openapi_document
from models.config.settings import Settings
from models.errors import InvalidRequest
from models.ids import new_item_id
from models.wire.request import parse_create
from tests.support.api import JSON, decode
from tests.support.strict_types import check_event
from web.app import api_routes


def settings_with(**values: Any) -> Settings:
    """Settings of a process that never connects to its database and Redis."""
    return Settings(database_url="postgresql://unused", redis_url="redis://unused", **values)


def document_of(**values: Any) -> JSON:
    """The document of a deployment with these settings."""
    return openapi_document(api_routes(), settings_with(**values))


@cache
def document() -> JSON:
    """The document of a deployment with default settings."""
    return document_of()


def component_validator(name: str, components: JSON) -> jsonschema_rs.Validator:
    """A validator for a component of these."""
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": components}
    )


@cache
def schema_of(name: str) -> jsonschema_rs.Validator:
    """A validator for a component of `document`."""
    return component_validator(name, document()["components"])


def require(name: str, value: Any) -> None:
    """Fails if the value is not valid by the component, with the places of the faults."""
    faults = [
        f"{fault.instance_path}: {fault.message[:300]}"
        for fault in schema_of(name).iter_errors(value)
    ]
    assert not faults, f"no {name}: {faults[:3]}\n{str(value)[:1000]}"


def values_in(value: Any) -> Iterator[Any]:
    """Every value in a JSON value, with the value itself."""
    yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        yield from values_in(each)


def operations() -> dict[str, JSON]:
    """Operation id -> operation."""
    return {
        operation["operationId"]: operation
        for path in document()["paths"].values()
        for operation in path.values()
    }


def refusal_of(body: Any) -> InvalidRequest | None:
    """The error of the parser for the body of a create request; None if it is accepted."""
    try:
        parse_create(body, new_id=new_item_id)
    except InvalidRequest as refusal:
        return refusal
    return None


def check_stream(stream: str) -> list[JSON]:
    """The events of a whole stream. Fails if one of them is not as documented."""
    blocks = [block for block in stream.split("\n\n") if block and not block.startswith(":")]
    assert stream.endswith("\n\n")
    assert blocks.pop() == "data: [DONE]", stream
    events = [decode(f"{block}\n\n".encode()) for block in blocks]
    for event in events:
        require("StreamEvent", event)
        check_event(event)
    return events
