"""/openapi.json agrees with the code, and the running server with /openapi.json."""

import ast
import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_args, get_type_hints

import hypothesis
import jsonschema_rs
import openai.types.responses as sdk
import requests
import schemathesis
from hypothesis import Phase, given
from hypothesis import strategies as st
from openai.types.responses import response_create_params
from pydantic import TypeAdapter
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from models.config.settings import Settings
from models.errors import ApiError, InvalidRequest
from models.ids import new_item_id, new_uuid, response_id
from models.wire import tools as offering
from models.wire.events import Event
from models.wire.request import CreateRequest, parse_create
from models.wire.response import ResponseFacts, response_object
from tests.support.api import JSON, Api, decode
from tests.support.fake_upstream import (
    ALWAYS_LISTED_MODEL,
    call,
    drop,
    finish,
    hang,
    reasoning,
    refusal,
    status,
    text,
    usage,
)
from tests.support.properties import examples
from tests.support.stack import ROOT, Stack
from tests.support.strict_types import check_event, check_response
from web.app import create_app
from worker.translation.chat import translator
from worker.translation.history import compaction as _compaction  # noqa: F401 - so that its item is known
from worker.translation.items import client_calls, kinds
from worker.translation.items import mcp as _mcp  # noqa: F401 - so that its items are known
from worker.translation.items import text_items as _text_items  # noqa: F401 - so that its items are known
from worker.translation.items.open_item import OpenItem
from worker.translation.items.server_calls import OpenServerCall
from worker.translation.responses.native_item import NativeItem
from worker.upstream import error_rules

Case = schemathesis.Case[Any]

SENSIBLE = {
    ("empty_array", "input"),
    ("invalid_value", "input"),
    ("invalid_value", "input[]"),
    (None, "input"),
    ("mutually_exclusive_parameters", "conversation"),
    ("invalid_value", "stream_options"),
    ("unsupported_parameter", "background"),
    ("invalid_value", "tool_choice"),
    *(
        ("invalid_value", f"{place}.name")
        for place in ("tools[]", "tools[].tools[]", "input[].tools[]", "input[].tools[].tools[]")
    ),
    ("invalid_value", "tools[].server_label"),
    ("invalid_value", "tools[].headers"),
    ("string_above_max_length", "tools[].headers"),
    ("mutually_exclusive_parameters", "tools[].authorization"),
}
"""(code, param) of refusals that no schema can express: combinations of parameters."""


@cache
def document() -> JSON:
    """The document that the shared deployment serves, except for parts that follow its settings."""
    settings = Settings(database_url="postgresql://unused", redis_url="redis://unused")
    return create_app(settings).openapi()


@cache
def schema_of(name: str) -> jsonschema_rs.Validator:
    """A validator for a component."""
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": document()["components"]}
    )


def require(name: str, value: Any) -> None:
    """Fails with the places at which `value` does not match the component."""
    faults = [
        f"{fault.instance_path}: {fault.message[:300]}"
        for fault in schema_of(name).iter_errors(value)
    ]
    assert not faults, f"no {name}: {faults[:3]}\n{str(value)[:1000]}"


def inside(value: Any) -> Iterator[Any]:
    """Every value in a JSON value, itself included."""
    yield value
    for found in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from inside(found)


def operations() -> dict[str, JSON]:
    """Operation id -> operation."""
    return {
        told["operationId"]: told for path in document()["paths"].values() for told in path.values()
    }


# The document by itself.


def test_the_document_is_complete_and_valid() -> None:
    told = document()
    references = {
        found["$ref"]
        for found in inside(told)
        if isinstance(found, dict) and isinstance(found.get("$ref"), str)
    }
    parts = {
        f"#/components/{kind}/{name}"
        for kind in ("headers", "responses", "schemas")
        for name in told["components"][kind]
    }
    assert references <= parts, references - parts
    assert parts - references == {"#/components/schemas/StreamEvent"} - references, (
        "a part that nothing refers to"
    )
    for schema in told["components"]["schemas"].values():
        jsonschema_rs.meta.validate(
            {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
        )
    assert "HTTPValidationError" not in told["components"]["schemas"]
    assert len(operations()) == sum(len(path) for path in told["paths"].values()) == 21


def test_only_a_process_on_loopback_serves_the_document() -> None:
    settings = Settings(database_url="postgresql://unused", redis_url="redis://unused")
    for host, served in (
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
    ):
        assert (create_app(settings, host).openapi_url is not None) is served, host


# The document and the code.


def refusal_of(body: Any) -> InvalidRequest | None:
    try:
        parse_create(body, new_id=new_item_id)
    except InvalidRequest as refused:
        return refused
    return None


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
        refused = refusal_of({"model": "m", "input": "x", name: object()})
        accepted = refused is None or refused.code != "unknown_parameter"
        assert accepted is (name in known), name
    assert documented_by_openai <= known


def test_passed_through_parameters_are_in_the_document() -> None:
    upstream = {"passthrough": ["top_k"]}
    settings = Settings(database_url="postgresql://x", redis_url="redis://x", upstream=upstream)
    assert (
        "top_k"
        in create_app(settings).openapi()["components"]["schemas"]["CreateResponse"]["properties"]
    )


def test_the_document_knows_every_event() -> None:
    union = document()["components"]["schemas"]["StreamEvent"]
    tags = {kind.__struct_config__.tag for kind in Event.__subclasses__()}
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
        below = [
            one for one in kind.__subclasses__() if not issubclass(one, NativeItem)
        ]  # these are for the test below
        for one in below:
            yield from leaves(one)
        if not below and kind is not OpenServerCall:  # which is what its kinds have in common
            yield kind

    told = {
        kind["properties"]["type"]["const"]
        for kind in document()["components"]["schemas"]["OutputItem"]["oneOf"]
    }
    said = set()
    for kind in leaves(OpenItem):
        fields = {"server_label": "s", "name": "f"} if issubclass(kind, OpenServerCall) else {}
        called = (
            ("call_1", offering.CallTarget(kind.kind, "f"))
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
                    {"commands": ["ls"], "command": ["ls"], "type": "delete_file", "path": "a"}
                )
            )
        said.add(item.to_json()["type"])
        require("OutputItem", item.to_json())
    assert said == told
    assert set(kinds._CALL_CLASSES) <= said
    details = document()["components"]["schemas"]["Response"]["properties"]["incomplete_details"]
    assert set(details["properties"]["reason"]["enum"]) == {
        *translator._INCOMPLETE_REASONS.values(),
        "max_messages",
    }


def test_with_a_native_upstream_the_document_has_more_tools() -> None:
    native = {"base_url": "http://127.0.0.1/v1", "api": "responses"}
    settings = Settings(
        database_url="postgresql://unused", redis_url="redis://unused", upstream=native
    )
    told = create_app(settings).openapi()["components"]

    def holds(name: str, value: Any) -> bool:
        return bool(
            jsonschema_rs.Draft202012Validator(
                {"$ref": f"#/components/schemas/{name}", "components": told}
            ).is_valid(value)
        )

    files = {"type": "file_search", "vector_store_ids": ["vs_1"]}
    ran = {
        "id": "ci_1",
        "type": "code_interpreter_call",
        "status": "completed",
        "code": "1",
        "container_id": "c",
    }
    assert holds("InputTools", [files, {"type": "function", "name": "f"}])
    assert holds("ListedTools", [files])
    assert holds("OutputItem", ran)
    assert not holds("InputTools", [{"type": "telepathy"}])
    assert not schema_of("InputTools").is_valid([files])
    assert not schema_of("OutputItem").is_valid(ran)


def test_the_document_knows_every_error() -> None:
    error = document()["components"]["schemas"]["Error"]["properties"]["error"]["properties"]
    sources = [
        path
        for folder in ("web", "models")
        for path in (ROOT / folder).rglob("*.py")
        if "openapi" not in path.parts
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
    made_up = {
        f"{kind}_{side}_value"
        for kind in ("integer", "decimal")
        for side in ("below_min", "above_max")
    }
    lengths = {"string_above_max_length", "array_above_max_length", "empty_string", "empty_array"}
    assert {code for code in error["code"]["enum"] if code} == raised | made_up | lengths | {
        "rate_limit_exceeded",
        "http_error",
        "context_length_exceeded",
    }
    answers = document()["components"]["responses"]
    for kind in ApiError.__subclasses__():
        assert kind.type in error["type"]["enum"]
        assert f"Error{kind.status}" in answers or kind.status == 405, (
            "405 is described in the text: no documented operation answers it"
        )


def test_the_document_of_a_create_has_every_status_of_an_upstream() -> None:
    told = {int(code) for code in operations()["create"]["responses"]}
    assert error_rules.FORWARDED_STATUSES | {502, 504} <= told
    assert told == error_rules.FORWARDED_STATUSES | {200, 415, 424, 500, 502, 503, 504}


# The document's own examples.


def examples_of(part: JSON) -> list[Any]:
    named = [one["value"] for one in part.get("examples", {}).values()]
    return [part["example"], *named] if "example" in part else named


def test_the_examples_match_their_schemas() -> None:
    seen: Counter[str] = Counter()
    for told in [
        *operations().values(),
        *({"responses": {"": answer}} for answer in document()["components"]["responses"].values()),
    ]:
        for answer in told["responses"].values():
            for kind, content in answer.get("content", {}).items():
                for example in examples_of(content):
                    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2] or kind
                    seen[name] += 1
                    (check_stream if name == "text/event-stream" else checked(name))(example)
    assert seen.keys() == {
        "Response",
        "InputItemList",
        "Conversation",
        "ConversationItemList",
        "Error",
        "text/event-stream",
    }


def checked(name: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        require(name, value)
        if name == "Response":
            check_response(value)

    return check


def check_stream(stream: str, *, whole: bool = True) -> list[JSON]:
    """Checks a stream against the document; returns its events."""
    blocks = [block for block in stream.split("\n\n") if block and not block.startswith(":")]
    assert stream.endswith("\n\n")
    last = blocks.pop() if whole else None
    assert last in (None, "data: [DONE]"), stream
    events = [decode(f"{block}\n\n".encode()) for block in blocks if block != "data: [DONE]"]
    for event in events:
        require("StreamEvent", event)
        check_event(event)
    return events


def test_the_example_requests_are_accepted_here_and_by_the_sdk() -> None:
    content = operations()["create"]["requestBody"]["content"]["application/json"]
    strict = TypeAdapter[Any](response_create_params.ResponseCreateParams)
    for body in examples_of(content):
        require("CreateResponse", body)
        strict.validate_python(body)
        assert refusal_of(body) is None, body


# The document and generated requests.


@cache
def generated(operation: str, mode: GenerationMode) -> st.SearchStrategy[Case]:
    """Requests generated from the document, without its demand for API keys."""
    open_to_all = {key: value for key, value in document().items() if key != "security"}
    whole_streams = schemathesis.Config.from_dict({"max-stream-events": 10_000})
    told = schemathesis.openapi.from_dict(open_to_all, config=whole_streams).find_operation_by_id(
        operation
    )
    return told.as_strategy(generation_mode=mode)


def generated_examples(count: int) -> hypothesis.settings:
    """Examples without the other phases: to shrink a request of this size takes minutes."""
    return hypothesis.settings(examples(count), phases=[Phase.generate])


def as_written(value: Any) -> Any:
    """Numbers as most encoders write them.

    JSON Schema takes 16.0 for an integer, this API does not.
    """
    if isinstance(value, dict):
        return {key: as_written(found) for key, found in value.items()}
    if isinstance(value, list):
        return [as_written(found) for found in value]
    return (
        int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53
        else value
    )


@generated_examples(40)
@given(case=generated("create", GenerationMode.POSITIVE))
def test_a_request_that_the_document_allows_is_accepted_and_echoed(case: Case) -> None:
    body = as_written(case.body)
    refused = refusal_of(body)
    if refused is not None:
        place = re.sub(r"\[\d+\]", "[]", refused.param or "")
        assert (refused.code, place) in SENSIBLE, f"{refused.message} {body}"
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


@generated_examples(40)
@given(case=generated("create", GenerationMode.NEGATIVE))
def test_a_request_that_the_document_forbids_is_refused(case: Case) -> None:
    body = case.body
    if not isinstance(body, dict | list | str | int | float | bool | None) or schema_of(
        "CreateResponse"
    ).is_valid(body):
        return  # something else of the request is wrong
    assert refusal_of(body) is not None, (
        "accepted: "
        f"{[fault.message for fault in schema_of('CreateResponse').iter_errors(body)]} {body}"
    )


# The document and the running server.


@dataclass(slots=True)
class RequestTarget:
    """The models and objects that generated requests name, and the answers."""

    url: str
    key: str
    models: list[str]
    responses: dict[str, list[str]]
    """Operation -> ids of responses to name. None of them runs for ever."""
    conversations: list[str]
    items: list[str]
    """Ids of items in each conversation."""
    seen: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    """(operation, status, content type) -> number of answers."""

    def send(self, case: Case, session: requests.Session) -> None:
        """Sends one request and compares the answer with the document."""
        answer = case.call(
            base_url=self.url,
            session=session,
            headers={"authorization": f"Bearer {self.key}"},
            timeout=60,
        )
        kind = (answer.headers.get("content-type") or [""])[0].partition(";")[0]
        operation: str = case.operation.definition.raw["operationId"]
        self.seen[operation, answer.status_code, kind] += 1
        said = f"{case.as_curl_command()}\n{answer.status_code} {answer.content[:1000]!r}"
        assert answer.status_code not in (422, 500), said
        case.validate_response(answer, checks=CHECKS)
        if (
            kind == "text/event-stream" and operation != "chat"
        ):  # whose chunks are the upstream's affair
            check_stream(answer.content.decode())
        elif answer.status_code == 200 and operation in ("create", "retrieve", "cancel"):
            check_response(answer.json())


WAYS: list[JSON] = [
    {},
    {"stream": True},
    {"background": True, "store": True},
    {"background": True, "store": True, "stream": True},
]
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]


def fuzz(
    target: RequestTarget, operation: str, mode: GenerationMode, settings: hypothesis.settings
) -> None:
    """Sends generated requests of one operation that name existing models and responses."""

    @settings
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        case: Any = data.draw(generated(operation, mode))
        known = target.responses.get(operation, target.responses[""])
        # The list of models is remembered for a minute, so only the one that is always there is
        # sure to be in it.
        places = (
            ("response_id", known),
            ("model", [ALWAYS_LISTED_MODEL]),
            ("conversation_id", target.conversations),
            ("item_id", target.items),
        )
        for name, ours in places:
            if name in case.path_parameters:
                case.path_parameters[name] = data.draw(
                    st.sampled_from([case.path_parameters[name], *ours])
                )
        if (
            "conversation_id" in case.path_parameters
            and isinstance(case.body, dict)
            and mode is GenerationMode.POSITIVE
        ):
            sane = (
                {"metadata": {"a": "b"}}
                if operation == "update_conversation"
                else {"items": [{"role": "user", "content": "x"}]}
            )
            case.body = data.draw(st.sampled_from([as_written(case.body), sane]))
        elif (
            operation in ("compact", "input_tokens")
            and isinstance(case.body, dict)
            and mode is GenerationMode.POSITIVE
        ):
            asked = {
                "model": target.models[0],
                "input": data.draw(
                    st.sampled_from(
                        ["Hello.", case.body.get("input"), [{"role": "user", "content": "x"}]]
                    )
                ),
            }
            case.body = as_written(data.draw(st.sampled_from([case.body, asked])))
        elif (
            operation == "chat" and isinstance(case.body, dict) and mode is GenerationMode.POSITIVE
        ):
            case.body = as_written(case.body) | {"model": data.draw(st.sampled_from(target.models))}
        elif (
            operation == "create"
            and isinstance(case.body, dict)
            and mode is GenerationMode.POSITIVE
        ):
            case.body = (
                as_written(case.body)
                | data.draw(st.sampled_from(WAYS))
                | {"model": data.draw(st.sampled_from(target.models))}
            )
            if data.draw(st.booleans()):
                case.headers.pop("Idempotency-Key", None)  # generated keys are short and meet again
            if isinstance(case.body.get("previous_response_id"), str):
                case.body["previous_response_id"] = data.draw(st.sampled_from(known))
            if case.body.get("conversation") is not None:
                case.body["conversation"] = data.draw(st.sampled_from(target.conversations))
        target.send(case, session)

    with requests.Session() as session:
        run()


async def target_on(stack: Stack) -> RequestTarget:
    """Models with every outcome, and responses in every state."""
    fake, api = stack.fake, stack.api()
    said = fake.script(
        [
            reasoning("Hm."),
            text("Well, ", "yes."),
            call(0, "call_1", "look", '{"at": "it"}'),
            finish("tool_calls"),
            usage(),
        ]
    )
    short, silent = fake.script([text("So"), finish("length")]), fake.script([hang()])
    refusing, broken = (
        fake.script([refusal("No."), finish(), usage()]),
        fake.script([text("A"), drop()]),
    )
    limited, away = (
        fake.script([status(429, headers={"retry-after": "1"})]),
        fake.script([status(503)]),
    )
    ended = [
        await api.create_background(model, stream=False)
        for model in (said, short, refusing, broken, limited, "nobody")
    ]
    ended.append((await api.create(said))["id"])
    for name in ended:
        await api.wait_for_end(name)
    running = [await api.create_background(silent) for _ in range(8)]
    await api.cancel(running[0])
    deleted = await api.create_background(said)
    await api.call("DELETE", f"/responses/{deleted}")
    known = {
        "": [*ended, running[0], deleted],
        "cancel": [*ended, *running[:4]],
        "delete": [*running[4:], deleted],
    }
    items = [f"msg_{at}" for at in range(8)]
    begun = {"items": [{"role": "user", "content": "Hm.", "id": item} for item in items]}
    conversations = [
        (await api.call("POST", "/conversations", begun)).body["id"] for _ in range(20)
    ]
    models = [said, short, refusing, broken, limited, away, "nobody"]
    return RequestTarget(
        api.base_url.removesuffix("/v1"), stack.key, models, known, conversations, items
    )


EXAMPLES = {"create": 20, "cancel": 12}
"""Operation -> generated requests. Creates vary most, and few responses can be cancelled."""


async def test_the_server_answers_as_the_openapi_document_says(tool_stack: Stack) -> None:
    target = await target_on(tool_stack)
    for operation, told in operations().items():
        can_be_wrong = "requestBody" in told or any(
            one["in"] == "query" for one in told.get("parameters", ())
        )
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)[: 1 + can_be_wrong]:
            await asyncio.to_thread(
                fuzz,
                target,
                operation,
                mode,
                generated_examples(EXAMPLES.get(operation, 6)),
            )
    answered = {(operation, code) for operation, code, _ in target.seen}
    assert answered >= {(operation, 200) for operation in operations()}, target.seen
    assert answered >= {("create", 400), ("retrieve", 404), ("cancel", 400), ("one_model", 404)}, (
        target.seen
    )


async def test_every_upstream_failure_of_a_foreground_request_is_documented(
    shared_stack: Stack, api: Api
) -> None:
    seen = set()
    for model in (await target_on(shared_stack)).models:
        answer = await api.call("POST", "/responses", {"model": model, "input": "Hello."})
        seen.add(answer.status)
        require("Response" if answer.status == 200 else "Error", answer.body)
    assert seen == {200, 400, 429, 502}
    assert {str(code) for code in seen} <= operations()["create"]["responses"].keys()


async def test_every_route_under_v1_needs_a_key_and_documents_it(
    shared_stack: Stack, api: Api
) -> None:
    stranger = shared_stack.api(key="bb-nobody")
    for path, methods in document()["paths"].items():
        for method, told in methods.items():
            if path.startswith("/v1/"):
                place = re.sub(r"\{\w+\}", new_uuid().hex, path.removeprefix("/v1"))
                answer = await stranger.call(method.upper(), place)
                assert answer.status == 401
                assert "401" in told["responses"]
                require("Error", answer.body)
            else:
                assert told["security"] == []


async def test_the_document_is_served(shared_stack: Stack, api: Api) -> None:
    url = f"{api.base_url.removesuffix('/v1')}/openapi.json"
    async with shared_stack.session.get(url) as answer:
        served = await answer.json()
    limit = served["components"]["responses"].pop("Error413")
    assert "4000000 bytes" in limit["description"]
    assert served == {
        **document(),
        "components": {
            **document()["components"],
            "responses": {
                name: told
                for name, told in document()["components"]["responses"].items()
                if name != "Error413"
            },
        },
    }
