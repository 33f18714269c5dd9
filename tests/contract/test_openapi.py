"""The document at /openapi.json describes what the code does: compared with the parser's tables."""

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_type_hints

import jsonschema_rs
import openai.types.responses as sdk
from fastapi.routing import APIRoute
from hypothesis import given
from openai.types.responses import response_create_params
from pydantic import TypeAdapter
from schemathesis import GenerationMode

from models.errors import ApiError, RefusedRequest
from models.ids import new_item_id, new_uuid, response_id
from models.wire.events import event_types
from models.wire.request import CreateRequest, parse_create
from models.wire.response import ResponseFacts, response_object
from models.wire.tools import CallTarget
from tests.support.api import JSON
from tests.support.openapi_document import (
    check_stream,
    component_validator,
    document,
    document_of,
    operations,
    refusal_of,
    require,
    schema_of,
    settings_with,
    values_in,
)
from tests.support.openapi_requests import Case, generated, generated_examples, with_integers
from tests.support.stack import ROOT
from tests.support.strict_types import check_response
from web.app import api_routes, create_app
from worker.translation.chat import translator
from worker.translation.history import compaction as _compaction  # noqa: F401 - so that its item is known
from worker.translation.items import client_calls, server_calls
from worker.translation.items import text_items as _text_items  # noqa: F401 - so that its items are known
from worker.translation.items.open_item import OpenItem
from worker.translation.items.server_calls import (
    OpenFoundTools,
    OpenPicture,
    OpenServerCall,
    OpenToolSearch,
)
from worker.translation.responses.parts import NativeItem
from worker.upstream import error_rules

NOT_IN_THE_SCHEMA = {
    ("empty_array", "input"),
    ("invalid_value", "input"),
    ("invalid_value", "input[]"),
    (None, "input"),
    ("mutually_exclusive_parameters", "conversation"),
    ("invalid_value", "stream_options"),
    ("unsupported_parameter", "background"),
    ("invalid_value", "tool_choice"),
    *(
        fault
        for place in ("tools[]", "tools[].tools[]", "input[].tools[]", "input[].tools[].tools[]")
        for fault in (
            ("invalid_value", f"{place}.name"),
            ("invalid_function_parameters", f"{place}.parameters"),
        )
    ),
    ("invalid_json_schema", "text.format.schema"),
    ("invalid_value", "tools[].server_label"),
    ("invalid_value", "tools[].headers"),
    ("string_above_max_length", "tools[].headers"),
    ("mutually_exclusive_parameters", "tools[].authorization"),
}
"""(code, param) of errors that the document does not express: combinations of parameters, and the
rules for a client's JSON Schema."""


# The document by itself.


def test_the_document_is_complete_and_valid() -> None:
    references = {
        value["$ref"]
        for value in values_in(document())
        if isinstance(value, dict) and isinstance(value.get("$ref"), str)
    }
    components = document()["components"]
    parts = {
        f"#/components/{kind}/{name}"
        for kind in ("headers", "responses", "schemas")
        for name in components[kind]
    }
    assert references <= parts, references - parts
    assert parts - references == {"#/components/schemas/StreamEvent"} - references, (
        "a part that nothing refers to"
    )
    for schema in components["schemas"].values():
        jsonschema_rs.meta.validate(
            {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
        )
    assert "HTTPValidationError" not in components["schemas"]
    described = sum(len(path) for path in document()["paths"].values())
    routes = [
        each for each in api_routes() if isinstance(each, APIRoute) and each.include_in_schema
    ]
    assert len(operations()) == described == sum(len(each.methods or ()) for each in routes)


def test_only_a_process_on_loopback_serves_the_document() -> None:
    settings = settings_with()
    for host, served in (
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
    ):
        paths = {getattr(route, "path", None) for route in create_app(settings, host).routes}
        assert ("/openapi.json" in paths) is served, host


# The document and the code.


def test_the_document_knows_exactly_the_parameters_that_are_accepted() -> None:
    known = set(document()["components"]["schemas"]["CreateResponse"]["properties"])
    documented_by_openai = set(
        get_type_hints(response_create_params.ResponseCreateParamsNonStreaming)
    )
    others = {
        "messages",
        "max_tokens",
        "response_format",
        "n",
        "stop",
        "seed",
        "Model",
        "input ",
        "output",
        "id",
    }
    for name in known | documented_by_openai | others:
        refusal = refusal_of({"model": "m", "input": "x", name: object()})
        accepted = refusal is None or refusal.code != "unknown_parameter"
        assert accepted is (name in known), name
    assert documented_by_openai <= known


def test_passed_through_parameters_are_in_the_document() -> None:
    schemas = document_of(upstream={"passthrough": ["top_k"]})["components"]["schemas"]
    assert "top_k" in schemas["CreateResponse"]["properties"]


def test_the_document_knows_every_event() -> None:
    union = document()["components"]["schemas"]["StreamEvent"]
    tags = set(event_types())
    assert set(union["discriminator"]["mapping"]) == tags
    assert {reference["$ref"] for reference in union["oneOf"]} == set(
        union["discriminator"]["mapping"].values()
    )
    known_to_the_sdk = {
        tag
        for kind in get_args(get_args(sdk.ResponseStreamEvent)[0])
        for tag in get_args(kind.model_fields["type"].annotation)
    }
    assert tags <= known_to_the_sdk


def test_the_document_knows_every_output_item() -> None:
    def leaves(kind: type[OpenItem]) -> Iterator[type[OpenItem]]:
        # Native items are in the document of a deployment with a native upstream only.
        subclasses = [each for each in kind.__subclasses__() if not issubclass(each, NativeItem)]
        for each in subclasses:
            yield from leaves(each)
        if not subclasses and kind is not OpenServerCall:  # an abstract class
            yield kind

    documented = {
        kind["properties"]["type"]["const"]
        for kind in document()["components"]["schemas"]["OutputItem"]["oneOf"]
    }
    made = set()
    for kind in leaves(OpenItem):
        fields: dict[str, Any] = (
            {"server_label": "s", "name": "f"} if issubclass(kind, OpenServerCall) else {}
        )
        fields |= {"container_id": "c", "call_id": "call_1"} if fields else {}
        if kind is OpenPicture:
            fields = {"result": ""}
        elif kind is OpenToolSearch:
            fields = {}
        elif kind is OpenFoundTools:
            fields = {"tools": []}
        called = (
            ("call_1", CallTarget(kind.kind, "f"))
            if issubclass(kind, client_calls.OpenClientCall)
            else ()
        )
        item = kind(
            0,
            "id_1",
            *(("call_1", "no such tool") if issubclass(kind, client_calls.CallOutput) else called),
            **fields,
        )
        if isinstance(item, client_calls.OpenBuiltInCall):
            item.push(
                json.dumps(
                    {
                        "commands": ["ls"],
                        "command": ["ls"],
                        "type": "delete_file",
                        "path": "a",
                        "actions": ["screenshot"],
                    }
                )
            )
        made.add(item.to_json()["type"])
        require("OutputItem", item.to_json())
    assert made == documented
    assert set(server_calls._CALL_CLASSES) <= made
    details = document()["components"]["schemas"]["Response"]["properties"]["incomplete_details"]
    assert set(details["properties"]["reason"]["enum"]) == {
        *translator._INCOMPLETE_REASONS.values(),
        "max_messages",
        "steered",
    }


def test_with_a_native_upstream_the_document_has_more_tools() -> None:
    native = {"base_url": "http://127.0.0.1/v1", "api": "responses"}
    components = document_of(upstream=native)["components"]

    def is_valid(name: str, value: Any) -> bool:
        return bool(component_validator(name, components).is_valid(value))

    files = {"type": "file_search", "vector_store_ids": ["vs_1"]}
    code_call = {
        "id": "ci_1",
        "type": "code_interpreter_call",
        "status": "completed",
        "code": "1",
        "container_id": "c",
    }
    assert is_valid("InputTools", [files, {"type": "function", "name": "f"}])
    assert is_valid("ListedTools", [files])
    assert is_valid("OutputItem", code_call)
    assert not is_valid("InputTools", [{"type": "telepathy"}])
    assert not schema_of("InputTools").is_valid([{"type": "code_interpreter"}])
    assert not schema_of("OutputItem").is_valid({**code_call, "type": "program"})


def test_the_document_knows_every_error() -> None:
    error = document()["components"]["schemas"]["Error"]["properties"]["error"]["properties"]
    sources = [
        path for folder in ("features", "web", "models") for path in (ROOT / folder).rglob("*.py")
    ]
    raised = {
        keyword.value.value
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and "Failed" not in ast.unparse(node.func)
        for keyword in node.keywords
        if keyword.arg == "code"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is not None
    }
    kinds = (*ApiError.__subclasses__(), *RefusedRequest.__subclasses__())
    raised |= {kind.code for kind in kinds if kind.code is not None}
    bounds = {
        f"{kind}_{side}_value"
        for kind in ("integer", "decimal")
        for side in ("below_min", "above_max")
    }
    lengths = {"string_above_max_length", "array_above_max_length", "empty_string", "empty_array"}
    assert {code for code in error["code"]["enum"] if code} == raised | bounds | lengths | {
        "http_error",
        "context_length_exceeded",
        "insufficient_quota",
    }
    responses = document()["components"]["responses"]
    for kind in kinds:
        assert kind.type in error["type"]["enum"]
        assert f"Error{kind.status}" in responses or kind.status in (405, 414, 431), (
            "no documented operation returns these; the description of the document has them"
        )


def test_the_document_of_a_create_has_every_status_of_an_upstream() -> None:
    documented = {int(code) for code in operations()["create"]["responses"]}
    assert error_rules.FORWARDED_STATUSES | {502, 504} <= documented
    others = {200, 401, 403, 415, 424, 500, 502, 503, 504}
    assert documented == error_rules.FORWARDED_STATUSES | others


# The examples in the document.


def examples_of(part: JSON) -> list[Any]:
    values = [example["value"] for example in part.get("examples", {}).values()]
    return [part["example"], *values] if "example" in part else values


def test_the_examples_match_their_schemas() -> None:
    seen: Counter[str] = Counter()
    for kind, content in response_contents():
        for example in examples_of(content):
            name = content.get("schema", {}).get("$ref", "").rpartition("/")[2] or kind
            seen[name] += 1
            (check_stream if name == "text/event-stream" else checked(name))(example)
    assert seen.keys() == {
        "Response",
        "InputItemList",
        "Conversation",
        "ConversationItemList",
        "File",
        "Batch",
        "Schedule",
        "ScheduleRun",
        "Steer",
        "Error",
        "text/event-stream",
    }


def response_contents() -> Iterator[tuple[str, JSON]]:
    """Content type and content of every response: of operations, and of components."""
    responses = [
        response
        for operation in operations().values()
        for response in operation["responses"].values()
    ]
    for response in [*responses, *document()["components"]["responses"].values()]:
        yield from response.get("content", {}).items()


def checked(name: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        require(name, value)
        if name == "Response":
            check_response(value)

    return check


def test_the_example_requests_are_accepted_here_and_by_the_sdk() -> None:
    content = operations()["create"]["requestBody"]["content"]["application/json"]
    strict = TypeAdapter[Any](response_create_params.ResponseCreateParams)
    for body in examples_of(content):
        require("CreateResponse", body)
        strict.validate_python(body)
        assert refusal_of(body) is None, body


# The document and what clients may send.


@generated_examples(15)
@given(case=generated("create", GenerationMode.POSITIVE))
def test_a_request_that_the_document_allows_is_accepted_and_echoed(case: Case) -> None:
    body = with_integers(case.body)
    refusal = refusal_of(body)
    if refusal is not None:
        place = re.sub(r"\[\d+\]", "[]", refusal.param or "")
        assert (refusal.code, place) in NOT_IN_THE_SCHEMA, f"{refusal.message} {body}"
        return
    accepted = parse_create(body, new_id=new_item_id)
    require("Response", shown(accepted))
    for item in accepted.input:
        if item["type"] != "item_reference":
            require("ListedItem", item)


def shown(request: CreateRequest) -> JSON:
    previous = None if request.previous_response_id is None else response_id(new_uuid())
    facts = ResponseFacts(
        response_id(new_uuid()),
        1,
        "queued",
        request.model,
        request.parameters,
        previous_response_id=previous,
    )
    return response_object(facts, [])


@generated_examples(15)
@given(case=generated("create", GenerationMode.NEGATIVE))
def test_a_request_that_the_document_forbids_is_refused(case: Case) -> None:
    body = case.body
    is_json = isinstance(body, dict | list | str | int | float | bool | None)
    if not is_json or schema_of("CreateResponse").is_valid(body):
        return  # the fault is in another part of the request
    faults = [fault.message for fault in schema_of("CreateResponse").iter_errors(body)]
    assert refusal_of(body) is not None, f"accepted: {faults} {body!r}"
