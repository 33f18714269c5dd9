"""Refusals: status, envelope and, where clients read it, the message (docs/wire.md)."""

import asyncio
import dataclasses

import pytest

from tests.support.api import UNKNOWN_RESPONSE_ID, Api
from tests.support.fake_upstream import FakeUpstream, Step, finish, hang, reply, status, text
from tests.support.stack import Stack

NOT_OFFERED = " This server does not offer this API: "
STATE = f"{NOT_OFFERED}use /v1/responses with 'previous_response_id', or /v1/conversations."
PROMPTS = f"{NOT_OFFERED}keep your prompts yourself, and send them in 'instructions' and 'input'."


async def test_an_unknown_route_is_an_unknown_url(api: Api) -> None:
    for path in ("/nothing", "/responses/x/y/z", "/chat/complete"):
        answer = await api.call("GET", path)
        assert answer.status == 404
        assert answer.error["code"] == "unknown_url"


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/responses", " The API is at /v1/responses: the base URL ends with /v1."),
        ("/chat/completions", " The API is at /v1/chat/completions: the base URL ends with /v1."),
        ("/v1/v1/responses", " The path has /v1 twice: the base URL ends with one."),
        ("/v1/assistants", STATE),
        ("/v1/threads/thread_1/runs", STATE),
        ("/threads", " The API is at /v1/threads: the base URL ends with /v1."),
        ("/v1/messages/batches", f"{NOT_OFFERED}use /v1/batches, with a client of OpenAI's API."),
        ("/v1/prompts", PROMPTS),
        ("/v1/nothing", ""),
        ("/nothing", ""),
    ],
)
async def test_an_unknown_url_names_what_is_wrong_with_it(api: Api, path: str, hint: str) -> None:
    beside = dataclasses.replace(api, base_url=api.base_url.removesuffix("/v1"))
    answer = await beside.call("POST", path, {"model": "m"})
    assert (answer.status, answer.error["code"]) == (404, "unknown_url")
    assert answer.error["message"] == f"Unknown request URL: POST {path}.{hint}"
    assert int(answer.headers["openai-processing-ms"]) < 60_000


async def test_a_wrong_method_names_the_allowed_ones(api: Api) -> None:
    for method, path, allowed in (
        ("PUT", "/responses", "POST"),
        ("GET", f"/responses/{UNKNOWN_RESPONSE_ID}/cancel", "POST"),
    ):
        answer = await api.call(method, path)
        assert answer.status == 405
        assert allowed in answer.headers["allow"]
        assert answer.error["type"] == "invalid_request_error"


async def test_health_needs_no_key(shared_stack: Stack) -> None:
    for path in ("healthz", "readyz"):
        async with shared_stack.session.get(
            f"http://127.0.0.1:{shared_stack.webs[0].port}/{path}"
        ) as answer:
            assert answer.status == 200
    ready = await shared_stack.readyz()
    assert ready["ready"] is True
    assert ready["workers"]["worker"] >= 1


async def test_a_foreground_response_cannot_be_cancelled_or_replayed(
    api: Api, fake: FakeUpstream
) -> None:
    response = await api.create(fake.script(reply("x")))
    cancelled = await api.cancel(response["id"])
    assert cancelled.status == 400
    assert cancelled.error == {
        "message": "Cannot cancel a synchronous response.",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }
    replayed = await api.call("GET", f"/responses/{response['id']}?stream=true")
    assert replayed.status == 400
    assert (replayed.error["param"], replayed.error["code"]) == ("stream", "invalid_request_error")
    assert (
        replayed.error["message"]
        == "This response cannot be streamed because it was not created with background=true."
    )


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (reply("x"), "Cannot cancel a completed response."),
        ([status(418)], "Cannot cancel a failed response."),
        ([text("x"), finish("length")], "Cannot cancel a response in terminal state."),
    ],
    ids=["completed", "failed", "incomplete"],
)
async def test_a_finished_response_cannot_be_cancelled(
    api: Api, fake: FakeUpstream, script: list[Step], words: str
) -> None:
    ended = await api.wait_for_end(await api.create_background(fake.script(script)))
    answer = await api.cancel(ended["id"])
    assert answer.status == 400, "never 409: the SDK would retry"
    assert answer.error["message"] == words
    assert await api.get(ended["id"]) == ended


async def test_an_unfinished_response_cannot_be_continued(api: Api, fake: FakeUpstream) -> None:
    running = await api.create_background(fake.script([text("x"), hang()]))
    answer = await api.call(
        "POST", "/responses", {"model": "x", "input": "y", "previous_response_id": running}
    )
    assert answer.status == 400
    assert (answer.error["param"], answer.error["code"]) == (
        "previous_response_id",
        "previous_response_not_ready",
    )
    assert (await api.cancel(running)).status == 200


async def test_the_upstreams_unknown_model_is_named(api: Api) -> None:
    answer = await api.call("POST", "/responses", {"model": "no-such-model", "input": "Hi."})
    assert answer.status == 400
    assert (answer.error["type"], answer.error["param"], answer.error["code"]) == (
        "invalid_request_error",
        "model",
        "model_not_found",
    )
    assert (
        answer.error["message"]
        == "The requested model 'no-such-model' does not exist. GET /v1/models lists those that do."
    )


async def test_cancel_takes_an_empty_body_with_a_json_content_type(
    api: Api, fake: FakeUpstream
) -> None:
    running = await api.create_background(fake.script([hang()]))
    answers = await asyncio.gather(*(api.cancel(running) for _ in range(3)))
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert {answer.body["status"] for answer in answers} == {"cancelled"}
