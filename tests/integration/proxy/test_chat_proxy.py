"""/v1/chat/completions sends a request to the model's upstream and returns its answer unchanged.

The reasons are in docs/proxied-endpoints.md.
"""

import asyncio
import io
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from cli.embedded.process import free_port
from tests.support.api import JSON, Api, HttpResponse, until
from tests.support.fake_upstream import (
    FakeUpstream,
    Step,
    chunk,
    done,
    drop,
    finish,
    hang,
    raw,
    reply,
    reset,
    silence_until,
    status,
    text,
    usage,
    wait_for,
)
from tests.support.stack import Databases, Stack, SuiteSettings, stack

FILE = """
[upstreams.first]
base_url = "{first}"
api_key = "key-of-the-first"
headers = {{ "x-title" = "Backburner" }}
query = {{ "api-version" = "7" }}
token_gap = 2

[upstreams.second]
base_url = "{second}"
api_key = "key-of-the-second"
api = "responses"
first_token = 1
turn = 2

[upstreams.down]
base_url = "http://127.0.0.1:{closed}/v1"

[routes]
"first-*" = "first"
"second-*" = "second"
"both-*" = ["first", "second"]
"down-then-first-*" = ["down", "first"]
"down-*" = "down"
"alias" = {{ upstream = "first", model = "real/name" }}
"""

CONCURRENT_REQUESTS = 60


class ProxyStack:
    """A deployment with two upstreams; the second also speaks the Responses API."""

    def __init__(self, own_stack: Stack, first: FakeUpstream, second: FakeUpstream) -> None:
        self.stack, self.first, self.second = own_stack, first, second
        self.api: Api = own_stack.api()
        self._count = 0

    def model(
        self,
        first: list[Step] | None = None,
        second: list[Step] | None = None,
        *,
        route: str = "first",
    ) -> str:
        """Returns the name of a new model with these scripts."""
        self._count += 1
        name = f"{route}-{self._count}"
        for upstream, script in ((self.first, first), (self.second, second)):
            if script is not None:
                upstream.script(script, name=name)
        return name

    async def complete(self, model: str, **body: object) -> HttpResponse:
        """Sends one chat completion; returns the whole answer."""
        request_body: JSON = {
            "model": model,
            "messages": [{"role": "user", "content": "Hi."}],
            **body,
        }
        return await self.api.call("POST", "/chat/completions", request_body)

    @asynccontextmanager
    async def open_stream(self, model: str) -> AsyncIterator[aiohttp.StreamReader]:
        """Sends one streamed chat completion; yields its body for reading."""
        body = io.BytesIO(json.dumps({"model": model, "messages": [], "stream": True}).encode())
        headers = {"authorization": f"Bearer {self.stack.key}", "content-type": "application/json"}
        async with self.stack.session.post(
            f"{self.api.base_url}/chat/completions", data=body, headers=headers
        ) as answer:
            yield answer.content


@pytest.fixture(scope="module")
async def proxy(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[ProxyStack]:
    folder = tmp_path_factory.mktemp("chat-proxy")
    async with FakeUpstream() as first, FakeUpstream() as second:
        (folder / "backburner.toml").write_text(
            FILE.format(first=first.base_url, second=second.base_url, closed=free_port())
        )
        settings = {
            "BACKBURNER_CONFIG": str(folder / "backburner.toml"),
            "BACKBURNER_LIMITS__BODY": "1000000",
            "BACKBURNER_WEB__SEND_TIMEOUT": "2",
            "BACKBURNER_WEB__GRACE": "1",
        }
        async with stack(
            folder, database_server, suite_settings, fake, settings=settings
        ) as own_stack:
            yield ProxyStack(own_stack, first, second)
        assert not first.faults, first.faults
        assert not second.faults, second.faults


# --- bytes ---


UNUSUAL_FRAMES = (
    b': a comment\r\n\r\ndata:{"no":"space"}\n\n'
    b'event: x\nid: 7\ndata: {"fields":   "kept"}\n\ndata: \xff\xfe no utf-8\n\n'
)


async def test_a_stream_arrives_byte_for_byte(proxy: ProxyStack) -> None:
    model = proxy.model([raw(UNUSUAL_FRAMES), text("Hello ", "wörld"), finish(), usage(), done()])
    answer = await proxy.complete(model, stream=True, stream_options={"include_usage": True})
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.raw.startswith(UNUSUAL_FRAMES)
    assert answer.raw.endswith(b"data: [DONE]\n\n")
    chunks = [
        json.loads(line[6:])
        for line in answer.raw[len(UNUSUAL_FRAMES) :].splitlines()
        if line.startswith(b"data: {")
    ]
    assert (
        "".join(
            chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"]
        )
        == "Hello wörld"
    )
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 18


async def test_each_chunk_arrives_as_soon_as_it_is_sent(proxy: ProxyStack) -> None:
    released = asyncio.Event()
    model = proxy.model([text("early"), wait_for(released), text("late"), finish(), done()])
    async with proxy.open_stream(model) as content:
        assert b"early" in await content.readany()
        released.set()
        assert (await content.read()).endswith(b"data: [DONE]\n\n")


async def test_an_answer_without_streaming_arrives_byte_for_byte(proxy: ProxyStack) -> None:
    body = b'{"id":"x",  "object":"chat.completion","odd":1.0,"choices":[]}'
    answer = await proxy.complete(proxy.model([status(200, body)]))
    assert (answer.status, answer.raw) == (200, body)
    assert answer.headers["content-length"] == str(len(body))


async def test_the_upstream_gets_the_whole_body_and_none_of_the_clients_headers(
    proxy: ProxyStack,
) -> None:
    proxy.first.script(reply("ok"), name="real/name")
    body: JSON = {
        "model": "alias",
        "messages": [],
        "novelty": {"deep": [1, 2.5, None, "ü"]},
        "temperature": 9,
        "user": "u",
    }
    headers = {
        "openai-organization": "org",
        "cookie": "a=b",
        "x-forwarded-for": "1.2.3.4",
        "x-custom": "y",
        "accept-encoding": "gzip",
    }
    answer = await proxy.api.call("POST", "/chat/completions", body, headers=headers)
    assert answer.status == 200
    request = proxy.first.requests_for("real/name")[0]
    assert request.body == {**body, "model": "real/name"}
    assert request.headers["authorization"] == "Bearer key-of-the-first"
    assert (request.headers["x-title"], request.query) == ("Backburner", "api-version=7")
    assert request.headers["accept-encoding"] == "identity"
    assert not {"openai-organization", "cookie", "x-forwarded-for", "x-custom"} & set(
        request.headers
    )
    assert proxy.stack.key not in json.dumps(request.headers)


async def test_the_client_gets_only_the_retry_headers_of_the_upstream(proxy: ProxyStack) -> None:
    upstream_headers = {
        "set-cookie": "session=1",
        "server": "vendor",
        "x-request-id": "theirs",
        "openai-organization": "org-1",
        "access-control-allow-origin": "*",
        "retry-after": "7",
        "x-ratelimit-remaining": "0",
        "retry-after-ms": "7000",
    }
    answer = await proxy.complete(proxy.model([status(429, headers=upstream_headers)]))
    assert answer.status == 429
    assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("7", "7000")
    assert answer.headers["x-request-id"].startswith("req_")
    assert not {
        "set-cookie",
        "server",
        "openai-organization",
        "access-control-allow-origin",
        "x-ratelimit-remaining",
    } & {name.lower() for name in answer.headers}


async def test_an_upstreams_cookies_are_not_sent_back_for_another_client(proxy: ProxyStack) -> None:
    model = proxy.model([status(200, {}, {"set-cookie": "session=secret; Path=/"})])
    await proxy.complete(model)
    await proxy.complete(model)
    assert all("cookie" not in request.headers for request in proxy.first.requests_for(model))


async def test_a_native_upstream_gets_chat_completions_too(proxy: ProxyStack) -> None:
    model = proxy.model(second=reply("chat all the same"), route="second")
    assert (await proxy.complete(model)).body["choices"][0]["message"][
        "content"
    ] == "chat all the same"
    assert proxy.second.requests_for(model)[0].path == "/v1/chat/completions"


# --- refusals ---


@pytest.mark.parametrize("code", [400, 404, 408, 409, 413, 422, 429, 500, 503])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_refusal_keeps_its_status_and_its_body(
    proxy: ProxyStack, code: int, stream: bool
) -> None:
    body = b'{"error": {"message":  "our own words", "type": "theirs", "more": 1}}'
    answer = await proxy.complete(proxy.model([status(code, body)]), stream=stream)
    assert (answer.status, answer.raw) == (code, body)


@pytest.mark.parametrize("code", [401, 403])
async def test_a_refusal_of_our_credential_is_not_the_clients_fault(
    proxy: ProxyStack, code: int
) -> None:
    answer = await proxy.complete(
        proxy.model([status(code, {"error": {"message": "Incorrect API key: key-of-the-first"}})])
    )
    assert (answer.status, answer.headers["x-should-retry"]) == (502, "false")
    assert answer.error["message"] == (
        "The upstream refused this server's credential: Incorrect API key: …"
    )


async def test_our_credential_is_removed_from_other_refusals(proxy: ProxyStack) -> None:
    answer = await proxy.complete(
        proxy.model([status(400, {"error": {"message": "you sent key-of-the-first"}})])
    )
    assert answer.status == 400
    assert "key-of-the-first" not in answer.raw.decode()


async def test_an_upstreams_html_is_served_as_plain_text(proxy: ProxyStack) -> None:
    answer = await proxy.complete(
        proxy.model([status(502, b"<script>alert(1)</script>", {"content-type": "text/html"})])
    )
    assert (answer.status, answer.headers["content-type"]) == (502, "text/plain; charset=utf-8")


UNUSABLE: list[tuple[str, list[Step], int]] = [
    ("reset", [reset()], 502),
    ("closed", [drop()], 502),
    ("a redirect", [status(302, headers={"location": "http://127.0.0.1:1/"})], 502),
    ("compressed", [status(200, b"\x1f\x8b", {"content-encoding": "gzip"})], 502),
]


@pytest.mark.parametrize(
    ("script", "expected"), [pytest.param(*parameters, id=name) for name, *parameters in UNUSABLE]
)
async def test_an_unusable_answer_becomes_an_error_in_our_envelope(
    proxy: ProxyStack, script: list[Step], expected: int
) -> None:
    answer = await proxy.complete(proxy.model(script))
    assert (answer.status, answer.error["type"]) == (expected, "server_error")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_an_upstream_that_sends_nothing_is_a_timeout(proxy: ProxyStack, stream: bool) -> None:
    model = proxy.model(second=[hang()], route="second")
    answer = await proxy.complete(model, stream=stream)
    assert (answer.status, answer.error["type"]) == (504, "server_error")
    await until(lambda: proxy.second.requests_for(model)[0].closed_by_client)


async def test_an_upstream_that_is_down_is_a_502(proxy: ProxyStack) -> None:
    answer = await proxy.complete("down-1")
    assert (answer.status, answer.error["code"]) == (502, None)


@pytest.mark.parametrize(
    ("body", "expected", "param", "code"),
    [
        (b"{", 400, None, "invalid_json"),
        (b"[]", 400, None, "invalid_type"),
        (b"{}", 400, "model", "missing_required_parameter"),
        (b'{"model": null}', 400, "model", "missing_required_parameter"),
        (b'{"model": 7}', 400, "model", "invalid_type"),
        (b'{"model": "no-such-model"}', 404, "model", "model_not_found"),
        (b'{"model": "' + b"x" * 1_000_000 + b'"}', 413, None, "request_too_large"),
    ],
    ids=["no json", "an array", "no model", "null", "a number", "unknown", "too large"],
)
async def test_an_invalid_request_is_refused_without_a_call_to_an_upstream(
    proxy: ProxyStack, body: bytes, expected: int, param: str | None, code: str
) -> None:
    answer = await proxy.api.call("POST", "/chat/completions", body)
    assert (answer.status, answer.error["param"], answer.error["code"]) == (expected, param, code)


async def test_a_body_that_is_not_json_is_refused(proxy: ProxyStack) -> None:
    answer = await proxy.api.call(
        "POST", "/chat/completions", b"{}", headers={"content-type": "text/plain"}
    )
    assert answer.status == 415


# --- the next upstream ---


@pytest.mark.parametrize(
    "script",
    [[status(503)], [status(429)], [status(401)], [status(404)], [reset()]],
    ids=["503", "429", "401", "404", "reset"],
)
async def test_the_next_upstream_is_tried_before_the_first_byte(
    proxy: ProxyStack, script: list[Step]
) -> None:
    model = proxy.model(script, reply("second"), route="both")
    assert (await proxy.complete(model)).body["choices"][0]["message"]["content"] == "second"


async def test_an_upstream_that_is_down_is_skipped(proxy: ProxyStack) -> None:
    model = proxy.model(reply("first"), route="down-then-first")
    assert (await proxy.complete(model)).status == 200


@pytest.mark.parametrize(
    "script",
    [
        [status(400)],
        [status(422)],
        [
            status(
                404,
                {"error": {"message": "The model `x` does not exist", "code": "model_not_found"}},
            )
        ],
    ],
    ids=["400", "422", "no such model"],
)
async def test_an_error_of_the_request_is_returned_from_the_first_upstream(
    proxy: ProxyStack, script: list[Step]
) -> None:
    model = proxy.model(script, reply("second"), route="both")
    assert (await proxy.complete(model)).status in (400, 404, 422)
    assert not proxy.second.requests_for(model)


async def test_after_the_first_byte_no_other_upstream_is_called(proxy: ProxyStack) -> None:
    released = asyncio.Event()
    model = proxy.model([text("so far"), wait_for(released), drop()], reply("second"), route="both")
    async with proxy.open_stream(model) as content:
        assert b"so far" in await content.readany()
        released.set()
        assert b"The upstream ended its answer before it was complete." in await content.read()
    assert not proxy.second.requests_for(model)


# --- connections ---


async def test_a_stream_that_breaks_off_between_events_ends_with_an_error_event(
    proxy: ProxyStack,
) -> None:
    model = proxy.model([text("so far"), hang()])
    answer = await proxy.complete(model, stream=True)
    last = answer.raw.rstrip().splitlines()[-1]
    assert last.startswith(b"data: ")
    assert json.loads(last[6:])["error"]["type"] == "server_error"
    assert b"[DONE]" not in answer.raw
    await until(lambda: proxy.first.requests_for(model)[0].closed_by_client)


async def test_a_stream_that_breaks_off_inside_an_event_closes_the_connection(
    proxy: ProxyStack,
) -> None:
    model = proxy.model([raw(b'data: {"half": '), hang()])
    with pytest.raises(aiohttp.ClientPayloadError):
        await proxy.complete(model, stream=True)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    "has_output", [True, False], ids=["in the middle", "before the first byte"]
)
async def test_a_client_that_disconnects_closes_the_connection_to_the_upstream(
    proxy: ProxyStack, stream: bool, has_output: bool
) -> None:
    model = proxy.model([text("so far"), hang()] if has_output else [hang()])
    body = json.dumps({"model": model, "messages": [], "stream": stream}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.stack.webs[0].port)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
        f"authorization: Bearer {proxy.stack.key}\r\ncontent-type: application/json\r\n"
    )
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    await until(lambda: proxy.first.requests_for(model))
    if has_output and stream:
        await reader.readuntil(b"so far")
    writer.close()
    await until(lambda: proxy.first.requests_for(model)[0].closed_by_client)


async def test_a_client_that_reads_nothing_slows_the_upstream_and_is_disconnected(
    proxy: ProxyStack,
) -> None:
    """The answer is 65 MB; what sockets and a small buffer cannot hold stays upstream."""
    piece = b"data: " + b"x" * 65_536 + b"\n\n"
    model = proxy.model([*[raw(piece)] * 1000, done()])
    body = json.dumps({"model": model, "messages": [], "stream": True}).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(
            client, ("127.0.0.1", proxy.stack.webs[0].port or 0)
        )
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
            f"authorization: Bearer {proxy.stack.key}\r\ncontent-type: application/json\r\n"
        )
        await asyncio.get_running_loop().sock_sendall(
            client, f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        )
        await until(
            lambda: (
                proxy.first.requests_for(model)
                and proxy.first.requests_for(model)[0].closed_by_client
            ),
            20,
        )
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert proxy.first.requests_for(model)[0].finished is None, (
        "the whole answer was read although the client read none of it"
    )


async def test_a_stopping_process_finishes_short_answers_and_cuts_off_the_others(
    proxy: ProxyStack,
) -> None:
    released = asyncio.Event()
    short, endless = (
        proxy.model([text("so far"), wait_for(released), *reply("the rest")]),
        proxy.model([text("so far"), hang()]),
    )
    silent = proxy.model([hang()])
    process = await proxy.stack.start_web()
    api = proxy.stack.api(process)
    request_body = [
        api.call("POST", "/chat/completions", {"model": model, "messages": [], "stream": True})
        for model in (short, endless, silent)
    ]
    tasks = [asyncio.create_task(request) for request in request_body]
    await until(lambda: all(proxy.first.requests_for(model) for model in (short, endless, silent)))
    proxy.stack.forget(process)
    process.request_stop()
    released.set()
    done_in_time, cut_off, error_answer = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(done_in_time, HttpResponse)
    assert done_in_time.raw.endswith(b"data: [DONE]\n\n")
    assert isinstance(cut_off, aiohttp.ClientError)
    assert isinstance(error_answer, HttpResponse)
    assert (error_answer.status, error_answer.error["code"]) == (503, "server_error")
    await until(
        lambda: all(
            proxy.first.requests_for(model)[0].closed_by_client for model in (endless, silent)
        )
    )
    await process.stop_cleanly()


async def test_many_concurrent_requests_do_not_wait_for_each_other(proxy: ProxyStack) -> None:
    released = asyncio.Event()
    slow = proxy.model([silence_until(released), *reply("slow")])
    waiting = [asyncio.create_task(proxy.complete(slow)) for _ in range(CONCURRENT_REQUESTS)]
    await until(lambda: len(proxy.first.requests_for(slow)) == CONCURRENT_REQUESTS)
    assert (await proxy.complete(proxy.model(reply("quick")))).status == 200
    released.set()
    assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}


async def test_nothing_is_stored(proxy: ProxyStack) -> None:
    before = await proxy.stack.value("SELECT count(*) FROM responses")
    await proxy.complete(proxy.model([chunk({"choices": []}), *reply("x")]))
    assert await proxy.stack.value("SELECT count(*) FROM responses") == before


# --- forms ---


async def send_form(proxy: ProxyStack, model: str, *, size: int = 10) -> HttpResponse:
    """Sends a file to be transcribed, in front of its model."""
    form = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n'
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n--b--\r\n'
    ) % (b"x" * size, model.encode())
    headers = {"content-type": "multipart/form-data; boundary=b"}
    return await proxy.api.call("POST", "/audio/transcriptions", form, headers=headers)


async def test_a_form_gets_the_models_name_and_the_credential_of_the_upstream(
    proxy: ProxyStack,
) -> None:
    proxy.first.script([status(200, {"text": "said"})], name="real/name")
    assert (await send_form(proxy, "alias")).status == 200
    request = proxy.first.requests_for("real/name")[-1]
    assert request.body == {"model": "real/name"}
    assert request.headers["authorization"] == "Bearer key-of-the-first"
    assert request.headers["x-title"] == "Backburner"
    assert request.query == "api-version=7"


async def test_a_form_without_a_route_calls_no_upstream(proxy: ProxyStack) -> None:
    answer = await send_form(proxy, "no-such-model")
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    answer = await proxy.api.call("POST", "/moderations", {"input": "x"})
    assert (answer.status, answer.error["param"]) == (400, "model"), "the default has no route"


@pytest.mark.parametrize("size", [10, 900_000], ids=["small", "spooled"])
async def test_a_form_that_waited_for_its_model_is_sent_to_the_next_upstream(
    proxy: ProxyStack, size: int
) -> None:
    said = [status(200, {"text": "said"})]
    for route, first in (("both", [status(404, {"detail": "Not Found"})]), ("both", [reset()])):
        model = proxy.model(first, said, route=route)
        assert (await send_form(proxy, model, size=size)).status == 200
        assert proxy.second.requests_for(model)[0].files == {"file": b"x" * size}
    model = proxy.model(said, route="down-then-first")
    assert (await send_form(proxy, model, size=size)).status == 200
