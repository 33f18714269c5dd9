"""/v1/chat/completions hands a request through to the model's upstream and its answer back, byte for byte (docs/adr/0016)."""

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

[upstreams.away]
base_url = "http://127.0.0.1:{closed}/v1"

[routes]
"first-*" = "first"
"second-*" = "second"
"both-*" = ["first", "second"]
"away-then-first-*" = ["away", "first"]
"away-*" = "away"
"alias" = {{ upstream = "first", model = "real/name" }}
"""

LONG = 60


class House:
    """A deployment with two upstreams, the second of which speaks the Responses API too."""

    def __init__(self, one: Stack, first: FakeUpstream, second: FakeUpstream) -> None:
        self.stack, self.first, self.second = one, first, second
        self.api: Api = one.api()
        self._count = 0

    def model(
        self,
        first: list[Step] | None = None,
        second: list[Step] | None = None,
        *,
        route: str = "first",
    ) -> str:
        """A new model with these scripts."""
        self._count += 1
        name = f"{route}-{self._count}"
        for upstream, script in ((self.first, first), (self.second, second)):
            if script is not None:
                upstream.script(script, name=name)
        return name

    async def ask(self, model: str, **body: object) -> HttpResponse:
        """One chat completion, read whole."""
        asked: JSON = {"model": model, "messages": [{"role": "user", "content": "Hi."}], **body}
        return await self.api.call("POST", "/chat/completions", asked)

    @asynccontextmanager
    async def streamed(self, model: str) -> AsyncIterator[aiohttp.StreamReader]:
        """One chat completion as it comes."""
        body = io.BytesIO(json.dumps({"model": model, "messages": [], "stream": True}).encode())
        headers = {"authorization": f"Bearer {self.stack.key}", "content-type": "application/json"}
        async with self.stack.session.post(
            f"{self.api.base_url}/chat/completions", data=body, headers=headers
        ) as answer:
            yield answer.content


@pytest.fixture(scope="module")
async def house(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[House]:
    folder = tmp_path_factory.mktemp("passage")
    async with FakeUpstream() as first, FakeUpstream() as second:
        (folder / "backburner.toml").write_text(
            FILE.format(first=first.base_url, second=second.base_url, closed=free_port())
        )
        settings = {
            "BACKBURNER_CONFIG": str(folder / "backburner.toml"), "BACKBURNER_LIMITS__BODY": "1000000", "BACKBURNER_WEB__SEND_TIMEOUT": "2",
            "BACKBURNER_WEB__GRACE": "1",
        }  # fmt: skip
        async with stack(folder, database_server, suite_settings, fake, settings=settings) as one:
            yield House(one, first, second)
        assert not first.faults, first.faults
        assert not second.faults, second.faults


# --- bytes ---


ODD = b': a comment\r\n\r\ndata:{"no":"space"}\n\nevent: x\nid: 7\ndata: {"fields":   "kept"}\n\ndata: \xff\xfe no utf-8\n\n'


async def test_a_stream_arrives_byte_for_byte(house: House) -> None:
    model = house.model([raw(ODD), text("Hello ", "wörld"), finish(), usage(), done()])
    answer = await house.ask(model, stream=True, stream_options={"include_usage": True})
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.raw.startswith(ODD)
    assert answer.raw.endswith(b"data: [DONE]\n\n")
    chunks = [
        json.loads(line[6:])
        for line in answer.raw[len(ODD) :].splitlines()
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


async def test_each_piece_arrives_when_it_is_sent(house: House) -> None:
    opened = asyncio.Event()
    model = house.model([text("early"), wait_for(opened), text("late"), finish(), done()])
    async with house.streamed(model) as content:
        assert b"early" in await content.readany()
        opened.set()
        assert (await content.read()).endswith(b"data: [DONE]\n\n")


async def test_an_answer_in_one_piece_arrives_as_it_is(house: House) -> None:
    whole = b'{"id":"x",  "object":"chat.completion","odd":1.0,"choices":[]}'
    answer = await house.ask(house.model([status(200, whole)]))
    assert (answer.status, answer.raw) == (200, whole)
    assert answer.headers["content-length"] == str(len(whole))


async def test_the_upstream_gets_everything_but_nothing_of_the_clients_headers(
    house: House,
) -> None:
    house.first.script(reply("ok"), name="real/name")
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
    answer = await house.api.call("POST", "/chat/completions", body, headers=headers)
    assert answer.status == 200
    request = house.first.requests_for("real/name")[0]
    assert request.body == {**body, "model": "real/name"}
    assert request.headers["authorization"] == "Bearer key-of-the-first"
    assert (request.headers["x-title"], request.query) == ("Backburner", "api-version=7")
    assert request.headers["accept-encoding"] == "identity"
    assert not {"openai-organization", "cookie", "x-forwarded-for", "x-custom"} & set(
        request.headers
    )
    assert house.stack.key not in json.dumps(request.headers)


async def test_the_client_gets_few_of_the_upstreams_headers(house: House) -> None:
    told = {
        "set-cookie": "session=1", "server": "vendor", "x-request-id": "theirs", "openai-organization": "org-1", "access-control-allow-origin": "*",
        "retry-after": "7", "x-ratelimit-remaining": "0", "retry-after-ms": "7000",
    }  # fmt: skip
    answer = await house.ask(house.model([status(429, headers=told)]))
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


async def test_one_clients_cookies_are_not_anothers(house: House) -> None:
    model = house.model([status(200, {}, {"set-cookie": "session=secret; Path=/"})])
    await house.ask(model)
    await house.ask(model)
    assert all("cookie" not in request.headers for request in house.first.requests_for(model))


async def test_an_upstream_that_speaks_responses_is_asked_for_chat_as_well(house: House) -> None:
    model = house.model(second=reply("chat all the same"), route="second")
    assert (await house.ask(model)).body["choices"][0]["message"]["content"] == "chat all the same"
    assert house.second.requests_for(model)[0].path == "/v1/chat/completions"


# --- refusals ---


@pytest.mark.parametrize("code", [400, 404, 408, 409, 413, 422, 429, 500, 503])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_refusal_keeps_its_status_and_its_body(
    house: House, code: int, stream: bool
) -> None:
    body = b'{"error": {"message":  "our own words", "type": "theirs", "more": 1}}'
    answer = await house.ask(house.model([status(code, body)]), stream=stream)
    assert (answer.status, answer.raw) == (code, body)


@pytest.mark.parametrize("code", [401, 403])
async def test_what_an_upstream_says_of_our_credential_is_not_for_clients(
    house: House, code: int
) -> None:
    answer = await house.ask(
        house.model([status(code, {"error": {"message": "Incorrect API key: key-of-the-first"}})])
    )
    assert answer.status == code
    assert "credential" in answer.error["message"]
    assert "key-of-the-first" not in answer.raw.decode()


async def test_our_credential_is_taken_out_of_other_refusals(house: House) -> None:
    answer = await house.ask(
        house.model([status(400, {"error": {"message": "you sent key-of-the-first"}})])
    )
    assert answer.status == 400
    assert "key-of-the-first" not in answer.raw.decode()


async def test_a_page_of_html_is_no_page_here(house: House) -> None:
    answer = await house.ask(
        house.model([status(502, b"<script>alert(1)</script>", {"content-type": "text/html"})])
    )
    assert (answer.status, answer.headers["content-type"]) == (502, "text/plain; charset=utf-8")


UNUSABLE: list[tuple[str, list[Step], int]] = [
    ("reset", [reset()], 502),
    ("closed", [drop()], 502),
    ("a redirect", [status(302, headers={"location": "http://127.0.0.1:1/"})], 502),
    ("compressed", [status(200, b"\x1f\x8b", {"content-encoding": "gzip"})], 502),
]


@pytest.mark.parametrize(
    ("script", "expected"), [pytest.param(*rest, id=name) for name, *rest in UNUSABLE]
)
async def test_what_is_no_answer_is_told_in_our_envelope(
    house: House, script: list[Step], expected: int
) -> None:
    answer = await house.ask(house.model(script))
    assert (answer.status, answer.error["type"]) == (expected, "server_error")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_an_upstream_that_says_nothing_is_a_timeout(house: House, stream: bool) -> None:
    model = house.model(second=[hang()], route="second")
    answer = await house.ask(model, stream=stream)
    assert (answer.status, answer.error["type"]) == (504, "server_error")
    await until(lambda: house.second.requests_for(model)[0].closed_by_client)


async def test_an_upstream_that_is_away_is_a_502(house: House) -> None:
    answer = await house.ask("away-1")
    assert (answer.status, answer.error["code"]) == (502, None)


@pytest.mark.parametrize(
    ("body", "expected", "param", "code"),
    [
        (b"{", 400, None, "invalid_json"),
        (b"[]", 400, None, "invalid_type"),
        (b"{}", 400, "model", "missing_required_parameter"),
        (b'{"model": null}', 400, "model", "missing_required_parameter"),
        (b'{"model": 7}', 400, "model", "invalid_type"),
        (b'{"model": "nobody-serves-it"}', 404, "model", "model_not_found"),
        (b'{"model": "' + b"x" * 1_000_000 + b'"}', 413, None, "request_too_large"),
    ],
    ids=["no json", "an array", "no model", "null", "a number", "unknown", "too large"],
)
async def test_what_no_upstream_need_be_asked_for(
    house: House, body: bytes, expected: int, param: str | None, code: str
) -> None:
    answer = await house.api.call("POST", "/chat/completions", body)
    assert (answer.status, answer.error["param"], answer.error["code"]) == (expected, param, code)


async def test_only_json_is_read(house: House) -> None:
    answer = await house.api.call(
        "POST", "/chat/completions", b"{}", headers={"content-type": "text/plain"}
    )
    assert answer.status == 415


# --- the next upstream ---


@pytest.mark.parametrize(
    "script",
    [[status(503)], [status(429)], [status(401)], [status(404)], [reset()]],
    ids=["503", "429", "401", "404", "reset"],
)
async def test_the_next_upstream_is_asked_before_the_first_byte(
    house: House, script: list[Step]
) -> None:
    model = house.model(script, reply("second"), route="both")
    assert (await house.ask(model)).body["choices"][0]["message"]["content"] == "second"


async def test_an_upstream_that_is_away_is_passed_over(house: House) -> None:
    model = house.model(reply("first"), route="away-then-first")
    assert (await house.ask(model)).status == 200


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
async def test_what_is_wrong_with_the_request_is_told_by_the_first(
    house: House, script: list[Step]
) -> None:
    model = house.model(script, reply("second"), route="both")
    assert (await house.ask(model)).status in (400, 404, 422)
    assert not house.second.requests_for(model)


async def test_after_the_first_byte_nobody_else_is_asked(house: House) -> None:
    opened = asyncio.Event()
    model = house.model([text("so far"), wait_for(opened), drop()], reply("second"), route="both")
    async with house.streamed(model) as content:
        assert b"so far" in await content.readany()
        opened.set()
        assert b"broke off" in await content.read()
    assert not house.second.requests_for(model)


# --- connections ---


async def test_a_stream_that_breaks_off_says_so_where_an_event_can(house: House) -> None:
    model = house.model([text("so far"), hang()])
    answer = await house.ask(model, stream=True)
    last = answer.raw.rstrip().splitlines()[-1]
    assert last.startswith(b"data: ")
    assert json.loads(last[6:])["error"]["type"] == "server_error"
    assert b"[DONE]" not in answer.raw
    await until(lambda: house.first.requests_for(model)[0].closed_by_client)


async def test_in_the_middle_of_an_event_it_just_breaks_off(house: House) -> None:
    model = house.model([raw(b'data: {"half": '), hang()])
    with pytest.raises(aiohttp.ClientPayloadError):
        await house.ask(model, stream=True)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("spoke", [True, False], ids=["in the middle", "before the first byte"])
async def test_a_client_that_leaves_closes_the_upstream(
    house: House, stream: bool, spoke: bool
) -> None:
    model = house.model([text("so far"), hang()] if spoke else [hang()])
    body = json.dumps({"model": model, "messages": [], "stream": stream}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", house.stack.webs[0].port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {house.stack.key}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    await until(lambda: house.first.requests_for(model))
    if spoke and stream:
        await reader.readuntil(b"so far")
    writer.close()
    await until(lambda: house.first.requests_for(model)[0].closed_by_client)


async def test_a_client_that_reads_nothing_holds_the_upstream_back_and_is_let_go(
    house: House,
) -> None:
    """Megabytes are ready; what neither the sockets nor a small buffer take stays with the upstream."""
    piece = b"data: " + b"x" * 65_536 + b"\n\n"
    model = house.model([*[raw(piece)] * 1000, done()])
    body = json.dumps({"model": model, "messages": [], "stream": True}).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(
            client, ("127.0.0.1", house.stack.webs[0].port or 0)
        )
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {house.stack.key}\r\ncontent-type: application/json\r\n"
        await asyncio.get_running_loop().sock_sendall(
            client, f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        )
        await until(
            lambda: (
                house.first.requests_for(model)
                and house.first.requests_for(model)[0].closed_by_client
            ),
            20,
        )
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert house.first.requests_for(model)[0].finished is None, (
        "the whole answer was read although nobody took it"
    )


async def test_a_process_that_stops_lets_what_ends_soon_end_and_cuts_off_the_rest(
    house: House,
) -> None:
    opened = asyncio.Event()
    soon, never = (
        house.model([text("so far"), wait_for(opened), *reply("the rest")]),
        house.model([text("so far"), hang()]),
    )
    unheard = house.model([hang()])
    process = await house.stack.start_web()
    api = house.stack.api(process)
    asked = [
        api.call("POST", "/chat/completions", {"model": model, "messages": [], "stream": True})
        for model in (soon, never, unheard)
    ]
    tasks = [asyncio.create_task(one) for one in asked]
    await until(lambda: all(house.first.requests_for(model) for model in (soon, never, unheard)))
    house.stack.forget(process)
    process.request_stop()
    opened.set()
    done_in_time, cut_off, told = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(done_in_time, HttpResponse)
    assert done_in_time.raw.endswith(b"data: [DONE]\n\n")
    assert isinstance(cut_off, aiohttp.ClientError)
    assert isinstance(told, HttpResponse)
    assert (told.status, told.error["code"]) == (503, "server_error")
    await until(
        lambda: all(
            house.first.requests_for(model)[0].closed_by_client for model in (never, unheard)
        )
    )
    await process.stop_cleanly()


async def test_many_at_once_do_not_wait_for_each_other(house: House) -> None:
    opened = asyncio.Event()
    slow = house.model([silence_until(opened), *reply("slow")])
    waiting = [asyncio.create_task(house.ask(slow)) for _ in range(LONG)]
    await until(lambda: len(house.first.requests_for(slow)) == LONG)
    assert (await house.ask(house.model(reply("quick")))).status == 200
    opened.set()
    assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}


async def test_nothing_is_stored(house: House) -> None:
    before = await house.stack.value("SELECT count(*) FROM responses")
    await house.ask(house.model([chunk({"choices": []}), *reply("x")]))
    assert await house.stack.value("SELECT count(*) FROM responses") == before
