"""Every refusal: its status, its envelope and, where clients read them, its words (contract §5.1, design §11)."""

import asyncio
import re
from typing import Any

import pytest

from tests.support.api import UNKNOWN_RESPONSE_ID, Api
from tests.support.fake_upstream import FakeUpstream, Step, finish, hang, reply, status, text
from tests.support.stack import Stack

CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "x"}
USER = {"role": "user", "content": "Hi."}

OF_ONE_RESPONSE = [
    ("GET", ""),
    ("GET", "?stream=true"),
    ("DELETE", ""),
    ("POST", "/cancel"),
    ("GET", "/input_items"),
]


@pytest.mark.parametrize(("method", "rest"), OF_ONE_RESPONSE)
@pytest.mark.parametrize(
    "unknown",
    [
        UNKNOWN_RESPONSE_ID,
        "resp_1",
        "nonsense",
        "resp_" + "é" * 32,
        "resp_" + "0" * 500,
        "..",
        "%00",
    ],
)
async def test_an_unknown_id_is_not_found(api: Api, method: str, rest: str, unknown: str) -> None:
    answer = await api.call(method, f"/responses/{unknown.replace('..', '%2E%2E')}{rest}")
    assert answer.status == 404
    assert answer.error["type"] == "invalid_request_error"
    if unknown == UNKNOWN_RESPONSE_ID:
        assert answer.error == {
            "message": f"Response with id '{UNKNOWN_RESPONSE_ID}' not found.",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }


REFUSED: list[tuple[str, dict[str, Any], str | None, str | None, str]] = [
    (
        "no model",
        {"model": None},
        "model",
        "missing_required_parameter",
        r"Missing required parameter: 'model'\.",
    ),
    ("model of a wrong type", {"model": 7}, "model", "invalid_type", "model"),
    ("input of a wrong type", {"input": 7}, "input", "invalid_type", "input"),
    (
        "an unknown previous response",
        {"previous_response_id": UNKNOWN_RESPONSE_ID},
        "previous_response_id",
        "previous_response_not_found",
        f"Previous response with id '{UNKNOWN_RESPONSE_ID}' not found.",
    ),
    (
        "background without store",
        {"background": True, "store": False},
        "background",
        "unsupported_parameter",
        "background",
    ),
    (
        "too few output tokens",
        {"max_output_tokens": 1},
        "max_output_tokens",
        "integer_below_min_value",
        r"Invalid 'max_output_tokens': integer below minimum value\. Expected a value >= 16, but got 1 instead\.",
    ),
    (
        "too many log probabilities",
        {"top_logprobs": 21},
        "top_logprobs",
        "integer_above_max_value",
        "top_logprobs",
    ),
    ("too hot", {"temperature": 2.5}, "temperature", "decimal_above_max_value", "temperature"),
    ("too cold", {"top_p": -0.5}, "top_p", "decimal_below_min_value", "top_p"),
    ("temperature as text", {"temperature": "hot"}, "temperature", "invalid_type", "temperature"),
    (
        "an unknown parameter",
        {"colour": "red"},
        "colour",
        "unknown_parameter",
        r"Unknown parameter: 'colour'\.",
    ),
    ("chat's messages", {"messages": [USER]}, "messages", None, "input"),
    ("chat's max_tokens", {"max_tokens": 16}, "max_tokens", None, "max_output_tokens"),
    (
        "chat's response_format",
        {"response_format": {"type": "text"}},
        "response_format",
        None,
        r"text\.format",
    ),
    (
        "an unknown enum value",
        {"truncation": "sometimes"},
        "truncation",
        "invalid_value",
        "sometimes",
    ),
    ("an unknown tool choice", {"tool_choice": "maybe"}, "tool_choice", "invalid_value", "maybe"),
    (
        "an unknown role",
        {"input": [{"role": "king", "content": "x"}]},
        "input[0].role",
        "invalid_value",
        "king",
    ),
    (
        "a call without an output",
        {"input": [USER, CALL]},
        "input",
        None,
        r"No tool output found for function call call_1\.",
    ),
    (
        "an output without a call",
        {"input": [USER, OUTPUT]},
        "input",
        None,
        r"No tool call found for function call output with call_id call_1\.",
    ),
    ("an unknown item type", {"input": [{"type": "riddle"}]}, "input[0].type", None, "riddle"),
    (
        "a hosted tool we cannot run",
        {"tools": [{"type": "computer"}]},
        "tools[0].type",
        None,
        "computer",
    ),
    (
        "a nameless tool",
        {"tools": [{"type": "function", "parameters": {}}]},
        "tools[0].name",
        "missing_required_parameter",
        "name",
    ),
    (
        "a bad format name",
        {"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}},
        "text.format.name",
        None,
        "name",
    ),
    (
        "a format without its schema",
        {"text": {"format": {"type": "json_schema", "name": "a"}}},
        "text.format.schema",
        None,
        "schema",
    ),
    (
        "too much metadata",
        {"metadata": {str(number): "x" for number in range(17)}},
        "metadata",
        None,
        "metadata",
    ),
]


@pytest.mark.parametrize(
    ("body", "param", "code", "words"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED]
)
@pytest.mark.parametrize(
    "way", [{}, {"background": True}, {"stream": True}], ids=["foreground", "background", "stream"]
)
async def test_a_request_that_cannot_be_carried_out_is_refused_before_it_is_queued(
    api: Api,
    fake: FakeUpstream,
    body: dict[str, Any],
    param: str | None,
    code: str | None,
    words: str,
    way: dict[str, bool],
) -> None:
    model = fake.script(reply("never"))
    answer = await api.call("POST", "/responses", {"model": model, "input": "Hi.", **way, **body})
    assert answer.status == 400, answer.raw
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["param"] == param
    assert code in (None, answer.error["code"]), answer.error
    assert re.search(words, answer.error["message"]), answer.error
    assert fake.requests_for(model) == []


@pytest.mark.parametrize(
    "sent",
    [
        b"{",
        b"",
        b'{"model": "x", "input": "\xff"}',
        b"[1]",
        b'"text"',
        b'{"model": "x", "input": NaN}',
    ],
)
async def test_a_body_that_is_no_json_object_is_refused(api: Api, sent: bytes) -> None:
    answer = await api.call("POST", "/responses", sent)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    if sent in (b"{", b'{"model": "x", "input": "\xff"}'):
        assert answer.error["code"] == "invalid_json"


async def test_json_nested_too_deeply_is_refused(api: Api) -> None:
    answer = await api.call(
        "POST", "/responses", b'{"model": "x", "input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    )
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"


async def test_a_body_over_the_limit_is_too_large(api: Api) -> None:
    answer = await api.call("POST", "/responses", {"model": "x", "input": "x" * 5_000_000})
    assert answer.status == 413
    assert answer.error["code"] == "request_too_large"


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
async def test_only_json_is_read(api: Api, kind: str) -> None:
    answer = await api.call(
        "POST", "/responses", b'{"model": "x", "input": "y"}', headers={"content-type": kind}
    )
    assert answer.status == 415
    assert answer.error["code"] == "unsupported_media_type"


async def test_an_unknown_route_is_an_unknown_url(api: Api) -> None:
    for path in ("/nothing", "/responses/x/y/z", "/chat/complete"):
        answer = await api.call("GET", path)
        assert answer.status == 404
        assert answer.error["code"] == "unknown_url"


async def test_a_wrong_method_names_the_allowed_ones(api: Api) -> None:
    for method, path, allowed in (
        ("PUT", "/responses", "POST"),
        ("GET", f"/responses/{UNKNOWN_RESPONSE_ID}/cancel", "POST"),
    ):
        answer = await api.call(method, path)
        assert answer.status == 405
        assert allowed in answer.headers["allow"]
        assert answer.error["type"] == "invalid_request_error"


EVERYWHERE = [
    *((method, f"/responses/{UNKNOWN_RESPONSE_ID}{rest}") for method, rest in OF_ONE_RESPONSE),
    ("POST", "/responses"),
    ("GET", "/models"),
    ("GET", "/no-such-route"),
    ("PUT", "/responses"),
]


@pytest.mark.parametrize(("method", "path"), EVERYWHERE)
@pytest.mark.parametrize(
    "offered",
    [
        None,
        "Bearer",
        "Bearer wrong",
        "Basic dXNlcjpwYXNz",
        "wrong",
        "Bearer ÿþ",
        "Bearer " + "x" * 5000,
    ],
)
async def test_authentication_comes_before_everything(
    api: Api, method: str, path: str, offered: str | None
) -> None:
    headers = {} if offered is None else {"authorization": offered}
    async with api.session.request(
        method, f"{api.base_url}{path}", headers=headers, data=b"{" if method == "POST" else None
    ) as answer:
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        error = (await answer.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "invalid_api_key"


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
        ([status(500)], "Cannot cancel a failed response."),
        ([text("x"), finish("length")], "Cannot cancel a response in terminal state."),
    ],
    ids=["completed", "failed", "incomplete"],
)
async def test_a_finished_response_cannot_be_cancelled(
    api: Api, fake: FakeUpstream, script: list[Step], words: str
) -> None:
    ended = await api.wait_for_end(await api.create_background(fake.script(script)))
    answer = await api.cancel(ended["id"])
    assert answer.status == 400, "never 409: the SDK would try again"
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


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=many", "order=sideways"])
async def test_a_bad_page_of_input_items_is_refused(
    api: Api, fake: FakeUpstream, query: str
) -> None:
    response = await api.create(fake.script(reply("x")))
    answer = await api.call("GET", f"/responses/{response['id']}/input_items?{query}")
    assert answer.status == 400
    assert answer.error["param"] == query.partition("=")[0]


@pytest.mark.parametrize("after", ["-1", "one", "1.5", "9" * 30])
async def test_a_bad_place_to_resume_is_refused(api: Api, fake: FakeUpstream, after: str) -> None:
    ended = await api.wait_for_end(await api.create_background(fake.script(reply("x"))))
    answer = await api.call("GET", f"/responses/{ended['id']}?stream=true&starting_after={after}")
    if after == "9" * 30:  # a number, only a large one: an empty stream is right as well
        assert answer.status in (200, 400)
    else:
        assert answer.status == 400
        assert answer.error["param"] == "starting_after"


async def test_the_upstreams_unknown_model_is_named(api: Api) -> None:
    answer = await api.call("POST", "/responses", {"model": "no-such-model", "input": "Hi."})
    assert answer.status == 400
    assert (answer.error["type"], answer.error["param"], answer.error["code"]) == (
        "invalid_request_error",
        "model",
        "model_not_found",
    )
    assert answer.error["message"] == "The requested model 'no-such-model' does not exist."


async def test_cancel_takes_an_empty_body_with_a_json_content_type(
    api: Api, fake: FakeUpstream
) -> None:
    running = await api.create_background(fake.script([hang()]))
    answers = await asyncio.gather(*(api.cancel(running) for _ in range(3)))
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert {answer.body["status"] for answer in answers} == {"cancelled"}
