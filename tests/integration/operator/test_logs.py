"""What operators find in the logs: a line for each request and each ended response, only JSON."""

import asyncio
import secrets
from collections.abc import Iterable
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from tests.support.api import UNKNOWN_RESPONSE_ID, Api, until
from tests.support.fake_upstream import FakeUpstream, call, hang, reply, status, text
from tests.support.process_logs import line_of, lines
from tests.support.stack import Service, Stack
from tests.support.websocket_client import socket as open_socket


def new_request_id() -> str:
    return f"test-{secrets.token_hex(8)}"


@pytest.fixture
def web(shared_stack: Stack) -> Service:
    """The process that `api` sends its requests to."""
    return shared_stack.webs[0]


REFUSED: Iterable[tuple[str, str, Any, dict[str, str], dict[str, Any]]] = [
    # method, path, body, headers -> fields
    (
        "POST",
        "/responses",
        b"{",
        {},
        {"status": 400, "route": "/v1/responses", "error": "invalid_json"},
    ),
    ("POST", "/responses", {}, {"authorization": "x"}, {"status": 401, "route": "/v1/responses"}),
    ("POST", "/responses", b" " * 4_000_001, {}, {"status": 413, "route": "/v1/responses"}),
    ("PUT", "/responses", {}, {}, {"status": 405, "route": None, "path": "/v1/responses"}),
    ("GET", "/no/such?key=secret", None, {}, {"status": 404, "path": "/v1/no/such"}),
    (
        "GET",
        f"/responses/{UNKNOWN_RESPONSE_ID}",
        None,
        {},
        {"status": 404, "route": "/v1/responses/{response_id}", "response": UNKNOWN_RESPONSE_ID},
    ),
]


async def test_each_refused_request_has_a_line_under_its_id(api: Api, web: Service) -> None:
    for method, path, body, headers, expected in REFUSED:
        request_id = new_request_id()
        answer = await api.call(method, path, body, headers={"x-request-id": request_id, **headers})
        assert answer.headers["x-request-id"] == request_id
        line = await line_of(web, "http_request", request=request_id)
        assert expected.items() <= line.items()
        assert line["method"] == method
        assert line["level"] == "info"
        assert line["bytes"] == len(answer.raw)
        assert 0 < line["seconds"] < 30
        assert "aborted" not in line
        if expected["status"] == 401:
            assert "project" not in line
        else:
            assert (line["project"], line["key"]) == ("default", api.key[:8])


async def test_a_request_id_of_another_form_is_replaced(api: Api, web: Service) -> None:
    for given in ("a b", "x" * 129, "<script>", ""):
        answer = await api.call("GET", "/models", headers={"x-request-id": given})
        request_id = answer.headers["x-request-id"]
        assert request_id.startswith("req_")
        assert (await line_of(web, "http_request", request=request_id))["status"] == 200


async def test_both_ids_of_a_client_are_in_the_line(api: Api, web: Service) -> None:
    first, second = new_request_id(), new_request_id()
    headers = {"x-client-request-id": second}
    answer = await api.call("GET", "/models", headers=headers)
    assert answer.headers["x-request-id"] == second
    answer = await api.call("GET", "/models", headers=headers | {"x-request-id": first})
    assert answer.headers["x-request-id"] == first
    line = await line_of(web, "http_request", request=first)
    assert line["client_request"] == second


async def test_a_stream_has_its_line_when_it_ends(
    api: Api, fake: FakeUpstream, web: Service
) -> None:
    model = fake.script(reply("one", " two"))
    async with api.post_stream(model) as stream:
        request_id = stream.headers["x-request-id"]
        await stream.until("response.created")
        await stream.to_end()
    line = await line_of(web, "http_request", request=request_id)
    assert line["status"] == 200
    assert line["response"] == stream.response_id
    assert line["bytes"] > sum(map(len, stream.frames))
    assert "aborted" not in line


async def test_the_line_of_a_stream_shows_that_its_client_left(
    api: Api, fake: FakeUpstream, web: Service
) -> None:
    model = fake.script([text("one"), hang()])
    async with api.post_stream(model) as stream:
        await stream.until("response.output_text.delta")
    line = await line_of(web, "http_request", request=stream.headers["x-request-id"])
    assert line["aborted"] == "client"
    assert line["status"] == 200


async def test_the_line_of_a_waiting_request_shows_that_its_client_left(
    api: Api, fake: FakeUpstream, web: Service
) -> None:
    request_id, model = new_request_id(), fake.script([text("one"), hang()])
    body = {"model": model, "input": "Hello."}
    posting = asyncio.create_task(
        api.call("POST", "/responses", body, headers={"x-request-id": request_id})
    )
    await until(lambda: fake.requests_for(model))
    posting.cancel()
    line = await line_of(web, "http_request", request=request_id)
    assert (line["status"], line["aborted"]) == (499, "client")


async def test_an_ended_response_has_one_line_under_the_id_of_its_request(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    request_id = new_request_id()
    model = fake.script(
        [call(0, "a", "look_up", "{}"), call(1, "b", "look_up", "{}"), *reply("one")]
    )
    tool = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}
    body = {"model": model, "input": "Hello.", "tools": [tool], "background": True}
    answer = await api.call("POST", "/responses", body, headers={"x-request-id": request_id})
    ended = await api.wait_for_end(answer.body["id"])
    line = await line_of(shared_stack.workers[0], "response_ended", request=request_id)
    assert line["response"] == ended["id"]
    assert (line["status"], line["model"], line["upstream"]) == ("completed", model, "default")
    assert (line["attempts"], line["reason"], line["background"]) == (1, None, True)
    assert 0 <= line["queued_seconds"] <= line["first_token_seconds"] <= line["seconds"] < 30
    tokens = (line["input_tokens"], line["output_tokens"])
    assert tokens == (ended["usage"]["input_tokens"], ended["usage"]["output_tokens"])
    assert line["tools"] == {"function:look_up": 2}
    explained = await asyncio.to_thread(
        CliRunner(env=shared_stack.environment()).invoke, app, ("explain", request_id)
    )
    assert explained.exit_code == 0, explained.stderr
    assert explained.stdout.startswith(ended["id"])


async def test_lines_of_a_worker_about_a_response_have_both_ids(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    request_id, model = new_request_id(), fake.script([status(404)])
    body = {"model": model, "input": "Hello."}
    answer = await api.call("POST", "/responses", body, headers={"x-request-id": request_id})
    assert answer.status >= 400
    line = await line_of(shared_stack.workers[0], "response_ended", request=request_id)
    web_line = await line_of(shared_stack.webs[0], "http_request", request=request_id)
    assert (line["status"], line["response"]) == ("failed", web_line["response"])
    assert line["reason"]


async def test_a_worker_logs_only_json_to_its_end(shared_stack: Stack) -> None:
    worker = await shared_stack.start_worker()
    await worker.stop_cleanly()
    shared_stack.workers.remove(worker)
    events = [line["event"] for line in lines(worker)]
    assert "celery_message" in events
    assert events[-1] == "worker_stopped"


def creates_of(web: Service, request_id: str) -> list[Any]:
    """The lines of the creates on a WebSocket."""
    return [
        line
        for line in lines(web)
        if line["event"] == "websocket_create" and line["request"] == request_id
    ]


async def test_a_websocket_each_create_on_it_and_its_response_have_one_line(
    shared_stack: Stack, web: Service
) -> None:
    request_id = new_request_id()
    headers = {"authorization": f"Bearer {shared_stack.key}", "x-request-id": request_id}
    url = f"http://127.0.0.1:{web.port}/v1/responses"
    async with shared_stack.session.ws_connect(url, headers=headers) as socket:
        warm_up = {"model": "warm-up", "input": "Hello.", "generate": False}
        await socket.send_json({"type": "response.create", **warm_up})
        created = (await socket.receive_json())["response"]["id"]
        while (await socket.receive_json())["type"] != "response.completed":
            pass
        await socket.send_json({"type": "response.cancel"})
        assert (await socket.receive_json())["status"] == 400
        await socket.send_json({"type": "response.create", "input": "Hello."})
        assert (await socket.receive_json())["status"] == 400
        await until(lambda: len(creates_of(web, request_id)) == 3)
    first, unknown, second = creates_of(web, request_id)
    project = {"project": "default", "key": shared_stack.key[:8]}
    head = {"method": "GET", "route": "/v1/responses", "level": "info", **project}
    assert head.items() <= first.items() & unknown.items() & second.items()
    assert (first["status"], first["response"], "error" in first) == (200, created, False)
    assert (unknown["status"], unknown["error"]) == (400, "invalid_value")
    assert (second["status"], "response" in second) == (400, False)
    assert second["error"] == "missing_required_parameter"
    assert not [line for line in (first, unknown, second) if "aborted" in line]
    line = await line_of(web, "websocket_closed", request=request_id)
    assert (line["status"], line["code"], line["route"]) == (101, 1000, "/v1/responses")
    ended = await line_of(web, "response_ended", request=request_id)
    assert (ended["response"], ended["status"], ended["attempts"]) == (created, "completed", 0)


async def test_the_line_of_a_create_says_that_its_client_left(
    shared_stack: Stack, web: Service, fake: FakeUpstream
) -> None:
    request_id = new_request_id()
    headers = {"x-request-id": request_id}
    async with open_socket(shared_stack.api(), headers=headers) as connection:
        await connection.create(fake.script([text("x"), hang()]), stream_id="a")
        created = (await connection.until("response.created"))["response"]["id"]
        await connection.create("never", stream_id="a")
        await connection.until("response.output_text.delta")
    await until(lambda: len(creates_of(web, request_id)) == 2)
    by_status = {line["status"]: line for line in creates_of(web, request_id)}
    assert by_status[200]["response"] == created
    assert "response" not in by_status[499]
    assert {line["aborted"] for line in by_status.values()} == {"client"}
