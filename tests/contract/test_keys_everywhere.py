"""Without exactly one valid key every route, method and body under /v1 gets 401."""

import asyncio
import io
import json
from collections.abc import Mapping

import pytest

from features.proxy.endpoints import ENDPOINTS
from tests.support.api import JSON, UNKNOWN_RESPONSE_ID, Api
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Stack

CONVERSATION = UNKNOWN_RESPONSE_ID.replace("resp_", "conv_")
ROUTES = [
    ("POST", "/v1/responses"),
    ("GET", f"/v1/responses/{UNKNOWN_RESPONSE_ID}"),
    ("GET", f"/v1/responses/{UNKNOWN_RESPONSE_ID}?stream=true"),
    ("DELETE", f"/v1/responses/{UNKNOWN_RESPONSE_ID}"),
    ("POST", f"/v1/responses/{UNKNOWN_RESPONSE_ID}/cancel"),
    ("GET", f"/v1/responses/{UNKNOWN_RESPONSE_ID}/input_items"),
    ("POST", "/v1/conversations"),
    *((method, f"/v1/conversations/{CONVERSATION}") for method in ("GET", "POST", "DELETE")),
    *((method, f"/v1/conversations/{CONVERSATION}/items") for method in ("GET", "POST")),
    *((method, f"/v1/conversations/{CONVERSATION}/items/msg_1") for method in ("GET", "DELETE")),
    *(("POST", f"/v1{endpoint.path}") for endpoint in ENDPOINTS),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/a/b"),
]
ELSEWHERE = [
    *(
        ("GET", path)
        for path in (
            "/v1",
            "/v1/",
            "/v1/nothing",
            "/v1/responses/",
            "/v1/responses/a/b/c",
            "/v1/chat",
            "/v1/chat/completions/x",
            "/v1/audio",
            "/v1/assistants",
        )
    ),
    *((method, "/v1/chat/completions") for method in ("GET", "PUT", "DELETE", "OPTIONS", "TRACE")),
    *(
        (method, "/v1/responses")
        for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
    ),
    *(
        (method, f"/v1/responses/{UNKNOWN_RESPONSE_ID}/cancel")
        for method in ("GET", "DELETE", "OPTIONS", "TRACE")
    ),
    *(
        (method, "/v1/conversations")
        for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
    ),
    *((method, f"/v1/conversations/{CONVERSATION}/items") for method in ("PUT", "PATCH", "DELETE")),
    *(
        ("GET", f"/v1/conversations/{CONVERSATION}{path}")
        for path in ("/", "/items/", "/items/a/b", "/else")
    ),
    *((method, "/v1/nothing") for method in ("POST", "PUT", "DELETE", "OPTIONS", "PROPFIND")),
]

ONE_OF_EACH = [
    ROUTES[0],
    ROUTES[2],
    ("POST", "/v1/chat/completions"),
    *ELSEWHERE[2:4],
    ("PUT", "/v1/conversations"),
]
"""A key is looked at before the route: what is wrong with a key is tried with these, and on all
others a request without a key, with a wrong one, and with two."""
ON_ALL = ("nothing", "a wrong key", "the right header twice")

RIGHT = "Bearer {key}"
OFFERED: list[tuple[str, list[tuple[str, str]]]] = [
    ("nothing", []),
    ("an empty header", [("authorization", "")]),
    ("the scheme alone", [("authorization", "Bearer")]),
    ("the scheme and spaces", [("authorization", "Bearer   ")]),
    ("the key alone", [("authorization", "{key}")]),
    ("another scheme", [("authorization", "Basic {key}")]),
    ("a longer scheme", [("authorization", "Bearers {key}")]),
    ("a tab for a space", [("authorization", "Bearer\t{key}")]),
    ("a wrong key", [("authorization", "Bearer bb-wrong")]),
    ("a key cut short", [("authorization", "Bearer {short}")]),
    ("a key with more behind it", [("authorization", "Bearer {key}x")]),
    ("a key in capitals", [("authorization", "Bearer {capitals}")]),
    ("a key in quotes", [("authorization", 'Bearer "{key}"')]),
    ("the key twice in one header", [("authorization", "Bearer {key}, Bearer {key}")]),
    ("the right header twice", [("authorization", RIGHT), ("authorization", RIGHT)]),
    (
        "a right and a wrong header",
        [("authorization", RIGHT), ("authorization", "Bearer bb-wrong")],
    ),
    (
        "a wrong and a right header",
        [("authorization", "Bearer bb-wrong"), ("authorization", RIGHT)],
    ),
    (
        "the key in another header",
        [("api-key", "{key}"), ("cookie", "authorization=Bearer {key}")],
    ),
    ("a wrong key of Anthropic's clients", [("x-api-key", "bb-wrong")]),
    ("an empty key of theirs", [("x-api-key", " ")]),
    ("the key for a proxy", [("proxy-authorization", RIGHT)]),
]


def _filled(offered: list[tuple[str, str]], key: str) -> list[tuple[str, str]]:
    return [
        (name, value.format(key=key, short=key[:-1], capitals=key.upper()))
        for name, value in offered
    ]


async def _offer(
    api: Api, method: str, path: str, headers: list[tuple[str, str]]
) -> tuple[int, Mapping[str, str], bytes]:
    url = api.base_url.removesuffix("/v1") + path
    body = b"{" if method in ("POST", "PUT", "PATCH") else None
    async with api.session.request(method, url, headers=headers, data=body) as answer:
        return answer.status, answer.headers, await answer.read()


@pytest.mark.parametrize(
    ("offered", "routes"),
    [
        pytest.param(offered, [*ROUTES, *ELSEWHERE] if name in ON_ALL else ONE_OF_EACH, id=name)
        for name, offered in OFFERED
    ],
)
async def test_without_a_valid_key_every_route_answers_401(
    api: Api, offered: list[tuple[str, str]], routes: list[tuple[str, str]]
) -> None:
    for method, path in routes:
        status, headers, body = await _offer(api, method, path, _filled(offered, api.key))
        assert status == 401, (method, path, status, body)
        assert headers["www-authenticate"] == "Bearer"
        assert headers["x-request-id"].startswith("req_")
        error = json.loads(body)["error"]
        assert error.pop("message").startswith(("You ", "Incorrect API key"))
        refusal: JSON = {"type": "invalid_request_error", "param": None, "code": "invalid_api_key"}
        if path.startswith("/v1/messages"):
            details = {"error_code": "invalid_api_key"}
            refusal = {"type": "authentication_error", "details": details}
        assert error == refusal
        assert api.key.encode() not in body
        assert "allow" not in headers, "a client without a key must not learn the methods"


@pytest.mark.parametrize(
    "spelled", ["bearer {key}", "BEARER {key}", "bEaReR {key}", "Bearer   {key}", "Bearer {key}  "]
)
async def test_the_authorization_scheme_ignores_case(
    api: Api, fake: FakeUpstream, spelled: str
) -> None:
    model = fake.script(reply("ok"))
    body = {"model": model, "input": "Hi."}
    answer = await api.call(
        "POST", "/responses", body, headers={"authorization": spelled.format(key=api.key)}
    )
    assert answer.body["output_text"] == "ok"


@pytest.mark.parametrize(("method", "path"), ELSEWHERE)
async def test_with_a_key_an_unknown_path_and_a_wrong_method_differ(
    api: Api, method: str, path: str
) -> None:
    status, headers, body = await _offer(
        api, method, path, _filled([("authorization", RIGHT)], api.key)
    )
    error = json.loads(body)["error"]
    assert error["type"] == "invalid_request_error"
    assert (error["param"], error["message"] != "") == (None, True)
    known = path.removesuffix(f"/{CONVERSATION}/items") in (
        "/v1/responses",
        f"/v1/responses/{UNKNOWN_RESPONSE_ID}/cancel",
        "/v1/conversations",
        "/v1/chat/completions",
    )
    if known or method in ("TRACE", "PROPFIND"):
        assert (status, error["code"]) == (405, None)
        assert "POST" in headers["allow"]
    else:
        assert (status, error["code"]) == (404, "unknown_url")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_the_key_is_checked_before_the_body_is_read(shared_stack: Stack, method: str) -> None:
    """A client that sends `Expect: 100-continue` gets 401 without `100 Continue`."""
    for path in ("/v1/responses", "/v1/conversations", "/v1/nothing"):
        reader, writer = await asyncio.open_connection("127.0.0.1", shared_stack.webs[0].port)
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
            "bb-wrong\r\ncontent-type: application/json\r\n"
        )
        writer.write(f"{head}expect: 100-continue\r\ncontent-length: 1000\r\n\r\n".encode())
        async with asyncio.timeout(5):
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 401 ")
        writer.close()


async def test_a_head_has_no_body_and_the_same_status(api: Api) -> None:
    for path in (
        "/v1/responses",
        f"/v1/responses/{UNKNOWN_RESPONSE_ID}",
        "/v1/models",
        "/v1",
        "/v1/nothing",
    ):
        status, _, body = await _offer(api, "HEAD", path, [])
        assert (status, body) == (401, b""), path


async def test_a_web_socket_needs_a_key_like_any_other_request(shared_stack: Stack) -> None:
    for key, status in (("bb-wrong", b"401"), (shared_stack.key, b"101")):
        reader, writer = await asyncio.open_connection("127.0.0.1", shared_stack.webs[0].port)
        upgrade = (
            "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: "
            "13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        )
        writer.write(
            (
                "GET /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
                f"{key}\r\n{upgrade}\r\n"
            ).encode()
        )
        async with asyncio.timeout(5):
            assert (await reader.readuntil(b"\r\n")).split()[1] == status
        writer.close()


async def test_health_routes_ignore_the_key(shared_stack: Stack) -> None:
    for path in ("healthz", "readyz"):
        async with shared_stack.session.get(
            f"http://127.0.0.1:{shared_stack.webs[0].port}/{path}",
            headers={"authorization": "Bearer bb-wrong"},
        ) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/responses"),
        ("POST", f"/v1/responses/{UNKNOWN_RESPONSE_ID}/cancel"),
        ("POST", "/v1/nothing"),
        ("TRACE", "/v1"),
    ],
)
async def test_a_client_that_is_still_sending_receives_the_refusal(
    api: Api, method: str, path: str
) -> None:
    url = api.base_url.removesuffix("/v1") + path
    for key, expected in (("bb-wrong", {401}), (api.key, {404, 405, 415})):
        headers = {"authorization": f"Bearer {key}", "content-type": "text/plain"}
        async with api.session.request(
            method, url, headers=headers, data=io.BytesIO(b"x" * 20_000_000)
        ) as answer:
            assert answer.status in expected
