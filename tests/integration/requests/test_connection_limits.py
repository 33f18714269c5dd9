"""What clients send is bounded in size, time and number, also before their key is known."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Mapping

import openai
import psutil
import psycopg
import pytest

from tests.support import keys
from tests.support.api import until
from tests.support.fake_upstream import FakeUpstream
from tests.support.process_logs import line_of
from tests.support.stack import Databases, Stack, SuiteSettings, stack
from tests.support.websocket_client import socket

HEAD = b"GET /v1/responses/resp_1 HTTP/1.1\r\nhost: x\r\n"


@pytest.fixture(scope="module")
async def limited(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """One web process with short times and few connections, and no worker."""
    settings = {
        "BACKBURNER_WEB__HEAD_TIME": "1",
        "BACKBURNER_WEB__BODY_PAUSE": "4",
        "BACKBURNER_WEB__MESSAGE_PAUSE": "1",
        "BACKBURNER_WEB__CONNECTIONS": "100",
        "BACKBURNER_WEB__CONNECTIONS_PER_ADDRESS": "80",
        "BACKBURNER_WEB__CONNECTIONS_PER_PROJECT": "40",
        "BACKBURNER_WEB__CORS_ORIGINS": "https://app.example",
        "BACKBURNER_FILES__PART_BYTES": "1KiB",
        "BACKBURNER_FILES__PER_REQUEST": "2",
    }
    async with stack(
        tmp_path_factory.mktemp("limited"),
        database_server,
        suite_settings,
        fake,
        webs=1,
        workers=0,
        settings=settings,
    ) as running:
        yield running


@contextlib.asynccontextmanager
async def _connection(
    running: Stack,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.webs[0].port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _refusal(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Status and code of the answer, after which the connection is closed."""
    async with asyncio.timeout(20):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert b"\r\nx-request-id: req_" in head
    assert b"\r\nconnection: close" in head
    return int(head.split()[1]), json.loads(body)["error"]["code"]


@pytest.mark.parametrize(
    ("sent", "refusal"),
    [
        pytest.param(HEAD + b"a: " + b"x" * 70_000, (431, "headers_too_large"), id="endless line"),
        pytest.param(
            HEAD + b"".join(b"h%d: x\r\n" % number for number in range(9000)),
            (431, "headers_too_large"),
            id="many lines",
        ),
        pytest.param(
            HEAD + b"a: " + b"x" * 70_000 + b"\r\n\r\n", (431, "headers_too_large"), id="complete"
        ),
        pytest.param(b"GET /" + b"x" * 20_000, (414, "url_too_long"), id="URL"),
        pytest.param(b"\r\n" * 40_000, (431, "headers_too_large"), id="empty lines"),
        pytest.param(HEAD, (408, "request_timeout"), id="half a head"),
        pytest.param(b"GET", (408, "request_timeout"), id="a word"),
        pytest.param(b"not HTTP\r\n\r\n", (400, None), id="not HTTP"),
    ],
)
async def test_a_head_over_a_limit_is_refused(
    limited: Stack, sent: bytes, refusal: tuple[int, str]
) -> None:
    async with _connection(limited) as (reader, writer):
        writer.write(sent)
        assert await _refusal(reader) == refusal


async def test_an_endless_header_costs_no_memory(limited: Stack) -> None:
    process = psutil.Process(limited.webs[0].pid)
    before = process.memory_info().rss
    async with _connection(limited) as (reader, writer):
        writer.write(HEAD + b"a: ")
        refusing = asyncio.create_task(_refusal(reader))
        while not refusing.done():
            writer.write(b"x" * 1024 * 1024)
            # The connection may be closed at any time.
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            assert process.memory_info().rss - before < 16 * 1024 * 1024
        assert await refusing == (431, "headers_too_large")


async def test_a_client_that_speaks_tls_is_named_in_the_log(limited: Stack) -> None:
    with pytest.raises(ssl.SSLError, match="WRONG_VERSION_NUMBER"):
        await asyncio.open_connection(
            "127.0.0.1", limited.webs[0].port, ssl=ssl.create_default_context()
        )
    await until(lambda: "began a TLS handshake" in limited.webs[0].log.read_text())


async def test_pages_of_named_origins_may_call_the_api(limited: Stack) -> None:
    async def ask(method: str, origin: str, **headers: str) -> Mapping[str, str]:
        url = f"http://127.0.0.1:{limited.webs[0].port}/v1/responses"
        sent = {"origin": origin} | {name.replace("_", "-"): headers[name] for name in headers}
        async with limited.session.request(method, url, headers=sent) as answer:
            assert answer.headers["x-request-id"]
            statuses[origin, method] = answer.status
            return answer.headers

    statuses: dict[tuple[str, str], int] = {}
    wanted = {
        "access_control_request_method": "POST",
        "access_control_request_headers": "authorization,x-stainless-lang",
    }
    named, other = "https://app.example", "https://other.example"
    preflight = await ask("OPTIONS", named, **wanted)
    assert preflight["access-control-allow-origin"] == named
    assert "authorization" in preflight["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in preflight
    called = await ask("POST", named)
    assert called["access-control-allow-origin"] == named
    assert {"x-request-id", "openai-processing-ms"} <= set(
        called["access-control-expose-headers"].split(", ")
    )
    for method, headers in (("OPTIONS", wanted), ("POST", {})):
        assert "access-control-allow-origin" not in await ask(method, other, **headers)
    assert statuses == {
        (named, "OPTIONS"): 200,
        (named, "POST"): 401,
        (other, "OPTIONS"): 400,
        (other, "POST"): 401,
    }


async def test_a_body_that_stops_is_refused(limited: Stack) -> None:
    head = (
        "POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {limited.key}\r\ncontent-length: 1000\r\n"
        "x-request-id: req_stopped\r\n\r\n"
    )
    async with _connection(limited) as (reader, writer):
        writer.write(head.encode() + b'{"model":')
        assert await _refusal(reader) == (408, "request_timeout")
    line = await line_of(limited.webs[0], "http_request", request="req_stopped")
    assert (line["status"], line["error"], line["route"]) == (
        408,
        "request_timeout",
        "/v1/responses",
    )
    assert "aborted" not in line
    assert line["bytes"] > 0


async def test_connections_of_strangers_are_limited_and_those_of_clients_go_on(
    limited: Stack,
) -> None:
    request = HEAD + f"authorization: Bearer {limited.key}\r\n\r\n".encode()
    async with contextlib.AsyncExitStack() as connections:
        kept, kept_writer = await connections.enter_async_context(_connection(limited))
        kept_writer.write(request)
        assert (await kept.readuntil(b"}}")).startswith(b"HTTP/1.1 404 ")
        for _ in range(80):
            await connections.enter_async_context(_connection(limited))
        stranger, _ = await connections.enter_async_context(_connection(limited))
        assert await _refusal(stranger) == (503, "server_error")
        kept_writer.write(request)
        assert (await kept.readuntil(b"}}")).startswith(b"HTTP/1.1 404 ")


async def test_connections_of_a_project_are_limited(limited: Stack) -> None:
    request = HEAD + b"authorization: Bearer %s\r\n\r\n"
    own = request % limited.key.encode()
    other = request % (await asyncio.to_thread(keys.create, limited.dsn, "other")).encode()
    async with contextlib.AsyncExitStack() as connections:
        for _ in range(41):
            reader, writer = await connections.enter_async_context(_connection(limited))
            writer.write(own)
            if not (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 "):
                break
        reader, writer = await connections.enter_async_context(_connection(limited))
        writer.write(own)
        assert await _refusal(reader) == (429, "rate_limit_exceeded")
        reader, writer = await connections.enter_async_context(_connection(limited))
        writer.write(other)
        assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 404 ")


async def test_requests_that_wait_on_their_connection_cost_their_bytes(limited: Stack) -> None:
    process = psutil.Process(limited.webs[0].pid)
    before = process.memory_info().rss
    async with contextlib.AsyncExitStack() as connections:
        for _ in range(8):
            reader, writer = await connections.enter_async_context(_connection(limited))
            connections.callback(writer.transport.abort)
            writer.write(b"GET / HTTP/1.1\r\n\r\n" * 100_000)
            assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 404 ")
        # One that is parsed has three KiB; eighteen bytes were sent for it.
        assert process.memory_info().rss - before < 64 * _MIB


async def test_requests_that_are_sent_together_are_answered_in_order(limited: Stack) -> None:
    get = HEAD + b"authorization: Bearer %s\r\n" % limited.key.encode()
    post = get.replace(b"GET /v1/responses/resp_1", b"POST /v1/responses")
    post += b"content-type: application/json\r\n"
    # Line ends in a text are no JSON, but look like those of a request.
    body = b'{"model": "m", "input": "\r\n\r\nGET / HTTP/1.1\r\n\r\n"}'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    whole = b"".join(
        (
            get + b"x-request-id: r0\r\n\r\n",
            post + b"x-request-id: r1\r\ncontent-length: %d\r\n\r\n" % len(body) + body,
            b"\r\n" + get + b"x-request-id: r2\r\n\r\n",
            post + b"x-request-id: r3\r\ntransfer-encoding: chunked\r\n\r\n" + chunks,
            get + b"x-request-id: r4\r\nconnection: close\r\n\r\n",
        )
    )
    for size in (len(whole), 1):
        async with _connection(limited) as (reader, writer):
            for start in range(0, len(whole), size):
                writer.write(whole[start : start + size])
                await writer.drain()
            async with asyncio.timeout(20):
                received = await reader.read()
        answers = received.split(b"HTTP/1.1 ")[1:]
        ids = [one.partition(b"x-request-id: ")[2].split(b"\r\n")[0] for one in answers]
        assert ids == [b"r0", b"r1", b"r2", b"r3", b"r4"]
        assert [one[:3] for one in answers] == [b"404", b"400", b"404", b"400", b"404"]


async def test_requests_for_readiness_share_their_look_at_the_database(limited: Stack) -> None:
    looks = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND query LIKE '%%alembic_version%%'"
    )
    async with await psycopg.AsyncConnection.connect(limited.dsn) as connection:
        await connection.execute("LOCK TABLE alembic_version")
        reports = [asyncio.create_task(limited.readyz()) for _ in range(30)]
        await until(lambda: limited.value(looks))
        # They would fill the pool.
        assert (await limited.api().call("GET", "/responses/resp_1")).status == 404
        assert await limited.value(looks) == 1
        await connection.rollback()
        assert all(report["ready"] for report in await asyncio.gather(*reports))


async def test_parts_and_files_of_a_request_are_bounded_by_settings(limited: Stack) -> None:
    client, api = limited.openai(), limited.api()
    upload = await client.uploads.create(
        bytes=2000, filename="a.txt", mime_type="text/plain", purpose="user_data"
    )
    await client.uploads.parts.create(upload.id, data=b"a" * 1024)
    with pytest.raises(openai.APIStatusError) as refused:
        await client.uploads.parts.create(upload.id, data=b"a" * 1025)
    assert (refused.value.status_code, refused.value.code) == (413, "request_too_large")
    for count, code in ((2, "file_not_found"), (3, "invalid_value")):
        files = [{"type": "input_file", "file_id": f"file-{number:032}"} for number in range(count)]
        message = {"role": "user", "content": files}
        answer = await api.call("POST", "/responses", {"model": "m", "input": [message]})
        assert (answer.status, answer.error["code"]) == (400, code)


async def test_guessed_keys_are_slowed_and_valid_ones_of_their_address_are_not(
    limited: Stack,
) -> None:
    new = [await asyncio.to_thread(keys.create, limited.dsn, "guessed") for _ in range(2)]
    guesses = [
        asyncio.create_task(limited.api(key=f"bb-guess{number}").call("GET", "/responses/resp_1"))
        for number in range(60)
    ]
    # This process has seen neither: one comes among the guesses, one after the address is refused.
    assert (await limited.api(key=new[0]).call("GET", "/responses/resp_1")).status == 404
    answers = await asyncio.gather(*guesses)
    assert (await limited.api(key=new[1]).call("GET", "/responses/resp_1")).status == 404
    statuses = [answer.status for answer in answers]
    assert set(statuses) == {401, 429}
    refused = next(answer for answer in answers if answer.status == 429)
    assert refused.error["code"] == "rate_limit_exceeded"
    assert int(refused.headers["retry-after"]) >= 1


async def test_a_message_that_stays_incomplete_ends_its_socket(limited: Stack) -> None:
    never = asyncio.Event()

    async def begun_with(text: str) -> AsyncIterator[str]:
        yield text
        await never.wait()

    async with contextlib.AsyncExitStack() as sockets:
        fragment, empty, half, idle = [
            await sockets.enter_async_context(socket(limited.api())) for _ in range(4)
        ]
        sending = [
            asyncio.create_task(late.connection.send(begun_with(text)))
            for late, text in ((fragment, '{"type": '), (empty, ""))
        ]
        half.connection.transport.write(b"\x81\x8a\x00\x00\x00\x00{")
        for late in (fragment, empty, half):
            error = await late.read_error()
            assert (error["status"], error["code"]) == (408, "request_timeout")
            assert await late.read_until_closed() == 1008
        for task in sending:
            task.cancel()
        await idle.send(type="unknown")
        assert (await idle.read_error())["status"] == 400, "silence between messages is allowed"


async def test_a_message_that_goes_on_slowly_arrives(limited: Stack) -> None:
    async def pieces() -> AsyncIterator[str]:
        yield '{"type": "'
        for _ in range(3):
            await asyncio.sleep(0.5)  # the pauses of the client are the case
            yield "x" * 1100
        yield '"}'

    async with socket(limited.api(), compression=None) as slow:
        await slow.connection.send(pieces())
        assert (await slow.read_error())["param"] == "type"


_MIB = 1024 * 1024
_REPEATED = [
    pytest.param(b"[", b"[],", b"0]", id="empty lists"),
    pytest.param(
        b'{"model": "m", "input": "x", "text": {"format": {"type": "json_schema", "name": "x", '
        b'"schema": {"type": "object", "properties": {"a": {"enum": [',
        b"{},",
        b"0]}}}}}}",
        id="an enum",
    ),
    pytest.param(b'{"model": "m", "input": "x", "instructions": "', b"abc", b'"}', id="text"),
]


@pytest.mark.parametrize(("start", "repeated", "end"), _REPEATED)
async def test_a_body_of_many_values_costs_little_more_than_its_bytes(
    limited: Stack, start: bytes, repeated: bytes, end: bytes
) -> None:
    process = psutil.Process(limited.webs[0].pid)
    before = process.memory_info().rss
    body = start + repeated * (60 * _MIB // len(repeated)) + end
    head = (
        "POST /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        f"authorization: Bearer {limited.key}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    async with _connection(limited) as (reader, writer):
        writer.write(head.encode() + body)
        assert await _refusal(reader) == (413, "request_too_large")
    # The pieces that arrive and the whole body; the rest is what an allocator keeps.
    assert process.memory_info().rss - before < 250 * _MIB


async def test_a_large_file_is_no_large_text(limited: Stack) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "QUJD" * (4 * _MIB)}
    body = {"model": "m", "input": [{"role": "user", "content": [image]}], "background": True}
    created = await limited.api().call("POST", "/responses", body)
    assert created.status == 200, created.raw[:500]
