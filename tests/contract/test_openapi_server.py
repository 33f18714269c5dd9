"""The running server conforms to the document at /openapi.json, for requests made from it."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import requests
from hypothesis import given
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from features.proxy.endpoints import ENDPOINTS
from models.ids import new_uuid
from models.keys import KeyGrant
from models.projects.scopes import Scope
from models.version import VERSION
from tests.support import keys
from tests.support.api import JSON, Api
from tests.support.batches import line, start
from tests.support.fake_upstream import (
    ALWAYS_LISTED_MODEL,
    call,
    fail,
    finish,
    hang,
    reasoning,
    refusal,
    status,
    text,
    usage,
)
from tests.support.openapi_document import check_stream, document, operations, require
from tests.support.openapi_requests import (
    Case,
    generated,
    generated_examples,
    request,
    with_integers,
)
from tests.support.stack import Stack
from tests.support.strict_types import check_response

PROXIED = tuple(endpoint.name for endpoint in ENDPOINTS if endpoint.name != "chat")
UPLOADED = ("add_upload_part", "complete_upload", "cancel_upload")
"""Operations of an upload that exists."""
ADMIN = tuple(
    name for name, each in operations().items() if {"admin": []} in each.get("security", ())
)
OF_WEBHOOKS = tuple(name for name in operations() if "endpoint" in name)
OF_SCHEDULES = tuple(name for name in operations() if "schedule" in name)
SIMPLE = {*ADMIN, *OF_WEBHOOKS, *OF_SCHEDULES, *PROXIED}
"""Operations whose valid requests vary little: one is enough."""
EXAMPLES = {"create": 4, "cancel": 2}
"""Operation -> generated requests of each mode, if not 1. A create varies most."""
UPLOAD: Any = {"bytes": 4, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
SCHEDULE: Any = {"cron": "0 0 29 2 *", "template": {"model": "demo", "input": "Hello."}}
ENDPOINT: Any = {"name": "a", "url": "https://nowhere.invalid/", "event_types": ["batch.failed"]}
NOT_GENERATED = {
    name
    for name in operations()
    if "vector_store" in name
    and name not in ("create_vector_store", "search_vector_store", "list_vector_store_files")
} | {
    name
    for name in operations()
    if name.startswith(("test_endpoint", "resend_event")) or name.endswith("_of_project")
}
"""Of webhooks those that need an endpoint that answers, and those for admins, which are the same as
those for the key's own project."""
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]


@dataclass(slots=True)
class FuzzedOrganization:
    """What the admin API changes."""

    key: str
    """of an admin"""
    admin_keys: list[str] = field(default_factory=list)
    projects: list[str] = field(default_factory=list)
    accounts: list[str] = field(default_factory=list)
    """of the last project"""
    project_keys: list[str] = field(default_factory=list)
    """of the last account"""


async def organization_of(stack: Stack) -> FuzzedOrganization:
    """Two projects with what belongs to them."""
    grant = KeyGrant(frozenset((Scope.ADMIN,)), "fuzz")
    key = await asyncio.to_thread(keys.create, stack.dsn, "default", grant=grant)
    made, api = FuzzedOrganization(key), stack.api(key=key)

    async def create(path: str, **body: Any) -> str:
        answer = await api.call("POST", f"/organization/{path}", body)
        assert answer.status == 200, answer.raw
        return str(answer.body["id"])

    for _ in range(2):
        project = await create("projects", name=f"fuzzed {new_uuid().hex}")
        path = f"projects/{project}/service_accounts"
        account = await create(path, name="a", create_service_account_only=True)
        made.projects.append(project)
        made.accounts.append(account)
        made.project_keys.append(await create(f"{path}/{account}/api_keys"))
        made.admin_keys.append(await create("admin_api_keys", name="a"))
    return made


@dataclass(slots=True)
class FuzzedServer:
    """A server with responses in every state, and what it returned so far."""

    url: str
    key: str
    models: list[str]
    away: list[str]
    """models for which a background response would wait"""
    responses: dict[str, list[str]]
    """operation -> responses for its requests, `""` for any other; all of them end. With the last
    one a request succeeds."""
    conversations: list[str]
    items: list[str]
    """of each conversation"""
    json_model: str
    """answers with an object at every endpoint that is forwarded"""
    files: list[str]
    uploads: dict[str, list[str]]
    """operation -> uploads that are open"""
    part: str
    """of the upload that is completed first"""
    batches: list[str]
    """they go on"""
    input_file: str
    """of a batch"""
    vector_stores: list[str]
    organization: FuzzedOrganization
    endpoints: list[str] = field(default_factory=list)
    """of webhooks"""
    schedules: list[str] = field(default_factory=list)
    containers: list[str] = field(default_factory=list)
    container_files: list[str] = field(default_factory=list)
    """of the last container"""
    seen: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    """(operation, status, content type) -> how often"""

    def known_responses(self, operation: str) -> list[str]:
        return self.responses.get(operation, self.responses[""])

    def send(self, case: Case, session: requests.Session) -> None:
        """Sends one request and compares the response with the document."""
        operation: str = case.operation.definition.raw["operationId"]
        key = self.organization.key if operation in ADMIN else self.key
        response = case.call(
            base_url=self.url,
            session=session,
            headers={"authorization": f"Bearer {key}"},
            timeout=60,
        )
        kind = (response.headers.get("content-type") or [""])[0].partition(";")[0]
        self.seen[operation, response.status_code, kind] += 1
        exchange = f"{case.as_curl_command()}\n{response.status_code} {response.content[:1000]!r}"
        assert response.status_code not in (422, 500), exchange
        case.validate_response(response, checks=CHECKS)
        if kind == "text/event-stream" and operation not in (
            "chat",
            *PROXIED,
        ):  # chat streams the upstream's chunks
            check_stream(response.content.decode())
        elif response.status_code == 200 and operation in (
            *("create", "retrieve", "cancel", "retry"),
        ):
            check_response(response.json())


async def server_of(stack: Stack) -> FuzzedServer:
    """A server with models that answer, fail and hang, and with responses in every state."""
    fake, api = stack.fake, stack.api()
    talking = fake.script(
        [
            reasoning("Hm."),
            text("Well, ", "yes."),
            call(0, "call_1", "look", '{"at": "it"}'),
            finish("tool_calls"),
            usage(),
        ]
    )
    short, silent = fake.script([text("So"), finish("length")]), fake.script([hang()])
    refusing = fake.script([refusal("No."), finish(), usage()])
    broken = fake.script([text("A"), fail()])
    limited = fake.script([status(429, headers={"retry-after": "1"})])
    down = fake.script([status(503)])
    ended = [
        await api.create_background(model, stream=False)
        for model in (talking, short, refusing, broken, "nobody")
    ]
    ended.append((await api.create(talking))["id"])
    for response in ended:
        await api.wait_for_end(response)
    running = [await api.create_background(silent) for _ in range(9)]
    await api.cancel(running[0])
    deleted = await api.create_background(talking)
    await api.call("DELETE", f"/responses/{deleted}")
    responses = {
        "": [deleted, running[0], *ended],
        "cancel": [*ended, *running[:4]],
        "delete": [deleted, *running[4:8]],
        "retry": [ended[1], ended[3]],
        "steer_response": [*ended, running[8]],
    }
    items = [f"msg_{number}" for number in range(8)]
    first_items = {"items": [{"role": "user", "content": "Hm.", "id": item} for item in items]}
    conversations = [
        (await api.call("POST", "/conversations", first_items)).body["id"] for _ in range(20)
    ]
    client = stack.openai()
    uploads = {
        name: [(await client.uploads.create(**UPLOAD)).id for _ in range(4)] for name in UPLOADED
    }
    part = await client.uploads.parts.create(uploads["complete_upload"][-1], data=b"text")
    batches = [await start(client, [line("a", silent)]) for _ in range(2)]
    return FuzzedServer(
        api.base_url.removesuffix("/v1"),
        stack.key,
        [talking, short, refusing, broken, limited, down, "nobody"],
        [limited, down],
        responses,
        conversations,
        items,
        fake.script([status(200, {"data": []})]),
        [
            (await client.files.create(file=("a.txt", b"a"), purpose="user_data")).id
            for _ in range(12)
        ],
        uploads,
        part.id,
        [batch.id for batch in batches],
        batches[0].input_file_id,
        [(await client.vector_stores.create()).id],
        await organization_of(stack),
    )


def fuzz(
    server: FuzzedServer, operation: str, mode: GenerationMode, settings: hypothesis.settings
) -> None:
    """Sends generated requests of one operation, many with models and responses that exist."""

    @settings
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        case: Any = data.draw(generated(operation, mode))
        use_existing_ids(data, case, server, operation)
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            change = BODY_CHANGES.get(operation, use_generated_body)
            if "conversation_id" in case.path_parameters:
                change = use_valid_conversation_body
            change(data, case, server)
        server.send(case, session)

    with requests.Session() as session:
        run()


def existing_ids(server: FuzzedServer, operation: str) -> dict[str, list[str]]:
    """Path parameter -> values that exist."""
    return {
        "response_id": server.known_responses(operation),
        # The list of models is cached for a minute: only this one is always in it.
        "model": [ALWAYS_LISTED_MODEL],
        "conversation_id": server.conversations,
        "item_id": server.items,
        "file_id": server.files,
        "upload_id": server.uploads.get(operation, []),
        "batch_id": server.batches,
        "vector_store_id": server.vector_stores,
        "container_id": server.containers[: -1 if operation == "delete_container" else None],
        "container_file_id": server.container_files,
        "project_id": server.organization.projects,
        "account_id": server.organization.accounts,
        "endpoint_id": server.endpoints,
        "schedule_id": server.schedules,
        "key_id": server.organization.admin_keys
        if "admin" in operation
        else server.organization.project_keys,
    }


def valid_bodies(server: FuzzedServer) -> dict[str, JSON]:
    """Operation -> a body with which it succeeds."""
    answered = {"model": server.models[0], "input": "Hello."}
    message = {"role": "user", "content": "Hello."}
    return {
        **dict.fromkeys(("create", "compact", "input_tokens"), answered),
        "retry": {"model": server.models[0]},
        "count_message_tokens": {"model": server.models[0], "messages": [message]},
        "create_message": {"model": server.models[0], "max_tokens": 9, "messages": [message]},
        "steer_response": {"input": [message]},
        "create_conversation": {"items": [message]},
        "add_items": {"items": [message]},
        "chat": {"model": server.models[0], "messages": [message]},
        **{name: {"model": server.json_model} for name in PROXIED},
        "update_conversation": {"metadata": {"a": "b"}},
        "create_project": {"name": f"fuzzed {new_uuid().hex}", "policy": {"retention": "7d"}},
        "update_project": {"weight": 2},
        "import_project": {
            "name": "any",
            "weight": 1,
            "policy": {},
            "service_accounts": [],
            "keys": [],
            "release": VERSION,
            "secret_keys": [],
        },
        "update_project_key": {"scopes": ["read"]},
        "create_admin_key": {"name": "made"},
        "create_service_account": {"name": "made"},
        "create_service_account_key": {"expires_in_seconds": 3600},
        "create_endpoint": ENDPOINT,
        "update_endpoint": {"enabled": False},
        "create_schedule": SCHEDULE,
        "update_schedule": {"name": "other"},
        "rotate_secret": {"overlap_seconds": 60},
        "create_file": {"file": "text", "purpose": "user_data"},
        "create_upload": UPLOAD,
        "add_upload_part": {"data": "text"},
        "complete_upload": {"part_ids": [server.part]},
        "create_vector_store": {"name": "a"},
        "create_container": {"name": "a"},
        "create_container_file": {"file": "text"},
        "search_vector_store": {"query": "a"},
        "create_batch": {
            "input_file_id": server.input_file,
            "endpoint": "/v1/responses",
            "completion_window": "24h",
        },
    }


def send_valid(server: FuzzedServer, operation: str) -> None:
    """Sends one request of the operation that must be answered with 200."""

    needs_time = operation == "costs" or operation.startswith("usage_")
    ids = {name: ids[-1] for name, ids in existing_ids(server, operation).items() if ids}
    body = valid_bodies(server).get(operation)
    case = request(operation, ids, {"start_time": 0} if needs_time else {}, body)
    with requests.Session() as session:
        server.send(case, session)
    assert (operation, 200) in {seen[:2] for seen in server.seen}, server.seen


def deletes_last(operation: str) -> tuple[bool, bool]:
    """Sorts operations so that nothing is deleted before the last request about it."""
    last = ("delete_conversation", "archive_project")
    return "delete" in operation or operation in last, operation in last


def use_existing_ids(data: st.DataObject, case: Case, server: FuzzedServer, operation: str) -> None:
    """Puts ids that exist into the paths of many requests."""
    for name, ids in existing_ids(server, operation).items():
        if name in case.path_parameters:
            generated_id = case.path_parameters[name]
            case.path_parameters[name] = data.draw(st.sampled_from([generated_id, *ids]))


def use_generated_body(_data: st.DataObject, _case: Any, _server: FuzzedServer) -> None:
    """Leaves the body as it was generated."""


def use_valid_conversation_body(data: st.DataObject, case: Any, _server: FuzzedServer) -> None:
    valid = (
        {"metadata": {"a": "b"}}
        if case.operation.definition.raw["operationId"] == "update_conversation"
        else {"items": [{"role": "user", "content": "x"}]}
    )
    case.body = data.draw(st.sampled_from([with_integers(case.body), valid]))


def use_working_model(data: st.DataObject, case: Any, server: FuzzedServer) -> None:
    """For compact and input_tokens, which need a model that answers."""
    inputs = ["Hello.", case.body.get("input"), [{"role": "user", "content": "x"}]]
    valid = {"model": server.models[0], "input": data.draw(st.sampled_from(inputs))}
    case.body = with_integers(data.draw(st.sampled_from([case.body, valid])))


def use_any_model(data: st.DataObject, case: Any, server: FuzzedServer) -> None:
    model = data.draw(st.sampled_from(server.models))
    case.body = with_integers(case.body) | {"model": model}


def use_json_model(_data: st.DataObject, case: Any, server: FuzzedServer) -> None:
    case.body = with_integers(case.body) | {"model": server.json_model}


CREATE_MODES: list[JSON] = [
    {},
    {"stream": True},
    {"background": True, "store": True},
    {"background": True, "store": True, "stream": True},
]


def use_any_create(data: st.DataObject, case: Any, server: FuzzedServer) -> None:
    """A create in any mode, with models, responses and conversations that exist."""
    mode = data.draw(st.sampled_from(CREATE_MODES))
    body = with_integers(case.body) | mode
    away = server.away if body.get("background") else []
    model = data.draw(st.sampled_from([name for name in server.models if name not in away]))
    case.body = body | {"model": model}
    if data.draw(st.booleans()):
        case.headers.pop("Idempotency-Key", None)  # generated keys are short, so they repeat
    if isinstance(case.body.get("previous_response_id"), str):
        previous = data.draw(st.sampled_from(server.known_responses("create")))
        case.body["previous_response_id"] = previous
    if case.body.get("conversation") is not None:
        case.body["conversation"] = data.draw(st.sampled_from(server.conversations))


BODY_CHANGES: dict[str, Callable[[st.DataObject, Any, FuzzedServer], None]] = {
    **dict.fromkeys(("compact", "count_message_tokens"), use_working_model),
    "create_message": use_any_model,
    "input_tokens": use_working_model,
    "chat": use_any_model,
    **dict.fromkeys(PROXIED, use_json_model),
    "create": use_any_create,
}
"""operation -> how a generated body is changed, so that many requests succeed"""


async def test_the_server_answers_as_the_openapi_document_says(tool_stack: Stack) -> None:
    server, client = await server_of(tool_stack), tool_stack.openai()
    server.endpoints = [(await client.webhooks.create(**ENDPOINT)).id for _ in range(4)]
    made = [await tool_stack.api().call("POST", "/schedules", SCHEDULE) for _ in range(2)]
    server.schedules = [each.body["id"] for each in made]
    server.containers = [(await client.containers.create(name="a")).id for _ in range(8)]
    server.container_files = [
        (await client.containers.files.create(server.containers[-1], file=(name, b"a"))).id
        for name in ("a.txt", "b.txt", "c.txt")
    ]
    # Most of vector stores is not generated: tests/integration has their requests.
    generated_operations = {n: each for n, each in operations().items() if n not in NOT_GENERATED}
    for name in sorted(generated_operations, key=deletes_last):
        await asyncio.to_thread(send_valid, server, name)
    for name, operation in generated_operations.items():
        can_be_wrong = "requestBody" in operation or (
            name not in SIMPLE
            and any(parameter["in"] == "query" for parameter in operation.get("parameters", ()))
        )
        modes = []
        if name not in SIMPLE:  # of these `send_valid` sent one
            modes.append(GenerationMode.POSITIVE)
        if can_be_wrong:
            modes.append(GenerationMode.NEGATIVE)
        for mode in modes:
            settings = generated_examples(EXAMPLES.get(name, 1))
            await asyncio.to_thread(fuzz, server, name, mode, settings)
    async for endpoint in client.webhooks.list():
        await client.webhooks.delete(endpoint.id)
    seen = {(name, code) for name, code, _ in server.seen}
    assert seen >= {("create", 400), ("retrieve", 404), ("cancel", 400)}, server.seen


async def test_every_upstream_failure_of_a_foreground_request_is_documented(
    shared_stack: Stack, api: Api
) -> None:
    seen = set()
    for model in (await server_of(shared_stack)).models:
        response = await api.call("POST", "/responses", {"model": model, "input": "Hello."})
        seen.add(response.status)
        require("Response" if response.status == 200 else "Error", response.body)
    assert seen == {200, 400, 429, 502}
    assert {str(code) for code in seen} <= operations()["create"]["responses"].keys()


async def test_every_route_under_v1_needs_a_key_and_documents_it(
    shared_stack: Stack, api: Api
) -> None:
    stranger = shared_stack.api(key="bb-nobody")
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            if not path.startswith("/v1/"):
                assert operation["security"] == []
                continue
            place = re.sub(r"\{\w+\}", new_uuid().hex, path.removeprefix("/v1"))
            response = await stranger.call(method.upper(), place)
            assert response.status == 401
            assert "401" in operation["responses"]
            is_anthropics = path.startswith("/v1/messages")
            require("AnthropicError" if is_anthropics else "Error", response.body)


async def test_the_document_is_served(shared_stack: Stack, api: Api) -> None:
    url = f"{api.base_url.removesuffix('/v1')}/openapi.json"
    async with shared_stack.session.get(url) as response:
        served = await response.json()
    limit = served["components"]["responses"].pop("Error413")
    assert "4000000 bytes" in limit["description"]
    components = document()["components"]
    others = {name: each for name, each in components["responses"].items() if name != "Error413"}
    assert served == {**document(), "components": {**components, "responses": others}}
