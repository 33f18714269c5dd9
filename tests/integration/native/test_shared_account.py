"""Projects that share an upstream's account see nothing of each other there; and nobody sees the
headers and the query with which this server calls the upstream."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from models.keys import KeyGrant
from models.projects.scopes import Scope
from tests.integration.operator.test_operations import backburner
from tests.support import keys
from tests.support.api import JSON, Api, until
from tests.support.batches import line, start, until_status
from tests.support.fake_upstream import FakeUpstream, chunk, reply, status
from tests.support.native_script import (
    begin,
    end,
    native_events,
    native_reply,
    reasoning_item,
    server_tool_item,
)
from tests.support.stack import Databases, Stack, SuiteSettings, stack
from tests.support.tool_turns import TOOL_SETTINGS

OWN_KEY = "key-of-one-project"
KEY, HEADER, QUERY = "canary-key-0001", "canary-header value/0002+", "canary query?0003=/&é"
FILE = f"""
[upstreams.native]
base_url = "{{fake}}"
api_key = "{KEY}"
api = "responses"
max_retries = 0
account_ids = ["trusted"]
headers = {{{{ x-tenant = "{HEADER}" }}}}
query = {{{{ api-token = "{QUERY}" }}}}

[upstreams.chat]
base_url = "{{fake}}"
api_key = "{KEY}"
max_retries = 0
account_ids = ["trusted"]
passthrough = ["extra"]
headers = {{{{ x-tenant = "{HEADER}" }}}}
query = {{{{ api-token = "{QUERY}" }}}}

[upstreams.own]
base_url = "{{fake}}"
api_key = "{OWN_KEY}"
max_retries = 0

[upstreams.own-down]
base_url = "http://127.0.0.1:9/v1"
max_retries = 0

[routes]
"*" = "native"
"chat-*" = "chat"
"""
CODE_CALL: JSON = {
    "id": "ci_upstream",
    "type": "code_interpreter_call",
    "status": "completed",
    "container_id": "cntr_of_the_first",
    "code": "1",
    "outputs": [],
}


@pytest.fixture(scope="module")
async def own_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("account")
    (folder / "backburner.toml").write_text(FILE.format(fake=fake.base_url))
    settings = {**TOOL_SETTINGS, "BACKBURNER_CONFIG": str(folder / "backburner.toml")}
    async with stack(folder, database_server, suite_settings, fake, settings=settings) as running:
        yield running


async def client(own_stack: Stack, project: str) -> Api:
    return own_stack.api(key=await asyncio.to_thread(keys.create, own_stack.dsn, project))


async def post(api: Api, model: str, **body: Any) -> tuple[int, str | None, str | None]:
    answer = await api.call("POST", "/responses", {"model": model, "input": "Hi.", **body})
    if answer.status == 200:
        return 200, None, None
    return answer.status, answer.error["code"], answer.error["param"]


TOOLS: list[tuple[JSON, str]] = [
    ({"type": "file_search", "vector_store_ids": ["vs_1"]}, "vector_store_ids"),
    ({"type": "code_interpreter", "container": "cntr_1"}, "container"),
    (
        {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file-1"]}},
        "container.file_ids",
    ),
    (
        {"type": "image_generation", "input_image_mask": {"file_id": "file-1"}},
        "input_image_mask.file_id",
    ),
    (
        {"type": "shell", "environment": {"type": "container_reference", "container_id": "c"}},
        "environment.container_id",
    ),
    (
        {
            "type": "function",
            "name": "f",
            "parameters": {"type": "object", "properties": {}},
            "strict": False,
            "next_year": {"container_id": "c"},
        },
        "next_year.container_id",
    ),
]


@pytest.mark.parametrize(("tool", "place"), TOOLS, ids=[place for _, place in TOOLS])
async def test_a_tool_may_name_objects_of_the_account_only_for_a_project_that_is_listed(
    own_stack: Stack, fake: FakeUpstream, tool: JSON, place: str
) -> None:
    model = fake.script(native_reply("ok"))
    refused = await post(await client(own_stack, "stranger"), model, tools=[tool])
    assert refused == (400, "account_id_not_allowed", f"tools[0].{place}")
    assert not fake.requests_for(model)
    trusted = await client(own_stack, "trusted")
    assert await post(trusted, model, tools=[tool]) == (200, None, None)
    assert fake.requests_for(model)[0].body["tools"] == [tool]


async def test_a_file_of_this_server_is_sent_as_data_and_one_of_the_account_by_its_id(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    stranger, trusted = await client(own_stack, "stranger"), await client(own_stack, "trusted")
    files = own_stack.openai(key=stranger.key).files
    stored = await files.create(file=("a.pdf", b"%PDF-1.7"), purpose="user_data")
    model = fake.script(native_reply("ok"), native_reply("ok"))
    own: JSON = {"type": "input_file", "file_id": stored.id}
    assert await post(stranger, model, input=[{"role": "user", "content": [own]}])
    theirs: JSON = {"type": "input_image", "file_id": "file-G9RUSJfisA2m5m8zsRMoLD"}
    message = {"role": "user", "content": [theirs]}
    place = "[0].content[0].file_id"
    for project, used, refusal in (
        (stranger, model, "account_id_not_allowed"),
        (trusted, "chat-model", "file_not_found"),
    ):
        answer = await post(project, used, input=[message])
        assert answer == (400, refusal, f"input{place}")
    refused = await stranger.call("POST", "/conversations", {"items": [message]})
    assert refused.error["param"] == f"items{place}"
    made = (await trusted.call("POST", "/conversations", {"items": [message]})).body
    assert (await post(trusted, model, conversation=made["id"]))[0] == 200
    sent = [each.body["input"][0]["content"][0] for each in fake.requests_for(model)]
    data = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0xLjc="}
    assert sent == [{"type": "input_file", **data}, {**theirs, "detail": "auto"}]
    chat = fake.script(reply("never"), name="chat-of-files")
    assert (await post(trusted, chat, conversation=made["id"]))[:2] == (400, "file_not_found")
    assert not fake.requests_for(chat)


async def test_a_container_is_used_again_only_by_the_project_whose_output_named_it(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    first, second = await client(own_stack, "first"), await client(own_stack, "second")
    model = fake.script([begin(), server_tool_item(CODE_CALL), end()], native_reply("again"))
    made = await first.create(
        model, tools=[{"type": "code_interpreter", "container": {"type": "auto"}}]
    )
    assert made["output"][0]["container_id"] == "cntr_of_the_first"
    tool = {"type": "code_interpreter", "container": "cntr_of_the_first"}
    assert await post(first, model, tools=[tool]) == (200, None, None)
    refusal = (400, "account_id_not_allowed", "tools[0].container")
    assert await post(second, model, tools=[tool]) == refusal
    # An item of the client's own making is no proof, and is itself refused: with `auto` the
    # upstream uses the container of the last call in the history.
    forged = [{**CODE_CALL, "id": "ci_forged"}, {"role": "user", "content": "ls"}]
    place = (400, "account_id_not_allowed", "input[0].container_id")
    assert await post(second, model, input=forged) == place
    stored = await second.call("POST", "/conversations", {"items": forged})
    assert (stored.status, stored.error["param"]) == (400, "items[0].container_id")
    assert await post(second, model, tools=[tool]) == refusal
    assert await post(first, model, input=forged) == (200, None, None)


async def test_encrypted_reasoning_returns_only_from_the_project_it_was_made_for(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    first, second = await client(own_stack, "first"), await client(own_stack, "second")
    steps = [begin(), reasoning_item("gAAAA-of-first", "hm"), end()]
    model = fake.script(steps, native_reply("ok"))
    made = await first.create(model, include=["reasoning.encrypted_content"], store=False)
    [thought] = made["output"]
    items = [thought, {"role": "user", "content": "Go on."}]
    assert await post(first, model, input=items, store=False) == (200, None, None)
    sent = fake.requests_for(model)[-1].body["input"][0]
    assert (sent["type"], sent["encrypted_content"]) == ("reasoning", "gAAAA-of-first")
    refusal = (400, "invalid_encrypted_content", "input[0].encrypted_content")
    assert await post(second, model, input=items) == refusal
    for raw in ("gAAAA-of-first", thought["encrypted_content"][:-1] + "x"):
        stolen = [{**thought, "encrypted_content": raw}, items[1]]
        assert await post(second, model, input=stolen) == refusal
    # Content that was stored without a sealing key is left out, and the conversation goes on.
    old = [{**thought, "encrypted_content": "bbu1.bmF0aXZl.gAAAA-of-first"}, items[1]]
    assert await post(second, model, input=old) == (200, None, None)
    assert "gAAAA" not in json.dumps(fake.requests_for(model)[-1].body)
    trusted = await client(own_stack, "trusted")
    mine = [{**thought, "encrypted_content": "gAAAA-from-elsewhere"}, items[1]]
    assert await post(trusted, model, input=mine) == (200, None, None)
    assert "gAAAA-from-elsewhere" in json.dumps(fake.requests_for(model)[-1].body)


async def test_an_image_is_no_reference_to_another_projects_image(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script(native_reply("ok"))
    image = {"type": "image_generation_call", "id": "ig_of_another_project"}
    stranger = await client(own_stack, "stranger")
    items = [image, {"role": "user", "content": "Make it blue."}]
    refused = await post(stranger, model, input=items)
    assert refused == (400, "account_id_not_allowed", "input[0].id")


async def test_a_chat_completion_names_no_file_of_the_account(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    stranger, trusted = await client(own_stack, "stranger"), await client(own_stack, "trusted")
    model, chat = fake.script(reply("ok")), fake.script(reply("ok"), name="chat-files")
    part = {"type": "file", "file": {"file_id": "file-1"}}

    async def complete(api: Api, name: str) -> tuple[int, str | None]:
        body = {"model": name, "messages": [{"role": "user", "content": [part]}]}
        answer = await api.call("POST", "/chat/completions", body)
        return answer.status, None if answer.status == 200 else answer.error["param"]

    place = "messages[0].content[0].file.file_id"
    for name in (model, chat):
        assert await complete(stranger, name) == (400, place)
        assert not fake.requests_for(name)
        assert await complete(trusted, name) == (200, None)


async def test_a_parameter_that_is_passed_on_names_no_object_of_the_account(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    stranger, trusted = await client(own_stack, "stranger"), await client(own_stack, "trusted")
    model = fake.script(reply("ok"), name="chat-passed")
    refused = await post(stranger, model, extra={"sources": [{"file_ids": ["file-1"]}]})
    assert refused == (400, "account_id_not_allowed", "extra.sources[0].file_ids")
    assert await post(stranger, model, extra={"session_id": "s", "top_k": 3}) == (200, None, None)
    assert await post(trusted, model, extra={"file_id": "file-1"}) == (200, None, None)
    assert fake.requests_for(model)[-1].body["extra"] == {"file_id": "file-1"}


# --- upstreams of one project ---


OWN_ROUTES = (
    ("--route", "own-*=own-down,own"),
    ("--route", "house=own:own-alias"),
    ("--route", "gone-*=gone"),
)


async def _owner(own_stack: Stack, name: str) -> Api:
    """A client of a project with routes of its own."""
    api = await client(own_stack, name)
    options = [word for option in OWN_ROUTES for word in option]
    made = await backburner(own_stack, "projects", "set", name, *options)
    assert made.code == 0
    assert made.err.startswith("Warning: the configuration here has no upstream gone. ")
    return api


def _keys_of(fake: FakeUpstream, model: str) -> set[str]:
    """The credentials with which the upstream was called for a model."""
    return {request.headers["authorization"] for request in fake.requests_for(model)}


async def test_a_project_reaches_what_its_own_routes_name_and_nothing_else(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    owner = await _owner(own_stack, "owner")
    model = fake.script(reply("mine"), name="own-first")
    fake.script(reply("alias"), name="own-alias")
    chat = fake.script(reply("chat"), name="chat-for-all")
    first = await owner.create(model)
    assert first["output_text"] == "mine", "its first upstream is down, the second answers"
    more = await owner.create(model, previous_response_id=first["id"])
    assert more["output_text"] == "mine"
    background = await owner.create_background(model)
    assert (await owner.wait_for_end(background))["status"] == "completed"
    assert (await owner.create("house"))["output_text"] == "alias"
    proxied = await owner.call("POST", "/chat/completions", {"model": model, "messages": []})
    assert proxied.status == 200
    assert _keys_of(fake, model) == _keys_of(fake, "own-alias") == {f"Bearer {OWN_KEY}"}
    assert await post(owner, chat) == (400, "model_not_found", "model")
    refused = await owner.call("POST", "/chat/completions", {"model": chat, "messages": []})
    assert (refused.status, refused.error["code"]) == (404, "model_not_found")
    assert not fake.requests_for(chat)
    listed = {each["id"] for each in (await owner.call("GET", "/models")).body["data"]}
    assert "house" in listed
    assert all(name == "house" or name.startswith("own-") for name in listed)


async def test_no_request_of_another_project_reaches_the_upstream_of_one(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    owner, stranger = await _owner(own_stack, "owner-b"), await client(own_stack, "stranger-b")
    model = "own-wanted"
    for name in (model, "house"):
        fake.decide(
            name,
            lambda request: (
                native_reply("theirs") if request.path == "/v1/responses" else [status(400)]
            ),
        )
    mine = fake.script(reply("mine"), name="own-kept")
    kept = await owner.create(mine)
    for body in (
        {"model": model, "input": "x"},
        {"model": "house", "input": "x"},
        {"model": model, "input": "x", "background": True},
        {"model": model, "input": "x", "stream": True},
        {"model": model, "input": "x", "upstream": "own"},
        {"model": mine, "input": "x", "previous_response_id": kept["id"]},
    ):
        await stranger.call("POST", "/responses", body)
    for path, body in (
        ("/chat/completions", {"messages": []}),
        ("/embeddings", {"input": "x"}),
        ("/responses/compact", {"input": "x"}),
        ("/responses/input_tokens", {"input": "x"}),
    ):
        await stranger.call("POST", path, {"model": model, **body})
    official = own_stack.openai(key=stranger.key)
    batch = await start(official, [line("one", model)])
    await until_status(official, batch, "completed")
    called = _keys_of(fake, model) | _keys_of(fake, "house")
    assert called == {f"Bearer {KEY}"}, "its requests follow the routes of the server"
    assert _keys_of(fake, mine) == {f"Bearer {OWN_KEY}"}
    assert len(fake.requests_for(mine)) == 1
    listed = await stranger.call("GET", "/models")
    assert not [each for each in listed.body["data"] if each["owned_by"] == "own"]


async def test_a_route_to_an_upstream_that_is_not_configured_is_the_operators_mistake(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    owner = await _owner(own_stack, "owner-c")
    for path, body in (
        ("/responses", {"input": "x"}),
        ("/chat/completions", {"messages": []}),
        ("/embeddings", {"input": "x"}),
    ):
        refused = await owner.call("POST", path, {"model": "gone-away", **body})
        assert (refused.status, refused.error["code"]) == (503, "upstream_not_configured")
        assert refused.headers["x-should-retry"] == "false"
        assert "gone" not in refused.error["message"].replace("gone-away", "")
    logged = own_stack.webs[0].log.read_text()
    assert logged.count("project_upstreams_not_configured") >= 1
    model = fake.script(native_reply("all"))
    await backburner(own_stack, "projects", "set", "owner-c", "--no-routes")

    async def follows_the_server() -> bool:
        return await post(owner, model) == (200, None, None)

    await until(follows_the_server, 5)
    grant = KeyGrant(frozenset((Scope.ADMIN,)), "operations")
    admin = own_stack.api(key=keys.create(own_stack.dsn, "default", grant=grant))
    made = {"name": "owner-d", "policy": {"routes": {"*": ["own", "nowhere"]}}}
    wrong = await admin.call("POST", "/organization/projects", made)
    assert (wrong.status, wrong.error["param"]) == (400, "policy.routes")
    assert "there is no upstream 'nowhere'" in wrong.error["message"]


# --- canaries ---

QUOTED = "canary%20query%3F0003%3D%2F%26%C3%A9"
ECHO = f"Invalid token {QUERY} of {HEADER} with {KEY}; api-token={QUOTED}"
ERROR = {"error": {"message": ECHO, "code": 400}}
CUT = {"error": {"message": "x" * 480 + QUERY, "code": 400}}
FAILURES: list[tuple[str, list[Any], bool]] = [
    # the upstream, its script, and whether it reports the error inside a stream
    ("native", [status(400, ERROR)], False),
    ("native", [status(400, CUT)], False),
    ("native", [status(401, ERROR)], False),
    ("native", [status(500, ERROR)], False),
    ("native", [begin(), native_events({"type": "error", "message": ECHO, "code": "x"})], True),
    ("native", [begin(), end("failed", error={"message": ECHO, "code": "server_error"})], True),
    ("chat", [status(400, ERROR)], False),
    ("chat", [status(503, ERROR)], False),
    ("chat", [chunk(ERROR)], True),
]


@pytest.mark.parametrize(("kind", "script", "in_stream"), FAILURES)
async def test_no_error_shows_the_key_the_headers_or_the_query_of_an_upstream(
    own_stack: Stack, fake: FakeUpstream, kind: str, script: list[Any], in_stream: bool
) -> None:
    api = own_stack.api()
    model = fake.script(script)
    if kind == "chat":
        model = fake.script(script, name=f"chat-{model}")
    answer = await api.call("POST", "/responses", {"model": model, "input": "Hi."})
    assert answer.status >= 400, answer.raw
    assert fake.requests_for(model)[0].headers["x-tenant"] == HEADER
    assert "api-token=canary" in fake.requests_for(model)[0].query
    streamed = await api.call(
        "POST", "/responses", {"model": model, "input": "Hi.", "stream": True}
    )
    seen = answer.raw + streamed.raw
    made = streamed.headers.get("x-request-id", "")
    explained = await _command(own_stack, "explain", made, "--json")
    body = {"model": model, "messages": [], "stream": in_stream}
    proxied = await api.call("POST", "/chat/completions", body)
    assert (proxied.status == 200) is in_stream
    if in_stream:
        assert "Invalid token … of …" in proxied.raw.decode()
    seen += proxied.raw
    assert b"canary" not in seen, seen
    assert "canary" not in explained


async def test_no_log_and_no_command_shows_them(own_stack: Stack, fake: FakeUpstream) -> None:
    configured = await _command(own_stack, "config", "check")
    configured += await _command(own_stack, "config", "check", "--json")
    assert "x-tenant" in configured, "the names are shown"
    assert "api-token" in configured
    model = fake.script([status(400, ERROR)], name="chat-checked")
    checked = await _command(own_stack, "upstream", "check", "chat", "--model", model)
    assert "Invalid token" in checked
    assert "canary" not in configured + checked
    for process in own_stack.started:
        assert "canary" not in process.log.read_text(errors="replace")
    health = await own_stack.readyz()
    assert "canary" not in json.dumps(health)


async def _command(own_stack: Stack, *arguments: str) -> str:
    result = await asyncio.to_thread(
        CliRunner(env=own_stack.environment()).invoke, app, arguments, catch_exceptions=False
    )
    return result.output
